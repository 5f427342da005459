"""What only a GPU can show: sizes beyond 32 bits, memory, poison by tile, time, other devices.

Every check takes a `Where` and raises AssertionError, or returns a sentence to print. Needs torch only.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from flashlib.course.bench.attention import microseconds
from flashlib.kernels import flash_attention
from flashlib.kernels.configs import configs_for
from tests.kernels import (
    gpu_checks_decode,
    gpu_checks_doors,
    gpu_checks_fused,
    gpu_checks_gluon,
    gpu_checks_into,
    gpu_checks_scores,
    gpu_checks_varlen,
)
from tests.kernels.behaviours import TOLERANCE, close, require
from tests.kernels.problems import Problem, Shape, dense, off, problem, solve

FULL = 2 ** 31


class Where(NamedTuple):
    """The backend and the device under test."""

    impl: str
    device: str

    def __call__(self, q, k, v, **options):
        return flash_attention(q, k, v, impl=self.impl, **options)


def needs(gigabytes):
    """Return a sentence if the GPU has less free memory than that, else None."""
    free = torch.cuda.mem_get_info()[0] / 2 ** 30
    return f"left out: needs {gigabytes} GiB of GPU memory, {free:.0f} are free" if (
        free < gigabytes) else None


def run_configuration(where, dtype, D, causal, N=2432, times=200, heads=12):
    """One row of the table at a length of many tiles: right, and the same bits 200 times over.

    So many heads that a program computes several query tiles, one after the other.
    """
    given = problem(Shape(2, heads, heads, N, N, D, causal), dtype, device=where.device)
    first = solve(given, where)
    close(first, dense(given), dtype, "long")
    for _ in range(times - 1):
        for x, y in zip(first, solve(given, where), strict=True):
            require(torch.equal(x, y), "differs from run to run")
    return ""


def forward_config(given):
    """Return the tiles of the kernel that "auto" takes for a problem."""
    from flashlib.kernels.backends import choose
    from flashlib.kernels.problem import CAUSAL, Problem

    p = Problem.of(*given[:3], window=CAUSAL)
    return choose(p, "auto", "forward").table(p, "forward")


def check_poisoned_keys_by_tile(where):
    """A NaN key or value in a tile that is skipped reaches nothing; in the diagonal tile, a value does.

    As documented: in the tile that the diagonal cuts, a NaN *value* reaches all rows of that tile of
    O, and a NaN *key* all rows of that tile of dQ, for a tensor core multiplies zeros too; a NaN key
    never reaches O of a row that may not see it.
    """
    said = []
    for D in (64, 128):
        N = 512
        given = problem(Shape(1, 1, 1, N, N, D, True), torch.bfloat16, device=where.device,
                        with_lse=False)
        table = configs_for(torch.cuda.get_device_capability(), 2, D, True)
        forward = table.forward if where.impl == "triton" else forward_config(given)
        clean = solve(given, where)
        at = N // 2 + 5
        k, v = given.k.clone(), given.v.clone()
        k[:, :, at], v[:, :, at] = math.nan, math.nan

        def first_touched(config, at=at):
            tile = at // config.BLOCK_N * config.BLOCK_N    # its first key
            return tile // config.BLOCK_M * config.BLOCK_M  # the first row of the tile that loads it

        for name, inputs, index in (("value, O", given._replace(v=v), 0),
                                    ("key, O", given._replace(k=k), 0),
                                    ("value, dQ", given._replace(v=v), 2),
                                    ("key, dQ", given._replace(k=k), 2)):
            got = solve(inputs, where)[index][0, 0]
            start = first_touched(forward if index == 0 else table.dq)
            require(torch.equal(got[:start], clean[index][0, 0, :start]), f"{name}: leaks by tiles")
            require(bool(got[at:].isnan().any(-1).all()), f"{name}: a visible NaN was hidden")
            hidden = int(got[start:at].isnan().any(-1).sum())
            if name == "key, O":
                require(hidden == 0, "a NaN key reached O of a row that may not see it")
            said.append(f"{name} D{D}: {hidden} of {at - start} rows of the diagonal tile")
    return "; ".join(said)


def check_many_heads(where, many=65_536):
    """More than 65,535 batch entries times heads, in each of the two places."""
    for shape in (Shape(many + 5, 1, 1, 17, 19, 16, True), Shape(1, many + 2, many + 2, 5, 33, 64),
                  Shape(2, many, many // 2, 9, 8, 8)):
        given = problem(shape, torch.float16, device=where.device)
        close(solve(given, where), dense(given), torch.float16, str(shape))
    return f"B·H up to {2 * many:,}"


def check_large_offsets_into_inputs(where, FULL=FULL):
    """Batch, head and row strides that put elements beyond 2³¹, with NaN everywhere between."""
    if where.device != "cpu" and (lacking := needs(16)):
        return lacking
    room = torch.full((FULL + 2 ** 22,), math.nan, dtype=torch.bfloat16, device=where.device)
    for place, far in (("batch", (FULL, 129 * 64, 64, 1)), ("head", (64, FULL, 64, 1)),
                       ("row", (8, 16, FULL // 128, 1))):
        shape = {"batch": (2, 2, 129, 64), "head": (1, 2, 129, 64), "row": (1, 1, 129, 8)}[place]
        given = problem(Shape(shape[0], shape[1], shape[1], 129, 129, shape[3], True), torch.bfloat16,
                        device=where.device)
        for name in ("q", "k", "v", "do"):
            view = torch.as_strided(room, shape, far)
            view.copy_(getattr(given, name))
            got = solve(given._replace(**{name: view}), where)
            close(got, dense(given), torch.bfloat16, f"{name}, {place}")
            view.fill_(math.nan)
    return "strides of 2³¹ for batch, head and row"


def check_large_tensors(where, H=16_640, N=1024, D=128):
    """Q, K, V, O and the gradients hold more than 2³¹ elements each."""
    if where.device != "cpu" and (lacking := needs(40)):
        return lacking
    x = torch.randn(1, H, N, D, dtype=torch.bfloat16, device=where.device).requires_grad_()
    o, lse = where(x, x, x, causal=True, return_lse=True)
    parts = torch.autograd.grad(o, x, x.detach())[0]
    for heads in (slice(0, 2), slice(H - 2, H)):
        few = x.detach()[:, heads]
        expected = dense(Problem(few, few, few, few, None, True, None))
        close((o.detach()[:, heads], lse.detach()[:, heads]), expected, torch.bfloat16, str(heads))
        require(off(parts[:, heads], sum(expected[2:])) <= 2 * TOLERANCE[torch.bfloat16], "gradient")
    return f"{H * N * D / 1e9:.2f}e9 elements a tensor"


def check_a_long_sequence(where, N=128 * 1024, D=128):
    """N = 128k, D = 128, one head, forward and backward, sampled rows and keys against float64."""
    dtype, gpu = torch.bfloat16, where.device != "cpu"
    shape = Shape(1, 1, 1, N, N, D, True)
    given = problem(shape, dtype, device=where.device, with_lse=False)
    began = time.perf_counter()
    o, lse, dq, dk, dv = (x[0, 0] for x in solve(given, where))
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    q, k, v, do = (x[0, 0].double() for x in given[:4])
    scale, chunk = D ** -0.5, 1024
    true_lse = torch.empty(N, dtype=torch.float64, device=where.device)
    delta = torch.empty_like(true_lse)
    sample = torch.tensor([0, 1, 63, 64, N // 26, N // 2 - 1, N // 2, N // 4 * 3 + 1, N - 2, N - 1],
                          device=where.device)
    want_dk, want_dv = (torch.zeros(len(sample), D, dtype=torch.float64, device=where.device)
                        for _ in range(2))
    keys = torch.arange(N, device=where.device)
    for start in range(0, N, chunk):
        rows = slice(start, start + chunk)
        stop = start + chunk
        S = (q[rows] @ k[:stop].T) * scale
        S.masked_fill_(keys[None, :stop] > keys[rows][:, None], -math.inf)
        true_lse[rows] = torch.logsumexp(S, -1)
        P = torch.exp(S - true_lse[rows, None])
        O = P @ v[:stop]
        delta[rows] = (O * do[rows]).sum(-1)
        here = [i for i, row in enumerate(sample.tolist()) if start <= row < stop]
        for i in here:
            row = int(sample[i])
            dS = P[row - start] * (v[:stop] @ do[row] - delta[row])
            require(off(o[row], O[row - start]) <= 2e-2, f"O, row {row}")
            require(off(dq[row], dS @ k[:stop] * scale) <= TOLERANCE[dtype], f"dQ, row {row}")
        seen = sample < stop
        p = P[:, sample[seen]]
        ds = p * (do[rows] @ v[sample[seen]].T - delta[rows, None])
        want_dv[seen] += p.T @ do[rows]
        want_dk[seen] += ds.T @ q[rows] * scale
    require(off(lse, true_lse) <= 1e-5, "lse")
    require(off(dv[sample], want_dv) <= TOLERANCE[dtype], "dV")
    require(off(dk[sample], want_dk) <= TOLERANCE[dtype], "dK")
    return f"forward and backward with first compilation took {seconds:.2f} s"


def check_memory(where):
    """Beyond inputs and outputs, forward needs lse, backward delta and sums: O(N), nothing N×N."""
    said = []
    for N in (16_384, 32_768):
        given = problem(Shape(1, 4, 2, N, N, 64, True), torch.bfloat16, device=where.device,
                        with_lse=False)
        q, k, v = (x.requires_grad_() for x in given[:3])
        solve(given, where)                                 # compile first
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        o = where(q, k, v, causal=True)
        forward = torch.cuda.max_memory_allocated() - before - o.nbytes
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gradients = torch.autograd.grad(o, (q, k, v), given.do)
        backward = torch.cuda.max_memory_allocated() - before - sum(x.nbytes for x in gradients)
        row = 4 * 4 * N                                     # one float32 a query
        fused = where.impl != "triton" and torch.cuda.get_device_capability(where.device)[0] == 9
        sums = 4 * q.numel() if fused else 0                # the fused kernel adds up dQ in float32
        require(forward <= 1.1 * row + 4096, f"forward: {forward} bytes, lse has {row}")
        require(backward <= 2.2 * row + sums + 4096,
                f"backward: {backward} bytes, delta has {row}, dQ's sums {sums}")
        said.append(f"N={N}: forward +{forward} B, backward +{backward} B")
    return "; ".join(said)


def check_overhead(where):
    """In steady state a forward call costs the CPU at most 50 µs; beside it, SDPA's."""
    q, k, v = (torch.randn(1, 4, 128, 64, dtype=torch.bfloat16, device=where.device)
               for _ in range(3))

    with torch.no_grad():
        ours = microseconds(lambda: flash_attention(q, k, v), where.device)
        theirs = microseconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
                              where.device)
    x = q.clone().requires_grad_()
    both = microseconds(lambda: flash_attention(x, k, v).backward(q), where.device, calls=100)
    said = f"{ours:.1f} µs a call, SDPA {theirs:.1f}; forward and backward {both:.0f}"
    require(ours <= 50, f"{said}; expected at most 50")
    return said


