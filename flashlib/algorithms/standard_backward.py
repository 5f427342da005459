"""Training with standard attention: S and P go through HBM forward, dP and dS backward."""

import numpy as np

from flashlib.arguments import check_array, check_attention, check_same_dtype, check_share
from flashlib.errors import SRAMOverflow
from flashlib.machine import Machine
from flashlib.masks import mask_of


def standard_training_forward(Q, K, V, *, keep=None, drop=0.0, causal=False, window=None, scale=None,
                              machine=None):
    """Standard attention as a framework runs it in training: a kernel per operation, P kept.

    Scaling and masking read and write S once more than `standard_attention` does; dropout, if
    there is a mask, reads P and the mask and writes Z = P∘keep/(1 − drop). Taught in notebook 07.
    Every matrix moves once per kernel, on an SRAM without limit (the ideal baseline).

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        keep: which weights survive dropout, booleans (Nq, Nk), one byte each; None for no dropout.
        drop: the share that is dropped, 0 ≤ drop < 1.
        causal: hide later keys, aligned bottom right.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        machine: the `Machine` that counts; it must be without a capacity.
    Returns:
        O (Nq, d), P (Nq, Nk), and Z (Nq, Nk), which is P itself without dropout.

    In elements it moves 6·Nq·Nk + 2·Nq·d + 2·Nk·d; dropout adds 2·Nq·Nk and Nq·Nk bytes.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    kept = _check_dropout(keep, drop, (Nq, Nk), Q.dtype)
    machine = _ideal(machine, "standard_training_forward", Nq, Nk)
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny
    rows, keys = slice(0, Nq), slice(0, Nk)

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    S, P = machine.hbm_empty("S", (Nq, Nk)), machine.hbm_empty("P", (Nq, Nk))
    O = machine.hbm_empty("O", (Nq, d))

    with machine.kernel("S = QKᵀ") as sram:
        Qi, Kj, Sij = sram.load(Q), sram.load(K), sram.tile("S", rows, keys)
        Sij[...] = Qi @ Kj.T
        sram.store(Sij, S)

    with machine.kernel("scale and mask S") as sram:
        Sij = sram.load(S)
        Sij[...] = Sij * scale
        if (visible := mask.visible(rows, keys)) is not None:
            Sij[...] = np.where(visible, Sij, -np.inf)
        sram.store(Sij, S)

    with machine.kernel("P = softmax(S)") as sram:
        Pij = sram.load(S)
        if Nk:
            m, l = sram.tile("m", Nq, kind="stats"), sram.tile("l", Nq, kind="stats")
            m[...] = np.maximum(Pij.max(axis=1), lowest)
            Pij[...] = np.exp(Pij - m[:, None])                        # P overwrites S
            l[...] = Pij.sum(axis=1)
            Pij[...] = Pij / np.maximum(l, tiny)[:, None]
        sram.store(Pij, P)

    Z = P if kept is None else machine.hbm_empty("Z", (Nq, Nk))
    if kept is not None:
        _dropout(machine, "Z = dropout(P)", P, machine.hbm(kind="mask", keep=kept), drop, Z)

    with machine.kernel("O = ZV") as sram:
        Zij, Vj = sram.load(Z), sram.load(V)
        Oi = sram.tile("O", rows, d, kind="accumulator")
        Oi[...] = Zij @ Vj
        sram.store(Oi, O)
    return O.to_host(), P.to_host(), Z.to_host()


def standard_backward(Q, K, V, P, dO, *, Z=None, keep=None, drop=0.0, scale=None, machine=None):
    """Gradients of standard attention from the stored weights P, one N×N matrix after the other.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), Algorithm 3, with dropout as a kernel of its
    own. Taught in notebook 07. It is dense: a mask is in the zeros of P, and saves nothing.

    Args:
        Q, K, V: as in the forward pass.  P, Z: what it returned; Z is needed with dropout only.
        dO: gradient of the loss with respect to O, (Nq, d).
        keep, drop: as in the forward pass.  scale: factor on the logits, None for 1/√d.
        machine: the `Machine` that counts; it must be without a capacity.
    Returns:
        dQ (Nq, d), dK (Nk, d) and dV (Nk, d).

    In elements it moves 7·Nq·Nk + 4·Nq·d + 4·Nk·d; dropout adds 2·Nq·Nk and Nq·Nk bytes.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, False, scale)
    kept = _check_dropout(keep, drop, (Nq, Nk), Q.dtype)
    if (Z is None) != (kept is None):
        raise ValueError("Z, keep: expected both with dropout and neither without, got one of them")
    Z = P if Z is None else Z
    for name, value, shape in (("P", P, (Nq, Nk)), ("Z", Z, (Nq, Nk)), ("dO", dO, (Nq, d))):
        if check_array(name, value, ndim=2).shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {value.shape}")
    check_same_dtype(Q=Q, P=P, Z=Z, dO=dO)
    machine = _ideal(machine, "standard_backward", Nq, Nk)
    rows, keys = slice(0, Nq), slice(0, Nk)

    Q, K, V, P, dO = machine.hbm(Q=Q, K=K, V=V, P=P, dO=dO)
    Z = P if kept is None else machine.hbm(Z=Z)
    dP, dS = machine.hbm_empty("dP", (Nq, Nk)), machine.hbm_empty("dS", (Nq, Nk))
    dZ = dP if kept is None else machine.hbm_empty("dZ", (Nq, Nk))
    dQ, dK, dV = (machine.hbm_empty(name, shape) for name, shape in
                  (("dQ", Q.shape), ("dK", K.shape), ("dV", V.shape)))

    with machine.kernel("dV = ZᵀdO") as sram:
        Zij, dOi = sram.load(Z), sram.load(dO)
        dVj = sram.tile("dV", keys, d, kind="accumulator")
        dVj[...] = Zij.T @ dOi
        sram.store(dVj, dV)

    with machine.kernel("dZ = dOVᵀ") as sram:
        dOi, Vj, dZij = sram.load(dO), sram.load(V), sram.tile("dZ", rows, keys)
        dZij[...] = dOi @ Vj.T
        sram.store(dZij, dZ)

    if kept is not None:
        _dropout(machine, "dP = dropout(dZ)", dZ, machine.hbm(kind="mask", keep=kept), drop, dP)

    with machine.kernel("dS = P∘(dP − rowsum(dP∘P))") as sram:
        Pij, dSij = sram.load(P), sram.load(dP)
        delta = sram.tile("delta", Nq, kind="stats")
        delta[...] = (dSij * Pij).sum(axis=1)
        dSij[...] = Pij * (dSij - delta[:, None]) * scale              # dS overwrites dP
        sram.store(dSij, dS)

    with machine.kernel("dQ = dS·K") as sram:
        dSij, Kj = sram.load(dS), sram.load(K)
        dQi = sram.tile("dQ", rows, d, kind="accumulator")
        dQi[...] = dSij @ Kj
        sram.store(dQi, dQ)

    with machine.kernel("dK = dSᵀQ") as sram:
        dSij, Qi = sram.load(dS), sram.load(Q)
        dKj = sram.tile("dK", keys, d, kind="accumulator")
        dKj[...] = dSij.T @ Qi
        sram.store(dKj, dK)
    return dQ.to_host(), dK.to_host(), dV.to_host()


