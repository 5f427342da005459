"""Time the three softmax kernels and torch's against the copy bandwidth of this GPU.

    python -m flashlib.course.bench.softmax_rates --out assets/measurements --name h200

Each kernel is checked against float64 first. A rate counts the bytes that a softmax cannot avoid,
one load and one store per element, whatever the kernel moves: a kernel with more passes has the lower
rate unless a cache helps it. Two copies stand beside it: the ceiling, a copy of 4 GiB (or what fits),
and a copy of the very same matrix. Notebook 09 shows the result.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes, torch's softmax only.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from flashlib.course.bench.gpu import copy_rate, device_for
from flashlib.course.bench.provenance import collect, options_for, write_csv

DTYPES = ("float16", "bfloat16", "float32")
# As much data in ever longer rows; matrices of 16,384 rows that end before they reach full speed; and
# one of the longest fused rows, which moves 4 GiB, read and written.
SHAPES = [(2**28 >> k, 2**k) for k in range(8, 21)] + [(16384, 2**k) for k in range(8, 14)]
SHAPES += [(2**15, 2**15)]
QUICK = [(2**26 >> k, 2**k) for k in (10, 12, 15)]
DRY = [(8, 64), (4, 130)]
CHECKED = [(64, 256), (7, 1000), (5, 4097), (3, 32768), (2, 131072)]
IMPLS = ("3pass", "online", "fused", "torch", "copy")
# The largest error in units of the output's own precision at the row's largest weight.
LARGEST_RELATIVE_ERROR = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}


class Clock:
    """Median of repeated runs by device events, each on a flushed L2; a constant on a CPU."""

    def __init__(self, device, seconds=0.05):
        import torch

        self.device, self.seconds = device, seconds
        # Zeroing evicts the L2 and lets the host queue the next launch meanwhile.
        self.flush = torch.empty(2**29 if device == "cuda" else 2**10, dtype=torch.int8, device=device)

    def __call__(self, fn):
        """Return the median, the 20 % and the 80 % quantile in seconds, and the repeats."""
        import torch

        if self.device != "cuda":
            fn()
            return 1.0, 1.0, 1.0, 1
        for _ in range(3):
            fn()
        torch.cuda.synchronize()
        guess = statistics.median(self._times(fn, 5))
        repeats = int(min(100, max(15, self.seconds / (guess + 2e-4))))
        times = sorted(self._times(fn, repeats))
        return statistics.median(times), times[repeats // 5], times[-1 - repeats // 5], repeats

    def _times(self, fn, repeats):
        import torch

        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for start, stop in events:
            self.flush.zero_()
            start.record()
            fn()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) * 1e-3 for start, stop in events]


def runner(impl, x, y, config=None):
    """Return a function of no arguments that fills y from x once."""
    import torch

    if impl == "copy":
        return lambda: y.copy_(x)
    if impl == "torch":
        return lambda: torch.softmax(x, -1, out=y)
    from flashlib.kernels.softmax import launch

    return lambda: launch(x, y, impl, config)


def matrix(shape, dtype, device):
    """Return standard normal logits."""
    import torch

    generator = torch.Generator(device=device).manual_seed(0)
    return torch.randn(shape, generator=generator, device=device, dtype=getattr(torch, dtype))


def check(impls, dtypes, shapes, device):
    """Return each kernel's largest error against float64, relative to the largest weight."""
    import torch

    worst = {}
    for impl in impls:
        for dtype in dtypes:
            for shape in shapes:
                x = matrix(shape, dtype, device) * 4
                x[-1] = float("-inf") if impl != "torch" else x[-1]
                y = torch.full_like(x, float("nan"))
                runner(impl, x, y)()
                right = torch.nan_to_num(torch.softmax(x.double(), -1))
                error = ((y.double() - right).abs().max() / right.max()).item()
                if not error < LARGEST_RELATIVE_ERROR[dtype]:
                    raise RuntimeError(f"{impl} is wrong here: {dtype} {shape} error {error:.1e}")
                worst[impl, dtype] = max(error, worst.get((impl, dtype), 0.0))
    return {f"max_relative_error_{impl}": ", ".join(
        f"{dtype} {worst[impl, dtype]:.1e}" for dtype in dtypes) for impl in impls}


