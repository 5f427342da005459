"""The software exponential: how near each polynomial comes, what its bits do, and where it ends."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib import Machine, exp2
from flashlib.numerics import round_to, ulp_distance
from tests.cases import PROPERTY

PUBLISHED = {1: 3.9e-2, 2: 2.1e-3, 3: 8.8e-5, 4: 3.0e-6, 5: 8e-8}        # with p(0) = 1
DEGREES = range(1, 6)
f32, f64 = np.float32, np.float64


@pytest.mark.parametrize("degree", DEGREES)
def test_the_error_by_degree(degree):
    exact = exp2.largest_error(degree)
    assert PUBLISHED[degree] / 1.3 < exact < 1.3 * PUBLISHED[degree]
    single = exp2.largest_error(degree, f32)
    assert single < 1.3 * max(PUBLISHED[degree], 1.4e-7) and single >= exact * 0.999


@pytest.mark.parametrize("degree", range(1, exp2.HIGHEST_DEGREE + 1))
def test_no_other_polynomial_of_its_degree_comes_nearer(degree):
    """The error has degree + 1 extremes of one size and alternating sign (de la Vallée-Poussin)."""
    f = np.linspace(0, 1, 100_001)
    c = exp2.coefficients(degree)
    assert len(c) == degree + 1 and c[0] == 1.0
    error = np.polynomial.Polynomial(c)(f) * 2.0 ** -f - 1
    largest = np.abs(error).max()
    at_extremes = np.flatnonzero(np.abs(error) > largest * 0.98)
    signs = np.sign(error[at_extremes])
    assert 1 + np.count_nonzero(np.diff(signs)) == degree + 1


def test_another_polynomial_is_worse():
    """Taylor's, and the same coefficients moved a little."""
    f = np.linspace(0, 1, 10_001)
    best = exp2.largest_error(3)
    powers = np.log(2) ** np.arange(4) / [1, 1, 2, 6]
    moved = np.add(exp2.coefficients(3), [0, 1e-4, 0, -1e-4])
    for other in (powers, moved):
        error = np.abs(np.polynomial.Polynomial(other)(f) * 2.0 ** -f - 1).max()
        assert error > 1.15 * best


def test_in_bfloat16_degree_3_differs_in_one_per_cent_by_one_ulp():
    f = np.linspace(0, 1, 1 << 18, endpoint=False).astype(f32)
    right = round_to(np.exp2(f.astype(f64)), "bfloat16")
    differs = {}
    for degree in DEGREES:
        got = round_to(exp2.software_exp2(f, degree), "bfloat16").astype(f64)
        differs[degree] = np.mean(got != right)
        if degree > 1:
            assert ulp_distance(got, right, "bfloat16") <= 1
    assert 0.008 < differs[3] < 0.012
    assert differs[1] > 0.9 and 0.2 < differs[2] < 0.3 and differs[4] < 1e-3


@pytest.mark.parametrize("dtype, lowest", [(f32, -127), (f64, -1023)], ids=["f32", "f64"])
def test_what_underflows_is_zero(dtype, lowest):
    tiny = np.finfo(dtype).tiny
    x = np.array([-np.inf, np.finfo(dtype).min, lowest - 0.5, lowest], dtype)
    assert (exp2.software_exp2(x, 3) == 0).all() and not np.signbit(exp2.software_exp2(x, 3)).any()
    binade = np.linspace(lowest, lowest + 1, 1001, endpoint=False).astype(dtype)
    got = exp2.software_exp2(binade, 3)
    assert (got >= 0).all() and (got < tiny).all()
    assert exp2.software_exp2(np.array([lowest + 1], dtype), 3) == tiny


@pytest.mark.parametrize("dtype", [f32, f64], ids=["f32", "f64"])
def test_whole_exponents_are_exact(dtype):
    n = np.arange(-126, 128).astype(dtype)
    for degree in DEGREES:
        np.testing.assert_array_equal(exp2.software_exp2(n, degree), np.ldexp(dtype(1), n.astype(int)))


