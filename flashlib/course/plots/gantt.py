"""Who works when on an SM: a Gantt chart of a schedule, a row for every unit and every role."""

import itertools
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from flashlib.course.plots import theme
from flashlib.course.plots.parts import bare, fitting, heading, rect
from flashlib.course.plots.theme import GREY, SMALL, TINY, Figure, styled
from flashlib.models.sm.simulator import Schedule

UNITS = {"copy": "copy engine", "tensor": "tensor cores", "exp": "exponentials", "alu": "float32 lanes",
         "shared": "shared memory"}
# What an operation does: the hue of the tensor that it makes or moves, and a hatch for the small ones.
_LOOK = {"Q": ("Q", 0.25, ""), "K": ("K", 0.0, ""), "V": ("V", 0.25, ""), "O": ("O", 0.55, "oo"),
         "QK": ("S", 0.0, ""), "PV": ("O", 0.0, ""), "exp": ("P", 0.0, ""), "max": ("P", 0.6, "///"),
         "pack": ("P", 0.6, "..."), "rescale": ("O", 0.6, "\\\\\\")}
_NAMES = {"Q": "copy Q", "K": "copy K", "V": "copy V", "O": "store O", "QK": "Q·Kᵀ", "PV": "P·V",
          "exp": "exp", "max": "max", "pack": "to 16 bits", "rescale": "rescale O"}
_OWN = ("max", "exp", "pack", "rescale")
_DIM = 0.72
MARGIN = 0.04                      # inches that a label leaves free in its bar


def face(what: str) -> dict:
    tensor, pale, hatch = _LOOK[what]
    return {"facecolor": theme.tint(theme.tensor_color(tensor), pale), "hatch": hatch,
            "edgecolor": theme.edge_color(tensor), "lw": 0.6}


@styled
def gantt(schedule: Schedule, *, tiles: tuple[int, int] | None = None,
          window: tuple[float, float] | None = None, title: str | None = None,
          units: Sequence[str] = ("copy", "tensor", "exp")) -> Figure:
    """Draw a stretch of a schedule: a row for every unit, and one for every role.

    A unit's row has a lane for each warpgroup that uses it; where only one at a time does, a dark edge
    says which: above the first, below the second. In a role's row stands what it does itself;
    pale is what it waits for: a matmul in the matmul's hue, a barrier in white with its name.

    Args:
        tiles: first and last key tile to show, from the first one's Q·Kᵀ to the last one's P·V.
        window: from and to, in cycles, instead. With neither: the middle of the schedule.
        units: the rows. "alu", the last of them or absent, takes three: a part for each role that uses
            it, in which a bar is as high as the share of the unit that it takes on average. With it
            boxes bear the words of the key.
    """
    start, end = _stretch(schedule, tiles, window)
    rows = [u for u in units if u in schedule.program.units]
    lanes = "alu" in rows
    if lanes and rows[-1] != "alu":
        raise ValueError(f'units: expected "alu" in the last place, got {tuple(units)}')
    deep = len(rows) + 2 * lanes                           # in rows of the usual height
    roles = [role.name for role in schedule.program.roles]
    height = 0.3 * (deep + 1) + 0.3 * len(roles) + 0.85
    fig = theme.figure(height + (0.22 if title else 0.0), layout=None)
    top = 0.27 + (0.22 if title else 0.0)
    whole = fig.get_figheight()
    ax = fig.add_axes((0.152, 0.46 / whole, 0.757, 1 - (0.46 + top) / whole))
    ax.set(xlim=(start, end), ylim=(deep + len(roles) + 0.25, -0.05))
    scale = 0.757 * theme.WIDTH / (end - start)
    _units(ax, schedule, rows[:len(rows) - lanes], (start, end), scale)
    if lanes:
        _lanes(ax, schedule, len(rows) - 1, (start, end), scale)
    _roles(ax, schedule, roles, deep + 0.3, (start, end), scale, _NAMES if lanes else {})
    middles = [y + 0.5 + (unit == "alu") for y, unit in enumerate(rows)]
    ax.set_yticks([*middles, *(deep + 0.8 + y for y in range(len(roles)))],
                  [*(UNITS[u] for u in rows), *roles], fontsize=SMALL)
    bare(ax, "left")
    ax.tick_params(axis="y", pad=2)
    ax.axhline(deep + 0.15, color=GREY, lw=0.6)
    ax.set_xlabel("cycles", fontsize=SMALL, labelpad=2)
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.tick_params(axis="x", labelsize=TINY)
    busy = schedule.utilization
    for y, unit in zip(middles, rows, strict=True):
        ax.annotate(f"{100 * busy[unit]:.0f} %", (1.01, y), xycoords=("axes fraction", "data"),
                    va="center_baseline", fontsize=SMALL, fontweight="bold", annotation_clip=False)
    ax.annotate("busy, whole run", (1.075, -0.12), xycoords=("axes fraction", "data"), fontsize=TINY,
                ha="right", va="bottom", color=GREY, annotation_clip=False)
    seen = [w for w in _LOOK if any(e.what == w and e.end > start and e.start < end
                                    and (e.unit in rows or w in _OWN) for e in schedule.events)]
    theme.patch_key(ax, [(_NAMES[w], face(w)) for w in seen], at=(-0.2, 1.0), loc="lower left")
    if title:
        heading(fig, title, y=1 - 0.05 / whole)
    shares = ", ".join(f"{UNITS[u]} {100 * busy[u]:.0f} %" for u in rows)
    return theme.describe(fig, f"Gantt chart of {schedule.program.name}, cycles {start:,.0f} to"
                               f" {end:,.0f}. {schedule.cycles_per_tile:,.0f} cycles per tile; busy:"
                               f" {shares}. Rows: {', '.join([*(UNITS[u] for u in rows), *roles])}.")


