"""Rank correlation, ties included, and what trying the promising candidates first saves."""

import math

import numpy as np


def ranks(values) -> np.ndarray:
    """Return the rank of each value, 1 for the smallest; equal values share their mean rank."""
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or np.isnan(values).any():
        raise ValueError("values: expected a list of numbers without NaN")
    order = np.sort(values)
    first, last = np.searchsorted(order, values, "left"), np.searchsorted(order, values, "right")
    return (first + last + 1) / 2


def spearman(x, y) -> float:
    """Return Spearman's rank correlation: 1 for the same order, 0 for none, −1 for the reverse.

    It is the ordinary correlation of the ranks. If all of `x` or all of `y` are equal there is no
    order to compare, and the result is NaN.
    """
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"x, y: expected equally many values, at least 2, got {len(x)} and {len(y)}")
    a, b = (ranks(values) - (len(x) + 1) / 2 for values in (x, y))
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread else float("nan")


def best_so_far(order_by, seconds) -> np.ndarray:
    """Return the mean slowdown after 1, 2 … trials, smallest `order_by` first, ties in random order."""
    found, order_by, seconds = [], np.asarray(order_by, dtype=float), np.asarray(seconds, dtype=float)
    for value in np.unique(order_by):
        tied = np.minimum(seconds[order_by == value], seconds[order_by < value].min(initial=np.inf))
        found.append(expected_best(tied) * tied.min())
    return np.concatenate(found) / seconds.min()


def expected_best(seconds) -> np.ndarray:
    """Return the mean slowdown against the best of all after 1, 2, … trials in a random order.

    Exact, not simulated: the i-th fastest of n is the best of k with probability C(n−i, k−1)/C(n, k).
    """
    seconds = np.sort(np.asarray(seconds, dtype=float))
    n = len(seconds)
    return np.array([sum(math.comb(n - i, k - 1) * s for i, s in enumerate(seconds, 1))
                     / math.comb(n, k) for k in range(1, n + 1)]) / seconds[0]
