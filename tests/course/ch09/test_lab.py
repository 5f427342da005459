"""The pointer lab: every choice draws, and its sectors are those of the addresses."""

import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import flashlib as fl
from flashlib.course.ch09 import lab
from flashlib.course.ch09.figures import touched
from flashlib.course.plots.theme import alt_text
from tests.course.choices import draw_choices


def test_every_control_draws():
    box = lab.pointer_lab()
    assert set(draw_choices(box)) == set(box.controls)


@pytest.mark.parametrize("layout", lab.LAYOUTS)
def test_all_programs_together_touch_every_element_once(layout):
    strides = lab.LAYOUTS[layout]
    wanted = sorted(r * strides[0] + c * strides[1] for r, c in np.ndindex(*lab.SHAPE))
    for block in lab.BLOCKS:
        count = -(-lab.SHAPE[0] // block[0]) * -(-lab.SHAPE[1] // block[1])
        parts = [touched(lab.SHAPE, strides, block, p, True) for p in range(count)]
        assert sorted(np.concatenate([at[on] for _, _, at, _, on in parts])) == wanted


def test_it_opens_on_a_row_that_needs_a_sector_for_each_element():
    assert "12 sectors cross for 12 elements; packed, they would fill 2" in alt_text(lab.draw())
    assert "2 sectors cross for 12 elements" in alt_text(lab.draw("row by row"))
    assert "2 sectors cross for 10 elements" in alt_text(lab.draw(block=(16, 1)))


def test_without_a_mask_lanes_leave_the_matrix_and_stay_on_the_axis():
    assert "4 read outside" in alt_text(lab.draw(masked=False))
    assert "16 lanes, 0 of them masked" in alt_text(lab.draw(block=(2, 8)))
    assert "16 lanes, no mask" in alt_text(lab.draw(block=(2, 8), masked=False))
    for layout, block, program in itertools.product(lab.LAYOUTS, lab.BLOCKS, range(12)):
        count = -(-lab.SHAPE[0] // block[0]) * -(-lab.SHAPE[1] // block[1])
        _, _, at, _, _ = touched(lab.SHAPE, lab.LAYOUTS[layout], block, min(program, count - 1), False)
        assert at.max() < 32 * 8


def test_rates_are_the_recorded_ones_and_a_fused_row_ends_where_the_library_ends_it():
    found = lab.rates(fl.data.measurements("softmax_h200"))
    assert list(found) == ["float16", "float32"]
    assert max(found["float32"]["fused"][0]) == 2**15 and max(found["float32"]["online"][0]) == 2**20
    assert dict(zip(*found["float16"]["fused"], strict=True))[256] == 4.17655e12
