"""Softmax by one of three Triton kernels: in three passes, online in two, or fused in one.

Taught in notebook 09.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from triton import knobs

from flashlib.arguments import check_choice
from flashlib.kernels.ops import transformed
from flashlib.kernels.triton.softmax import (
    softmax_3pass_fwd_kernel,
    softmax_fused_fwd_kernel,
    softmax_online_fwd_kernel,
)

IMPLS = ("fused", "online", "3pass")
LONGEST_FUSED_ROW = 32_768


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
    def backward(ctx, *gradients):
        return _Softmax.jvp(ctx, *gradients), None

    @staticmethod
    def jvp(ctx, *changes):
        (y,) = ctx.saved_tensors
        p, change = y.float(), changes[0].float()
        return (p * (change - (p * change).sum(-1, keepdim=True))).to(y.dtype)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        x, impl = inputs
        return _Softmax.apply(x.movedim(in_dims[0], 0), impl), 0


def launch(x, y, impl, config=None):
    """Run one kernel on matrices that were checked; `config` replaces the table's choice."""
    M, N = x.shape
    strides = (*x.stride(), *y.stride())
    kernel: Any                                             # what Triton makes of it takes options too
    if impl == "fused" and N <= LONGEST_FUSED_ROW:
        BLOCK_M, num_warps, per_sm, stages = config or fused_config(N, x.element_size())
        programs = -(-M // BLOCK_M)
        if per_sm:
            programs = min(programs, per_sm * _sms(x.device))
        kernel = softmax_fused_fwd_kernel
        kernel[(programs,)](x, y, *strides, M, N, BLOCK_M, _padded(N), stages, num_warps=num_warps)
        return
    kernel = softmax_3pass_fwd_kernel if impl == "3pass" else softmax_online_fwd_kernel
    BLOCK_N, num_warps = config or streaming_config(N)
    kernel[(M,)](x, y, *strides, N, BLOCK_N, num_warps=num_warps)


def fused_config(N: int, itemsize: int) -> tuple[int, int, int, int]:
    """Return BLOCK_M, num_warps, programs per SM (0: one for each row block) and STAGES.

    Measured on an H200: what counts is how many bytes a program holds.
    """
    row_bytes = _padded(N) * itemsize
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
    BLOCK_N = min(4096, max(16, _padded(N)))
    return BLOCK_N, max(1, BLOCK_N // 512)


def _padded(N: int) -> int:
    """Return the columns of a program that holds a row: N up to a power of 2."""
    return 1 << (N - 1).bit_length()


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
    check_choice("impl", impl, IMPLS)
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"x: expected float16, bfloat16 or float32, got {x.dtype}")
    if x.is_cuda:
        capability = torch.cuda.get_device_capability(x.device)
        if x.dtype == torch.bfloat16 and capability < (8, 0):
            raise NotImplementedError("x: bfloat16 needs compute capability 8.0 or newer: use float16")
        return
    if not knobs.runtime.interpret:
        raise NotImplementedError(
            "x: a CPU tensor needs Triton's interpreter: set TRITON_INTERPRET=1 before Python starts,"
            " or use torch.softmax")
    if x.dtype == torch.bfloat16:
        raise NotImplementedError(
            "x: Triton's interpreter is wrong for torch.bfloat16: expected float32 or float16")
