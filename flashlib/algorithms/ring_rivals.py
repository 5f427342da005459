"""What a ring competes with: gathered keys, heads exchanged for tokens, a tree for decoding.

All three are one program, `exchange`. Taught in notebook 16.
"""

import numpy as np

from flashlib.algorithms.flash_v2 import flash_v2
from flashlib.algorithms.layouts import check_layout, shard, unshard
from flashlib.algorithms.ring import check_shared, exchange, fold_rows
from flashlib.algorithms.state import SoftmaxState
from flashlib.arguments import check_attention
from flashlib.machine.ranks import Links


def gather_attention(Q, K, V, *, P, Br=16, Bc=16, causal=False, scale=None, layout="zigzag",
                     links=None):
    """Attention of one head over P ranks, each of which gathers all keys first.

    Taught in notebook 16. Each rank then attends from its runs of rows to the keys up to their ends:
    nothing is merged, and every rank holds N keys. Causal aligns bottom right; layout "contiguous" or
    "zigzag". Arguments and results as in `ring_attention`.
    """
    _, scale, n, at = check_shared(Q, K, V, P, causal, None, scale, layout)
    if layout == "stripe":
        raise ValueError("layout: expected 'contiguous' or 'zigzag', whose rows are runs, got 'stripe'")
    links = Links() if links is None else links

    def rank_program(rank):
        mine = np.stack([K[at[rank]], V[at[rank]]])
        shards = yield from exchange(rank, P, [mine] * P)
        k, v = (unshard([kv[i] for kv in shards], layout) for i in (0, 1))
        runs = np.split(np.arange(n), 2 if layout == "zigzag" else 1)
        ends = [at[rank][run[-1]] + 1 if causal else len(k) for run in runs]
        return [np.concatenate(x) for x in zip(*(
            flash_v2(Q[at[rank][run]], k[:end], v[:end], Br=Br, Bc=Bc, scale=scale, causal=causal)
            for run, end in zip(runs, ends, strict=True)), strict=True)]

    O, lse = zip(*links.run([rank_program(rank) for rank in range(P)]), strict=True)
    return unshard(O, layout), unshard(lse, layout)


def ulysses_attention(Q, K, V, *, P, Br=16, Bc=16, causal=False, scale=None, links=None):
    """Attention of H heads over P ranks, which exchange tokens of all heads for whole heads.

    DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509). Taught in notebook 16. The first exchange
    gives each rank all tokens of H/P heads, the second gives O back. Causal aligns bottom right.

    Args:
        Q: queries, (H, N, d).  K, V: (Hk, N, d); P divides H and Hk, and Hk divides H.
        P, Br, Bc, causal, scale, links: as in `ring_attention`.
    Returns:
        O, (H, N, d).
    """
    (H, N, _), Hk = Q.shape, K.shape[0]
    check_shared(Q[0], K[0], V[0], P, causal, None, scale, "contiguous")
    for name, heads in (("Q", H), ("K", Hk)):
        if heads % P:
            raise ValueError(f"{name}: expected a number of heads that P, {P}, divides, got {heads};"
                             " repeat K and V, or go round a ring")
    links = Links() if links is None else links

    def rank_program(rank):
        here = slice(rank * N // P, (rank + 1) * N // P)

        def whole_heads(x):
            pieces = yield from exchange(rank, P, np.split(np.ascontiguousarray(x[:, here]), P))
            return np.concatenate(pieces, 1)

        q = yield from whole_heads(Q)
        k = yield from whole_heads(K)
        v = yield from whole_heads(V)
        o = np.stack([flash_v2(q[h], k[h * Hk // H], v[h * Hk // H], Br=Br, Bc=Bc, causal=causal,
                               scale=scale)[0] for h in range(len(q))])
        pieces = yield from exchange(rank, P, np.split(o, P, 1), "O")
        return np.concatenate(pieces)

    return np.concatenate(links.run([rank_program(rank) for rank in range(P)]), 1)


def tree_decode(Q, K, V, *, P, Br=16, Bc=16, scale=None, links=None):
    """Attention of a few queries, the same on all ranks, to keys that are spread over P ranks.

    Tree Attention (Shyam et al. 2024, arXiv:2408.04093). Taught in notebook 16. Not the keys travel but
    a softmax state of each rank: (d + 1) numbers a row. All ranks merge in one order: the same bits.

    Args:
        Q: queries, (Nq, d).  K, V: (Nk, d), of which rank r has the r-th P-th.
        P, Br, Bc, scale, links: as in `ring_attention`.
    Returns:
        O (Nq, d) and lse (Nq,), natural log, as rank 0 has them.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, False, scale)
    check_layout("contiguous", P, Nk)
    links = Links() if links is None else links

    def rank_program(rank):
        k, v = (shard(x, "contiguous", rank, P) for x in (K, V))
        O, lse = flash_v2(Q, k, v, Br=Br, Bc=Bc, scale=scale)
        state = SoftmaxState.identity(Nq, d, Q.dtype)
        for part in (yield from exchange(rank, P, [np.c_[O, lse]] * P, "O, lse")):
            state = fold_rows(state, slice(0, Nq), part[:, :d], part[:, d])
        return state.finish()

    return links.run([rank_program(rank) for rank in range(P)])[0]