def measure(impls, dtypes, shapes, device, clock):
    """Yield one row for every dtype, shape and implementation."""
    import torch

    for dtype in dtypes:
        for shape in shapes:
            x = matrix(shape, dtype, device)
            y = torch.empty_like(x)
            for impl in impls:
                median, low, high, repeats = clock(runner(impl, x, y))
                least = 2 * x.numel() * x.element_size()
                yield {"impl": impl, "dtype": dtype, "rows": shape[0], "cols": shape[1],
                       "seconds": median, "seconds_q20": low, "seconds_q80": high,
                       "repeats": repeats, "least_bytes": least,
                       "least_bytes_per_s": least / median}


def show(rows, copied):
    """Print a table: percent of the ceiling, by dtype and shape."""
    rates = {(r["dtype"], r["rows"], r["cols"], r["impl"]): r["least_bytes_per_s"] for r in rows}
    impls = list(dict.fromkeys(r["impl"] for r in rows))
    print(f"percent of {copied / 1e12:.2f} TB/s" + "".join(f"{impl:>9}" for impl in impls))
    for case in dict.fromkeys(key[:3] for key in rates):
        line = "".join(f"{100 * rates[(*case, impl)] / copied:9.1f}" for impl in impls)
        print(f"{case[0]:9}{case[1]:>6} ×{case[2]:>8}{line}")


def measure_here():
    """Time three shapes on this machine's GPU and print the table; without one, say so.

    In a process of its own, because a notebook has Triton's interpreter on.
    """
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("No GPU here: nothing was measured, the figures show the recorded run.")
        return
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    path = os.pathsep.join(folder for folder in sys.path if folder)
    done = subprocess.run([sys.executable, "-m", "flashlib.course.bench.softmax_rates", "--quick"],
                          text=True, capture_output=True, env={**environment, "PYTHONPATH": path})
    if done.returncode:
        print("The measurement failed:", (done.stderr.strip().splitlines() or ["no reason given"])[-1])
        return
    print("Measured here, now.")
    print(done.stdout)


def main(argv=None):
    """Check, measure, print a table and write the CSV file."""
    parser = options_for(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="toy sizes, on the CPU")
    parser.add_argument("--quick", action="store_true", help="three shapes of float32")
    options = parser.parse_args(argv)
    device = device_for(options.dry_run)
    impls = ("torch", "copy") if options.dry_run else IMPLS
    shapes, checked = (DRY, DRY) if options.dry_run else (SHAPES, CHECKED)
    dtypes = ("float32",) if options.quick else DTYPES
    shapes = QUICK if options.quick and not options.dry_run else shapes
    kernels = [impl for impl in impls if impl != "copy"]
    errors = check(kernels, dtypes, checked, device)
    clock = Clock(device)
    copied, size = copy_rate(clock, device)
    command = ("python -m flashlib.course.bench.softmax_rates --out assets/measurements"
               f" --name {options.name}")
    origin = collect(
        command + " --dry-run" * options.dry_run + " --quick" * options.quick,
        inputs="standard normal, rows contiguous",
        timing="median over repeats by device events, L2 flushed before each",
        least_bytes="one load and one store per element",
        torch_impl="torch.softmax(x, -1, out=y)",
        ceiling_copy_bytes_per_s=f"{copied:.4g} (read + write, {size} bytes)",
        **errors,
    )
    for key, value in origin.items():
        if not options.quick or key in ("gpu", "torch", "triton"):
            print(f"{key}: {value}")
    rows = list(measure(impls, dtypes, shapes, device, clock))
    show(rows, copied)
    if options.out:
        print(write_csv(options.out / f"softmax_{options.name}.csv", rows, origin).name)


if __name__ == "__main__":
    main()
