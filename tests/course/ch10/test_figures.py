"""The figures of chapter 10 show what was recorded, and say where."""

import itertools

import pytest

from flashlib import data, flash_v2
from flashlib.course.ch10 import figures
from flashlib.course.notebook.data import Measurement
from flashlib.course.plots import theme

RACE, BACK = (data.measurements(f"attention_{name}") for name in ("h200", "backward_h200"))


def _marks(fig):
    return {line.get_gid(): line for ax in fig.axes for line in ax.lines if line.get_gid()}


def test_every_joined_line_is_on_both_sides_and_no_line_of_the_page_is_left_alone():
    fig = figures.page_and_kernel(flash_v2)
    joins = [p.get_gid().split()[1:] for p in fig.axes[0].patches + fig.axes[0].artists
             if str(p.get_gid()).startswith("join")]
    page, kernel = figures.page_lines(flash_v2), figures.kernel_lines()
    alone = [line.strip() for n, line in enumerate(page) if str(n) not in {a for a, _ in joins}]
    assert {line.split("(")[0] for line in alone} <= {
        "with sram.scope", "continue", "Sij = sram.tile", "if", "if ", "Pij = Sij"}
    assert max(int(b) for _, b in joins) == len(kernel) - 1
    assert "qk = tl.dot" in theme.alt_text(fig)


def test_the_kernel_is_shown_with_the_loop_that_it_calls():
    lines = figures.kernel_lines()
    at = {start: next(n for n, line in enumerate(lines) if line.lstrip().startswith(start))
          for start in ("pid = ", "begin, whole", "for start in", "m_i = m_new", "acc = acc / ")}
    assert list(at.values()) == sorted(at.values()) and not any("#" in line for line in lines)


def test_race_by_shape_is_relative_to_the_fastest_rival_of_each_shape():
    fig = figures.race_by_shape(RACE, BACK)
    marks = _marks(fig)
    shapes = sorted({(r["d"], r["causal"], r["N_q"], r["B"], r["H"]) for r in RACE.rows})
    assert len(fig.axes[0].get_yticklabels()) == len(shapes)
    for (y, (d, causal, N, B, H)), (mode, race) in itertools.product(
            enumerate(shapes), (("forward", RACE), ("backward", BACK))):
        rates = {r["impl"]: r["tflops_per_s"] for r in race.where(
            mode=mode, d=d, causal=causal, N_q=N, B=B, H=H).rows if r["tflops_per_s"]}
        best = max(rate for impl, rate in rates.items() if not impl.startswith("ours"))
        assert marks[f"ours {mode} {y}"].get_xdata()[0] == pytest.approx(rates["ours"] / best)
        assert max(marks[f"rivals {mode} {y}"].get_xdata()) == pytest.approx(1)
        assert len(marks[f"rivals {mode} {y}"].get_xdata()) == len(rates) - 2
    for ax, race in zip(fig.axes, (RACE, BACK), strict=True):
        title = ax.get_title("left")
        assert race.provenance["gpu"] in title and race.provenance["date"] in title
    assert "ahead in 4 of 16" in theme.alt_text(fig).partition("backward")[2]


def test_race_leaves_out_what_was_not_timed():
    rows = [row | ({"seconds": None, "tflops_per_s": None} if row["impl"] == "fa4" else {})
            for row in RACE.rows]
    race = Measurement(RACE.provenance, rows, RACE.columns)
    before, after = (_marks(figures.race_by_shape(r, BACK))["rivals forward 0"] for r in (RACE, race))
    assert len(after.get_xdata()) == len(before.get_xdata()) - 1


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
