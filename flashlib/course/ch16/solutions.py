"""Reference solutions of chapter 16."""

import numpy as np

from flashlib.machine.ranks import get, put


def zigzag(rank, P, N):
    """16.1: 2P chunks; a rank takes one from the front and its mirror image from the back."""
    if N % (2 * P):
        raise ValueError(f"N: expected a multiple of {2 * P}, got {N}")
    c = N // (2 * P)
    last = 2 * P - 1 - rank
    return np.r_[rank * c:(rank + 1) * c, last * c:(last + 1) * c]


def ring_step(state, Q, K, V):
    """16.2: the state of these keys alone, merged with what was seen before."""
    m, l, o = state
    S = Q @ K.T / np.sqrt(Q.shape[1])
    new = np.maximum(m, S.max(axis=1))
    P, scale = np.exp(S - new[:, None]), np.exp(m - new)
    return new, scale * l + P.sum(axis=1), scale[:, None] * o + P @ V


def hides_from(F, W, H, H_k):
    """16.3: 2·n·H_k·d·(2 + 4) / W = 2.5·2·H·n²·d / F, solved for n."""
    return 12 / 5 * H_k / H * F / W


def block(rank, source, n):
    """16.4: earlier sources are seen with their first half, later ones by the second half of rows."""
    everything, half = slice(0, n), n // 2
    if source == rank:
        return everything, everything, True
    if source < rank:
        return everything, slice(0, half), False
    return slice(half, n), everything, False


def backward(rank, P, kv, gradients):
    """16.5: the sum is one hop behind its keys, so that it needs one hop more to come home."""
    after, before = (rank + 1) % P, (rank - 1) % P
    for step in range(P):
        dkv = gradients(kv)
        if step:
            dkv = dkv + (yield get(before, "dKV"))
        if step + 1 < P:
            yield put(after, "KV", kv)
            yield put(after, "dKV", dkv)
            kv = yield get(before, "KV")
    yield put(after, "dKV", dkv)
    return (yield get(before, "dKV"))
