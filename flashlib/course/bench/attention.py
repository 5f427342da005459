"""Time our attention against every peer that this machine has, forward and backward, by shape.

    python -m flashlib.course.bench.attention --out assets/measurements --name h200

Correctness comes first: each implementation is held against float64 on one head, output and
gradients, before it is timed. Times are medians of rounds in which the implementations alternate;
two ceilings (a large matmul, a large copy) are measured in the same run. Notebook 10 shows the result.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

from flashlib.course.bench import binaries, peers
from flashlib.course.bench.attention_demo import Clock, ceilings
from flashlib.course.bench.gpu import device_for
from flashlib.course.bench.provenance import collect, options_for, write_csv

# (B, H, N, d)
SHAPES = [(4, 48, 4096, 32), (16, 32, 1024, 64), (4, 32, 4096, 64), (1, 32, 16384, 64),
          (16, 16, 1024, 128), (4, 16, 4096, 128), (1, 16, 16384, 128), (4, 8, 4096, 256)]
DRY = [(1, 2, 64, 32), (1, 2, 96, 64)]
MODES = ("forward", "backward")
TOLERANCE = 2e-2
OVERHEAD = ("ours", "ours_triton", "sdpa_flash", "sdpa_cudnn")


def flops(shape, causal, mode):
    """Return the customary count: 4·B·H·N²·d forward, half if causal, 2.5 times that backward."""
    B, H, N, d = shape
    return 4 * B * H * N * N * d * (0.5 if causal else 1) * (2.5 if mode == "backward" else 1)


def least_bytes(shape, mode, element_bytes=2):
    """Return the fewest bytes to and from memory: every tensor once, and one row of lse."""
    B, H, N, d = shape
    return B * H * N * (element_bytes * d * (8 if mode == "backward" else 4) + 4)


def input_dtype(device):
    """Return "bfloat16", or "float16" for a GPU of before it (compute capability below 8.0)."""
    import torch

    before = device == "cuda" and torch.cuda.get_device_capability() < (8, 0)
    return "float16" if before else "bfloat16"


def inputs(shape, device, seed=0):
    """Return q, k, v and dO, standard normal, in the dtype that `input_dtype` names."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    make = {"generator": generator, "device": device, "dtype": getattr(torch, input_dtype(device))}
    return [torch.randn(shape, **make) for _ in range(4)]


def exact(q, k, v, dO, causal):
    """Return O, dQ, dK, dV of the first head in float64; without a dO, O alone."""
    import torch

    qkv = [x[:1, :1].double().requires_grad_(dO is not None) for x in (q, k, v)]
    S = qkv[0] @ qkv[1].transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(S.shape[-2:], device=S.device, dtype=torch.bool).triu(1)
        S = S.masked_fill(hidden, float("-inf"))
    O = torch.softmax(S, -1) @ qkv[2]
    if dO is None:
        return [O]
    return [O.detach(), *torch.autograd.grad(O, qkv, dO[:1, :1].double())]


def relative_error(fn, tensors, reference, causal, mode):
    """Return the error of O, or the worst of the gradients', relative in the Euclidean norm."""
    import torch

    *qkv, dO = tensors
    if mode == "forward":
        with torch.no_grad():
            results, exact_ones = [fn(*qkv, causal)], reference[:1]
    else:
        qkv = [x.detach().requires_grad_() for x in qkv]
        results, exact_ones = torch.autograd.grad(fn(*qkv, causal), qkv, dO), reference[1:]
    errors = [((x[:1, :1].double() - y).norm() / y.norm()).item()
              for x, y in zip(results, exact_ones, strict=True)]
    # A NaN is larger than nothing in Python's max: make it count.
    return max(error if error == error else float("inf") for error in errors)


def caller(fn, tensors, causal, mode):
    """Return a function of no arguments that runs one pass; the backward's forward is done before."""
    import torch

    *qkv, dO = tensors
    if mode == "forward":
        def forward():
            with torch.no_grad():
                return fn(*qkv, causal)
        return forward
    qkv = [x.detach().requires_grad_() for x in qkv]
    O = fn(*qkv, causal)
    return lambda: torch.autograd.grad(O, qkv, dO, retain_graph=True)


def timer(device, milliseconds=40):
    """Return a function that gives the median seconds of a call, L2 flushed before each run."""
    if device != "cuda":
        def on_cpu(call):
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        return on_cpu
    from triton.testing import do_bench

    return lambda call: 1e-3 * do_bench(call, warmup=40, rep=milliseconds, return_mode="median")


def microseconds(call, device, calls=300, repeats=20):
    """Return what a call costs the CPU in steady state: the best of the repeats, over many calls."""
    import torch

    best = float("inf")
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / calls


