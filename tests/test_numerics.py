"""Float formats against NumPy, ml_dtypes and 60-digit arithmetic; error metrics on known cases."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from flashlib import numerics
from flashlib.numerics import DTYPES, facts, round_to, ulp

every_dtype = pytest.mark.parametrize("name", DTYPES)
in_numpy = pytest.mark.parametrize("name", ["float64", "float32", "float16"])


@in_numpy
def test_facts_equal_numpys(name):
    ours, numpys = facts(name), np.finfo(name)
    assert ours.largest == float(numpys.max)
    assert ours.smallest_normal == float(numpys.smallest_normal)
    assert ours.smallest_subnormal == float(numpys.smallest_subnormal)
    assert ours.epsilon == float(numpys.eps)
    assert (ours.bits, ours.exponent_bits, ours.mantissa_bits) == (numpys.bits, numpys.iexp,
                                                                   numpys.nmant)


def test_facts_of_bfloat16_equal_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ours, theirs = facts("bfloat16"), ml_dtypes.finfo(ml_dtypes.bfloat16)
    assert ours.largest == float(theirs.max)
    assert ours.smallest_normal == float(theirs.smallest_normal)
    assert ours.smallest_subnormal == float(theirs.smallest_subnormal)
    assert ours.epsilon == float(theirs.eps)


def neighbor(x, name, direction):
    return float(round_to(x + direction * float(ulp(x, name)), name))


@every_dtype
def test_exp_overflows_exactly_beyond_its_threshold(name):
    target = facts(name)
    below, above = target.exp_overflow, neighbor(target.exp_overflow, name, +1)
    assert float(round_to(below, name)) == below < above
    with localcontext(prec=60):
        # Beyond half a step above the largest value, rounding to nearest gives infinity.
        limit = Decimal(target.largest) + Decimal(float(ulp(target.largest, name))) / 2
        assert Decimal(below).exp() < limit < Decimal(above).exp()


@every_dtype
def test_exp_underflows_exactly_beyond_its_threshold(name):
    target = facts(name)
    above, below = target.exp_underflow, neighbor(target.exp_underflow, name, -1)
    assert float(round_to(above, name)) == above > below
    with localcontext(prec=60):
        limit = Decimal(target.smallest_subnormal) / 2
        assert Decimal(below).exp() < limit < Decimal(above).exp()


@in_numpy
def test_numpys_exp_agrees_with_the_thresholds(name):
    target = facts(name)
    x = np.array([target.exp_overflow, neighbor(target.exp_overflow, name, +1),
                  target.exp_underflow, neighbor(target.exp_underflow, name, -1)], name)
    with np.errstate(over="ignore", under="ignore"):
        y = np.exp(x)
    assert list(np.isinf(y)) == [False, True, False, False]
    assert list(y == 0) == [False, False, False, True]


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16")])
def test_facts_take_names_and_dtypes(dtype):
    assert facts(dtype) is DTYPES["float16"]


def test_facts_take_dtypes_of_ml_dtypes_and_torch():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert facts(ml_dtypes.bfloat16) is facts(np.dtype(ml_dtypes.bfloat16)) is DTYPES["bfloat16"]
    torch = pytest.importorskip("torch")
    assert facts(torch.bfloat16) is DTYPES["bfloat16"]


@pytest.mark.parametrize("dtype", ["float8", "int32", np.int64, None, float])
def test_unknown_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype: expected one of float64, .*, bfloat16, got"):
        facts(dtype)


def same(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a), np.signbit(b))


def test_bfloat16_rounding_equals_ml_dtypes_on_random_float32_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(0).integers(0, 2**32, 400_000, dtype=np.uint32)
    # Every tie between two neighbors, and both sides of it.
    upper = np.arange(2**16, dtype=np.uint32) << 16
    ties = np.concatenate([upper + 0x7FFF, upper + 0x8000, upper + 0x8001]).view(np.float32)
    for x in (bits.view(np.float32), ties):
        with np.errstate(invalid="ignore"):
            expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        numbers = ~np.isnan(x)
        assert same(round_to(x, "bfloat16")[numbers], expected[numbers])
        assert np.isnan(round_to(x, "bfloat16")[~numbers]).all()


def exact_round(x, name):
    """Round by scaling to whole numbers, which float64 rounds half to even."""
    target, quantum = facts(name), ulp(x, name)
    with np.errstate(invalid="ignore"):
        rounded = np.copysign(np.rint(x / quantum) * quantum, x)
    return np.where(np.abs(rounded) > target.largest, np.copysign(np.inf, x), rounded)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_rounding_from_float64_rounds_once(name):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(100_000) * 2.0 ** rng.integers(-160, 160, 100_000)
    x = np.clip(x, -1e39, 1e39)
    target = facts(name)
    grid = np.float64(round_to(x, name))
    grid = grid[np.isfinite(grid) & (np.abs(grid) < target.largest)]
    tie = grid + ulp(grid, name) / 2
    near = np.concatenate([tie, np.nextafter(tie, np.inf), np.nextafter(tie, -np.inf)])
    for values in (x, near):
        assert same(round_to(values, name), exact_round(values, name))


def test_rounding_to_bfloat16_by_way_of_float32_would_err():
    # Just above the tie between 1 and 1 + 2⁻⁷; float32 cannot tell it from the tie.
    x = 1 + 2.0**-8 + 2.0**-40
    twice = round_to(np.float32(x), "bfloat16")
    assert float(twice) == 1.0
    assert float(round_to(x, "bfloat16")) == 1 + 2.0**-7


@every_dtype
def test_rounding_specials(name):
    target = facts(name)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, target.largest, target.smallest_subnormal,
                  target.smallest_subnormal / 2])
    assert same(round_to(x, name), [0.0, -0.0, np.inf, -np.inf, np.nan, target.largest,
                                    target.smallest_subnormal, 0.0])
    if name != "float64":
        over = target.largest + float(ulp(target.largest, name)) / 2
        assert same(round_to([over, -over, np.nextafter(over, 0)], name),
                    [np.inf, -np.inf, target.largest])


@every_dtype
def test_rounding_twice_changes_nothing_and_keeps_shape(name):
    x = np.random.default_rng(2).standard_normal((3, 4, 5))
    once = round_to(x, name)
    assert once.shape == x.shape and once.dtype == np.float64
    assert same(round_to(once, name), once)
    assert round_to(x.astype(np.float32), name).dtype == np.float32
    assert round_to(np.empty((0, 3)), name).shape == (0, 3)
    assert x is not once and not np.shares_memory(x, once)


def test_rounding_takes_numbers_and_refuses_the_rest():
    assert float(round_to(3.14159, "bfloat16")) == 3.140625
    assert float(round_to(257, "bfloat16")) == 256
    assert float(round_to(np.float16(65504), "bfloat16")) == 65536
    assert np.isnan(round_to(np.nan, "bfloat16"))
    for wrong in ("3", 1j, True, [None], np.longdouble(1)):
        with pytest.raises(TypeError, match="x: expected real numbers"):
            round_to(wrong, "bfloat16")


@every_dtype
def test_ulp_is_the_distance_to_the_next_value(name):
    target = facts(name)
    assert float(ulp(1.0, name)) == target.epsilon
    assert float(ulp(-1.5, name)) == target.epsilon
    assert float(ulp(0.0, name)) == float(ulp(target.smallest_normal, name)) == (
        target.smallest_subnormal)
    assert target.largest - float(ulp(target.largest, name)) == neighbor(target.largest, name, -1)
    assert np.isnan(ulp([np.inf, np.nan], name)).all()


def test_ulp_equals_numpys_spacing():
    x = np.abs(np.random.default_rng(3).standard_normal(1000)).astype(np.float32)
    assert np.array_equal(ulp(x, "float32"), np.spacing(x))


def test_errors_of_a_known_case():
    reference = np.array([[4.0, -8.0], [0.0, 2.0]])
    result = reference + np.array([[0.0, 3.0], [-4.0, 0.0]])
    assert numerics.max_abs_error(result, reference) == 4.0
    assert numerics.max_relative_error(result, reference) == 0.5
    assert numerics.rmse(result, reference) == 2.5


def test_errors_are_measured_in_float64():
    reference = np.full(1000, 1 / 3)
    result = reference.astype(np.float32)
    expected = abs(float(result[0]) - 1 / 3)
    assert numerics.max_abs_error(result, reference) == expected > 0
    assert numerics.rmse(result, reference) == pytest.approx(expected, rel=1e-12)


@every_dtype
def test_a_correctly_rounded_result_is_within_half_an_ulp(name):
    reference = np.random.default_rng(4).standard_normal(10_000)
    rounded = round_to(reference, name)
    distance = numerics.ulp_distance(rounded, reference, name)
    assert distance <= 0.5
    assert distance > 0.4 or name == "float64"
    shifted = numerics.ulp_distance(rounded + 2 * ulp(reference, name), reference, name)
    assert 1.9 < shifted <= 2.5


METRICS = [numerics.max_abs_error, numerics.max_relative_error, numerics.rmse,
           lambda a, b: numerics.ulp_distance(a, b, "float32")]


@pytest.mark.parametrize("metric", METRICS, ids=["abs", "relative", "rmse", "ulp"])
class TestEveryMetric:
    def test_equal_infinities_do_not_differ(self, metric):
        x = np.array([1.0, -np.inf, np.inf])
        assert metric(x, x.copy()) == 0.0

    def test_unequal_infinities_differ_without_bound(self, metric):
        assert metric([1.0, np.inf], [1.0, -np.inf]) == np.inf
        assert metric([1.0, np.inf], [1.0, 2.0]) == np.inf
        assert metric([1.0, 2.0], [1.0, np.inf]) == np.inf

    def test_nan_fails_every_tolerance(self, metric):
        for pair in (([1.0, np.nan], [1.0, 2.0]), ([1.0, 2.0], [1.0, np.nan])):
            assert not metric(*pair) <= 1e300

    def test_nothing_is_no_error(self, metric):
        assert metric(np.empty((0, 4)), np.empty((0, 4))) == 0.0

    def test_zeros(self, metric):
        assert metric([0.0], [0.0]) == 0.0
        assert metric([1.0], [0.0]) > 0

    def test_shapes_must_match(self, metric):
        with pytest.raises(ValueError, match=r"result: expected the shape of reference, \(2,\)"):
            metric([1.0], [1.0, 2.0])

    def test_only_real_numbers(self, metric):
        with pytest.raises(TypeError, match="reference: expected real numbers"):
            metric([1.0], [1j])


def test_torch_tensors_are_measured_as_they_are():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = torch.tensor([1.0, 2.5], dtype=dtype, requires_grad=True)
        assert numerics.max_abs_error(x, np.array([1.0, 2.0])) == 0.5
