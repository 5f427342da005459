"""The exponential lab: every choice draws, and its numbers are those of the models."""

import itertools

import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch14.lab import GPUS, SHARES, draw, exp2_lab
from flashlib.course.plots.theme import alt_text
from flashlib.models.sm import programs
from tests.course.choices import corners, draw_every_choice


def test_every_choice_draws():
    lab = exp2_lab()
    assert draw_every_choice(lab) == {key: len(c.options) for key, c in lab.controls.items()}


@pytest.mark.parametrize("gpu, d", itertools.product(GPUS, (64, 128)))
def test_the_corners_draw_too(gpu, d):
    for share, degree, tau, scale in corners((0.0, 1.0), (1, 7), (0.0, 8.0), (0.25, 8.0)):
        assert gpu in alt_text(draw(gpu, d, degree, share, tau, scale))


def test_it_shows_the_simulators_cycles():
    for share in (0.0, 0.25):
        run = programs.schedule_of("v4", gpu="B200", d=128, emulate=share, rescales=0.0, tiles=16)
        assert f"{run.cycles_per_tile / 2:,.0f} cycles simulated" in alt_text(
            draw(share=share, tau=8.0, scale=0.25))
    assert "not simulated" in alt_text(draw(gpu="A100")) and 0.25 in SHARES


def test_room_in_e4m3_ends_between_0_8_and_1():
    for tau, room in ((0.8, "has room"), (1.0, "has no room")):
        assert f"e4m3 {room}" in alt_text(draw(tau=tau))
    assert " 0 rescales" in alt_text(draw(tau=8.0, scale=0.25))
    assert " 0 rescales" not in alt_text(draw(tau=0.0))


def test_wrong_choices_are_named():
    lab = exp2_lab()
    for wrong in ({"gpu": "abacus"}, {"d": 100}, {"degree": 9}, {"share": 0.33}, {"tau": 5.0}):
        with pytest.raises(ValueError, match="expected one of"):
            lab.set(**wrong)