def check_streams_and_graphs(where):
    """It runs on the current stream, and a CUDA graph can record it and replay it."""
    given = problem(Shape(2, 4, 2, 200, 300, 64, True), torch.bfloat16, device=where.device)
    expected = dense(given)
    q, k, v = (x.clone() for x in given[:3])
    where(q, k, v, causal=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)                       # a launch on another stream would win
        late = q + 0
        o = where(late, k, v, causal=True)
    side.synchronize()
    close((o,), expected, torch.bfloat16, "side stream")
    graph = torch.cuda.CUDAGraph()
    q.zero_()
    with torch.cuda.graph(graph):
        recorded = where(q, k, v, causal=True)
    q.copy_(given.q)
    graph.replay()
    torch.cuda.synchronize()
    close((recorded,), expected, torch.bfloat16, "graph")
    return ""


def check_compiled(where):
    """`torch.compile(fullgraph=True)` gives the same bits, with gradients."""
    given = problem(Shape(2, 4, 2, 200, 300, 64, True), torch.bfloat16, device=where.device)
    compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
    for x, y in zip(solve(given, where), solve(given, compiled), strict=True):
        require(torch.equal(x, y), "differs from eager")
    return ""


def check_the_other_device(where):
    """Tensors on a GPU that is not the current one."""
    if torch.cuda.device_count() < 2:
        return "left out: one GPU"
    given = problem(Shape(1, 2, 2, 200, 200, 64, True), torch.bfloat16, device="cuda:1")
    close(solve(given, where), dense(given), torch.bfloat16, "cuda:1")
    return "cuda:1"


