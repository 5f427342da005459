"""Eight-bit numbers: every code and midpoint, scales, and a rotation that changes no product."""

import itertools
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib import quant
from tests.cases import PROPERTY

pytest.importorskip("ml_dtypes")

FLOATS = ("e4m3", "e5m2")
every_float = pytest.mark.parametrize("fmt", FLOATS)
every_format = pytest.mark.parametrize("fmt", [*FLOATS, "int8"])
either_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])


def spelled_out(code, fmt):
    """The value of a code from the definition of the format, as a fraction; None for NaN, ±inf."""
    m_bits, bias = {"e4m3": (3, 7), "e5m2": (2, 15)}[fmt]
    sign = -1 if code & 0x80 else 1
    exponent, mantissa = (code & 0x7F) >> m_bits, code & (2**m_bits - 1)
    if fmt == "e4m3" and code & 0x7F == 0x7F:
        return None
    if fmt == "e5m2" and exponent == 31:
        return None if mantissa else sign * np.inf
    if exponent == 0:
        return sign * Fraction(mantissa, 2**m_bits) * Fraction(2) ** (1 - bias)
    return sign * (1 + Fraction(mantissa, 2**m_bits)) * Fraction(2) ** (exponent - bias)


@every_float
def test_every_code_means_what_the_format_says(fmt):
    for code, value in enumerate(quant.decode(np.arange(256), fmt)):
        expected = spelled_out(code, fmt)
        assert np.isnan(value) if expected is None else value == expected
    assert np.signbit(quant.decode(np.array([0x80]), fmt)[0])          # −0 is a code of its own


@every_float
@either_dtype
def test_every_value_rounds_to_itself_and_back_to_its_code(fmt, dtype):
    codes = np.arange(256)
    values = quant.decode(codes, fmt)
    finite = np.isfinite(values)
    kept = quant.round_to(values[finite].astype(dtype), fmt)
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept, values[finite])
    np.testing.assert_array_equal(quant.encode(values[finite].astype(dtype), fmt), codes[finite])


@every_format
@either_dtype
def test_midpoints_go_to_the_even_neighbor_and_what_is_off_them_to_the_nearer(fmt, dtype):
    grid = quant.values(fmt)
    assert len(grid) == {"e4m3": 253, "e5m2": 247, "int8": 255}[fmt]
    below, above = grid[:-1], grid[1:]
    middle = ((below + above) / 2).astype(dtype)
    if fmt == "int8":
        even = np.where(below % 2 == 0, below, above)
    else:
        even = np.where(quant.encode(below, fmt) % 2 == 0, below, above)
    np.testing.assert_array_equal(quant.round_to(middle, fmt), even)
    np.testing.assert_array_equal(quant.round_to(np.nextafter(middle, dtype(-np.inf)), fmt), below)
    np.testing.assert_array_equal(quant.round_to(np.nextafter(middle, dtype(np.inf)), fmt), above)


@every_format
@either_dtype
def test_too_large_saturates_and_nan_stays(fmt, dtype):
    largest = {"e4m3": 448.0, "e5m2": 57344.0, "int8": 127.0}[fmt]
    assert quant.FORMATS[fmt].largest == largest == quant.values(fmt)[-1]
    x = np.array([largest, np.nextafter(dtype(largest), dtype(np.inf)), 1.04 * largest,
                  2 * largest, np.finfo(dtype).max, np.inf], dtype)
    np.testing.assert_array_equal(quant.round_to(x, fmt), largest)
    np.testing.assert_array_equal(quant.round_to(-x, fmt), -largest)
    assert np.isnan(quant.round_to(np.array([np.nan, -np.nan], dtype), fmt)).all()


