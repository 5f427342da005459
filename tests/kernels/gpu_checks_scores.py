"""Softcap, ALiBi and sinks on a GPU: the accuracy rule over shapes, dtypes, options; graphs; decoding.

Checks as in `gpu_checks`, and `run_scores`, of which `run_gpu` makes a task for each dtype, head
dimension and mask. Lengths are few, because compiling takes most of the time.
"""

from __future__ import annotations

import itertools
import math

import torch

from flashlib.kernels import flash_attention, flash_decode
from tests.kernels.behaviours import require
from tests.kernels.behaviours_scores import scored
from tests.kernels.budget import Score, cancellation_floor, largest_error, score
from tests.kernels.decode_cases import Case, inputs, judge, paged, scores_of
from tests.kernels.problems import NAMES, Shape, dense, problem, solve

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = {torch.float32: (64,), torch.float16: (64, 96, 128, 256),
             torch.bfloat16: (64, 96, 128, 256)}
# softcap, dimensions of the slopes, whether there is a sink: what models ask for, and all at once
OPTIONS = ((30.0, 0, False), (2.0, 0, False), (None, 1, False), (None, 0, True), (5.0, 2, True))
LENGTHS = ((1024, 1024), (513, 513), (97, 641), (641, 97))
WINDOWS = {False: (200, 60), True: (127, 0)}                # with sinks, as gpt-oss has them
MASKS = ((False, None), (True, None), (True, (300, 0)))
SIZES = ((3, 8, 2, 1, 3000, 128), (2, 32, 4, 1, 5000, 64), (2, 8, 2, 4, 2049, 128),
         (2, 64, 8, 1, 1030, 64), (1, 16, 4, 16, 4100, 128), (3, 6, 3, 2, 515, 96))


def _within(where, given):
    """Yield (name, Score) of O, lse and all gradients of one problem, by the accuracy rule."""
    expected, got = dense(given), solve(given, where)
    half = given.q.dtype.itemsize == 2
    plain = dense(given, given.q.dtype) if half else [None] * 6
    for name, x, y, z in zip((*NAMES, "dsink"), got, expected, plain, strict=False):
        if name == "lse":
            finite = torch.isfinite(y)
            require(torch.equal(x[~finite].double(), y[~finite]), "−∞ in lse")
            size = y[finite].abs().max().item() if finite.any() else 0.0
            yield name, Score(largest_error(x[finite], y[finite]), 1e-5 * max(1.0, size))
        elif name == "dsink":
            # A sum over rows of float32 whose O and dO are 16 bits wide: held relative to its terms.
            size = y.abs().max().item()
            bound = 1.25 * largest_error(z.double(), y) if half else 0.0
            band = (torch.finfo(given.q.dtype).eps if half else 1e-5) * max(size, 1.0)
            yield name, Score(largest_error(x, y), bound + band)
        else:
            yield name, score(x, y, z, floor=cancellation_floor(given))


def run_scores(where, dtype, D, causal, lengths=LENGTHS, options=OPTIONS):
    """Hold every option at every length by the accuracy rule; return (cases, failures, worst)."""
    failures, worst, count = [], (0.0, ""), 0
    cases = [(*case, window) for case in itertools.product(lengths, options)
             for window in ((None, WINDOWS[causal]) if case[1][2] else (None,))]
    for seed, ((Nq, Nk), option, window) in enumerate(cases):
        shape = Shape(2, 4, (4, 2, 1)[seed % 3], Nq, Nk, D, causal, window)
        given = scored(where, problem(shape, dtype, seed=seed, device=where.device,
                                      with_lse=seed % 2 == 0), *option)
        for name, found in _within(where, given):
            what = f"{name} {shape} {option} {str(dtype).split('.')[1]}"
            count, worst = count + 1, max(worst, (found.ratio, what))
            if not found.ratio <= 1:
                failures.append(f"{what}: {found.error:.2e} > {found.allowed:.2e}")
    return count, failures, worst


def check_scores_decode(where, all_sizes=SIZES):
    """Decoding with scores by the accuracy rule; in pages and alone in the batch, the same bits."""
    worst, count = (0.0, ""), 0
    for dtype, sizes, (causal, window) in itertools.product(DTYPES, all_sizes, MASKS):
        case = Case(*sizes, causal=causal, window=window, lengths=True)
        given, every = inputs(case, dtype, where.device), scores_of(case, where.device)
        for names in (("softcap",), ("alibi",), ("sink",), tuple(every)):
            scores = {name: every[name] for name in names}
            options = {"lengths": given.lengths, "causal": causal, "window": window, "return_lse": True}
            got = flash_decode(*given[:3], **options, **scores)
            for name, found in judge(case, given, got, **scores).items():
                worst, count = max(worst, (found.ratio, f"{name} {case} {names} {dtype}")), count + 1
                require(found.ratio <= 1, f"{name} {case} {names} {dtype}: {found.error:.2e} >"
                                          f" {found.allowed:.2e}")
        k, v, table = paged(given, 16)
        again = flash_decode(given.q, k, v, table=table, **options, **scores)
        require(all(map(torch.equal, got, again)), f"pages change bits: {case} {dtype}")
        alone = flash_decode(*(x[1:2] for x in given[:3]), **options | {"lengths": given.lengths[1:2]},
                             **scores | {"alibi": every["alibi"][1:2]}) if case.B > 1 else got
        require(case.B == 1 or all(torch.equal(x[0], y[1]) for x, y in zip(alone, got, strict=True)),
                f"alone it differs: {case} {dtype}")
    return f"{count} tensors, worst {worst[0]:.2f} of what is allowed: {worst[1]}"


def check_scores_graph(where):
    """A CUDA graph replays with other slopes and sinks; torch.compile gives the bits of eager."""
    given = scored(where, problem(Shape(2, 8, 2, 300, 300, 64, True), torch.bfloat16,
                                  device=where.device), 20.0, 1, True)
    q, k, v = given[:3]
    alibi, sink = given.alibi.clone(), given.sink.clone()

    def call():
        return where(q, k, v, causal=True, softcap=20.0, alibi=alibi, sink=sink)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = call()
    alibi *= 2
    sink -= 3
    graph.replay()
    torch.cuda.synchronize()
    require(torch.equal(recorded, call()), "the graph has the old slopes or sinks")
    compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
    for x, y in zip(solve(given, where), solve(given, compiled), strict=True):
        require(torch.equal(x, y), "compiled it differs from eager")
    return ""


def check_scores_repeat_long(where, N=2432, times=50):
    """O, lse and all gradients are the same bits in every run, of many tiles and heads."""
    said = []
    for dtype, D in ((torch.bfloat16, 64), (torch.float16, 128)):
        given = scored(where, problem(Shape(2, 12, 4, N, N, D, True), dtype, device=where.device),
                       15.0, 1, True)
        first = solve(given, where)
        worst = max(found.ratio for _, found in _within(where, given))
        require(worst <= 1 and math.isfinite(worst), f"{worst:.2f} of what is allowed")
        for _ in range(times - 1):
            require(all(map(torch.equal, first, solve(given, where))), "differs from run to run")
        said.append(f"D={D}: worst {worst:.2f} of what is allowed")
    return "; ".join(said)
