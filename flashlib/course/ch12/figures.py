"""The figures of chapters 12 and 14: who works when on an SM, which units are busy, what each gains."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from flashlib.course.plots import theme
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, styled
from flashlib.models.sm import programs
from flashlib.models.sm.simulator import DoesNotFit, Schedule, simulate

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
_UNIT_COLORS = {"copy": ("#DDCC77", ""), "tensor": ("#31688E", ""), "exp": ("#999933", "///"),
                "alu": ("#B4B4B4", "..."), "shared": ("#ECECEC", "xx")}


def _face(what: str) -> dict:
    tensor, pale, hatch = _LOOK[what]
    return {"facecolor": theme.tint(theme.tensor_color(tensor), pale), "hatch": hatch,
            "edgecolor": theme.edge_color(tensor), "lw": 0.6}


@styled
def gantt(schedule: Schedule, *, tiles: tuple[int, int] | None = None,
          window: tuple[float, float] | None = None, title: str | None = None,
          units: Sequence[str] = ("copy", "tensor", "exp"), alt: str | None = None) -> Figure:
    """Draw a stretch of a schedule: a row for every unit, and one for every role.

    A unit's row has a lane for each warpgroup that uses it. In a role's row stands what it does itself;
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
        raise ValueError(f"units: expected \"alu\" in the last place, got {tuple(units)}")
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
    ax.tick_params(axis="y", length=0, pad=2)
    ax.axhline(deep + 0.15, color=GREY, lw=0.6)
    ax.set_xlabel("cycles", fontsize=SMALL, labelpad=2)
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.tick_params(axis="x", labelsize=TINY)
    for side in ("left", "top", "right"):
        ax.spines[side].set_visible(False)
    busy = schedule.utilization
    for y, unit in zip(middles, rows, strict=True):
        ax.annotate(f"{100 * busy[unit]:.0f} %", (1.01, y), xycoords=("axes fraction", "data"),
                    va="center_baseline", fontsize=SMALL, fontweight="bold", annotation_clip=False)
    ax.annotate("busy, whole run", (1.075, -0.12), xycoords=("axes fraction", "data"), fontsize=TINY,
                ha="right", va="bottom", color=GREY, annotation_clip=False)
    seen = [w for w in _LOOK if any(e.what == w and e.end > start and e.start < end
                                    and (e.unit in rows or w in _OWN) for e in schedule.events)]
    theme.patch_key(ax, [(_NAMES[w], _face(w)) for w in seen], at=(-0.2, 1.0), loc="lower left")
    if title:
        fig.text(0.012, 1 - 0.05 / whole, title, fontsize=10, fontweight="bold", va="top")
    shares = ", ".join(f"{UNITS[u]} {100 * busy[u]:.0f} %" for u in rows)
    return theme.describe(fig, alt or f"Gantt chart of {schedule.program.name}, cycles {start:,.0f} to"
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


def _bar(ax, x0, x1, y, height, text, window, scale, **look):
    x0, x1 = max(x0, window[0]), min(x1, window[1])
    if x1 - x0 <= 0:
        return
    ax.add_artist(Rectangle((x0, y), x1 - x0, height, **look))    # the axes keep their limits
    for words in _shorter(text):
        if words and theme.text_width(words, TINY) < (x1 - x0) * scale - MARGIN:
            ax.text((x0 + x1) / 2, y + height / 2, words, fontsize=TINY, ha="center",
                    va="center_baseline", color=theme.ink_on(look["facecolor"]),
                    path_effects=theme.halo(1.6, look["facecolor"]) if look.get("hatch") else None)
            return


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
        for event in events:
            lane = owners.index(event.role) if lanes > 1 else 0
            _bar(ax, event.start, event.end, y + 0.08 + 0.84 * lane / lanes, 0.84 / lanes,
                 _label(event) if lanes == 1 or 0.84 / lanes > 0.4 else "", window, scale,
                 **_face(event.what))


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
        _bar(ax, event.start, event.end, floor - height, height,
             _label(event) if height > 0.4 else "", window, scale, **_face(event.what))


def _roles(ax, schedule, roles, base, window, scale, words):
    for stop in schedule.stops:
        y = base + roles.index(stop.role) + 0.12
        if stop.reason in _OWN:
            _bar(ax, stop.start, stop.end, y, 0.76, words.get(stop.reason, stop.reason), window, scale,
                 **_face(stop.reason))
        elif stop.reason in _LOOK:
            pale = _face(stop.reason) | {"hatch": ""}
            pale["facecolor"] = theme.tint(pale["facecolor"], _DIM)
            _bar(ax, stop.start, stop.end, y + 0.13, 0.5, f"waits {_NAMES[stop.reason]}", window, scale,
                 **pale | {"edgecolor": "#BBBBBB"})
        elif stop.reason != "done":
            _bar(ax, stop.start, stop.end, y + 0.13, 0.5, stop.reason, window, scale,
                 facecolor="#FFFFFF", edgecolor="#BBBBBB", lw=0.6, ls=(0, (2, 2)))


@styled
def schedule_lab(*, gpu="H200", program="pingpong_overlap", d=128, rows=128, keys=128, stages=2,
                 dtype="bfloat16", arbitration="shared", alt: str | None = None) -> Figure:
    """Draw one program's schedule with its times in words; what does not fit says why, in red."""
    options = {"gpu": gpu, "d": d, "rows": rows, "keys": keys, "stages": stages, "dtype": dtype,
               "tiles": 24}
    made = programs.build(program, arbitration=arbitration, **options)
    name = f"{getattr(gpu, 'name', gpu)}, {program}{' (first come)' if arbitration == 'fifo' else ''}"
    try:
        s = simulate(made)
    except DoesNotFit as error:
        return _refusal(f"{name}, d = {d}, {rows} × {keys}, {stages} stages, {dtype}",
                        str(error))
    work = programs.totals(**options)
    longest = max(work, key=work.get)
    words = (f"{name}: {s.cycles_per_tile:,.0f} cycles per tile of {rows} × {keys},"
             f" {UNITS[longest]} need {work[longest] / made.tiles:,.0f}")
    return gantt(s, title=words, alt=alt)


def _refusal(what, message):
    fig = theme.figure(1.5, layout=None)
    fig.text(0.02, 0.86, what, fontsize=10, fontweight="bold", va="top")
    fig.text(0.02, 0.6, "This program does not fit on an SM.", fontsize=9, color=OVER, va="top")
    lines = [message[i:j] for i, j in _wrapped(message, 105)]
    fig.text(0.02, 0.42, "\n".join(lines), fontsize=SMALL, va="top")
    return theme.describe(fig, f"{what}: does not fit. {message}")


def _wrapped(text, width):
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= width else text.rfind(" ", start, start + width) + 1
        yield start, end or len(text)
        start = end or len(text)


@styled
def utilization_bars(schedules: Mapping[str, Schedule], *,
                     units: Sequence[str] = ("tensor", "exp", "copy"),
                     alt: str | None = None) -> Figure:
    """Draw the share of the time in which each unit works, a group of bars for every schedule."""
    fig, ax = theme.subplots(height=0.6 + 0.2 * (len(units) + 0.7) * len(schedules))
    words = []
    for row, (name, s) in enumerate(schedules.items()):
        base = row * (len(units) + 0.7)
        for i, unit in enumerate(units):
            color, hatch = _UNIT_COLORS[unit]
            share = s.utilization[unit]
            ax.barh(base + i, share, height=0.92, color=color, hatch=hatch, edgecolor=theme.EDGE,
                    lw=0.4, label=UNITS[unit] if row == 0 else None)
            ax.text(share + 0.008, base + i, f"{100 * share:.0f} %", fontsize=TINY,
                    va="center_baseline")
        shares = ", ".join(f"{UNITS[u]} {100 * s.utilization[u]:.0f} %" for u in units)
        words.append(f"{name}: {shares}")
    centers = [r * (len(units) + 0.7) + (len(units) - 1) / 2 for r in range(len(schedules))]
    ax.set_yticks(centers, list(schedules), fontsize=SMALL)
    ax.set(xlim=(0, 1.06), ylim=(centers[-1] + len(units) / 2 + 0.3, -0.8))
    ax.set_xticks(np.linspace(0, 1, 6), [f"{p} %" for p in range(0, 101, 20)], fontsize=TINY)
    ax.set_xlabel("share of the time at work", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.axvline(1, color=GREY, lw=0.8, ls=":")
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=len(units), frameon=False,
              fontsize=TINY, handlelength=1.6)
    return theme.describe(fig, alt or f"Busy share of the units. {'; '.join(words)}.")


@styled
def gains(steps: Sequence[Mapping], *, label: str = "speed, relative to the first row", digits: int = 2,
          band: tuple[float, float, str] | None = None, source: str = "",
          alt: str | None = None) -> Figure:
    """Draw predicted gains as dashed spans, and measured ones as marks below them.

    `steps` holds dicts with `name`, `predicted` (low, high) and `measured`: (value, low, high) or None.
    `band` is (from, to, text): a stretch to compare with, such as what a plain matmul reaches.
    """
    fig, ax = theme.subplots(height=0.75 + 0.4 * len(steps))
    top, words = 0.0, []
    if band:
        ax.axvspan(band[0], band[1], color="#EEEEEE", lw=0, label=band[2])
    for y, step in enumerate(steps):
        low, high = step["predicted"]
        ax.plot([low, high], [y - 0.15] * 2, ls=(0, (2.5, 1.2)), lw=2.2, color="#31688E",
                label="predicted, slowest to fastest" if y == 0 else None)
        ax.plot([low, high], [y - 0.15] * 2, "|", ms=9, mew=1.6, color="#31688E")
        span = " … ".join(dict.fromkeys(f"{x:.{digits}f}" for x in (low, high)))
        ax.text(high, y - 0.15, f"   {span}", fontsize=TINY, va="center_baseline", color="#31688E",
                path_effects=theme.halo())
        top, text = max(top, high), f"{step['name']}: predicted {span}"
        if step.get("measured") is not None:
            value, least, most = step["measured"]
            ax.plot([least, most], [y + 0.2] * 2, "-", lw=2.2, color=INK)
            ax.plot([value], [y + 0.2], "o", ms=6, color=INK, label="measured" if not words else None)
            ax.text(max(value, most), y + 0.2, f"   {value:.{digits}f}", fontsize=TINY,
                    va="center_baseline", fontweight="bold", path_effects=theme.halo())
            top, text = max(top, most), text + f", measured {value:.{digits}f}"
        words.append(text)
    ax.set_yticks(range(len(steps)), [s["name"] for s in steps], fontsize=SMALL)
    ax.set(ylim=(len(steps) - 0.4, -0.6), xlim=(0, 1.2 * top))
    ax.set_xlabel(label + (f" ({source})" if source else ""), fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.42, 1.0), ncols=3, frameon=False, fontsize=TINY)
    return theme.describe(fig, alt or f"Gains. {'; '.join(words)}.")


