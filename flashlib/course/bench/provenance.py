"""Say where a measurement comes from, and keep it as CSV under a header that says so.

A recorded number without its GPU, versions, date and command cannot be checked. Every CSV file in
`assets/measurements` begins with these as `# key: value` lines; `flashlib.data.measurements`
reads them back. Neither the machine's name nor a path on it is recorded. What columns and keys are
called, and in which unit they count, stands in `assets/measurements/README.md` for all files together.
"""

import argparse
import contextlib
import csv
import datetime
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from flashlib.course.bench.harness import has_gpu, torch


def collect(command, impls=(), **more):
    """Return where and with what a measurement is made, as an ordered dictionary of strings.

    Args:
        command: what a reader types to repeat it.
        impls: {implementation: what it is}.
        more: further entries, such as ceilings measured in the same run.
    """
    more |= {f"impl_{impl}": words for impl, words in dict(impls).items()}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    entries = {"command": command, "date": date, **_gpu(), **_versions(), **more}
    return {key: str(value) for key, value in entries.items()}


def options_for(spec, doc, argv, *, dry_run=None, probe=None, rounds=None, **more):
    """Parse a benchmark's command line; the result carries the `command` that repeats the run.

    Args:
        spec: the module's `__spec__`.  doc: its docstring, whose first line says what is measured.
        argv: the arguments, None for those of the process.
        dry_run: what `--dry-run` does here, None where there is no such option.
        probe: what `--probe` runs, which a benchmark does to itself under Nsight Compute, and ends.
        rounds: how often to time each case if nobody says, None where there is no such option.
        more: further options: name=dict of what `add_argument` takes.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, help="folder for the CSV files (default: only print)")
    parser.add_argument("--name", default="this_gpu", help="ending of the files' names")
    if dry_run:
        parser.add_argument("--dry-run", action="store_true", help=dry_run)
    if probe:
        parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    if rounds:
        more["rounds"] = {"type": int, "default": rounds, "help": "how often to time each case"}
    for name, how in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    options = parser.parse_args(argv)
    if probe and options.probe:
        probe()
        sys.exit()
    words = ["python", "-m", spec.name, *(sys.argv[1:] if argv is None else argv)]
    for n, word in enumerate(words):                        # no path of this machine is recorded
        if word == "--out":
            words[n + 1] = "assets/measurements"
        elif word.startswith("--out="):
            words[n] = "--out=assets/measurements"
    options.command = " ".join(words)
    return options


def write(options, name, rows, head):
    """Write rows to `<name>_<options.name>.csv` under a head, if a folder was asked for."""
    if options.out:
        write_csv(options.out / f"{name}_{options.name}.csv", rows, head)


def write_csv(path, rows, provenance):
    """Write rows (dictionaries with the same keys) under `# key: value` lines; None stays empty."""
    rows = list(rows)
    if not rows:
        raise ValueError("rows: expected at least one row, got none")
    columns = list(rows[0])
    for number, row in enumerate(rows):
        if list(row) != columns:
            raise ValueError(f"rows: expected the columns {columns} in row {number}, got {list(row)}")
    for key, value in provenance.items():
        if ":" in key or "\n" in f"{key}{value}":
            raise ValueError(f"provenance: expected one line and no colon in the key, got {key!r}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in provenance.items())
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return path


def _cell(value):
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _gpu():
    """Return the name, size and driver of the current GPU, or say that there is none."""
    if not has_gpu():
        return {"gpu": "none"}
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"gpu": card.name, "compute_capability": f"{card.major}.{card.minor}",
            "sms": card.multi_processor_count, "l2_bytes": card.L2_cache_size,
            "memory_bytes": card.total_memory, "driver": _driver()}


def _driver():
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.split("\n")[0].strip() or "unknown"


def _versions():
    versions = {"python": platform.python_version()}
    for package in ("torch", "triton", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    with contextlib.suppress(ImportError):
        # The installed metadata leaves out which CUDA a build is for; the module knows.
        versions |= {"torch": torch.__version__, "cuda": torch.version.cuda or "none"}
        if torch.version.cuda and torch.backends.cudnn.is_available():
            versions["cudnn"] = str(torch.backends.cudnn.version())
    return versions