def overhead_us(found, device, calls=300, repeats=20):
    """Return name → microseconds of the CPU for a forward call without a gradient.

    The tensors are so small that the GPU is done before the next call comes.
    """
    import torch

    dtype = getattr(torch, input_dtype(device))
    q, k, v = (torch.randn(1, 4, 128, 64, device=device, dtype=dtype) for _ in range(3))
    with torch.no_grad():
        return {name: microseconds(lambda fn=fn: fn(q, k, v, False), device, calls, repeats)
                for name, fn in found.items()}


def our_binaries(call, shape, causal, mode):
    """Run a call of ours once and return the binaries that it launched, with their tile sizes."""
    import torch

    from flashlib.kernels.backends import choose
    from flashlib.kernels.problem import CAUSAL, FULL, Problem, device_of

    binaries.forget()
    call()
    B, H, N, D = shape
    p = Problem.example(B=B, H=H, N_Q=N, N_K=N, D=D, dtype=getattr(torch, input_dtype("cuda")),
                        device=device_of(torch.device("cuda", torch.cuda.current_device())),
                        window=CAUSAL if causal else FULL)
    backend, tiles = choose(p, "auto", mode), {}
    config = backend.config(p, mode)
    for plan in backend.plan(p, mode, config).values():     # in the order of launches
        rows = plan.constants.get("BLOCK_M") or config.BLOCK_M
        tiles.setdefault(plan.kernel.fn.__name__, []).append(
            {"BLOCK_M": rows, "BLOCK_N": plan.constants.get("BLOCK_N")})
    return [{"kernel": (name := binary.pop("kernel")), **tiles[name].pop(0), **binary}
            for binary in binaries.loaded()]


def taking_part(device, only=()):
    """Return what `peers.present` does; with `only`, of these and "ours" alone."""
    found, absent = peers.present(device)
    if only:
        found = {name: fn for name, fn in found.items() if name == "ours" or name in only}
        absent = {name: absent.get(name, "not asked for") for name in peers.NAMES if name not in found}
    return found, absent


def measure(shapes, device, rounds, say=print, only=(), modes=MODES):
    """Return the rows of timings, the rows of our binaries, and the reasons for absent peers.

    `only`: the implementations that take part beside "ours"; empty, all that this machine has.
    """
    found, absent = taking_part(device, only)
    clock, rows, kernels = timer(device), [], []
    for shape in shapes:
        for causal in (False, True):
            tensors = inputs(shape, device)
            reference = exact(*tensors, causal)
            case = dict(zip(("B", "H", "N", "d"), shape, strict=True))
            errors, right = {mode: {} for mode in MODES}, {mode: {} for mode in MODES}
            for name, fn in found.items():
                for mode in _modes(name, modes):
                    try:
                        error = relative_error(fn, tensors, reference, causal, mode)
                    except Exception as problem:
                        if name.startswith("ours"):
                            raise
                        absent[f"{name} {mode} at {shape}"] = (
                            f"{type(problem).__name__} {problem}"[:120])
                        continue
                    if error < TOLERANCE:
                        errors[mode][name], right[mode][name] = error, fn
                    elif name.startswith("ours"):
                        raise RuntimeError(f"{name} is wrong at {shape}, causal={causal}, {mode}:"
                                           f" relative error {error}")
                    else:
                        absent[f"{name} {mode} at {shape}"] = f"wrong, relative error {error}"
            del reference
            for mode in modes:
                calls = {name: caller(fn, tensors, causal, mode) for name, fn in right[mode].items()}
                built = []
                if device == "cuda":
                    built = our_binaries(calls["ours"], shape, causal, mode)
                    kernels += [{"mode": mode, "causal": int(causal), **case, **b} for b in built]
                times = {name: [] for name in calls}
                for turn in range(rounds):
                    for name in back_and_forth(calls, turn):
                        times[name].append(clock(calls[name]))
                rows += _rows(times, built, errors[mode], shape, causal, mode)
                say(line(rows[-len(times):]))
                del calls
            del tensors
    return rows, kernels, absent


def _modes(name, modes=MODES):
    return [mode for mode in modes if mode == "forward" or name not in peers.FORWARD_ONLY]


