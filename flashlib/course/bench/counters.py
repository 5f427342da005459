"""Count the bytes that our forward kernels move, by tile height and by loop order, with Nsight Compute.

    python -m flashlib.course.bench.counters --out assets/measurements --name h200

Notebook 11 puts the first file beside what the paper machine counts: from L2 to the SMs, and from DRAM.
The second, `loop_order_counters`, has v1's loop order beside v2's, at shapes at which
`flashlib.course.bench.attention_demo` counts standard attention.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from flashlib.course.bench import blocks_sweep
from flashlib.course.bench.attention import inputs
from flashlib.course.bench.attention_demo import METRICS, amount, profiled
from flashlib.course.bench.provenance import collect, options_for, write_csv

CASES = [((4, 32, 4096, 64), (m, 64, 4, 2)) for m in (32, 64, 128)]
CASES += [((4, 32, 4096, 64), (64, n, 4, 2)) for n in (32, 128)]
CASES += [((4, 16, 4096, 128), (m, 64, 4, 2)) for m in (32, 64, 128)]
# (loop order, shape, configuration)
ORDERS = [(order, (4, 16, N, 64), (64, 64, 4, stages)) for N in (1024, 4096)
          for order, stages in (("v1", 1), ("v2", 2))]


def caller(order, shape, config):
    """Return a function of no arguments that runs a forward in one loop order."""
    from flashlib.kernels.triton import v1_order

    tensors = inputs(shape, "cuda")
    if order == "v2":
        return blocks_sweep.caller(tensors, config)
    tile = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps"), config, strict=False))
    return lambda: v1_order.forward(*tensors[:3], **tile)


def probe():
    """Run every case twice, the second time under the profiler."""
    import torch

    for case in [*[("v2", *case) for case in CASES], *ORDERS]:
        call = caller(*case)
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def parse(text, cases):
    """Turn the profiler's table into rows, one for each case in order."""
    kernels = [cells for cells in profiled(text) if "flash_fwd" in cells["Kernel Name"]]
    if len(kernels) != len(cases):
        raise ValueError(f"text: expected {len(cases)} forward kernels, got {len(kernels)}")
    rows = []
    for cells, (shape, config) in zip(kernels, cases, strict=True):
        row = dict(zip(("B", "H", "N", "d"), shape, strict=True))
        row |= dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), config, strict=True))
        rows.append(row | {column: amount(cells, metric) for metric, column in METRICS.items()})
    return rows


def main(argv=None):
    """Run the probe under Nsight Compute, print and write the counters."""
    parser = options_for(__doc__)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.probe:
        return probe()
    tool = shutil.which("ncu")
    if tool is None:
        sys.exit("This measurement needs Nsight Compute (ncu) on the PATH.")
    command = [tool, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page",
               "raw", "--print-units", "base", "--metrics", ",".join(METRICS),
               sys.executable, "-m", "flashlib.course.bench.counters", "--probe"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    try:
        rows = parse(done.stdout, [*CASES, *[case for _, *case in ORDERS]])
    except ValueError as error:
        sys.exit(f"{error} ({' '.join((done.stdout + done.stderr).split())[-600:]})")
    for row in rows:
        print(*row.values())
    blocks, orders = rows[:len(CASES)], rows[len(CASES):]
    orders = [{"order": order, **row} for (order, *_), row in zip(ORDERS, orders, strict=True)]
    if options.out:
        origin = collect(
            f"python -m flashlib.course.bench.counters --out assets/measurements --name {options.name}",
            dtype="bfloat16, standard normal inputs, forward, not causal",
            counters="ncu --clock-control none, caches flushed before each kernel, one run",
            **{column: metric for metric, column in METRICS.items() if column != "nanoseconds"})
        write_csv(options.out / f"blocks_counters_{options.name}.csv", blocks, origin)
        write_csv(options.out / f"loop_order_counters_{options.name}.csv", orders, origin)
    return None


if __name__ == "__main__":
    main()
