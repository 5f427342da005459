"""Take v1's loop order apart from v2's: in the same tiles, with idle SMs or none, O in 16 bits or 32.

    python -m flashlib.course.bench.loop_order --out assets/measurements --name h200

One step at a time leads from the first version's page to the second's: O in 32 bits in place of 16,
one late division, a head's rows shared among programs, row tiles outside, and again the rows shared.
Few heads leave SMs idle, a multiple of an H200's 132 does not; an O of few or short heads stays in L2,
a large one does not. Every variant is held against float64 first. Where Nsight Compute (`ncu`) may read
hardware counters, bytes stand beside the times. Notebook 08 shows the result.
"""

from typing import NamedTuple

from flashlib.course.bench import harness, profiler
from flashlib.course.bench.harness import case_of, device_for, inputs, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

# (B, H, N, d): 16 programs, one a SM, four a SM, if a program has a whole head.
SHAPES = [(1, heads, N, 64) for N in (1024, 4096) for heads in (16, 132, 528)] + [(1, 132, 4096, 128)]
CAUSAL = [(1, heads, 4096, 64) for heads in (16, 132)]
TILE = 64                                                   # rows and keys of a tile
WARPS = 4
SHARED = 8                                                  # programs a head, as v1's release 1.0.9
TOLERANCE = {16: 2e-2, 32: 5e-3}                            # by the bits of O: v1 rounds it every time
COUNTERS = ("dram_read_bytes", "dram_write_bytes", "l2_to_sm_bytes", "sm_to_l2_bytes")
SHOWN = ("impl", "causal", "H", "N_q", "d", "late_division", "o_bits", "program_rows", "longest_first",
         "num_stages", "seconds", "tflops_per_s", *COUNTERS)


class Variant(NamedTuple):
    """A loop order and what else may differ; `bits` are those of O, `rows` those of a program."""

    order: str
    bits: int
    rows: int
    late: bool = True
    stages: int = 1
    longest_first: bool = False


def variants(N, causal):
    """Return the steps from v1's page to v2's; under a mask fewer, and both launch orders."""
    if causal:
        return [Variant("v1", 32, N), Variant("v2", 16, N), Variant("v2", 16, TILE),
                Variant("v2", 16, TILE, longest_first=True)]
    return [Variant("v1", 16, N, late=False), Variant("v1", 32, N, late=False), Variant("v1", 32, N),
            Variant("v1", 32, N, stages=2), Variant("v1", 32, N // SHARED), Variant("v1", 32, TILE),
            Variant("v2", 32, N), Variant("v2", 16, N), Variant("v2", 16, N // SHARED),
            Variant("v2", 16, TILE), Variant("v2", 16, TILE, stages=2)]


CASES = [(shape, causal, variant) for shapes, causal in ((SHAPES, False), (CAUSAL, True))
         for shape in shapes for variant in variants(shape[2], causal)]
KERNELS = {case: f"flash_fwd_{case[2].order}_order_kernel" for case in CASES}


def launch(tensors, causal, variant):
    """Return a function of no arguments that runs a variant, and its O."""
    from flashlib.course.bench import loop_order_kernels

    return loop_order_kernels.launcher(
        variant.order, *tensors[:3], rows=variant.rows, late=variant.late, causal=causal,
        o_dtype=torch.float32 if variant.bits == 32 else None, longest_first=variant.longest_first,
        BLOCK_M=TILE, BLOCK_N=TILE, num_warps=WARPS, num_stages=variant.stages)


def warm(case):
    """Compile a case's kernel in a process of its own."""
    shape, causal, variant = case
    launch(inputs(shape, "cuda"), causal, variant)[0]()


def described(shape, causal, variant):
    """Return the columns that name a case."""
    B, H, N, _ = shape
    return {**case_of(shape, impl=variant.order, mode="forward", causal=int(causal)), "BLOCK_M": TILE,
            "BLOCK_N": TILE, "num_warps": WARPS, "num_stages": variant.stages, "o_bits": variant.bits,
            "late_division": int(variant.late), "program_rows": variant.rows,
            "programs": B * H * N // variant.rows, "longest_first": int(variant.longest_first)}


def checked(tensors, causal, variant):
    """Return a variant's call and its error against float64."""
    call, o = launch(tensors, causal, variant)
    call()
    return call, harness.checked(o, *tensors[:3], causal, TOLERANCE[variant.bits])


def probe():
    """Run every case twice, the second time under the profiler."""
    for shape, causal, variant in CASES:
        call, _ = launch(inputs(shape, "cuda"), causal, variant)
        call()
        profiler.profile(call)


def measure(counters, rounds):
    """Yield one row for every case; those of a shape and mask alternate."""
    for shape, causal in dict.fromkeys(case[:2] for case in CASES):
        tensors = inputs(shape, "cuda")
        found = {variant: checked(tensors, causal, variant) for variant in variants(shape[2], causal)}
        for variant, row in harness.raced(found, shape, causal, rounds, 30).items():
            yield {**described(shape, causal, variant), **row, "relative_error": found[variant][1],
                   **counters[shape, causal, variant]}


def main(argv=None):
    """Compile on all cores, count, check, time, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, probe=probe, rounds=5)
    device_for()
    harness.warm_all(warm, dict.fromkeys(((1, 16, *shape[2:]), causal, variant)
                                         for shape, causal, variant in CASES if shape[2] == 4096))
    counters = profiler.by_case(__spec__.name, KERNELS, COUNTERS, timeout=240)
    rows = list(measure(counters, options.rounds))
    show.table([{key: row[key] for key in SHOWN} for row in rows])
    write(options, "loop_order", rows, collect(
        options.command, dtype="bfloat16", inputs="standard normal", timing=harness.ALTERNATING,
        flops="4 B H N N d forward, half if causal",
        impl_v1="key tiles outside; O, m and l of a row tile are read and written at every visit",
        impl_v2="row tiles outside; O, m and l stay in registers", **profiler.NOTES))


if __name__ == "__main__":
    main()
