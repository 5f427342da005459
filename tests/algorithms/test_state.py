"""SoftmaxState: one commutative monoid, with empty rows in it, from which NaN cannot vanish."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib import SoftmaxState
from tests import oracle
from tests.cases import PROPERTY, normal

ROWS, WIDTH = 5, 3


@st.composite
def logits_and_values(draw, least=0):
    """Draw logits (rows, keys), some of them −∞, some of a wild size, and values (keys, d)."""
    keys = draw(st.integers(least, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    S = rng.normal(size=(ROWS, keys)) * draw(st.sampled_from([1.0, 30.0, 1e4]))
    S[rng.random(S.shape) < draw(st.sampled_from([0.0, 0.4, 1.0]))] = -np.inf
    return S, rng.normal(size=(keys, WIDTH))


states = logits_and_values().map(lambda drawn: SoftmaxState.of(*drawn))


def assert_same(a, b, rtol=1e-12):
    for x, y in ((a.m, b.m), (a.l, b.l), (a.o, b.o)):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-14)


def bits(state):
    return state.m.tobytes(), state.l.tobytes(), state.o.tobytes()


def direct(S, V):
    """Attention with given logits, by the oracle's softmax."""
    P = oracle.softmax(S)
    top = S.max(axis=1, initial=-np.inf)
    shift = np.where(top == -np.inf, 0, top)
    with np.errstate(divide="ignore"):
        return P @ V, shift + np.log(np.exp(S - shift[:, None]).sum(axis=1))


@PROPERTY
@given(logits_and_values())
def test_of_then_finish_is_attention(drawn):
    O, lse = SoftmaxState.of(*drawn).finish()
    expected_O, expected_lse = direct(*drawn)
    np.testing.assert_allclose(O, expected_O, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-13)


@PROPERTY
@given(states, states)
def test_merge_is_commutative_to_the_bit(a, b):
    assert bits(a.merge(b)) == bits(b.merge(a))


@PROPERTY
@given(states, states, states)
def test_merge_is_associative(a, b, c):
    assert_same(a.merge(b).merge(c), a.merge(b.merge(c)))


@PROPERTY
@given(states)
def test_the_identity_changes_no_bit(a):
    nothing = SoftmaxState.identity(ROWS, WIDTH)
    assert bits(a.merge(nothing)) == bits(nothing.merge(a)) == bits(a)


@PROPERTY
@given(logits_and_values(least=1), st.data())
def test_any_cut_into_chunks_gives_the_whole(drawn, data):
    """Elements, tiles, split-KV chunks and ring steps are the same fold, in any order."""
    S, V = drawn
    keys = len(V)
    cuts = sorted(data.draw(st.lists(st.integers(0, keys), max_size=5), label="cuts"))
    edges = [0, *cuts, keys]
    chunks = [SoftmaxState.of(S[:, a:b], V[a:b]) for a, b in pairwise(edges)]
    chunks = data.draw(st.permutations(chunks), label="order")
    state = SoftmaxState.identity(ROWS, WIDTH)
    for chunk in chunks:
        state = state.merge(chunk)
    for got, expected in zip(state.finish(), direct(S, V), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13)


def test_an_empty_state_finishes_without_nan():
    for empty in (SoftmaxState.identity(2, 3),
                  SoftmaxState.of(np.full((2, 4), -np.inf), np.ones((4, 3))),
                  SoftmaxState.of(np.empty((2, 0)), np.empty((0, 3)))):
        for state in (empty, empty.merge(empty)):
            O, lse = state.finish()
            assert not O.any() and O.shape == (2, 3) and (lse == -np.inf).all()


def test_an_empty_row_does_not_disturb_its_neighbours():
    S = np.array([[-np.inf, -np.inf], [-np.inf, 1.0], [2.0, 3.0]])
    V = np.array([[1.0], [5.0]])
    O, lse = SoftmaxState.of(S, V).finish()
    np.testing.assert_allclose(O[:2, 0], [0, 5])
    np.testing.assert_allclose(lse, [-np.inf, 1, np.logaddexp(2, 3)])


