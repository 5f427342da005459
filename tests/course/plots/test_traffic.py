from itertools import pairwise

import numpy as np
import pytest

from flashlib import plots
from flashlib.course.plots import theme
from flashlib.models import traffic as models

SHAPE = dict(Nq=256, Nk=256, d=64)
COSTS = {"standard": models.standard_attention(**SHAPE),
         "flash_v1": models.flash_v1(**SHAPE, Br=32, Bc=32),
         "flash_v2": models.flash_v2(**SHAPE, Br=32, Bc=32)}


def parts(ax, gid):
    return [c for c in ax.get_children() if c.get_gid() == gid]


@pytest.mark.parametrize("label", COSTS)
def test_segments_are_as_long_as_their_bytes(label):
    ax = plots.traffic_bars({label: COSTS[label]}).axes[0]
    for name, moved in COSTS[label].by_tensor.items():
        for kind, count in zip(("read", "write"), moved, strict=True):
            assert sum(r.get_width() for r in parts(ax, f"{kind} {name}")) == count


def test_totals_stand_at_the_ends():
    ax = plots.traffic_bars(COSTS).axes[0]
    texts = [t.get_text() for t in ax.texts]
    assert all(plots.human_bytes(c.hbm_bytes) in texts for c in COSTS.values())


def test_a_log_axis_has_no_stacked_bars():
    ax = plots.traffic_bars(COSTS, logx=True).axes[0]
    assert ax.get_xscale() == "log"
    assert not [p for p in ax.patches if (p.get_gid() or "").startswith("read")]


def test_no_costs_is_an_error():
    with pytest.raises(ValueError, match="expected at least one"):
        plots.traffic_bars({})


TILES = [("Q", (16, 8), 256), ("K", (16, 8), 256), ("S", (16, 16), 512)]


@pytest.mark.parametrize("capacity, over", [(2000, False), (1024, False), (1023, True)])
def test_the_gauge_is_red_exactly_when_over(capacity, over):
    fig = plots.sram_gauge(TILES, capacity)
    ax = fig.axes[0]
    red = tuple(theme.to_rgb(theme.OVER))
    (verdict,) = parts(ax, "verdict")
    assert (tuple(theme.to_rgb(verdict.get_color())) == red) == over
    assert bool(parts(ax, "over")) == over
    assert ("1 B too many" in verdict.get_text()) == over
    colors = [p.get_edgecolor()[:3] for p in ax.patches]
    assert any(np.allclose(c, red) for c in colors) == over


@pytest.mark.parametrize("capacity, verdict", [
    (300, "1 tile needs 256 B: it fits, 44 B are free"), (255, "1 tile needs 256 B: 1 B too many")])
def test_the_gauge_of_one_tile_is_in_the_singular(capacity, verdict):
    (text,) = parts(plots.sram_gauge(TILES[:1], capacity).axes[0], "verdict")
    assert text.get_text() == verdict


def test_the_gauge_draws_every_tile():
    ax = plots.sram_gauge(TILES, 2000).axes[0]
    assert [p.get_width() for p in ax.patches if (p.get_gid() or "").startswith("tile")] == [
        256, 256, 512]


def test_predicted_is_dashed_and_counted_is_markers():
    x = [1, 2, 4]
    ax = plots.sweep(x, {"flash_v2": x}, predicted={"flash_v2": x}, counted={"flash_v2": x}).axes[0]
    (measured,), (counted,), (predicted,) = (
        parts(ax, f"{kind} flash_v2") for kind in ("measured", "counted", "predicted"))
    assert measured.get_linestyle() == "-" and measured.get_marker() != ""
    assert counted.get_linestyle() == "None" and counted.get_marker() != ""
    assert predicted.get_linestyle() == "--" and predicted.get_marker() in ("", "None")
    assert len({line.get_color() for line in (measured, counted, predicted)}) == 1


def test_slope_guides_have_their_slope_and_lie_below():
    x = np.array([1.0, 2, 4, 8])
    ax = plots.sweep(x, {"a": 1 / x}, slope_guides=[-1]).axes[0]
    (guide,) = parts(ax, "slope -1")
    gx, gy = np.log(guide.get_data())
    assert np.isclose(np.diff(gy) / np.diff(gx), -1)
    assert (np.exp(gy) < 1 / np.exp(gx)).all()


def test_curves_that_end_together_get_labels_apart():
    x = [1, 10, 100]
    fig = plots.sweep(x, {f"v{n}": [1, 2, 3 + n / 1000] for n in (1, 2, 3, 4)})
    fig.draw_without_rendering()
    boxes = sorted((t.get_window_extent() for t in fig.axes[0].texts
                    if (t.get_gid() or "").startswith("label")), key=lambda b: b.y0)
    assert len(boxes) == 4
    assert all(b.y0 >= a.y1 - 2 for a, b in pairwise(boxes))


def test_two_curves_of_one_version_look_apart_and_what_is_no_version_is_black():
    x = [1, 2, 4]
    ax = plots.sweep(x, counted={"v1": x, "v2, a": x, "v2, b": x}, predicted={"bound": x}).axes[0]
    (first,), (second,) = parts(ax, "counted v2, a"), parts(ax, "counted v2, b")
    assert first.get_color() != second.get_color()
    assert first.get_markerfacecolor() != second.get_markerfacecolor() == "white"
    (bound,) = parts(ax, "predicted bound")
    assert bound.get_color() == theme.version_style("bound", 0)["color"]


def test_the_gauge_counts_room_in_powers_of_two():
    ax = plots.sram_gauge(TILES, 163 * 1024).axes[0]
    assert "SRAM holds 163 KiB" in [t.get_text() for t in ax.texts]


def test_sweep_checks_lengths():
    with pytest.raises(ValueError, match="a: expected as many values"):
        plots.sweep([1, 2], {"a": [1]})


def test_roofline_points_stand_at_their_intensity():
    ax = plots.roofline("A100", COSTS).axes[0]
    for label, cost in COSTS.items():
        (point,) = parts(ax, f"point {label}")
        assert point.get_xdata()[0] == cost.intensity
    (roof,) = parts(ax, "roof")
    assert roof.get_ydata().max() == 312e12


def test_roofline_shows_measurements_beside_predictions():
    cost = COSTS["flash_v2"]
    ax = plots.roofline("A100", {"flash_v2": cost}, measured={"flash_v2": 1e-3}).axes[0]
    (measured,) = parts(ax, "measured flash_v2")
    assert measured.get_ydata()[0] == cost.flops / 1e-3
    assert parts(ax, "point flash_v2")[0].get_markerfacecolor() == "white"


def test_roofline_refuses_a_measurement_without_a_cost():
    with pytest.raises(ValueError, match="expected labels of costs"):
        plots.roofline("A100", COSTS, measured={"v9": 1.0})
