"""Tiled attention in plain torch: the backend for machines without a GPU, with O(N) memory.

The same algorithm as the kernels, tile by tile, in float32 or, for float64 inputs, float64.
"""

from __future__ import annotations

import torch

from flashlib.kernels.problem import CAUSAL, FULL, Problem

BLOCK = 128


def _grouped(x: torch.Tensor, H: int) -> torch.Tensor:
    """Return K or V with one head per query head; a view where the counts agree."""
    return x if x.shape[1] == H else x.repeat_interleave(H // x.shape[1], dim=1)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _tiles(N: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, N)) for start in range(0, N, BLOCK)]


def _visible(rows: slice, keys: slice, N_Q: int, N_K: int, causal: bool, device):
    """Return which pairs of a tile may see each other: False for none, None for all, or a mask."""
    shift = N_K - N_Q
    if not causal or keys.stop - 1 <= rows.start + shift:
        return None
    if keys.start > rows.stop - 1 + shift:
        return False
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    return torch.arange(keys.start, keys.stop, device=device)[None, :] <= i + shift


def _weigh(weights: torch.Tensor, values: torch.Tensor, seen) -> torch.Tensor:
    """Return weights @ values, in which a value that a row may not see adds nothing, NaN or not."""
    if seen is None or bool(torch.isfinite(values).all()):
        return weights @ values
    clean = torch.where(torch.isfinite(values), values, 0.0)
    product = weights @ clean
    for j in torch.nonzero(~torch.isfinite(values).all(-1).flatten(0, 1).all(0)).flatten().tolist():
        tainted = weights[..., j, None] * (values[..., j, None, :] - clean[..., j, None, :])
        product += torch.where(seen[:, j, None], tainted, 0.0)
    return product


def forward(q, k, v, *, causal: bool, scale: float):
    """Return O in the dtype of q, and lse (B, H, N_Q), float32 or, for float64, float64."""
    B, H, N_Q, _ = q.shape
    N_K = k.shape[2]
    K, V = _wide(_grouped(k, H)), _wide(_grouped(v, H))
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, N_Q), dtype=K.dtype, device=q.device)
    lowest = torch.finfo(K.dtype).min
    for rows in _tiles(N_Q):
        Q = _wide(q[:, :, rows])
        m = torch.full(Q.shape[:3], lowest, dtype=K.dtype, device=q.device)
        l, acc = torch.zeros_like(m), torch.zeros_like(Q)
        for keys in _tiles(N_K):
            seen = _visible(rows, keys, N_Q, N_K, causal, q.device)
            if seen is False:
                continue
            S = Q @ K[:, :, keys].transpose(-1, -2) * scale
            if seen is not None:
                S = S.masked_fill(~seen, float("-inf"))
            m_new = torch.maximum(m, S.amax(-1))
            alpha, P = torch.exp(m - m_new), torch.exp(S - m_new[..., None])
            l = alpha * l + P.sum(-1)
            acc = alpha[..., None] * acc + _weigh(P, V[:, :, keys], seen)
            m = m_new
        o[:, :, rows] = (acc / torch.where(l == 0, 1.0, l)[..., None]).to(q.dtype)
        lse[:, :, rows] = m + torch.log(l)
    return o, lse


def backward(q, k, v, o, lse, do, dlse, *, causal: bool, scale: float):
    """Return dq, dk, dv in the dtype of their tensors; dlse may be None."""
    H, N_Q, N_K, H_K = q.shape[1], q.shape[2], k.shape[2], k.shape[1]
    K, V, dO = _wide(_grouped(k, H)), _wide(_grouped(v, H)), _wide(do)
    delta = (dO * _wide(o)).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    dq = torch.zeros(q.shape, dtype=K.dtype, device=q.device)
    dk, dv = (torch.zeros(K.shape, dtype=K.dtype, device=q.device) for _ in range(2))
    safe_lse = lse.clamp_min(torch.finfo(K.dtype).min)
    for keys in _tiles(N_K):
        for rows in _tiles(N_Q):
            seen = _visible(rows, keys, N_Q, N_K, causal, q.device)
            if seen is False:
                continue
            Q = _wide(q[:, :, rows])
            P = torch.exp(Q @ K[:, :, keys].transpose(-1, -2) * scale
                          - safe_lse[:, :, rows, None])
            dS = dO[:, :, rows] @ V[:, :, keys].transpose(-1, -2) - delta[:, :, rows, None]
            if seen is not None:
                P, dS = P.masked_fill(~seen, 0.0), dS.masked_fill(~seen, 0.0)
            dS = P * dS * scale
            dv[:, :, keys] += P.transpose(-1, -2) @ dO[:, :, rows]
            dk[:, :, keys] += dS.transpose(-1, -2) @ Q
            dq[:, :, rows] += _weigh(dS, K[:, :, keys], seen)
    if H_K != H:
        dk, dv = (x.unflatten(1, (H_K, H // H_K)).sum(2) for x in (dk, dv))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class Reference:
    """The backend as `flashlib.kernels.backends` knows it."""

    name = "reference"

    def refusal(self, p: Problem, direction: str) -> str | None:
        """Return None: torch runs everywhere."""
        if p.window not in (FULL, CAUSAL):
            return f"window: impl='reference' expected no window or a causal mask, got {p.window}"
        return None

    def forward(self, q, k, v, p: Problem, scale: float, config=None):
        """Return O and lse; there is nothing to configure."""
        return forward(q, k, v, causal=p.causal, scale=scale)

    def backward(self, q, k, v, o, lse, do, dlse, p: Problem, scale: float, config=None):
        """Return dq, dk, dv; there is nothing to configure."""
        return backward(q, k, v, o, lse, do, dlse, causal=p.causal, scale=scale)


BACKEND = Reference()
