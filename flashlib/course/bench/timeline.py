"""Read the clock inside of the Hopper kernel: what two warpgroups do, and when.

    python -m flashlib.course.bench.timeline --out assets/measurements --name h200

Needs a Hopper GPU. The kernel's source is copied, and a line that stores the SM's clock is put between
its steps (`EDITS`); the first program of the grid keeps the readings. They cost time, so the rate of
the kernel without them stands beside. Notebook 12 draws the result.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path

from flashlib.course.bench.harness import case_of, device_for, is_hopper
from flashlib.course.bench.provenance import collect, options_for, write

SHAPES = [(4, 16, 4096, 128, False), (4, 16, 4096, 128, True)]      # (B, H, N, d, causal)
READINGS = 4096                                             # of a warpgroup, at most
TILES = 2                                                   # query tiles that are written to the file
# What a reading says has just happened. From "issued" to "scores": Q·Kᵀ. From "scores" to "output":
# softmax, and the wait for P·V.
EVENTS = {0: "step", 1: "issued", 2: "scores", 3: "output", 4: "last step", 5: "next scores",
          6: "last output", 7: "finished"}
STAMP = '''@gluon.jit
def stamp(readings, n, event: gl.constexpr):
    """Store the clock, and the event in its last four bits, at place n; return the next place."""
    t = gl.inline_asm_elementwise("mov.u32 $0, %clock; // $1", "=r,r", [n], dtype=gl.int32,
                                  is_pure=False, pack=1)
    gl.store(readings + n, (t & -16) | event, mask=n < COUNT)
    return n + 1


'''
EDITS = [  # (text of gluon_hopper.py, how often it occurs, what takes its place)
    ("@gluon.jit\ndef products(acc,", 1, STAMP + "@gluon.jit\ndef products(readings, n, acc,"),
    ("        my_turn(slot, c)\n", 1, "        my_turn(slot, c)\n    n = stamp(readings, n, 1)\n"),
    ("    return qk, acc\n", 1, "    return qk, acc, n\n"),
    ("        qk, acc = products(acc, p, q,", 1,
     "        n = stamp(readings, n, 0)\n"
     "        qk, acc, n = products(readings, n, acc, p, q,"),
    ("qk, acc = products(acc, p, next_q,", 1, "qk, acc, n = products(readings, n, acc, p, next_q,"),
    ("def attend(acc,", 1, "def attend(readings, n, acc,"),
    ("        col = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))\n        p, m_i", 1,
     "        n = stamp(readings, n, 2)\n"
     "        col = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))\n        p, m_i"),
    ("        p = as_operand(p, k_smem", 1,
     "        n = stamp(readings, n, 3)\n        p = as_operand(p, k_smem"),
    ("    return acc, m_i, l_i, p, slot, phase, key\n", 1,
     "    return acc, m_i, l_i, p, slot, phase, key, n\n"),
    ("acc, m_i, l_i, p, slot, phase, key = attend(\n", 2,
     "acc, m_i, l_i, p, slot, phase, key, n = attend(\n                readings, n,\n"),
    ("        m_last, l_last = m_i, l_i\n", 1,
     "        m_last, l_last = m_i, l_i\n        n = stamp(readings, n, 4)\n"),
    ("        p_first, m_i, l_i = first_softmax(", 1,
     "        n = stamp(readings, n, 5)\n        p_first, m_i, l_i = first_softmax("),
    ("        # c + min(b, 0) is c", 1,
     "        n = stamp(readings, n, 6)\n        # c + min(b, 0) is c"),
    ("HEAD_DIM, O_PARTS, 0.0)\n    tma.store_wait(0)", 1,
     "HEAD_DIM, O_PARTS, 0.0)\n        n = stamp(readings, n, 7)\n    tma.store_wait(0)"),
    ("    slot, phase = 0, 0\n    count =", 1,
     "    n = gl.where(gl.program_id(0) == 0, c * READINGS, COUNT)\n"
     "    slot, phase = 0, 0\n    count ="),
    ("LSE, scale_log2,", 7, "LSE, readings, scale_log2,"),
    ("KEEP_PAIRS = ", 1, f"READINGS = gl.constexpr({READINGS})\n"
                         f"COUNT = gl.constexpr({3 * READINGS})\nKEEP_PAIRS = "),
]


def instrumented(source: str) -> str:
    """Return the kernel's source with the readings in it."""
    for old, times, new in EDITS:
        if source.count(old) != times:
            raise ValueError(f"EDITS: expected {times} × {old!r} in gluon_hopper.py,"
                             f" got {source.count(old)}")
        source = source.replace(old, new)
    return source