@every_float
def test_the_ends_of_the_subnormals(fmt):
    f = quant.FORMATS[fmt]
    step = {"e4m3": 2.0**-9, "e5m2": 2.0**-16}[fmt]
    x = np.array([0.5, 0.5000001, 1.0, 1.5, 1.4999, 2.5]) * step
    np.testing.assert_array_equal(quant.round_to(x, fmt), np.array([0, 1, 1, 2, 1, 2]) * step)
    assert np.signbit(quant.round_to(np.array([-1e-30]), fmt)[0])
    assert f.smallest_normal == step * 2**f.mantissa_bits


@PROPERTY
@given(st.floats(-500, 500), st.sampled_from(FLOATS))
def test_rounding_takes_the_nearest_and_its_neighbors_enclose(x, fmt):
    grid = quant.values(fmt)
    below = grid[max(np.searchsorted(grid, x, "right") - 1, 0)]
    above = grid[min(np.searchsorted(grid, x), len(grid) - 1)]
    got = quant.round_to(np.array([x]), fmt)[0]
    assert got in (below, above)
    assert below <= x <= above or abs(x) > quant.FORMATS[fmt].largest
    assert abs(got - x) == min(abs(below - x), abs(above - x))


@every_float
def test_fields_build_their_value(fmt):
    f = quant.FORMATS[fmt]
    kinds = set()
    for code, value in enumerate(quant.decode(np.arange(256), fmt)):
        if not np.isfinite(value):
            continue
        bits = quant.fields(value, fmt)
        kinds.add(bits.kind)
        assert int(bits.bits.replace(" ", ""), 2) == code and bits.value == value
        part = bits.mantissa / 2**f.mantissa_bits
        size = (part * 2.0 ** (1 - f.bias) if bits.kind in ("subnormal", "zero")
                else (1 + part) * 2.0 ** (bits.exponent - f.bias))
        assert (-1) ** bits.sign * size == value
    assert kinds == {"zero", "subnormal", "normal"}
    assert quant.fields(np.nan, fmt).kind == "NaN"
    assert quant.fields(0.3) == (0, 5, 2, "0 0101 010", "normal", 0.3125)
    assert quant.fields(1e9).value == 448


# scales

def test_a_scale_maps_the_largest_to_the_largest():
    x = np.array([[1.0, -7.0], [0.5, 0.0], [0.0, 0.0], [3.0, 1.0], [2.0, 0.25]])
    np.testing.assert_allclose(quant.scales(x), [7 / 448])
    np.testing.assert_allclose(quant.scales(x, block=2), [7 / 448, 3 / 448, 2 / 448])   # ragged
    np.testing.assert_allclose(quant.scales(x, block=1)[2], 1.0)                         # zeros
    np.testing.assert_allclose(quant.scales(x, block=9, fmt="int8"), [7 / 127])
    np.testing.assert_allclose(quant.scales(x, block=2, limit=2.0), [2 / 448] * 3)
    for q in (quant.quantise(x), quant.quantise(x, block=2)):
        assert np.abs(q.values).max() == 448
        np.testing.assert_allclose(q.dequantise(), x, rtol=2**-4, atol=1e-4)
    assert quant.scales(np.zeros((0, 4)), block=3).shape == (0,)
    assert quant.quantise(np.zeros((0, 4))).dequantise().shape == (0, 4)


def test_a_limit_saturates_what_lies_beyond():
    x = np.array([[0.5, -3.0, 100.0]])
    np.testing.assert_allclose(quant.quantise(x, limit=2.0).dequantise(), [[0.5, -2, 2]], rtol=0.05)
    assert quant.shares(x, limit=2.0)["saturated"] == pytest.approx(2 / 3)
    assert quant.shares(x)["saturated"] == 0


