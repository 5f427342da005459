"""Block sizes: what an algorithm keeps in SRAM, the paper's rule, and what really fits."""

import math
from collections.abc import Callable

from flashlib.arguments import check_block
from flashlib.models import traffic

TILED = {"flash_v1": traffic.flash_v1, "flash_v2": traffic.flash_v2,
         "standard_attention": traffic.standard_attention}


def working_set_bytes(algorithm: str, *, Br: int, Bc: int, d: int, Nk: int | None = None,
                      element_bytes=2, stats_bytes=4, accumulator_bytes=4) -> int:
    """Return the peak SRAM in bytes of a tiled algorithm whose tiles are all full.

    Args:
        algorithm: "flash_v1", "flash_v2" or "standard_attention".
        Br, Bc, d: tile heights and head dimension.
        Nk: number of keys; standard attention keeps a row of them. None for a single tile.
    """
    if algorithm not in TILED:
        raise ValueError(f"algorithm: expected one of {sorted(TILED)}, got {algorithm!r}")
    Br, Bc, d = check_block("Br", Br), check_block("Bc", Bc), check_block("d", d)
    Nk = Bc if Nk is None else check_block("Nk", Nk)
    cost = TILED[algorithm](Nq=Br, Nk=Nk, d=d, Br=Br, Bc=Bc, element_bytes=element_bytes,
                            stats_bytes=stats_bytes, accumulator_bytes=accumulator_bytes)
    return cost.sram_peak_bytes


def ideal_bytes(N: int, d: int, *, element_bytes=2, stats_bytes=4, accumulator_bytes=4) -> int:
    """Return the least SRAM in which standard attention moves every matrix once, as the ideal does.

    It keeps a whole K, then a whole V, while the other matrices pass by one row at a time. Less is
    not possible but for those rows: if each row of Q and of K is loaded once, whichever matrix
    leaves first has met all of the other.
    """
    N, d = check_block("N", N), check_block("d", d)
    return max(element_bytes * (N * d + d + N),            # K, a row of Q, a row of S
               element_bytes * N + 2 * stats_bytes,        # a row of S, and its m and l
               element_bytes * (N * d + N) + accumulator_bytes * d)  # V, a row of P, a row of O


def paper_blocks(sram_elements: int, d: int) -> tuple[int, int]:
    """Return the FlashAttention paper's (Br, Bc) for an SRAM of M = `sram_elements` elements.

    Bc = ⌈M/4d⌉ and Br = min(⌈M/4d⌉, d): Algorithm 1, line 1, of arXiv:2205.14135. The rule is
    asymptotic: the tiles of the machine need not fit into M (`largest_blocks` gives what does).
    """
    sram_elements, d = check_block("sram_elements", sram_elements), check_block("d", d)
    Bc = math.ceil(sram_elements / (4 * d))
    return min(Bc, d), Bc


def largest_blocks(sram_bytes: int, d: int, *, algorithm="flash_v2", element_bytes=2, stats_bytes=4,
                   accumulator_bytes=4) -> tuple[int, int]:
    """Return the largest (Br, Bc) whose working set really fits into `sram_bytes`.

    HBM traffic depends on one edge alone: Bc for "flash_v1", Br for "flash_v2". That edge is made
    as large as fits; the other follows it up to d, as in the paper's rule. A flatter tile would
    move fewer bytes (for v1 with d=128 on an A100 1×323 fits, where this gives 110×110), but it
    leaves the tensor cores idle.

    Raises:
        ValueError: not even blocks of 1 fit; the message says the bytes needed.
    """
    sram_bytes, d = check_block("sram_bytes", sram_bytes), check_block("d", d)
    if algorithm not in ("flash_v1", "flash_v2"):
        raise ValueError(f"algorithm: expected 'flash_v1' or 'flash_v2', got {algorithm!r}")

    def blocks(edge):
        return (min(edge, d), edge) if algorithm == "flash_v1" else (edge, min(edge, d))

    def need(edge):
        Br, Bc = blocks(edge)
        return working_set_bytes(algorithm, Br=Br, Bc=Bc, d=d, element_bytes=element_bytes,
                                 stats_bytes=stats_bytes, accumulator_bytes=accumulator_bytes)

    if need(1) > sram_bytes:
        raise ValueError(f"sram_bytes: expected at least {need(1):,} B, which {algorithm} needs for"
                         f" blocks of 1 at d={d}, got {sram_bytes:,} B")
    return blocks(largest(lambda edge: need(edge) <= sram_bytes))


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest whole number that fits, 0 if not even 1 does; what fits has no gaps."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
