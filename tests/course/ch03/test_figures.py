"""Chapter 03's figures draw what they are given, and say it in their alt text."""

import numpy as np
import pytest

from flashlib.course.ch03 import figures, lab
from flashlib.numerics import DTYPES


def cells(figure, gid):
    return [patch for patch in figure.axes[0].patches if patch.get_gid() == gid]


def test_overflow_map_colors_all_some_and_none_apart():
    counts = {"textbook": {"float32": [8, 7, 1, 0]}, "safe": {"float32": [8, 8, 8, 8]}}
    figure = figures.overflow_map([1, 2, 4, 8], counts, rows=8)
    assert len(cells(figure, "kept")) == 5
    most, some, none = cells(figure, "lost")
    full = cells(figure, "kept")[0]
    assert most.get_facecolor() == some.get_facecolor()
    assert len({patch.get_facecolor() for patch in (full, some, none)}) == 3
    assert some.get_hatch() and none.get_hatch() and not full.get_hatch()
    assert len({round(patch.get_width(), 9) for patch in (full, some, none)}) == 1
    assert "textbook: float32 loses rows from ×2 on" in figure._alt
    assert "safe: float32 loses none" in figure._alt


@pytest.mark.parametrize(("wall", "border", "text"), [
    (0.28, None, "◂ ×0.28"), (1.0, 1, "×1"), (1.46, 1, "×1.46"), (3.9, 2, "×3.9"),
    (8.6e36, None, "▸ ×8.6e36")])
def test_a_wall_lies_between_the_scales_that_it_divides(wall, border, text):
    figure = figures.overflow_map([1, 2, 4], {"a": {"float16": [1, 1, 0]}}, rows=1,
                                  walls={"a": {"float16": wall}})
    ax = figure.axes[0]
    lines = [line for line in ax.lines if line.get_gid() == "wall float16"]
    assert len(lines) == (border is not None)
    if border:
        boxes = sorted(cells(figure, "kept") + cells(figure, "lost"), key=lambda p: p.get_x())
        assert lines[0].get_xdata()[0] == pytest.approx(boxes[border].get_x())
    assert text in [t.get_text() for t in ax.texts]


def test_exp_range_draws_the_limits_of_every_dtype_and_counts_what_lies_beyond():
    limits = {name: (facts.exp_underflow, facts.exp_overflow) for name, facts in DTYPES.items()}
    figure = figures.exp_range(limits, {"x": np.array([-200.0, 0.0, 90.0, 100.0])}, title="a title")
    (bar,) = cells(figure, "finite float16")
    assert (bar.get_x(), bar.get_x() + bar.get_width()) == pytest.approx(limits["float16"])
    assert "x: 2 beyond the upper limit of float32, 1 below the lower" in figure._alt
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert "2 of 4 → ∞" in texts and "1 of 4 → 0" in texts
    assert figure.png().startswith(b"\x89PNG")


def test_the_lost_rows_are_those_that_do_not_sum_to_one():
    y = np.array([[0.5, 0.5], [0.0, 0.0], [np.nan, 1.0], [0.4, 0.65]])
    assert lab.kept_rows(y) == 2


def test_survival_counts_every_format_at_every_scale():
    def textbook(dtype, x, shift=0.0):
        with np.errstate(all="ignore"):
            e = np.exp((x - shift).astype(np.float32))
            return e / e.sum(axis=1, keepdims=True)

    kept, walls = lab.survival(textbook, np.array([[1.0, 0.0], [50.0, 0.0]]), [1, 2])
    unsafe, safe = kept
    assert kept[unsafe]["float32"] == [2, 1]
    assert kept[safe]["float32"] == [2, 2]
    assert walls[unsafe]["float32"] == pytest.approx(88.7228 / 50, rel=1e-5)
    assert walls[safe]["float16"] == pytest.approx(65504 / 50)


def test_passes_marks_where_a_block_is_as_tall_as_a_head_is_wide():
    figure = figures.passes([8, 32, 64], {"a": [3e3, 2e3, 1e3]}, d=32, title="a title")
    assert any("d = 32" in text.get_text() for text in figure.axes[0].texts)
    assert any(set(np.ravel(line.get_xdata())) == {32} for line in figure.axes[0].lines)
