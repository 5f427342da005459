"""Measure the clock, the cycles and the tensor cores' cycles of the Hopper forward kernels.

    python -m flashlib.course.bench.clock --out assets/measurements --name h200

Needs a Hopper GPU and Nsight Compute (`ncu`). FLOP/s are the product of SMs, clock, the share of the
cycles in which an SM has work, the share of these in which its tensor cores have, and FLOPs of such a
cycle. Clock and cycles are taken while a kernel runs back to back, the shares by the profiler from
one run. Notebooks 12 and 13 show the product.
"""

import sys

from flashlib.course.bench import harness, profiler
from flashlib.course.bench.harness import case_of, only_on_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

SHAPES = [(4, 16, 4096, 128), (4, 32, 4096, 64)]            # (B, H, N, d)
IMPLS = {"full": "v3's techniques, tiles of 128 × 128 at d = 128",
         "synchronous": "none of them, two warpgroups", "table": "what flash_attention takes",
         "fp8_block": "e4m3 operands with block scales"}
CASES = [(impl, shape, causal) for shape in SHAPES for causal in (False, True) for impl in IMPLS]
ELAPSED, ACTIVE = "sm__cycles_elapsed.max", "sm__cycles_active.avg"
# Which of them a version of Nsight Compute has for a Hopper GPU; the first counts all formats.
TENSOR = ("sm__pipe_tensor_cycles_active", "sm__pipe_tensor_op_gmma_cycles_active",
          "sm__pipe_tensor_op_hmma_cycles_active")
MATMUL_ROWS = 8192


def caller(impl, shape, causal):
    """Return a function of no arguments that runs a variant."""
    from flashlib.course.bench import gluon_ablation
    from flashlib.kernels import fp8
    from flashlib.kernels.backends.gluon import FP8

    q, k, v = gluon_ablation.inputs(shape)
    if impl == "fp8_block":
        prepared = fp8.prepare(q, k, v)
        return lambda: FP8.forward(*prepared, causal=causal, scale=shape[3] ** -0.5)
    config = None if impl == "table" else gluon_ablation.variants(shape[3], causal, shape[2])[impl]
    return lambda: gluon_ablation.forward(q, k, v, causal, config)


def warm(case):
    """Compile a case's kernel in a process of its own."""
    caller(*case)()


def matmul():
    """Return a function of no arguments that multiplies two large square matrices in bfloat16."""
    a, b = (torch.randn(MATMUL_ROWS, MATMUL_ROWS, device="cuda").to(torch.bfloat16) for _ in range(2))
    return lambda: a @ b


def probe():
    """Run every case twice, the second time under the profiler."""
    for case in CASES:
        call = caller(*case)
        call()
        profiler.profile(call)


def parse(text, tensor):
    """Return case → cycles from the profiler's table: the kernel's, a busy SM's, its tensor cores'."""
    names = {ELAPSED: "kernel_cycles", ACTIVE: "active_cycles", f"{tensor}.avg": "tensor_cycles"}
    found = profiler.sorted_out(text, dict.fromkeys(CASES, "flash_fwd"), names.values(), names)
    if not all(all(row.values()) for row in found.values()):
        raise ValueError(f"text: expected cycles above 0 everywhere, got {list(found.values())}")
    return found


def row_of(case, taken, counted):
    """Return a case's columns from its clock and the profiler's cycles."""
    impl, shape, causal = case
    count = harness.flops(shape, causal, "forward")
    return {**case_of(shape, impl=impl, mode="forward", causal=int(causal)), **taken,
            "flops": int(count), "tflops_per_s": count / taken["seconds"] / 1e12, **counted}


def main(argv=None):
    """Count, measure, print the factors and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, probe=probe, milliseconds={
        "type": int, "default": 400, "help": "how long each kernel runs back to back"})
    only_on_hopper()
    from flashlib.course.bench.clock_stamp import clock_of

    harness.warm_all(warm, CASES)
    counted, tensor = {}, None
    try:
        for tensor in profiler.known(TENSOR):
            try:
                text = profiler.run(__spec__.name, *profiler.TABLE, "--metrics",
                                    f"{ELAPSED},{ACTIVE},{tensor}.avg", timeout=240)
                counted = parse(text, tensor)
                break
            except ValueError as reason:
                print(f"{tensor}: {reason}")
    except profiler.NoCounters as reason:
        print(reason)
    if not counted:
        sys.exit("This measurement needs the tensor cores' cycles from Nsight Compute (ncu).")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    rows = [row_of(case, clock_of(caller(*case), options.milliseconds), counted[case])
            for case in CASES]
    show.table([{"impl": row["impl"], "d": row["d"], "causal": row["causal"],
                 "TFLOP/s": row["tflops_per_s"], "SMs": sms, "GHz": row["sm_clock_hz"] / 1e9,
                 "busy": row["active_cycles"] / row["kernel_cycles"],
                 "in tensor cores": row["tensor_cycles"] / row["active_cycles"],
                 "FLOPs a cycle": row["flops"] / sms / row["tensor_cycles"],
                 "profiled ÷ running": row["kernel_cycles"] / row["cycles"]} for row in rows])
    taken = clock_of(matmul(), options.milliseconds)
    rate = 2 * MATMUL_ROWS**3 / taken["seconds"]
    print(f"matmul {rate / 1e12:.0f} TFLOP/s at {taken['sm_clock_hz'] / 1e9:.3f} GHz")
    write(options, "clock", rows, collect(
        options.command, IMPLS, dtype="bfloat16", inputs="N(0,1); of fp8_block rotated and quantized",
        timing=f"back to back for {options.milliseconds} ms, after half as long of warming up",
        clock="cycles of %clock64 over time of %globaltimer, median of the SMs",
        flops="4 B H N N d forward, half if causal", counters="ncu --clock-control none, one run",
        kernel_cycles=ELAPSED, active_cycles=ACTIVE, tensor_cycles=f"{tensor}.avg",
        ceiling_matmul_flops_per_s=f"{rate:.4g}", ceiling_matmul_rows=MATMUL_ROWS,
        ceiling_matmul_clock_hz=f"{taken['sm_clock_hz']:.6g}"))


if __name__ == "__main__":
    main()