def load(folder: Path):
    """Return the module made of the instrumented source, which is written into a folder."""
    from flashlib.kernels import gluon_hopper

    path = folder / "gluon_hopper_timed.py"
    path.write_text(instrumented(Path(gluon_hopper.__file__).read_text()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def decode(readings) -> list[dict]:
    """Return rows of a warpgroup's readings: event, and cycles since its first."""
    rows, first = [], None
    for value in readings:
        if value == 0:
            break
        clock = (value & 0xffffffff) >> 4 << 4
        first = clock if first is None else first
        rows.append({"event": EVENTS[value & 15], "cycles": (clock - first) % 2**32})
    return rows


def measure(shape, module, rounds=7):
    """Return the readings at one shape, and TFLOP/s with and without them."""
    import torch

    from flashlib.course.bench.attention import flops
    from flashlib.course.bench.gluon_ablation import (
        TOLERANCE,
        exact_rows,
        inputs,
        race,
        rmse_and_relative,
        variants,
    )
    from flashlib.kernels import launch_hopper as hopper

    B, H, N, d, causal = shape
    q, k, v = inputs((B, H, N, d))
    config = variants(d, causal, N)["full"]
    readings = torch.zeros(3 * READINGS, dtype=torch.int32, device="cuda")
    kernel = hopper.flash_fwd_hopper_kernel
    hopper.flash_fwd_hopper_kernel = module.flash_fwd_hopper_kernel
    try:
        run = hopper._plan_forward(q, k, v, causal, config)
    finally:
        hopper.flash_fwd_hopper_kernel = kernel
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")

    def timed():
        run(q, k, v, o, lse, readings, d**-0.5 * hopper.LOG2E)

    def plain():
        return hopper.forward(q, k, v, causal=causal, scale=d**-0.5, config=config)

    timed()
    readings.zero_()
    timed()
    rows = torch.arange(0, N, 16, device="cuda")
    _, relative = rmse_and_relative(o, exact_rows(q, k, v, causal, rows), rows)
    if not relative < TOLERANCE:
        raise RuntimeError(f"the kernel with readings is wrong at {shape}: error {relative}")
    found = []
    values = readings.cpu().tolist()
    firsts = [values[c * READINGS] & 0xfffffff0 for c in range(config.CONSUMERS)]
    for c in range(config.CONSUMERS):
        origin = (firsts[c] - firsts[0] + 2**31) % 2**32 - 2**31        # one clock for both
        tile, step = 0, 0
        for row in decode(values[c * READINGS:(c + 1) * READINGS]):
            if tile < TILES:
                found.append({**case_of((B, H, N, d), mode="forward", causal=int(causal)),
                              "warpgroup": c, "query_tile": tile, "step": step,
                              "event": row["event"], "cycles": row["cycles"] + origin})
            step += row["event"] in ("output", "last output")
            tile += row["event"] == "finished"
    rates = race({"plain": plain, "timed": timed}, flops((B, H, N, d), causal, "forward"), rounds, 30)
    return found, {name: statistics.median(x) for name, x in rates.items()}


def main(argv=None):
    """Measure and write the CSV file."""
    options = options_for(__spec__, __doc__, argv)
    device_for()
    if not is_hopper():
        return
    rows, rates = [], {}
    with tempfile.TemporaryDirectory() as folder:
        module = load(Path(folder))
        for shape in SHAPES:
            found, timed = measure(shape, module)
            rows += found
            for key, words in (("plain", "without_readings"), ("timed", "with_readings")):
                name = f"tflops_per_s_{'causal' if shape[4] else 'full'}_{words}"
                rates[name] = f"{timed[key]:.0f}"
                print(shape, f"{name}: {rates[name]}", flush=True)
    write(options, "timeline", rows, collect(
        options.command, dtype="bfloat16", inputs="standard normal", **rates,
        clock="of the SM of the grid's first program, in cycles of %clock"))


if __name__ == "__main__":
    main()
