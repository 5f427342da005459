"""Reference solutions of chapter 10."""

import numpy as np


def natural_lse(m, l):
    """10.1: m + log2(l) is the lse in base 2; ln 2 brings it back."""
    return (m + np.log2(l)) * np.log(2)


def address(b, h, i, j, strides, GROUP):
    """10.2: one product per axis, and the head that the query head shares."""
    stride_b, stride_h, stride_n, stride_d = strides
    return b * stride_b + h // GROUP * stride_h + i * stride_n + j * stride_d


def stages(tile, BLOCK_M, BLOCK_N, Nq, Nk):
    """10.3: the last row says where to stop, the first where the mask begins."""
    first_row_sees = max(tile * BLOCK_M + 1 + Nk - Nq, 0)
    end = min(Nk, max((tile + 1) * BLOCK_M + Nk - Nq, 0))
    return min(Nk, first_row_sees) // BLOCK_N * BLOCK_N, end


def fold_scaled(acc, l, m, qk, v, scale_log2):
    """10.4: the kernel's five lines, in NumPy."""
    m_new = np.maximum(m, qk.max(axis=1) * scale_log2)
    p = np.exp2(qk * scale_log2 - m_new[:, None])
    alpha = np.exp2(m - m_new)
    return acc * alpha[:, None] + p @ v, l * alpha + p.sum(axis=1), m_new