def check_refusals(where):
    """float64 and mixed devices are refused before any launch."""
    x = torch.ones(1, 1, 2, 4, device=where.device)
    for inputs, kind, text in (((x.double(),) * 3, TypeError, "float64 on the CPU only"),
                               ((x, x.cpu(), x), ValueError, "expected one device")):
        try:
            flash_attention(*inputs)
        except kind as error:
            require(text in str(error), str(error))
        else:
            raise AssertionError(f"not refused: {text}")
    return ""


def check_tune(where, N=1024):
    """What tuning keeps is right, survives a file, and leaves a graph captured before it alone."""
    from flashlib.kernels import forget_tuned, load_tuned, save_tuned, tune
    from flashlib.kernels.backends import choose
    from flashlib.kernels.problem import CAUSAL, Problem
    from flashlib.kernels.tuning import store

    given, said = problem(Shape(2, 8, 8, N, N, 64, True), torch.bfloat16, device=where.device), []
    expected = dense(given)
    q, k, v = (x.clone() for x in given[:3])
    forget_tuned()
    where(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = where(q, k, v, causal=True)

    def right(what):
        for impl in ("auto", "triton"):
            close(solve(given, flash_attention, impl=impl), expected, torch.bfloat16, f"{what}, {impl}")

    problem_of = Problem.of(q, k, v, q, given.do, window=CAUSAL)
    try:
        for impl in ("auto", "triton"):
            with gpu_checks_gluon.few_candidates():                          # or it takes minutes
                trials = tune(q.clone().requires_grad_(), k, v, causal=True, impl=impl)
            require(sum(t.note == "table" for t in trials) == 2, f"two kernels expected: {trials}")
            require(all(t.note != "wrong" for t in trials), f"a wrong kernel: {trials}")
            right(f"tuned for {impl}")
            for kernel in dict.fromkeys(t.kernel for t in trials):
                best, table = (next((t for t in trials if t.kernel == kernel and t.note == note), None)
                               for note in ("kept", "table"))
                said.append(f"{kernel} {table.milliseconds / (best or table).milliseconds:.3f}×")
                # whoever won, the rest of the check is about another than the table's entry
                rival = best or next((t for t in trials if t.kernel == kernel and t.note == ""), None)
                direction = kernel.split("_")[1]
                backend = choose(problem_of, impl, direction)
                if rival:                                   # the Gluon backward has the table's alone
                    store.keep(store.case_of(backend, problem_of, direction), rival.config)
        kept = dict(store._results)
        right("kept")
        with tempfile.TemporaryDirectory() as folder:
            count = save_tuned(Path(folder) / "tuned.json")
            forget_tuned()
            require(not store._results, "not forgotten")
            require(load_tuned(Path(folder) / "tuned.json") == count == len(kept), "lost in the file")
        require(store._results == kept, "changed in the file")
        right("loaded")
        recorded.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        close((recorded,), expected, torch.bfloat16, "the graph")
    finally:
        forget_tuned()
    return "the table's time over the best's: " + ", ".join(said)


def check_graph_outlives_its_plans(where, N=1024):
    """A graph replays right after more other shapes than are kept; growing lengths share plans."""
    from flashlib.kernels import plans
    from flashlib.kernels.problem import MOST_PROBLEMS

    if where.device == "cpu":
        return "left out: needs a GPU"
    given = problem(Shape(2, 8, 8, N, N, 64, True), torch.bfloat16, device=where.device)
    expected, (q, k, v) = dense(given), given[:3]
    where(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = where(q, k, v, causal=True)
    before = len(plans._plans)
    for n in range(1, MOST_PROBLEMS + 300):                 # what is kept of the capture is evicted
        where(q[:, :, :1], k[:, :, :1 + n % N], v[:, :, :1 + n % N])
        if n % 8 == 0:
            where(q[:, :, :8 + n % (N - 8)], k, v, causal=True)
    torch.cuda.empty_cache()
    junk = [torch.full((1 << n,), -1, dtype=torch.int32, device=where.device) for n in range(8, 22)]
    recorded.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    close((recorded,), expected, torch.bfloat16, "the graph")
    grown = len(plans._plans) - before
    require(grown <= 24, f"{grown} plans for lengths that grow")
    del junk
    return f"{grown} more plans for {MOST_PROBLEMS + 299} lengths and more"


ALONE = {name.removeprefix("check_"): value
         for name, value in [*globals().items(), *vars(gpu_checks_gluon).items(),
                             *vars(gpu_checks_fused).items(), *vars(gpu_checks_decode).items(),
                              *vars(gpu_checks_scores).items(), *vars(gpu_checks_varlen).items(),
                              *vars(gpu_checks_doors).items(), *vars(gpu_checks_into).items()]
         if name.startswith("check_") and name != "check_pieces"}
