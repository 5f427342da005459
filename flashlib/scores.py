"""Softcap, ALiBi and sinks in NumPy: what is done to a tile of logits, and the derivative of it.

The order is fixed: scale, softcap, ALiBi, mask, sink. `flashlib.algorithms.flash_scores` is the page
that uses them. In torch: `flashlib.kernels.scores`; on tiles: `flashlib.kernels.triton.scores`.
"""

import numpy as np

from flashlib.arguments import check_number

LEAST_SOFTCAP, MOST_SOFTCAP = 1e-15, 1e15                   # scale / softcap stays a float32


def check_softcap(softcap) -> float:
    """Return a softcap as a float, or refuse what bounds no logit."""
    number = check_number("softcap", softcap)
    if not LEAST_SOFTCAP <= number <= MOST_SOFTCAP:
        raise ValueError(f"softcap: expected a number above 0, from {LEAST_SOFTCAP:.0e} to"
                         f" {MOST_SOFTCAP:.0e}, or None for none, got {softcap}")
    return number


def softcapped(S, softcap):
    """Return c · tanh(S / c): logits that stay inside ±c, and near 0 as they are."""
    return np.tanh(S / softcap) * softcap


def softcap_derivative(S, softcap):
    """Return the derivative of a softcap by its own *result* S: 1 − (S / c)²."""
    return 1 - (S / softcap) ** 2


def distances(rows: slice, keys: slice, Nq: int, Nk: int) -> np.ndarray:
    """Return |i + Nk − Nq − j| of a tile's pairs, (rows, keys): 0 where a query lies on a key."""
    i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
    return np.abs(i[:, None] + (Nk - Nq) - j)
