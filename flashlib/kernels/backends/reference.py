"""Tiled attention in plain torch: the backend for machines without a GPU, with O(N) memory.

The same algorithm as the kernels, tile by tile, in float32 or, for float64 inputs, float64. Torch's
threads share each operation on a tile, so tiles are as large as they may be: on busy cores the threads
wait for one another after each, and `torch.set_num_threads(1)` is faster there.
"""

import itertools

import numpy as np
import torch

from flashlib.kernels.autocast import without_autocast
from flashlib.kernels.problem import Problem
from flashlib.kernels.scores import NONE, Scores, apply, by_head, of_sink, with_sink
from flashlib.masks import Mask, Window, tiles

BLOCKS = 128, 1024                                          # the fewest and most rows of a tile
ELEMENTS = 2**20                                            # of S, over all heads, that a tile aims at


def _heads(x: torch.Tensor, H: int) -> torch.Tensor:
    """Return (B·H, N, D), float32 or float64, in which each query head has a key head of its own."""
    if x.shape[1] != H:
        x = x.repeat_interleave(H // x.shape[1], dim=1)
    return x.flatten(0, 1).to(torch.promote_types(x.dtype, torch.float32))


def _tiling(q, k, window: Window):
    """Return the mask, and how many rows of Q or K a tile has: more where heads are few."""
    B, H, N_Q, _ = q.shape
    rows, most = BLOCKS
    while rows < most and B * H * (2 * rows) ** 2 <= ELEMENTS:
        rows *= 2
    return Mask(*window.keys_of(np.arange(N_Q), N_Q, k.shape[2]), k.shape[2]), rows


def _visible(mask: Mask, rows: slice, keys: slice, device):
    """Return which pairs of a tile may see each other, None for all."""
    seen = mask.visible(rows, keys)
    return None if seen is None else torch.from_numpy(seen).to(device)


def _accumulate(into: torch.Tensor, weights: torch.Tensor, values: torch.Tensor, seen) -> None:
    """Add weights @ values; a value that a row may not see adds nothing, NaN or not."""
    if seen is None or values.is_meta or bool(torch.isfinite(values.sum())):
        into.baddbmm_(weights, values)
        return
    finite = torch.isfinite(values)
    clean = torch.where(finite, values, 0.0)
    into.baddbmm_(weights, clean)
    for j in torch.nonzero(~finite.all(-1).all(0)).flatten().tolist():      # not so in every head
        tainted = weights[:, :, j, None] * (values[:, j] - clean[:, j])[:, None]
        into += torch.where(seen[:, j, None], tainted, 0.0)


def _with_state(m, l, acc, o, lse):
    """Return m, l and acc with a state as one more key of each row, whose value is its O."""
    before = lse.flatten(0, 1)[..., None]
    m_new = torch.maximum(m, before)
    keep, weight = torch.exp(m - m_new), torch.exp(before - m_new)
    held = o.flatten(0, 1).masked_fill(weight == 0, 0.0)    # an empty state, whatever its O holds
    return m_new, l * keep + weight, acc * keep + held * weight


@without_autocast
def forward(q, k, v, *, window: Window, scale: float, scores: Scores = NONE, into=None):
    """Return O in the dtype of q, and lse (B, H, N_Q), float32 or, for float64, float64.

    Or `into`, a state of O and lse in that wide dtype, with these keys folded into it.
    """
    B, H, N_Q, _ = q.shape
    Q, K, V = (_heads(x, H) for x in (q, k, v))
    slopes, sink = (None if x is None else by_head(x, B, H) for x in scores[1:])
    o, lse = into or (torch.empty(q.shape, dtype=q.dtype, device=q.device),
                      torch.empty(q.shape[:3], dtype=K.dtype, device=q.device))
    mask, block = _tiling(q, k, window)
    for rows in tiles(N_Q, block):
        Q_i = Q[:, rows] * scale
        m = Q_i.new_full((*Q_i.shape[:2], 1), torch.finfo(K.dtype).min)
        l, acc = torch.zeros_like(m), torch.zeros_like(Q_i)
        for keys in mask.key_tiles(rows, block):
            S, _ = apply(Q_i @ K[:, keys].transpose(1, 2), scores.softcap, slopes, rows, keys,
                         k.shape[2] - N_Q)
            seen = _visible(mask, rows, keys, q.device)
            if seen is not None:
                S.masked_fill_(~seen, float("-inf"))
            m_new = torch.maximum(m, S.amax(-1, keepdim=True))
            alpha, P = torch.exp(m - m_new), S.sub_(m_new).exp_()
            l = alpha * l + P.sum(-1, keepdim=True)
            _accumulate(acc.mul_(alpha), P, V[:, keys], seen)
            m = m_new
        if sink is not None:
            m, l, keep = with_sink(m, l, sink)
            acc *= keep
        if into is not None:
            m, l, acc = _with_state(m, l, acc, o[:, :, rows], lse[:, :, rows])
        acc /= torch.where(l == 0, 1.0, l)
        o[:, :, rows] = acc.unflatten(0, q.shape[:2]).to(o.dtype)
        lse[:, :, rows] = (m + torch.log(l)).view(*q.shape[:2], -1)
    return o, lse


@without_autocast
def backward(q, k, v, o, lse, do, dlse, *, window: Window, scale: float, scores: Scores = NONE,
             into=None):
    """Return dq, dk, dv in the dtype of their tensors, and with a sink its own; dlse may be None.

    Or add to `into`, three sums as wide as lse, and return them. For o there may be delta, (B, H, N_q).
    """
    H, H_K = q.shape[1], k.shape[1]
    slopes = None if scores.alibi is None else by_head(scores.alibi, len(q), H)
    Q, K, V, dO = (_heads(x, H) for x in (q, k, v, do))
    Q = Q * scale
    delta = o
    if o.ndim == 4:
        delta = (dO * _heads(o, H)).sum(-1, keepdim=True)
        if dlse is not None:
            delta -= dlse.reshape(delta.shape)
    delta = delta.reshape(*dO.shape[:2], 1)
    dq, dk, dv = (x.new_zeros(x.shape) for x in (Q, K, V))
    beside = of_sink(scores, lse, delta.view(lse.shape))
    lse = lse.clamp_min(torch.finfo(K.dtype).min).view(delta.shape)
    mask, block = _tiling(q, k, window)
    for keys in tiles(k.shape[2], block):
        for rows in mask.row_tiles(keys, block):
            seen = _visible(mask, rows, keys, q.device)
            S, factor = apply(Q[:, rows] @ K[:, keys].transpose(1, 2), scores.softcap, slopes, rows,
                              keys, k.shape[2] - q.shape[2])
            P = S.sub_(lse[:, rows]).exp_()
            dS = (dO[:, rows] @ V[:, keys].transpose(1, 2)).sub_(delta[:, rows])
            if factor is not None:
                dS.mul_(factor)
            if seen is not None:
                P.masked_fill_(~seen, 0.0)
                dS.masked_fill_(~seen, 0.0)
            dS.mul_(P)
            sees = None if seen is None else seen.T         # the same pairs, a row a key
            _accumulate(dv[:, keys], P.transpose(1, 2), dO[:, rows], sees)
            _accumulate(dk[:, keys], dS.transpose(1, 2), Q[:, rows], sees)
            _accumulate(dq[:, rows], dS, K[:, keys], seen)
    dq, dk, dv = (x.unflatten(0, q.shape[:2]) for x in (dq.mul_(scale), dk, dv))
    if H_K != H:
        dk, dv = (x.unflatten(1, (H_K, H // H_K)).sum(2) for x in (dk, dv))
    if into is not None:
        for total, x in zip(into, (dq, dk, dv), strict=True):
            total += x
        return into
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *beside


def _packed(cu_q: torch.Tensor, cu_k: torch.Tensor):
    """Yield the rows and the keys of each packed sequence that has both."""
    ends = zip(cu_q.tolist(), cu_k.tolist(), strict=True)
    for (a, c), (b, d) in itertools.pairwise(ends):
        if a < b and c < d:
            yield slice(a, b), slice(c, d)


class Reference:
    """The backend as `flashlib.kernels.backends` knows it: nothing to refuse, nothing to configure."""

    name = "reference"

    def refusal(self, p: Problem, direction: str) -> str | None:
        """Return None: torch runs everywhere."""
        return None

    def forward(self, q, k, v, p: Problem, scale: float, config=None, *, scores: Scores = NONE,
                cu=None, into=None):
        """Return O and lse, or `into`; `cu`: where packed sequences begin in q, and in k and v."""
        options = {"window": p.window, "scale": scale, "scores": scores}
        if cu is None:
            return forward(q, k, v, **options, into=into)
        wide = torch.promote_types(q.dtype, torch.float32)
        o, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf, dtype=wide)
        if scores.sink is not None:
            lse[:] = scores.sink[..., None]
        for rows, keys in _packed(*cu):
            o[:, :, rows], lse[:, :, rows] = forward(q[:, :, rows], k[:, :, keys], v[:, :, keys],
                                                     **options)
        return o, lse

    def backward(self, q, k, v, o, lse, do, dlse, p: Problem, scale: float, config=None, *,
                 scores: Scores = NONE, cu=None, into=None):
        """Return dq, dk, dv, and with a sink its gradient; or `into`. For o there may be delta."""
        options = {"window": p.window, "scale": scale, "scores": scores}
        if cu is None:
            return backward(q, k, v, o, lse, do, dlse, **options, into=into)
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for rows, keys in _packed(*cu):
            Q, O, dO, LSE, dLSE = (x if x is None else x[:, :, rows] for x in (q, o, do, lse, dlse))
            dq[:, :, rows], dk[:, :, keys], dv[:, :, keys], *_ = backward(
                Q, k[:, :, keys], v[:, :, keys], O, LSE, dO, dLSE, **options)
        delta = (do.to(lse.dtype) * o.to(lse.dtype)).sum(-1)
        return dq, dk, dv, *of_sink(scores, lse, delta if dlse is None else delta - dlse)


BACKEND = Reference()
