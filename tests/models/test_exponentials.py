"""Cycles of a tile on every unit: the facts of each generation, and the share that balances them."""

import pytest

from flashlib.models import exponentials as model
from flashlib.models.sm import programs


def longest(units):
    return max(units._fields, key=lambda name: getattr(units, name))


def test_a_tile_of_128_by_128_on_each_generation():
    """16 exponentials per clock on all of them; matmul FLOPs per clock double with every step."""
    matmul = {"V100": 8192, "A100": 4096, "H100": 2048, "B200": 1024}
    for gpu, cycles in matmul.items():
        units = model.units(gpu)
        assert (units.exp, units.matmul) == (1024, cycles)


def test_shared_memory_reads_k_and_v_once_for_every_warp_warpgroup_or_sm():
    """At d = 128, in 16 bits, a tile is 32 KiB, 256 cycles: Q once, K and V 4 times, 2 or 1."""
    for gpu, tiles in {"V100": 9, "A100": 9, "H100": 5, "B200": 3}.items():
        assert model.units(gpu).shared == 256 * tiles, gpu
    assert model.units("B200", d=64).shared == model.units("B200", dtype="float8").shared == 384
    run = programs.schedule_of("v4", gpu="B200", tiles=8)
    assert run.busy["shared"] == 2 * 8 * model.units("B200").shared        # the simulator's two tiles


def test_softmax_takes_half_of_the_matmul_at_128_and_all_of_it_at_64_on_hopper():
    for d, share in ((64, 1.0), (128, 0.5), (256, 0.25)):
        units = model.units("H100", d=d)
        assert units.exp / units.matmul == pytest.approx(share)
    eight = model.units("H100", dtype="float8")
    assert eight.exp / eight.matmul == pytest.approx(1.0, rel=0.001)


def test_the_longest_unit_changes_with_the_generation():
    assert [longest(model.units(g, d=64)) for g in ("A100", "B200")] == ["matmul", "exp"]


@pytest.mark.parametrize("gpu", ["H100", "B200", "RTX 4090"])
@pytest.mark.parametrize("degree", [1, 3, 5])
def test_at_the_best_share_both_units_take_equally_long_and_less_than_at_others(gpu, degree):
    best = model.best_share(gpu, degree=degree)
    there = model.units(gpu, share=best, degree=degree)
    assert 0.1 < best < 0.25 and there.exp == pytest.approx(there.vector)
    others = [model.units(gpu, share=x / 50, degree=degree).softmax for x in range(51)]
    assert min(others) >= there.softmax * (1 - 1e-12)


def test_where_the_vector_lanes_are_the_longer_ones_no_share_helps():
    assert model.best_share("A100") == 0.0 and longest(model.units("A100")) == "matmul"


@pytest.mark.parametrize("name, wrong", [("rows", 0), ("keys", -1), ("d", 2.5), ("share", 1.5),
                                         ("degree", 0), ("dtype", "int4"), ("gpu", "abacus")])
def test_wrong_arguments_are_refused(name, wrong):
    arguments = {"gpu": "H100", name: wrong}
    with pytest.raises((TypeError, ValueError), match="expected"):
        model.units(**arguments)
