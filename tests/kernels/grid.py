"""The grid of shapes for the accuracy rule, and how one of its columns is scored. Needs torch only."""

from __future__ import annotations

from typing import NamedTuple

import torch

from flashlib.kernels import flash_attention
from tests.kernels.budget import Grid, Score, cancellation_floor, score
from tests.kernels.problems import NAMES, Shape, dense, problem, solve

HEAD_DIMS = (1, 8, 16, 24, 32, 40, 59, 64, 80, 96, 111, 128, 192, 256)
ONE_ROW = (1, 40, 64, 128, 256)                             # those that meet N_q = 1 and N_k = 1
FLOAT32_DIMS = (16, 40, 64, 128, 256)
# Odd lengths first, then multiples of a tile. A length says which binary runs (ragged or not,
# divisible by 16 or not), so that few kinds with many members keep the compiler's time short.
LENGTHS = ((63, 63), (97, 97), (113, 113), (1023, 1023), (1025, 1025), (63, 1025), (1025, 63),
           (257, 131), (131, 259), (5, 301), (301, 5), (129, 65), (33, 513), (128, 128), (512, 256),
           (256, 1024), (384, 384))
SHORT = ((1, 1), (1, 301), (97, 1))


class Column(NamedTuple):
    """All lengths for one head dimension and mask: what one task of a test runs."""

    dtype: torch.dtype
    D: int
    causal: bool

    def __str__(self):
        return f"{str(self.dtype).split('.')[1]}-D{self.D}{'-causal' if self.causal else ''}"

    def shapes(self):
        """Return the shapes; heads and groups change with D and mask, not with the length."""
        place = HEAD_DIMS.index(self.D) + self.causal
        B, H, Hk = ((2, 3, 3), (2, 4, 2), (1, 6, 2))[place % 3]
        lengths = [*LENGTHS, *(SHORT if self.D in ONE_ROW else ())]
        if self.dtype == torch.float32:                     # its kernels take long to compile
            lengths = [pair for pair in lengths if max(pair) <= 520 and (min(pair) > 1 or self.D == 64)]
        return [Shape(B, H, Hk, *pair, self.D, self.causal) for pair in lengths]


def columns(*dtypes):
    """Return every column of the grid for the given dtypes."""
    return [Column(dtype, D, causal) for dtype in dtypes for causal in (False, True)
            for D in (FLOAT32_DIMS if dtype == torch.float32 else HEAD_DIMS)]


def judge(given, *, impl, grids=None):
    """Return tensor → Score of one problem; its errors go into `grids`, by tensor."""
    expected = dense(given)
    plain = dense(given, given.q.dtype) if given.q.dtype.itemsize == 2 else [None] * 5
    got = solve(given, flash_attention, impl=impl)
    floor = cancellation_floor(given)
    scores = {}
    for name, x, y, z in zip(NAMES, got, expected, plain, strict=True):
        if name == "lse":                                   # float32 from exact products
            finite = torch.isfinite(y)
            same = torch.equal(x[~finite].double(), y[~finite])
            error = (x.double() - y)[finite].abs().max().item() if finite.any() else 0.0
            allowed = 1e-5 * max(1.0, y[finite].abs().max().item() if finite.any() else 0.0)
            scores[name] = Score(error if same else float("inf"), allowed)
            continue
        scores[name] = score(x, y, z, floor=floor)
        if grids is not None and z is not None:
            grids.setdefault(name, Grid()).add(x, y, z)
    return scores


def run_column(column, *, impl, device):
    """Return (number of cases, list of (ratio, where) above 1, worst (ratio, where), grids)."""
    grids, failures, worst = {}, [], (0.0, "")
    shapes = column.shapes()
    for seed, shape in enumerate(shapes):
        given = problem(shape, column.dtype, seed=seed, device=device, with_lse=seed % 3 == 0)
        for name, result in judge(given, impl=impl, grids=grids).items():
            where = f"{name} {shape} {str(column.dtype).split('.')[1]}"
            worst = max(worst, (result.ratio, where))
            if not result.ratio <= 1:
                failures.append(f"{where}: {result.error:.2e} > {result.allowed:.2e}")
    return len(shapes), failures, worst, grids


def merged(many):
    """Return the sum of several dictionaries of grids."""
    total = {}
    for grids in many:
        for name, grid in grids.items():
            into = total.setdefault(name, Grid())
            for field in vars(grid):
                setattr(into, field, getattr(into, field) + getattr(grid, field))
    return total