_WAITS = "waits for K, turn or next tile"
# What a warpgroup of the recorded kernel did after a reading of the clock: words, and whose hue.
_AFTER = {
    "step": (_WAITS, None), "last step": (_WAITS, None), "finished": (_WAITS, None),
    "issued": ("Q·Kᵀ", "QK"),
    "scores": ("softmax, waits for P·V", "exp"), "next scores": ("softmax, waits for P·V", "exp"),
    "output": ("rescale O, to 16 bits", "rescale"), "last output": ("divide O, store it", "O"),
}


@styled
def kernel_timeline(rows: Sequence[Mapping], *, window: tuple[float, float], source: str,
                    title: str | None = None, alt: str | None = None) -> Figure:
    """Draw what each warpgroup of the real kernel did between two readings of the SM's clock.

    Args:
        rows: of `assets/measurements/timeline_*.csv`, of one shape.
        window: from and to, in cycles.
        source: where and when the rows were recorded.
    """
    groups = sorted({row["warpgroup"] for row in rows})
    whole = 0.42 * len(groups) + 0.75 + (0.22 if title else 0.0)
    fig = theme.figure(whole, layout=None)
    ax = fig.add_axes((0.152, 0.46 / whole, 0.81, 0.42 * len(groups) / whole))
    ax.set(xlim=window, ylim=(len(groups), 0))
    scale, seen = 0.81 * theme.WIDTH / (window[1] - window[0]), {}
    for y, group in enumerate(groups):
        mine = [row for row in rows if row["warpgroup"] == group]
        for row, after in itertools.pairwise(mine):
            words, what = _AFTER[row["event"]]
            look = (_face(what) if what else
                    {"facecolor": "#FFFFFF", "edgecolor": "#888888", "lw": 0.6, "ls": (0, (2, 2))})
            if row["cycles"] < window[1] and after["cycles"] > window[0]:
                seen.setdefault(words, look)
            text = str(row["step"]) if what == "QK" else words.split(",")[0] if what else ""
            _bar(ax, row["cycles"], after["cycles"], y + 0.12, 0.76, text, window, scale, **look)
    ax.set_yticks([y + 0.5 for y in range(len(groups))], [f"warpgroup {g}" for g in groups],
                  fontsize=SMALL)
    ax.tick_params(axis="y", length=0, pad=2)
    ax.set_xlabel(f"cycles of the SM's clock; {source}", fontsize=SMALL, labelpad=2)
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.tick_params(axis="x", labelsize=TINY)
    for side in ("left", "top", "right"):
        ax.spines[side].set_visible(False)
    order = dict.fromkeys(words for words, _ in _AFTER.values())
    theme.patch_key(ax, [(words, seen[words]) for words in order if words in seen], at=(-0.18, 1.02),
                    loc="lower left")
    if title:
        fig.text(0.012, 1 - 0.05 / whole, title, fontsize=10, fontweight="bold", va="top")
    return theme.describe(fig, alt or f"What {len(groups)} warpgroups did, cycles {window[0]:,.0f} to"
                          f" {window[1]:,.0f}, {source}: {'; '.join(seen)}.")
