"""The lab and the figures of chapter 17: every choice draws, and the words are the model's."""

import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch17 import figures, lab, race
from flashlib.course.plots.theme import OVER, alt_text
from tests.course.choices import chosen, corners, draw_choices, drawn


def texts(fig):
    return [t.get_text() for ax in fig.axes for t in ax.texts]


def test_every_choice_draws():
    made = lab.model_lab()
    assert draw_choices(made) == {key: len(chosen(c)) for key, c in made.controls.items()}


@pytest.mark.parametrize(("model", "N", "after", "gpu"), corners(
    (lab.FIRST, list(lab.MODELS)[-1]), (1024, 131072), (100, 600), ("A100", "B200")))
def test_the_corners_draw(model, N, after, gpu):
    assert "tokens/s" in alt_text(drawn(lab.draw(model=model, N=N, after=after, gpu=gpu)))


def test_the_words_are_amdahl_s():
    rate = lab.REACHED * 989.4e12
    part = race.share(4096, 768, rate / 200e12)
    assert f"attention is {part:.0%} of a layer" in alt_text(lab.draw())
    assert f"{race.speedup(part, 2):.2f}× as fast" in alt_text(lab.draw())


def test_the_race_marks_what_is_lost_and_says_what_leaves_the_axis():
    groups = {"a": [race.Lead("x", 1.1, 1.0, 1.2, "fa3"), race.Lead("y", 0.9, 0.8, 0.95, "fa4")],
              "b": [race.Lead("z", 6.05, 5, 7, "fa3")]}
    fig = drawn(figures.race(groups, "here"))
    assert "a: ahead in 1 of 2, least 0.90 at y" in alt_text(fig)
    assert "6.0 →" in texts(fig) or "6.1 →" in texts(fig)
    colors = [line.get_color() for line in fig.axes[0].lines]
    assert colors.count(OVER) == 2


def test_losses_and_lengths_say_their_ends():
    fig = drawn(figures.losses({"ours": [4.0, 2.0], "sdpa": [4.0, 2.5]}, 4.63))
    assert "ours from 4.000 to 2.000; sdpa from 4.000 to 2.500" in alt_text(fig)
    fig = drawn(figures.over_length({"ours": {128: 0.1, 256: 0.5}}, "seconds", source="here",
                                    predicted={"ours": {128: 0.2}}))
    assert "ours: 0.1 at 128, 0.5 at 256" in alt_text(fig)
