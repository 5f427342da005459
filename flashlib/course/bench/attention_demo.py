"""Time standard attention against FlashAttention on this GPU, and count the bytes that moved.

    python -m flashlib.course.bench.attention_demo --out assets/measurements --name h200

Standard attention is three torch operations, each of which reads and writes the N×N matrix:
matmul, softmax, matmul. FlashAttention is torch's own kernel of it
(`SDPBackend.FLASH_ATTENTION`). Both are checked against float64 first. Notebook 00 shows the
result. Where Nsight Compute (`ncu`) can read hardware counters, a second file says how many bytes
each kernel took from DRAM and from the L2 cache.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

import itertools
import re

from flashlib.course.bench import harness, profiler
from flashlib.course.bench.harness import case_of, device_for, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

# (B, H, N, d): a sweep over N, then GPT-2 medium as the FlashAttention paper measured it.
SWEEP = [(4, 16, n, 64) for n in (512, 1024, 2048, 4096, 8192, 16384)]
GPT2_MEDIUM = (64, 16, 1024, 64)
COUNTED = [(4, 16, 1024, 64), (4, 16, 4096, 64), GPT2_MEDIUM]
DRY = [(1, 2, 64, 64), (1, 2, 128, 64)]
MODES = ("forward", "forward+backward")

# Matmuls of 2·B·H·N²·d FLOPs each: FlashAttention computes QKᵀ once more in its backward.
MATMULS = {("standard", "forward"): 2, ("standard", "forward+backward"): 6,
           ("flash", "forward"): 2, ("flash", "forward+backward"): 7}
CASE_MARK = "spin_kernel"


def standard(q, k, v):
    """Attention in three operations; q arrives already multiplied by 1/√d."""
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1), v)


def flash(q, k, v):
    """Attention as torch's FlashAttention kernel; q arrives already multiplied by 1/√d."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=1.0)


IMPLEMENTATIONS = {"standard": standard, "flash": flash}


def inputs(shape, device, grad=False, seed=0):
    """Return q (scaled), k, v and dO of a (B, H, N, d) shape, standard normal."""
    q, k, v, dO = harness.inputs(shape, device, "bfloat16", seed)
    return [t.requires_grad_(grad) for t in (q * shape[-1] ** -0.5, k, v)], dO


def caller(impl, mode, qkv, dO):
    """Return a function of no arguments that runs the implementation once."""
    fn = IMPLEMENTATIONS[impl]
    if mode == "forward":
        return lambda: fn(*qkv)

    def both():
        for t in qkv:
            t.grad = None
        fn(*qkv).backward(dO)

    return both


def check(device):
    """Return each implementation's largest errors against float64, of the output and each gradient."""
    qkv, dO = inputs((2, 3, 384, 64), device, seed=1)
    reference, errors = _all_of(standard, [t.double() for t in (*qkv, dO)]), {}
    for impl, fn in IMPLEMENTATIONS.items():
        worst = {name: ((a.double() - b).abs().max() / b.abs().max()).item()
                 for name, a, b in zip(("O", "dQ", "dK", "dV"), _all_of(fn, [*qkv, dO]), reference,
                                       strict=True)}
        if not max(worst.values()) < harness.TOLERANCE:
            raise RuntimeError(f"{impl} attention is wrong here: relative errors {worst}")
        errors |= {f"max_relative_error_{impl}_{name}": f"{x:.1e}" for name, x in worst.items()}
    torch.cuda.empty_cache()
    return errors


def _all_of(fn, tensors):
    return harness.results(lambda q, k, v, causal: fn(q, k, v), tensors, False)


