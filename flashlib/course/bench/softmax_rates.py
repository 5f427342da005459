"""Time the three softmax kernels and torch's against the copy bandwidth of this GPU.

    python -m flashlib.course.bench.softmax_rates --out assets/measurements --name h200

Each kernel is checked against float64 first. A rate counts the bytes that a softmax cannot avoid,
one load and one store per element, whatever the kernel moves: more passes make a lower rate, unless a
cache helps. Two copies stand beside it: the ceiling, a copy of 4 GiB (or what fits),
and a copy of the very same matrix. Notebook 09 shows the result.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes, torch's softmax only.
"""

import itertools

from flashlib.course.bench import harness
from flashlib.course.bench.harness import torch
from flashlib.course.bench.provenance import collect, options_for, write

DTYPES = ("float16", "bfloat16", "float32")
# The same amount of data in ever longer rows; matrices of 16,384 rows, too small for full speed; and
# one with the longest rows that are fused, which moves 4 GiB in all.
SHAPES = [(2**28 >> k, 2**k) for k in range(8, 21)] + [(16384, 2**k) for k in range(8, 14)]
SHAPES += [(2**15, 2**15)]
QUICK = [(2**26 >> k, 2**k) for k in (10, 12, 15)]
DRY = [(8, 64), (4, 130)]
CHECKED = [(64, 256), (7, 1000), (5, 4097), (3, 32768), (2, 131072)]
IMPLS = ("3pass", "online", "fused", "torch", "copy")
# The largest error that is allowed, over the largest weight of the matrix.
LARGEST_RELATIVE_ERROR = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}


def runner(impl, x, y, config=None):
    """Return a function of no arguments that fills y from x once."""
    if impl == "copy":
        return lambda: y.copy_(x)
    if impl == "torch":
        return lambda: torch.softmax(x, -1, out=y)
    from flashlib.kernels.softmax import launch

    return lambda: launch(x, y, impl, config)


def matrix(shape, dtype, device):
    """Return standard normal logits."""
    generator = torch.Generator(device=device).manual_seed(0)
    return torch.randn(shape, generator=generator, device=device, dtype=getattr(torch, dtype))


def check(impls, dtypes, shapes, device):
    """Return each kernel's largest error against float64, relative to the largest weight."""
    worst = {}
    for impl, dtype, shape in itertools.product(impls, dtypes, shapes):
        x = matrix(shape, dtype, device) * 4
        x[-1] = float("-inf") if impl != "torch" else x[-1]
        y = torch.full_like(x, float("nan"))
        runner(impl, x, y)()
        right = torch.nan_to_num(torch.softmax(x.double(), -1))
        error = ((y.double() - right).abs().max() / right.max()).item()
        if not error < LARGEST_RELATIVE_ERROR[dtype]:
            raise RuntimeError(f"{impl} is wrong here: {dtype} {shape} error {error:.1e}")
        key = f"max_relative_error_{impl}_{dtype}"
        worst[key] = max(error, worst.get(key, 0.0))
    return {key: f"{error:.1e}" for key, error in worst.items()}


def measure(impls, dtypes, shapes, device, clock):
    """Yield one row for every dtype, shape and implementation."""
    for dtype, shape in itertools.product(dtypes, shapes):
        x = matrix(shape, dtype, device)
        y, least = torch.empty_like(x), 2 * x.numel() * x.element_size()
        for impl in impls:
            median, low, high, repeats = clock(runner(impl, x, y))
            yield {"impl": impl, "dtype": dtype, "rows": shape[0], "cols": shape[1],
                   "seconds": median, "seconds_q20": low, "seconds_q80": high, "repeats": repeats,
                   "least_bytes": least, "least_bytes_per_s": least / median}


def show(rows, copied):
    """Print a table: percent of the ceiling, by dtype and shape."""
    rates = {(r["dtype"], r["rows"], r["cols"], r["impl"]): r["least_bytes_per_s"] for r in rows}
    impls = list(dict.fromkeys(r["impl"] for r in rows))
    print(f"percent of {copied / 1e12:.2f} TB/s" + "".join(f"{impl:>9}" for impl in impls))
    for case in dict.fromkeys(key[:3] for key in rates):
        line = "".join(f"{100 * rates[(*case, impl)] / copied:9.1f}" for impl in impls)
        print(f"{case[0]:9}{case[1]:>6} ×{case[2]:>8}{line}")


def measure_here():
    """Time three shapes on this machine's GPU and print the table; without one, say so."""
    if not harness.has_gpu():
        print("No GPU here: nothing was measured, the figures show the recorded run.")
    elif said := harness.elsewhere(__spec__.name, "--quick"):
        print("Measured here, now.")
        print(said)


def main(argv=None):
    """Check, measure, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, dry_run="toy sizes, on the CPU",
                          quick={"action": "store_true", "help": "three shapes of float32"})
    device = harness.device_for(options.dry_run)
    impls = ("torch", "copy") if options.dry_run else IMPLS
    shapes, checked = (DRY, DRY) if options.dry_run else (SHAPES, CHECKED)
    dtypes = ("float32",) if options.quick else DTYPES
    shapes = QUICK if options.quick and not options.dry_run else shapes
    errors = check([impl for impl in impls if impl != "copy"], dtypes, checked, device)
    clock = harness.clock_for(device, 50)
    ceiling = harness.copy_ceiling(clock, device)
    head = collect(options.command, inputs="standard normal, rows contiguous",
                   timing="median over repeats by device events, L2 flushed before each",
                   least_bytes="one load and one store per element",
                   impl_torch="torch.softmax(x, -1, out=y)", **ceiling, **errors)
    for key, value in head.items():
        if not options.quick or key in ("gpu", "torch", "triton"):
            print(f"{key}: {value}")
    rows = list(measure(impls, dtypes, shapes, device, clock))
    show(rows, float(ceiling["ceiling_copy_bytes_per_s"]))
    write(options, "softmax", rows, head)


if __name__ == "__main__":
    main()
