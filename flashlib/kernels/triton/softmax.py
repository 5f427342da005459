"""Softmax three ways: in three passes, online in two, and fused in one. Taught in notebook 09.

The NumPy pages that they follow are in `flashlib.algorithms.softmax`.
"""

import triton
import triton.language as tl

# Stands for −∞ in a running maximum: the lowest float32, so that −∞ minus it is −∞ and not NaN.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def softmax_3pass_fwd_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, N,
                             BLOCK_N: tl.constexpr):
    """Write the softmax of one row, which is read three times: maximum, sum, division.

    Args:
        X, Y: pointers to matrices of rows.  stride_*: in elements, from row to row, from column to
            column.  N: columns.  BLOCK_N: columns that come at a time.
    """
    row = tl.program_id(0).to(tl.int64)
    x_row, y_row = X + row * stride_xm, Y + row * stride_ym
    m = tl.full([BLOCK_N], LOWEST, tl.float32)              # one running maximum per lane
    for start in tl.range(0, N, BLOCK_N):                   # pass 1: reads N
        col = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + col.to(tl.int64) * stride_xn, mask=col < N, other=float("-inf"))
        m = tl.maximum(m, x.to(tl.float32))
    m = tl.max(m, 0)
    l = tl.zeros([BLOCK_N], tl.float32)
    for start in tl.range(0, N, BLOCK_N):                   # pass 2: reads N
        col = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + col.to(tl.int64) * stride_xn, mask=col < N, other=float("-inf"))
        l += tl.exp(x.to(tl.float32) - m)
    l = tl.sum(l, 0)
    l = tl.where(l == 0.0, 1.0, l)                          # a row of −∞ gives zeros
    for start in tl.range(0, N, BLOCK_N):                   # pass 3: reads N, writes N
        col = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + col.to(tl.int64) * stride_xn, mask=col < N, other=float("-inf"))
        y = tl.exp(x.to(tl.float32) - m) / l
        tl.store(y_row + col.to(tl.int64) * stride_yn, y.to(Y.dtype.element_ty), mask=col < N)


@triton.jit
def softmax_online_fwd_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, N,
                              BLOCK_N: tl.constexpr):
    """Write the softmax of one row, which is read twice: maximum and sum together, division.

    Milakov & Gimelshein 2018, arXiv:1805.02867, Algorithm 3, by blocks. Arguments as in
    `softmax_3pass_fwd_kernel`.
    """
    row = tl.program_id(0).to(tl.int64)
    x_row, y_row = X + row * stride_xm, Y + row * stride_ym
    m, l = tl.full([], LOWEST, tl.float32), tl.full([], 0.0, tl.float32)
    for start in tl.range(0, N, BLOCK_N):                   # pass 1: reads N
        col = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + col.to(tl.int64) * stride_xn, mask=col < N, other=float("-inf"))
        x = x.to(tl.float32)
        m_new = tl.maximum(m, tl.max(x, 0))
        l = l * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new), 0)
        m = m_new
    l = tl.where(l == 0.0, 1.0, l)                          # a row of −∞ gives zeros
    for start in tl.range(0, N, BLOCK_N):                   # pass 2: reads N, writes N
        col = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_row + col.to(tl.int64) * stride_xn, mask=col < N, other=float("-inf"))
        y = tl.exp(x.to(tl.float32) - m) / l
        tl.store(y_row + col.to(tl.int64) * stride_yn, y.to(Y.dtype.element_ty), mask=col < N)


@triton.jit
def softmax_fused_fwd_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, M, N,
                             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr):
    """Write the softmax of whole rows that stay in registers between their only load and their store.

    Args:
        X, Y, stride_*, N: as in `softmax_3pass_fwd_kernel`.  M: rows.
        BLOCK_M: rows that come at a time.  BLOCK_N: N rounded up to a power of 2.
        STAGES: row blocks in flight; with fewer programs than row blocks, one computes while the
            next ones load.
    """
    col = tl.arange(0, BLOCK_N)
    first, step = tl.program_id(0) * BLOCK_M, tl.num_programs(0) * BLOCK_M
    for start in tl.range(first, M, step, num_stages=STAGES):
        row = (start + tl.arange(0, BLOCK_M)).to(tl.int64)
        inside = (row < M)[:, None] & (col < N)[None, :]
        x = tl.load(X + row[:, None] * stride_xm + col.to(tl.int64)[None, :] * stride_xn, mask=inside,
                    other=float("-inf")).to(tl.float32)     # reads N per row
        m = tl.maximum(tl.max(x, 1), LOWEST)
        p = tl.exp(x - m[:, None])
        l = tl.sum(p, 1)
        y = p / tl.where(l == 0.0, 1.0, l)[:, None]         # a row of −∞ gives zeros
        tl.store(Y + row[:, None] * stride_ym + col.to(tl.int64)[None, :] * stride_yn,
                 y.to(Y.dtype.element_ty), mask=inside)     # writes N per row
