"""Reference solutions of chapter 02."""

from collections import Counter

from flashlib.masks import tiles


def tiled_loads(M, N, K, Bm, Bn, element_bytes):
    """02.1: A once for every column of tiles of C, B once for every row of tiles."""
    return (M * K * -(-N // Bn) + K * N * -(-M // Bm)) * element_bytes


def largest_tile(sram_bytes, Bk, element_bytes, accumulator_bytes):
    """02.2: count up while the tile of C and the strips of A and B fit."""
    b = 1
    while accumulator_bytes * (b + 1) ** 2 + 2 * element_bytes * Bk * (b + 1) <= sram_bytes:
        b += 1
    return b


def my_tiled_matmul(machine, A, B, Bm, Bn, Bk):
    """02.3: the tile of C stays while strips of A and B pass by."""
    (M, K), N = A.shape, B.shape[1]
    A, B = machine.hbm(A=A, B=B)
    C = machine.hbm_empty("C", (M, N))
    with machine.kernel("my_tiled_matmul") as sram:
        for rows in tiles(M, Bm):
            for cols in tiles(N, Bn):
                with sram.scope():
                    Cij = sram.tile("C", rows, cols, kind="accumulator", fill=0.0)
                    for steps in tiles(K, Bk):
                        with sram.scope():
                            Aik, Bkj = sram.load(A[rows, steps]), sram.load(B[steps, cols])
                            Cij[...] = Cij + Aik @ Bkj
                    sram.store(Cij, C[rows, cols])
    return C.to_host()


def bank_passes(addresses):
    """02.4: the busiest bank's number of different words."""
    words = {address // 4 for address in addresses}
    return max(Counter(word % 32 for word in words).values())
