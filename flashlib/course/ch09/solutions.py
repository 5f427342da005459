"""Reference solutions of chapter 09; the kernels are made so by the checks, with `triton.jit`."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton"):
    import triton.language as tl


def double_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, N, BLOCK: tl.constexpr):
    """09.1: every element by both strides of its tensor."""
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride_xm + col * stride_xn, mask=col < N)
    tl.store(Y + row * stride_ym + col * stride_yn, 2 * x, mask=col < N)


def row_max_kernel(X, Y, stride_xm, N, BLOCK: tl.constexpr):
    """09.2: lanes beyond the row are not read and count as −∞."""
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride_xm + col, mask=col < N, other=float("-inf"))
    tl.store(Y + row, tl.max(x, 0))


def online_kernel(X, Y, stride_xm, stride_ym, N, BLOCK: tl.constexpr):
    """09.3: maximum and sum in one pass over blocks, division in a second one."""
    row = tl.program_id(0)
    m = tl.full([], -3e38, tl.float32)
    l = tl.full([], 0.0, tl.float32)
    for start in range(0, N, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * stride_xm + col, mask=col < N, other=float("-inf"))
        m_new = tl.maximum(m, tl.max(x, 0))
        l = l * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new), 0)
        m = m_new
    for start in range(0, N, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * stride_xm + col, mask=col < N, other=float("-inf"))
        tl.store(Y + row * stride_ym + col, tl.exp(x - m) / l, mask=col < N)


def programs_per_sm(registers, shared_bytes, num_warps):
    """09.4: each resource alone allows so many; the scarcest one decides."""
    return min(65_536 // (registers * 32 * num_warps), 233_472 // (shared_bytes + 1_024),
               64 // num_warps, 32)


def matmul_kernel(A, B, C, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, M, N, K,
                  BLOCK: tl.constexpr):
    """09.5: a tile of C, summed over tiles along K."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(A + m[:, None] * stride_am + k[None, :] * stride_ak,
                    mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        b = tl.load(B + k[:, None] * stride_bk + n[None, :] * stride_bn,
                    mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(C + m[:, None] * stride_cm + n[None, :] * stride_cn, acc,
             mask=(m < M)[:, None] & (n < N)[None, :])
