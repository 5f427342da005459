"""Read the clock inside the Hopper kernel: what two warpgroups do, and when.

    python -m flashlib.course.bench.timeline --out assets/measurements --name h200

Needs a Hopper GPU. A copy of the kernel gets a line that stores the SM's clock between its steps
(`PLACES`, found in the syntax tree); the first program of the grid keeps the readings. They cost time,
so the rate of the kernel without them stands beside. Notebook 12 draws the result.
"""

import ast
import importlib.util
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from flashlib.course.bench import gluon_ablation as bench
from flashlib.course.bench.harness import case_of, flops, only_on_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write

SHAPES = [(4, 16, 4096, 128, False), (4, 16, 4096, 128, True)]      # (B, H, N, d, causal)
READINGS = 4096                                             # of a warpgroup, at most
TILES = 2                                                   # query tiles that are written to the file
# What a reading says has just happened. From "issued" to "scores": Q·Kᵀ. From "scores" to "output":
# softmax, and the wait for P·V.
EVENTS = {0: "step", 1: "issued", 2: "scores", 3: "output", 4: "last step", 5: "next scores",
          6: "last output", 7: "finished"}
STAMP = f"""READINGS = gl.constexpr({READINGS})
COUNT = gl.constexpr({3 * READINGS})

@gluon.jit
def stamp(readings, n, event: gl.constexpr):
    t = gl.inline_asm_elementwise("mov.u32 $0, %clock; // $1", "=r,r", [n], dtype=gl.int32,
                                  is_pure=False, pack=1)
    gl.store(readings + n, (t & -16) | event, mask=n < COUNT)
    return n + 1
"""
PLACES = [  # (function, a call in it, which of several, where the reading is taken, its event)
    ("products", "my_turn", 0, "after", 1),
    ("attend", "products", 0, "before", 0),
    ("attend", "exponentiate", 0, "before", 2),
    ("attend", "as_operand", 0, "before", 3),
    ("consumer", "read_entry", 2, "before", 4),             # after the one that a window asks for
    ("consumer", "first_softmax", 1, "before", 5),
    ("consumer", "finish", 0, "before", 6),
    ("consumer", "finish", 0, "after", 7),
]
COUNTING = ("products", "attend")                           # take the next place, and return it
TOLD = ("consumer", "flash_fwd_hopper_kernel")              # take where the readings are kept


def _calls(node, names):
    """Return the calls of some functions in a piece of a syntax tree."""
    return [x for x in ast.walk(node) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)
            and x.func.id in names]


def _statements(body):
    """Yield (body, statement) for all that runs in turn, in loops as well."""
    for statement in body:
        if isinstance(statement, ast.For):
            yield from _statements(statement.body)
        else:
            yield body, statement


def _take_readings(functions):
    """Put a stamp at each of `PLACES`."""
    found = []
    for name, call, which, where, event in PLACES:
        places = [place for place in _statements(functions[name].body) if _calls(place[1], (call,))]
        if len(places) <= which:
            raise ValueError(f"PLACES: expected {which + 1} × {call} in {name}, got {len(places)}")
        found.append((*places[which], where, event))
    for body, statement, where, event in found:
        at = next(i for i, x in enumerate(body) if x is statement) + (where == "after")
        body[at:at] = ast.parse(f"n = stamp(readings, n, {event})").body


def _hand_on(functions):
    """Give every function that takes readings where they are kept, and the next place."""
    readings, n = (ast.Name(name, ast.Load()) for name in ("readings", "n"))
    for name in COUNTING:
        functions[name].args.args[:0] = [ast.arg("readings"), ast.arg("n")]
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Return):
                node.value.elts.append(n)
    for name in (*COUNTING, *TOLD):
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Assign) and _calls(node, COUNTING):
                node.value.args[:0] = [readings, n]
                node.targets[0].elts.append(ast.Name("n", ast.Store()))
    for name in TOLD:
        arguments = functions[name].args.args
        arguments.insert([x.arg for x in arguments].index("LSE") + 1, ast.arg("readings"))
    for node in ast.walk(functions[TOLD[1]]):               # what it gives to the consumers
        names = [getattr(x, "id", "") for x in getattr(node, "elts", ())]
        if "LSE" in names:
            node.elts.insert(names.index("LSE") + 1, readings)
    functions["consumer"].body[1:1] = ast.parse(
        "n = gl.where(gl.program_id(0) == 0, c * READINGS, COUNT)").body


def instrumented(source: str) -> str:
    """Return the kernel's source with the readings in it; comments are lost."""
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in (*COUNTING, *TOLD):
        if name not in functions:
            raise ValueError(f"PLACES: expected a function {name} in gluon/forward.py")
    _take_readings(functions)
    _hand_on(functions)
    at = tree.body.index(functions["products"])
    tree.body[at:at] = ast.parse(STAMP).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def load(folder: Path):
    """Return the module made of the instrumented source, which is written into a folder."""
    from flashlib.kernels.gluon import forward

    path = folder / "forward_timed.py"
    path.write_text(instrumented(Path(forward.__file__).read_text(encoding="utf-8")), encoding="utf-8")
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
    from flashlib.kernels.backends import gluon
    from flashlib.kernels.plans import Launch
    from flashlib.kernels.problem import CAUSAL, FULL, Problem

    B, H, N, d, causal = shape
    q, k, v = bench.inputs((B, H, N, d))
    config = bench.variants(d, causal, N)["full"]
    readings = torch.zeros(3 * READINGS, dtype=torch.int32, device="cuda")
    p = Problem.of(q, k, v, window=CAUSAL if causal else FULL)
    plan = gluon.BACKEND.plan(p, "forward", config)["forward"]
    run = Launch(replace(plan, kernel=module.flash_fwd_hopper_kernel, binaries={},
                         tensors=(*gluon.TENSORS, "readings", "scale_log2", "SINK")), p)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")

    def timed():
        run(q, k, v, o, lse, readings, gluon.factor(d**-0.5), None)

    def plain():
        return bench.forward(q, k, v, causal, config)

    timed()
    readings.zero_()
    timed()
    rows = torch.arange(0, N, 16, device="cuda")
    _, relative = bench.rmse_and_relative(o, bench.exact_rows(q, k, v, causal, rows), rows)
    if not relative < bench.TOLERANCE:
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
    count = flops((B, H, N, d), causal, "forward")
    rates = bench.race({"plain": plain, "timed": timed}, count, rounds, 30)
    return found, {name: statistics.median(x) for name, x in rates.items()}


def main(argv=None):
    """Measure and write the CSV file."""
    options = options_for(__spec__, __doc__, argv)
    only_on_hopper()
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
