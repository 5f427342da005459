"""FlashAttention v1: keys and values outside, the output travels through HBM."""

import numpy as np

from flashlib.arguments import check_attention, check_block
from flashlib.machine import Machine
from flashlib.masks import mask_of, tiles


def flash_v1(Q, K, V, *, Br, Bc, causal=False, window=None, scale=None, machine=None):
    """Attention with keys and values in the outer loop: O, m and l are read and written per tile.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), Algorithm 1, and its block-sparse skipping
    for causal masks. Taught in notebook 06. Causal aligns bottom right (row i sees keys
    j ≤ i + Nk − Nq); torch aligns top left.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        Br, Bc: tile heights, in rows of Q and of K.
        causal: hide later keys.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        O (Nq, d) and lse (Nq,), natural log; lse is m + ln l of what HBM holds at the end.
    Raises:
        SRAMOverflow: the working set does not fit in `machine.sram_bytes`.

    Unmasked it reads 2·Nk·d + 2·Tc·Nq·d elements and 2·Tc·Nq statistics, and writes (1 + Tc)·Nq·d
    elements and 2·(1 + Tc)·Nq statistics.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    Br, Bc = check_block("Br", Br), check_block("Bc", Bc)
    machine = Machine.or_unbounded(machine)
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    O = machine.hbm_empty("O", (Nq, d))
    m = machine.hbm_empty("m", (Nq,), kind="stats")
    l = machine.hbm_empty("l", (Nq,), kind="stats")

    with machine.kernel("flash_v1: initialise O, m, l") as sram:
        for rows in tiles(Nq, Br):
            with sram.scope():
                sram.store(sram.tile("O", rows, d, kind="accumulator", fill=0.0), O[rows])
                sram.store(sram.tile("m", rows, kind="stats", fill=lowest), m[rows])
                sram.store(sram.tile("l", rows, kind="stats", fill=0.0), l[rows])

    with machine.kernel("flash_v1") as sram:
        for keys in tiles(Nk, Bc):
            with sram.scope():
                Kj, Vj = sram.load(K[keys]), sram.load(V[keys])        # reads 2·Bc·d
                for rows in tiles(Nq, Br):
                    if mask.skips(rows, keys):
                        continue
                    with sram.scope():
                        Qi = sram.load(Q[rows])                        # reads Br·d
                        Oi = sram.load(O[rows], kind="accumulator")    # reads Br·d
                        mi, li = sram.load(m[rows]), sram.load(l[rows])

                        Sij = sram.tile("S", rows, keys)
                        Sij[...] = (Qi @ Kj.T) * scale
                        if (visible := mask.visible(rows, keys)) is not None:
                            Sij[...] = np.where(visible, Sij, -np.inf)
                        m_tile = np.maximum(Sij.max(axis=1), lowest)
                        Pij = Sij                                      # one room: P overwrites S
                        Pij[...] = np.exp(Sij - m_tile[:, None])
                        l_tile = Pij.sum(axis=1)

                        m_new = np.maximum(mi, m_tile)
                        old, new = np.exp(mi - m_new), np.exp(m_tile - m_new)
                        kept = old * li                                # old mass, in new units
                        l_new = kept + new * l_tile
                        PV = Pij.dot(Vj, where=visible)
                        Oi[...] = ((kept[:, None] * Oi + new[:, None] * PV)
                                   / np.maximum(l_new, tiny)[:, None])
                        mi[...], li[...] = m_new, l_new

                        sram.store(Oi, O[rows])                        # writes Br·d
                        sram.store(mi, m[rows])
                        sram.store(li, l[rows])

    with np.errstate(divide="ignore"):
        return O.to_host(), m.to_host() + np.log(l.to_host())
