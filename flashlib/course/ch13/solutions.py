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
    """13.3: signs, then every block of columns by H of its width, the widest that divides d."""
    width = x.shape[1] & -x.shape[1]
    return quant.hadamard((x * signs).reshape(-1, width)).reshape(x.shape)


def prepare(Q, K, V, signs):
    """13.4: Q and K by the same rotation, which cancels in QKᵀ; in PV nothing would cancel V's."""
    return quant.rotate(Q, signs), quant.rotate(K, signs), V
