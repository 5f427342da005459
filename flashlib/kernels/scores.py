"""What is done to the logits beside scale and mask: softcap, ALiBi, a sink. A closed set, decided here.

With s = scale · q·k, in this order: softcap c makes c · tanh(s / c) of it (Gemma 2, arXiv:2408.00118);
ALiBi takes slope · |i + N_k − N_q − j| off (Press et al. 2022, arXiv:2108.12409), so that the distance
is 0 where a query lies on a key; the mask hides; and the sink, a logit of each head that has no value
(Xiao et al. 2024, arXiv:2309.17453, as gpt-oss learns it), is one more element of every row's sum. What
kernels do with them is in `flashlib.kernels.triton.scores`; the NumPy page is `flashlib.scores`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from flashlib.exp2 import LOG2E
from flashlib.scores import check_softcap


class Kind(NamedTuple):
    """Which scores a call has: what a kernel is compiled for."""

    softcap: bool = False
    alibi: int = 0                                          # dimensions of the slopes, 0 without
    sink: int = 0                                           # the same


class Scores(NamedTuple):
    """A softcap, slopes and sinks, (H,) or (B, H), each of them None where there is none."""

    softcap: float | None = None
    alibi: torch.Tensor | None = None
    sink: torch.Tensor | None = None


PLAIN, NONE = Kind(), Scores()
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def kind_of(softcap, alibi, sink) -> Kind:
    """Return the kind of these arguments, checked or not."""
    if softcap is None and alibi is None and sink is None:
        return PLAIN
    return Kind(softcap is not None,
                *(0 if x is None else getattr(x, "ndim", -1) for x in (alibi, sink)))


def scores_of(q, softcap, alibi, sink) -> Scores:
    """Return the scores that these arguments of a call on checked q ask for, or refuse them by name.

    A sink of another dtype is cast to that of lse, which its gradient flows through.
    """
    (B, H), wide = q.shape[:2], torch.float64 if q.dtype == torch.float64 else torch.float32
    if softcap is not None:
        softcap = check_softcap(softcap)
    if alibi is not None:
        _check("alibi", alibi, q, {torch.float32: 0, wide: 0}, ((H,), (B, H)))
        if alibi.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError("alibi: slopes have no gradient, and these require one: pass"
                                      " alibi.detach(), or use torch.nn.attention.flex_attention")
    if sink is not None:
        _check("sink", sink, q, FLOATS if wide == torch.float32 else (*FLOATS, wide), ((H,),))
        sink = sink.to(wide)
    return Scores(softcap, alibi, sink)


def _check(name, x, q, dtypes, shapes) -> None:
    """Refuse a tensor of numbers of heads by name."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected None or a torch.Tensor, got {type(x).__name__}")
    if x.is_nested or x.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got"
                        f" {'a nested tensor' if x.is_nested else x.layout}")
    if x.dtype not in dtypes:
        expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name}: expected {expected}, got {x.dtype}")
    if tuple(x.shape) not in shapes:
        raise ValueError(f"{name}: expected shape {' or '.join(map(str, shapes))}, a number for each"
                         f" head of q, got {tuple(x.shape)}")
    if x.device != q.device:
        raise ValueError(f"{name}: expected a tensor on {q.device} as q, got {x.device}")


def as_kernels_read(scores: Scores) -> tuple:
    """Return the softcap in powers of 2, slopes and sinks contiguous and aligned; None stays None."""
    softcap, *of_heads = scores
    if softcap is None and scores.alibi is None and scores.sink is None:
        return NONE
    laid = (None if x is None else x.contiguous() for x in of_heads)
    return (None if softcap is None else softcap * LOG2E,
            *(x if x is None or x.data_ptr() % 16 == 0 else x.clone() for x in laid))


def by_head(x: torch.Tensor, B: int, H: int) -> torch.Tensor:
    """Return numbers of heads as (B·H, 1, 1)."""
    return x.expand(B, H).reshape(B * H, 1, 1)


def apply(S, softcap, slopes, rows: slice, keys: slice, shift: int):
    """Return the logits S (…, rows, keys) with softcap and ALiBi, and their derivative, None for 1.

    `slopes` broadcast against S; `shift` is N_k − N_q.
    """
    factor = None
    if softcap is not None:
        t = torch.tanh(S / softcap)
        S, factor = softcap * t, 1 - t * t
    if slopes is not None:
        i = torch.arange(rows.start, rows.stop, device=S.device)
        j = torch.arange(keys.start, keys.stop, device=S.device)
        S = S - slopes.to(S.dtype) * (i[:, None] + shift - j).abs()
    return S, factor


def with_sink(m, l, sink):
    """Return (m, l) of a softmax's state with the sink in it, and what the sum of values scales by."""
    top = torch.maximum(m, sink)
    keep = torch.exp(m - top)
    return top, l * keep + torch.exp(sink - top), keep


def sink_gradient(sink, lse, delta):
    """Return −Σ exp(sink − lse) · delta over the rows, (B, H); delta = rowsum(dO ∘ O) − dlse."""
    sink = sink.expand(lse.shape[:2])[..., None]
    weight = torch.exp(sink - lse).masked_fill(sink == -torch.inf, 0.0)
    return -(weight * delta).sum(-1)


def of_sink(scores: Scores, lse, delta, sign: int = 1) -> tuple:
    """Return the gradient of the sink as a backward returns it behind dV: one tensor or none.

    `delta` comes with this sign.
    """
    return () if scores.sink is None else (sign * sink_gradient(scores.sink, lse, delta),)
