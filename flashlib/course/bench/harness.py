"""What the benchmarks share: one clock, one set of inputs, one oracle, one way into other processes.

Shapes are (B, H, N, d) everywhere. A rate that is measured here is held against float64 first, and the
implementations of a comparison alternate, in an order that is drawn anew for every other round.
"""

import functools
import importlib
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
import types
from concurrent.futures import ProcessPoolExecutor


class _Later(types.ModuleType):
    """A module that is imported when something in it is first asked for, and not before."""

    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)


torch = _Later("torch")                                     # the course is read without it, too
TOLERANCE = 2e-2                                            # relative, of 16 bits against float64


def device_for(dry_run=None) -> str:
    """Return "cuda", or "cpu" for a dry run; where torch or the GPU is missing, leave in one sentence.

    `dry_run` says whether one was asked for; None means that the benchmark has none.
    """
    try:
        found = torch.cuda.is_available()
    except ImportError:
        sys.exit("This measurement needs torch: install the course's requirements first.")
    if dry_run:
        return "cpu"
    if not found:
        hint = "." if dry_run is None else "; --dry-run tries its steps on the CPU."
        sys.exit(f"This measurement needs an NVIDIA GPU{hint}")
    return "cuda"


def has_gpu() -> bool:
    """Tell whether torch is here and sees a GPU."""
    try:
        return torch.cuda.is_available()
    except ImportError:
        return False


def is_hopper() -> bool:
    """Tell whether the GPU runs the kernel of notebook 12; if it does not, say that it is left out."""
    if torch.cuda.get_device_capability()[0] == 9:
        return True
    print("left out: the kernel of notebook 12 needs a Hopper GPU (compute capability 9.0)")
    return False


def only_on_hopper() -> None:
    """Leave where there is no GPU, and without an error where the GPU is no Hopper."""
    device_for()
    if not is_hopper():
        sys.exit(0)


def case_of(shape, **first) -> dict:
    """Return the columns that name a (B, H, N, d) shape in every file, others before them."""
    B, H, N, d = shape
    return {**first, "B": B, "H": H, "H_k": H, "N_q": N, "N_k": N, "d": d}


def input_dtype(device) -> str:
    """Return "bfloat16", or "float16" for a GPU older than it (compute capability below 8.0)."""
    old = device == "cuda" and torch.cuda.get_device_capability() < (8, 0)
    return "float16" if old else "bfloat16"


def inputs(shape, device, dtype=None, seed=0):
    """Return q, k, v and dO, standard normal, in a named dtype or the one of `input_dtype`."""
    generator = torch.Generator(device=device).manual_seed(seed)
    make = {"device": device, "dtype": getattr(torch, dtype or input_dtype(device))}
    return [torch.randn(shape, generator=generator, **make) for _ in range(4)]


def plain(q, k, v, causal):
    """Attention as three operations in the dtype of the inputs, S and P included."""
    S = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(S.shape[-2:], device=S.device, dtype=torch.bool).triu(1)
        S = S.masked_fill(hidden, float("-inf"))
    return torch.softmax(S, -1) @ v


def results(fn, tensors, causal):
    """Return O, dQ, dK, dV of an implementation."""
    qkv = [x.detach().requires_grad_() for x in tensors[:3]]
    O = fn(*qkv, causal)
    return [O.detach(), *torch.autograd.grad(O, qkv, tensors[3])]


def exact(q, k, v, dO, causal):
    """Return O, dQ, dK, dV of the first head in float64; without a dO, O alone."""
    first = [x[:1, :1].double() for x in (q, k, v, dO) if x is not None]
    return [plain(*first, causal)] if dO is None else results(plain, first, causal)


def exact_rows(q, k, v, rows, window):
    """Return some rows of the first head's attention in float64, under a `Window`."""
    Q, K, V = (x[0, 0].double() for x in (q, k, v))
    S, keys = Q[rows] @ K.T * Q.shape[1] ** -0.5, torch.arange(K.shape[0], device=K.device)
    first, stop = (torch.as_tensor(x, device=K.device)[:, None]
                   for x in window.keys_of(rows.cpu().numpy(), Q.shape[0], K.shape[0]))
    return torch.softmax(S.masked_fill((keys < first) | (keys >= stop), float("-inf")), -1) @ V


def relative(found, exact_ones) -> float:
    """Return the worst relative error of some tensors, in the Euclidean norm; a NaN is infinite."""
    errors = [((x.double() - y).norm() / y.norm()).item()
              for x, y in zip(found, exact_ones, strict=True)]
    # A NaN is larger than nothing in Python's max.
    return max(error if error == error else float("inf") for error in errors)


def checked(o, q, k, v, causal, tolerance=TOLERANCE):
    """Return the relative error of attention's O, the worse of the first and the last head's.

    Raises:
        RuntimeError: it is not below the tolerance.
    """
    error = max(relative([o[:1, n]], exact(q[:1, n], k[:1, n], v[:1, n], None, causal))
                for n in ([0], [-1]))
    if not error < tolerance:
        raise RuntimeError(f"the kernel is wrong at {tuple(q.shape)}, causal={causal}: error {error}")
    return error


