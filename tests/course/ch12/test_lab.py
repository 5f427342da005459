"""The schedule lab: every choice draws, what does not fit says so, and words are the simulator's."""

import pytest

pytest.importorskip("matplotlib")

from flashlib import hardware
from flashlib.course.ch12.lab import draw, schedule_lab
from flashlib.course.plots.theme import OVER, alt_text
from flashlib.models.sm import programs
from tests.course.choices import corners, draw_every_choice


def words(fig):
    return {t.get_text(): t.get_color() for t in [*fig.texts, *(t for a in fig.axes for t in a.texts)]}


def test_the_title_says_what_the_simulator_says():
    s = programs.schedule_of("specialized", d=64, tiles=24)
    title = next(t for t in words(draw(program="specialized", d=64)) if "cycles" in t)
    assert f"specialized: {s.cycles_per_tile:,.0f} cycles per tile of 128 × 128" in title
    assert "need 1,024" in title


def test_what_does_not_fit_says_the_sum_in_red():
    shown = words(draw(d=192, keys=192, stages=1))
    assert shown["This plan does not fit on an SM."] == OVER
    assert any(t.startswith("registers: warpgroup 0 needs 272 a thread") for t in shown)
    shown = words(draw(stages=4))
    assert any("asks for 294,912 B" in t for t in shown)


def test_every_choice_draws():
    lab = schedule_lab()
    assert draw_every_choice(lab) == {key: len(c.options) for key, c in lab.controls.items()}


@pytest.mark.parametrize("program", list(programs.PROGRAMS))
def test_the_corners_draw_too(program):
    lab = schedule_lab()
    for d, rows, keys, stages in corners((32, 256), (64, 192), (32, 192), (1, 4)):
        assert alt_text(lab.figure(program=program, d=d, rows=rows, keys=keys, stages=stages))


def test_it_opens_with_a_gpu_of_the_readers_own():
    pocket = hardware.get("H100").with_(name="Pocket", sms=66)
    lab = schedule_lab(gpu=pocket, keys=48)
    assert "cycles per tile" in alt_text(lab.figure())
    with pytest.raises(ValueError, match="expected one of"):
        lab.set(keys=47)
