"""The figures of chapter 14 draw what they are given, and say it in their alt text."""

import numpy as np
import pytest

from flashlib.course.ch14 import figures
from flashlib.course.plots import theme
from flashlib.models.exponentials import Units
from flashlib.models.sm import programs


def line(ax, gid):
    return next(artist for artist in ax.lines if artist.get_gid() == gid)


def test_unit_race_draws_both_units_of_every_gpu():
    fig = figures.unit_race({"d = 64": {"old": Units(4096, 1024, 640, 1152),
                                        "new": Units(512, 1024, 640, 384)}})
    (ax,) = fig.axes
    assert list(line(ax, "matmul").get_ydata()) == [4096, 512]
    assert list(line(ax, "exp").get_ydata()) == [1024, 1024]
    assert list(line(ax, "shared").get_ydata()) == [1152, 384]
    looks = [(line(ax, unit).get_marker(), line(ax, unit).get_color()) for unit in figures.UNITS
             if unit != "vector"]
    assert len(set(looks)) == 3
    assert "old 4,096, 1,152 and 1,024, new 512, 384 and 1,024" in theme.alt_text(fig)
    assert ax.get_yscale() == "log" and fig.png().startswith(b"\x89PNG")


def test_exp2_errors_labels_every_degree_with_its_largest_error():
    f = np.array([0.0, 0.5])
    fig = figures.exp2_errors(f, {1: np.array([0.0, -0.03]), 3: np.array([0.0, 8e-5])})
    texts = [t.get_text() for t in fig.axes[0].texts]
    assert "degree 1: 3.0e-02" in texts and "degree 3: 8.0e-05" in texts
    assert line(fig.axes[0], "degree 1").get_ydata().max() == 0.03
    assert "half a step of bfloat16" in texts and "3: 8.0e-05" in theme.alt_text(fig)
    half = [(np.spacing(np.float32(1)) * 2.0**16) / 2 / x for x in (1.0, np.sqrt(2))]   # 2⁻⁷ is a step
    assert np.allclose(line(fig.axes[0], "half a step").get_ydata(), half)


def test_share_sweep_rings_the_least_and_draws_the_bound_dashed():
    fig = figures.share_sweep([0, 0.25, 0.5], {"B200": {"one": [10, 8, 9], "two": [9, 7, 12]}},
                              floors={"B200": [6, 5, 6]})
    (ax,) = fig.axes
    rings = [tuple(np.ravel(a.get_xydata())) for a in ax.lines if a.get_markerfacecolor() == "none"]
    assert rings == [(25.0, 8.0), (25.0, 7.0)]
    bound = line(ax, "bound")
    assert bound.get_linestyle() == "--" and list(bound.get_ydata()) == [6, 5, 6]
    assert "B200, two: 9 at no share, least 7 at 25 %" in theme.alt_text(fig)


def test_share_sweep_draws_all_panels_on_one_axis():
    fig = figures.share_sweep([0, 0.5], {"a": {"one": [10, 8]}, "b": {"one": [20, 9]}},
                              floors={"a": [6, 5], "b": [7, 7]})
    low, high = fig.axes[0].get_ylim()
    assert (low, high) == fig.axes[1].get_ylim() and 0 < low < 5 and high > 20
    assert "not from 0" in fig.axes[0].get_ylabel()


def test_stale_maximum_counts_the_rescales_of_every_threshold():
    fig = figures.stale_maximum([1.0, 2.0, 1.5, 6.0], {0.0: [1, 2, 2, 6], 4.0: [1, 1, 1, 6]})
    labels = [t.get_text() for t in fig.axes[0].get_legend().get_texts()]
    assert "τ = 0: 2 rescales" in labels and "τ = 4: 1 rescale" in labels
    assert "with tau 0, 2 rescales; with tau 4, 1 rescale." in theme.alt_text(fig)
    assert "true running maximum" not in labels             # τ = 0 is that line already
    (ax,) = figures.stale_maximum([1.0, 2.0], {4.0: [1, 1]}).axes
    assert "true running maximum" in [t.get_text() for t in ax.get_legend().get_texts()]


