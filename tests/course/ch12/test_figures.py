"""The figures of chapter 12 say what they are given, to the eye and in their alt text."""

from collections import Counter

import pytest

pytest.importorskip("matplotlib")

from matplotlib.patches import Rectangle

from flashlib import plots
from flashlib.course.ch12 import figures, strip_figures
from flashlib.course.notebook.data import Measurement
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
    shares = {"one": {"tensor": 0.35, "exp": 0.18}, "two": {"tensor": 0.97, "exp": 0.5}}
    fig = figures.utilization_bars(shares)
    assert {"35 %", "18 %", "97 %", "50 %"} <= set(words(fig))
    assert "one: tensor cores 35 %, exponentials 18 %; two: tensor cores 97 %" in alt_text(fig)


def test_gains_show_spans_and_marks():
    fig = figures.gains([{"name": "a", "predicted": (1, 1), "measured": (1, 0.9, 1.1)},
                         {"name": "b", "predicted": (0.8, 0.95), "measured": (0.7, 0.6, 0.75)},
                         {"name": "c", "predicted": None, "measured": (0.9, 0.9, 0.9)}], label="speed")
    said = "a: predicted 1.00, measured 1.00; b: predicted 0.80 … 0.95, measured 0.70; c: measured 0.90"
    assert said in alt_text(fig)
    assert words(fig) == ["1.00", "1.00", "0.80 … 0.95", "0.70", "0.90"]


def test_the_clock_stands_over_the_share_of_one_of_four_tensor_cores():
    columns = ("impl", "causal", "tensor_cycles", "active_cycles", "sm_clock_hz")
    rows = [("full", 0, 300, 100, 1.5e9), ("fp8_block", 1, 200, 100, 1.7e9)]
    fig = figures.clock_falls(Measurement({"ceiling_matmul_clock_hz": "1.342e9"}, [
        dict(zip(columns, row, strict=True)) for row in rows], columns))
    found = alt_text(fig)
    assert "full 0.75, 1.50 GHz; 8 bits, causal 0.50, 1.70 GHz; a large matmul 1.34 GHz" in found
    assert [tuple(float(x[0]) for x in line.get_data()) for line in fig.axes[0].lines[:2]] == \
        [(0.75, 1.5), (0.5, 1.7)]


def test_who_is_ahead_in_every_run_is_named():
    fig = figures.against_best({"a": [1.1, 1.02], "b": [0.99, 1.2], "c": [1.0, 1.3]})
    assert "0.99 to 1.30; in 1 of 3 shapes ahead in every run: a." in alt_text(fig)


def test_a_label_gets_shorter_with_its_bar():
    s = programs.schedule_of("pingpong_overlap", tiles=24)
    assert "Q·Kᵀ 12" in words(plots.gantt(s, tiles=(11, 12)))
    shown = words(plots.gantt(s, tiles=(8, 14)))
    assert "Q·Kᵀ 12" not in shown and "12" in shown


def test_plan_and_chip_begin_at_the_same_tile_on_one_axis():
    events = ["step", "issued", "scores", "output"]
    rows = [{"warpgroup": g, "step": j, "event": event, "cycles": 5000 + 2600 * j + 600 * i + 1000 * g}
            for g in (0, 1) for j in range(6) for i, event in enumerate(events)]
    s = programs.schedule_of("pingpong_overlap", tiles=8)
    fig = figures.plan_and_chip(s, rows, tile=3, cycles=4000, source="drawn up")
    ax = fig.axes[0]
    bars = [p for p in ax.get_children() if isinstance(p, Rectangle) and p.get_height() == 0.66]
    starts = {row: min(b.get_x() for b in bars if round(b.get_y(), 2) == row
                       and b.get_facecolor() == bars[0].get_facecolor()) for row in (0.1, 2.45)}
    assert starts == {0.1: 0, 2.45: 0} and ax.get_xlim() == (0, 4000)
    # The recorded warpgroup 1 begins 1,000 cycles later, and each phase is 600 long.
    spans = {(round(b.get_x()), round(b.get_width())) for b in bars if round(b.get_y(), 2) == 3.45}
    assert {(1000, 600), (1600, 600), (2200, 800)} <= spans
    qk = [e for e in s.of(what="QK", role="warpgroup 0") if e.tile in (3, 4)]
    zero = next(stop.start for stop in s.stops if stop.role == "warpgroup 0" and stop.reason == "QK"
                and stop.start >= qk[0].issued - 1e-6)
    thin = [round(p.get_x() + zero) for p in ax.get_children()
            if isinstance(p, Rectangle) and p.get_height() == 0.15]
    for event in s.of(what="PV"):
        if zero < event.start < zero + 4000:
            assert round(event.start) in thin
    assert "drawn up" in ax.get_xlabel() and f"{s.cycles_per_tile:,.0f} cycles in" in alt_text(fig)
    assert "a median of 2,600 in the record" in alt_text(fig)


SASS = """
.L_x_3:
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x2, 0x80 ;
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24, gsb0 ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R88, R180, gdesc[UR12].tnspB, R88 ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R88, R180, gdesc[UR12].tnspB, R88, gsb0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0070*/                   FMNMX R7, R26, R27, !PT ;
        /*0080*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0090*/                   FFMA R7, R7, R4, R5 ;
        /*00a0*/                   MUFU.EX2 R10, R30 ;
        /*00b0*/                   FADD R10, R10, R30 ;
        /*00c0*/                   F2FP.BF16.F32.PACK_AB R10, R10, R30 ;
        /*00d0*/              @!P1 FMUL R10, R10, R30 ;
        /*00e0*/              @!P0 BRA `(.L_x_3) ;
        /*00f0*/                   MUFU.EX2 R10, R30 ;
        /*0100*/                   BRA `(.L_x_3) ;
"""


def test_a_loop_is_read_from_a_listing_and_its_exponentials_counted_before_the_wait():
    loop = strip_figures.loop_of(SASS)
    assert loop == ["rest", "QK", "QK", "PV", "PV", "wait QK", "max", "wait PV", "fma", "exp", "sum",
                    "pack", "rescale", "rest"]
    fig = strip_figures.strip(loop)
    assert "12 instructions of a loop" in alt_text(fig)
    assert "1 exponentials in the source's order, and 0 in the machine code's" in alt_text(fig)
    with pytest.raises(ValueError, match="waits for two matmuls"):
        strip_figures.loop_of(SASS.replace("WARPGROUP.DEPBAR.LE gsb0, 0x0", "NOP"))


def test_what_a_logit_costs_is_the_simulators_account():
    rates = programs.rates("H200")
    fig = figures.logit_costs(rates)
    assert "50 % of the matmuls' cycles, the rest of softmax 38 %" in alt_text(fig)
    for said in ("tensor cores 2,048", "special function units 1,024", "lanes 768"):
        assert said in alt_text(fig)
    assert "2,048" in words(fig) and "1,024" in words(fig)
    assert "100 % of" in alt_text(figures.logit_costs(rates, d=64))
