"""Attention's two matrix products without the softmax between them: O = (Q Kᵀ) V."""

from flashlib.arguments import check_attention, check_block
from flashlib.machine import Machine
from flashlib.masks import tiles


def unfused_matmuls(Q, K, V, *, Br, Bc, machine=None):
    """O = (Q Kᵀ) V in two tiled kernels: the first stores S, the second loads it again.

    Taught in notebook 02. In elements it moves 2·Nq·Nk + 2·Nq·d + 2·Nk·d·⌈Nq/Br⌉.

    Args:
        Q: (Nq, d).  K, V: (Nk, d); float64 or float32, same dtype.
        Br, Bc: tile heights, in rows of Q and of K.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        O, (Nq, d): neither scaled nor normalized.
    Raises:
        SRAMOverflow: the tiles of one of the kernels do not fit in `machine.sram_bytes`.
    """
    Nq, Nk, d, Br, Bc = _check(Q, K, V, Br, Bc)
    machine = Machine.or_unbounded(machine)
    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    S, O = machine.hbm_empty("S", (Nq, Nk)), machine.hbm_empty("O", (Nq, d))

    with machine.kernel("S = QKᵀ") as sram:
        for rows in tiles(Nq, Br):
            with sram.scope():
                Qi = sram.load(Q[rows])                        # reads Br·d
                for keys in tiles(Nk, Bc):
                    with sram.scope():
                        Kj = sram.load(K[keys])                # reads Bc·d
                        Sij = sram.tile("S", rows, keys)
                        Sij[...] = Qi @ Kj.T
                        sram.store(Sij, S[rows, keys])         # writes Br·Bc

    with machine.kernel("O = SV") as sram:
        for rows in tiles(Nq, Br):
            with sram.scope():
                Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                for keys in tiles(Nk, Bc):
                    with sram.scope():
                        Sij = sram.load(S[rows, keys])         # reads Br·Bc
                        Vj = sram.load(V[keys])                # reads Bc·d
                        Oi[...] = Oi + Sij @ Vj
                sram.store(Oi, O[rows])                        # writes Br·d
    return O.to_host()


def fused_matmuls(Q, K, V, *, Br, Bc, machine=None):
    """O = (Q Kᵀ) V in one kernel: a tile of S is used where it was made and never stored.

    Taught in notebook 02. In elements it moves 2·Nq·d + 2·Nk·d·⌈Nq/Br⌉.

    Args:
        Q: (Nq, d).  K, V: (Nk, d); float64 or float32, same dtype.
        Br, Bc: tile heights, in rows of Q and of K.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        O, (Nq, d): neither scaled nor normalized.
    Raises:
        SRAMOverflow: the tiles do not fit in `machine.sram_bytes`.
    """
    Nq, Nk, d, Br, Bc = _check(Q, K, V, Br, Bc)
    machine = Machine.or_unbounded(machine)
    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    O = machine.hbm_empty("O", (Nq, d))

    with machine.kernel("O = (QKᵀ)V") as sram:
        for rows in tiles(Nq, Br):
            with sram.scope():
                Qi = sram.load(Q[rows])                        # reads Br·d
                Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                for keys in tiles(Nk, Bc):
                    with sram.scope():
                        Kj, Vj = sram.load(K[keys]), sram.load(V[keys])    # reads 2·Bc·d
                        Sij = sram.tile("S", rows, keys)
                        Sij[...] = Qi @ Kj.T                   # final: this tile is complete
                        Oi[...] = Oi + Sij @ Vj                # accumulates
                sram.store(Oi, O[rows])                        # writes Br·d
    return O.to_host()


def _check(Q, K, V, Br, Bc):
    Nq, Nk, d, _ = check_attention(Q, K, V, False, None)
    return Nq, Nk, d, check_block("Br", Br), check_block("Bc", Bc)
