"""Write what the explorers show and TypeScript cannot know: GPU sheets, links and tile walks, as JSON.

    python scripts/explorer_data.py            # writes site/explorer/src/data/{gpus,links,walk}.json
    python scripts/explorer_data.py --check    # says what is stale, and ends with 1

The walks are runs of `flashlib.algorithms` on the paper machine. Each line of the source that was
executed is a step, with the events that the machine recorded and the arithmetic that it counted
meanwhile.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flashlib import Machine, hardware  # noqa: E402
from flashlib.algorithms.flash_v1 import flash_v1  # noqa: E402
from flashlib.algorithms.flash_v2 import flash_v2  # noqa: E402
from flashlib.algorithms.standard import standard_attention  # noqa: E402
from flashlib.course.ch15 import lab as decode_lab  # noqa: E402
from flashlib.course.ch16 import plan as ring_plan  # noqa: E402
from flashlib.course.notebook import data  # noqa: E402

FOLDER = ROOT / "site" / "explorer" / "src" / "data"
HEAD, BLOCK, LEVELS = 0, 16, 10
OPS = ("load", "store", "tile", "free", "skip")
RUNS = {"v2": (flash_v2, False), "v2, causal": (flash_v2, True), "v1": (flash_v1, False),
        "standard": (standard_attention, False)}


def gpus() -> list[dict]:
    """Return the sheets of `flashlib.hardware` that the explorers need, and what was recorded."""
    return [{"name": gpu.name, "sms": int(gpu.fact("sms")), "sramBytes": gpu.sram_bytes,
             "bytesPerS": int(gpu.fact("hbm_bytes_per_s")),
             "matmulFlopsPerS": {dtype: int(f) for dtype, f in gpu.matmul_flops_per_s.items()},
             "vectorFlopsPerS": int(gpu.fact("vector_flops_per_s")),
             "expsPerS": int(gpu.fact("exps_per_s")),
             "decode": rounded(decode_lab.rates_on(gpu)._asdict()),
             "ring": rounded(ring_rates(gpu))} for gpu in hardware.ALL]


def rounded(rates: dict[str, float]) -> dict[str, float]:
    """Return rates as JSON has them: ten digits, as the last ones of a fit are the machine's."""
    return {camel(key): float(f"{rate:.10g}") for key, rate in rates.items()}


def ring_rates(gpu) -> dict[str, float]:
    """Return the recorded H200's rates of chapter 16, arithmetic and memory by the data sheets.

    What a call costs is the recorded one; links are the reader's choice.
    """
    here, found = hardware.get("H200"), ring_plan.rates()
    arithmetic, memory = (float(rate(gpu)) / float(rate(here)) for rate in (
        lambda sheet: sheet.matmul_flops_per_s["float16"], lambda sheet: sheet.hbm_bytes_per_s))
    return {"flops_per_s": found.flops_per_s * arithmetic, "merge_bytes": found.merge_bytes,
            "memory_bytes_per_s": found.memory_bytes_per_s * memory, "call_s": found.call_s}


def camel(name: str) -> str:
    """Return a name as TypeScript writes it; the paper's letters, such as Br, stay."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class _Lines:
    """Which line of a function's source stands for a statement, and which statements do something."""

    def __init__(self, function):
        source, self.offset = inspect.getsourcelines(function)
        self.text = [line.rstrip("\n") for line in source]
        self.simple: dict[int, int] = {}                      # line: the first one of its statement
        self.long: set[int] = set()                           # statements of several lines
        (tree,) = ast.parse(textwrap.dedent("".join(source))).body
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and not hasattr(node, "body"):
                own = range(node.lineno, (node.end_lineno or 0) + 1)
                self.simple |= dict.fromkeys(own, node.lineno)
                self.long |= {node.lineno} if len(own) > 1 else set()
        kernels = [node for node in tree.body if isinstance(node, ast.With)
                   and ast.unparse(node.items[0]).startswith("machine.kernel")]
        self.first, self.last = kernels[0].lineno, kernels[-1].end_lineno or 0

    def of(self, absolute: int) -> tuple[int, bool]:
        """Return the line of a statement inside the function, and whether it is a simple one."""
        line = absolute - self.offset + 1
        return self.simple.get(line, line), line in self.simple

    def body(self) -> list[str]:
        """Return the lines of the kernels."""
        return textwrap.dedent("\n".join(self.text[self.first - 1:self.last])).splitlines()


