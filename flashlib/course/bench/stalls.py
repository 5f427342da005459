"""Sample where in its code the Hopper kernel's warps stand, and sum the samples by phase of a step.

    python -m flashlib.course.bench.stalls --out assets/measurements --name h200

Needs a Hopper GPU and Nsight Compute (`ncu`), whose sampler looks at every warp in turn. A step is one
key tile of one warpgroup, without a mask; notebook 13 draws how long it stays in each phase.
"""

import csv
import io
import re
import sys
import tempfile
from pathlib import Path

from flashlib.course.bench import profiler
from flashlib.course.bench.harness import case_of, inputs, only_on_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

SHAPE = (4, 16, 4096, 128)                                  # (B, H, N, d)
# The first phase begins with a step's first instruction, each other one at the first instruction that
# matches, in this order. In 8 bits the compiler issues QKᵀ somewhere in the middle of the softmax.
PHASES = {
    "own_bf16": {"ready": "", "issue": r"\w*GMMA", "scores": r"WARPGROUP\.DEPBAR", "maximum": r"FMNMX",
                 "weights": r"MUFU\.EX2"},
    "fp8_block": {"maximum": "", "weights": r"MUFU\.EX2", "output": r"WARPGROUP\.ARRIVE"},
}
KEY_TILE = 128                                              # rows, in both kernels
CYCLES = "sm__cycles_elapsed.max"


def launches():
    """Return a function of no arguments for every variant."""
    from flashlib.course.bench.gluon_ablation import forward, variants
    from flashlib.kernels import fp8
    from flashlib.kernels.backends.gluon import FP8

    q, k, v, _ = inputs(SHAPE, "cuda")
    with torch.no_grad():
        prepared = fp8.prepare(q, k, v)
    full = variants(SHAPE[3], False, SHAPE[2])["full"]
    return {"own_bf16": lambda: forward(q, k, v, False, full),
            "fp8_block": lambda: FP8.forward(*prepared, causal=False, scale=SHAPE[3] ** -0.5)}


def probe():
    """Run every variant twice, the second time under the profiler."""
    calls = launches()
    for name in PHASES:
        calls[name]()
        profiler.profile(calls[name])


def kernels(text: str) -> list[list[dict]]:
    """Split `ncu --page source --csv` output into kernels, lists of instructions in their order."""
    found, head = [], None
    for cells in csv.reader(io.StringIO(text)):
        if cells[:1] == ["Kernel Name"]:
            found.append([])
            head = None
        elif found and head is None:
            head = cells
        elif found and cells:
            found[-1].append(dict(zip(head, cells, strict=True)))
    return found


def _opcode(instruction: dict) -> str:
    return re.sub(r"^@!?U?P\w+\s+", "", instruction["Source"].strip()).split()[0]


def steps(instructions: list[dict]) -> list[list[dict]]:
    """Return the innermost loops with products; a loop ends with a conditional branch backwards."""
    places = {row["Address"]: n for n, row in enumerate(instructions)}
    found = []
    for end, row in enumerate(instructions):
        target = re.match(r"@!?U?P\d+\s+BRA\S*\s+(0x[0-9a-f]+)", row["Source"].strip())
        first = places.get(target[1], end) if target else end
        if any("GMMA" in _opcode(inner) for inner in instructions[first:end]):
            found.append((first, end))
    return [instructions[first:end + 1] for first, end in found
            if not any((a, b) != (first, end) and first <= a and b <= end for a, b in found)]


def phases(step: list[dict], variant: str) -> list[dict]:
    """Return for every phase its samples, its instructions, and how many are exponentials."""
    names, rows = iter(PHASES[variant].items()), []
    upcoming = next(names)
    for instruction in step:
        if upcoming and re.match(upcoming[1], _opcode(instruction)):
            rows.append({"phase": upcoming[0], "samples": 0, "instructions": 0, "exponentials": 0})
            upcoming = next(names, None)
        rows[-1]["samples"] += int(instruction["# Samples"])
        rows[-1]["instructions"] += 1
        rows[-1]["exponentials"] += _opcode(instruction) == "MUFU.EX2"
    if upcoming:
        raise ValueError(f"step: expected an instruction like {upcoming[1]}, got {len(step)} without")
    return rows


def table(text: str, cycles: list[int], sms: int, variants=tuple(PHASES)) -> list[dict]:
    """Return rows by variant and phase: cycles of a step, as the share of the samples.

    Args:
        text: `ncu --page source --csv`, a kernel for each variant, in their order.
        cycles: how long each kernel took.
        sms: programs that shared the work.
    """
    B, H, N, _ = SHAPE
    found, rows = kernels(text), []
    if not len(found) == len(cycles) == len(variants):
        raise ValueError(f"text, cycles: expected {len(variants)} kernels, got {len(found)} and"
                         f" {len(cycles)}")
    for variant, instructions, total in zip(variants, found, cycles, strict=True):
        loops = [phases(step, variant) for step in steps(instructions)]
        consumers = len(loops)
        if consumers < 2:
            raise ValueError(f"text: expected a loop for each consumer of {variant}, got {consumers}")
        step_cycles = total * sms / (B * H * N / (64 * consumers) * N / KEY_TILE)
        samples = sum(phase["samples"] for loop in loops for phase in loop)
        for place, phase in enumerate(loops[0]):
            here = sum(loop[place]["samples"] for loop in loops)
            rows.append({**case_of(SHAPE, impl=variant, mode="forward", causal=0), **phase,
                         "samples": here, "cycles": here / samples * step_cycles,
                         "kernel_cycles": total})
    return rows


def _profile() -> tuple[str, list[int]]:
    """Run the probe under Nsight Compute; return its page of instructions, and the kernels' cycles."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "stalls")
        profiler.run(__spec__.name, "--section", "SourceCounters", "--metrics", CYCLES, "-o", path,
                     timeout=300)
        source, raw = (profiler.report(f"{path}.ncu-rep", page, *more) for page, *more in
                       (("source",), ("raw", "--print-units", "base")))
    return source, [profiler.amount(cells, CYCLES) for cells in profiler.profiled(raw)]


def main(argv=None):
    """Measure, print and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, probe=probe)
    only_on_hopper()
    try:
        text, cycles = _profile()
    except profiler.NoCounters as reason:
        sys.exit(f"This measurement needs the profiler's samples: {reason}.")
    rows = table(text, cycles, torch.cuda.get_device_properties(0).multi_processor_count)
    show.table(rows)
    write(options, "stalls", rows, collect(
        options.command, counters="ncu --clock-control none, one run",
        cycles="of one key tile of one warpgroup, shared out by samples of the program counter"))


if __name__ == "__main__":
    main()
