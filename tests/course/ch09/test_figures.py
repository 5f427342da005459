"""Chapter 09's pictures show the programs, lanes and rates that they were given."""

from dataclasses import dataclass

import numpy as np
import pytest

from flashlib.course.ch09 import figures
from flashlib.course.plots import theme


@dataclass
class Touch:
    """What a witness would have noted."""

    program: tuple
    lanes: np.ndarray
    mask: np.ndarray
    outside: np.ndarray


def touches(n, block, masked):
    lanes = [np.arange(k, k + block) for k in range(0, n, block)]
    return [Touch((p, 0, 0), at, (at < n) | (not masked), (at >= n) & (not masked))
            for p, at in enumerate(lanes)]


def arrows(fig):
    return [t for t in fig.axes[0].texts if getattr(t, "arrow_patch", None) is not None]


def test_an_arrow_for_each_lane_that_takes_part():
    assert len(arrows(figures.lanes(touches(10, 4, True), 10))) == 10
    fig = figures.lanes(touches(10, 4, False), 10)
    assert len(arrows(fig)) == 12
    assert "2 lanes read outside" in theme.alt_text(fig)


def test_poison_is_drawn_where_lanes_point_beyond_the_end():
    fig = figures.lanes(touches(10, 4, False), 10)
    assert [t.get_text() for t in fig.axes[0].texts].count("NaN") == 2


def test_every_element_carries_its_program():
    at = [np.arange(r * 6, r * 6 + 5) for r in range(3)]
    whole = [Touch((r, 0, 0), a, a >= 0, a < 0) for r, a in enumerate(at)]
    fig = figures.program_grid((3, 5), whole, row_stride=6)
    texts = [t.get_text() for t in fig.axes[0].texts]
    assert [texts.count(p) for p in "012"] == [5, 5, 5]
    assert "0 elements outside" in theme.alt_text(fig)
    pairs = [Touch((r % 2, r, 0), a, a >= 0, a < 0) for r, a in enumerate(at)]
    texts = [t.get_text() for t in figures.program_grid((3, 5), pairs, row_stride=6).axes[0].texts]
    assert [texts.count(p) for p in ("0,0", "1,1", "0,2")] == [5, 5, 5]
    astray = [*whole, Touch((2, 0, 0), np.array([5]), np.array([True]), np.array([True]))]
    assert "1 elements outside" in theme.alt_text(figures.program_grid((3, 5), astray, row_stride=6))


def test_rates_are_shares_of_the_copy_and_predictions_dashed():
    series = {"fused": ([256, 512], [9e11, 8e11]), "3pass": ([256, 512], [5e11, 4e11])}
    fig = figures.softmax_rates({"float16": series}, 1e12, {"3pass": 0.5})
    lines = {tuple(np.round(line.get_ydata(), 3)): line for line in fig.axes[0].lines}
    assert (0.9, 0.8) in lines and (0.5, 0.4) in lines
    assert lines[0.5, 0.5].get_linestyle() == "--"
    assert "float16 at 512: fused, one pass 0.80, three passes 0.40" in theme.alt_text(fig)


def test_without_a_prediction_no_line_is_dashed_and_every_curve_is_named_at_its_end():
    series = {"fused": ([256, 512], [9e11, 8e11]), "3pass": ([256, 512], [5e11, 4e11])}
    bare = figures.softmax_rates({"float16": series}, 1e12)
    assert {line.get_linestyle() for line in bare.axes[0].lines} == {"-"}
    ends = {t.get_text(): t.xy for t in bare.axes[0].texts}
    assert ends == {"fused, one pass": (512, 0.8), "three passes": (512, 0.4),
                    "a copy, 1.00 TB/s": (512, 1)}
    assert not bare.get_suptitle()
    assert "predicted" not in theme.alt_text(bare)
    full = figures.softmax_rates({"float16": series}, 1e12, {"3pass": 0.5})
    assert "the passes (dashed) predict the rate" in full.get_suptitle()
    assert "dashed, predicted: three passes 0.50" in theme.alt_text(full)


def test_a_kernel_that_is_asked_for_is_named_and_not_drawn():
    fig = figures.softmax_rates({"float16": {"fused": ([256], [9e11])}}, 1e12, asked=("3pass",))
    [ax] = fig.axes
    assert [t.get_text() for t in ax.texts] == ["fused, one pass", "three passes: ?",
                                                "a copy, 1.00 TB/s"]
    assert len(ax.lines) == 2                                # the copy and the fused kernel


def test_every_length_of_the_rates_has_a_tick():
    lengths = [2**k for k in range(8, 21)]
    [ax] = figures.softmax_rates({"float32": {"fused": (lengths, [9e11] * 13)}}, 1e12).axes
    assert set(ax.get_xticks()) | set(ax.get_xticks(minor=True)) == set(lengths)
    assert 2**15 in ax.get_xticks()
    assert all(t.tick1line.get_markersize() for t in ax.xaxis.get_minor_ticks())


def test_a_language_shows_the_lines_that_match_and_one_without_is_refused():
    texts = {"PTX": ("a thread", "ld.global.v4.b32 %r1; \nadd.s32 %r2;", "ld"),
             "SASS": ("the chip", "LDG.E.128 R8, [R2.64] ;", "LDG")}
    fig = figures.languages(texts)
    shown = [t.get_text() for t in fig.axes[0].texts]
    assert "ld.global.v4.b32 %r1;" in shown and "add.s32 %r2;" not in shown
    assert "SASS, the chip: LDG.E.128" in theme.alt_text(fig)
    with pytest.raises(ValueError, match="expected a line of PTX"):
        figures.languages({"PTX": ("a thread", "add.s32 %r2;", "ld")})


def test_the_register_file_holds_each_program_and_never_overflows():
    rows = [{"name": "short", "warps": 2, "registers": 43, "programs": 20},
            {"name": "long", "warps": 32, "registers": 64, "programs": 1}]
    fig = figures.register_file(rows)
    assert "20 programs share an SM, or one has it alone" in theme.alt_text(fig)
    boxes = [p for p in fig.axes[0].patches if p.get_y() == pytest.approx(-0.36)]
    assert len(boxes) == 21 and boxes[0].get_width() == 2 * 6 * 256          # and what is left over
    assert max(p.get_x() + p.get_width() for p in fig.axes[0].patches) == 65_536
