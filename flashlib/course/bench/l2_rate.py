"""Measure how fast the SMs read from L2 and from DRAM: one piece of memory, over and over, by its size.

    python -m flashlib.course.bench.l2_rate --out assets/measurements --name h200

All SMs read the same piece, 16 GiB together, in loads of 16 bytes a thread that go past the L1 cache;
on a Hopper GPU also through the copy engine, in tiles of K and V's size. A piece that fits in L2 comes
from DRAM once and then from L2. Programs begin apart from each other, or all at the same place.
What came is checked by its sum, and where Nsight Compute (`ncu`) may read hardware counters, its bytes
are counted at some sizes. Notebooks 01, 02, 11 and 12 show the result.
"""

import statistics
import sys

from flashlib.course.bench import harness, profiler
from flashlib.course.bench.harness import device_for, is_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

MIB = 2**20
SIZES = [n * MIB for n in (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 256, 1024)]
COUNTED = [n * MIB for n in (1, 16, 24, 48, 64, 1024)]
MOST_TOGETHER = 24 * MIB                                    # no program reads more than 32 MiB
IMPLS = {"loads": "loads of 16 bytes past L1, programs apart",
         "loads_together": "the same, all at one place",
         "copies": "the copy engine, tiles of 128 × 64 of 16 bits, programs apart",
         "copies_together": "the same, all at one place"}
ASKED = {"lts__t_sectors_srcunit_tex_op_read.sum": "l2_asked_sectors"}      # by SMs, not by L2 itself
COUNTERS = ("dram_read_bytes", "l2_to_sm_bytes", "l2_read_sectors", *ASKED.values())
TOTAL_BYTES = 16 * 1024 * MIB
BLOCK, AHEAD, WARPS, PROGRAMS = 1024, 8, 8, 4               # of `read_kernel`: PROGRAMS on an SM
TILE, STAGES, COPIERS = (128, 64), 6, 2                     # of `copy_kernel`: COPIERS on an SM
CHECK_S = 120                                               # for compiling and checking one kind


def memory(size):
    """Return `size` bytes of small whole numbers in float16."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    return torch.randint(-8, 9, (size // 2,), generator=generator, device="cuda").half()


def layout(impl, size, sms, total=None):
    """Return the programs, how many bytes apart they begin, what a step reads, and the steps."""
    each, per_sm = 4 * BLOCK * AHEAD, PROGRAMS
    if "copies" in impl:
        each, per_sm = 2 * TILE[0] * TILE[1], COPIERS
    programs = sms * per_sm
    apart = 0 if "together" in impl else max(1, size // programs // each) * each
    return programs, apart, each, max(STAGES, (total or TOTAL_BYTES) // programs // each)


def caller(impl, x, size, total=None):
    """Return a function of no arguments that reads `size` bytes of x, and where its sums go."""
    from flashlib.course.bench import l2_kernels

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    programs, apart, _, steps = layout(impl, size, sms, total)
    x = x[:size // 2]
    if "loads" in impl:
        sums, words = torch.zeros(programs, dtype=torch.int32, device="cuda"), x.view(torch.int32)
        return lambda: l2_kernels.read_kernel[(programs,)](
            words, sums, size // 4, apart // 4, steps, BLOCK, AHEAD, num_warps=WARPS), sums
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    sums, rows = torch.zeros(programs, dtype=torch.float32, device="cuda"), size // 2 // TILE[1]
    shared = gl.NVMMASharedLayout.get_default_for(list(TILE), gl.float16)
    desc = TensorDescriptor(x.view(rows, TILE[1]), [rows, TILE[1]], [TILE[1], 1], list(TILE), shared)
    return lambda: l2_kernels.copy_kernel[(programs,)](
        desc, sums, rows, apart // 2 // TILE[1], steps, STAGES, num_warps=1), sums


def expected(impl, x, size, total=None):
    """Return what the programs' sums are: of all words that came, or of the last tile."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    programs, apart, each, steps = layout(impl, size, sms, total)
    first = torch.arange(programs, device=x.device) * apart
    if "copies" in impl:
        tiles = x[:size // 2].view(-1, each // 2).float().sum(1)
        return tiles[(first + (steps - 1) * each) % size // each]
    chunks = x[:size // 2].view(torch.int32).view(-1, each // 4).long().sum(1)
    places = (first[:, None] // each + torch.arange(steps, device=x.device)) % (size // each)
    return chunks[places].sum(1).to(torch.int32)            # 32 bits, as the kernel's


def check(impls):
    """Hold the sums of some implementations against torch's, at two sizes."""
    for impl in impls:
        for size in (3 * MIB, 40 * MIB):
            x = memory(size)
            call, sums = caller(impl, x, size, 2**30)
            call()
            if not (sums == expected(impl, x, size, 2**30)).all():
                raise RuntimeError(f"{impl} is wrong here, of {size} bytes")


def probe():
    """Read the counted sizes once under the profiler."""
    for impl, size in cases(implementations(is_hopper()), COUNTED):
        call, _ = caller(impl, memory(size), size)
        call()
        profiler.profile(call)


def implementations(hopper):
    """Return the implementations that run here: the copy engine needs a Hopper GPU."""
    return [impl for impl in IMPLS if hopper or "copies" not in impl]


def cases(impls, sizes):
    """Return (implementation, size), size by size."""
    return [(impl, size) for size in sizes for impl in impls
            if "together" not in impl or size <= MOST_TOGETHER]


def kernels(cases):
    """Return (implementation, size) → the kernel that runs."""
    return {case: "copy_kernel" if "copies" in case[0] else "read_kernel" for case in cases}


def measure(impls, counters, rounds):
    """Yield one row for every size and implementation; those of a size alternate."""
    from flashlib.course.bench.clock_stamp import clock_of

    sms, x = torch.cuda.get_device_properties(0).multi_processor_count, memory(max(SIZES))
    for size in SIZES:
        calls = {impl: caller(impl, x, size)[0] for impl, _ in cases(impls, [size])}
        for impl, times in harness.race(calls, "cuda", rounds, 30).items():
            programs, _, each, steps = layout(impl, size, sms)
            seconds, total = statistics.median(times), programs * each * steps
            yield {"impl": impl, "working_set_bytes": size, "seconds": seconds,
                   "seconds_low": min(times), "seconds_high": max(times), "rounds": len(times),
                   "read_bytes": total, "read_bytes_per_s": total / seconds,
                   "sm_clock_hz": clock_of(calls[impl], 30)["sm_clock_hz"],
                   **counters.get((impl, size), dict.fromkeys(COUNTERS))}


def main(argv=None):
    """Check, count, measure, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, probe=probe, rounds=5)
    device_for()
    impls = implementations(is_hopper())
    for kind in ("loads", "copies"):
        mine = [impl for impl in impls if kind in impl]
        if mine and not harness.finishes(CHECK_S, check, mine):
            sys.exit(f"This measurement stops: the {kind} did not pass their check in {CHECK_S} s.")
    counters = profiler.by_case(__spec__.name, kernels(cases(impls, COUNTED)), COUNTERS, ASKED)
    head = collect(options.command, {impl: IMPLS[impl] for impl in impls}, timing=harness.ALTERNATING,
                   **profiler.NOTES, **{column: metric for metric, column in ASKED.items()},
                   **harness.copy_ceiling(harness.clock_for("cuda", 300), "cuda"))
    rows = list(measure(impls, counters, options.rounds))
    show.table(rows)
    write(options, "l2_rate", rows, head)


if __name__ == "__main__":
    main()