def test_stale_maximum_hides_no_triangle_and_no_line():
    fig = figures.stale_maximum([1.0, 9.0], {0.0: [1, 9], 2.0: [1, 9], 8.0: [1, 9]})
    (ax,) = fig.axes
    marks = [a for a in ax.lines if a.get_marker() == "^"]
    at = [a.get_transform().transform(a.get_xydata())[0] for a in marks]
    assert len(at) == 2 and at[1][0] - at[0][0] >= 0.1 * fig.dpi and at[0][1] == at[1][1]
    eager, near, far = (a for a in ax.lines if a.get_label().startswith("τ"))
    assert eager.get_zorder() > near.get_zorder() > far.get_zorder()
    assert eager.get_linewidth() < near.get_linewidth() < far.get_linewidth()


def test_skipped_maps_write_per_cent():
    fig = figures.skipped_maps({"rows": np.array([[0.9, 1.0], [0.004, 0.36]])}, [1, 2], [0.0, 8.0])
    assert [t.get_text() for t in fig.axes[0].texts] == ["90", "100", "<1", "36"]
    near = figures.skipped_maps({"rows": np.array([[0.0, 0.997]])}, [1], [0.0, 8.0])
    assert [t.get_text() for t in near.axes[0].texts] == ["0", ">99"]
    assert "rows: from 0 % at std 2, tau 0, to 100 % at std 1, tau 8" in theme.alt_text(fig)
    assert [t.get_color() == "#FFFFFF" for t in fig.axes[0].texts] == [True, True, False, False]


def test_mass_curve_marks_the_room_of_the_format():
    fig = figures.mass_curve([0.0, 4.0], {"std 1": [1.0, 0.97], "std 4": [0.99, 0.4]}, 0.807)
    (ax,) = fig.axes
    assert list(line(ax, "std 4").get_ydata()) == [0.99, 0.4]
    assert any(np.allclose(a.get_xdata(), 0.807) for a in ax.lines)
    assert "std 4 from 0.99 to 0.40" in theme.alt_text(fig)


def test_predicted_gains_fills_what_stays_out_of_the_grey():
    rows = [{"label": "a", "predicted": 1.1, "measured": 1.0, "low": 0.9, "high": 1.05},
            {"label": "b", "predicted": 1.0, "measured": 0.8, "low": 0.75, "high": 0.85}]
    fig = figures.predicted_gains({"d = 64": rows}, {"d = 64": (0.95, 1.02)}, title="recorded")
    a, b = fig.axes
    assert [ax.get_title(loc="left") for ax in (a, b)] == ["a", "b"] and a.get_xlim() == b.get_xlim()
    assert [t.get_text() for t in a.get_yticklabels()] == ["d = 64"]
    assert "a: predicted 1.10, measured 1.00; d = 64, b: predicted 1.00, measured 0.80, clearly" in (
        theme.alt_text(fig))
    diamonds = {line.get_xdata()[0]: line.get_markerfacecolor() for ax in (a, b) for line in ax.lines
                if line.get_marker() == "D" and len(line.get_xdata())}
    assert diamonds[1.0] == "white" and diamonds[0.8] != "white"
    xs = [tuple(line.get_xdata()) for line in a.lines]
    assert (0.9, 1.05) in xs and (1.1,) in xs
    for ax in (a, b):
        (grey,) = [p for p in ax.patches if p.get_gid() == "strays: d = 64"]
        assert (grey.get_x(), round(grey.get_width(), 9)) == (0.95, 0.07)


def test_pipeline_marks_where_the_tensor_cores_stand_still():
    s = programs.schedule_of("v4", tiles=4)
    fig = figures.pipeline(s, (0, s.cycles), title="v4")
    idle = sum(p.get_width() for p in fig.axes[0].patches if p.get_gid() == "idle")
    last = max(e.end for e in s.of(what="PV"))
    assert idle == pytest.approx(last - s.busy["tensor"])


def test_the_lab_draws_what_it_is_given():
    f = np.linspace(0, 1, 5)
    fig = figures.exp2_lab(f, 1e-3 * f, Units(1024, 768, 960, 512), 1152.0, [1.0, 3.0], [1.0, 3.0],
                           degree=3, tau=1.0, gpu="B200", fits=False)
    assert "B200: simulated 1,152" in [ax.get_title(loc="left") for ax in fig.axes]
    assert [bar.get_width() for bar in fig.axes[1].patches] == [1024, 768, 960, 512]
    assert "e4m3 has no room for it" in theme.alt_text(fig) and "1 rescale;" in theme.alt_text(fig)
