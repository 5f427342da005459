"""What the ring competes with: all keys gathered, heads exchanged for tokens, a tree for decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashlib.algorithms.layouts import check_layout
from flashlib.algorithms.ring import exchange
from flashlib.kernels.attention import Impl, flash_attention
from flashlib.kernels.merging import merge
from flashlib.masks import Window, window_of
from flashlib.parallel.groups import Options, Ranks, agree, check_shards, drive
from flashlib.parallel.layouts import home
from flashlib.parallel.ring import check_rows, needs_gradient, wide


def gather_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, group=None,
                     causal: bool = False, scale: float | None = None, layout: str = "zigzag",
                     return_lse: bool = False, impl: Impl = "auto"
                     ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention over the ranks of a group, each of which gathers the keys of all.

    As Llama 3 was trained (arXiv:2407.21783). One call of attention for each run of rows, which sees
    the keys up to its end: nothing is merged. Every rank holds N keys. Taught in notebook 16.
    Arguments, results and errors as in `ring_attention`; no windows; layout "zigzag" or "contiguous".

    Forward a rank sends (P − 1)·2·(N/P)·H_k·D elements, backward as many gradients in float32.
    """
    def own_check(ranks, q, k):
        check_rows(q, k)
        check_layout(layout, ranks.P, ranks.P * q.shape[2])
        if layout == "stripe":
            raise ValueError("layout: expected 'zigzag' or 'contiguous', whose rows are runs, got"
                             " 'stripe'")

    ranks, q, k, v, scale = _begin("gather_attention", own_check, q, k, v, group, causal, scale, layout,
                                   return_lse, impl)
    n = q.shape[2]
    kv = Gather.apply(torch.stack([k, v]), ranks).index_select(3, home(layout, ranks.P, n, q.device))
    runs = 2 if layout == "zigzag" else 1
    ends = (ranks.rank + 1, 2 * ranks.P - ranks.rank) if runs == 2 else (ranks.rank + 1,)
    parts = []
    for rows, end in zip(q.chunk(runs, 2), ends, strict=True):
        keys = kv[:, :, :, :end * n // runs] if causal else kv
        parts.append(flash_attention(rows, keys[0], keys[1], causal=causal, scale=scale,
                                     return_lse=True, impl=impl))
    o, lse = (torch.cat(x, 2) for x in zip(*parts, strict=True))
    return (o, lse) if return_lse else o


def ulysses_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, group=None,
                      causal: bool = False, window=None, scale: float | None = None,
                      impl: Impl = "auto") -> torch.Tensor:
    """Exact attention over the ranks of a group, which exchange tokens of all heads for whole heads.

    DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509). Taught in notebook 16. Each rank has a
    contiguous shard, and computes the whole sequence of H/P heads; P divides H and H_k, else repeat k
    and v. Arguments and errors as in `ring_attention`.

    A rank sends (P − 1)/P·(N/P)·D·(2·H + 2·H_k) elements, and twice that with the backward pass.
    """
    def own_check(ranks, q, k):
        check_rows(q, k)
        for name, x in (("q", q), ("k", k)):
            if x.shape[1] % ranks.P:
                raise ValueError(f"{name}: expected a number of heads that the {ranks.P} ranks divide,"
                                 f" got {x.shape[1]}: repeat k and v, or take ring_attention")

    ranks, q, k, v, scale = _begin("ulysses_attention", own_check, q, k, v, group, causal, scale,
                                   "contiguous", False, impl, window)
    q, k, v = (Swap.apply(x, ranks, 1, 2) for x in (q, k, v))
    o = flash_attention(q, k, v, causal=causal, window=window, scale=scale, impl=impl)
    return Swap.apply(o, ranks, 2, 1)


def tree_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, group=None,
                scale: float | None = None, return_lse: bool = False, impl: Impl = "auto"
                ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of a few queries, the same on all ranks, to keys that are spread over the group.

    Tree Attention (Shyam et al. 2024, arXiv:2408.04093). Taught in notebook 16. Each rank attends to
    its own keys; what travels is O and lse of the queries, in float32. All ranks merge in one order
    and have the same bits. For inference: no gradient. Errors as in `ring_attention`.

    Args:
        q: queries, (B, H, N_q, D), the same on all ranks: seen by all is every key.
        k, v: this rank's, (B, H_k, n, D), n alike on all ranks.
    Returns:
        O (B, H, N_q, D) in the dtype of q, or (O, lse).

    A rank sends (P − 1)·B·H·N_q·(D + 1) numbers of 4 bytes: nothing that grows with the keys.
    """
    with torch.no_grad():
        ranks, q, k, v, scale = _begin("tree_decode", lambda *_: None, q, k, v, group, False, scale,
                                       "contiguous", return_lse, impl)
        o, lse = flash_attention(q, k, v, scale=scale, return_lse=True, impl=impl)
        mine = torch.cat([o.to(wide(q)), lse[..., None]], -1)
        o, lse = torch.zeros_like(mine[..., :-1]), torch.full_like(lse, -torch.inf)
        for part in _drive_exchange(ranks, [mine] * ranks.P):
            o, lse = merge(o, lse, part[..., :-1], part[..., -1])
    return (o.to(q.dtype), lse) if return_lse else o.to(q.dtype)


def _begin(operation, own_check: Callable[..., None], q, k, v, group, causal, scale, layout, return_lse,
           impl, window=None):
    """Check the arguments on all ranks alike; return the ranks, q, k, v and the scale."""
    ranks, refusal, options = Ranks.of(group), None, None
    try:
        q, k, v, scale = check_shards(q, k, v, ranks, causal, scale, return_lse, impl)
        seen: Window = window_of(causal, window)
        own_check(ranks, q, k)
        options = Options(operation, causal, seen, scale, layout, impl, needs_gradient(q, k, v))
    except (ValueError, TypeError, NotImplementedError) as error:
        refusal = error
    agree(ranks, {"q": q, "k": k, "v": v}, options, refusal)
    return ranks, q, k, v, scale


def _drive_exchange(ranks: Ranks, parcels) -> Any:
    return drive(exchange(ranks.rank, ranks.P, parcels), ranks)


class Gather(torch.autograd.Function):
    """All shards of dimension 3, in the order of ranks; its backward adds gradients in one order."""

    @staticmethod
    def forward(ctx, x, ranks: Ranks):
        ctx.ranks = ranks
        return torch.cat(_drive_exchange(ranks, [x] * ranks.P), 3)

    @staticmethod
    def backward(ctx, *gradients: Any) -> Any:
        gradient, = gradients
        dtype = gradient.dtype
        mine = gradient.to(wide(gradient)).chunk(ctx.ranks.P, 3)
        first, *others = _drive_exchange(ctx.ranks, mine)
        for other in others:
            first = first + other
        return first.to(dtype), None


class Swap(torch.autograd.Function):
    """Scatter one dimension over the ranks and gather another: all tokens for some heads, or back."""

    @staticmethod
    def forward(ctx, x, ranks: Ranks, scatter: int, gather: int):
        ctx.args = ranks, gather, scatter
        return torch.cat(_drive_exchange(ranks, x.chunk(ranks.P, scatter)), gather)

    @staticmethod
    def backward(ctx, *gradients: Any) -> Any:
        return Swap.apply(gradients[0], *ctx.args), None, None, None
