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

from flashlib.course.bench import harness
from flashlib.course.notebook import show

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

    calls, clock = (flash, lambda: plain_attention(Q, K, V)), harness.clock_for("cpu")
    # The first run of each warms up.
    return tuple(median([clock(call)[0] for _ in range(repeats + 1)][1:]) for call in calls)


def report_notebooks():
    """Print the tables of notebooks and of widgets."""
    rows, redraws = [], {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        seconds, peak_bytes, timings = run_notebook(path)
        rows.append({"notebook": path.stem, "time (s)": seconds, "peak memory (MB)": peak_bytes / 1e6})
        for widget, control, _option, redraw_s in timings:
            redraws.setdefault((path.stem, widget, control), []).append(redraw_s)
    total_s = sum(row["time (s)"] for row in rows)
    show.table([*rows, {"notebook": "all", "time (s)": total_s, "peak memory (MB)": None}])
    print(f"{total_s / TOTAL_S:.2f} of {TOTAL_S:.0f} s\n")
    if not redraws:
        print("Widgets: no live widget was found.")
        return
    show.table([{"widget": f"{notebook[:2]} {widget}", "control": control, "redraws": len(times),
                 "median (ms)": 1e3 * median(times), "slowest (ms)": 1e3 * max(times),
                 f"of {1e3 * REDRAW_S:.0f} ms": median(times) / REDRAW_S}
                for (notebook, widget, control), times in redraws.items()])


def report_library():
    """Print the cost of the import and of counting."""
    seconds = import_s()
    print(f"import flashlib: {seconds:.3f} s, {seconds / IMPORT_S:.2f} of {IMPORT_S} s")
    for dtype in ("float64", "float32"):
        flash_s, plain_s = counting_s(dtype)
        print(f"flash_v2, counting (N=4096, d=64, B=64), {dtype}: {flash_s:.3f} s,"
              f" {flash_s / plain_s:.1f}× plain NumPy, of {COUNTING_RATIO:.0f}×")
    print()


def main(argv=None):
    """Measure the library, then the notebooks."""
    parser = argparse.ArgumentParser(prog="python -m flashlib.course.bench.course", description=__doc__)
    parser.parse_args(argv)
    report_library()
    report_notebooks()


if __name__ == "__main__":
    main()
