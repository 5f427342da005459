"""The figures of chapter 12 say what they are given, to the eye and in their alt text."""

from collections import Counter

import pytest

pytest.importorskip("matplotlib")

from matplotlib.patches import Rectangle

from flashlib import plots
from flashlib.course.ch12 import figures
from flashlib.course.plots.theme import alt_text
from flashlib.models.sm import programs


def words(fig):
    return [t.get_text() for t in [*fig.texts, *(t for ax in fig.axes for t in ax.texts)]]


@pytest.mark.parametrize("name", programs.NAMES)
def test_gantt_has_a_row_for_every_unit_and_role(name):
    s = programs.schedule_of(name, tiles=8)
    fig = plots.gantt(s, title=name)
    labels = [t.get_text() for t in fig.axes[0].get_yticklabels()]
    assert labels == ["copy engine", "tensor cores", "exponentials", *(r.name for r in s.program.roles)]
    assert f"{100 * s.utilization['tensor']:.0f} %" in words(fig)
    assert f"{s.cycles_per_tile:,.0f} cycles per tile" in alt_text(fig)


def test_gantt_draws_each_operation_where_it_happened():
    s = programs.schedule_of("pingpong", tiles=6)
    fig = plots.gantt(s, tiles=(2, 4))
    bars = [p for p in fig.axes[0].get_children() if isinstance(p, Rectangle)]
    spans = {(round(b.get_x(), 3), round(b.get_x() + b.get_width(), 3)) for b in bars}
    start, end = fig.axes[0].get_xlim()
    inside = [e for e in s.events if e.unit in ("copy", "tensor", "exp") and start <= e.start
              and e.end <= end]
    assert inside and all((round(e.start, 3), round(e.end, 3)) in spans for e in inside)


def test_gantt_can_show_the_lanes_which_a_bar_fills_by_its_share():
    s = programs.schedule_of("v4", gpu="B200", tiles=8, emulate=0.25)
    fig = plots.gantt(s, tiles=(3, 4), units=("tensor", "exp", "alu"))
    (ax,) = fig.axes
    labels = [t.get_text() for t in ax.get_yticklabels()]
    assert labels[:4] == ["tensor cores", "exponentials", "float32 lanes", "load"]
    start, end = ax.get_xlim()
    inside = [e for e in s.events if e.op.work.get("alu") and start < e.start and e.end < end]
    bars = [p for p in ax.get_children() if isinstance(p, Rectangle) and 2 < p.get_y() < 5]
    areas, work = Counter(), Counter()                     # of all bars that begin and end together
    for b in bars:
        x, width = b.get_x(), b.get_width()
        areas[round(x, 3), round(x + width, 3)] += width * b.get_height()
    for e in inside:
        work[round(e.start, 3), round(e.end, 3)] += e.op.work["alu"]
    scale = {round(areas[span] / cycles, 6) for span, cycles in work.items()}
    assert {e.what for e in inside} == {"max", "exp", "pack", "rescale"} and len(scale) == 1
    assert "pack" not in words(fig) and f"{100 * s.utilization['alu']:.0f} %" in words(fig)
    with pytest.raises(ValueError, match='units: expected "alu" in the last place'):
        plots.gantt(s, units=("alu", "exp"))


def test_gantt_refuses_a_window_that_is_none():
    s = programs.schedule_of(tiles=4)
    with pytest.raises(ValueError, match="tiles: expected two of 0 to 3"):
        plots.gantt(s, tiles=(2, 9))
    with pytest.raises(ValueError, match="window: expected from < to"):
        plots.gantt(s, window=(5, 5))


def test_bars_carry_the_shares():
    s = {n: programs.schedule_of(n) for n in ("synchronous", "pingpong")}
    fig = figures.utilization_bars(s)
    for name, schedule in s.items():
        assert f"{100 * schedule.utilization['exp']:.0f} %" in words(fig)
        assert f"{name}: tensor cores {100 * schedule.utilization['tensor']:.0f} %" in alt_text(fig)


def test_gains_can_count_in_whole_numbers_and_show_a_band():
    fig = figures.gains([{"name": "a", "predicted": (350.4, 437.9), "measured": (460, 449, 472)}],
                        digits=0, band=(690, 790, "a plain matmul"))
    assert "a: predicted 350 … 438, measured 460" in alt_text(fig)
    assert "a plain matmul" in [t.get_text() for t in fig.axes[0].get_legend().get_texts()]


def test_gains_show_spans_and_marks():
    fig = figures.gains([{"name": "a", "predicted": (1, 1), "measured": (1, 0.9, 1.1)},
                         {"name": "b", "predicted": (1.2, 1.5), "measured": None}])
    assert "a: predicted 1.00, measured 1.00; b: predicted 1.20 … 1.50" in alt_text(fig)
    assert [t.strip() for t in words(fig)] == ["1.00", "1.00", "1.20 … 1.50"]


def test_a_label_gets_shorter_with_its_bar():
    s = programs.schedule_of("pingpong_overlap", tiles=24)
    assert "Q·Kᵀ 12" in words(plots.gantt(s, tiles=(11, 12)))
    shown = words(plots.gantt(s, tiles=(8, 14)))
    assert "Q·Kᵀ 12" not in shown and "12" in shown


def test_the_kernels_timeline_draws_what_lies_between_two_readings():
    events = ["step", "issued", "scores", "output", "last step", "issued", "next scores", "last output",
              "finished", "step"]
    rows = [{"warpgroup": g, "step": 4, "event": event, "cycles": 100 * i + 10 * g}
            for g in (0, 1) for i, event in enumerate(events)]
    fig = figures.kernel_timeline(rows, window=(0, 1000), source="drawn up", title="Two of them")
    ax = fig.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["warpgroup 0", "warpgroup 1"]
    bars = [p for p in ax.get_children() if isinstance(p, Rectangle) and p.get_height() == 0.76]
    spans = sorted((round(b.get_y()), round(b.get_x()), round(b.get_width())) for b in bars)
    assert spans == [(g, 100 * i + 10 * g, 100) for g in (0, 1) for i in range(9)]
    assert "drawn up" in ax.get_xlabel() and "Two of them" in words(fig)
    assert "softmax, waits for P·V" in alt_text(fig) and "divide O, store it" in alt_text(fig)
