"""The exponential lab: every choice draws, and its numbers are those of the models."""

import itertools

import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch14.figures import LONGEST
from flashlib.course.ch14.lab import GPUS, SHARES, ULTRA, cycles_of, draw, exp2_lab
from flashlib.course.plots.theme import alt_text
from flashlib.models import exponentials
from flashlib.models.sm import programs
from tests.course.choices import corners, draw_choices


def test_every_control_draws():
    lab = exp2_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


@pytest.mark.parametrize("gpu, d", itertools.product(GPUS, (64, 128)))
def test_the_corners_draw_too(gpu, d):
    for share, degree, tau, scale in corners((0.0, 1.0), (1, 7), (0.0, 8.0), (0.25, 8.0)):
        assert gpu in alt_text(draw(gpu, d, degree, share, tau, scale))


def test_it_shows_the_simulators_cycles():
    for gpu, sheet in (("B200", "B200"), ("B300", ULTRA)):
        run = programs.schedule_of("v4", gpu=sheet, d=128, emulate=0.3, rescales=0.0, tiles=32)
        assert f"{run.cycles_per_tile / 2:,.0f} cycles simulated" in alt_text(draw(gpu, scale=0.25))


def test_it_opens_on_the_best_share_and_no_bar_leaves_the_axis():
    assert cycles_of("B200", 128, 0.3, 3, 0.0) == min(cycles_of("B200", 128, y, 3, 0.0) for y in SHARES)
    most = [cycles_of(gpu, 128, 1.0, 7, 1.0) for gpu in GPUS]
    assert max(most) < LONGEST
    units = [exponentials.units(sheet, share=1.0, degree=7) for sheet in GPUS.values()]
    assert max(map(max, units)) < LONGEST


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
