"""Attention of one Q tile inside a thread block: the keys dealt out to the warps, or the queries."""

import numpy as np

from flashlib.arguments import check_attention, check_block
from flashlib.machine.thread_block import ThreadBlock
from flashlib.masks import tiles


def split_k(Q, K, V, *, Bc=None, scale=None, block=None):
    """Attention of one Q tile in which every warp takes a slice of the keys, as in v1.

    Each warp has partial sums for all rows, so the partial row maxima, row sums and outputs of all
    warps meet in shared memory: two barriers for every K/V tile. FlashAttention-2 (Dao 2023,
    arXiv:2307.08691), section 3.3, "split-K". Taught in notebook 08.

    Args:
        Q: one tile of queries, (Br, d).  K, V: keys and values, (Nk, d), all in shared memory.
        Bc: keys per step, None for one step.  scale: factor on the logits, None for 1/√d.
        block: the `ThreadBlock` that counts; None for one of four warps without limits.
    Returns:
        O (Br, d) and lse (Br,), natural log.
    Raises:
        RegisterSpill: a warp's tiles do not fit into its registers.
    """
    Br, Nk, d, scale, Bc, block = _checked(Q, K, V, Bc, scale, block)
    mine = _deal(Br, block.warps)                          # the rows whose sums a warp adds up
    Q, K, V = block.shared(Q=Q, K=K, V=V)
    m_part = block.buffer("m partial", (block.warps, Br), kind="stats")
    l_part = block.buffer("l partial", (block.warps, Br), kind="stats")
    O_part = block.buffer("O partial", (block.warps, Br, d))
    m = [w.tile("m", Br, kind="stats", fill=-np.inf) for w in block.each]
    state = [_accumulator(w, rows, d) for w, rows in zip(block.each, mine, strict=False)]

    for keys in tiles(Nk, Bc):
        slices = [slice(keys.start + s.start, keys.start + s.stop)
                  for s in _deal(keys.stop - keys.start, block.warps)]
        S = [w.tile("S", Br, part.stop - part.start)
             for w, part in zip(block.each, slices, strict=False)]
        for w, part in zip(block.each, slices, strict=False):
            S[w.index][...] = (w.load(Q[:]) @ w.load(K[part]).T) * scale
            w.store(S[w.index].max(axis=1), m_part[w.index])
        block.barrier()                                    # all partial maxima are there

        alpha = []
        for w in block.each:
            m_new = m[w.index]
            for other in range(len(slices)):
                m_new = np.maximum(m_new, w.load(m_part[other]))
            alpha.append(np.exp(m[w.index] - m_new))
            m[w.index][...] = m_new
        for w, part in zip(block.each, slices, strict=False):
            P = S[w.index]                                 # the same registers
            P[...] = np.exp(P - m[w.index][:, None])
            w.store(P.sum(axis=1), l_part[w.index])
            O_warp = w.tile("O partial", Br, d)            # a whole (Br, d) in every warp
            O_warp[...] = P @ w.load(V[part])
            w.store(O_warp, O_part[w.index])
            w.free(P, O_warp)
        block.barrier()                                    # all partial outputs are there

        for w, rows in zip(block.each, mine, strict=False):
            l, O = state[w.index]
            l[...] = alpha[w.index][rows] * l
            O[...] = alpha[w.index][rows][:, None] * O
            for other in range(len(slices)):
                l[...] = l + w.load(l_part[other, rows])
                O[...] = O + w.load(O_part[other, rows])

    done = [(w.output(O / l[:, None]), w.output(m[w.index][rows] + np.log(l)))
            for w, rows, (l, O) in zip(block.each, mine, state, strict=False)]
    return np.concatenate([O for O, _ in done]), np.concatenate([lse for _, lse in done])


def split_q(Q, K, V, *, Bc=None, scale=None, block=None):
    """Attention of one Q tile in which every warp takes a slice of the queries, as in v2.

    A warp has whole rows, so nothing is exchanged and nothing waits. FlashAttention-2 (Dao 2023,
    arXiv:2307.08691), section 3.3, "split-Q". Taught in notebook 08.

    Args:
        Q: one tile of queries, (Br, d).  K, V: keys and values, (Nk, d), all in shared memory.
        Bc: keys per step, None for one step.  scale: factor on the logits, None for 1/√d.
        block: the `ThreadBlock` that counts; None for one of four warps without limits.
    Returns:
        O (Br, d) and lse (Br,), natural log.
    Raises:
        RegisterSpill: a warp's tiles do not fit into its registers.
    """
    Br, Nk, d, scale, Bc, block = _checked(Q, K, V, Bc, scale, block)
    Q, K, V = block.shared(Q=Q, K=K, V=V)
    done = []
    for w, rows in zip(block.each, _deal(Br, block.warps), strict=False):
        b = rows.stop - rows.start
        m, (l, O) = w.tile("m", b, kind="stats", fill=-np.inf), _accumulator(w, rows, d)
        for keys in tiles(Nk, Bc):
            S = w.tile("S", b, keys.stop - keys.start)
            S[...] = (w.load(Q[rows]) @ w.load(K[keys]).T) * scale
            m_new = np.maximum(m, S.max(axis=1))
            alpha = np.exp(m - m_new)
            S[...] = np.exp(S - m_new[:, None])
            l[...] = alpha * l + S.sum(axis=1)
            O[...] = alpha[:, None] * O + S @ w.load(V[keys])
            m[...] = m_new
            w.free(S)
        done.append((w.output(O / l[:, None]), w.output(m + np.log(l))))
    return np.concatenate([O for O, _ in done]), np.concatenate([lse for _, lse in done])


def _deal(n, warps):
    """Deal n rows or keys out to the warps, as evenly as whole slices allow; some may get none."""
    return tiles(n, -(-n // warps))


def _accumulator(warp, rows, d):
    """Declare l and O for the rows that a warp finishes."""
    b = rows.stop - rows.start
    return warp.tile("l", b, kind="stats", fill=0.0), warp.tile("O", b, d, fill=0.0)


def _checked(Q, K, V, Bc, scale, block):
    Br, Nk, d, scale = check_attention(Q, K, V, False, scale)
    if not Br or not Nk:
        raise ValueError(f"Q, K: expected at least one query and one key, got {Br} and {Nk}")
    block = ThreadBlock() if block is None else block
    if not isinstance(block, ThreadBlock):
        raise TypeError(f"block: expected a ThreadBlock or None, got {block!r}")
    return Br, Nk, d, scale, check_block("Bc", Nk if Bc is None else Bc), block
