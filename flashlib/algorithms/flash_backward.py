"""The backward pass of FlashAttention: nothing N×N was kept, so the weights are computed again."""

import numpy as np

from flashlib.arguments import check_array, check_attention, check_block, check_choice, check_same_dtype
from flashlib.machine import Machine
from flashlib.masks import mask_of, tiles


def flash_backward(Q, K, V, O, lse, dO, *, Br, Bc, dlse=None, order="kv", causal=False, window=None,
                   scale=None, machine=None):
    """Gradients of attention from Q, K, V, O, lse and dO, tile by tile, weights recomputed.

    FlashAttention-2 (Dao 2023, arXiv:2307.08691), Algorithm 2, for `order="kv"`. Taught in notebook
    07. Causal aligns bottom right (row i sees keys j ≤ i + Nk − Nq); torch aligns top left.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        O, lse: what the forward pass returned, (Nq, d) and (Nq,), natural log.
        dO: gradient of the loss with respect to O, (Nq, d).
        Br, Bc: tile heights, in rows of Q and of K.
        dlse: gradient of the loss with respect to lse, (Nq,), or None for zero.
        order: "kv" keeps a K/V tile on chip and accumulates dQ in HBM, one update per visited tile
            (atomic on a GPU, where K/V tiles run in parallel); "q" adds a second pass with a Q tile
            on chip, which needs no accumulation in HBM and computes the weights twice.
        causal: hide later keys.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        dQ (Nq, d), dK (Nk, d) and dV (Nk, d).
    Raises:
        SRAMOverflow: the working set does not fit in `machine.sram_bytes`.

    Unmasked and with Nq = Nk = N, order "kv" moves (7 + 4·Tc)·N·d elements and (1 + 2·Tc)·N
    statistics, order "q" (9 + 2·Tc + 2·Tr)·N·d elements and (3 + 2·Tc)·N statistics.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    _check_saved(Q, O, lse, dO, dlse)
    check_choice("order", order, ("kv", "q"))
    Br, Bc = check_block("Br", Br), check_block("Bc", Bc)
    machine = Machine.or_unbounded(machine)
    mask, lowest = mask_of(causal, Nq, Nk, window), np.finfo(Q.dtype).min

    Q, K, V, O, dO = machine.hbm(Q=Q, K=K, V=V, O=O, dO=dO)
    lse = machine.hbm(kind="stats", lse=lse)
    dlse = None if dlse is None else machine.hbm(kind="stats", dlse=dlse)
    delta = machine.hbm_empty("delta", (Nq,), kind="stats")
    dQ, dK, dV = (machine.hbm_empty(name, shape) for name, shape in
                  (("dQ", Q.shape), ("dK", K.shape), ("dV", V.shape)))

    def weights_and_dS(sram, rows, keys, Qi, Kj, Vj, dOi, lse_i, delta_i):
        """Return P and dS of one tile, (Br, Bc) each, and which entries are visible."""
        visible = mask.visible(rows, keys)
        Pij, dSij = sram.tile("S", rows, keys), sram.tile("dP", rows, keys)
        Pij[...] = np.exp((Qi @ Kj.T) * scale - np.maximum(lse_i, lowest)[:, None])
        dSij[...] = dOi @ Vj.T                                         # dP
        if visible is not None:
            Pij[...] = np.where(visible, Pij, 0.0)
        dSij[...] = Pij * (dSij - delta_i[:, None]) * scale            # dS overwrites dP
        if visible is not None:
            dSij[...] = np.where(visible, dSij, 0.0)
        return Pij, dSij, visible

    def flipped(visible):
        return None if visible is None else visible.T

    with machine.kernel("delta = rowsum(dO∘O)") as sram:
        for rows in tiles(Nq, Br):
            with sram.scope():
                Oi, dOi = sram.load(O[rows]), sram.load(dO[rows])
                delta_i = sram.tile("delta", rows, kind="stats")
                delta_i[...] = (dOi * Oi).sum(axis=1)
                if dlse is not None:                                   # the gradient through lse
                    delta_i[...] = delta_i - sram.load(dlse[rows])
                sram.store(delta_i, delta[rows])

    if order == "kv":
        with machine.kernel("dQ = 0") as sram:
            for rows in tiles(Nq, Br):
                with sram.scope():
                    zero = sram.tile("dQ", rows, d, kind="accumulator", fill=0.0)
                    sram.store(zero, dQ[rows])

    with machine.kernel(f"flash_backward: dK, dV{', dQ' if order == 'kv' else ''}") as sram:
        for keys in tiles(Nk, Bc):                                     # in parallel on a GPU
            with sram.scope():
                Kj, Vj = sram.load(K[keys]), sram.load(V[keys])        # reads 2·Bc·d
                dKj = sram.tile("dK", keys, d, kind="accumulator", fill=0.0)
                dVj = sram.tile("dV", keys, d, kind="accumulator", fill=0.0)
                for rows in tiles(Nq, Br):
                    if mask.skips(rows, keys):
                        continue
                    with sram.scope():
                        Qi, dOi = sram.load(Q[rows]), sram.load(dO[rows])  # reads 2·Br·d
                        lse_i, delta_i = sram.load(lse[rows]), sram.load(delta[rows])
                        Pij, dSij, visible = weights_and_dS(sram, rows, keys, Qi, Kj, Vj, dOi,
                                                            lse_i, delta_i)
                        dVj[...] = dVj + Pij.T.dot(dOi, where=flipped(visible))
                        dKj[...] = dKj + dSij.T.dot(Qi, where=flipped(visible))
                        if order == "kv":
                            dQi = sram.load(dQ[rows], kind="accumulator")  # reads Br·d
                            dQi[...] = dQi + dSij.dot(Kj, where=visible)
                            sram.store(dQi, dQ[rows], atomic=True)     # writes Br·d
                sram.store(dKj, dK[keys])
                sram.store(dVj, dV[keys])

    if order == "q":
        with machine.kernel("flash_backward: dQ") as sram:
            for rows in tiles(Nq, Br):                                 # in parallel on a GPU
                with sram.scope():
                    Qi, dOi = sram.load(Q[rows]), sram.load(dO[rows])
                    lse_i, delta_i = sram.load(lse[rows]), sram.load(delta[rows])
                    dQi = sram.tile("dQ", rows, d, kind="accumulator", fill=0.0)
                    for keys in tiles(Nk, Bc):
                        if mask.skips(rows, keys):
                            continue
                        with sram.scope():
                            Kj, Vj = sram.load(K[keys]), sram.load(V[keys])
                            _, dSij, visible = weights_and_dS(sram, rows, keys, Qi, Kj, Vj, dOi,
                                                              lse_i, delta_i)
                            dQi[...] = dQi + dSij.dot(Kj, where=visible)
                    sram.store(dQi, dQ[rows])

    return dQ.to_host(), dK.to_host(), dV.to_host()


def _check_saved(Q, O, lse, dO, dlse) -> None:
    named = {"O": (O, Q.shape), "lse": (lse, Q.shape[:1]), "dO": (dO, Q.shape)}
    if dlse is not None:
        named["dlse"] = (dlse, Q.shape[:1])
    for name, (value, shape) in named.items():
        check_array(name, value, ndim=len(shape))
        if value.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {value.shape}")
    check_same_dtype(Q=Q, **{name: value for name, (value, _) in named.items()})
