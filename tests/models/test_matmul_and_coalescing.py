"""What a matmul tile needs, and what a warp's load costs."""

import random

import pytest

import flashlib as fl
from flashlib.models import coalescing, traffic
from flashlib.models.matmul import largest_square_tile, matmul_tiles
from tests.cases import normal


@pytest.mark.parametrize("Bm, Bn, Bk", [(1, 1, 1), (8, 4, 2), (16, 16, 8), (3, 7, 5)])
@pytest.mark.parametrize("e, a", [(2, 4), (4, 4), (1, 8)])
def test_the_tiles_are_those_of_the_kernel(Bm, Bn, Bk, e, a):
    machine = fl.Machine(element_bytes=e, accumulator_bytes=a)
    fl.tiled_matmul(*normal(0, (20, 20), (20, 20)), Bm=Bm, Bn=Bn, Bk=Bk, machine=machine)
    assert matmul_tiles(Bm, Bn, Bk, element_bytes=e, accumulator_bytes=a) == machine.peak_tiles


def test_the_largest_square_tile_fits_and_one_more_does_not():
    rng = random.Random(0)
    for _ in range(500):
        sizes = dict(element_bytes=rng.randint(1, 8), accumulator_bytes=rng.randint(1, 8))
        Bk, sram_bytes = rng.randint(1, 128), rng.randint(3000, 300_000)
        b = largest_square_tile(sram_bytes, Bk=Bk, **sizes)

        def need(b, Bk=Bk, sizes=sizes):
            big = dict(M=4096, N=4096, K=4096)
            return traffic.tiled_matmul(**big, Bm=b, Bn=b, Bk=Bk, **sizes).sram_peak_bytes

        assert need(b) <= sram_bytes < need(b + 1), (sizes, Bk, sram_bytes)


def test_too_small_an_sram_is_refused_with_the_bytes_needed():
    with pytest.raises(ValueError, match=r"sram_bytes: expected at least 132 B.*got 131 B"):
        largest_square_tile(131, Bk=32)
    assert largest_square_tile(132, Bk=32) == 1
    with pytest.raises(TypeError, match="Bk: expected a whole number"):
        largest_square_tile(1000, Bk=2.0)


WARP = range(32)


@pytest.mark.parametrize("name, addresses, lines, sectors, passes", [
    ("a row", [4 * t for t in WARP], 1, 4, 1),
    ("a row, misaligned", [4 * t + 64 for t in WARP], 2, 4, 1),
    ("a row of halves", [2 * t for t in WARP], 1, 2, 1),
    ("every other word", [8 * t for t in WARP], 2, 8, 2),
    ("a column of 32", [128 * t for t in WARP], 32, 32, 32),
    ("a column of 33", [132 * t for t in WARP], 32, 32, 1),
    ("one word for all", [512] * 32, 1, 1, 1),
    ("two words of one bank", [128 * (t % 2) for t in WARP], 2, 2, 2),
    ("stride 6", [24 * t for t in WARP], 6, 24, 2),
])
def test_patterns_by_hand(name, addresses, lines, sectors, passes):
    assert coalescing.transactions(addresses) == lines
    assert coalescing.transactions(addresses, coalescing.SECTOR_BYTES) == sectors
    assert coalescing.bank_passes(addresses) == passes


def test_strides_follow_the_greatest_common_divisor():
    from math import gcd
    for stride in range(1, 200):
        assert coalescing.bank_passes([4 * stride * t for t in WARP]) == gcd(stride, 32)


def test_no_thread_costs_nothing_and_wrong_addresses_are_refused():
    assert coalescing.transactions([]) == coalescing.bank_passes([]) == 0
    with pytest.raises(TypeError, match=r"addresses: expected a whole number, got 1\.5"):
        coalescing.bank_passes([1.5])
    with pytest.raises(ValueError, match=r"addresses: expected .* at least 0, got -4"):
        coalescing.transactions([-4])
