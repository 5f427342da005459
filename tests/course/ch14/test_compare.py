"""What v4's ideas gain on Hopper: the rows are the recording's and the simulator's."""

import pytest

import flashlib as fl
from flashlib.course.ch14 import compare


def test_gains_are_over_the_same_shape_s_kernel():
    recorded = fl.data.measurements("gluon_ablation_h200")
    groups, strays = compare.on_hopper(recorded)
    assert list(groups) == list(strays) == [f"d = {d}{mask}" for d in (64, 128, 256)
                                            for mask in ("", ", causal")]
    (full,) = recorded.where(impl="full", d=64, causal=1).rows
    (half,) = recorded.where(impl="emulate_50", d=64, causal=1).rows
    row = groups["d = 64, causal"][1]
    assert row["label"] == "50 % emulated"
    assert row["measured"] == pytest.approx(half["tflops_per_s"] / full["tflops_per_s"])
    low, high = strays["d = 64, causal"]
    assert low <= 1 <= high and row["low"] <= row["measured"] <= row["high"]


def test_the_page_s_title_holds_of_the_recording():
    groups, _ = compare.on_hopper(fl.data.measurements("gluon_ablation_h200"))
    quarter, half, lazy = ([rows[n]["measured"] for rows in groups.values()] for n in range(3))
    assert max(*quarter, *half) < 1
    assert sorted(round(x, 2) for x in lazy)[1:] == [1.04, 1.04, 1.06, 1.07, 1.07]
    assert all(rows[0]["predicted"] == pytest.approx(1, abs=0.005) for rows in groups.values())
