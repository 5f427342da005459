"""The accuracy rule: how far a low-precision attention may lie from float64.

Per case: max error ≤ 1.25 × that of the plain computation in the same dtype, plus one rounding band.
Over a grid: RMSE ≤ that of the plain computation, and no bias: |mean error| < 3σ/√n. float32: max
error ≤ 1e-5 of the largest value. Needs torch only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

FACTOR = 1.25
FLOAT32 = 1e-5


class Score(NamedTuple):
    """The largest error of one tensor of one case, and what it may be."""

    error: float
    allowed: float

    @property
    def ratio(self):
        """Above 1 it is too much; NaN counts as infinite."""
        if not math.isfinite(self.error):
            return math.inf
        return self.error / self.allowed if self.allowed else (math.inf if self.error else 0.0)


def band(reference, dtype):
    """Return one rounding band: 2 · max|(r + 0.3 − 0.3) − r|, r the reference rounded to dtype."""
    r = reference.to(dtype)
    return 2 * ((r + 0.3 - 0.3) - r).abs().max().item() if r.numel() else 0.0


def largest_error(got, reference):
    """Return the largest |got − reference|; infinite where one is infinite or NaN and the other not."""
    if got.numel() == 0:
        return 0.0
    got = got.double()
    same = (got == reference) | (got.isnan() & reference.isnan())
    error = torch.where(same, 0.0, (got - reference).abs())
    return error.nan_to_num(nan=math.inf, posinf=math.inf).max().item()


def score(got, reference, plain=None, *, floor=0.0):
    """Hold one tensor against float64 by the rule of its dtype.

    `floor` is what is allowed where exact arithmetic gives zero everywhere, such as dQ with one key:
    there, both sides of the rule are zero, and what remains is float32 rounding of terms that cancel.
    """
    error = largest_error(got, reference)
    if not bool(reference.any()):
        return Score(error, floor)
    if got.dtype in (torch.float32, torch.float64):
        finite = reference[torch.isfinite(reference)]
        largest = finite.abs().max().item() if finite.numel() else 0.0
        return Score(error, FLOAT32 * largest)
    return Score(error, FACTOR * largest_error(plain, reference) + band(reference, got.dtype))


def cancellation_floor(given):
    """Return the float32 rounding, with room, of a gradient whose terms cancel."""
    q, k, v, do = (x.double().abs().max().item() if x.numel() else 0.0 for x in given[:4])
    D, N = given.q.shape[-1], max(given.q.shape[-2], given.k.shape[-2])
    return 2.0 ** -20 * max(q, k) * v * do * D * math.sqrt(N)


class Grid:
    """Errors of many cases, each in units of its reference's RMS, so that every case counts."""

    def __init__(self):
        self.count, self.sum, self.squares, self.plain_squares = 0, 0.0, 0.0, 0.0

    def add(self, got, reference, plain):
        """Take in one tensor of one case."""
        rms = reference.square().mean().sqrt().item() if reference.numel() else 0.0
        if not rms > 0 or not math.isfinite(rms):
            return
        errors, plain_errors = ((x.double() - reference) / rms for x in (got, plain))
        self.count += errors.numel()
        self.sum += errors.sum().item()
        self.squares += errors.square().sum().item()
        self.plain_squares += plain_errors.square().sum().item()

    @property
    def rmse_ratio(self):
        """RMSE over that of the plain computation; at most 1 is asked for."""
        return math.sqrt(self.squares / self.plain_squares) if self.plain_squares else math.inf

    @property
    def bias(self):
        """|mean error| in units of σ/√n; below 3 is asked for."""
        mean = self.sum / self.count
        sigma = math.sqrt(max(self.squares / self.count - mean * mean, 0.0))
        return abs(mean) / (sigma / math.sqrt(self.count)) if sigma else (math.inf if mean else 0.0)

    def verdict(self):
        """Return what is wrong, in words, or an empty string."""
        wrong = []
        if not self.count:
            wrong.append("no case")
        elif not self.rmse_ratio <= 1:
            wrong.append(f"RMSE {self.rmse_ratio:.3f} × that of the plain computation, expected ≤ 1")
        if self.count and not self.bias < 3:
            wrong.append(f"mean error {self.bias:.1f} σ/√n from zero, expected < 3")
        return "; ".join(wrong)
