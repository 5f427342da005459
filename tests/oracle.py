"""Attention and softmax as their definitions read, row by row in float64: what the tests trust.

Nothing is shared with `flashlib`: no tiles, no running maximum, no mask objects.
"""

from __future__ import annotations

import math

import numpy as np


def softmax(x):
    """Return the softmax over the last axis in float64; a row of −∞ gives zeros."""
    x = np.asarray(x, np.float64)
    flat = x.reshape(-1, x.shape[-1]) if x.size else x.reshape(0, 0)
    rows = [np.exp(row - row.max()) if row.max() > -math.inf else np.zeros_like(row)
            for row in flat]
    return np.reshape([row / (math.fsum(row) or 1.0) for row in rows], x.shape)


def sees(Nq, Nk, causal=False, window=None):
    """Return who sees whom, a whole matrix of booleans: the last query lies on the last key."""
    left, right = window or (None, None)
    ahead = np.arange(Nk)[None] - Nk - (np.arange(Nq)[:, None] - Nq)   # keys after that of the row
    return ((ahead <= (0 if causal else np.inf)) & (ahead >= (-np.inf if left is None else -left))
            & (ahead <= (np.inf if right is None else right)))


def attention(Q, K, V, *, causal=False, window=None, scale=None):
    """Return O and lse in float64: row i takes the keys that it sees and no others."""
    Q, K, V = (np.asarray(a, np.float64) for a in (Q, K, V))
    (Nq, d), Nk = Q.shape, K.shape[0]
    scale = 1 / math.sqrt(d) if scale is None else scale
    O, lse = np.zeros((Nq, d)), np.full(Nq, -math.inf)
    for i, seen in enumerate(sees(Nq, Nk, causal, window)):
        if seen.any():
            s = (K[seen] * Q[i]).sum(axis=1) * scale
            top = s.max()
            p = np.exp(s - top)
            mass = math.fsum(p)
            O[i], lse[i] = (p[:, None] * V[seen]).sum(axis=0) / mass, top + math.log(mass)
    return O, lse


def largest_logit(Q, K, scale=None):
    """Return the largest |logit|: rounding in a logit of size s costs s·ε in every probability."""
    if not len(Q) or not len(K):
        return 0.0
    scale = 1 / math.sqrt(Q.shape[1]) if scale is None else scale
    return float(np.abs(np.asarray(Q, np.float64) @ np.asarray(K, np.float64).T).max() * abs(scale))


def assert_attention(got, Q, K, V, *, causal=False, window=None, scale=None, exact_logits=False):
    """Hold (O, lse) against the oracle, to the rounding that the dtype and the logits allow."""
    O, lse = got
    expected_O, expected_lse = attention(Q, K, V, causal=causal, window=window, scale=scale)
    assert O.dtype == lse.dtype == Q.dtype
    assert O.shape == expected_O.shape and lse.shape == expected_lse.shape
    logit = largest_logit(Q, K, scale)
    bound = np.finfo(Q.dtype).eps * (16 + (0 if exact_logits else 8 * logit))
    size = float(np.abs(np.asarray(V, np.float64)).max(initial=0))
    np.testing.assert_allclose(O, expected_O, rtol=0, atol=bound * size)
    np.testing.assert_allclose(lse, expected_lse, rtol=0,
                               atol=bound + np.finfo(Q.dtype).eps * 2 * logit)


def gradients(Q, K, V, dO, *, dlse=None, causal=False, window=None, scale=None):
    """Return dQ, dK, dV in float64 by the chain rule through a dense Jacobian, row by row.

    The Jacobian of softmax is written out as diag(p) − ppᵀ; no delta appears anywhere.
    """
    Q, K, V, dO = (np.asarray(a, np.float64) for a in (Q, K, V, dO))
    (Nq, d), Nk = Q.shape, K.shape[0]
    scale = 1 / math.sqrt(d) if scale is None else scale
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for i, seen in enumerate(sees(Nq, Nk, causal, window)):
        if not seen.any():
            continue
        k, v = K[seen], V[seen]
        p = softmax((k * Q[i]).sum(axis=1) * scale)
        ds = (np.diag(p) - np.outer(p, p)) @ (v @ dO[i])
        if dlse is not None:
            ds = ds + p * float(dlse[i])
        dV[seen] += np.outer(p, dO[i])
        dK[seen] += scale * np.outer(ds, Q[i])
        dQ[i] = scale * (ds @ k)
    return dQ, dK, dV