def _stretch(schedule, tiles, window):
    if window is not None:
        start, end = map(float, window)
    else:
        if tiles is None:
            middle = schedule.program.tiles // 2
            tiles = (max(middle - 1, 0), min(middle + 1, schedule.program.tiles - 1))
        first, last = schedule.of(what="QK", tile=tiles[0]), schedule.of(what="PV", tile=tiles[1])
        if not first or not last:
            raise ValueError(f"tiles: expected two of 0 to {schedule.program.tiles - 1}, got {tiles}")
        start, end = min(e.start for e in first), max(e.end for e in last)
    if not end > start:
        raise ValueError(f"window: expected from < to, got ({start}, {end})")
    return start, end


def bar(ax, x0, x1, y, height, text, window, scale, **look):
    x0, x1 = max(x0, window[0]), min(x1, window[1])
    if x1 - x0 <= 0:
        return
    rect(ax, x0, y, x1 - x0, height, **look)    # the axes keep their limits
    words = fitting(_shorter(text), (x1 - x0) * scale - MARGIN, TINY)
    if words:
        ax.text((x0 + x1) / 2, y + height / 2, words, fontsize=TINY, ha="center", va="center_baseline",
                color=theme.ink_on(look["facecolor"]),
                path_effects=theme.halo(1.6, look["facecolor"]) if look.get("hatch") else None)


def _shorter(text):
    """Yield a label and what may stand for it where it is too long: "Q·Kᵀ 3", "QK 3", "3"."""
    yield text
    if text.startswith("waits "):
        yield text.removeprefix("waits ")
    elif text[-1:].isdigit():
        yield text.replace("·", "").replace("ᵀ", "")
        yield text.rsplit(" ", 1)[-1]


def _label(event) -> str:
    name = _NAMES[event.what].removeprefix("copy ").removeprefix("store ")
    return name if event.tile is None else f"{name} {event.tile}"


def _units(ax, schedule, rows, window, scale):
    for y, unit in enumerate(rows):
        events = [e for e in schedule.events
                  if e.unit == unit and e.end > window[0] and e.start < window[1]]
        owners = sorted({e.role for e in events})
        apart = any(a.end > b.start + 1e-6 for a, b in itertools.pairwise(events))
        lanes = len(owners) if apart and unit != "copy" else 1
        turns = lanes == 1 and owners == ["warpgroup 0", "warpgroup 1"]
        for event in events:
            lane = owners.index(event.role) if lanes > 1 else 0
            bar(ax, event.start, event.end, y + 0.08 + 0.84 * lane / lanes, 0.84 / lanes,
                _label(event) if lanes == 1 or 0.84 / lanes > 0.4 else "", window, scale,
                **face(event.what))
            if turns:
                bar(ax, event.start, event.end, y + (0.08, 0.83)[owners.index(event.role)], 0.09, "",
                    window, scale, facecolor=theme.INK, lw=0)


def _lanes(ax, schedule, top, window, scale):
    """Draw what the lanes do, three rows high: a bar's height is its mean share of them."""
    events = [e for e in schedule.events
              if e.op.work.get("alu") and e.end > window[0] and e.start < window[1]]
    owners = sorted({e.role for e in events}, key=[r.name for r in schedule.program.roles].index)
    room = 2.84 / max(len(owners), 3)                      # of one scale, whether or not one rescales
    for n in range(round(2.84 / room)):
        ax.plot(window, [top + 0.08 + room * (n + 1)] * 2, color="#CCCCCC", lw=0.5, zorder=0)
    for event in events:
        share = event.op.work["alu"] / (event.end - event.start)
        height, floor = 0.9 * room * share, top + 0.08 + room * (owners.index(event.role) + 1)
        bar(ax, event.start, event.end, floor - height, height,
            _label(event) if height > 0.4 else "", window, scale, **face(event.what))


def _roles(ax, schedule, roles, base, window, scale, words):
    for stop in schedule.stops:
        y = base + roles.index(stop.role) + 0.12
        if stop.reason in _OWN:
            bar(ax, stop.start, stop.end, y, 0.76, words.get(stop.reason, stop.reason), window, scale,
                **face(stop.reason))
        elif stop.reason in _LOOK:
            pale = face(stop.reason) | {"hatch": ""}
            pale["facecolor"] = theme.tint(pale["facecolor"], _DIM)
            bar(ax, stop.start, stop.end, y + 0.13, 0.5, f"waits {_NAMES[stop.reason]}", window, scale,
                **pale | {"edgecolor": "#BBBBBB"})
        elif stop.reason != "done":
            bar(ax, stop.start, stop.end, y + 0.13, 0.5, stop.reason, window, scale,
                facecolor="#FFFFFF", edgecolor="#BBBBBB", lw=0.6, ls=(0, (2, 2)))
