"""The three softmaxes: equal where the textbook's survives, and different where it overflows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashlib as fl
from tests import oracle
from tests.cases import PROPERTY, SOFTMAX, normal

every_softmax = pytest.mark.parametrize("name", SOFTMAX)
SAFE = [name for name in SOFTMAX if name != "naive"]
every_safe = pytest.mark.parametrize("name", SAFE)
dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])


@every_softmax
@dtypes
@pytest.mark.parametrize("shape", [(1,), (7,), (63,), (4, 9), (2, 3, 5), (3, 0), (0, 4), (0,)],
                         ids=str)
def test_equals_the_oracle(name, dtype, shape):
    x, = normal(1, shape, dtype=dtype)
    copy = x.copy()
    y = SOFTMAX[name](x)
    assert y.dtype == dtype and y.shape == shape and not np.shares_memory(x, y)
    np.testing.assert_allclose(y, oracle.softmax(x), rtol=30 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(x, copy)


@every_softmax
def test_memory_layouts(name):
    x, = normal(2, (6, 8))
    frozen = x.copy()
    frozen.flags.writeable = False
    for view in (x.T, x[::2, ::-2], np.broadcast_to(x[0], (3, 8)), frozen, x.reshape(2, 3, 8).T):
        np.testing.assert_allclose(SOFTMAX[name](view), oracle.softmax(view), rtol=1e-14)


@every_softmax
@dtypes
def test_an_empty_row_gives_zeros(name, dtype):
    x = np.array([[-np.inf, -np.inf], [0.0, -np.inf], [1.0, 2.0]], dtype)
    y = SOFTMAX[name](x)
    np.testing.assert_array_equal(y[:2], [[0, 0], [1, 0]])
    np.testing.assert_allclose(y[2], oracle.softmax(x)[2], rtol=4 * np.finfo(dtype).eps)


@every_safe
@dtypes
@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_logits_of_ten_thousand(name, dtype, order):
    x = np.linspace(-1e4, 1e4, 41).astype(dtype)[::order]
    np.testing.assert_allclose(SOFTMAX[name](x), oracle.softmax(x), rtol=1e-5, atol=1e-30)


@dtypes
def test_the_textbook_overflows_one_step_above_the_logarithm_of_the_largest_number(dtype):
    threshold = np.log(np.finfo(dtype).max)
    below, above = np.nextafter(threshold, dtype(0)), np.nextafter(threshold, dtype(np.inf)) + 1
    assert fl.naive_softmax(np.array([below])).item() == 1
    y = fl.naive_softmax(np.array([above, 0, -1], dtype))
    assert np.isnan(y[0]) and not y[1:].any()         # ∞/∞ where it happens, x/∞ elsewhere
    np.testing.assert_allclose(fl.safe_softmax(np.array([above, 0], dtype)), [1, 0], atol=1e-30)


@every_softmax
def test_a_nan_shows_in_its_row_and_stays_there(name):
    x = np.zeros((3, 4))
    x[1, 2] = np.nan
    y = SOFTMAX[name](x)
    assert np.isnan(y[1]).all()
    np.testing.assert_array_equal(y[[0, 2]], 0.25)


@every_safe
@PROPERTY
@given(st.lists(st.floats(-700, 700), min_size=1, max_size=12), st.floats(-1e4, 1e4))
def test_shifting_the_logits_changes_nothing(name, logits, shift):
    x = np.array(logits)
    np.testing.assert_allclose(SOFTMAX[name](x + shift), SOFTMAX[name](x), rtol=1e-10, atol=1e-12)


@every_softmax
@PROPERTY
@given(st.lists(st.floats(-300, 300), min_size=1, max_size=12))
def test_all_three_are_probabilities_and_agree(name, logits):
    y = SOFTMAX[name](np.array(logits))
    assert (y >= 0).all() and abs(y.sum() - 1) < 1e-14
    np.testing.assert_allclose(y, oracle.softmax(logits), rtol=1e-12, atol=1e-300)


@every_softmax
@pytest.mark.parametrize("x, error, message", [
    ([1.0, 2.0], TypeError, "x: expected a NumPy array, got list"),
    (np.float64(1), TypeError, "x: expected a NumPy array, got float64"),
    (np.array(1.0), ValueError, r"x: expected at least one dimension, got shape \(\)"),
    (np.arange(3), TypeError, "x: expected dtype float64 or float32, got int64"),
    (np.ones(3, bool), TypeError, "x: expected dtype .* got bool"),
    (np.ones(3, complex), TypeError, "x: expected dtype .* got complex128"),
    (np.ones(3, np.float16), TypeError, "x: expected dtype .* got float16"),
])
def test_wrong_logits_are_refused(name, x, error, message):
    with pytest.raises(error, match=message):
        SOFTMAX[name](x)


@every_softmax
def test_a_wrong_machine_is_refused(name):
    with pytest.raises(TypeError, match=r"machine: expected a flashlib.Machine or None, got 'gpu'"):
        SOFTMAX[name](np.ones(3), machine="gpu")