def extra_bytes(fn, device):
    """Return the most memory that one run holds beyond its inputs."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(shapes, device, clock):
    """Yield one row for every implementation, mode and shape; a run out of memory has no time."""
    for shape, impl, mode in itertools.product(shapes, IMPLEMENTATIONS, MODES):
        B, H, N, d = shape
        qkv, dO = inputs(shape, device, grad=mode != "forward")
        run = caller(impl, mode, qkv, dO)
        try:
            # A first run that is not counted sets up cuBLAS's workspace.
            run()
            for t in qkv:
                t.grad = None
            room = extra_bytes(run, device)
            median, low, high, repeats = clock(run)
        except torch.OutOfMemoryError:
            median = low = high = room = None
            repeats = 0
        del qkv, dO, run
        if device == "cuda":
            torch.cuda.empty_cache()
        yield {**case_of(shape, impl=impl, mode=mode, causal=0), "seconds": median,
               "seconds_q20": low, "seconds_q80": high, "repeats": repeats,
               "matmul_flops": MATMULS[impl, mode] * 2 * B * H * N * N * d, "extra_bytes": room}


def probe(shapes=COUNTED):
    """Run every case once between marks that Nsight Compute sees; called under `ncu`."""
    for shape, impl, mode in itertools.product(shapes, IMPLEMENTATIONS, MODES):
        qkv, dO = inputs(shape, "cuda", grad=mode != "forward")
        run = caller(impl, mode, qkv, dO)

        def marked(run=run):
            torch.cuda._sleep(1000)
            run()

        run()
        profiler.profile(marked)
        del qkv, dO, run, marked
        torch.cuda.empty_cache()


def parse_counters(text, shapes):
    """Turn the profiler's table into rows, one for each kernel.

    The marks between the cases say which implementation, mode and shape a kernel belongs to.
    """
    cases, rows, case = itertools.product(shapes, IMPLEMENTATIONS, MODES), [], None
    for cells in profiler.profiled(text):
        name = cells["Kernel Name"]
        if CASE_MARK in name:
            case = next(cases, None)
            continue
        if case is None:
            raise ValueError(f"text: expected a mark before the kernel {name}")
        shape, impl, mode = case
        rows.append({**case_of(shape, impl=impl, mode=mode, causal=0),
                     "kernel": short_name(name), **profiler.counted(cells)})
    if next(cases, None) is not None:
        raise ValueError("text: expected kernels of every case, got fewer marks than cases")
    return rows


def short_name(kernel):
    """Return a kernel's name without namespaces, template arguments and parameters."""
    named = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", kernel.removeprefix("void "))
    return re.split(r"[<(]", named, maxsplit=1)[0].strip().split("::")[-1]


def summary(row):
    """Return what a reader wants to see first; a run that was out of memory has no time."""
    seconds = row["seconds"]
    shown = ("impl", "mode", "B", "H", "N_q", "d", "seconds", "extra_bytes")
    rate = seconds and row["matmul_flops"] / seconds / 1e12
    return {key: row[key] for key in shown} | {"TFLOP/s": rate}


def main(argv=None):
    """Measure, print a table and write the CSV files."""
    options = options_for(__spec__, __doc__, argv, dry_run="toy sizes, on the CPU", probe=probe,
                          no_counters={"action": "store_true", "help": "leave Nsight Compute out"})
    device = device_for(options.dry_run)
    shapes = DRY if options.dry_run else [*SWEEP, GPT2_MEDIUM]
    head = collect(
        options.command, dtype="bfloat16", inputs="standard normal",
        impl_flash="torch.nn.functional.scaled_dot_product_attention, SDPBackend.FLASH_ATTENTION",
        impl_standard="torch.matmul, torch.softmax, torch.matmul, eager; 1/sqrt(d) folded into Q")
    timed = head | {"timing": "median over repeats by device events, L2 flushed before each",
                    **check(device), **harness.ceilings(device)}
    for key, value in timed.items():
        print(f"{key}: {value}")
    rows = list(measure(shapes, device, harness.clock_for(device, 400)))
    show.table(list(map(summary, rows)))
    write(options, "attention_demo", rows, timed)
    if options.dry_run or options.no_counters:
        return
    try:
        counted = profiler.count(__spec__.name, lambda text: parse_counters(text, COUNTED))
    except profiler.NoCounters as reason:
        print(f"No hardware counters: {reason}.")
        return
    show.table(counted)
    write(options, "attention_demo_counters", counted, head | profiler.NOTES)


if __name__ == "__main__":
    main()
