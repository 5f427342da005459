"""Flash-Decoding: where queries are few the keys are shared out, and what comes of them is merged."""

import numpy as np

from flashlib.arguments import check_attention, check_block
from flashlib.machine import Machine
from flashlib.masks import Mask, tiles, window_of


def flash_decode(Q, K, V, *, Br, Bc, keys=None, group=1, causal=False, window=None, scale=None,
                 machine=None):
    """Attention whose keys are cut into splits of a fixed number, each a program's, and merged.

    Flash-Decoding (Dao et al. 2023). Taught in notebook 15. One head of keys serves a group of query
    heads, so that their queries are rows of the same tiles: K and V are read once for all. A split
    that no row of a tile sees is left out.

    Args:
        Q: queries, (Nq·group, d): row i·group + h is query i of head h.
        K, V: keys and values, (Nk, d); float64 or float32.
        Br, Bc: tile heights, in rows of Q and of K.
        keys: keys of a split, a multiple of Bc; None for 2·Bc.
        group: query heads that share the keys.
        causal: hide later keys, aligned bottom right.  window: (left, right), as in `flash_v2`.
        scale: factor on the logits, None for 1/√d.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        O (Nq·group, d) and lse (Nq·group,), natural log.
    Raises:
        SRAMOverflow: the working set does not fit in `machine.sram_bytes`.

    Unmasked, of R = Nq·group ≤ Br rows and S > 1 splits, it moves (S + 1)·R·d + 2·Nk·d elements,
    2·S·R·d numbers of the accumulator's size, and (4·S + 1)·R statistics.
    """
    R, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    Br, Bc, group = check_block("Br", Br), check_block("Bc", Bc), check_block("group", group)
    keys = 2 * Bc if keys is None else check_block("keys", keys)
    if keys % Bc:
        raise ValueError(f"keys: expected a multiple of Bc, {Bc}, got {keys}")
    if R % group:
        raise ValueError(f"Q: expected a number of rows that group, {group}, divides, got {R}")
    machine = Machine.or_unbounded(machine)
    Nq, splits = R // group, tiles(Nk, keys)
    mask = Mask(*window_of(causal, window).keys_of(np.arange(R) // group, Nq, Nk), Nk)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    O = machine.hbm_empty("O", (R, d))
    lse = machine.hbm_empty("lse", (R,), kind="stats")
    parts = ()
    if len(splits) > 1:                                                # what each split leaves
        parts = (machine.hbm_empty("parts", (len(splits) * R, d), kind="accumulator"),
                 *(machine.hbm_empty(name, (len(splits) * R,), kind="stats") for name in "ml"))

    with machine.kernel("flash_decode") as sram:
        for rows in tiles(R, Br):                                      # in parallel on a GPU,
            for s, split in enumerate(splits or [slice(0, 0)]):        # and so are these
                if len(splits) > 1 and mask.skips(rows, split):
                    continue
                with sram.scope():
                    Qi = sram.load(Q[rows])                            # reads Br·d
                    Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                    m = sram.tile("m", rows, kind="stats", fill=lowest)
                    l = sram.tile("l", rows, kind="stats", fill=0.0)
                    for start in range(split.start, split.stop, Bc):
                        tile = slice(start, min(start + Bc, split.stop))
                        if mask.skips(rows, tile):
                            continue
                        with sram.scope():
                            Kj, Vj = sram.load(K[tile]), sram.load(V[tile])    # reads 2·Bc·d
                            Sij = sram.tile("S", rows, tile)
                            Sij[...] = (Qi @ Kj.T) * scale
                            if (visible := mask.visible(rows, tile)) is not None:
                                Sij[...] = np.where(visible, Sij, -np.inf)

                            m_new = np.maximum(m, Sij.max(axis=1))
                            alpha = np.exp(m - m_new)
                            Pij = Sij                                  # one room: P overwrites S
                            Pij[...] = np.exp(Sij - m_new[:, None])
                            l[...] = alpha * l + Pij.sum(axis=1)
                            Oi[...] = alpha[:, None] * Oi + Pij.dot(Vj, where=visible)
                            m[...] = m_new

                    if len(splits) > 1:
                        at = slice(s * R + rows.start, s * R + rows.stop)
                        for part, x in zip(parts, (Oi, m, l), strict=True):
                            sram.store(x, part[at])                    # writes Br·d + 2·Br
                    else:
                        Oi[...] = Oi / np.maximum(l, tiny)[:, None]
                        sram.store(Oi, O[rows])                        # writes Br·d
                        sram.store(m + np.log(l), lse[rows])

    if len(splits) > 1:
        _merge(machine, Br, mask, splits, parts, O, lse)
    return O.to_host(), lse.to_host()


def _merge(machine, Br, mask, splits, parts, O, lse):
    """Merge what the splits left of every row, in their order: the monoid once more."""
    lowest, tiny = np.finfo(machine.dtype).min, np.finfo(machine.dtype).tiny
    R, d = O.shape
    with machine.kernel("merge") as sram:
        for rows in tiles(R, Br):
            with sram.scope():
                Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                m = sram.tile("m", rows, kind="stats", fill=lowest)
                l = sram.tile("l", rows, kind="stats", fill=0.0)
                for s, split in enumerate(splits):
                    if mask.skips(rows, split):
                        continue
                    with sram.scope():
                        at = slice(s * R + rows.start, s * R + rows.stop)
                        Os, ms, ls = (sram.load(part[at]) for part in parts)   # reads Br·d + 2·Br
                        m_new = np.maximum(m, ms)
                        alpha, beta = np.exp(m - m_new), np.exp(ms - m_new)
                        l[...] = alpha * l + beta * ls
                        Oi[...] = alpha[:, None] * Oi + beta[:, None] * Os
                        m[...] = m_new
                Oi[...] = Oi / np.maximum(l, tiny)[:, None]
                sram.store(Oi, O[rows])                                # writes Br·d
                sram.store(m + np.log(l), lse[rows])
