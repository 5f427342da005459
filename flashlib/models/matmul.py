"""Tiles of a matmul: what they take in SRAM, and the largest square one that fits."""

import math

from flashlib.arguments import check_block


def matmul_tiles(Bm: int, Bn: int, Bk: int, *, element_bytes=2,
                 accumulator_bytes=4) -> list[tuple[str, tuple[int, int], int]]:
    """Return the tiles (name, shape, bytes) that `tiled_matmul` holds at its peak."""
    Bm, Bn, Bk = check_block("Bm", Bm), check_block("Bn", Bn), check_block("Bk", Bk)
    return [("C", (Bm, Bn), Bm * Bn * accumulator_bytes), ("A", (Bm, Bk), Bm * Bk * element_bytes),
            ("B", (Bk, Bn), Bk * Bn * element_bytes)]


def largest_square_tile(sram_bytes: int, *, Bk: int = 32, element_bytes=2, accumulator_bytes=4) -> int:
    """Return the largest b at which the tiles of Bm = Bn = b fit into `sram_bytes`.

    It solves accumulator_bytes·b² + 2·element_bytes·Bk·b ≤ sram_bytes. Taught in notebook 02.

    Raises:
        ValueError: not even b = 1 fits; the message says the bytes needed.
    """
    sram_bytes, Bk = check_block("sram_bytes", sram_bytes), check_block("Bk", Bk)
    least = sum(size for *_, size in matmul_tiles(1, 1, Bk, element_bytes=element_bytes,
                                                  accumulator_bytes=accumulator_bytes))
    if least > sram_bytes:
        raise ValueError(f"sram_bytes: expected at least {least:,} B, which tiles of 1 × 1 with"
                         f" Bk={Bk} need, got {sram_bytes:,} B")
    strip = element_bytes * Bk
    return (math.isqrt(strip * strip + accumulator_bytes * sram_bytes) - strip) // accumulator_bytes
