"""Folding into a state on a GPU: accuracy over shapes and dtypes; graphs; SMs in reserve; time.

Checks as in `gpu_checks`, and `run_into`, of which `run_gpu` makes a task for each dtype and head
dimension. Lengths are few, because compiling takes most of the time.
"""

from __future__ import annotations

import torch

from flashlib.kernels import flash_attention, fold, ops
from flashlib.masks import Window
from tests.kernels import fold_cases
from tests.kernels.behaviours import require
from tests.kernels.fold_cases import check_pieces
from tests.kernels.problems import Shape, dense, problem

HALVES = (torch.float16, torch.bfloat16)
# Pieces of unlike lengths; tiles that divide and that do not; rows that see nothing; grouped heads.
LENGTHS = ((1024, 1024), (333, 1100), (700, 450))


def into_tasks():
    """Return name → (dtype, head dimension)."""
    found = [(dtype, D) for dtype in HALVES for D in (32, 64, 96, 128, 256)]
    found += [(torch.float32, D) for D in (32, 64, 128)]
    return {f"into {str(dtype).split('.')[1]} D={D}": (dtype, D) for dtype, D in found}


def run_into(where, dtype, D, lengths=LENGTHS):
    """Hold O, lse and all gradients of pieces by the accuracy rule, and by the RMSE of one call."""
    shapes = [Shape(2, 4, (4, 2, 1)[i % 3], *N, D, causal) for i, N in enumerate(lengths)
              for causal in (False, True)]
    said = check_pieces(where.impl, dtype, where.device, shapes, seed=D)
    for name, check in fold_cases.CHECKS.items():
        if name != "pieces" and (D == 64 or name == "prefill"):
            more = (Shape(1, 4, 2, 640, 640, D, True), 256) if name == "prefill" else ()
            check(where.impl, dtype, where.device, *more)
    return said


def check_into_repeat_long(where, N=2432, times=50):
    """O, lse and gradients of four pieces are the same bits in every run, of many tiles and heads."""
    for dtype, D in ((torch.bfloat16, 64), (torch.float16, 128)):
        given = problem(Shape(2, 12, 4, N, N, D, True), dtype, device=where.device)
        first = None
        for _ in range(times):
            state = fold_cases.folded(given, 4, where.impl)
            found = [*state, *fold_cases.summed(given, *state, 4, where.impl)]
            first = found if first is None else first
            require(all(map(torch.equal, first, found)), "differs from run to run")
        for x, y, name in zip(first, dense(given), fold_cases.NAMES, strict=True):
            there = torch.isfinite(y)
            error = (x.double() - y)[there].abs().max() / y[there].abs().max()
            require(error.item() <= 1e-2, f"{name}: error {error:.1e}")
    return ""


def check_into_graph(where):
    """A CUDA graph replays a fold, with what the state and the keys hold by then."""
    given = problem(Shape(2, 8, 2, 512, 512, 64), torch.bfloat16, device=where.device)
    q, k, v = given[:3]
    state = fold(q, k, v, impl=where.impl)
    keys, values = k[:, :, :256].clone(), v[:, :, :256].clone()
    fold(q, keys, values, state, impl=where.impl)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fold(q, keys, values, state, impl=where.impl)
    expected = fold(q, k[:, :, 256:], v[:, :, 256:], fold(q, k[:, :, :256], v[:, :, :256],
                                                          impl=where.impl), impl=where.impl)
    state[1].fill_(-torch.inf), state[0].fill_(torch.nan)
    graph.replay()
    keys.copy_(k[:, :, 256:]), values.copy_(v[:, :, 256:])
    graph.replay()
    torch.cuda.synchronize()
    require(all(map(torch.equal, state, expected)), "the graph folds something else")
    return ""


def check_into_reserve(where):
    """SMs left to others change no bit, forward or into a state."""
    given = problem(Shape(2, 16, 4, 1500, 1500, 128, True), torch.bfloat16, device=where.device)
    q, k, v = given[:3]
    options = (Window(None, 0), 128 ** -0.5, where.impl)
    first, state = ops.forward(q, k, v, *options), fold(q, k, v, causal=True, impl=where.impl)
    for reserve in (1, 8, 16):
        require(all(map(torch.equal, first, ops.forward(q, k, v, *options, reserve=reserve))),
                "a reserve changes bits")
        again = torch.zeros_like(state[0]), torch.full_like(state[1], -torch.inf)
        ops.forward(q, k, v, *options, into=again, reserve=reserve)
        require(all(map(torch.equal, state, again)), "a reserve changes bits of a state")
    return ""


def milliseconds(call, times=30):
    """Return what one of many calls in a row takes the GPU."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def check_into_time(where, N=16384):
    """Say what folding costs beside one call of the same keys: no time is required of it."""
    said = []
    for D in (64, 128):
        q, k, v = (torch.randn(1, h, N, D, device=where.device, dtype=torch.bfloat16)
                   for h in (32, 8, 8))
        state = fold(q, k, v, impl=where.impl)
        for causal in (False, True):
            options = {"causal": causal, "impl": where.impl}
            one = milliseconds(lambda x=(q, k, v), o=options: flash_attention(*x, **o))
            into = milliseconds(lambda x=(q, k, v, state), o=options: fold(*x, **o))
            said.append(f"D={D}{' causal' * causal}: {one:.2f} ms, into a state {into:.2f} ms")
    return "; ".join(said)
