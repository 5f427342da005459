"""Standard attention: S, then P, then O, each a matrix that goes through HBM."""

import numpy as np

from flashlib.arguments import check_attention, check_block
from flashlib.machine import Machine, SRAMOverflow
from flashlib.masks import mask_of, tiles


def standard_attention(Q, K, V, *, causal=False, window=None, scale=None, Br=None, Bc=None,
                       machine=None):
    """Attention in three kernels that hand N×N matrices to each other through HBM: the baseline.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), Algorithm 0. Taught in notebooks 00 and 06.

    Without Br and Bc it is the *ideal* baseline: every matrix moves once, through an SRAM without
    limit. With them it is the *same-SRAM* baseline: the matmuls are tiled, softmax works row by row.
    Both are dense: a mask saves nothing. Causal aligns bottom right (row i sees keys
    j ≤ i + Nk − Nq); torch aligns top left.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        causal: hide later keys.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        Br, Bc: tile heights, in rows of Q and of K; both or neither.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        O (Nq, d) and lse (Nq,), natural log. lse serves checking and is not stored.
    Raises:
        SRAMOverflow: the tiles do not fit, or the ideal baseline met a machine with a limit.

    In elements it moves 4·Nq·Nk + 2·Nq·d + 2·Nk·d, with blocks 4·Nq·Nk + 2·Nq·d + 2·Nk·d·Tr.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    machine = Machine.or_unbounded(machine)
    if (Br is None) != (Bc is None):
        raise ValueError(f"Br, Bc: expected both or neither, got Br={Br} and Bc={Bc}")
    ideal = Br is None
    Br, Bc = (max(Nq, 1), max(Nk, 1)) if ideal else (check_block("Br", Br), check_block("Bc", Bc))
    if ideal and machine.sram_bytes is not None:
        e = machine.element_bytes
        whole = [("Q", Q.shape, e * Q.size), ("K", K.shape, e * K.size), ("S", (Nq, Nk), e * Nq * Nk)]
        raise SRAMOverflow("standard_attention", whole, machine.sram_bytes,
                           "Without Br and Bc this is the ideal baseline, which assumes an SRAM"
                           " without limit: give Br and Bc for the same-SRAM baseline")
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    S, P = machine.hbm_empty("S", (Nq, Nk)), machine.hbm_empty("P", (Nq, Nk))
    O = machine.hbm_empty("O", (Nq, d))
    m_rows, l_rows = np.full(Nq, lowest), np.zeros(Nq)

    with machine.kernel("S = QKᵀ") as sram:
        for rows in tiles(Nq, Br):
            with sram.scope():
                Qi = sram.load(Q[rows])                        # reads Br·d
                for keys in tiles(Nk, Bc):
                    with sram.scope():
                        Kj = sram.load(K[keys])                # reads Bc·d
                        Sij = sram.tile("S", rows, keys)
                        Sij[...] = (Qi @ Kj.T) * scale
                        if (visible := mask.visible(rows, keys)) is not None:
                            Sij[...] = np.where(visible, Sij, -np.inf)
                        sram.store(Sij, S[rows, keys])         # writes Br·Bc

    with machine.kernel("P = softmax(S)") as sram:
        for rows in tiles(Nq, Br if ideal else 1):             # one row at a time fits anywhere
            with sram.scope():
                Si = sram.load(S[rows])                        # reads Nk a row
                m = sram.tile("m", rows, kind="stats")
                l = sram.tile("l", rows, kind="stats")
                if Nk:
                    m[...] = np.maximum(Si.max(axis=1), lowest)
                    Si[...] = np.exp(Si - m[:, None])          # P overwrites S
                    l[...] = Si.sum(axis=1)
                    Si[...] = Si / np.maximum(l, tiny)[:, None]
                    m_rows[rows], l_rows[rows] = sram.peek(m), sram.peek(l)
                sram.store(Si, P[rows])                        # writes Nk a row

    with machine.kernel("O = PV") as sram:
        for rows in tiles(Nq, Br):
            with sram.scope():
                Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                for keys in tiles(Nk, Bc):
                    with sram.scope():
                        Pij = sram.load(P[rows, keys])         # reads Br·Bc
                        Vj = sram.load(V[keys])                # reads Bc·d
                        Oi[...] = Oi + Pij.dot(Vj, where=mask.visible(rows, keys))
                sram.store(Oi, O[rows])                        # writes Br·d

    with np.errstate(divide="ignore"):
        lse = m_rows + np.log(l_rows)
    return O.to_host(), lse.astype(O.to_host().dtype)
