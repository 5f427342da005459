"""The two matrix products: the value for every shape, and clear refusals."""

import numpy as np
import pytest

import flashlib as fl
from tests.cases import normal

TILES = [(1, 1, 1), (2, 3, 4), (5, 1, 2), (100, 100, 100)]
SHAPES = [(1, 1, 1), (5, 7, 6), (8, 8, 8), (0, 3, 2), (3, 0, 2), (3, 2, 0)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("M, N, K", SHAPES)
def test_both_equal_the_product(M, N, K, dtype):
    A, B = normal(0, (M, K), (K, N), dtype=dtype)
    exact = A.astype(np.float64) @ B.astype(np.float64)
    products = [fl.tiled_matmul(A, B, Bm=m, Bn=n, Bk=k) for m, n, k in TILES]
    if K:
        products.append(fl.naive_matmul(A, B))
    for C in products:
        assert C.dtype == dtype and C.shape == (M, N)
        np.testing.assert_allclose(C, exact, rtol=0, atol=20 * np.finfo(dtype).eps)


def test_a_naive_product_over_nothing_is_zero():
    np.testing.assert_array_equal(fl.naive_matmul(np.ones((2, 0)), np.ones((0, 3))), 0)


def test_inputs_of_any_layout_stay_as_they_are():
    A, B = normal(1, (6, 4), (6, 4))
    before = A.copy(), B.copy()
    np.testing.assert_allclose(fl.tiled_matmul(A[::2], B[::-1].T[:, :5][:, ::-1], Bm=2, Bn=2, Bk=3),
                               A[::2] @ B[::-1].T[:, :5][:, ::-1])
    np.testing.assert_allclose(fl.naive_matmul(A.T, A), A.T @ A, atol=1e-14)
    np.testing.assert_array_equal((A, B), before)


@pytest.mark.parametrize("multiply", [
    fl.naive_matmul, lambda *args: fl.tiled_matmul(*args, Bm=2, Bn=2, Bk=2)], ids=["naive", "tiled"])
@pytest.mark.parametrize("A, B, error, message", [
    ([[1.0]], np.ones((1, 1)), TypeError, "A: expected a NumPy array, got list"),
    (np.ones((1, 1)), None, TypeError, "B: expected a NumPy array, got NoneType"),
    (np.ones(3), np.ones((3, 1)), ValueError, r"A: expected 2 dimensions, got shape \(3,\)"),
    (np.ones((2, 3)), np.ones((4, 2)), ValueError, r"B: expected 3 rows.*got shape \(4, 2\)"),
    (np.ones((2, 3)), np.ones((3, 2), np.float32), TypeError, "A, B: expected one dtype.*float32"),
    (np.ones((2, 3), int), np.ones((3, 2), int), TypeError, "A: expected dtype.*got int64"),
])
def test_wrong_matrices_are_refused(multiply, A, B, error, message):
    with pytest.raises(error, match=message):
        multiply(A, B)


@pytest.mark.parametrize("name", ["Bm", "Bn", "Bk"])
@pytest.mark.parametrize("value, error", [(0, ValueError), (-3, ValueError), (2.0, TypeError),
                                          (None, TypeError), ("4", TypeError), (True, TypeError)])
def test_wrong_tiles_are_refused(name, value, error):
    A = np.ones((4, 4))
    with pytest.raises(error, match=f"{name}: expected .*got {value!r}"):
        fl.tiled_matmul(A, A, **({"Bm": 2, "Bn": 2, "Bk": 2} | {name: value}))


def test_the_tiled_product_adds_up_in_the_dtype_of_its_inputs():
    """1e8 + 1 − 1e8, one term a tile: float32 has lost the 1 in between, float64 has not."""
    for dtype, expected in ((np.float32, 0.0), (np.float64, 1.0)):
        A, B = np.array([[1e8, 1.0, -1e8]], dtype), np.ones((3, 1), dtype)
        assert fl.tiled_matmul(A, B, Bm=1, Bn=1, Bk=1)[0, 0] == expected
