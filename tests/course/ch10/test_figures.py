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
    starts = [start for _, kernel_starts, _ in figures._JOINED for start in kernel_starts]
    assert all(any(line.strip().startswith(start) for line in kernel) for start in starts)


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
    clear = {"forward": 0, "backward": 0}
    for (y, (d, causal, N, B, H)), (mode, race) in itertools.product(
            enumerate(shapes), (("forward", RACE), ("backward", BACK))):
        rates = {r["impl"]: r["tflops_per_s"] for r in race.where(
            mode=mode, d=d, causal=causal, N_q=N, B=B, H=H).rows if r["tflops_per_s"]}
        best = max(rate for impl, rate in rates.items() if not impl.startswith("ours"))
        assert marks[f"ours {mode} {y}"].get_xdata()[0] == pytest.approx(rates["ours"] / best)
        assert max(marks[f"rivals {mode} {y}"].get_xdata()) == pytest.approx(1)
        [named] = [t for ax in fig.axes for t in ax.texts if t.get_gid() == f"fastest {mode} {y}"]
        assert named.get_text() == {"fa3": "FA3", "fa4": "FA4", "sdpa_cudnn": "cuDNN",
                                    "fa4_deterministic": "FA4 det."}[max(
            (impl for impl in rates if not impl.startswith("ours")), key=rates.__getitem__)]
        assert len(marks[f"rivals {mode} {y}"].get_xdata()) == len(rates) - 2
        rows = race.where(mode=mode, d=d, causal=causal, N_q=N, B=B, H=H).rows
        (ours,) = (r for r in rows if r["impl"] == "ours")
        clear[mode] += all(ours["seconds_high"] < r["seconds_low"] for r in rows
                           if not r["impl"].startswith("ours") and r["tflops_per_s"])
    for ax, race in zip(fig.axes, (RACE, BACK), strict=True):
        assert race.provenance["date"] in ax.get_xlabel()
        assert race.provenance["gpu"] in fig.get_suptitle()
    assert clear == {"forward": 7, "backward": 0}
    assert "ahead in 0 of 16, clearly behind in 8" in theme.alt_text(fig).partition("backward")[2]
    assert [ax.get_title("left") for ax in fig.axes] == [
        "forward, 16 shapes:\n7 clearly ahead, 0 clearly behind",
        "backward, 16 shapes:\n0 clearly ahead, 8 clearly behind"]
    assert sum(line.get_color() == "white" for line in marks.values()) == 9 + 8       # hollow: neither


def test_race_leaves_out_what_was_not_timed():
    rows = [row | ({"seconds": None, "tflops_per_s": None} if row["impl"] == "fa4" else {})
            for row in RACE.rows]
    race = Measurement(RACE.provenance, rows, RACE.columns)
    before, after = (_marks(figures.race_by_shape(r, BACK))["rivals forward 0"] for r in (RACE, race))
    assert len(after.get_xdata()) == len(before.get_xdata()) - 1


def test_units_stand_end_to_end_and_the_recorded_time_beside_them():
    rows = [{"d": 32, "matmul": 0.5, "exp": 0.8, "others": 0.4, "recorded": 1.3},
            {"d": 64, "matmul": 0.7, "exp": 0.5, "others": 0.3, "recorded": 1.2}]
    fig = figures.between_two_times(rows, "A GPU")
    bars = {bar.get_gid(): bar for bar in fig.axes[0].patches}
    assert bars["exp 64"].get_x() == 0.7 and bars["others 64"].get_x() == pytest.approx(1.2)
    assert [list(_marks(fig)[f"recorded {row['d']}"].get_xdata()) for row in rows] == [[1.3], [1.2]]
    bold = [t.get_text() for t in fig.axes[0].texts if t.get_fontweight() == "bold"]
    assert bold == ["exponentials 0.80", "0.70"]
    assert "At d = 32 softmax needs 1.20 ms, products 0.50" in theme.alt_text(fig)
    assert "A GPU" in fig.axes[0].get_xlabel()