def test_what_is_not_finite_stays_in_its_own_place():
    x = np.array([[1.0, np.nan, 2.0], [np.inf, 1.0, -np.inf], [3.0, 1.0, 1.0]])
    for block in (None, 1, 2):
        q = quant.quantise(x, block=block)
        assert np.isfinite(q.scales).all()
        got = q.dequantise()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
        top = 3.0 if block is None else 1.0 if block == 1 else 2.0
        np.testing.assert_allclose(got[1], [top, 1, -top], rtol=2**-4)
    tiny = quant.quantise(np.array([[5e-324, 0.0]]))
    assert np.isfinite(tiny.scales).all() and np.isfinite(tiny.dequantise()).all()


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.integers(-40, 40), st.integers(1, 7))
def test_a_scale_goes_along_with_the_tensor(seed, power, block):
    """Multiply by a power of two: the same values, and scales multiplied by it."""
    x = np.random.default_rng(seed).normal(size=(9, 4))
    one, other = (quant.quantise(factor * x, block=block) for factor in (1.0, 2.0**power))
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.scales * 2.0**power, other.scales)


@every_float
def test_relative_error_does_not_depend_on_the_scale_while_nothing_is_subnormal(fmt):
    """What distinguishes a float from a whole number, whose error is a share of the largest."""
    x = np.random.default_rng(0).uniform(1, 2, size=(64, 64)) * 2.0 ** -3
    floats, whole = [], []
    for outlier in (1.0, 10.0, 100.0):
        y = x.copy()
        y[0, 0] = outlier
        rest = np.ones_like(y, bool)
        rest[0, 0] = False
        for kind, out in ((fmt, floats), ("int8", whole)):
            got = quant.quantise(y, fmt=kind).dequantise()
            out.append(quant.relative_error(got[rest], y[rest]))
    assert max(floats) / min(floats) < 1.5
    assert whole[1] > 5 * whole[0] and whole[2] > 5 * whole[1]


def test_shares_count_what_is_lost():
    x = np.array([[448.0, 2.0**-7, 2.0**-11, 0.0]])
    assert quant.shares(x) == {"zero": 0.25, "subnormal": 0.25, "saturated": 0.0}


# the rotation

@pytest.mark.parametrize("d", [1, 2, 4, 32, 128, 256])
def test_the_fast_transform_is_the_matrix_and_both_are_orthogonal(d):
    x = np.random.default_rng(d).normal(size=(3, 5, d))
    H = quant.hadamard_matrix(d)
    np.testing.assert_allclose(np.abs(H), 1 / np.sqrt(d))
    np.testing.assert_allclose(H @ H.T, np.eye(d), atol=1e-14)
    np.testing.assert_array_equal(H, H.T)
    np.testing.assert_allclose(quant.hadamard(x), x @ H, atol=1e-13)
    np.testing.assert_allclose(quant.hadamard(quant.hadamard(x)), x, atol=1e-13)
    signs = quant.random_signs(d, seed=d)
    R = quant.rotation_matrix(signs)
    np.testing.assert_allclose(R @ R.T, np.eye(d), atol=1e-14)
    np.testing.assert_allclose(quant.rotate(x, signs), x @ R, atol=1e-13)
    np.testing.assert_allclose(quant.unrotate(quant.rotate(x, signs), signs), x, atol=1e-13)
    assert quant.rotate(x.astype(np.float32), signs).dtype == np.float32


def test_signs_are_drawn_by_their_seed():
    a, b, c = (quant.random_signs(64, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any() and set(a) == {-1.0, 1.0}


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 8, 64]))
def test_a_rotation_keeps_products_and_norms(seed, d):
    rng = np.random.default_rng(seed)
    Q, K = rng.normal(size=(2, 6, d)) * rng.choice([1, 100], size=(2, 6, d), p=[0.9, 0.1])
    signs = quant.random_signs(d, seed)
    Qr, Kr = quant.rotate(Q, signs), quant.rotate(K, signs)
    size = np.abs(Q @ K.T).max()
    np.testing.assert_allclose(Qr @ Kr.T, Q @ K.T, atol=1e-13 * size)
    np.testing.assert_allclose(np.linalg.norm(Qr, axis=1), np.linalg.norm(Q, axis=1), rtol=1e-13)
    if d == 64:
        assert not np.allclose(Qr, Q)


