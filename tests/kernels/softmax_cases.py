"""Cases for the softmax kernels, run by test_softmax.py in a process whose Triton interprets."""

import json
import math
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl

from flashlib.course.notebook.interpreter_trace import poisoned, watch
from flashlib.kernels import softmax as kernels
from tests.quick_interpreter import quicken

DTYPES = {"float32": torch.float32, "float16": torch.float16}
SHAPES = [(1,), (7,), (3, 1), (5, 97), (2, 3, 64), (4, 1025), (2, 9001), (130, 2), (2, 40000)]


def error(y, x):
    """Return the largest error against float64, relative to the dtype's own rounding of the result."""
    right = torch.nan_to_num(torch.softmax(x.double(), -1))
    unit = torch.finfo(x.dtype).eps
    return ((y.double() - right).abs().max() / (unit * max(float(right.max()), 1e-30))).item()


def numbers():
    """Error in units of rounding for every kernel, dtype and shape, large logits and strides."""
    found = {}
    generator = torch.Generator().manual_seed(3)
    for impl in kernels.IMPLS:
        for name, dtype in DTYPES.items():
            for shape in SHAPES:
                x = (torch.randn(shape, generator=generator) * 4).to(dtype)
                found[f"{impl}-{name}-{'x'.join(map(str, shape))}"] = error(
                    kernels.softmax(x, impl=impl), x)
            base = torch.randn(12, 50, generator=generator).to(dtype)
            views = {"transposed": base.T, "every second column": base[:, ::2],
                     "slice": base[1:9:3, 5:44],
                     "expanded": base[:1].expand(6, 50), "negative": -1e4 * base,
                     "huge": 6e4 * torch.sign(base), "three axes": base.view(3, 4, 50).transpose(0, 1)}
            if name == "float32":
                views["beyond 1e35"] = -1e35 * base.abs()
            for what, x in views.items():
                found[f"{impl}-{name}-{what}"] = error(kernels.softmax(x, impl=impl), x)
    return found


def edges():
    """Facts that must be True."""
    inf, found = float("inf"), {}
    for impl in kernels.IMPLS:
        x = torch.tensor([[-inf] * 5, [-inf, 1, 2, -inf, 0], [math.nan, 1, 2, 3, 4]])
        y = kernels.softmax(x, impl=impl)
        found[f"{impl} row of −∞"] = bool((y[0] == 0).all())
        found[f"{impl} some −∞"] = bool(torch.allclose(y[1], torch.softmax(x[1], 0)))
        found[f"{impl} NaN stays in its row"] = bool(y[2].isnan().all() and not y[:2].isnan().any())
        long = torch.full((2, 9000), -inf)
        long[1, -1] = 3.0
        y = kernels.softmax(long, impl=impl)
        found[f"{impl} blocks of −∞ first"] = bool(y[0].sum() == 0 and y[1, -1] == 1)
        for shape in ((0, 4), (4, 0), (0,)):
            y = kernels.softmax(torch.empty(shape), impl=impl)
            found[f"{impl} empty {shape}"] = y.shape == shape
        twice = [kernels.softmax(torch.arange(5000.0).sin(), impl=impl) for _ in range(2)]
        found[f"{impl} repeats bit by bit"] = bool(torch.equal(*twice))
    return found


