"""What the course costs its reader: `make bench-course`.

Prints execution time and peak memory of every notebook, the redraw time of every widget, the time
of `import flashlib`, and what counting costs. It measures and judges nothing: the last column says
how far a number is from what the course aims at.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"

TOTAL_S = 120.0
REDRAW_S = 0.150
IMPORT_S = 0.2
COUNTING_RATIO = 12.0

INLINE = "module://matplotlib_inline.backend_inline"

# Runs last in every notebook's kernel. VmHWM is this process's own; ru_maxrss, where there is no
# /proc, is in bytes (macOS).
PROBE = """\
import json, resource
from importlib.util import find_spec
from pathlib import Path

status = Path("/proc/self/status")
if status.exists():
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    peak_bytes = 1024 * int(line.split()[1])
else:
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
redraws = []
if find_spec("flashlib"):
    from flashlib import widgets
    redraws = [[str(w), str(c), str(o), float(s)] for w, c, o, s in widgets.sweep()]
print("PROBE" + json.dumps({"peak_bytes": peak_bytes, "redraws": redraws}))
"""


def run_notebook(path):
    """Execute one notebook in a fresh kernel.

    Returns:
        seconds from the kernel's start to the last cell's end, the kernel's peak memory in bytes,
        and the redraws as (widget, control, option, seconds).
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE))
    last = len(notebook.cells) - 1
    marks = []

    def before_cell(cell, cell_index):
        if cell_index == last:
            marks.append(time.perf_counter())

    client = NotebookClient(notebook, timeout=600, kernel_name="python3",
                            extra_arguments=["--log-level=ERROR"], on_cell_start=before_cell,
                            resources={"metadata": {"path": str(path.parent)}})
    start = time.perf_counter()
    client.execute(env=os.environ | {"TQDM_DISABLE": "1", "MPLBACKEND": INLINE})
    printed = "".join(output.get("text", "") for output in notebook.cells[last].outputs)
    probe = json.loads(printed.rpartition("PROBE")[2])
    return marks[0] - start, probe["peak_bytes"], probe["redraws"]


def import_s(repeats=5):
    """Median seconds of `import flashlib` in a fresh process."""
    code = "import time; t = time.perf_counter(); import flashlib; print(time.perf_counter() - t)"
    runs = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(repeats)]
    return median(float(run) for run in runs)


def plain_attention(Q, K, V):
    """Attention as NumPy writes it, with nothing counted and S in memory."""
    S = (Q @ K.T) * (1 / np.sqrt(Q.shape[1]))
    S -= S.max(axis=1, keepdims=True)
    np.exp(S, out=S)
    S /= S.sum(axis=1, keepdims=True)
    return S @ V


def counting_s(dtype, N=4096, d=64, block=64, repeats=3):
    """Median seconds of flash_v2 on a counting machine, and of plain NumPy attention."""
    from flashlib.algorithms.flash_v2 import flash_v2
    from flashlib.machine import Machine

    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((N, d)).astype(dtype) for _ in range(3))

    def flash():
        return flash_v2(Q, K, V, Br=block, Bc=block, machine=Machine())

    return _median_s(flash, repeats), _median_s(lambda: plain_attention(Q, K, V), repeats)


def _median_s(call, repeats):
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def table(title, head, rows):
    """Print rows under a head: the first column to the left, the others to the right."""
    rows = [[str(value) for value in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    print(f"\n{title}")
    for row in rows:
        first, *others = (value.rjust(width) for value, width in zip(row, widths, strict=True))
        print("  " + "  ".join([first.strip().ljust(widths[0]), *others]), flush=True)


def report_notebooks():
    """Print the tables of notebooks and of widgets."""
    rows, total_s, redraws = [], 0.0, {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        seconds, peak_bytes, timings = run_notebook(path)
        total_s += seconds
        rows.append([path.stem, f"{seconds:.1f}", f"{peak_bytes / 1e6:.0f}", ""])
        for widget, control, _option, redraw_s in timings:
            redraws.setdefault((path.stem, widget, control), []).append(redraw_s)
    rows.append(["all", f"{total_s:.1f}", "", f"{total_s / TOTAL_S:.2f}"])
    table("Notebooks", ["notebook", "time (s)", "peak memory (MB)", f"of {TOTAL_S:.0f} s"], rows)
    if not redraws:
        print("\nWidgets: no live widget was found.")
        return
    rows = [[f"{notebook[:2]} {widget}", control, len(times), f"{1e3 * median(times):.0f}",
             f"{1e3 * max(times):.0f}", f"{median(times) / REDRAW_S:.2f}"]
            for (notebook, widget, control), times in redraws.items()]
    head = ["widget", "control", "redraws", "median (ms)", "slowest (ms)"]
    table("Widgets", [*head, f"of {1e3 * REDRAW_S:.0f} ms"], rows)


def report_library():
    """Print the cost of the import and of counting."""
    seconds = import_s()
    rows = [["import flashlib", f"{seconds:.3f}", "", f"{seconds / IMPORT_S:.2f} of {IMPORT_S} s"]]
    for dtype in ("float64", "float32"):
        flash_s, plain_s = counting_s(dtype)
        ratio = flash_s / plain_s
        rows.append([f"flash_v2, counting, {dtype}", f"{flash_s:.3f}", f"{plain_s:.3f}",
                     f"{ratio:.1f}× NumPy, of {COUNTING_RATIO:.0f}×"])
    table("Library (N=4096, d=64, B=64)", ["what", "time (s)", "plain NumPy (s)", "ratio"], rows)


def main(argv=None):
    """Measure the library, then the notebooks."""
    parser = argparse.ArgumentParser(prog="python -m flashlib.course.bench.course", description=__doc__)
    parser.parse_args(argv)
    report_library()
    report_notebooks()


if __name__ == "__main__":
    main()
