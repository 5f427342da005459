"""Softmax three ways in Triton: in three passes, online in two, and fused in one.

The NumPy pages that they follow are in `flashlib.algorithms.softmax`. Taught in notebook 09.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
import triton
import triton.language as tl

from flashlib.kernels.ops import transformed

# Stands for −∞ in a running maximum: the lowest float32, so that −∞ minus it is −∞ and not NaN.
LOWEST = tl.constexpr(-3.4028234663852886e38)
IMPLS = ("fused", "online", "3pass")
LONGEST_FUSED_ROW = 32_768


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


def softmax(x: torch.Tensor, *, impl: Literal["fused", "online", "3pass"] = "fused") -> torch.Tensor:
    """Softmax over the last axis, by a Triton kernel; a row of −∞ gives zeros.

    Per element of x, "3pass" loads 3 times and stores once, "online" 2 and 1, "fused" 1 and 1. A row
    of more than 32,768 does not fit in one program: "fused" then runs the online kernel. Sums are
    float32. Taught in notebook 09.

    Args:
        x: (..., n), float16, bfloat16 or float32, any strides.
        impl: "fused", "online" or "3pass"; the result is the same to rounding. Gradients and tangents
            are formed by torch from y, whatever the kernel.
    Returns:
        y, contiguous, shape, dtype and device of x.
    Raises:
        ValueError, TypeError, NotImplementedError: before any launch. On CPU tensors Triton's
            interpreter must be switched on, and the dtype be float32 or float16.
    """
    _check(x, impl)
    if transformed() or (torch.is_grad_enabled() and x.requires_grad):
        return _Softmax.apply(x, impl)
    return _softmax(x, impl)


def _softmax(x, impl):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    N = x.shape[-1]
    rows, out = x.resolve_neg().reshape(-1, N), y.view(-1, N)
    launch(rows, out, impl)
    return y


class _Softmax(torch.autograd.Function):
    """The kernel and its Jacobian diag(y) − yyᵀ, which is symmetric: dy and dx take the same way."""

    forward = staticmethod(_softmax)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, dy):
        return _Softmax.jvp(ctx, dy, None), None

    @staticmethod
    def jvp(ctx, dx, _):
        (y,) = ctx.saved_tensors
        p, change = y.float(), dx.float()
        return (p * (change - (p * change).sum(-1, keepdim=True))).to(y.dtype)

    @staticmethod
    def vmap(info, in_dims, x, impl):
        return _Softmax.apply(x.movedim(in_dims[0], 0), impl), 0


def launch(x, y, impl, config=None):
    """Run one kernel on matrices that were checked; `config` replaces the table's choice."""
    M, N = x.shape
    strides = (*x.stride(), *y.stride())
    if impl == "fused" and N <= LONGEST_FUSED_ROW:
        BLOCK_M, num_warps, per_sm, stages = config or fused_config(N, x.element_size())
        programs = triton.cdiv(M, BLOCK_M)
        if per_sm:
            programs = min(programs, per_sm * _sms(x.device))
        softmax_fused_fwd_kernel[(programs,)](
            x, y, *strides, M, N, BLOCK_M, triton.next_power_of_2(N), stages, num_warps=num_warps)
        return
    kernel = softmax_3pass_fwd_kernel if impl == "3pass" else softmax_online_fwd_kernel
    BLOCK_N, num_warps = config or streaming_config(N)
    kernel[(M,)](x, y, *strides, N, BLOCK_N, num_warps=num_warps)


def fused_config(N: int, itemsize: int) -> tuple[int, int, int, int]:
    """Return BLOCK_M, num_warps, programs per SM (0: one for each row block) and STAGES.

    Measured on an H200: what counts is how many bytes a program holds.
    """
    row_bytes = triton.next_power_of_2(N) * itemsize
    if row_bytes <= 4096:
        return 4096 // row_bytes, 2, 0, 1
    if row_bytes <= 16384:
        return 1, 4, 0, 1
    if row_bytes <= 32768:
        return 1, 16, 0, 1
    if itemsize == 2:                       # one program fills an SM: it must load and compute at once
        return 1, 32, 1, 3
    return 1, 32, 0, 1


def streaming_config(N: int) -> tuple[int, int]:
    """Return BLOCK_N and num_warps of the kernels that walk along a row."""
    BLOCK_N = min(4096, max(16, triton.next_power_of_2(N)))
    return BLOCK_N, max(1, BLOCK_N // 512)


@functools.cache
def _sms(device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _check(x, impl):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x: expected a torch.Tensor, got {type(x).__name__}")
    if x.is_nested or x.layout != torch.strided:
        raise TypeError(f"x: expected a dense tensor, got "
                        f"{'a nested tensor' if x.is_nested else x.layout}")
    if x.ndim == 0:
        raise ValueError("x: expected at least one axis, got a single number")
    if impl not in IMPLS:
        raise ValueError(f"impl: expected one of {IMPLS}, got {impl!r}")
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"x: expected float16, bfloat16 or float32, got {x.dtype}")
    if x.is_cuda:
        capability = torch.cuda.get_device_capability(x.device)
        if x.dtype == torch.bfloat16 and capability < (8, 0):
            raise NotImplementedError("x: bfloat16 needs compute capability 8.0 or newer: use float16")
        return
    if not triton.knobs.runtime.interpret:
        raise NotImplementedError(
            "x: a CPU tensor needs Triton's interpreter: set TRITON_INTERPRET=1 before Python starts,"
            " or use torch.softmax")
    if x.dtype == torch.bfloat16:
        raise NotImplementedError(
            "x: Triton's interpreter is wrong for torch.bfloat16: expected float32 or float16")
