"""The labs of chapter 12: a schedule by plan, tile and GPU; and a real kernel with a line left out."""

import functools
import itertools
import re
import textwrap

from flashlib.course.ch12 import edited_kernels, interpreter_figures
from flashlib.course.ch12.figures import refusal
from flashlib.course.plots import origin
from flashlib.course.plots.gantt import UNITS, gantt
from flashlib.course.plots.theme import OVER
from flashlib.course.widgets import base
from flashlib.models.sm import programs
from flashlib.models.sm.simulator import DoesNotFit, simulate

GPUS = ("H100", "H200", "B200")
DIMS = (32, 64, 96, 128, 192, 256)
ROWS = (64, 128, 192)
KEYS = (32, 64, 80, 96, 128, 160, 176, 192)
STAGES = (1, 2, 3, 4)


def draw(program="pingpong_overlap", gpu="H200", d=128, rows=128, keys=128, stages=2, dtype="bfloat16",
         arbitration="shared"):
    """Draw one plan's schedule with its times in words; what does not fit says why, in red."""
    options = {"gpu": gpu, "d": d, "rows": rows, "keys": keys, "stages": stages, "dtype": dtype,
               "tiles": 24}
    made = programs.build(program, arbitration=arbitration, **options)
    name = f"{getattr(gpu, 'name', gpu)}, {program}{' (first come)' if arbitration == 'fifo' else ''}"
    try:
        s = simulate(made)
    except DoesNotFit as error:
        return refusal(f"{name}, d = {d}, {rows} × {keys}, {stages} stages, {dtype}", str(error))
    work = programs.totals(**options)
    longest = max(work, key=work.get)
    return gantt(s, title=f"{name}: {s.cycles_per_tile:,.0f} cycles per tile of {rows} × {keys},"
                          f" {UNITS[longest]} need {work[longest] / made.tiles:,.0f}")


def schedule_lab(program="pingpong_overlap", gpu="H200", d=128, rows=128, keys=128, stages=2,
                 dtype="bfloat16", arbitration="shared"):
    """Return the widget: a plan, its tiles and a GPU, with the schedule drawn anew.

    The arguments are what it shows at first; see `draw`. What does not fit on
    an SM says so. On a B200 the plans are a what-if: Blackwell has no warpgroup matmul.
    """
    gpus, redraw = base.over_gpus(draw, gpu, "whose rates", GPUS)
    return base.Lab("schedule_lab", {
        "program": base.choice(list(programs.PROGRAMS), program, "plan", kind="dropdown",
                               tooltip="who waits for what"),
        "d": base.choice(base.including(d, DIMS), d, "d, head dimension"),
        "rows": base.choice(base.including(rows, ROWS), rows, "query rows",
                            tooltip="64 for every consumer warpgroup"),
        "keys": base.choice(base.including(keys, KEYS), keys, "keys of a tile"),
        "stages": base.choice(base.including(stages, STAGES), stages, "stages, slots for K and V"),
        "dtype": base.choice([("bf16", "bfloat16"), ("fp8", "float8")], dtype, "dtype", kind="toggle"),
        "arbitration": base.choice([("parts of each", "shared"), ("first come", "fifo")], arbitration,
                                   "without turns", kind="toggle",
                                   tooltip="how tensor cores serve two warpgroups whose order is open"),
        "gpu": gpus,
    }, redraw, note="Cycles of one SM at its best rates; no clock, no power, no instruction latency.")


ORDERS = [("as late as may be", "late"), ("as early", "early"), ("drawn", 1), ("drawn anew", 2)]
LONGEST, LINES = {16: 255, 32: 135, 64: 75}, 3              # steps by keys, lines of a remark
TASKS = ("consumer 0", "consumer 1", "producer")


@functools.lru_cache(64)
def ran(left_out, slots, order, keys):
    """Return the events and what came of them: a sentence, or the hazard."""
    import torch

    from flashlib.interpreter import Hazard

    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(128, 64, generator=rng).half() for _ in range(3))
    kernels = edited_kernels.edited(*edited_kernels.LEFT_OUT[left_out], slots=slots)
    try:
        o, found = kernels.attention_here(q, k, v, keys, order=order)
    except Hazard as hazard:
        return hazard.events, hazard
    exact = torch.softmax(q.double() @ k.double().T / 8, 1) @ v.double()
    return found.events[0], f"O differs from float64 by at most {float((o - exact).abs().max()):.0e}"


def leave_out_each(recorded):
    """Print for every line what a GPU did without it, and what the interpreter says of it."""
    print(f"The GPU: {origin(recorded)}.\n\n{'left out, and what the GPU did':37}in the interpreter")
    for row in recorded.rows[1:]:
        _, hazard = ran(row["left_out"], 4, "late", 32)
        seen = (f"{row['wrong_launches']:,} of {row['launches']:,} launches wrong"
                if row["status"] == "ok" else row["status"].rpartition(": ")[2])
        where = r"((?<=[.;] )|^)kernels\.py:\d+: | (of|at) kernels\.py:\d+"       # no line numbers here
        says = textwrap.wrap(re.sub(where, "", str(hazard)), 48)
        print("─" * 85)
        for left, right in itertools.zip_longest((row["left_out"], f"  {seen}"), says, fillvalue=""):
            print(f"{left:37}{right}".rstrip())


def draw_run(left_out="the wait for a free slot", slots=2, order="late", keys=32, lines=0):
    """Draw what every task did until the end, or until something went wrong.

    `lines` is for how many lines of remarks there is room at least, so that the axis of several
    pictures stays where it is.
    """
    events, came = ran(left_out, slots, order, keys)
    title = f"{128 // keys} key tiles, a ring of {slots}, " + (
        "nothing left out" if left_out == "nothing" else f"without {left_out}")
    remarks = [(came, "#31688E")] if isinstance(came, str) else interpreter_figures.wrong(came)
    remarks += [("", OVER)] * (lines - len(remarks))
    count = 128 // keys
    ring = ["K 0", *(f"{tile} {j - late}" for j in range(1, count) for late, tile in enumerate("KV")),
            f"V {count - 1}"]
    return interpreter_figures.steps(events, title, remarks, LONGEST.get(keys), TASKS, ring)


def hazard_lab(left_out="the wait for a free slot", slots=2, order="late", keys=32):
    """Return the widget: the teaching kernel in the interpreter, with a line left out.

    The arguments are what it shows at first; see `draw_run`.
    """
    return base.Lab("hazard_lab", {
        "left_out": base.choice(list(edited_kernels.LEFT_OUT), left_out, "left out", kind="dropdown"),
        "slots": base.choice((1, 2, 3, 4, 6), slots, "slots of the ring"),
        "order": base.choice(ORDERS, order, "copies land", kind="toggle"),
        "keys": base.choice((16, 32, 64), keys, "keys of a tile"),
    }, functools.partial(draw_run, lines=LINES),
        note="128 queries, 128 keys, d = 64, run in the interpreter: steps, not cycles.")
