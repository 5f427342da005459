"""Time standard attention against FlashAttention on this GPU, and count the bytes that moved.

    python -m flashlib.course.bench.attention_demo --out assets/measurements --name h200

Standard attention is three torch operations, each of which reads and writes the N×N matrix:
matmul, softmax, matmul. FlashAttention is torch's own kernel of it
(`SDPBackend.FLASH_ATTENTION`). Both are checked against float64 first. Notebook 00 shows the
result. Where Nsight Compute (`ncu`) can read hardware counters, a second file says how many bytes
each kernel took from DRAM and from the L2 cache.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import statistics
import subprocess
import sys
import time

from flashlib.course.bench.gpu import copy_rate, device_for
from flashlib.course.bench.provenance import collect, options_for, write_csv

# (B, H, N, d): a sweep over N, then GPT-2 medium as the FlashAttention paper measured it.
SWEEP = [(4, 16, n, 64) for n in (512, 1024, 2048, 4096, 8192, 16384)]
GPT2_MEDIUM = (64, 16, 1024, 64)
COUNTED = [(4, 16, 1024, 64), (4, 16, 4096, 64), GPT2_MEDIUM]
DRY = [(1, 2, 64, 64), (1, 2, 128, 64)]
MODES = ("forward", "forward+backward")

# Matmuls of 2·B·H·N²·d FLOPs each: FlashAttention computes QKᵀ once more in its backward.
MATMULS = {
    ("standard", "forward"): 2,
    ("standard", "forward+backward"): 6,
    ("flash", "forward"): 2,
    ("flash", "forward+backward"): 7,
}

METRICS = {
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "l1tex__m_xbar2l1tex_read_bytes.sum": "l2_to_sm_bytes",
    "l1tex__m_l1tex2xbar_write_bytes.sum": "sm_to_l2_bytes",
    "lts__t_sectors_op_read.sum": "l2_read_sectors",
    "lts__t_sectors_op_write.sum": "l2_write_sectors",
    "gpu__time_duration.sum": "nanoseconds",
}
# Older versions of Nsight Compute lack some of these for some GPUs.
OPTIONAL_METRICS = ("l1tex__m_l1tex2xbar_write_bytes.sum", "lts__t_sectors_op_write.sum")
CASE_MARK = "spin_kernel"


def standard(q, k, v):
    """Attention in three operations; q arrives already multiplied by 1/√d."""
    import torch

    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1), v)


def flash(q, k, v):
    """Attention as torch's FlashAttention kernel; q arrives already multiplied by 1/√d."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=1.0)


IMPLEMENTATIONS = {"standard": standard, "flash": flash}


def inputs(shape, device, dtype=None, grad=False, seed=0):
    """Return q (scaled), k, v and dO of a (B, H, N, d) shape, standard normal."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    make = {"device": device, "dtype": dtype or torch.bfloat16}
    q, k, v, dO = (torch.randn(shape, generator=generator, **make) for _ in range(4))
    q = q * shape[-1] ** -0.5
    return [t.requires_grad_(grad) for t in (q, k, v)], dO


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
    """Return each implementation's largest error against float64, output and gradients."""
    import torch

    qkv, dO = inputs((2, 3, 384, 64), device, grad=True, seed=1)
    exact = [t.detach().double().requires_grad_() for t in qkv]
    reference = standard(*exact)
    reference.backward(dO.double())
    errors = {}
    for impl, fn in IMPLEMENTATIONS.items():
        for t in qkv:
            t.grad = None
        out = fn(*qkv)
        out.backward(dO)
        pairs = [(out, reference), *((t.grad, x.grad) for t, x in zip(qkv, exact, strict=True))]
        worst = [((a.double() - b).abs().max() / b.abs().max()).item() for a, b in pairs]
        named = zip(("O", "dQ", "dK", "dV"), worst, strict=True)
        errors[impl] = ", ".join(f"{name} {error:.1e}" for name, error in named)
        if not max(worst) < 2e-2:
            raise RuntimeError(f"{impl} attention is wrong here: relative errors {errors[impl]}")
    torch.cuda.empty_cache()
    return errors


