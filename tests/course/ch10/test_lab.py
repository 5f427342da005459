"""The tile walk lab: every choice draws, and the walk is the kernel's and visits what is seen."""

import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch10 import lab
from flashlib.course.ch10 import solutions as right
from flashlib.course.ch10.figures import walk_of
from flashlib.course.plots.theme import alt_text
from flashlib.masks import mask_of, tiles
from tests.course.choices import draw_choices

CASES = list(itertools.product(lab.MASKS, lab.SHAPES, (32, 64, 128), (32, 64, 128)))


def test_every_control_draws():
    box = lab.tile_walk_lab()
    assert set(draw_choices(box)) == set(box.controls)


@pytest.mark.parametrize("mask", lab.MASKS)
def test_a_walk_visits_each_key_that_is_seen_once_and_masks_each_tile_that_is_cut(mask):
    for name, shape, BM, BN in (case for case in CASES if case[0] == mask):
        seen = mask_of(lab.MASKS[name][0], *shape, lab.MASKS[name][1])
        for n, rows in enumerate(tiles(shape[0], BM)):
            walk, _ = walk_of(seen, shape, BM, BN, n)
            assert len({start for start, _ in walk}) == len(walk)
            first, stop = seen.keys_of(rows)
            for start in range(0, shape[1], BN):
                inside = np.clip(np.minimum(stop, start + BN) - np.maximum(first, start), 0, None)
                masked = dict(walk).get(start)
                assert (masked is None) <= (inside.sum() == 0)
                assert masked is not False or (inside == BN).all()


def test_the_causal_bounds_are_those_of_the_exercise():
    for _, shape, BM, BN in (case for case in CASES if case[0] == "causal"):
        seen = mask_of(True, *shape)
        for n in range(len(tiles(shape[0], BM))):
            _, (_, _, cut, end) = walk_of(seen, shape, BM, BN, n)
            assert (cut, end) == right.stages(n, BM, BN, *shape)


def test_it_opens_on_a_window_that_leaves_no_tile_whole():
    words = alt_text(lab.draw())
    assert "4 behind a mask, 0 whole" in words and "2.00 logits computed" in words
    assert "program 0 of 4: rows 384 … 511" in words           # the longest rows first
    assert "begin 256, whole 384, cut 384, end 512" in words
    assert "511; cut 384, end 512" in alt_text(lab.draw(mask="causal"))
    assert "program 0 of 4: rows 0 … 127" in alt_text(lab.draw(mask="none"))


def test_no_choice_leaves_the_fixed_axis():
    for name, shape, BM, BN in CASES:
        assert float(alt_text(lab.draw(name, shape, BM, BN)).rsplit("; ", 1)[1].split()[0]) <= 2.5
