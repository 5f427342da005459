"""What only a GPU can show of decoding: 16 bits, CUDA graphs, the batch's company, large offsets.

Checks as in `gpu_checks`. Those of a size compile much, and are tasks of `run_gpu`.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch

from flashlib.kernels import flash_attention, flash_decode
from tests.kernels.behaviours import require
from tests.kernels.decode_cases import Case, expected, inputs, judge, paged

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# B, H, H_k, N_q, room, D
SIZES = ((3, 8, 2, 1, 3000, 128), (2, 8, 8, 1, 700, 64), (2, 32, 4, 1, 5000, 64),
         (2, 8, 2, 4, 2049, 128), (1, 16, 4, 16, 4100, 128), (2, 4, 1, 30, 1000, 64),
         (3, 6, 3, 2, 515, 96), (2, 4, 2, 1, 1500, 256), (2, 4, 4, 3, 600, 8), (2, 4, 2, 7, 333, 40))
PACKED = ((64, 32, 8, 1, 2048, 64), (64, 32, 8, 1, 2048, 128), (64, 32, 8, 8, 2048, 64))
MASKS = ((False, None), (True, None), (True, (100, 0)), (False, (300, 5)))


def values(where, sizes):
    """Every dtype, size and mask by the accuracy rule, dense and in pages: the same bits."""
    worst, count = (0.0, ""), 0
    for dtype, (causal, window) in itertools.product(DTYPES, MASKS):
        case = Case(*sizes, causal=causal, window=window, lengths=True)
        given = inputs(case, dtype, where.device)
        got = flash_decode(*given[:3], lengths=given.lengths, causal=causal, window=window,
                           return_lse=True)
        for name, score in judge(case, given, got).items():
            worst, count = max(worst, (score.ratio, f"{name} {case} {dtype}")), count + 1
            require(score.ratio <= 1, f"{name} {case} {dtype}: {score.error:.2e} >"
                                      f" {score.allowed:.2e}")
        for page in (16, 64) if causal and window is None else ():
            k, v, table = paged(given, page)
            again = flash_decode(given.q, k, v, table=table, lengths=given.lengths, causal=causal,
                                 window=window, return_lse=True)
            require(all(map(torch.equal, got, again)), f"pages of {page} change bits: {case} {dtype}")
    return f"{count} tensors, worst {worst[0]:.2f} of what is allowed: {worst[1]}"


def company(where, sizes):
    """Bits do not depend on the rest of the batch, nor change in 100 runs."""
    for dtype in DTYPES[:2]:
        case = Case(*sizes, causal=True, lengths=True)
        given = inputs(case._replace(B=9), dtype, where.device)
        whole = flash_decode(*given[:3], lengths=given.lengths, causal=True, return_lse=True)
        for b in (0, 4, 8):
            alone = flash_decode(*(x[b:b + 1] for x in given[:3]), lengths=given.lengths[b:b + 1],
                                 causal=True, return_lse=True)
            require(all(torch.equal(x[0], y[b]) for x, y in zip(alone, whole, strict=True)),
                    f"alone it differs: {case} {dtype}")
        for _ in range(100):
            again = flash_decode(*given[:3], lengths=given.lengths, causal=True, return_lse=True)
            require(all(map(torch.equal, again, whole)), f"differs from run to run: {case} {dtype}")
    return ""


def runs(where, sizes):
    """What a program takes, a unit of keys or a run of them, changes no bit."""
    if where.device == "cpu":
        return "left out: needs a GPU"
    from flashlib.kernels.backends.decode import BACKEND
    from flashlib.kernels.problem import Problem
    from flashlib.masks import window_of

    for dtype, (causal, window) in itertools.product(DTYPES, MASKS[1:3]):
        case = Case(*sizes, causal=causal, window=window, lengths=True)
        given = inputs(case, dtype, where.device)
        p = Problem.of(*given[:3], window=window_of(causal, window))
        config = BACKEND.table(p, "forward")
        found = [BACKEND.forward(*given[:3], p, 0.1, config, given.lengths, None, units)
                 for units in (1, config.UNITS)]
        require(all(map(torch.equal, *found)), f"runs and units differ: {case} {dtype}")
    return ""


def check_decode_graph(where):
    """A graph captured at length 1 is right when it is replayed at every other length."""
    for sizes in SIZES[:4]:
        case = Case(*sizes, causal=True, lengths=True)
        given = inputs(case, torch.bfloat16, where.device)
        k, v, table = paged(given, 16)
        lengths, n = torch.ones_like(given.lengths), case.room
        options = {"lengths": lengths, "causal": True, "return_lse": True}
        calls = (functools.partial(flash_decode, *given[:3], **options),
                 functools.partial(flash_decode, given.q, k, v, table=table, **options))
        for call in calls:
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                call()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph, stream=stream):
                    held = call()
            for length in (n, 1, n // 2, 0, 17):
                lengths.fill_(length)
                graph.replay()
                torch.cuda.synchronize()
                require(all(map(torch.equal, held, call())), f"length {length} in a graph: {case}")
            lengths.fill_(1)
    return ""


def poison(where, sizes):
    """What lies behind a length, and what a table holds there, is never used: NaN, and page 2³⁰."""
    for dtype in DTYPES:
        case = Case(*sizes, causal=True, lengths=True)
        given = inputs(case, dtype, where.device)
        clean = flash_decode(*given[:3], lengths=given.lengths, causal=True)
        k, v, table = paged(given, 16, garbage=True)
        for b, length in enumerate(given.lengths.tolist()):
            given.k[b, :, length:], given.v[b, :, length:] = math.nan, math.nan
        require(torch.equal(flash_decode(*given[:3], lengths=given.lengths, causal=True), clean),
                f"NaN behind the length is used: {case} {dtype}")
        got = flash_decode(given.q, k, v, table=table, lengths=given.lengths, causal=True)
        require(torch.equal(got, clean), f"a page behind the length is used: {case} {dtype}")
    return ""


def check_decode_packed(where, all_sizes=PACKED):
    """Where several programs share an SM, each with a run, pages of any size have the bits of none."""
    for sizes, (causal, window) in itertools.product(all_sizes, MASKS[1:3]):
        case = Case(*sizes, causal=causal, window=window, lengths=True)
        given = inputs(case, torch.bfloat16, where.device)
        expected = flash_decode(*given[:3], lengths=given.lengths, causal=causal, window=window)
        for page in (16, 64, 128):
            k, v, table = paged(given, page, garbage=True)
            got = flash_decode(given.q, k, v, table=table, lengths=given.lengths, causal=causal,
                               window=window)
            require(torch.equal(got, expected), f"pages of {page} change bits: {case}")
    return ""


def check_decode_auto(where):
    """`flash_attention` takes these kernels by itself, right and with its gradients."""
    from flashlib.kernels.backends import choose
    from flashlib.kernels.problem import Problem

    for sizes in SIZES[:4]:
        case = Case(*sizes, causal=True)
        given = inputs(case, torch.bfloat16, where.device)
        q, k, v = (x.requires_grad_() for x in given[:3])
        require(choose(Problem.of(q, k, v), "auto", "forward").name == "decode", "auto takes another")
        o, lse = flash_attention(q, k, v, causal=True, return_lse=True)
        for name, score in judge(case, given, (o.detach(), lse.detach())).items():
            require(score.ratio <= 1, f"{name} {case}: {score.error:.2e} > {score.allowed:.2e}")
        gradients = torch.autograd.grad(o.sum(), (q, k, v))
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        right = torch.autograd.grad(expected(case, *wide, None)[0].sum(), wide)
        for x, y in zip(gradients, right, strict=True):
            error = ((x.double() - y).norm() / y.norm()).item()
            require(error < 2e-2, f"a gradient is off by {error:.3g}: {case}")
    return ""


def check_decode_far(where):
    """A cache of more than 2³¹ elements, and pages that lie beyond them."""
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        return "left out: needs 30 GiB of GPU memory"
    B, H_k, room, D = 17, 8, 2**17, 128                     # 2³¹ + 2²⁷ elements
    k = torch.randn(B, H_k, room, D, dtype=torch.bfloat16, device=where.device)
    q = torch.randn(B, 32, 1, D, dtype=torch.bfloat16, device=where.device)
    whole = flash_decode(q, k, k)
    require(torch.equal(whole[-1:], flash_decode(q[-1:], k[-1:], k[-1:])), "far away it differs")
    pages = k.view(B * H_k * room // 64, 1, 64, D)
    table = torch.arange(pages.shape[0] - 64, pages.shape[0], dtype=torch.int32, device=where.device)
    got = flash_decode(q[:1, :4], pages, pages, table=table[None])
    near = k[-1:, -1:, -4096:]
    require(torch.equal(got, flash_decode(q[:1, :4], near, near)), "far pages differ")
    return ""


BY_SIZE = {f"decode {check.__name__}": check for check in (runs, company, values, poison)}


def decode_tasks():
    """Return name → (check, size), one for every check of a size."""
    return {f"{name} {sizes}": (name, sizes) for name in BY_SIZE for sizes in SIZES}


def run_decode(where, name, sizes):
    """Run one check at one size; return what it says."""
    return BY_SIZE[name](where, sizes)
