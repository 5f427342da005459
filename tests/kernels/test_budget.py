"""The accuracy rule itself, and the tiled torch backend under it on the CPU."""

import math

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels.configs import HOPPER, padded  # noqa: E402
from tests.kernels.budget import Grid, Score, band, largest_error, score  # noqa: E402
from tests.kernels.grid import LENGTHS, Column, columns, judge, merged  # noqa: E402
from tests.kernels.problems import Shape, dense, problem  # noqa: E402

HALVES = (torch.float16, torch.bfloat16)
either = pytest.mark.parametrize("dtype", HALVES, ids=("float16", "bfloat16"))


@either
def test_the_reference_backend_keeps_the_rule(dtype):
    """Per case and over the grid; the long and wide shapes are left to the GPU."""
    grids = []
    for column in columns(dtype):
        if column.D in (1, 16, 40, 111):
            for seed, shape in enumerate(column.shapes()[::2]):
                if max(shape.Nq, shape.Nk) > 300:
                    continue
                grids.append({})
                given = problem(shape, dtype, seed=seed, with_lse=seed % 3 == 0)
                for name, result in judge(given, impl="reference", grids=grids[-1]).items():
                    assert result.ratio <= 1, f"{name} {shape} {result}"
    for name, grid in merged(grids).items():
        assert grid.verdict() == "", f"{name}: {grid.verdict()}"


def test_float32_keeps_the_rule():
    for shape in (Shape(1, 2, 1, 97, 113, 40, True), Shape(1, 2, 2, 301, 5, 64),
                  Shape(2, 2, 1, 97, 1, 8)):
        for name, result in judge(problem(shape), impl="reference").items():
            assert result.ratio <= 1, f"{name} {shape} {result}"


@either
def test_the_plain_computation_keeps_its_own_rule_and_worse_does_not(dtype):
    given = problem(Shape(1, 2, 2, 97, 97, 40), dtype, with_lse=False)
    expected, plain = dense(given), dense(given, dtype)
    for x, y in zip(plain[2:], expected[2:], strict=True):
        assert score(x, y, x).ratio <= 1
        far = (y + 1.3 * (x.double() - y).abs().max() + 1.1 * band(y, dtype)).to(dtype)
        assert score(far, y, x).ratio > 1
    assert score(expected[0].to(dtype), expected[0], plain[0]).ratio < 0.8
    spoilt = expected[0].to(dtype)
    spoilt[0, 0, 0, 0] = math.nan
    assert score(spoilt, expected[0], plain[0]).ratio == math.inf


def test_the_band_is_the_rounding_of_numbers_near_a_third():
    assert band(torch.zeros(3).double(), torch.float16) == 0
    r = torch.linspace(-2, 2, 1001).double()
    assert 2 ** -11 <= band(r, torch.float16) <= 4 * 2 ** -10
    assert 2 ** -8 <= band(r, torch.bfloat16) <= 4 * 2 ** -7
    assert band(torch.zeros(0).double(), torch.float16) == 0


def test_infinities_must_agree():
    y = torch.tensor([1.0, math.inf, math.nan]).double()
    assert largest_error(y.float(), y) == 0
    assert largest_error(torch.tensor([1.0, 2.0, math.nan]), y) == math.inf
    assert largest_error(torch.tensor([math.inf, math.inf, math.nan]), y) == math.inf
    assert Score(0.0, 0.0).ratio == 0 and Score(1e-9, 0.0).ratio == math.inf


def test_what_is_exactly_zero_is_held_to_the_floor():
    zero = torch.zeros(4).double()
    assert score(torch.full((4,), 1e-7).half(), zero, zero, floor=1e-6).ratio < 1
    assert score(torch.full((4,), 1e-5).half(), zero, zero, floor=1e-6).ratio > 1


def test_the_grid_sees_a_bias_and_a_larger_error():
    rng = torch.Generator().manual_seed(0)
    y = torch.randn(200, 64, generator=rng, dtype=torch.float64)
    noise = torch.randn(200, 64, generator=rng, dtype=torch.float64) * 1e-3

    def grid(got):
        made = Grid()
        made.add(got, y, y + noise)
        return made

    assert grid(y + 0.9 * noise).verdict() == ""
    assert "RMSE 1.100" in grid(y + 1.1 * noise).verdict()
    assert "σ/√n from zero" in grid(y + 0.5 * noise + 5e-5).verdict()
    assert "no case" in Grid().verdict()
    chopped = (y.abs().half().double() - 2 ** -12 * y.abs()) * 1.0       # as truncation would
    biased = Grid()
    biased.add(chopped, y.abs(), y.abs().half().double() + noise)
    assert "σ/√n" in biased.verdict()


def test_the_grid_is_large_and_awkward_and_reaches_every_row_of_the_table():
    half = [column for column in columns(torch.bfloat16)]
    shapes = [shape for column in half for shape in column.shapes()]
    assert len(set(shapes)) == len(shapes) >= 400
    assert {1, 63, 97, 113, 1023, 1025} <= {n for pair in LENGTHS for n in pair} | {1}
    assert {1, 40, 59, 111} <= {shape.D for shape in shapes}
    assert any(s.Hk < s.H for s in shapes) and any(s.causal and s.Nk < s.Nq for s in shapes)
    assert {(padded(c.D), c.causal) for c in half} == set(HOPPER)
    assert len(columns(torch.float32)) >= 10 and str(Column(torch.float16, 8, True)) == (
        "float16-D8-causal")
