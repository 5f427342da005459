"""Run notebook 12's attention kernel with one line left out on a Hopper GPU, and count wrong results.

    python -m flashlib.course.bench.left_out --out assets/measurements --name h200

Each line is left out in a process of its own, which is ended after `LIMIT_S`: a kernel that waits for
what never comes would hold the GPU for ever. Notebook 12 shows the result beside what the interpreter
says of the same kernels.
"""

import json
import tempfile
from pathlib import Path

from flashlib.course.bench import harness
from flashlib.course.bench.harness import case_of, only_on_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.ch12.edited_kernels import LEFT_OUT, edited
from flashlib.course.notebook import show

SHAPE, LAUNCHES, LIMIT_S = (4, 16, 4096, 128), 1000, 20      # (B, H, N, d)


def launch(name, path):
    """Compare every launch with the whole kernel's result; write to a file how many differ."""
    q, k, v, _ = harness.inputs(SHAPE, "cuda", "bfloat16")
    right, kernel = edited().attention(q, k, v), edited(*LEFT_OUT[name]).attention
    torch.cuda.synchronize()
    wrong, status = torch.zeros((), dtype=torch.int64, device="cuda"), "ok"
    try:
        for _ in range(LAUNCHES):
            wrong += (kernel(q, k, v) != right).any()  # NaN differs from everything
        count = int(wrong)
    except Exception as error:                              # recorded: it is what came of it
        count, status = None, f"{type(error).__name__}: {error}".splitlines()[0]
    path.write_text(json.dumps({"wrong_launches": count, "status": status}), encoding="utf-8")


def measure(options):
    """Try every piece, print and write the CSV file."""
    rows = []
    for name in LEFT_OUT:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seen.json"
            harness.finishes(LIMIT_S, launch, name, path)
            seen = (json.loads(path.read_text(encoding="utf-8")) if path.exists()
                    else {"wrong_launches": None, "status": f"no end within {LIMIT_S} s"})
        rows.append({**case_of(SHAPE), "left_out": name, "launches": LAUNCHES, **seen})
    show.table(rows)
    write(options, "left_out", rows, collect(
        options.command, dtype="bfloat16", inputs="standard normal",
        wrong_launches="those whose O differs in any element from the whole kernel's"))


def main(argv=None):
    """Measure where the GPU is a Hopper."""
    options = options_for(__spec__, __doc__, argv)
    only_on_hopper()
    measure(options)


if __name__ == "__main__":
    main()
