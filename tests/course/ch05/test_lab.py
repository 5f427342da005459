"""The lab of chapter 05 shows the state of a walk as it is, at every setting."""

import io

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from PIL import Image

import flashlib as fl
from flashlib import widgets
from flashlib.course.ch05 import figures
from flashlib.course.ch05.lab import SIZES, film, picture, rescale_lab
from flashlib.course.plots.theme import alt_text


def heights(ax):
    """Return the heights of each set of bars in a panel: what is there, then what is outlined."""
    return [[bar.get_height() for bar in bars] for bars in ax.containers]


def texts(fig):
    return [t.get_text() for ax in fig.axes for t in ax.texts] + [t.get_text() for t in fig.texts]


def test_it_opens_on_the_word_that_shrinks_the_past():
    fig = picture()
    assert "the query is “needs”, after 32 of 56 keys" in alt_text(fig)
    assert "m = 3.13 → 5.56, all that was there × 0.088" in alt_text(fig)
    assert "× 0.088" in texts(fig)


def test_the_bars_are_the_weights_and_the_dashed_ones_those_before():
    sentence = fl.data.sentence()
    s, V = sentence.logits(0)[46], sentence.V[0]
    weights, side, quotient = picture(keys=32).axes
    now, before = np.exp(s[:32] - s[:32].max()), np.exp(s[:31] - s[:31].max())
    np.testing.assert_allclose(heights(weights)[0], now)
    np.testing.assert_allclose(heights(weights)[1], before)
    np.testing.assert_allclose(heights(weights)[2], now[31:])
    np.testing.assert_allclose(heights(side), [now @ V[:32], before @ V[:31]])
    O = fl.standard_attention(*sentence.head(0))[0][46]
    np.testing.assert_allclose(heights(quotient), [now @ V[:32] / now.sum(), O])


def test_the_walk_ends_at_attention_whatever_the_block():
    O = fl.standard_attention(*fl.data.sentence().head(2))[0][7]
    for size in SIZES:
        quotient = picture(head=2, query=7, size=size, keys=56).axes[2]
        np.testing.assert_allclose(heights(quotient)[0], O, atol=1e-12)


@pytest.mark.parametrize(("size", "keys", "stop"), [(8, 1, 8), (8, 8, 8), (8, 9, 16), (16, 56, 56),
                                                    (28, 29, 56), (1, 5, 5)])
def test_keys_are_read_in_whole_blocks(size, keys, stop):
    assert f"after {stop} of 56 keys" in alt_text(picture(size=size, keys=keys))


def test_the_sentence_says_what_the_block_did():
    assert "nothing to rescale yet" in alt_text(picture(keys=1))
    assert "“stack”: m stays 5.56, no rescale" in alt_text(picture(keys=33))
    assert "“hold” … “a”" in alt_text(picture(size=8, keys=20))


def test_the_axes_stay_while_the_keys_pass():
    limits = {tuple(ax.get_ylim() for ax in picture(keys=keys).axes) for keys in (1, 14, 31, 32, 56)}
    assert len(limits) == 1


@pytest.mark.slow
def test_every_control_survives_its_options():
    lab = rescale_lab()
    rows = widgets.sweep(["rescale_lab"], most=3)     # CI sweeps its notebook with all
    assert {row.control for row in rows} == set(lab.controls) == {"head", "query", "size", "keys"}


def test_a_block_size_of_the_readers_own_is_among_the_options():
    assert 7 in [value for _, value in rescale_lab(size=7).controls["size"].options]


def test_before_and_after_keeps_an_outline_of_what_shrank():
    weights = [np.array([0.5, 1.0]), np.array([0.25, 0.5]), np.array([0.25, 0.5, 1.0])]
    fig = figures.rescale_before_after(list("abc"), weights, [w.sum() * np.ones(4) for w in weights],
                                       ["first", "second", "third"], query="c", title="it shrinks")
    assert "it shrinks" in fig._suptitle.get_text()
    rows = [heights(ax) for ax in fig.axes[::2]]
    assert rows[0] == [[0.5, 1.0]]
    assert rows[1] == [[0.25, 0.5], [0.5, 1.0]]
    assert rows[2] == [[0.25, 0.5, 1.0], [1.0]]
    assert texts(fig).count("× 0.500") == 1


def test_the_film_opens_on_the_key_that_shrinks_most_and_names_those_that_shrink():
    shown = film()
    with Image.open(io.BytesIO(shown.png)) as file:
        first = np.asarray(file.convert("RGB")).astype(int)
        assert 8 <= file.n_frames <= 16
    still = picture(keys=32)
    exact = Image.open(io.BytesIO(still.png(2 * still.dpi, fast=True))).convert("RGB")
    assert np.mean(np.abs(first - np.asarray(exact)).max(axis=-1) > 40) < 2e-3
    assert shown.alt.endswith("shrink by one factor at “small”, “hold”, “few”, “one”.")
    assert len(shown.png) < 400_000