def test_nan_is_nan_and_minus_zero_is_one():
    got = exp2.software_exp2(np.array([np.nan, -0.0, 0.0]), 2)
    assert np.isnan(got[0]) and (got[1:] == 1).all()


@pytest.mark.parametrize("dtype, limit", [(f32, 128), (f64, 1024)], ids=["f32", "f64"])
def test_beyond_the_range_is_refused(dtype, limit):
    assert np.isfinite(exp2.software_exp2(np.array([np.nextafter(dtype(limit), dtype(0))]), 3))
    for x in (limit, np.inf):
        with pytest.raises(ValueError, match=f"x: expected below {limit}"):
            exp2.software_exp2(np.array([0, x], dtype), 3)


@pytest.mark.parametrize("x, error", [(0.5, "float"), ([0.5], "list"), (np.array([1]), "int64"),
                                      (np.array([1], np.float16), "float16")], ids=str)
def test_wrong_dtypes_are_refused(x, error):
    with pytest.raises(TypeError, match=f"x: expected float32 or float64, got {error}"):
        exp2.software_exp2(x, 3)


@pytest.mark.parametrize("degree, error", [(0, ValueError), (8, ValueError), (3.0, TypeError),
                                           (None, TypeError), (True, TypeError)], ids=str)
def test_wrong_degrees_are_refused(degree, error):
    for function in (exp2.coefficients, exp2.slots, exp2.vector_flops,
                     lambda degree: exp2.software_exp2(np.zeros(1), degree)):
        with pytest.raises(error, match=r"degree: expected a"):
            function(degree)


@PROPERTY
@given(st.lists(st.floats(-126, 127, width=32), min_size=1, max_size=20), st.integers(1, 7),
       st.sampled_from([f32, f64]))
def test_the_relative_error_is_that_of_the_fraction_everywhere(values, degree, dtype):
    x = np.array(values, dtype)
    got, exact = exp2.software_exp2(x, degree).astype(f64), np.exp2(x.astype(f64))
    bound = exp2.largest_error(degree, points=4096) * 1.001 + 4 * np.finfo(dtype).eps
    assert got.dtype == f64 and (np.abs(got / exact - 1) <= bound).all()


@pytest.mark.parametrize("dtype", [f32, f64], ids=["f32", "f64"])
def test_a_tile_gives_the_bits_of_an_array_and_counts_itself(dtype):
    x = np.linspace(-140, 8, 60).astype(dtype).reshape(6, 10)
    machine = Machine()
    X = machine.hbm(X=x)
    with machine.kernel("k") as sram:
        tile = sram.load(X)
        whole = sram.peek(exp2.software_exp2(tile, 3))
        part = sram.peek(exp2.software_exp2(tile[:, 3:7], 3))
    assert whole.tobytes() == exp2.software_exp2(x, 3).tobytes()
    assert part.tobytes() == np.ascontiguousarray(exp2.software_exp2(x, 3)[:, 3:7]).tobytes()
    assert machine.traffic.exps == 0
    assert machine.traffic.vector_flops == (60 + 24) * exp2.vector_flops(3) == 84 * 12


def test_the_simulator_charges_the_same_slots_for_degree_3():
    from flashlib.models.sm.operations import EMULATED_SLOTS
    assert exp2.slots(3) == EMULATED_SLOTS


def test_the_kernels_cubic_is_the_library_s():
    """Read from the source: its module needs Triton."""
    kernels = (Path(exp2.__file__).parent / "kernels").rglob("*.py")
    sources = [path.read_text(encoding="utf-8") for path in kernels]
    (line,) = re.findall(r"(?m)^CUBIC = (\(.*\))$", "\n".join(sources))
    np.testing.assert_allclose(ast.literal_eval(line), exp2.coefficients(3), rtol=0, atol=5e-9)
