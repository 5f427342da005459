"""Count the bytes that our forward kernels move, by tile height and by loop order, with Nsight Compute.

    python -m flashlib.course.bench.counters --out assets/measurements --name h200

Notebook 11 puts the first file beside what the paper machine counts: from L2 to the SMs, and from DRAM.
The second, `loop_order_counters`, has v1's loop order beside v2's, at shapes at which
`flashlib.course.bench.attention_demo` counts standard attention.
"""

import sys

from flashlib.course.bench import blocks_sweep, profiler
from flashlib.course.bench.harness import case_of, inputs
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

CASES = [((4, 32, 4096, 64), (m, 64, 4, 2)) for m in (32, 64, 128)]
CASES += [((4, 32, 4096, 64), (64, n, 4, 2)) for n in (32, 128)]
CASES += [((4, 16, 4096, 128), (m, 64, 4, 2)) for m in (32, 64, 128)]
CASES = [("v2", *case) for case in CASES]                   # (loop order, shape, configuration)
ORDERS = [(order, (4, 16, N, 64), (64, 64, 4, stages)) for N in (1024, 4096)
          for order, stages in (("v1", 1), ("v2", 2))]


def caller(order, shape, config):
    """Return a function of no arguments that runs a forward in one loop order."""
    from flashlib.course.bench import loop_order_kernels

    tensors = inputs(shape, "cuda")
    if order == "v2":
        return blocks_sweep.caller(tensors, config)
    tile = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps"), config, strict=False))
    return loop_order_kernels.launcher(order, *tensors[:3], **tile)[0]


def probe():
    """Run every case twice, the second time under the profiler."""
    for case in [*CASES, *ORDERS]:
        call = caller(*case)
        call()
        profiler.profile(call)


def parse(text, cases):
    """Turn the profiler's table into rows, one for each (order, shape, configuration)."""
    found = profiler.sorted_out(text, dict.fromkeys(cases, "flash_fwd"), profiler.METRICS.values())
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    return [case_of(shape, mode="forward", causal=0) | dict(zip(names, config, strict=True)) | row
            for (_, shape, config), row in found.items()]


def main(argv=None):
    """Run the probe under Nsight Compute, print and write the counters."""
    options = options_for(__spec__, __doc__, argv, probe=probe)
    try:
        rows = profiler.count(__spec__.name, lambda text: parse(text, [*CASES, *ORDERS]))
    except profiler.NoCounters as reason:
        sys.exit(f"This measurement needs hardware counters: {reason}.")
    show.table(rows)
    blocks, orders = rows[:len(CASES)], rows[len(CASES):]
    orders = [{"impl": order, **row} for (order, *_), row in zip(ORDERS, orders, strict=True)]
    head = collect(options.command, dtype="bfloat16", inputs="standard normal", **profiler.NOTES)
    write(options, "blocks_counters", blocks, head)
    write(options, "loop_order_counters", orders, head)


if __name__ == "__main__":
    main()
