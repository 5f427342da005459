"""Chapter 03's figures draw what they are given, and say it in their alt text."""

import numpy as np
import pytest

from flashlib import plots
from flashlib.numerics import DTYPES


def cells(figure, gid):
    return [patch for patch in figure.axes[0].patches if patch.get_gid() == gid]


def test_overflow_map_fills_each_cell_by_its_share_of_right_rows():
    counts = {"textbook": {"float32": [8, 2, 0]}, "safe": {"float32": [8, 8, 8]}}
    figure = plots.overflow_map([1, 2, 4], counts, rows=8)
    widths = np.array([patch.get_width() for patch in cells(figure, "right")])
    np.testing.assert_allclose(widths / widths.max(), [1, 0.25, 1, 1, 1])
    assert len(cells(figure, "lost")) == 2
    assert "textbook: float32 loses rows from ×2 on" in figure._alt
    assert "safe: float32 loses none" in figure._alt


@pytest.mark.parametrize(("wall", "drawn"), [(0.1, 0), (1.0, 1), (3.0, 1), (1e6, 0)])
def test_overflow_map_draws_a_wall_only_inside_the_map(wall, drawn):
    figure = plots.overflow_map([1, 2, 4], {"a": {"float16": [1, 1, 0]}}, rows=1,
                                walls={"a": {"float16": wall}})
    lines = [line for line in figure.axes[0].lines if line.get_gid() == "wall float16"]
    assert len(lines) == drawn


def test_exp_range_draws_the_limits_of_every_dtype_and_counts_what_lies_beyond():
    limits = {name: (facts.exp_underflow, facts.exp_overflow) for name, facts in DTYPES.items()}
    figure = plots.exp_range(limits, {"x": np.array([-200.0, 0.0, 90.0, 100.0])})
    (bar,) = cells(figure, "finite float16")
    assert (bar.get_x(), bar.get_x() + bar.get_width()) == pytest.approx(limits["float16"])
    assert "x: 2 beyond the upper limit of float32, 1 below the lower" in figure._alt
    assert figure.png().startswith(b"\x89PNG")
