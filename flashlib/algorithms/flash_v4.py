"""FlashAttention v4: fewer exponentials on their unit, and a maximum that may be out of date."""

import numpy as np

from flashlib.arguments import check_attention, check_block, check_share
from flashlib.exp2 import LOG2E, check_degree, software_exp2
from flashlib.machine import Machine
from flashlib.masks import mask_of, tiles

HIGHEST_TAU = 64.0                     # weights reach 2^tau, and their sum must stay finite in float32


def flash_v4(Q, K, V, *, Br, Bc, causal=False, window=None, scale=None, machine=None, exp2_degree=None,
             emulated_share=0.0, tau=0.0):
    """Attention that rescales only when it must, and computes part of its exponentials in software.

    FlashAttention-4 (arXiv:2603.05451), its softmax; the loops are v2's. Taught in notebook 14.
    Causal aligns bottom right (row i sees keys j ≤ i + Nk − Nq); torch aligns top left.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        Br, Bc: tile heights, in rows of Q and of K.
        causal: hide later keys.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        machine: the `Machine` that counts; None for one without limits.
        exp2_degree: degree of the polynomial that stands for 2ˣ; None for no polynomial.
        emulated_share: of the keys of a tile, rounded to whole keys, 0…1: those whose exponentials
            the polynomial computes, with vector FLOPs.
        tau: a row takes a new maximum only if that is more than tau higher, in units of log 2:
            0 for every new maximum, at most `HIGHEST_TAU`. Any tau gives the same result.
    Returns:
        O (Nq, d) and lse (Nq,), natural log.
    Raises:
        SRAMOverflow: the working set does not fit in `machine.sram_bytes`.

    It moves what `flash_v2` moves. In the trace, `votes("rescale")` tells for every (row, tile) step
    whether the row took a new maximum; a row tile rescales if one of its rows did.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    Br, Bc = check_block("Br", Br), check_block("Bc", Bc)
    emulated_share, tau = _check_v4(exp2_degree, emulated_share, tau)
    machine = Machine.or_unbounded(machine)
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    O = machine.hbm_empty("O", (Nq, d))
    lse = machine.hbm_empty("lse", (Nq,), kind="stats")

    with machine.kernel("flash_v4") as sram:
        for rows in tiles(Nq, Br):                                     # in parallel on a GPU
            with sram.scope():
                Qi = sram.load(Q[rows])                                # reads Br·d
                Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                m = sram.tile("m", rows, kind="stats", fill=lowest)    # the maximum, or a stale one
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

                        top = np.maximum(m, Sij.max(axis=1))
                        grown = (top - m) * LOG2E > tau                # (Br,), in units of log 2
                        if sram.vote("rescale", rows, grown):
                            m_new = np.where(grown, top, m)
                            alpha = np.exp2((m - m_new) * LOG2E)       # 1 for rows that keep theirs
                            l[...] = alpha * l
                            Oi[...] = alpha[:, None] * Oi
                            m[...] = m_new

                        Pij = Sij                                      # one room: P overwrites S
                        Pij[...] = (Sij - m[:, None]) * LOG2E          # at most tau
                        unit = Pij.shape[1] - round(emulated_share * Pij.shape[1])
                        if unit > 0:                                   # keys of the exponential unit
                            Pij[:, :unit] = np.exp2(Pij[:, :unit])
                        if unit < Pij.shape[1]:                        # keys of the vector unit
                            Pij[:, unit:] = software_exp2(Pij[:, unit:], exp2_degree)
                        l[...] = l + Pij.sum(axis=1)
                        Oi[...] = Oi + Pij.dot(Vj, where=visible)

                Oi[...] = Oi / np.maximum(l, tiny)[:, None]
                sram.store(Oi, O[rows])                                # writes Br·d
                sram.store(m + np.log(l), lse[rows])
    return O.to_host(), lse.to_host()


def _check_v4(exp2_degree, emulated_share, tau):
    emulated_share = check_share("emulated_share", emulated_share)
    if exp2_degree is not None:
        check_degree("exp2_degree", exp2_degree)
    elif emulated_share > 0:
        raise ValueError(f"exp2_degree: expected a degree for emulated_share={emulated_share},"
                         " got None")
    return emulated_share, check_share("tau", tau, HIGHEST_TAU)
