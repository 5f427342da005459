"""Matrix multiplication, one element at a time and one tile at a time."""

from flashlib.arguments import check_array, check_block, check_same_dtype
from flashlib.machine import Machine
from flashlib.masks import tiles


def naive_matmul(A, B, *, machine=None):
    """C = AB as one GPU thread an element would do it: each reads a row of A and a column of B.

    Taught in notebook 02. Reads 2·M·N·K elements and writes M·N.

    Args:
        A: (M, K).  B: (K, N); float64 or float32, same dtype.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        C, (M, N).
    Raises:
        SRAMOverflow: a row of A and a column of B do not fit.
    """
    M, N, _ = _check(A, B)
    machine = Machine.or_unbounded(machine)
    A, B = machine.hbm(A=A, B=B)
    C = machine.hbm_empty("C", (M, N))
    with machine.kernel("naive_matmul") as sram:
        for i in range(M):
            for j in range(N):
                with sram.scope():
                    row, column = sram.load(A[i:i + 1]), sram.load(B[:, j:j + 1])
                    Cij = sram.tile("C", slice(i, i + 1), slice(j, j + 1), kind="accumulator")
                    Cij[...] = row @ column
                    sram.store(Cij, C[i:i + 1, j:j + 1])
    return C.to_host()


def tiled_matmul(A, B, *, Bm, Bn, Bk, machine=None):
    """C = AB tile by tile: a (Bm, Bn) tile of C stays on chip while K is walked in steps of Bk.

    Taught in notebook 02. Reads M·K·⌈N/Bn⌉ + K·N·⌈M/Bm⌉ elements and writes M·N.

    Args:
        A: (M, K).  B: (K, N); float64 or float32, same dtype.
        Bm, Bn, Bk: tile edges along M, N and K.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        C, (M, N).
    Raises:
        SRAMOverflow: the three tiles do not fit in `machine.sram_bytes`.
    """
    M, N, K = _check(A, B)
    Bm, Bn, Bk = check_block("Bm", Bm), check_block("Bn", Bn), check_block("Bk", Bk)
    machine = Machine.or_unbounded(machine)
    A, B = machine.hbm(A=A, B=B)
    C = machine.hbm_empty("C", (M, N))
    with machine.kernel("tiled_matmul") as sram:
        for rows in tiles(M, Bm):
            for cols in tiles(N, Bn):
                with sram.scope():
                    Cij = sram.tile("C", rows, cols, kind="accumulator", fill=0.0)
                    for steps in tiles(K, Bk):
                        with sram.scope():
                            Aik, Bkj = sram.load(A[rows, steps]), sram.load(B[steps, cols])
                            Cij[...] = Cij + Aik @ Bkj
                    sram.store(Cij, C[rows, cols])                     # writes Bm·Bn
    return C.to_host()


def _check(A, B):
    check_array("A", A, ndim=2)
    check_array("B", B, ndim=2)
    check_same_dtype(A=A, B=B)
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"B: expected {A.shape[1]} rows, one per column of A, got shape {B.shape}")
    return A.shape[0], B.shape[1], A.shape[1]
