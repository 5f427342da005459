"""Run the promises on the kernels in Triton's interpreter, and print JSON: name → failure or "".

A process of its own, because TRITON_INTERPRET must be set before Triton is imported, and a kernel
that was defined under it cannot be compiled. Usage: python -m tests.kernels.interpreter_cases float32,
or float16, or bfloat16 for why that is refused.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"

import torch

from flashlib.kernels import flash_attention
from tests.kernels.behaviours import SMALL_SHAPES, Backend, check_values
from tests.kernels.interpreter_oblong import OBLONG, check_oblong
from tests.kernels.problems import Shape, problem, solve
from tests.kernels.promises import LAYOUT, PROMISES
from tests.quick_interpreter import quicken


def outcome(check, *arguments):
    """Return "" or what failed; a crash is told apart from a failed check."""
    try:
        check(*arguments)
    except AssertionError as error:
        return str(error) or "assertion"
    except Exception as error:
        return f"crash: {type(error).__name__}: {error}"
    return ""


def everything(name):
    """Yield (name, outcome) for every promise and every small shape in a dtype, and for odd tiles."""
    dtype = getattr(torch, name)
    at = Backend("triton", dtype, N=40)
    for promise, check in PROMISES.items():
        if dtype == torch.float32 or promise not in LAYOUT:
            yield f"{promise}-{name}", outcome(check, at)
    for shape in SMALL_SHAPES:
        yield f"{shape}-{name}", outcome(check_values, at, shape)
    if dtype == torch.float32:
        for M, N in OBLONG:
            yield f"tiles of {M}×{N}", outcome(check_oblong, M, N)


def how_wrong_is_bfloat16():
    """Return the largest errors of one matmul in the interpreter: float16, float32, bfloat16."""
    import triton
    import triton.language as tl

    @triton.jit
    def product_kernel(A, B, C, N: tl.constexpr):
        i = tl.arange(0, N)
        at = i[:, None] * N + i[None, :]
        tl.store(C + at, tl.dot(tl.load(A + at), tl.load(B + at)))

    errors = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rng = torch.Generator().manual_seed(0)
        a, b = (torch.randn(32, 32, generator=rng).to(dtype) for _ in range(2))
        c = torch.zeros(32, 32)
        product_kernel[(1,)](a, b, c, 32)
        errors[str(dtype).split(".")[1]] = (c - a.float() @ b.float()).abs().max().item()
    x = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
    try:
        flash_attention(x, x, x, impl="triton")
    except NotImplementedError as refusal:
        errors["refusal"] = str(refusal)
    return errors


def same_when_quickened():
    """Return which tensors have the same bits in the interpreter as it is and as `quicken` has it."""
    given = [problem(Shape(1, 2, 1, 40, 49, 16, causal, window), dtype) for dtype, causal, window in (
        (torch.float32, True, None), (torch.float16, False, (9, 3)))]
    at = Backend("triton", torch.float32)
    before = [solve(one, at) for one in given]
    quicken()
    return [[torch.equal(x, y) for x, y in zip(solve(one, at), was, strict=True)]
            for one, was in zip(given, before, strict=True)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("error", RuntimeWarning)          # a GPU does not report an overflow either
    if "bfloat16" in sys.argv:
        print(json.dumps(how_wrong_is_bfloat16() | {"quickened": same_when_quickened()}))
    else:
        quicken()
        print(json.dumps(dict(everything(sys.argv[1]))))
