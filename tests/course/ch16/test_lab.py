"""The lab of chapter 16: every choice draws, and what it says is what the model says."""

import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch16 import lab, plan
from flashlib.course.plots.theme import OVER, alt_text
from flashlib.models import ring
from tests.course.choices import chosen, corners, draw_choices, drawn


def test_every_choice_draws():
    made = lab.ring_lab()
    assert draw_choices(made) == {key: len(chosen(c)) for key, c in made.controls.items()}


@pytest.mark.parametrize(("P", "N", "link", "layout", "group", "sends"), corners(
    (2, 16), (16384, 4194304), ("NVLink", "100 Gb/s network"), ("contiguous", "stripe"), (1, 16),
    tuple(lab.HIDDEN)))
def test_the_corners_draw(P, N, link, layout, group, sends):
    said = alt_text(drawn(lab.draw(P, N, link, layout, group, sends)))
    assert f"on {P} GPUs" in said and "each GPU sends" in said


def test_the_words_are_those_of_the_closed_forms():
    said, s = alt_text(lab.draw()), ring.Sharing(4, 65536)
    assert f"{1e3 * ring.seconds(s, plan.rates()):.3g} ms on 4 GPUs" in said
    assert "hidden from 912 tokens a GPU, here 16,384" in said and "sends 201 MB" in said


def test_waiting_turns_the_first_line_red():
    assert lab.draw(layout="contiguous").texts[0].get_color() == OVER != lab.draw().texts[0].get_color()


def test_what_the_page_says_happens_does():
    def share(**choices):
        return float(alt_text(lab.draw(**choices)).split(" GPUs, ")[1].split("%")[0])

    many = {"P": 16, "N": 65536}
    assert share(**many) == 75 and all(
        share(**many, link=link, layout=layout) <= 75 for link in plan.LINKS for layout in lab.LAYOUTS)
    assert [share(P=16, N=2**n, link="100 Gb/s network") for n in (18, 19)] == [61, 97]
    before = "before they work"
    assert share() - share(sends=before) == 4
    assert share(link="400 Gb/s network") - share(link="400 Gb/s network", sends=before) == 22
