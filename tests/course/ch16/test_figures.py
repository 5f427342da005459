"""The figures of chapter 16 show what they are given."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch16 import figures, ring_figures
from flashlib.course.plots.theme import OVER, alt_text

BARS = [(0, 0.0, 2.0, 0, "work"), (1, 0.0, 1.0, 1, "work"), (0, 0.0, 0.5, 0, "link"),
        (1, 2.0, 4.0, 0, "work")]


def texts(fig):
    return [t.get_text() for t in [*fig.texts, *(t for ax in fig.axes for t in ax.texts)]]


def titles(fig):
    return [ax.get_title(loc="left") for ax in fig.axes]


def test_a_timeline_says_who_is_busy_and_whose_keys_they_are():
    fig = figures.timelines({"a": BARS, "b": BARS[:3]}, ["what"])
    assert titles(fig) == ["a", "b"] and fig.axes[0].get_xlim() == fig.axes[1].get_xlim()
    assert {"what", "50 %", "75 %", "100 %", "0", "1"} <= set(texts(fig))
    assert "a: busy GPU 0 50 %, GPU 1 75 %; b: busy GPU 0 100 %, GPU 1 50 %." in alt_text(fig)


def test_a_wrong_timeline_begins_in_red():
    first = figures.timelines({"a": BARS}, ["what", "more"], wrong=True).texts
    assert first[0].get_color() == OVER != first[1].get_color()


def test_long_times_are_in_seconds():
    slow = [(gpu, 1e5 * a, 1e5 * b, source, kind) for gpu, a, b, source, kind in BARS]
    assert figures.timelines({"a": slow}).axes[0].get_xlabel().startswith("s, simulated")
    assert figures.timelines({"a": BARS}).axes[0].get_xlabel().startswith("ms, simulated")


def test_words_are_drawn_for_every_step():
    fig = ring_figures.words([["a", "b"], ["c", "d"]], [[0, 1], [1, 0]])
    assert [texts(fig).count(word) for word in "abcd"] == [3] * 4
    assert "keys, step 1, GPU 0: c d" in alt_text(fig)


@pytest.mark.parametrize("P", [2, 4])
def test_a_ring_s_blocks_are_numbered_by_their_step(P):
    for step in range(P):
        shown = texts(ring_figures.ring_step(P, step))
        assert [shown.count(str(n)) for n in range(P)] == [P * (n <= step) for n in range(P)]
        assert {f"K, V of {(gpu - step) % P}" for gpu in range(P)} <= set(shown)


def test_the_film_is_small_and_says_what_happens():
    film = ring_figures.film()
    assert len(film.png) < 100_000 and "all 16 blocks" in film.alt


def test_triangles_count_the_cells_of_each():
    fig = ring_figures.triangles({"one piece": np.repeat([0, 1], 4), "cards": np.arange(8) % 2})
    assert {"10", "26", "16", "20"} <= set(texts(fig))
    assert "one piece: GPU 0 10, GPU 1 26; cards: GPU 0 16, GPU 1 20." in alt_text(fig)


def test_neighbors_in_a_large_ring_have_hues_of_their_own():
    assert len({ring_figures.hue(gpu, 16) for gpu in range(16)}) == 16


def test_crossings_are_marked_where_they_lie_in_the_picture():
    tokens = [256, 1024, 4096]
    fig = figures.hides(tokens, [1e-6, 1.6e-5, 2.56e-4], {"fast": [4e-6, 1.6e-5, 6.4e-5],
                        "slow": [1e-2, 4e-2, 16e-2]}, {"fast": 1024.0, "slow": 2.6e6})
    assert "1,024" in texts(fig) and "2,600,000" not in texts(fig)
    assert "fast from 1,024 tokens; slow from 2,600,000 tokens" in alt_text(fig)


def test_a_curve_says_its_efficiency_and_that_nothing_is_measured():
    fig = figures.scale({"a": {8: 0.99, 16: 0.5}, "b": {8: 0.9, 16: 0.25}}, "some tokens")
    assert "simulated, not measured" in texts(fig)
    assert "a: 8 GPUs 99 %, 16 GPUs 50 %; b: 8 GPUs 90 %, 16 GPUs 25 %." in alt_text(fig)


def test_what_is_measured_stands_in_a_panel_for_each_pass():
    curves = {"ring": {1024: 0.9, 2048: 1.1}, "simulated": {1024: 0.95, 2048: 0.97}}
    fig = figures.measured({"forward": curves, "backward": curves}, "two GPUs")
    assert titles(fig) == ["forward", "backward"]
    assert "forward: ring: 1,024 tokens 90 %, 2,048 tokens 110 %; simulated: 1,024" in alt_text(fig)
