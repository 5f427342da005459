"""The figures of chapter 10 show what was recorded, and say where."""

import itertools

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


def _windows():
    """Return made-up rows of `bench.windows`: 2 µs a tile, and 10 µs that no window saves."""
    rows = []
    for impl, mode, (left, tiles) in itertools.product(("auto", "triton"), ("forward", "backward"), (
            (127, 255), (511, 630), (None, 8256))):
        seconds = 2e-6 * tiles * (1 + (mode == "backward")) + 1e-5 * (left is not None)
        rows.append({"impl": impl, "mode": mode, "B": 1, "H": 1, "N_q": 16384, "N_k": 16384, "d": 128,
                     "window_left": left, "seconds": seconds, "seconds_low": 0.9 * seconds,
                     "seconds_high": 1.2 * seconds, "BLOCK_M": 64, "BLOCK_N": 128,
                     "key_tiles": tiles})
    return Measurement({"gpu": "A GPU", "date": "2026-01-01"}, rows, tuple(rows[0]))


def test_windows_stand_over_their_keys_beside_time_in_proportion_to_tiles():
    fig = figures.window_time(_windows())
    lines = {line.get_gid(): line for ax in fig.axes for line in ax.lines if line.get_gid()}
    for mode, times in (("forward", 1), ("backward", 2)):
        dashed, mark = lines[f"tiles auto {mode}"], lines[f"causal auto {mode}"]
        assert list(dashed.get_xdata()) == [128, 512, 16384] and dashed.get_linestyle() == "--"
        assert list(dashed.get_ydata()) == pytest.approx([times * 2e-3 * n for n in (255, 630, 8256)])
        assert mark.get_xdata() == [16384] and mark.get_markerfacecolor() == "white"
    (bars,) = [c for c in fig.axes[0].containers if c.get_label() == "this course's op"]
    assert list(bars.lines[0].get_ydata()) == pytest.approx([0.52, 1.27])
    assert [ax.get_xscale() + ax.get_yscale() for ax in fig.axes] == ["loglog"] * 2


def test_proportion_is_to_what_tiles_hold_not_to_how_many_they_are():
    recorded = _windows()
    for row in recorded.rows:
        if row["window_left"] is None:                      # twice as tall, half as many
            row |= {"BLOCK_M": 128, "key_tiles": 4128}
    lines = {line.get_gid(): line for line in figures.window_time(recorded).axes[0].lines}
    assert list(lines["tiles auto forward"].get_ydata()) == pytest.approx([0.51, 1.26, 16.512])


def test_the_figure_of_windows_says_in_words_what_it_shows_and_where_from():
    words = theme.alt_text(figures.window_time(_windows()))
    assert "recorded on A GPU, 2026-01-01" in words
    assert ("forward, this course's op: 0.52 ms for a window of 128 keys (0.51 in proportion to its"
            " tiles), to 16.5 ms without a window") in words
