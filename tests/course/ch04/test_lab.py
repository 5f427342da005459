"""The step slider of chapter 04 shows what online softmax does, at every setting, and quickly."""


import io

import numpy as np
import pytest
from PIL import Image

import flashlib as fl
from flashlib.course.ch04.figures import (
    error_growth,
    maxima_by_distance,
    merge_orders,
    running_state,
)
from flashlib.course.ch04.lab import (
    ORDERS,
    as_a_tree,
    error,
    film,
    in_blocks,
    picture,
    softmax_steps,
    walk,
)
from flashlib.course.ch04.lab import softmax_steps as front


def alt(fig):
    return fig._alt


def test_the_front_door_leads_here():
    assert front is softmax_steps


@pytest.mark.parametrize("seed", range(5))
def test_walk_ends_where_safe_softmax_does(seed):
    x = 5 * np.random.default_rng(seed).standard_normal(40)
    m, l, factor = walk(x)
    np.testing.assert_array_equal(m, np.maximum.accumulate(x))
    for i in range(40):
        np.testing.assert_allclose(l[i], np.exp(x[:i + 1] - m[i]).sum(), rtol=1e-13)
    assert factor[0] == 0
    np.testing.assert_allclose(factor[1:], np.exp(m[:-1] - m[1:]))
    np.testing.assert_allclose(np.exp(x - m[-1]) / l[-1], fl.safe_softmax(x), rtol=1e-13)


def test_the_orders_hold_the_same_row_and_rescale_as_often_as_they_must():
    n = len(fl.data.sentence().tokens)
    said = {order: alt(picture(order, step=n)) for order in ORDERS}
    assert said["sorted down"].endswith("Rescales: none.")
    assert f"{n - 1} rescales, by less than 0.8: “,”, factor 0.72; “,”, fac" in said["sorted up"]
    assert said["sorted up"].count("factor") == 10                # many rescale, so the small stay out
    assert said["as written"].count("factor") == 4
    assert "“one”, factor 0.088" in said["as written"]


def test_later_logits_are_not_marked_before_they_are_read():
    assert alt(picture("as written", step=1)).endswith("Rescales: none.")
    assert "31 of them read" in alt(picture("as written", step=31))
    assert "“one”" not in alt(picture("as written", step=31))
    assert "“one”" in alt(picture("as written", step=32))


@pytest.mark.parametrize("step", [1, 2, 13, 32, 56])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_draws(order, step):
    assert picture(order, step=step).png()[:4] == b"\x89PNG"


def test_an_unknown_order_is_refused_by_name():
    with pytest.raises(ValueError, match="order: expected one of as written"):
        picture("backwards")


def test_the_sentence_says_what_the_step_did():
    texts = {step: [t.get_text() for t in picture("as written", step=step).texts]
             for step in (1, 13, 14)}
    assert any("first maximum" in t for t in texts[1])
    assert any("rescale; ℓ" in t and "no rescale" not in t for t in texts[13])
    assert any("no rescale" in t for t in texts[14])


def test_controls_offer_every_row_and_every_step():
    lab = softmax_steps()
    tokens, heads = fl.data.sentence().tokens, fl.data.sentence().heads
    count = {name: len(control.options) for name, control in lab.controls.items()}
    assert count == {"order": len(ORDERS), "head": len(heads), "query": len(tokens),
                     "step": len(tokens)}
    assert lab.figure(step=5) is not None


@pytest.mark.slow
def test_every_control_survives_its_options():
    softmax_steps()
    rows = fl.widgets.sweep(["softmax_steps"], most=3)     # CI sweeps its notebook with all
    assert {row.control for row in rows} == {"order", "head", "query", "step"}


def test_the_film_has_a_frame_for_every_logit_until_the_last_rescale():
    x = np.array([0.0, -1.0, 2.0, 1.0, 3.0, *np.linspace(-1, 1, 9)])
    shown = film(x, [f"w{i}" for i in range(len(x))], "w2")
    with Image.open(io.BytesIO(shown.png)) as file:
        assert file.n_frames == 1 + 5 + 2                     # the still; 5 logits; 10 and 14
        durations = []
        for number in range(file.n_frames):
            file.seek(number)
            durations.append(file.info["duration"])
    assert durations[1:6] == [400, 400, 2400, 400, 2400]
    assert "rises 2 times, at “w2”, “w4”" in shown.alt and f"ends at {walk(x)[1][-1]:.2f}" in shown.alt


def test_the_sum_of_a_step_and_its_axis_stay_where_they_are():
    """A reader moves the slider: the axes must not move with it."""
    limits = {tuple(ax.get_ylim() for ax in picture("as written", step=step).axes)
              for step in (1, 20, 56)}
    assert len(limits) == 1


@pytest.mark.parametrize("size", [1, 8, 64])
def test_every_way_to_add_gives_the_same_sum(size):
    x = 3 * np.random.default_rng(0).standard_normal((5, 64))
    exact = np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)
    np.testing.assert_allclose(in_blocks(x, size), exact, rtol=1e-13)
    np.testing.assert_allclose(as_a_tree(x), exact, rtol=1e-13)


def test_one_logit_at_a_time_is_online_softmax():
    x = np.random.default_rng(1).standard_normal((3, 32))
    np.testing.assert_array_equal(in_blocks(x, 1), [walk(row)[1][-1] for row in x])


def test_an_error_is_counted_in_roundings():
    x = np.zeros((2, 4))
    assert error(np.array([4.0, 4.0]), x) == 0
    assert error(np.array([4 * (1 + 2**-24), 4 * (1 - 2**-24)]), x) == pytest.approx(1)


def test_running_state_refuses_what_does_not_fit():
    x = np.array([1.0, 2.0])
    m, l, factor = walk(x)
    with pytest.raises(ValueError, match="expected 2 entries each"):
        running_state(x, m, l, factor, words=["one"])
    with pytest.raises(ValueError, match="at: expected a number of logits from 0 to 2"):
        running_state(x, m, l, factor, words=["a", "b"], at=3)


def test_curves_that_end_together_share_a_label():
    fig = error_growth([4, 16], {"a": [1, 60.0], "b": [1, 61.0], "c": [1, 8.0]}, [1, 4, 16],
                       np.array([9, 2, 9]), [9, 2, 9])
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts == ["a ≈\nb", "c"]
    assert "a 60.0, b 61.0, c 8.0" in alt(fig)


def test_maxima_by_distance_draws_a_bar_for_every_distance():
    fig = maxima_by_distance([3.0, -1.0, 2.0], [0.75, 0.0, 0.5])
    for ax, heights in zip(fig.axes, ([3, -1, 2], [0.75, 0, 0.5]), strict=True):
        (bars,) = ax.collections
        corners = [path.vertices for path in bars.get_paths()]
        assert [c[2][1] for c in corners] == heights
        assert [round(c[:4, 0].mean(), 9) for c in corners] == [-1, -2, -3]
    assert "one half at -1: 0.75, -3: 0.50" in alt(fig)


def test_merge_orders_writes_every_state_once():
    def value(order):
        if not isinstance(order, tuple):
            return float(order), 1.0
        (a, la), (b, lb) = map(value, order)
        return max(a, b), la * np.exp(a - max(a, b)) + lb * np.exp(b - max(a, b))

    fig = merge_orders({"tree": ((0, 1), (2, 3)), "fold": (((0, 1), 2), 3)}, value)
    texts = [t.get_text() for ax in fig.axes for t in ax.texts]
    assert len(texts) == 2 * (4 + 2 * 3)
    assert "2 orders, tree, fold" in alt(fig)
