"""The labs of chapter 12: every choice draws, and words are the simulator's or the interpreter's."""

import pytest

pytest.importorskip("matplotlib")

from flashlib import hardware
from flashlib.course.ch12 import edited_kernels
from flashlib.course.ch12.lab import LINES, draw, draw_run, hazard_lab, ran, schedule_lab
from flashlib.course.ch12.solutions import place
from flashlib.course.plots.theme import OVER, alt_text
from flashlib.models.sm import programs
from tests.course.choices import corners, draw_choices


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


def test_every_control_draws():
    lab = schedule_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


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


def sizes_of(fig):
    (axis,) = fig.axes
    return (*fig.get_size_inches(), *axis.get_xlim(), *axis.get_position().bounds)


class TestHazards:
    """The second lab runs the teaching kernel in the interpreter."""

    pytest.importorskip("triton.experimental.gluon")

    @pytest.mark.parametrize("left_out", edited_kernels.LEFT_OUT)
    @pytest.mark.parametrize("slots, order", [(2, "late"), (2, "early"), (4, 1), (6, 2)])
    def test_every_line_is_missed_and_nothing_else(self, left_out, slots, order):
        shown = words(draw_run(left_out, slots, order, keys=32))
        red = [text for text, color in shown.items() if color == OVER and text]
        assert bool(red) == (left_out != "nothing") and len(red) <= LINES
        assert any("at most 2e-04" in text for text in shown) == (left_out == "nothing")

    def test_too_short_a_run_misses_what_a_lap_would_show(self):
        for left_out in ("the wait for a free slot", "giving slots back"):
            assert not any(c == OVER and t for t, c in words(draw_run(left_out, 4, keys=64)).items())
            assert any(c == OVER and t for t, c in words(draw_run(left_out, 2, keys=64)).items())

    def test_one_slot_cannot_hold_the_next_k_and_the_last_v(self):
        assert any("no task can go on" in text for text in words(draw_run("nothing", 1, keys=32)))
        assert not any("no task" in text for text in words(draw_run("nothing", 2, keys=32)))

    def test_copies_and_products_are_called_after_their_tiles(self):
        shown = words(draw_run("nothing", 4, keys=32))
        assert {"K 0", "K 3", "V 0", "V 3"} <= set(shown) and not any("slot" in text for text in shown)

    def test_exercise_two_says_where_the_kernel_finds_v(self):
        events, _ = ran("nothing", 4, "late", 16)
        products = [e.what for e in events if e.kind == "product" and e.task == "consumer 0"]
        expected = [f"tiles slot {place(j, 4)[0]}" for j in range(7)]
        assert products[2::2][:7] == expected                   # K₀ first, then K and V by turns

    def test_the_axis_stays_where_it_is(self):
        lab = hazard_lab()
        assert len({sizes_of(lab.figure(left_out=left_out, slots=slots))
                    for left_out in edited_kernels.LEFT_OUT for slots in (1, 2, 6)}) == 1
        still, alone = (lab.figure(left_out="nothing"), draw_run("nothing"))
        assert alone.get_size_inches()[1] < still.get_size_inches()[1]      # without room for nothing

    def test_every_control_draws(self):
        lab = hazard_lab()
        assert set(draw_choices(lab)) == set(lab.controls)


def test_a_piece_that_does_not_stand_there_is_refused():
    with pytest.raises(ValueError, match=r"old: .*stands once.*got 'mbarrier.waits'.* 0 times"):
        edited_kernels.edited("mbarrier.waits")
    with pytest.raises(ValueError, match=r"old: .*'mbarrier', which stands there"):
        edited_kernels.edited("mbarrier")
    with pytest.raises(ValueError, match="slots: expected an integer from 1 to 16, got 0"):
        edited_kernels.edited(slots=0)