def walk(algorithm, causal: bool, QKV) -> dict:
    """Run an algorithm on a machine, and return its code, events and steps.

    An event is (op, tensor, rows, columns, bytes), its op one of `OPS`: those of the machine, and
    "skip" for a tile that was left out. A step is (line, how many events, matmul FLOPs, vector FLOPs
    and exponentials), all of that line; both lists are flat.
    """
    machine, lines, seen = Machine(), _Lines(algorithm), []
    code = inspect.unwrap(algorithm).__code__

    def local(frame, event, _):
        if event == "line":
            t, places = machine.traffic, [frame.f_locals.get(name) for name in ("rows", "keys")]
            counts = t.matmul_flops, t.vector_flops, t.exps
            seen.append((frame.f_lineno, len(machine.trace), counts, places))
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: local if frame.f_code is code else None)
    try:
        algorithm(*QKV, Br=BLOCK, Bc=BLOCK, causal=causal, machine=machine)
    finally:
        sys.settrace(before)

    trace, tensors, kernels = machine.trace, [], []
    events: list[list[int]] = []
    steps: list[list[int]] = []
    last = 0
    for (at, start, counts, places), (_, stop, then, _) in pairwise(seen):
        line, simple = lines.of(at)
        if not lines.first <= line <= lines.last or not (simple or start != stop):
            continue
        for event in trace.events[last:stop]:
            if event.tensor not in tensors:
                tensors.append(event.tensor)
            if not kernels or kernels[-1][0] != event.kernel:
                kernels.append([event.kernel, len(events)])
            events.append([OPS.index(event.op), tensors.index(event.tensor), *event.rows, *event.cols,
                           event.bytes])
        if lines.text[line - 1].strip() == "continue":
            rows, keys = places
            events.append([OPS.index("skip"), -1, rows.start, rows.stop, keys.start, keys.stop, 0])
        last, added = stop, [b - a for a, b in zip(counts, then, strict=True)]
        if line in lines.long and steps and steps[-1][0] == line - lines.first:
            steps[-1][1] = len(events)
            steps[-1][2:] = [a + b for a, b in zip(steps[-1][2:], added, strict=True)]
        else:
            steps.append([line - lines.first, len(events), *added])
    file = Path(inspect.getsourcefile(inspect.unwrap(algorithm)) or "").relative_to(ROOT).as_posix()
    return {"file": file, "firstLine": lines.offset + lines.first - 1, "code": lines.body(),
            "kernels": kernels, "tensors": tensors, "events": _packed(events), "steps": _counted(steps),
            "traffic": _traffic(machine.traffic)}


def _counted(steps) -> list[int]:
    """Return steps one after the other, with how many events each has in place of how many so far."""
    flat, before = [], 0
    for line, upto, *added in steps:
        flat += [line, upto - before, *added]
        before = upto
    return flat


def _packed(events) -> list[int]:
    """Return events one after the other, starts as differences and stops as lengths: they pack well."""
    flat, row, col = [], 0, 0
    for op, tensor, r0, r1, c0, c1, size in events:
        flat += [op, tensor, r0 - row, r1 - r0, c0 - col, c1 - c0, size]
        row, col = r0, c0
    return flat


def columns(flat, width) -> list[list]:
    """Return each column of numbers that lie row by row: its values, and a letter for each row.

    A letter is the place of its value among the values, counted from "#".
    """
    return [_lettered(flat[k::width]) for k in range(width)]


def kinds(flat, width) -> list[list]:
    """Return the rows that occur, column by column, and a letter for each row in order."""
    rows, order = _lettered(list(zip(*[iter(flat)] * width, strict=True)))
    return [[list(column) for column in zip(*rows, strict=True)], order]


def _lettered(row) -> list:
    values = list(dict.fromkeys(row))
    if len(values) > ord("\\") - ord("#"):
        raise ValueError(f"expected few values, got {len(values)}: a letter would be a backslash")
    return [values, "".join(chr(ord("#") + values.index(value)) for value in row)]


def small(walk: dict) -> dict:
    """Return a walk as the script reads it: bytes of an event by element, both lists in letters."""
    rows = [[*event, size // (event[3] * event[5])]
            for *event, size in zip(*[iter(walk["events"])] * 7, strict=True)]
    rest = {key: value for key, value in walk.items() if key != "traffic"}
    return rest | {"events": columns([n for row in rows for n in row], 7),
                   "steps": kinds(walk["steps"], 5)}


def _traffic(t) -> dict:
    return {"byTensor": {name: list(moved) for name, moved in t.by_tensor.items()},
            "sramPeakBytes": t.sram_peak_bytes, "matmulFlops": t.matmul_flops,
            "vectorFlops": t.vector_flops, "exps": t.exps}


def walks() -> dict:
    """Return the walks over the course's sentence, and how large each logit is, from 0 to 9."""
    sentence = data.sentence()
    QKV, logits = sentence.head(HEAD), sentence.logits(HEAD)
    N, d = QKV[0].shape
    low, high = np.percentile(logits, (1, 99))
    levels = np.clip((logits - low) / (high - low) * LEVELS, 0, LEVELS - 1).astype(int)
    return {"words": list(sentence.tokens), "N": N, "d": d, "B": BLOCK,
            "levels": ["".join(map(str, row)) for row in levels],
            "runs": {name: walk(algorithm, causal, QKV)
                     for name, (algorithm, causal) in RUNS.items()}}


def texts() -> dict[str, str]:
    """Return the files, by name."""
    def dumped(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
    sheet = walks()
    sheet |= {"runs": {name: small(run) for name, run in sheet["runs"].items()}}
    return {"gpus.json": json.dumps(gpus(), indent=1) + "\n", "links.json": dumped(ring_plan.LINKS),
            "walk.json": dumped(sheet)}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say what is stale")
    check, stale = parser.parse_args(argv).check, []
    for name, text in texts().items():
        path = FOLDER / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{'stale' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
