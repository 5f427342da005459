"""The lab of chapter 15: every choice draws, and what it says is what the model says."""

import pytest

pytest.importorskip("matplotlib")

from flashlib import hardware
from flashlib.course.ch15 import lab, plan
from flashlib.course.plots.theme import OVER, alt_text
from tests.course.choices import chosen, corners, draw_choices, drawn


def test_every_choice_draws():
    made = lab.decode_lab()
    assert draw_choices(made) == {key: len(chosen(c)) for key, c in made.controls.items()}


@pytest.mark.parametrize(("B", "N_k", "parts", "gpu"), corners((1, 64), (1024, 131072), (1, 512),
                                                               ("T4", "B200")))
def test_the_corners_draw(B, N_k, parts, gpu):
    said = alt_text(drawn(lab.draw(B=B, N_k=N_k, H_k=32, parts=parts, gpu=gpu)))
    assert "programs on" in said and "µs" in said


def test_programs_too_thin_to_be_told_apart_are_one_box():
    fig = lab.draw(B=64, N_k=131072, H_k=32, parts=512, gpu="T4")
    assert "26,214 programs an SM" in [t.get_text() for t in fig.axes[0].texts]
    assert len(fig.axes[0].artists) < 9


def test_the_words_are_those_of_the_model():
    said = alt_text(lab.draw())
    case, rates = plan.Case(1, 65536), lab.rates_on("H200")
    assert "32 parts: 256 programs on 132 SMs: 124 have 2, 8 have 1" in said
    assert f"{1e6 * rates.seconds(case, 32):.1f} µs for" in said
    assert "pages of 64 leave at most" in said


def test_one_part_of_a_long_cache_is_late_and_says_so_in_red():
    fig = lab.draw(parts=1)
    assert fig._suptitle.get_color() == OVER and lab.draw()._suptitle.get_color() != OVER


def test_rates_follow_the_datasheets():
    here, there = lab.rates_on("H200"), lab.rates_on("T4")
    ratio = float(hardware.get("T4").hbm_bytes_per_s) / float(hardware.get("H200").hbm_bytes_per_s)
    assert there.bytes_per_s == pytest.approx(here.bytes_per_s * ratio) and ratio < 0.1
    assert there.start_s == here.start_s


def test_a_short_cache_is_cut_into_no_more_parts_than_it_has_tiles():
    assert "16 parts: 128 programs" in alt_text(lab.draw(N_k=1024, parts=512))
