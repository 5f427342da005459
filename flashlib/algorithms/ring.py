"""Attention over several ranks between which keys and values go round a ring.

Each rank is a generator that yields `put`, `get` and `compute` (`flashlib.machine.ranks`). The programs
`ring_forward`, `ring_backward` and `exchange` know nothing of arrays: NumPy, torch.distributed and the
simulated timeline run the same ones. The ring's rivals are in `ring_rivals`. Taught in notebook 16.
"""

import numpy as np

from flashlib.algorithms.flash_backward import flash_backward
from flashlib.algorithms.flash_v2 import flash_v2
from flashlib.algorithms.layouts import blocks, check_layout, positions, unshard
from flashlib.algorithms.state import SoftmaxState
from flashlib.arguments import check_attention, check_block
from flashlib.machine.ranks import Links, compute, get, put
from flashlib.masks import window_of


def ring_forward(rank, P, kv, fold):
    """Send keys and values round the ring; fold(source, kv) takes in those of each rank once.

    Ring Attention (Liu et al. 2023, arXiv:2310.01889). A send starts before the work that hides it.
    """
    after, before = (rank + 1) % P, (rank - 1) % P
    for step in range(P):
        source = (rank - step) % P
        if step + 1 < P:
            yield put(after, "KV", kv, before)
        yield compute(source, fold, source, kv)
        if step + 1 < P:
            kv = yield get(before, "KV")


def ring_backward(rank, P, turns):
    """Send keys round again, their gradients behind them, some heads after others.

    turns: (kv, gradients, home), one for the heads that go round together. gradients(source, kv)
    returns what this rank's rows add to dK and dV of a rank's keys. The sum travels with its keys, and
    one hop more after the last step brings it home, under the next turn's first step: home(dkv).
    """
    after, before, waiting = (rank + 1) % P, (rank - 1) % P, None
    for kv, gradients, home in turns:
        for step in range(P):
            source = (rank - step) % P
            if step + 1 < P:
                yield put(after, "KV", kv, before)
            dkv = yield compute(source, gradients, source, kv)
            if step:
                dkv += yield get(before, "dKV")
            elif waiting:
                waiting((yield get(before, "dKV")))
            if P == 1:
                home(dkv)
            else:
                yield put(after, "dKV", dkv, before)
                waiting = home
            if step + 1 < P:
                kv = yield get(before, "KV")
    if waiting:
        waiting((yield get(before, "dKV")))


def exchange(rank, P, parcels, what="KV"):
    """Give parcels[r] to every rank r; return what all ranks gave to this one, in their order.

    All parcels have one shape. The same parcel for all is a gather; pieces of heads an all-to-all.
    """
    got = {rank: parcels[rank]}
    for hop in range(1, P):
        yield put((rank + hop) % P, what, parcels[(rank + hop) % P], (rank - hop) % P)
    for hop in range(1, P):
        got[(rank - hop) % P] = yield get((rank - hop) % P, what)
    return [got[source] for source in range(P)]