def test_one_outlier_is_spread_evenly():
    x = np.zeros((1, 128))
    x[0, 17] = 10.0
    y = quant.rotate(x, quant.random_signs(128))
    np.testing.assert_allclose(np.abs(y), 10 / np.sqrt(128))
    assert quant.crest(x) == pytest.approx(np.sqrt(128)) and quant.crest(y) == pytest.approx(1)
    R = quant.random_orthogonal(128, seed=3)
    np.testing.assert_allclose(R @ R.T, np.eye(128), atol=1e-12)
    assert quant.crest(x @ R) < quant.crest(x) / 2


# refusals

@pytest.mark.parametrize("call, error, message", [
    (lambda x: quant.round_to([1.0]), TypeError, "x: expected a NumPy array, got list"),
    (lambda x: quant.round_to(x.astype(int)), TypeError, "x: expected dtype float64 or float32"),
    (lambda x: quant.round_to(x, "fp8"), ValueError, "fmt: expected one of .*got 'fp8'"),
    (lambda x: quant.encode(x, "int8"), ValueError, "fmt: expected one of .*got 'int8'"),
    (lambda x: quant.fields(1.0, "int8"), ValueError, "fmt: expected one of"),
    (lambda x: quant.decode(np.array([256])), ValueError, "codes: expected whole numbers from 0"),
    (lambda x: quant.decode(np.array([0.5])), ValueError, "codes: expected whole numbers from 0"),
    (lambda x: quant.scales(x, block=0), ValueError, "block: expected a whole number"),
    (lambda x: quant.scales(x, block=1.5), TypeError, "block: expected a whole number"),
    (lambda x: quant.scales(x, limit=0.0), ValueError, "limit: expected a positive number"),
    (lambda x: quant.quantise(x, fmt="e3m4"), ValueError, "fmt: expected one of"),
    (lambda x: quant.hadamard(x), ValueError,
     "the last axis of x: expected a power of two, got 6: pad with zeros to 8"),
    (lambda x: quant.hadamard_matrix(40), ValueError, "d: expected a power of two, got 40.* to 64"),
    (lambda x: quant.hadamard_matrix(0), ValueError, "d: expected a whole number of at least 1"),
    (lambda x: quant.rotate(x, np.ones(4)), ValueError, "signs: expected 6 numbers out of"),
    (lambda x: quant.rotate(x, np.arange(6)), ValueError, "signs: expected 6 numbers out of"),
    (lambda x: quant.relative_error(x, x[:1]), ValueError, "got: expected the shape of exact"),
])
def test_wrong_arguments_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((2, 6)))


def test_a_block_of_more_rows_than_there_are_is_the_whole_tensor():
    """And costs no more: a scale is repeated for the rows that there are."""
    x, whole = np.ones((4, 4)), quant.quantise(np.ones((4, 4)))
    for block in (4, 5, 10**9, 2**60):
        q = quant.quantise(x, block=block)
        np.testing.assert_array_equal(q.dequantise(), whole.dequantise())
        assert q.scales.shape == (1,)
        assert quant.shares(x, block=block) == quant.shares(x)
    assert quant.quantise(np.ones((0, 4)), block=2**60).dequantise().shape == (0, 4)


def test_without_ml_dtypes_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for call in (quant.round_to, quant.encode):
        with pytest.raises(ImportError, match="pip install ml_dtypes"):
            call(np.ones(3))
    np.testing.assert_array_equal(quant.round_to(np.array([1.4, 300.0]), "int8"), [1, 127])
    np.testing.assert_allclose(quant.hadamard(np.ones(2)), [np.sqrt(2), 0])


def test_doubles_are_rounded_once():
    """Just above a midpoint by less than a float32 can tell: rounding twice would go down."""
    for base, step in itertools.product((1.0, 2.0, 448 - 64.0), (2.0**-30, -(2.0**-30))):
        grid = quant.values()
        below, above = base, grid[np.searchsorted(grid, base, "right")]
        x = np.array([(below + above) / 2 * (1 + step)])
        assert quant.round_to(x)[0] == (above if step > 0 else below)
