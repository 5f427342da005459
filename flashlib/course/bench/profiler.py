"""Run a benchmark under Nsight Compute (`ncu`) and read its tables of hardware counters."""

import csv
import re
import shutil
import subprocess
import sys

from flashlib.course.bench.harness import torch

# What a hardware counter is called in our files.
METRICS = {
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "l1tex__m_xbar2l1tex_read_bytes.sum": "l2_to_sm_bytes",
    "l1tex__m_l1tex2xbar_write_bytes.sum": "sm_to_l2_bytes",
    "lts__t_sectors_op_read.sum": "l2_read_sectors",
    "lts__t_sectors_op_write.sum": "l2_write_sectors",
    "gpu__time_duration.sum": "seconds",                    # ncu gives nanoseconds
}
# Older versions of Nsight Compute lack some of these for some GPUs.
OPTIONAL_METRICS = ("l1tex__m_l1tex2xbar_write_bytes.sum", "lts__t_sectors_op_write.sum")
NOTES = {"counters": "ncu --clock-control none, caches flushed before each kernel, one run",
         **{column: metric for metric, column in METRICS.items() if column != "seconds"}}
TABLE = ("--csv", "--page", "raw", "--print-units", "base")


class NoCounters(RuntimeError):
    """There are no counters; the message says why."""


def _ncu(*words, timeout):
    """Run ncu with some arguments; raise `NoCounters` if it is not there or takes too long."""
    tool = shutil.which("ncu")
    if tool is None:
        raise NoCounters("Nsight Compute (ncu) is not on the PATH")
    try:
        return subprocess.run([tool, *words], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise NoCounters(f"ncu did not finish within {timeout} s") from None


def run(module, *options, timeout=180):
    """Run `python -m module --probe` under ncu with some options and return what ncu printed.

    Raises:
        NoCounters: ncu is not there, failed or took too long.
    """
    done = _ncu("--clock-control", "none", "--profile-from-start", "off", *options, sys.executable,
                "-m", module, "--probe", timeout=timeout)
    if done.returncode and '"ID"' not in done.stdout:       # a table is judged by who reads it
        raise NoCounters(f"ncu ended with {done.returncode}: {_tail(done.stdout + done.stderr)}")
    return done.stdout


def count(module, parse, more=(), timeout=180):
    """Return what `parse` makes of the table of `METRICS`, or of those that every version has.

    `more` are further metrics. `parse` raises ValueError where it cannot trust the table.
    """
    fewer = [metric for metric in METRICS if metric not in OPTIONAL_METRICS]
    for metrics in (METRICS, fewer):
        try:
            text = run(module, *TABLE, "--metrics", ",".join([*metrics, *more]), timeout=timeout)
            return parse(text)
        except ValueError as error:
            reason = NoCounters(f"{error} (ncu printed: {_tail(text)})")
        except NoCounters as error:
            reason = error
    raise reason


def by_case(module, kernels, columns, more=None, timeout=180):
    """Return case → counters by column; without hardware counters say why, with None for each.

    Args:
        module: its `--probe` profiles one kernel for every case, in order.
        kernels: {case: what its kernel's name holds}.
        columns: which counters are kept.  more: further metrics, {metric: column}.
    """
    more = more or {}
    try:
        listed = known([metric.removesuffix(".sum") for metric in more]) if more else []
        return count(module, lambda text: sorted_out(text, kernels, columns, more),
                     [f"{name}.sum" for name in listed], timeout)
    except NoCounters as reason:
        print(f"No hardware counters: {reason}.")
        return {case: dict.fromkeys(columns) for case in kernels}


def sorted_out(text, kernels, columns, more=()):
    """Return case → counters by column from ncu's table; kernels that no case names do not count."""
    wanted = list(kernels.values())
    found = [cells for cells in profiled(text) if any(name in cells["Kernel Name"] for name in wanted)]
    names = [cells["Kernel Name"][:30] for cells in found]
    if len(found) != len(wanted) or not all(
            want in name for want, name in zip(wanted, names, strict=True)):
        raise ValueError(f"text: expected {len(wanted)} kernels in the cases' order, got {len(found)}:"
                         f" {', '.join(dict.fromkeys(names))}")
    return {case: {key: counted(cells, more)[key] for key in columns}
            for case, cells in zip(kernels, found, strict=True)}


def known(metrics):
    """Return those of some metrics, named without `.sum` and the like, that ncu has for this GPU.

    Raises:
        NoCounters: ncu is not there, lists nothing or takes too long.
    """
    done = _ncu("--query-metrics", timeout=60)
    listed = {words[0] for words in map(str.split, done.stdout.splitlines()) if words}
    if not listed & {metric.split(".")[0] for metric in METRICS}:
        raise NoCounters(f"ncu lists no metrics: {_tail(done.stdout + done.stderr)}")
    return [metric for metric in metrics if metric in listed]


def report(path, page, *options):
    """Return one page of a report that ncu has written."""
    return subprocess.run([shutil.which("ncu"), "-i", path, "--page", page, "--csv", *options],
                          check=True, capture_output=True, text=True).stdout


def profile(call):
    """Run a call once between the profiler's marks; what ran before is not counted."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


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


def counted(cells, more=()) -> dict:
    """Return the columns of a kernel's counters; `more` maps further metrics to their columns."""
    found = {column: amount(cells, metric) for metric, column in (METRICS | dict(more)).items()}
    return found | {"seconds": None if found["seconds"] is None else found["seconds"] * 1e-9}


def _tail(text):
    return " ".join(text.split())[-600:]