def ring_attention(Q, K, V, *, P, Br=16, Bc=16, causal=False, window=None, scale=None, layout="zigzag",
                   links=None, order=None, machine=None):
    """Attention of one head over P ranks, between which keys and values go round a ring.

    Taught in notebook 16. A rank holds N/P rows of Q, K and V; what it has seen is a softmax state,
    and the keys of each rank are folded into it once. Causal aligns bottom right, and Nq = Nk.

    Args:
        Q, K, V: whole, (N, d); float64 or float32. This function shares them out and collects O.
        P: ranks.  layout: who holds which tokens, "contiguous", "zigzag" or "stripe".
        Br, Bc: tile heights of each rank's `flash_v2`.
        causal, window, scale: as in `flash_v2`.
        links: the `Links` that count; None for new ones.  order: in which ranks get their turns.
        machine: the `Machine` that counts what all ranks move to and from their memories.
    Returns:
        O (N, d) and lse (N,), natural log.
    Raises:
        Deadlock: from `Links`, which says who waits for whom.

    Every link carries (P − 1)·2·(N/P)·d elements.
    """
    seen, scale, n, at = check_shared(Q, K, V, P, causal, window, scale, layout)
    links = Links() if links is None else links

    def rank_program(rank):
        q, state = Q[at[rank]], SoftmaxState.identity(n, Q.shape[1], Q.dtype)

        def fold(source, kv):
            nonlocal state
            for rows, keys, seen_here in blocks(layout, rank, source, P, n, seen):
                part = flash_v2(q[rows], kv[0][keys], kv[1][keys], Br=Br, Bc=Bc, scale=scale,
                                window=(seen_here.left, seen_here.right), machine=machine)
                state = fold_rows(state, rows, *part)

        yield from ring_forward(rank, P, np.stack([K[at[rank]], V[at[rank]]]), fold)
        return state.finish()

    out = links.run([rank_program(rank) for rank in range(P)], order)
    O, lse = zip(*out, strict=True)
    return unshard(O, layout), unshard(lse, layout)


def ring_attention_backward(Q, K, V, O, lse, dO, *, P, Br=16, Bc=16, causal=False, window=None,
                            scale=None, layout="zigzag", links=None):
    """Gradients of `ring_attention`: dQ stays with its rows, dK and dV travel with their keys.

    O and lse are those of the whole row, so that a weight is exp(S − lse) at once: nothing is merged.
    Taught in notebook 16.

    Args:
        Q, K, V, O, lse, dO: whole, as in `flash_backward`; other arguments as in `ring_attention`.
    Returns:
        dQ, dK and dV, (N, d).

    Every link carries (P − 1)·2·(N/P)·d elements of keys and P·2·(N/P)·d of gradients.
    """
    seen, scale, n, at = check_shared(Q, K, V, P, causal, window, scale, layout)
    links = Links() if links is None else links

    def rank_program(rank):
        q, o, l, do = (x[at[rank]] for x in (Q, O, lse, dO))
        dq, came = np.zeros_like(q), []

        def gradients(source, kv):
            dkv = np.zeros_like(kv)
            for rows, keys, seen_here in blocks(layout, rank, source, P, n, seen):
                found = flash_backward(q[rows], kv[0][keys], kv[1][keys], o[rows], l[rows], do[rows],
                                       Br=Br, Bc=Bc, scale=scale,
                                       window=(seen_here.left, seen_here.right))
                for target, part in zip((dq[rows], dkv[0][keys], dkv[1][keys]), found, strict=True):
                    target += part
            return dkv

        kv = np.stack([K[at[rank]], V[at[rank]]])
        yield from ring_backward(rank, P, [(kv, gradients, came.append)])
        return dq, came[0]

    dQ, dKV = zip(*links.run([rank_program(rank) for rank in range(P)]), strict=True)
    dK, dV = unshard(dKV, layout, 1)
    return unshard(dQ, layout), dK, dV


def fold_rows(state, rows, O, lse) -> SoftmaxState:
    """Return a state whose `rows` have also seen what a call of attention made O and lse of."""
    m, l, o = state.m.copy(), state.l.copy(), state.o.copy()
    part = SoftmaxState(lse, np.ones_like(lse), O)
    both = SoftmaxState(m[rows], l[rows], o[rows]).merge(part)
    m[rows], l[rows], o[rows] = both.m, both.l, both.o
    return SoftmaxState(m, l, o)


def check_shared(Q, K, V, P, causal, window, scale, layout):
    """Check what P ranks share; return the window, the scale, a rank's tokens, and all positions."""
    Nq, Nk, _, scale = check_attention(Q, K, V, causal, scale)
    P = check_block("P", P)
    if Nq != Nk:
        raise ValueError(f"Q: expected as many rows as K, {Nk}, got {Nq}")
    n = check_layout(layout, P, Nq)
    return window_of(causal, window), scale, n, [positions(layout, r, P, Nq) for r in range(P)]