def _dropout(machine, kernel, source, keep, drop, target) -> None:
    """Zero what the mask drops and scale the rest up; forward and backward do the same."""
    with machine.kernel(kernel) as sram:
        values, mask = sram.load(source), sram.load(keep)
        values[...] = values * mask * (1 / (1 - drop))
        sram.store(values, target)


def _check_dropout(keep, drop, shape, dtype):
    """Return the mask as zeros and ones that can live in HBM, or None."""
    if check_share("drop", drop) == 1:
        raise ValueError(f"drop: expected a share from 0 to below 1, got {drop}")
    if keep is None:
        if drop:
            raise ValueError(f"keep: expected a mask for drop={drop}, got None")
        return None
    if not isinstance(keep, np.ndarray) or keep.dtype != bool:
        raise TypeError(f"keep: expected a NumPy array of booleans, got {keep!r}")
    if keep.shape != shape:
        raise ValueError(f"keep: expected shape {shape}, got {keep.shape}")
    return keep.astype(dtype)


def _ideal(machine, kernel, Nq, Nk) -> Machine:
    machine = Machine.or_unbounded(machine)
    if machine.sram_bytes is not None:
        size = machine.element_bytes * Nq * Nk
        raise SRAMOverflow(kernel, [("S", (Nq, Nk), size)], machine.sram_bytes,
                           "This is the ideal baseline, which assumes an SRAM without limit: give"
                           " it a machine without sram_bytes")
    return machine
