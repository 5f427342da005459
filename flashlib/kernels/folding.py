"""More keys for an attention that is under way: `fold(q, k, v, state)`, in place."""

import math
from typing import Literal

import torch

from flashlib.arguments import check_choice
from flashlib.kernels import ops
from flashlib.kernels.attention import Sides, check_arguments
from flashlib.kernels.scores import NONE, scores_of
from flashlib.masks import window_of

FoldImpl = Literal["auto", "triton", "gluon", "reference"]
IMPLS = ("auto", "triton", "gluon", "reference")
State = tuple[torch.Tensor, torch.Tensor]


def fold(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: State | None = None, *,
         causal: bool = False, window: Sides = None, scale: float | None = None,
         softcap: float | None = None, alibi: torch.Tensor | None = None,
         impl: FoldImpl = "auto") -> State:
    """Fold these keys and values into a state (O, lse) of the same queries, in place, and return it.

    For keys that do not come all at once: prefill in chunks, keys that wait in other memory, a ring of
    GPUs. The state is a part as `merge` takes it, with O in float32, so that nothing is rounded from
    one call to the next; and it is merged by the kernel that computes what is new, which reads the
    state once and writes it once. After all keys, in any order, it is attention to them all:

        state = None                                    # flash_attention(q, k, v, return_lse=True)
        for some_k, some_v in zip(k.split(1024, 2), v.split(1024, 2)):
            state = fold(q, some_k, some_v, state)

        for a in range(0, n, 1024):                     # and with causal=True, by chunks of queries
            rows = q[:, :, a:a + 1024]
            state = fold(rows, k[:, :, a:a + 1024], v[:, :, a:a + 1024], causal=True)
            if a:
                state = fold(rows, k[:, :, :a], v[:, :, :a], state)

    Args:
        q, k, v, causal, window, scale, softcap, alibi: as in `flash_attention`. A mask is that of these
            keys: with `causal` the last query lies on the last of them.
        state: O like q, but float32, and lse (B, H, N_q) float32, natural log (of float64, float64).
            Any strides: rows of a larger state will do. None begins with an empty one. A row with
            lse = −∞ is empty, whatever its O holds. With lse = sink and O = 0 it begins with a sink.
        impl: "auto", "triton", "gluon" or "reference", as in `flash_attention`.
    Returns:
        The state, (O, lse). Rows that see none of these keys keep theirs to the bit.
    Raises:
        ValueError, TypeError, NotImplementedError: before any launch, naming the argument, what was
            expected and what came.

    Bit-identical from run to run. It has no derivative; `flash_attention` and `merge` have theirs.
    """
    check_choice("impl", impl, IMPLS)
    q, k, v, factor = check_arguments(q, k, v, causal, scale, False, impl)
    scores = NONE if softcap is None and alibi is None else scores_of(q, softcap, alibi, None)
    if state is None:
        state = _empty(q)
    elif not isinstance(state, tuple | list) or len(state) != 2:
        raise TypeError(f"state: expected None or a pair of tensors (O, lse), got {_said(state)}")
    o, lse = state
    _check("O", o, q, q.shape)
    _check("lse", lse, q, q.shape[:3])
    if (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, o, lse))
            ) or ops.transformed():
        raise NotImplementedError("q, k, v: fold has no derivative and takes no part in torch.func:"
                                  " use torch.no_grad(), or flash_attention and merge")
    ops.forward(q, k, v, window_of(causal, window), factor, impl, None, *scores, into=(o, lse))
    for x in (o, lse):                                      # autograd may have saved it for somebody
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)
    return o, lse


def _empty(q: torch.Tensor) -> State:
    """Return the state of rows that have seen nothing."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return (torch.zeros(q.shape, dtype=wide, device=q.device), ops.lse_like(q, -math.inf))


def _said(x) -> str:
    """Return what came for a state, in words."""
    return f"{len(x)} of them" if isinstance(x, tuple | list) else type(x).__name__


def _check(name: str, x, q: torch.Tensor, shape) -> None:
    """Refuse what cannot hold one half of a state of q, by name."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"state: expected {name} to be a torch.Tensor, got {type(x).__name__}")
    wide = torch.promote_types(q.dtype, torch.float32)
    if x.dtype != wide:
        raise TypeError(f"state: expected {name} in {wide}, which is not rounded from one call to the"
                        f" next, got {x.dtype}")
    if x.shape != shape:
        raise ValueError(f"state: expected {name} of shape {tuple(shape)} as q, got {tuple(x.shape)}")
    if x.device != q.device:
        raise ValueError(f"state: expected {name} on {q.device} as q, got {x.device}")
    if x.is_neg() or any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(),
                                                                          strict=True)):
        raise ValueError(f"state: expected {name} to hold each number once, to write it in place, got"
                         f" strides {x.stride()}{', negated' * x.is_neg()}; use {name}.clone()")
