"""The occupancy lab: every choice draws, and what it says is what the model says."""

import itertools

import pytest

pytest.importorskip("matplotlib")

from flashlib import hardware
from flashlib.course.ch08.lab import BLOCKS, draw, occupancy_lab
from flashlib.course.plots.theme import OVER, alt_text
from flashlib.models import occupancy as oc
from tests.course.choices import draw_choices


def words(fig):
    return {t.get_text(): t.get_color() for ax in fig.axes for t in ax.texts}


def test_v2_fills_the_gpu_with_the_papers_long_sequence():
    shown = words(draw(kernel="v2 forward"))
    assert {"2,048 programs on 108 SMs", "19 waves", "4 SMs idle in the last wave"} <= set(shown)
    assert "99.8 % of the SMs' time is work" in shown


def test_it_opens_with_v1_which_leaves_most_of_the_gpu_idle_and_says_so_in_red():
    shown = words(draw())
    assert shown["92 SMs idle in the last wave"] == OVER
    assert shown["15 % of the SMs' time is work"] == OVER
    assert "1 wave" in shown


def test_the_rows_of_a_program_show_in_v1_too():
    for causal in (False, True):
        assert len({alt_text(draw(block=block, causal=causal)) for block in BLOCKS}) == len(BLOCKS)
    assert "v2, by 128 rows: 2,048 programs" in words(draw())


@pytest.mark.parametrize("kernel", ["v2 forward", "v2 backward"])
def test_a_causal_head_alone_saves_no_time(kernel):
    shown = words(draw(heads=1, N=4096, kernel=kernel, causal=True))
    assert "1.00 of the time without a mask, longest first" in shown


def test_causal_times_are_those_of_the_schedule():
    for heads, N in itertools.product((1, 12, 64), (1024, 8192)):
        s = oc.schedule_of(oc.causal_lengths(N, 128), heads, 132)
        dense = oc.waves(heads * N // 128, 132).waves * (N // 128)
        shown = words(draw(heads=heads, N=N, gpu="H100", kernel="v2 forward", causal=True))
        assert f"{s.time / dense:.2f} of the time without a mask, longest first" in shown


def test_every_control_draws():
    lab = occupancy_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


@pytest.mark.parametrize("corner", [
    {"batch": 1, "heads": 1, "N": 512, "block": 256}, {"batch": 64, "heads": 64, "N": 65536,
                                                       "block": 16}])
def test_the_corners_draw_too(corner):
    lab = occupancy_lab()
    for kernel, causal, gpu in itertools.product(("v1 forward", "v2 forward", "v2 backward"),
                                                 (False, True), ("T4", "B200")):
        assert alt_text(lab.figure(**corner, kernel=kernel, causal=causal, gpu=gpu))


def test_it_opens_with_a_gpu_and_sizes_of_the_readers_own():
    pocket = hardware.get("T4").with_(name="Pocket", sms=7)
    lab = occupancy_lab(gpu=pocket, N=1000, block=48, heads=5, batch=7)
    assert "on 7 SMs" in alt_text(lab.figure())
    with pytest.raises(ValueError, match="expected one of"):
        lab.set(N=999)
