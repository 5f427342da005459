"""FlashAttention v2: queries outside, the output stays on chip, one late division."""

import numpy as np

from flashlib.arguments import check_attention, check_block
from flashlib.machine import Machine
from flashlib.masks import mask_of, tiles


def flash_v2(Q, K, V, *, Br, Bc, causal=False, window=None, scale=None, machine=None):
    """Attention with the queries in the outer loop and one late division.

    FlashAttention-2 (Dao 2023, arXiv:2307.08691), Algorithm 1 but line 10. Taught in notebooks 06, 08.
    Causal aligns bottom right (row i sees keys j ≤ i + Nk − Nq); torch aligns top left.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        Br, Bc: tile heights, in rows of Q and of K.
        causal: hide later keys.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        O (Nq, d) and lse (Nq,), natural log.
    Raises:
        SRAMOverflow: the working set does not fit in `machine.sram_bytes`.

    Unmasked it reads Nq·d + 2·Nk·d·Tr elements, writes Nq·d and Nq statistics.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    Br, Bc = check_block("Br", Br), check_block("Bc", Bc)
    machine = Machine.or_unbounded(machine)
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    O = machine.hbm_empty("O", (Nq, d))
    lse = machine.hbm_empty("lse", (Nq,), kind="stats")

    with machine.kernel("flash_v2") as sram:
        for rows in tiles(Nq, Br):                                     # in parallel on a GPU
            with sram.scope():
                Qi = sram.load(Q[rows])                                # reads Br·d
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
                        if (visible := mask.visible(rows, keys)) is not None:
                            Sij[...] = np.where(visible, Sij, -np.inf)

                        m_new = np.maximum(m, Sij.max(axis=1))
                        alpha = np.exp(m - m_new)
                        Pij = Sij                                      # one room: P overwrites S
                        Pij[...] = np.exp(Sij - m_new[:, None])
                        l[...] = alpha * l + Pij.sum(axis=1)
                        Oi[...] = alpha[:, None] * Oi + Pij.dot(Vj, where=visible)
                        m[...] = m_new

                Oi[...] = Oi / np.maximum(l, tiny)[:, None]
                sram.store(Oi, O[rows])                                # writes Br·d
                sram.store(m + np.log(l), lse[rows])
    return O.to_host(), lse.to_host()
