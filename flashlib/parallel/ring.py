"""Ring attention in torch: the rank's programs of `flashlib.algorithms.ring` over torch.distributed."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from flashlib.algorithms.layouts import blocks, check_layout
from flashlib.algorithms.ring import ring_backward, ring_forward
from flashlib.kernels import ops
from flashlib.kernels.attention import Impl, Sides
from flashlib.masks import Window, window_of
from flashlib.parallel.groups import SMS, Options, Ranks, agree, check_shards, drive

KEYS = 2**15                       # a GPU is full with gradients of so many keys, of all heads together


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, group=None,
                   causal: bool = False, window: Sides = None, scale: float | None = None,
                   layout: str = "zigzag", return_lse: bool = False, impl: Impl = "auto"
                   ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention over the ranks of a group, between which keys and values go round a ring.

    Ring Attention (Liu et al. 2023, arXiv:2310.01889), differentiable. Every rank calls it with its own
    shard: not with the whole sequence (`shard` cuts one). Keys and values are sent while the attention
    to those at hand is computed; O is summed in float32. Taught in notebook 16. On NCCL the first call
    makes a group of its own, with two SMs, which attention leaves to the messages.

    Args:
        q: this rank's queries, (B, H, N/P, D).  k, v: (B, H_k, N/P, D); only H_k heads travel. As in
            `flashlib.flash_attention`: dtypes, strides, grouped heads.
        group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.
        causal, window, scale: as in `flash_attention`, about positions in the whole sequence.
        layout: which tokens a rank holds: "zigzag", one chunk from either end of the sequence
            (causal: the same work on every rank; N/P is even), "stripe", every P-th (nearly the
            same), or "contiguous", one run (causal: the last rank works, the others wait).
        return_lse: return (O, lse), lse (B, H, N/P); both are differentiable.
        impl: which kernels, as in `flash_attention`.
    Returns:
        O (B, H, N/P, D) in the dtype of q, or (O, lse): the rows of this rank.
    Raises:
        ValueError, TypeError, NotImplementedError: on every rank alike, before anything is sent: what
            one rank's own check refuses, and arguments that differ between ranks.
        RuntimeError: a message did not come within the time limit of the group (`flashlib.parallel`).

    Forward a rank sends (P − 1)·2·(N/P)·H_k·D elements, backward the same keys again and P times their
    gradients in float32; it holds the keys of two ranks at most. Saved for the backward pass are q, k,
    v, O and lse of this rank. Where some of the heads fill a GPU, backward they go round in turn, so
    that float32 sums of few heads are in memory. If one rank's backward runs, all must. A group of one
    sends nothing.
    """
    ranks, seen = Ranks.of(group), Window()
    refusal, options = None, None
    try:
        q, k, v, scale = check_shards(q, k, v, ranks, causal, scale, return_lse, impl)
        seen = window_of(causal, window)
        check_rows(q, k)
        check_layout(layout, ranks.P, ranks.P * q.shape[2])
        options = Options("ring_attention", causal, seen, scale, layout, impl, needs_gradient(q, k, v))
    except (ValueError, TypeError, NotImplementedError) as error:
        refusal = error
    agree(ranks, {"q": q, "k": k, "v": v}, options, refusal)
    o, lse = Ring.apply(q, k, v, Call(ranks.beside(), seen, scale, layout, impl))
    return (o, lse) if return_lse else o


class Call(NamedTuple):
    """What a call of the ring asks for, beside its tensors."""

    ranks: Ranks
    window: Window
    scale: Any
    layout: str
    impl: str

    @property
    def reserve(self) -> int:
        """SMs of a GPU that attention leaves to NCCL, whose kernels carry the messages."""
        return 0 if self.ranks.P == 1 or self.ranks.backend != "nccl" else SMS

    def blocks(self, source: int, n: int):
        """Return this rank's calls of attention on the keys of another."""
        return blocks(self.layout, self.ranks.rank, source, self.ranks.P, n, self.window)


