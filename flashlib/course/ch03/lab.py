"""What chapter 03 counts: the rows that a softmax keeps, by format and by scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flashlib.numerics import DTYPES, facts


def kept_rows(y) -> int:
    """Return how many rows of weights sum to 1 within 0.1; one that overflowed sums to 0 or NaN."""
    return int(np.isclose(y.sum(axis=1), 1, atol=0.1).sum())


def survival(softmax_in: Callable, logits, scales: Sequence[float]) -> tuple[dict, dict]:
    """Return what `figures.overflow_map` draws: rows kept, and the scale where loss is predicted.

    Args:
        softmax_in: (dtype, x, shift) -> the softmax of x − shift in a format.
        logits: of one head, (rows, n).
    """
    kept, walls = {}, {}
    highest = logits.max(axis=1, keepdims=True)
    for title, shift in (("Textbook: every format has a wall", np.zeros_like(highest)),
                         ("Safe: no wall but the largest number", highest)):
        kept[title] = {dtype: [kept_rows(softmax_in(dtype, k * logits, k * shift)) for k in scales]
                       for dtype in DTYPES}
        walls[title] = {dtype: (facts(dtype).largest if shift.any() else facts(dtype).exp_overflow)
                        / logits.max() for dtype in DTYPES}
    return kept, walls
