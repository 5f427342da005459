"""The error table of the FlashAttention-3 paper, and what its figures rest on."""

import numpy as np
import pytest

from flashlib import quant
from flashlib.models import fp8
from flashlib.numerics import rmse, round_to
from tests import oracle

pytest.importorskip("ml_dtypes")

NAMES = [recipe.name for recipe in fp8.TABLE_3]
# The course's own row, of an independent script: base fp16, FA fp16, base fp8, FA3, its two ablations.
OWN = [2.96e-4, 2.13e-4, 2.40e-2, 9.39e-3, 9.48e-3, 2.28e-2]


def test_half_is_the_conversion_to_float16_and_back():
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)].astype(np.float32)
    grid = np.unique(every).astype(np.float64)
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    wide = np.array([65504, 65519.996, 65520, 1e30, -np.inf, np.nan], np.float32)
    for x in (every, middle, np.nextafter(middle, np.float32(np.inf)),
              np.nextafter(middle, np.float32(-np.inf)), wide):
        np.testing.assert_array_equal(fp8.half(x), round_to(x, "float16"))


def test_the_data_have_outliers_at_the_rate_and_of_the_size():
    x = fp8.outliers((4000, 100), rate=0.01, size=10.0, seed=1)
    assert np.mean(np.abs(x) > 5) == pytest.approx(0.01 * 0.6, rel=0.15)
    assert x.var() == pytest.approx(1 + 0.01 * 100, rel=0.05)
    assert np.abs(fp8.outliers((50, 50), rate=0.0)).max() < 6


def test_the_reference_is_attention():
    rng = np.random.default_rng(0)
    Q, K, V = (fp8.outliers((64, 16), rate=0.02, seed=rng) for _ in range(3))
    whole = fp8.problem(Q, K, V)
    np.testing.assert_allclose(whole.O, oracle.attention(Q, K, V)[0], rtol=1e-12, atol=1e-13)
    some = fp8.problem(Q, K, V, rows=6, seed=3)
    assert len(set(some.rows)) == 6
    np.testing.assert_allclose(some.O, whole.O[some.rows])
    assert whole.share.sum() == pytest.approx(1) == some.share.sum()


def test_a_sample_estimates_the_error_of_all_rows_without_bias():
    """Over many samples the mean square error is that of the whole, loud rows and all."""
    rng = np.random.default_rng(5)
    Q, K, V = (fp8.outliers((512, 32), rate=0.003, seed=rng) for _ in range(3))
    recipe = fp8.TABLE_3[2]
    whole = fp8.error(fp8.problem(Q, K, V), recipe)
    samples = [fp8.error(fp8.problem(Q, K, V, rows=32, seed=n), recipe) ** 2 for n in range(60)]
    standard_error = np.std(samples) / np.sqrt(len(samples))
    assert abs(np.mean(samples) - whole**2) < 3 * standard_error
    plain = [rmse(fp8.outputs(p, recipe), p.O) for p in [fp8.problem(Q, K, V, rows=32)]]
    assert plain[0] > whole, "the sample holds more loud rows than the whole does"


@pytest.fixture(scope="module")
def small():
    """A reduced table: a quarter of the paper's length, half of its seeds."""
    return fp8.error_table(N=4096, seeds=(0, 1), rows=256)


def test_the_table_orders_the_recipes_as_the_paper_does(small):
    base16, flash16, base8, ours, no_blocks, no_rotation = (row["rmse"] for row in small)
    assert [row["recipe"] for row in small] == NAMES
    assert flash16 < base16 < ours / 10
    assert 1.4 < base8 / ours < 3.2 and 1.4 < no_rotation / ours < 3.2
    assert no_blocks / ours == pytest.approx(1, abs=0.25)
    for row in small:
        assert row["lowest"] <= row["rmse"] <= row["highest"]


@pytest.mark.slow
@pytest.mark.more
def test_the_table_at_the_papers_size():
    """N = 16,384, d = 128, four seeds of 512 queries, as the notebook prints it: own row, and gain."""
    table = fp8.error_table(rows=512)
    for row, own in zip(table, OWN, strict=True):
        assert row["rmse"] == pytest.approx(own, rel=0.25), row
    assert 2.1 < table[2]["rmse"] / table[3]["rmse"] < 3.2
    assert table[4]["rmse"] / table[3]["rmse"] == pytest.approx(1, abs=0.15)