def flops(shape, causal, mode):
    """Return the customary count: 4·B·H·N²·d forward, half if causal, 2.5 times that backward."""
    B, H, N, d = shape
    return 4 * B * H * N * N * d * (0.5 if causal else 1) * (2.5 if mode == "backward" else 1)


def clock_for(device, milliseconds=40):
    """Return a function that times a call: median, 20 % and 80 % quantile in seconds, and the repeats.

    On a GPU by device events, the L2 flushed before each of the runs that fill `milliseconds`, after
    40 ms of warming up; on a CPU one run by the host's clock.
    """
    if device != "cuda":
        def on_cpu(call):
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            return seconds, seconds, seconds, 1
        return on_cpu
    from triton.testing import do_bench

    def on_gpu(call):
        found = do_bench(call, warmup=40, rep=milliseconds, return_mode="all")
        times, count = sorted(1e-3 * ms for ms in found), len(found)
        return statistics.median(times), times[count // 5], times[-1 - count // 5], count
    return on_gpu


def back_and_forth(names, turn):
    """Return the names in an order drawn anew every other turn, and backwards in between.

    What ran before warms the chip, so no implementation may always follow the same one.
    """
    names = list(names)
    random.Random(turn // 2).shuffle(names)
    return names[::-1] if turn % 2 else names


def race(calls, device, rounds, milliseconds=40):
    """Return name → seconds of every round; the calls alternate."""
    clock = clock_for(device, milliseconds)
    return alternate(calls, rounds, lambda call: clock(call)[0])


def alternate(calls, rounds, measure):
    """Return name → what `measure` makes of its call in every round; the calls alternate."""
    found = {name: [] for name in calls}
    for turn in range(rounds):
        for name in back_and_forth(calls, turn):
            found[name].append(measure(calls[name]))
    return found


ALTERNATING = ("median of rounds of triton.testing.do_bench medians, implementations alternating,"
               " in an order drawn anew every other round, backwards in between")


def spread(times, count) -> dict:
    """Return the columns of an implementation's times: median, extremes, rounds, and the rates."""
    seconds = statistics.median(times)
    return {"seconds": seconds, "seconds_low": min(times), "seconds_high": max(times),
            "rounds": len(times), "flops": int(count), "tflops_per_s": count / seconds / 1e12}


def raced(found, shape, causal, rounds, milliseconds=40):
    """Return name → columns of the times of forward calls; `found` has (call, error) by name."""
    times = race({name: call for name, (call, _) in found.items()}, "cuda", rounds, milliseconds)
    return {name: spread(runs, flops(shape, causal, "forward")) for name, runs in times.items()}


def ceilings(device, milliseconds=300) -> dict:
    """Return what the chip itself does at best: bf16 matmul FLOP/s, and bytes/s of a long copy."""
    n, clock = 8192 if device == "cuda" else 256, clock_for(device, milliseconds)
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * n**3 / clock(lambda: a @ b)[0]
    found = {"ceiling_matmul_flops_per_s": f"{rate:.4g}", "ceiling_matmul_rows": n,
             **copy_ceiling(clock, device)}
    if device == "cuda":
        torch.cuda.empty_cache()
    return found


def copy_ceiling(clock, device) -> dict:
    """Return the bytes per second, read and written, of a long copy, and how many bytes were copied."""
    size = min(2**32, torch.cuda.mem_get_info()[0] // 4) if device == "cuda" else 2**12
    source = torch.randint(100, (size,), device=device, dtype=torch.int8)
    target = torch.empty_like(source)
    rate = 2 * size / clock(lambda: target.copy_(source))[0]
    return {"ceiling_copy_bytes_per_s": f"{rate:.4g}", "ceiling_copy_bytes": size}


def why_not(function, case) -> str | None:
    """Run a function over a case and return why it failed, None if it did not."""
    try:
        function(case)
    except Exception as error:
        return f"{case}: {type(error).__name__} {error}"[:200]
    return None


def warm_all(function, cases):
    """Run `function` over cases in fresh processes; what they compile stays in the caches on disk.

    It prints how long that took and why the first cases failed; the run itself meets them again.
    """
    start, cases = time.perf_counter(), list(cases)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    processes = max(1, min(14, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        print(*list(filter(None, pool.map(functools.partial(why_not, function), cases)))[:20], sep="\n")
    print(f"compiled {len(cases)} cases in {time.perf_counter() - start:.0f} s", flush=True)


def finishes(seconds, function, *arguments) -> bool:
    """Tell whether a call ends without an error in a process of its own, within some seconds.

    A kernel that waits for what never comes would hold the GPU for ever; its process can be ended.
    """
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode == 0


def elsewhere(module, *arguments):
    """Run a benchmark in a process of its own and return what it printed, or None after saying why not.

    A kernel that was defined under Triton's interpreter cannot be compiled any more, so that a notebook
    that has the interpreter on measures in a process without it.
    """
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], text=True,
                          capture_output=True, env=environment)
    if done.returncode:
        print("The measurement failed:", (done.stderr.strip().splitlines() or ["no reason given"])[-1])
        return None
    return done.stdout
