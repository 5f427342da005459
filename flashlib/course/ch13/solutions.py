"""Reference solutions of chapter 13."""

import numpy as np

from flashlib import quant


def by_hand():
    """13.1: steps of 2, 1/128 and 2⁻⁹ (19 is a tie: 18 has an odd mantissa); 500 saturates."""
    return 20, 9 / 128, 3 / 512, 448


def block_scales(x, rows):
    """13.2: the largest |x| of each block over 448; 1 where a block is all zeros."""
    amax = np.array([np.abs(x[start:start + rows]).max() for start in range(0, len(x), rows)])
    return np.where(amax > 0, amax / 448, 1.0)


def rotate(x, signs):
    """13.3: signs, log₂ d rounds of sums and differences, and √d once."""
    n, d = x.shape
    y, h = x * signs, 1
    while h < d:
        pairs = y.reshape(n, d // (2 * h), 2, h)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        y = np.stack([a + b, a - b], axis=2).reshape(n, d)
        h *= 2
    return y / np.sqrt(d)


def prepare(Q, K, V, signs):
    """13.4: Q and K by the same rotation, which cancels in QKᵀ; in PV nothing would cancel V's."""
    return quant.rotate(Q, signs), quant.rotate(K, signs), V
