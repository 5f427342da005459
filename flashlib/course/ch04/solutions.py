"""Reference solutions of notebook 04."""

from __future__ import annotations

import numpy as np


def rescale_factor(m_old, m_new):
    """Return what ℓ is multiplied by when the running maximum goes from m_old to m_new."""
    return np.exp(m_old - m_new)


def merge_states(a, b):
    """Return the state (m, l) of having seen what a and what b saw; both are pairs (m, l)."""
    m = np.maximum(a[0], b[0])
    shift = 0.0 if m == -np.inf else m          # both empty: any finite number, it multiplies 0
    return m, a[1] * np.exp(a[0] - shift) + b[1] * np.exp(b[0] - shift)


def count_and_expect(x):
    """Return (how often folding x rescales, how often to expect it if x were shuffled)."""
    counted = int(np.sum(np.diff(np.maximum.accumulate(x)) > 0))
    expected = sum(1 / i for i in range(2, len(x) + 1))
    return counted, expected


def trusts(merge):
    """Return whether `merge` is the merge of softmax states; the proof of its laws comes first.

    Proof. The states are (m, ℓ) with a finite m and ℓ ≥ 0, and (−∞, 0). Let φ(m, ℓ) = (m, ℓ·eᵐ),
    with φ(−∞, 0) = (−∞, 0). On the states it loses nothing: for a finite m, ℓ = (ℓ·eᵐ)·e⁻ᵐ. (It
    would lose the ℓ of (−∞, 1), which is no state: nothing that was read has a sum of 1.)
    The merge of two states is a state. For (m, ℓ) = merge(a, b) with a finite m, multiply
    ℓ = ℓₐ·e^{mₐ−m} + ℓ_b·e^{m_b−m} by eᵐ:

        ℓ·eᵐ = ℓₐ·e^{mₐ} + ℓ_b·e^{m_b}

    For m = −∞ both sides are 0. So under φ the merge is a maximum in the first place and a plain
    sum in the second. Both are associative and commutative with identity −∞ and 0, hence so is the
    merge.

    The laws do not pin it down (a forgotten rescale obeys them all), so the test also compares with
    the state of the concatenated row.
    """
    def state(x):
        m = np.max(x, initial=-np.inf)
        return m, np.sum(np.exp(x - m)) if m > -np.inf else 0.0

    def same(a, b):
        return np.allclose(a, b, rtol=1e-12, atol=0)           # NaN equals nothing

    rng = np.random.default_rng(0)
    for _ in range(100):
        parts = [rng.choice([1, 30]) * rng.standard_normal(rng.integers(0, 5))
                 + rng.choice([-1000, 0, 50, 1000]) for _ in range(3)]
        parts[2] = parts[0][::-1] if rng.random() < 0.3 else parts[2]      # equal maxima
        a, b, c = map(state, parts)
        if not (same(merge(a, b), state(np.concatenate(parts[:2])))
                and same(merge(a, c), state(np.concatenate(parts[::2])))
                and same(merge(merge(a, b), c), merge(a, merge(b, c)))
                and same(merge(a, b), merge(b, a))):
            return False
    empty = (-np.inf, 0.0)
    return same(merge(empty, empty), empty)