def back_and_forth(names, turn):
    """Return the names in an order drawn anew every other turn, and backwards in between.

    What ran before warms the chip: nobody shall always come after the same one.
    """
    names = list(names)
    random.Random(turn // 2).shuffle(names)
    return names[::-1] if turn % 2 else names


def _rows(times, built, errors, shape, causal, mode):
    ours_s, count = statistics.median(times["ours"]), flops(shape, causal, mode)
    rows = []
    for name, runs in times.items():
        seconds = statistics.median(runs)
        resources = binaries.worst(built if name == "ours" else [])
        rows.append({
            "impl": name, "mode": mode, "causal": int(causal),
            **dict(zip(("B", "H", "N", "d"), shape, strict=True)),
            "seconds": seconds, "seconds_low": min(runs), "seconds_high": max(runs),
            "rounds": len(runs), "flops": int(count), "tflops_per_s": count / seconds / 1e12,
            "least_bytes": least_bytes(shape, mode),
            "gb_per_s": least_bytes(shape, mode) / seconds / 1e9,
            "relative_error": errors[name], "ours_over_this": seconds / ours_s, **resources})
    return rows


def line(rows):
    """Return one line for a shape and mode: TFLOP/s by implementation."""
    first = rows[0]
    shape = ",".join(str(first[key]) for key in "BHNd")
    rates = "  ".join(f"{row['impl']} {row['tflops_per_s']:.0f} ({row['ours_over_this']:.2f})"
                      for row in rows)
    return f"{shape:>16} {'causal' if first['causal'] else 'full':6} {first['mode']:8} {rates}"


def warm(case):
    """Compile what one case needs, in a process of its own, so that all cores work; None if it did."""
    name, shape, causal, device, modes = case
    try:
        found, _ = peers.present(device)
        tensors = inputs(shape, device)
        for mode in _modes(name, modes):
            caller(found[name], tensors, causal, mode)()
    except Exception as error:                              # the run itself reports it with the case
        return f"{case}: {type(error).__name__} {error}"[:200]
    return None


def warm_all(function, cases, processes=None):
    """Run `function` over cases in fresh processes; what they compile stays in the caches on disk."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    processes = processes or max(1, min(14, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return [result for result in pool.map(function, cases) if result]


def main(argv=None):
    """Check, measure, print a table and write the CSV files."""
    parser = options_for(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="toy sizes, on the CPU")
    parser.add_argument("--rounds", type=int, default=3, help="how often to time each case")
    parser.add_argument("--only", nargs="+", default=[], choices=list(peers.NAMES),
                        help="time ours against these alone")
    parser.add_argument("--mode", nargs="+", default=MODES, choices=MODES, help="time these passes")
    options = parser.parse_args(argv)
    device = device_for(options.dry_run)
    import torch

    shapes = DRY if options.dry_run else SHAPES
    if device == "cuda":
        start = time.perf_counter()
        compiled = [name for name in ("triton_tutorial", "flex", "fa4", "ours", "ours_triton")
                    if name in taking_part(device, options.only)[0]]
        cases = [(name, shape, causal, device, options.mode) for name in compiled
                 for shape in shapes for causal in (False, True)]
        print(*warm_all(warm, cases), sep="\n")
        print(f"compiled {len(cases)} cases in {time.perf_counter() - start:.0f} s", flush=True)
    roofs = ceilings(Clock(device, seconds=0.3 if device == "cuda" else 0.01), device)
    if device == "cuda":
        torch.cuda.empty_cache()
    rows, kernels, absent = measure(shapes, device, options.rounds,
                                    say=lambda text: print(text, flush=True), only=options.only,
                                    modes=options.mode)
    timed = {row["impl"] for row in rows}                   # the others do not run on this GPU
    calls, repeats = (300, 20) if device == "cuda" else (2, 1)
    overhead = overhead_us({name: fn for name, fn in taking_part(device, options.only)[0].items()
                            if name in OVERHEAD and name in timed}, device, calls, repeats)
    command = ("python -m flashlib.course.bench.attention --out assets/measurements"
               f" --name {options.name}")
    for name, values in (("only", options.only), ("mode", options.mode)):
        if values and tuple(values) != MODES:
            command += f" --{name} {' '.join(values)}"
    command += f" --rounds {options.rounds}"
    origin = collect(
        command + (" --dry-run" if options.dry_run else ""),
        dtype=f"{input_dtype(device)}, standard normal inputs",
        timing="median of rounds of triton.testing.do_bench medians, implementations alternating,"
               " in an order drawn anew every other round, backwards in between",
        flops="4 B H N N d forward, half if causal, 2.5 times that backward",
        overhead_us=", ".join(f"{name} {us:.1f}" for name, us in overhead.items())
                    + " (CPU time of a forward call, eager, no gradient, (1, 4, 128, 64))",
        peers=", ".join(f"{name} = {peers.NAMES[name]}" for name in dict.fromkeys(
            row["impl"] for row in rows)),
        absent="; ".join(f"{name}: {reason}" for name, reason in absent.items()).replace("\n", " "),
        **roofs,
    )
    for key, value in origin.items():
        print(f"{key}: {value}")
    if options.out:
        write_csv(options.out / f"attention_{options.name}.csv", rows, origin)
        if kernels:
            write_csv(options.out / f"attention_kernels_{options.name}.csv", kernels, origin)


if __name__ == "__main__":
    main()
