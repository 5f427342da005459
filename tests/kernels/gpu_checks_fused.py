"""What only a Hopper GPU can show of the fused backward: programs that wait for one another do end.

Checks as in `gpu_checks`. On another device they check what they are given there.
"""

from __future__ import annotations

import itertools
import random

import torch

from flashlib.kernels import flash_attention
from tests.kernels.behaviours import require
from tests.kernels.budget import cancellation_floor, score
from tests.kernels.problems import Shape, dense, problem, solve

WIDTHS = (32, 40, 64, 96, 128)
MASKS = ((False, None), (True, None), (False, (300, 40)), (False, (None, 90)))


def _attention(where):
    """Return attention through the Gluon kernels on a Hopper GPU, or the one under test elsewhere."""
    if where.device == "cpu" or torch.cuda.get_device_capability()[0] != 9:
        return where
    return lambda q, k, v, **options: flash_attention(q, k, v, impl="gluon", **options)


def check_fused_accuracy(where, cases=420, longest=1500):
    """All gradients by the accuracy rule, at random lengths, masks, groups and widths."""
    draw, worst, attention = random.Random(0), 0.0, _attention(where)
    for seed in range(cases):
        D, (causal, window) = WIDTHS[seed % len(WIDTHS)], draw.choice(MASKS)
        Hk, group = draw.randint(1, 3), draw.choice((1, 1, 2, 4))
        Nq, Nk = draw.randint(1, longest), draw.randint(1, longest)
        dtype = (torch.float16, torch.bfloat16)[seed % 2]
        shape = Shape(draw.randint(1, 2), Hk * group, Hk, Nq, Nk, D, causal, window)
        given = problem(shape, dtype, seed=seed, device=where.device, with_lse=seed % 3 == 0)
        got = solve(given, attention)
        for name, x, y, z in list(zip(("O", "lse", "dQ", "dK", "dV"), got, dense(given),
                                      dense(given, dtype), strict=True))[2:]:
            result = score(x, y, z, floor=cancellation_floor(given))
            require(result.ratio <= 1, f"{name} of {shape} in {dtype}: {result.error:.1e} >"
                                       f" {result.allowed:.1e}")
            worst = max(worst, result.ratio)
    return f"{cases} cases, at worst {worst:.2f} of what is allowed"


def _launches(given, attention):
    """Return a function that computes the gradients anew, and returns them."""
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    o = attention(q, k, v, causal=given.causal)
    return lambda: torch.autograd.grad(o, (q, k, v), given.do, retain_graph=True)


def _require_same(first, again, what):
    require(all(torch.equal(x, y) for x, y in zip(first, again, strict=True)), f"other bits {what}")


def _problems(where, N):
    for D, causal in itertools.product((32, 64, 128), (False, True)):
        yield problem(Shape(2, 4, 4, N, N, D, causal), torch.bfloat16, device=where.device,
                      with_lse=False)


def _cases(where, N):
    for given in _problems(where, N):
        yield _launches(given, _attention(where))


def check_fused_bits(where, N=2000, times=1000):
    """The same bits in every one of many runs."""
    for launch in _cases(where, N):
        first = launch()
        for _ in range(times - 1):
            _require_same(first, launch(), "from run to run")
    return f"{times} runs of six problems"


def check_fused_beside_others(where, N=2000, times=20):
    """The same bits, and an end, while forwards of others hold half of the SMs, and on two streams."""
    if where.device == "cpu":
        return "left out: needs a GPU"
    beside, second = torch.cuda.Stream(), torch.cuda.Stream()
    other = problem(Shape(1, 8, 8, 1536, 65536, 128), torch.bfloat16, device=where.device)
    for launch in _cases(where, N):
        first = launch()
        torch.cuda.synchronize()
        for _ in range(times):
            with torch.cuda.stream(beside), torch.no_grad():
                flash_attention(*other[:3])                 # 64 tiles of 192 rows: 64 SMs for long
            with torch.cuda.stream(second):
                again = launch()
            _require_same(first, launch(), "beside another kernel")
            second.synchronize()
            _require_same(first, again, "on a second stream")
        torch.cuda.synchronize()
    return f"{times} times six problems"


def check_fused_in_a_graph(where, N=2000, times=20):
    """The same bits from a CUDA graph that is replayed: each replay finds its locks at 0."""
    if where.device == "cpu":
        return "left out: needs a GPU"
    for given in _problems(where, N):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):                     # a backward runs where its forward ran
            launch = _launches(given, _attention(where))
            first = launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            again = launch()
        for _ in range(times):
            graph.replay()
            torch.cuda.synchronize()
            _require_same(first, again, "from a graph")
    return f"{times} replays of six problems"
