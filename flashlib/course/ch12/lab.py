"""Schedule lab of chapter 12: one SM's Gantt chart, by plan, tile, stages, dtype and GPU."""

from flashlib.course.ch12.figures import refusal
from flashlib.course.plots.gantt import UNITS, gantt
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
