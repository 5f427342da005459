"""Predicted times of configurations."""

import math

import numpy as np
import pytest

from flashlib.course.notebook.data import measurements
from flashlib.models import predict as model
from flashlib.models import traffic
from flashlib.models.predict import Config

SHAPE = {"batch": 4, "heads": 32, "N": 4096, "d": 64}


def test_shared_memory_equals_the_compilers_but_for_barriers():
    for row in measurements("blocks_h200").where(status="ok").rows:
        if row["BLOCK_M"] >= 64:
            gap = row["shared_bytes"] - model.shared_bytes(Config.of(row), row["d"])
            assert 0 <= gap <= 4096 or row["num_warps"] == 8, (row, gap)


def test_bytes_level_is_the_machines_traffic_over_the_bandwidth():
    cost = traffic.flash_v2(Nq=4096, Nk=4096, d=64, Br=64, Bc=64)
    found = model.predict("H200", Config(64, 64), **SHAPE, level="bytes")
    assert found.time_s == pytest.approx(128 * cost.hbm_bytes / 4.8e12)
    assert found.seconds == {"memory": found.time_s}


def test_levels_change_what_they_name():
    by_level = {level: model.predict("H200", Config(128, 128, 4, 2), **SHAPE, level=level)
                for level in model.LEVELS}
    assert by_level["L2"].seconds["memory"] < by_level["arithmetic"].seconds["memory"]
    assert by_level["occupancy"].time_s > by_level["L2"].time_s
    assert by_level["spills"].spilled_words > 0
    assert by_level["spills"].seconds["softmax"] > by_level["occupancy"].seconds["softmax"]
    narrow = Config(64, 32)
    assert (model.predict("H200", narrow, **SHAPE).seconds["matmul"]
            > model.predict("H200", narrow, **SHAPE, level="spills").seconds["matmul"])


def test_what_does_not_fit_takes_forever():
    found = model.predict("H200", Config(256, 256, 8, 4), batch=1, heads=1, N=512, d=128)
    assert (found.time_s, found.per_sm, found.bound) == (math.inf, 0, "does not fit")


@pytest.mark.parametrize(("config", "d", "expected"), [
    (Config(64, 64), 64, 1.0), (Config(32, 64), 64, model.MMA_SYNC_SHARE),
    (Config(64, 32), 64, 1 / 1.5), (Config(64, 64, 8), 64, 0.5), (Config(128, 64, 8), 64, 1.0)],
    ids=str)
def test_tensor_cores_want_64_rows_and_columns(config, d, expected):
    assert model.matmul_share("H200", config, d) == pytest.approx(expected)
    assert model.matmul_share("A100", config, d) == 1.0


def test_a_last_wave_that_is_not_full_costs_a_wave():
    def time(heads):
        return model.predict("H200", Config(128, 64, 8, 4), batch=1, heads=heads, N=4096, d=128,
                             level="occupancy")
    full, over = time(33), time(34)
    assert full.per_sm == 1 and (full.waves.waves, over.waves.waves, over.waves.last) == (8, 9, 32)
    assert over.time_s == pytest.approx(9 / 8 * full.time_s)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="level: expected one of"):
        model.predict("H200", Config(64, 64), **SHAPE, level="magic")
    with pytest.raises(ValueError, match="heads"):
        model.predict("H200", Config(64, 64), batch=1, heads=0, N=64, d=64)
    with pytest.raises(ValueError, match=r"dtype: expected one of .*bfloat16.* got 'x'"):
        model.predict("H200", Config(64, 64), **SHAPE, dtype="x")
    for name, wrong, error in (("Br", 0, ValueError), ("Bc", "x", TypeError), ("warps", 0, ValueError),
                               ("stages", -1, ValueError), ("warps", 2.0, TypeError)):
        with pytest.raises(error, match=f"^{name}: expected a whole number.* got {wrong!r}"):
            Config(**{"Br": 64, "Bc": 64, name: wrong})


def test_k_and_v_of_a_head_that_is_longer_than_the_l2_come_from_memory():
    """At 262,144 keys one head's K and V take 67 MB, more than the 50 MB of an H200's L2."""
    config, shape = Config(128, 64, 8, 4), {"batch": 1, "heads": 1, "d": 64}
    for N, from_l2 in ((131_072, True), (262_144, False)):
        found = model.predict("H200", config, N=N, **shape, level="L2")
        assert found.waves.slots < -(-N // 128), "less than one head is at work at a time"
        moved = traffic.flash_v2(Nq=N, Nk=N, d=64, Br=128, Bc=64).hbm_bytes
        least = 2 * 4 * N * 64 + 4 * N
        assert found.seconds["memory"] == pytest.approx((least if from_l2 else moved) / 4.8e12)


def test_a_last_wave_of_few_programs_is_shorter_than_a_full_one():
    """Two programs of an SM overlap; the 32 of the last wave have an SM each, and no neighbor."""
    def run(heads):
        return model.predict("H200", Config(128, 64, 8, 2), batch=1, heads=heads, N=4096, d=64,
                             level="occupancy")
    full, over = run(33), run(34)
    assert (full.per_sm, full.waves.waves, over.waves.waves, over.waves.last) == (2, 4, 5, 32)
    matmul, softmax = (full.seconds[part] / full.waves.programs * 132 for part in ("matmul", "softmax"))
    assert full.time_s == pytest.approx(4 * 2 * max(matmul, softmax))
    assert over.time_s - full.time_s == pytest.approx(matmul + softmax)


def test_best_by_tile_is_the_minimum_over_warps_and_stages():
    rows = [{"BLOCK_M": 64, "BLOCK_N": n} for n in (32, 32, 64)]
    best = model.best_by_tile(rows, [3.0, 2.0, 5.0], [64, 128], [32, 64])
    np.testing.assert_array_equal(best, [[2, 5], [np.nan, np.nan]])
