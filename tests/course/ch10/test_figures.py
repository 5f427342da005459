"""The figures of chapter 10 show what was recorded, and say where."""

import pytest

from flashlib import data
from flashlib.course.ch10 import figures
from flashlib.course.notebook.data import Measurement
from flashlib.course.plots import theme

RACE = data.measurements("attention_h200")


def _texts(fig):
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def test_race_labels_every_timed_bar_and_its_origin():
    fig = figures.kernel_race(RACE, B=4, H=48, N_q=4096, d=32)
    rows = RACE.where(B=4, H=48, N_q=4096, d=32).rows
    for row in rows:
        label = f"{row['tflops_per_s']:.0f}  ·  {1e3 * row['seconds']:.2f} ms"
        assert label in _texts(fig), row
    assert RACE.provenance["gpu"] in fig.get_suptitle()
    assert RACE.provenance["date"] in theme.alt_text(fig)


def test_race_leaves_out_what_was_not_timed_and_refuses_an_unknown_shape():
    rows = [row | ({"seconds": None, "tflops_per_s": None} if row["impl"] == "flex" else {})
            for row in RACE.rows]
    race = Measurement(RACE.provenance, rows, RACE.columns)
    fig = figures.kernel_race(race, B=4, H=48, N_q=4096, d=32)
    assert "FlexAttention" not in [t.get_text() for ax in fig.axes for t in ax.get_yticklabels()]
    figures.race_by_shape(race)
    with pytest.raises(ValueError, match="expected timed rows"):
        figures.kernel_race(RACE, B=1, H=1, N_q=3, d=5)


@pytest.mark.parametrize("ours", ["ours", "ours_triton"])
def test_race_is_relative_to_the_one_that_is_named(ours):
    left_out = "ours" if ours == "ours_triton" else "ours_triton"
    fig = figures.kernel_race(RACE, B=4, H=48, N_q=4096, d=32, ours=ours, without=[left_out])
    bars = {p.get_gid() for ax in fig.axes for p in ax.patches if p.get_gid()}
    assert f"bar {ours}" in bars and f"bar {left_out}" not in bars
    case = {"mode": "forward", "causal": 0, "B": 4, "H": 48, "N_q": 4096, "d": 32}
    own, flash = (RACE.where(impl=i, **case).rows[0] for i in (ours, "sdpa_flash"))
    assert f"ours is {flash['seconds'] / own['seconds']:.2f} ×" in _texts(fig)
    rates = [RACE.where(impl=i, mode="forward").column("tflops_per_s") for i in (ours, "sdpa_flash")]
    ratio = rates[0] / rates[1]
    words = theme.alt_text(figures.race_by_shape(RACE, ours=ours))
    assert f"run at {ratio.min():.2f} to {ratio.max():.2f} times" in words


def test_race_by_shape_has_a_line_for_every_shape_and_a_mark_for_every_row():
    fig = figures.race_by_shape(RACE, ceiling=7e14)
    shapes = {(r["B"], r["H"], r["N_q"], r["d"], r["causal"]) for r in RACE.rows}
    assert len(fig.axes[0].get_yticklabels()) == len(shapes)
    marks = [line for ax in fig.axes for line in ax.lines
             if str(line.get_gid()).startswith(("ours ", "sdpa_", "flex "))]
    peers = ("ours", "sdpa_flash", "sdpa_cudnn", "flex")
    assert len(marks) == sum(r["impl"] in peers and r["seconds"] is not None for r in RACE.rows)


def test_softmax_share_draws_each_part_as_long_as_it_took():
    parts = [("QKᵀ", 1e-3), ("softmax", 3e-3), ("PV", 0.5e-3)]
    fig = figures.softmax_share({"case": {"standard": parts, "fused": [("all in one", 1e-3)]}}, "here")
    widths = {p.get_gid(): p.get_width() for p in fig.axes[0].patches if p.get_gid()}
    assert widths["standard softmax"] == pytest.approx(3.0)
    assert "4.50 ms" in _texts(fig)
    assert "softmax 3.00 ms" in theme.alt_text(fig)
