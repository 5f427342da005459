"""FlashAttention v2 with what current models do to their scores: softcap, ALiBi, a sink."""

import numpy as np

from flashlib.arguments import check_attention, check_block, check_number
from flashlib.machine import Machine
from flashlib.masks import mask_of, tiles
from flashlib.scores import check_softcap, distances, softcapped


def flash_scores(Q, K, V, *, Br, Bc, softcap=None, alibi=None, sink=None, causal=False, window=None,
                 scale=None, machine=None):
    """Attention of one head as `flash_v2` has it, with scores changed before the softmax.

    It is `flash_v2` and three things more. Taught in notebook 08, but for these. In this order: scale,
    softcap (Gemma 2, arXiv:2408.00118), ALiBi (Press et al. 2022, arXiv:2108.12409), mask; the sink
    (Xiao et al. 2024, arXiv:2309.17453) comes last, as one more element of the softmax's state, with
    a logit and without a value. Causal aligns bottom right.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        Br, Bc: tile heights, in rows of Q and of K.
        softcap: c > 0, each logit s becomes c · tanh(s / c); None for none.
        alibi: the head's slope: slope · |i + Nk − Nq − j| is taken off; None for none.
        sink: the head's logit of the sink, natural log and not scaled; None for none.
        causal, window, scale, machine: as in `flash_v2`.
    Returns:
        O (Nq, d) and lse (Nq,), natural log; lse has the sink in it, and is the sink where a row sees
        no key.
    Raises:
        SRAMOverflow: the working set does not fit in `machine.sram_bytes`.

    It moves what `flash_v2` moves, and for each row tile one statistic for the slope and one for the
    sink. Softcap costs an exponential and two vector FLOPs a logit, ALiBi two vector FLOPs.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    Br, Bc = check_block("Br", Br), check_block("Bc", Bc)
    softcap = None if softcap is None else check_softcap(softcap)
    of_head = {name: np.array([check_number(name, value)], Q.dtype)
               for name, value in (("alibi", alibi), ("sink", sink)) if value is not None}
    machine = Machine.or_unbounded(machine)
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    of_head = {name: machine.hbm(kind="stats", **{name: value}) for name, value in of_head.items()}
    O = machine.hbm_empty("O", (Nq, d))
    lse = machine.hbm_empty("lse", (Nq,), kind="stats")

    with machine.kernel("flash_scores") as sram:
        for rows in tiles(Nq, Br):                                     # in parallel on a GPU
            with sram.scope():
                Qi = sram.load(Q[rows])                                # reads Br·d
                own = {name: sram.load(value) for name, value in of_head.items()}     # reads 1 each
                Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                m = sram.tile("m", rows, kind="stats", fill=lowest)    # −∞ but for its arithmetic
                l = sram.tile("l", rows, kind="stats", fill=0.0)

                for keys in tiles(Nk, Bc):
                    if mask.skips(rows, keys):
                        continue
                    with sram.scope():
                        Kj, Vj = sram.load(K[keys]), sram.load(V[keys])    # reads 2·Bc·d
                        Sij = sram.tile("S", rows, keys)
                        Sij[...] = (Qi @ Kj.T) * scale
                        if softcap is not None:
                            Sij[...] = softcapped(Sij, softcap)
                        if alibi is not None:
                            Sij[...] = Sij.less(own["alibi"], distances(rows, keys, Nq, Nk))
                        if (visible := mask.visible(rows, keys)) is not None:
                            Sij[...] = np.where(visible, Sij, -np.inf)

                        m_new = np.maximum(m, Sij.max(axis=1))
                        alpha = np.exp(m - m_new)
                        Pij = Sij                                      # one room: P overwrites S
                        Pij[...] = np.exp(Sij - m_new[:, None])
                        l[...] = alpha * l + Pij.sum(axis=1)
                        Oi[...] = alpha[:, None] * Oi + Pij.dot(Vj, where=visible)
                        m[...] = m_new

                if sink is not None:                                   # once, and not in every tile
                    m_new = np.maximum(m, own["sink"])
                    alpha = np.exp(m - m_new)
                    l[...] = alpha * l + np.exp(own["sink"] - m_new)
                    Oi[...] = alpha[:, None] * Oi
                    m[...] = m_new
                Oi[...] = Oi / np.maximum(l, tiny)[:, None]
                sram.store(Oi, O[rows])                                # writes Br·d
                sram.store(m + np.log(l), lse[rows])
    return O.to_host(), lse.to_host()