def test_why_blocks_change_so_little():
    """A float's relative error does not ask for the scale: almost nothing is subnormal either way."""
    Q = fp8.paper_problem(0, N=2048, rows=64).Q
    one, blocks = (quant.relative_error(quant.quantise(Q, block=b).dequantise(), Q)
                   for b in (None, 128))
    assert one == pytest.approx(blocks, rel=0.03)
    assert quant.shares(Q)["subnormal"] < 0.002 and quant.shares(Q, block=128)["subnormal"] < 0.002
    whole, whole_blocks = (quant.relative_error(
        quant.quantise(Q, block=b, fmt="int8").dequantise(), Q) for b in (None, 128))
    assert whole > 1.2 * whole_blocks, "for whole numbers it matters"


def test_a_row_that_keeps_its_largest_entry_exactly_needs_no_rotation():
    """A scale a row halves the error, and no longer does if the largest entry is not 448."""
    rng, squares = np.random.default_rng(0), []
    for seed in range(4):
        p = fp8.paper_problem(seed, N=4096, rows=256)
        squares.append([fp8.error(p, fp8.Recipe("", block=block, rotation=turn), seed=seed) ** 2
                        for block, turn in ((None, False), (1, False), (None, True))])
        Q, K, V = (quant.round_to(x / scale) * scale for x in (p.Q, p.K, p.V)
                   for scale in [(quant.scales(x, block=1) * rng.uniform(1, 2, len(x)))[:, None]])
        S = Q[p.rows] @ K.T / np.sqrt(Q.shape[1])
        P = np.exp(S - S.max(axis=1, keepdims=True))
        O = quant.round_to(256 * P) @ V / 256 / P.sum(axis=1, keepdims=True)
        squares[-1].append(p.share @ ((O - p.O) ** 2).mean(axis=1))
    plain, by_row, turned, off_by_up_to_two = np.sqrt(np.mean(squares, axis=0))
    assert by_row == pytest.approx(turned, rel=0.15) and plain > 1.8 * by_row
    assert off_by_up_to_two == pytest.approx(plain, rel=0.2)


def test_what_the_rotation_mends_are_the_logits_that_weigh():
    p = fp8.paper_problem(1, N=4096, rows=256)
    before, after = (fp8.dissect(p, fp8.Recipe("", block=128, rotation=turn)) for turn in (False, True))
    assert after["operands"] == pytest.approx(before["operands"], rel=0.05)
    assert after["logits"] == pytest.approx(before["logits"], rel=0.15)
    assert after["weighted"] < 0.75 * before["weighted"]
    assert after["output"] < 0.8 * before["output"]
    integers = [fp8.dissect(p, fp8.Recipe("", "int8", 128, turn))["operands"] for turn in (False, True)]
    assert integers[1] < 0.5 * integers[0], "of whole numbers it mends every entry"


def test_the_real_sentence_has_no_outliers_to_spread():
    from flashlib import data
    for head in range(4):
        p = fp8.problem(*data.sentence().head(head))
        assert max(quant.crest(x) for x in (p.Q, p.K)) < 5
        plain = fp8.error(p, fp8.Recipe("", block=14))
        turned = np.mean([fp8.error(p, fp8.Recipe("", block=14, rotation=True), seed=n)
                          for n in range(8)])
        assert turned == pytest.approx(plain, rel=0.15)


@pytest.mark.parametrize("rows", [3, 1, 10_000])
def test_a_sample_that_cannot_be_halved_is_refused(rows):
    x = np.ones((64, 4))
    with pytest.raises(ValueError, match="rows: expected"):
        fp8.problem(x, x, x, rows=rows)


@pytest.mark.parametrize("wrong, error, message", [
    ({"rate": -1}, ValueError, "rate: expected a number from 0 to 1, got -1"),
    ({"rate": "x"}, TypeError, "rate: expected a number, got 'x'"),
    ({"size": float("nan")}, ValueError, "size: expected a finite number, got nan"),
    ({"size": -2}, ValueError, "size: expected a number of at least 0, got -2"),
])
def test_outliers_that_cannot_be_are_refused(wrong, error, message):
    with pytest.raises(error, match=f"^{message}"):
        fp8.outliers((4, 4), **wrong)


def test_a_format_that_does_not_exist_is_refused():
    p = fp8.problem(*np.ones((3, 4, 4)))
    with pytest.raises(ValueError, match="fmt: expected one of"):
        fp8.error(p, fp8.Recipe("", "e3m4"))