class Clock:
    """Median of repeated runs by device events, each on a flushed L2; host clock on a CPU."""

    def __init__(self, device, seconds):
        import torch

        self.device, self.seconds = device, seconds
        # Zeroing 1 GiB evicts the L2 and lets the host queue the next launches meanwhile.
        room = 2**30 if device == "cuda" else 2**10
        self.flush = torch.empty(room, dtype=torch.int8, device=device)

    def once(self, fn):
        import torch

        if self.device != "cuda":
            start = time.perf_counter()
            fn()
            return time.perf_counter() - start
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        start.record()
        fn()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e-3

    def __call__(self, fn):
        """Return the median, the 20 % and the 80 % quantile in seconds, and the repeats."""
        for _ in range(3):
            fn()
        guess = statistics.median(self.once(fn) for _ in range(3))
        repeats = int(min(200, max(10, self.seconds / guess)))
        times = sorted(self.once(fn) for _ in range(repeats))
        return statistics.median(times), times[repeats // 5], times[-1 - repeats // 5], repeats


def ceilings(clock, device):
    """Return what the chip itself does at best: bf16 matmul FLOP/s, and bytes/s of a copy."""
    import torch

    n = 8192 if device == "cuda" else 256
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    matmul, (copied, size) = clock(lambda: a @ b)[0], copy_rate(clock, device)
    return {
        "ceiling_matmul_flops_per_s": f"{2 * n**3 / matmul:.4g} (bf16, {n} cubed)",
        "ceiling_copy_bytes_per_s": f"{copied:.4g} (read + write, {size} bytes)",
    }


def extra_bytes(fn, device):
    """Return the most memory that one run holds beyond its inputs."""
    import torch

    if device != "cuda":
        fn()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = fn()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


def measure(shapes, device, clock):
    """Yield one row for every implementation, mode and shape; a run out of memory has no time."""
    import torch

    for shape in shapes:
        for impl in IMPLEMENTATIONS:
            for mode in MODES:
                B, H, N, d = shape
                flops = MATMULS[impl, mode] * 2 * B * H * N * N * d
                row = {"impl": impl, "mode": mode, "B": B, "H": H, "N": N, "d": d}
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
                row |= {"seconds": median, "seconds_q20": low, "seconds_q80": high}
                row |= {"repeats": repeats, "matmul_flops": flops, "extra_bytes": room}
                del qkv, dO, run
                if device == "cuda":
                    torch.cuda.empty_cache()
                yield row


def probe(shapes):
    """Run every case once between marks that Nsight Compute sees; called under `ncu`."""
    import torch

    for shape in shapes:
        for impl in IMPLEMENTATIONS:
            for mode in MODES:
                qkv, dO = inputs(shape, "cuda", grad=mode != "forward")
                run = caller(impl, mode, qkv, dO)
                run()
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                torch.cuda._sleep(1000)
                run()
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
                del qkv, dO, run
                torch.cuda.empty_cache()


def profiled(text):
    """Return the kernels in `ncu --csv --page raw --print-units base` output, by column, in order."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise ValueError("text: expected a table whose first column is ID, got none")
    return [cells for cells in csv.DictReader(lines[first:]) if (cells["ID"] or "").isdigit()]


def amount(cells, metric):
    """Return what a kernel's cell counts, None if it holds no number."""
    cell = (cells.get(metric) or "").replace(",", "")
    return int(float(cell)) if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", cell) else None


def parse_counters(text, shapes):
    """Turn the profiler's table into rows, one for each kernel.

    The marks between the cases say which implementation, mode and shape a kernel belongs to.
    """
    cases = iter([(shape, i, m) for shape in shapes for i in IMPLEMENTATIONS for m in MODES])
    rows, case = [], None
    for cells in profiled(text):
        name = cells["Kernel Name"]
        if CASE_MARK in name:
            case = next(cases, None)
            continue
        if case is None:
            raise ValueError(f"text: expected a mark before the kernel {name}")
        (B, H, N, d), impl, mode = case
        row = {"impl": impl, "mode": mode, "B": B, "H": H, "N": N, "d": d}
        row["kernel"] = short_name(name)
        row |= {column: amount(cells, metric) for metric, column in METRICS.items()}
        nanoseconds = row.pop("nanoseconds")
        row["seconds"] = None if nanoseconds is None else nanoseconds * 1e-9
        rows.append(row)
    if next(cases, None) is not None:
        raise ValueError("text: expected kernels of every case, got fewer marks than cases")
    return rows


def short_name(kernel):
    """Return a kernel's name without namespaces, template arguments and parameters."""
    named = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", kernel.removeprefix("void "))
    return re.split(r"[<(]", named, maxsplit=1)[0].strip().split("::")[-1]


def count(shapes):
    """Run the probe under Nsight Compute and return its rows, or None with a sentence of why."""
    tool = shutil.which("ncu")
    if tool is None:
        return None, "Nsight Compute (ncu) is not on the PATH"
    fewer = [metric for metric in METRICS if metric not in OPTIONAL_METRICS]
    for metrics in (METRICS, fewer):
        command = [tool, "--clock-control", "none", "--profile-from-start", "off"]
        command += ["--csv", "--page", "raw", "--print-units", "base"]
        command += ["--metrics", ",".join(metrics)]
        command += [sys.executable, "-m", "flashlib.course.bench.attention_demo", "--probe"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            return None, "ncu did not finish within 180 s"
        try:
            return parse_counters(done.stdout, shapes), None
        except ValueError as error:
            tail = " ".join((done.stdout + done.stderr).split())[-600:]
            reason = f"{error} (ncu ended with {done.returncode}: {tail})"
    return None, reason


def show(rows):
    """Print what a reader wants to see first."""
    print(f"{'impl':9}{'mode':18}{'shape':>18}{'ms':>10}{'TFLOP/s':>9}{'extra GB':>10}")
    for row in rows:
        shape = ",".join(str(row[key]) for key in "BHNd")
        seconds, room = row["seconds"], row["extra_bytes"]
        rate = "-" if not seconds else f"{row['matmul_flops'] / seconds / 1e12:.1f}"
        print(
            f"{row['impl']:9}{row['mode']:18}{shape:>18}"
            f"{'out of memory' if seconds is None else f'{seconds * 1e3:.3f}':>10}"
            f"{rate:>9}{'-' if room is None else f'{room / 1e9:.3f}':>10}"
        )


def main(argv=None):
    """Measure, print a table and write the CSV files."""
    parser = options_for(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="toy sizes, on the CPU")
    parser.add_argument("--no-counters", action="store_true", help="leave Nsight Compute out")
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.probe:
        return probe(COUNTED)
    device = device_for(options.dry_run)
    import torch

    shapes = DRY if options.dry_run else [*SWEEP, GPT2_MEDIUM]
    clock = Clock(device, seconds=0.01 if options.dry_run else 0.4)
    command = "python -m flashlib.course.bench.attention_demo --out assets/measurements"
    command += f" --name {options.name}" + (" --dry-run" if options.dry_run else "")
    errors = check(device)
    origin = collect(
        command,
        dtype="bfloat16, standard normal inputs, not causal",
        flash="torch.nn.functional.scaled_dot_product_attention, SDPBackend.FLASH_ATTENTION",
        standard="torch.matmul, torch.softmax, torch.matmul, eager; 1/sqrt(d) folded into Q",
        timing="median over repeats by device events, L2 flushed before each",
        **{f"max_relative_error_{impl}": text for impl, text in errors.items()},
        **ceilings(clock, device),
    )
    for key, value in origin.items():
        print(f"{key}: {value}")
    rows = list(measure(shapes, device, clock))
    show(rows)
    if options.out:
        write_csv(options.out / f"attention_demo_{options.name}.csv", rows, origin)
    if options.dry_run or options.no_counters:
        return None
    del clock
    torch.cuda.empty_cache()
    counted, reason = count(COUNTED)
    if counted is None:
        print(f"No hardware counters: {reason}.")
        return None
    timed = ("ceiling", "max_relative_error", "timing")
    notes = {key: value for key, value in origin.items() if not key.startswith(timed)}
    notes["counters"] = "ncu --clock-control none, caches flushed before each kernel, one run"
    notes |= {column: metric for metric, column in METRICS.items() if column != "nanoseconds"}
    for row in counted:
        print(*row.values())
    if options.out:
        write_csv(options.out / f"attention_demo_counters_{options.name}.csv", counted, notes)
    return None


if __name__ == "__main__":
    main()