def derivatives():
    """Facts that must be True: gradients and tangents are those of torch's own softmax."""
    found = {}
    generator = torch.Generator().manual_seed(5)
    for impl in kernels.IMPLS:
        def ours(x, impl=impl):
            return kernels.softmax(x, impl=impl)

        def torchs(x):
            return torch.nan_to_num(torch.softmax(x, -1))

        for name, dtype in DTYPES.items():
            x = (torch.randn(4, 5, 70, generator=generator) * 3).to(dtype)
            x[0], x[1, :, :40] = -math.inf, -math.inf
            dy = torch.randn(4, 5, 70, generator=generator).to(dtype)
            grads = []
            for function, x_ in ((ours, x.clone()), (torchs, x.double())):
                x_.requires_grad_()
                (function(x_) * dy).sum().backward()
                grads.append(x_.grad.double().nan_to_num())
            found[f"{impl} {name} gradient"] = bool(
                (grads[0] - grads[1]).abs().max() < 4 * torch.finfo(dtype).eps)
        x, t = (torch.randn(4, 30, generator=generator) for _ in range(2))
        found[f"{impl} tangent"] = bool(torch.allclose(
            torch.func.jvp(ours, (x,), (t,))[1], torch.func.jvp(torchs, (x,), (t,))[1], atol=1e-6))
        squared = [torch.func.hessian(lambda x, f=f: f(x).pow(2).sum())(x[0]) for f in (ours, torchs)]
        found[f"{impl} second derivative"] = bool(torch.allclose(*squared, atol=1e-6))
        both = torch.stack((x, t), 1)
        found[f"{impl} vmap"] = torch.equal(torch.vmap(ours, in_dims=1)(both),
                                            torch.stack((ours(x), ours(t))))
        lazy = torch._neg_view(-x)
        found[f"{impl} negative bit"] = lazy.is_neg() and torch.equal(ours(lazy), ours(x))
        y = ours(x.clone().requires_grad_())
        found[f"{impl} asks autograd"] = y.requires_grad and not ours(x).requires_grad
        with torch.no_grad():
            found[f"{impl} no_grad"] = not ours(x.clone().requires_grad_()).requires_grad
    return found


def crossings():
    """How often X was loaded and Y stored, in crossings; and whether anything went outside."""
    found = {}
    x = poisoned(np.random.default_rng(1).normal(size=(5, 9000)).astype(np.float32))
    for impl in kernels.IMPLS:
        y = poisoned(np.full((5, 9000), np.nan, np.float32))
        with watch(x=x, y=y) as seen:
            kernels.launch(x, y, impl)
        found[impl] = [seen.nbytes("x", "load") / x.nbytes, seen.nbytes("y", "store") / y.nbytes,
                       seen.nbytes("x", "store") + seen.nbytes("y", "load"), seen.complaint()]
    y, three = torch.empty(7, 24), poisoned(np.ones((7, 24), np.float32))
    for config in ((4, 4, 0, 1), (2, 4, 1, 3), (8, 4, 0, 1)):
        with watch(x=three, y=y) as seen:
            kernels.launch(three, y, "fused", config)
        found[f"fused {config}"] = [seen.nbytes("x", "load") / three.nbytes,
                                    seen.nbytes("y", "store") / y.nbytes, 0, seen.complaint()]
    return found


@triton.jit
def shift_kernel(X, Y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Y + 1 + i, tl.load(X + 1 + i))


def watched():
    """Facts that must be True of the watch: the first element past the end is outside already."""
    x, y = poisoned(np.arange(8, dtype=np.float32)), poisoned(np.zeros(8, np.float32))
    with watch(x=x, y=y) as seen:
        shift_kernel[(1,)](x, y, 8)
    load, store = seen.touches
    beyond = torch.as_strided(y, (1,), (1,), y.storage_offset() + 8)
    last_only = [False] * 7 + [True]
    return {
        "watch: a load past the end": load.outside.tolist() == last_only,
        "watch: a store past the end": store.outside.tolist() == last_only,
        "watch: what is inside is done": y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7],
        "watch: what is outside is not": bool(beyond.isnan()),
        "watch: the complaint": seen.complaint() == (
            "program 0 loads element 8 of x (lane 7), which is outside")}


def refusals():
    """The message for each input that must be refused, before any launch."""
    cases = {
        "a list": (lambda: kernels.softmax([1.0])), "int": lambda: kernels.softmax(torch.arange(3)),
        "float64": lambda: kernels.softmax(torch.zeros(3, dtype=torch.float64)),
        "bfloat16": lambda: kernels.softmax(torch.zeros(3, dtype=torch.bfloat16)),
        "no axis": lambda: kernels.softmax(torch.tensor(1.0)),
        "impl": lambda: kernels.softmax(torch.zeros(3), impl="fast"),
        "sparse": lambda: kernels.softmax(torch.zeros(3).to_sparse())}
    found = {}
    for what, call in cases.items():
        try:
            call()
            found[what] = "accepted"
        except (TypeError, ValueError, NotImplementedError) as refusal:
            found[what] = str(refusal)
    return found


if __name__ == "__main__":
    quicken()
    print(json.dumps({"numbers": numbers(), "edges": edges() | derivatives() | watched(),
                      "crossings": crossings(), "refusals": refusals()}))
    sys.exit()
