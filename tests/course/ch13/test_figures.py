"""Chapter 13's figures draw what they are given, and say it in their alt text."""

import matplotlib.colors
import numpy as np
import pytest

from flashlib import quant
from flashlib.course.bench import stalls
from flashlib.course.ch13 import figures
from flashlib.course.notebook.data import Measurement

pytest.importorskip("ml_dtypes")


def texts(figure):
    return [t.get_text() for ax in figure.axes for t in ax.texts]


def test_bit_fields_writes_every_bit_and_the_formula():
    numbers = [(x, quant.fields(x)) for x in (0.3, -2.75, 0.01, 0.0, np.nan)]
    figure = figures.bit_fields(numbers)
    written = texts(figure)
    assert sum(t in ("0", "1") for t in written) >= 5 * 8
    assert "(1 + 2/8) · 2⁵⁻⁷ = 1.25 · 2⁻²" in written
    assert "−(1 + 3/8) · 2⁸⁻⁷ = −1.375 · 2¹" in written
    assert "5/8 · 2⁻⁶ (subnormal)" in written and "not a number" in written
    assert len(figure.axes[0].patches) == 5 * 8
    assert "0.3 is kept as 0 0101 010, 0.3125" in figure._alt


def test_number_line_draws_every_value_up_to_the_limit():
    figure = figures.number_line({"e4m3": quant.values(), "int8": quant.values("int8")}, limit=2.0)
    counts = [len(c.get_segments()) for c in figure.axes[0].collections]
    assert counts == [sum(0 <= v <= 2 for v in quant.values(f)) for f in ("e4m3", "int8")]
    assert f"e4m3: {counts[0]} values" in figure._alt


def test_number_line_knows_a_format_by_the_first_word_of_its_name():
    figure = figures.number_line({"int8, scale 2/127": quant.values("int8") * 2 / 127}, limit=2.0)
    line = figure.axes[0].collections[0]
    curve = figures.scale_dilemma([1, 10], {"int8": [0.5, 0.1]}, largest=5.0).axes[0].lines[0]
    assert tuple(line.get_color()[0]) == matplotlib.colors.to_rgba(curve.get_color())


def test_outlier_spread_tells_the_length_and_the_largest_error():
    row = np.zeros(8)
    row[3] = 10.0
    figure = figures.outlier_spread({"before": (row, row * 1.06, np.arange(-12.0, 13.0)),
                                     "after": (row / 10, row / 10, np.arange(-12.0, 13.0))})
    assert "before: largest entry 10.0, error of length 0.60, largest error 0.60" in figure._alt
    assert "after: largest entry 1.0, error of length 0.00" in figure._alt
    assert len(figure.axes) == 4 and figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_scale_dilemma_marks_the_best_of_each_format():
    figure = figures.scale_dilemma([1, 10, 100], {"int8": [0.5, 0.1, 0.4], "e4m3": [0.5, 0.03, 0.03]},
                                   largest=30.0)
    assert "int8: at best 10.0%, at ±10" in figure._alt and "best 3.0%" in texts(figure)
    best = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert [float(line.get_ydata()[0]) for line in best] == [0.1, 0.03]


def test_error_bars_draws_a_bar_a_spread_and_the_paper():
    rows = [{"recipe": name, "rmse": e, "lowest": 0.9 * e, "highest": 1.2 * e, "paper": 2 * e}
            for name, e in (("a", 1e-2), ("b", 2e-2))]
    figure = figures.error_bars(rows, rotated={"b"}, title="a remark")
    ax = figure.axes[0]
    assert [patch.get_width() for patch in ax.patches] == [1e-2, 2e-2] and ax.get_xscale() == "linear"
    assert ax.patches[1].get_hatch() and not ax.patches[0].get_hatch()
    ends = [list(line.get_xdata()) for line in ax.lines]
    np.testing.assert_allclose(np.concatenate(ends), [9e-3, 1.2e-2, 2e-2, 1.8e-2, 2.4e-2, 4e-2])
    assert {"0.0100, not rotated", "0.0200, rotated"} <= set(texts(figure))
    assert "b: 2.00e-02. a remark" in figure._alt


def test_register_layout_colors_a_column_by_its_owner():
    figure = figures.register_layout({"one": [0, 1, 2, 3], "two": [0, 0, 1, 1]})
    shades = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert len(shades) == 8 and len(set(shades[:4])) == 4 and shades[4] == shades[5] != shades[6]
    assert "two: 0 0 1 1" in figure._alt
    moved = figures.register_layout({"one": [0, 1, 0, 1], "two": [0, 0, 1, 1]}, [0, 2, 1, 3])
    assert [t.xyann for t in moved.axes[0].texts if hasattr(t, "xyann")] == [(0.5, 0.74), (2.5, 0.74)]


def test_fp8_step_puts_the_phases_in_their_order_and_adds_them_up():
    rows = [{"impl": v, "phase": p, "cycles": 100.0 * (n + 1) + k}
            for k, (v, phases) in enumerate(stalls.PHASES.items()) for n, p in enumerate(phases)]
    figure = figures.fp8_step(Measurement({"gpu": "A GPU", "date": "2026-01-01"}, rows, tuple(rows[0])))
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [row["cycles"] for row in rows]
    assert [bar.get_x() for bar in bars[5:8]] == [0, 101, 302]
    assert {"1,500", "603"} <= set(texts(figure))
    assert "recorded on A GPU, 2026-01-01" in figure._alt
    assert "FP8, maximum: 101" in figure._alt and "FP8, PV, and the wait for it: 301" in figure._alt


@pytest.mark.parametrize("value", [0.3, 0.0, -448.0, 1e4])
def test_the_lab_draws_number_and_bars(value):
    bits = quant.fields(value)
    rows = [{"recipe": name, "rmse": e, "gains": [1.0, 3.5]}
            for name, e in (("half", 1e-3), ("a", 2e-2), ("b", 1e-2))]
    figure = figures.fp8_lab(value, 1.0, "e4m3", bits, quant.values()[100:108], rows, chosen="b",
                             heading="attention", note="a remark")
    assert "a remark" in [t.get_text() for t in figure.texts]
    bars = [p for p in figure.axes[2].patches]
    assert [bar.get_width() for bar in bars] == [0.05, 1.0, 0.5]
    assert bars[0].get_facecolor() == bars[1].get_facecolor() != bars[2].get_facecolor()
    assert "0.01, 2.0 times less (draws: 1.0 to 3.5)" in [t.get_text() for t in figure.axes[2].texts]
    assert bits.bits in figure._alt and figure.png().startswith(b"\x89PNG")