@pytest.mark.parametrize("place", ["logit", "value"])
def test_nan_is_not_hidden(place):
    S, V = np.zeros((3, 4)), np.ones((4, 2))
    if place == "logit":
        S[1, 2] = np.nan
    else:
        V[2, 1] = np.nan
    clean = SoftmaxState.of(np.zeros((3, 4)), np.ones((4, 2)))
    broken = SoftmaxState.of(S, V)
    for state in (broken, broken.merge(clean), clean.merge(broken),
                  broken.merge(SoftmaxState.identity(3, 2))):
        O, lse = state.finish()
        if place == "logit":
            np.testing.assert_array_equal(np.isnan(lse), [False, True, False])
            np.testing.assert_array_equal(np.isnan(O).all(axis=1), [False, True, False])
        else:
            assert np.isnan(O[:, 1]).all() and np.isfinite(O[:, 0]).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_poisoned_value_reaches_no_row_that_may_not_see_it(poison):
    S = np.array([[0.0, -np.inf], [0.0, 0.0], [-np.inf, -np.inf]])
    V = np.array([[1.0], [poison]])
    O, _ = SoftmaxState.of(S, V).finish()
    assert O[0, 0] == 1 and not np.isfinite(O[1, 0]) and O[2, 0] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(dtype):
    S, V = normal(0, (3, 4), (4, 2), dtype=dtype)
    state = SoftmaxState.of(S, V).merge(SoftmaxState.identity(3, 2, dtype))
    assert {a.dtype for a in (state.m, state.l, state.o, *state.finish())} == {np.dtype(dtype)}


def test_a_merge_changes_neither_part():
    a, b = (SoftmaxState.of(*normal(n, (3, 4), (4, 2))) for n in (0, 1))
    before = bits(a), bits(b)
    a.merge(b).finish()
    assert (bits(a), bits(b)) == before
    with pytest.raises(AttributeError):
        a.m = b.m


def test_far_apart_maxima_merge_without_overflow():
    V = np.array([[1.0], [2.0]])
    low, high = (SoftmaxState.of(np.array([[x]]), V[n:n + 1])
                 for n, x in enumerate([-1e300, 1e300]))
    for state in (low.merge(high), high.merge(low)):
        O, lse = state.finish()
        assert O[0, 0] == 2 and lse[0] == 1e300


@pytest.mark.parametrize("make, error, message", [
    (lambda one: SoftmaxState([0.0], one, one[:, None]), TypeError, "m: expected a NumPy array"),
    (lambda one: SoftmaxState(one, one[None], one[:, None]), ValueError, "l: expected 1 dim"),
    (lambda one: SoftmaxState(one, one, one), ValueError, "o: expected 2 dim"),
    (lambda one: SoftmaxState(one, one, np.ones((2, 2))), ValueError, r"m, l: expected shape \(2,"),
    (lambda one: SoftmaxState(one, one, one[:, None].astype("f4")), TypeError, "m, l, o: expected"),
    (lambda one: SoftmaxState(one.astype(int), one, one[:, None]), TypeError, "m: expected dtype"),
    (lambda one: SoftmaxState.identity(-1, 2), ValueError, "rows: expected .* got -1"),
    (lambda one: SoftmaxState.identity(2.0, 2), TypeError, "rows: expected .* got 2.0"),
    (lambda one: SoftmaxState.identity(2, 0), ValueError, "d: expected .* got 0"),
    (lambda one: SoftmaxState.of(one, one), ValueError, "S: expected 2 dim"),
    (lambda one: SoftmaxState.of(one[None], np.ones((2, 2))), ValueError, "S: expected 2 columns"),
    (lambda one: SoftmaxState.identity(1, 1).merge(3), TypeError, "other: .* got int"),
    (lambda one: SoftmaxState.identity(1, 1).merge(SoftmaxState.identity(2, 1)), ValueError,
     r"other: expected o of shape \(1, 1\) float64, got \(2, 1\)"),
    (lambda one: SoftmaxState.identity(1, 1).merge(SoftmaxState.identity(1, 1, np.float32)),
     ValueError, "other: .*float64.* got .*float32"),
])
def test_wrong_states_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(np.ones(1))
