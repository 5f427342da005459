"""The figures of chapter 08 say what they are given, to the eye and in their alt text."""

import pytest

pytest.importorskip("matplotlib")

from flashlib import plots
from flashlib.course.ch08 import figures
from flashlib.course.plots.theme import alt_text
from flashlib.masks import mask_of, tile_class, tiles
from flashlib.models import occupancy as oc
from flashlib.models import warp_traffic


def words(fig):
    return [t.get_text() for t in [*fig.texts, *(t for ax in fig.axes for t in ax.texts)]]


def test_the_grid_carries_the_share_of_every_cell():
    grid = [[oc.waves(bh * t, "A100").efficiency for t in (1, 2)] for bh in (16, 109)]
    fig = figures.occupancy_grid({"here": grid}, (16, 109), (1024, 2048))
    assert words(fig)[:4] == ["15", "30", "50", "67"]
    assert "here: 15 % to 67 %." in alt_text(fig)


def test_causal_rows_count_the_classes_ragged_or_not():
    for N, Br, Bc in ((1024, 128, 64), (50, 16, 12)):
        kinds = [[tile_class(mask_of(True, N, N), r, k) for k in tiles(N, Bc)] for r in tiles(N, Br)]
        fig = plots.causal_rows({"case": (N, Br, Bc)})
        counted = [w for w in words(fig) if w.isdigit()]
        assert counted == [str(sum(kind != "skip" for kind in row)) for row in kinds]
        flat = [kind for row in kinds for kind in row]
        assert (f"{flat.count('full')} full, {flat.count('partial')} cut, "
                f"{flat.count('skip')} skipped of {len(flat)}") in alt_text(fig)


def test_schedules_say_when_they_end():
    fig = figures.schedules({"a": oc.schedule([1, 2, 3, 4], 2), "b": oc.schedule([4, 3, 2, 1], 2)})
    assert "a ends at 6, 83 % work; b ends at 5, 100 % work" in alt_text(fig)


def test_the_stair_says_what_each_step_gains():
    byte = {"l2_to_sm_bytes": 2e9, "sm_to_l2_bytes": 1e9, "dram_bytes": 3e9}
    steps = [{"name": "v1", "cause": "start", "seconds": 8e-3, **byte},
             {"name": "order", "cause": "trips", "seconds": 4e-3, **byte},
             {"name": "more", "cause": "programs", "seconds": 1e-3, "beside": 2e-3, **byte}]
    fig = figures.stair({"4 heads": steps})
    assert {"8.00", "÷ 2.00", "33 %", "÷ 4.00", "67 %", "3.0"} <= set(words(fig))
    assert "4 heads: v1 8.00 ms, order 4.00 ms (33 %), more 1.00 ms (67 %)" in alt_text(fig)
    assert "more programs: 67 % in this order" in words(fig)


def test_a_step_that_costs_time_has_a_negative_share():
    byte = dict.fromkeys(("l2_to_sm_bytes", "sm_to_l2_bytes", "dram_bytes"), 1e9)
    fig = figures.stair({"x": [{"name": str(t), "cause": "trips", "seconds": t, **byte}
                               for t in (4e-3, 8e-3, 1e-3)]})
    assert {"÷ 0.50", "−50 %", "÷ 8.00", "150 %"} <= set(words(fig))
    assert [patch.get_hatch() for patch in fig.axes[0].patches if patch.get_hatch()] == ["//////"]


def test_warps_show_bytes_barriers_and_exchange():
    step = {"Br": 64, "Nk": 64, "d": 64}
    fig = figures.warp_partition({"K": ("keys", warp_traffic.split_k(**step)),
                                  "Q": ("queries", warp_traffic.split_q(**step))})
    assert "2 barriers, 138 kB exchanged between warps" in words(fig)
    assert "0 barriers, nothing exchanged" in words(fig)
    assert {"w0", "w3"} <= set(words(fig))
