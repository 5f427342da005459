"""What chapter 03 counts: the rows that a softmax keeps, by format and by scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flashlib.numerics import DTYPES, facts


def kept_rows(y) -> int:
    """Return how many rows of weights sum to 1 within 0.1; one that overflowed sums to 0 or NaN."""
    return int(np.isclose(y.sum(axis=1), 1, atol=0.1).sum())


def survival(softmax_in: Callable, quiet, loud, scales: Sequence[float]) -> tuple[dict, dict]:
    """Return what `figures.overflow_map` draws: rows kept, and the scale where loss is predicted.

    Args:
        softmax_in: (dtype, x, shift) -> the softmax of x − shift in a format.
        quiet, loud: logits of two heads, (rows, n).
    """
    kept, walls = {}, {}
    for title, x, safely in (("Textbook, quiet head", quiet, False),
                             ("Textbook, loud head", loud, False), ("Safe, loud head", loud, True)):
        shift = x.max(axis=1, keepdims=True) if safely else np.zeros((len(x), 1))
        kept[title] = {dtype: [kept_rows(softmax_in(dtype, k * x, k * shift)) for k in scales]
                       for dtype in DTYPES}
        walls[title] = {dtype: (facts(dtype).largest if safely else facts(dtype).exp_overflow) / x.max()
                        for dtype in DTYPES}
    return kept, walls