def check_rows(q, k) -> None:
    """Refuse what is not one sequence with itself."""
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"k: expected {q.shape[2]} tokens as in q, got {k.shape[2]}")
    if q.shape[0] == 0 or q.shape[2] == 0:
        raise ValueError(f"q: expected at least one batch entry and one token, got {tuple(q.shape)}")


def needs_gradient(*tensors) -> bool:
    """Tell whether a backward pass may follow."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def wide(q) -> torch.dtype:
    """Return the dtype in which parts of O and of gradients are summed."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


class Ring(torch.autograd.Function):
    """Saves this rank's q, k, v, O and lse: nothing of other ranks."""

    @staticmethod
    def forward(ctx, q, k, v, call: Call):
        o = torch.empty(q.shape, dtype=wide(q), device=q.device)            # every row sees itself
        lse = ops.lse_like(q, -torch.inf)
        ranks = call.ranks
        drive(ring_forward(ranks.rank, ranks.P, torch.stack([k, v]), partial(_fold, call, q, o, lse)),
              ranks)
        o = o.to(q.dtype)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, o, lse)
        return o, lse

    @staticmethod
    def backward(ctx, *gradients: Any) -> Any:
        do, dlse = gradients
        if torch.is_grad_enabled():                         # with create_graph
            ops.no_second_derivative(ctx)
        q, k, v, o, lse = ctx.saved_tensors
        call: Call = ctx.call
        do = torch.zeros_like(o) if do is None else do.resolve_neg()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))

        def in_turn():
            for heads, shared in turns(q, k):
                mine = [x[:, heads] for x in (q, lse, do)]
                delta = ops.delta_of(o[:, heads], mine[2], None if dlse is None else dlse[:, heads])
                total = torch.zeros(mine[0].shape, dtype=wide(q), device=q.device)

                def home(dkv, shared=shared):
                    dk[:, shared], dv[:, shared] = dkv
                yield (torch.stack([k[:, shared], v[:, shared]]),
                       partial(_gradients, call, *mine, delta, total), home)
                dq[:, heads] = total
        drive(ring_backward(call.ranks.rank, call.ranks.P, in_turn()), call.ranks)
        return dq, dk, dv, None


def turns(q, k) -> list[tuple[slice, slice]]:
    """Return the heads that go round together, of q and of k: as few as hold `KEYS` keys."""
    shared, group = k.shape[1], q.shape[1] // k.shape[1]
    few = max(1, min(shared, -(-KEYS // (k.shape[0] * k.shape[2]))))
    return [(slice(first * group, (first + few) * group), slice(first, first + few))
            for first in range(0, shared, few)]


def _fold(call, q, o, lse, source, kv) -> None:
    """Take the keys and values of a rank into O and lse, in place."""
    for rows, keys, window in call.blocks(source, q.shape[2]):
        ops.forward(q[:, :, rows], kv[0][:, :, keys], kv[1][:, :, keys], window, call.scale, call.impl,
                    into=(o[:, :, rows], lse[:, :, rows]), reserve=call.reserve)


def _gradients(call, q, lse, do, delta, dq, source, kv) -> torch.Tensor:
    """Return what these rows add to dK and dV of a rank's keys; add to dQ, in place.

    lse and delta are of all keys, so that a block's weights exp(S − lse) are final: nothing is merged.
    """
    dkv = torch.zeros(kv.shape, dtype=dq.dtype, device=kv.device)
    for rows, keys, window in call.blocks(source, q.shape[2]):
        ops.backward(q[:, :, rows], kv[0][:, :, keys], kv[1][:, :, keys], None, lse[:, :, rows],
                     do[:, :, rows], None, window, call.scale, call.impl, delta=delta[:, :, rows],
                     into=(dq[:, :, rows], dkv[0][:, :, keys], dkv[1][:, :, keys]))
    return dkv
