"""Attention problems in torch, and two ways to solve them densely: in float64, and plainly.

Needs torch only, so that a GPU machine without pytest can use it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

NAMES = ("O", "lse", "dQ", "dK", "dV")


class Shape(NamedTuple):
    """B, query heads, key heads, N_q, N_k, D, and the mask."""

    B: int
    H: int
    Hk: int
    Nq: int
    Nk: int
    D: int
    causal: bool = False
    window: tuple | None = None

    def __str__(self):
        mask = "-causal" if self.causal else ""
        mask += "" if self.window is None else f"-window{self.window[0]}:{self.window[1]}"
        return f"B{self.B}-H{self.H}:{self.Hk}-N{self.Nq}x{self.Nk}-D{self.D}{mask}"


class Problem(NamedTuple):
    """Inputs, the gradients that flow into O and lse (dlse may be None), and the options."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    dlse: torch.Tensor | None
    causal: bool
    scale: float | None
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    alibi: torch.Tensor | None = None
    sink: torch.Tensor | None = None


def problem(shape, dtype=torch.float32, *, seed=0, scale=None, device="cpu", with_lse=True):
    """Return a `Problem` of independent N(0, 1) numbers."""
    B, H, Hk, Nq, Nk, D, causal, window = Shape(*shape)
    rng = torch.Generator(device=device).manual_seed(seed)

    def normal(*size, dtype=dtype):
        return torch.randn(*size, generator=rng, dtype=torch.float32, device=device).to(dtype)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return Problem(normal(B, H, Nq, D), normal(B, Hk, Nk, D), normal(B, Hk, Nk, D),
                   normal(B, H, Nq, D), normal(B, H, Nq, dtype=wide) if with_lse else None,
                   causal, scale, window)


def dense(given: Problem, dtype=torch.float64):
    """Return O, lse, dQ, dK, dV by plain dense attention in `dtype`, through torch's autograd.

    With a sink its gradient comes last.
    """
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in given[:3])
    _, Hk, Nk, D = k.shape
    H, Nq = q.shape[1:3]
    scale = 1 / math.sqrt(D) if given.scale is None else given.scale
    grouped = q.unflatten(1, (Hk, H // Hk))
    S = (grouped @ k[:, :, None].transpose(-1, -2)) * scale
    if given.softcap or given.alibi is not None or given.sink is not None:
        return _dense_scores(given, S.flatten(1, 2), q, k, v)
    if given.causal or given.window:
        left, right = given.window or (None, None)
        on = torch.arange(Nq, device=q.device)[:, None] + Nk - Nq      # the key that a row lies on
        j = torch.arange(Nk, device=q.device)[None, :]
        seen = torch.ones(Nq, Nk, dtype=torch.bool, device=q.device)
        if left is not None:
            seen &= j >= on - left
        if right is not None or given.causal:
            seen &= j <= on + (0 if given.causal else right)
        sees = seen.any(-1)
        S = S.masked_fill(~seen & sees[:, None], -math.inf)
        P = torch.softmax(S, -1) * sees[:, None].to(dtype)
        lse = torch.logsumexp(S.to(torch.promote_types(dtype, torch.float32)), -1)
        lse = torch.where(sees, lse, 0.0)
    else:
        sees = torch.ones(Nq, dtype=torch.bool, device=q.device)
        P = torch.softmax(S, -1)
        lse = torch.logsumexp(S.to(torch.promote_types(dtype, torch.float32)), -1)
    O = (P @ v[:, :, None]).flatten(1, 2)
    lse = lse.flatten(1, 2)
    outputs, gradients = [O], [given.do.to(dtype)]
    if given.dlse is not None:
        outputs, gradients = [*outputs, lse], [*gradients, given.dlse.to(lse.dtype)]
    dq, dk, dv = torch.autograd.grad(outputs, (q, k, v), gradients)
    lse = torch.where(sees, lse.detach(), -math.inf)
    return O.detach(), lse, dq, dk, dv


def _dense_scores(given, S, q, k, v):
    """Return what `dense` does, of the scaled logits S (B, H, N_q, N_k): with scores."""
    B, H, Nq, Nk = S.shape
    wide = torch.promote_types(S.dtype, torch.float32)
    if given.softcap:
        S = given.softcap * torch.tanh(S / given.softcap)
    on = torch.arange(Nq, device=q.device)[:, None] + Nk - Nq          # the key that a row lies on
    j = torch.arange(Nk, device=q.device)
    if given.alibi is not None:
        S = S - given.alibi.to(S.dtype).expand(B, H)[..., None, None] * (on - j).abs()
    left, right = given.window or (None, None)
    seen = torch.ones(Nq, Nk, dtype=torch.bool, device=q.device)
    if left is not None:
        seen &= j >= on - left
    if given.causal or right is not None:
        seen &= j <= on + (0 if given.causal else right)
    leaves = [q, k, v]
    if given.sink is None:
        beside = S.new_full((B, H, Nq, 1), -math.inf)
    else:
        leaves.append(given.sink.detach().to(wide).requires_grad_())
        beside = leaves[3].to(S.dtype)[None, :, None, None].expand(B, H, Nq, 1)
    lowest = torch.finfo(S.dtype).min
    S = torch.cat([S.masked_fill(~seen, -math.inf), beside], -1).clamp_min(lowest)   # no −∞ − (−∞)
    P = torch.softmax(S, -1)[..., :Nk] * seen
    empty = S.amax(-1) <= lowest
    lse = torch.where(empty, 0.0, torch.logsumexp(S.to(wide), -1))
    O = P @ v.repeat_interleave(H // v.shape[1], 1)
    outputs, gradients = [O], [given.do.to(O.dtype)]
    if given.dlse is not None:
        outputs, gradients = [O, lse], [gradients[0], given.dlse.to(lse.dtype)]
    found = torch.autograd.grad(outputs, leaves, gradients)
    return O.detach(), torch.where(empty, -math.inf, lse.detach()), *found


def solve(given: Problem, attention, **options):
    """Return O, lse, dQ, dK, dV of `attention`, called like `flash_attention`, and last the sink's."""
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    leaves = [q, k, v]
    for name in ("window", "softcap", "alibi"):
        if getattr(given, name) is not None:
            options[name] = getattr(given, name)
    if given.sink is not None:
        options["sink"] = given.sink.detach().requires_grad_()
        leaves.append(options["sink"])
    o, lse = attention(q, k, v, causal=given.causal, scale=given.scale, return_lse=True, **options)
    outputs, gradients = [o], [given.do]
    if given.dlse is not None:
        outputs, gradients = [o, lse], [given.do, given.dlse]
    return o.detach(), lse.detach(), *torch.autograd.grad(outputs, leaves, gradients)


def off(got, expected):
    """Return the largest error relative to the largest finite value; infinities must agree."""
    got, expected = got.double(), expected.double()
    if got.numel() == 0:
        return 0.0
    finite = torch.isfinite(expected)
    if not torch.equal(got[~finite].nan_to_num(nan=7.0), expected[~finite].nan_to_num(nan=7.0)):
        return math.inf
    error = (got - expected)[finite]
    if not error.numel():
        return 0.0
    return (error.abs().max() / expected[finite].abs().max().clamp_min(1.0)).nan_to_num(
        nan=math.inf, posinf=math.inf).item()
