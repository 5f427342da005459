"""The figures of chapter 12: plan and chip on one axis, busy units, gains, clocks, peers."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from flashlib.course.plots import theme
from flashlib.course.plots.gantt import UNITS, bar, face
from flashlib.course.plots.parts import bare, beside, heading
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, Figure, styled
from flashlib.models.sm import operations
from flashlib.models.sm.operations import Rates
from flashlib.models.sm.simulator import Schedule

_UNIT_COLORS = {"copy": ("#DDCC77", ""), "tensor": ("#31688E", ""), "exp": ("#999933", "///"),
                "alu": ("#B4B4B4", "..."), "shared": ("#ECECEC", "xx")}


@styled
def refusal(what: str, message: str) -> Figure:
    """Draw that a plan does not fit on an SM, and why, in red, in place of its schedule."""
    fig = theme.figure(1.5, layout=None)
    fig.text(0.02, 0.86, what, fontsize=10, fontweight="bold", va="top")
    fig.text(0.02, 0.6, "This plan does not fit on an SM.", fontsize=9, color=OVER, va="top")
    fig.text(0.02, 0.42, textwrap.fill(message, 105), fontsize=SMALL, va="top")
    return theme.describe(fig, f"{what}: does not fit. {message}")


@styled
def utilization_bars(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the share of the time in which each unit works, a group of bars for every case.

    `shares` holds name → unit → share, and every case the same units.
    """
    units = list(next(iter(shares.values())))
    fig, ax = theme.subplots(height=0.85 + 0.2 * (len(units) + 0.7) * len(shares))
    for row, found in enumerate(shares.values()):
        base = row * (len(units) + 0.7)
        for i, unit in enumerate(units):
            color, hatch = _UNIT_COLORS[unit]
            ax.barh(base + i, found[unit], height=0.92, color=color, hatch=hatch, edgecolor=theme.EDGE,
                    lw=0.4, label=UNITS[unit] if row == 0 else None)
            ax.text(found[unit] + 0.008, base + i, f"{100 * found[unit]:.0f} %", fontsize=TINY,
                    va="center_baseline")
    centers = [r * (len(units) + 0.7) + (len(units) - 1) / 2 for r in range(len(shares))]
    ax.set_yticks(centers, list(shares), fontsize=SMALL)
    ax.set(xlim=(0, 1.06), ylim=(centers[-1] + len(units) / 2 + 0.3, -0.8))
    ax.set_xticks(np.linspace(0, 1, 6), [f"{p} %" for p in range(0, 101, 20)], fontsize=TINY)
    ax.set_xlabel("share of a key tile's cycles at work", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.axvline(1, color=GREY, lw=0.8, ls=":")
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=len(units), frameon=False,
              fontsize=TINY, handlelength=1.6)
    least = min(shares, key=lambda name: shares[name]["tensor"])
    fig.suptitle(f"{least}: the tensor cores work {100 * shares[least]['tensor']:.0f} % of the time",
                 x=0.012, ha="left", fontsize=10, fontweight="bold")
    words = (f"{name}: {', '.join(f'{UNITS[u]} {100 * found[u]:.0f} %' for u in units)}"
             for name, found in shares.items())
    return theme.describe(fig, f"Busy share of the units. {'; '.join(words)}.")


@styled
def logit_costs(rates: Rates, d: int = 128, logits: int = 128 * 128) -> Figure:
    """Draw the cycles of an SM's units for a tile of logits, from what one logit takes of each."""
    units = [
        ("tensor cores", f"{rates.matmul_flops:,.0f} FLOPs a clock", rates.matmul_flops,
         [("Q·Kᵀ", 2 * d, face("QK")), ("P·V", 2 * d, face("PV"))]),
        ("special function units", f"{rates.exps:.0f} exponentials a clock", rates.exps,
         [("exponential", 1, face("exp"))]),
        ("lanes", f"{rates.lanes:.0f} slots a clock", rates.lanes,
         [("maximum", operations.MAX_SLOTS, face("max")),
          ("multiply-add, sum", operations.EXP_SLOTS, {"facecolor": "#ECECEC", "hatch": "--"}),
          ("to 16 bits", operations.PACK_SLOTS, face("pack")),
          ("rescale O", d / 128, face("rescale"))])]             # d numbers a row of 128 keys
    cycles = [sum(takes for _, takes, _ in parts) * logits / rate for _, _, rate, parts in units]
    fig = theme.figure(2.15, layout=None)
    title = (f"Exponentials need {100 * cycles[1] / cycles[0]:.0f} % of the matmuls' cycles,"
             f" the rest of softmax {100 * cycles[2] / cycles[0]:.0f} %")
    heading(fig, title)
    ax = fig.add_axes((0.2, 0.19, 0.775, 0.68))
    ax.set(xlim=(0, 1.1 * max(cycles)), ylim=(3, -0.1))
    window, scale = ax.get_xlim(), 0.775 * theme.WIDTH / ax.get_xlim()[1]
    words = []
    for y, ((name, _, rate, parts), total) in enumerate(zip(units, cycles, strict=True)):
        at = 0.0
        for text, takes, look in parts:
            wide = takes * logits / rate
            bar(ax, at, at + wide, y + 0.12, 0.6, text, window, scale, **look)
            at += wide
        beside(ax, f"{total:,.0f}", (at, y + 0.42), (6, 0), fontsize=SMALL, fontweight="bold")
        if len(parts) > 2:
            terms = [f"{text} {takes * logits / rate:.0f}" for text, takes, _ in parts]
            beside(ax, f"= {' + '.join(terms[:2])}\n+ {' + '.join(terms[2:])}", (at, y + 0.42), (32, 0),
                   fontsize=TINY)
        words.append(f"{name} {total:,.0f} cycles ({', '.join(text for text, _, _ in parts)})")
    ax.set_yticks([y + 0.42 for y in range(3)], [f"{name}\n{gives}" for name, gives, *_ in units],
                  fontsize=TINY)
    bare(ax, "left")
    ax.set_xlabel(f"cycles of one SM for a tile of {logits:,} logits, d = {d}", fontsize=SMALL)
    ax.tick_params(axis="x", labelsize=TINY)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    return theme.describe(fig, f"{title}. {'; '.join(words)}.")


@styled
def gains(steps: Sequence[Mapping], *, label: str, source: str = "", title: str = "") -> Figure:
    """Draw predicted speeds as dashed spans, and measured ones as dots with their range below them.

    `steps` holds dicts with `name`, `predicted` (low, high) or None, and `measured` (value, low, high).
    """
    fig, ax = theme.subplots(height=0.75 + 0.2 * bool(title) + 0.4 * len(steps))
    words = []
    for y, step in enumerate(steps):
        text = f"{step['name']}:"
        if step["predicted"] is not None:
            low, high = step["predicted"]
            ax.plot([low, high], [y - 0.17] * 2, ls=(0, (2.5, 1.2)), lw=2.2, color="#31688E")
            ax.plot([low, high], [y - 0.17] * 2, "|", ms=9, mew=1.6, color="#31688E",
                    label=None if words else "predicted, parts of each to first come")
            span = " … ".join(dict.fromkeys((f"{low:.2f}", f"{high:.2f}")))
            beside(ax, span, (high, y - 0.17), (6, 0), fontsize=TINY, color="#31688E",
                   path_effects=theme.halo())
            text += f" predicted {span},"
        value, least, most = step["measured"]
        ax.plot([least, most], [y + 0.2] * 2, "-", lw=1.6, color=INK)
        ax.plot([value], [y + 0.2], "o", ms=6, color=INK,
                label=None if words else "measured, median and range of the rounds")
        beside(ax, f"{value:.2f}", (most, y + 0.2), (6, 0), fontsize=TINY, fontweight="bold",
               path_effects=theme.halo())
        words.append(f"{text} measured {value:.2f}")
    ax.set_yticks(range(len(steps)), [s["name"] for s in steps], fontsize=SMALL)
    ax.set(ylim=(len(steps) - 0.4, -0.6), xlim=(0, 1.2))
    ax.set_xlabel(label + (f" ({source})" if source else ""), fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.42, 1.0), ncols=2, frameon=False, fontsize=TINY)
    if title:
        fig.suptitle(title, x=0.012, ha="left", fontsize=10, fontweight="bold")
    return theme.describe(fig, f"Speeds. {'; '.join(words)}.")


# What a warpgroup of the recorded kernel did after a reading of the clock, and whose hue that has.
_AFTER = {"issued": "QK", "scores": "exp", "next scores": "exp", "output": "rescale",
          "last output": "rescale"}
# The same of a simulated warpgroup, by what it does itself or waits for; waits for a barrier have none.
_STOPS = {"QK": "QK", "max": "exp", "exp": "exp", "PV": "exp", "pack": "rescale", "rescale": "rescale"}
_PHASES = {"QK": "waits for Q·Kᵀ", "exp": "softmax, waits for P·V", "rescale": "rescale O, to 16 bits"}
_IDLE = {"facecolor": "#FFFFFF", "edgecolor": "#888888", "lw": 0.6, "ls": (0, (2, 2))}


def _recorded(rows):
    """Return (warpgroup, from, to, hue, key tile) of what the real kernel did between two readings."""
    for group in (0, 1):
        mine = [row for row in rows if row["warpgroup"] == group]
        for row, after in itertools.pairwise(mine):
            yield group, row["cycles"], after["cycles"], _AFTER.get(row["event"]), row["step"]


def _simulated(schedule):
    """Return the same of a schedule; what follows one another in one hue is one."""
    for group in (0, 1):
        stops = sorted((stop for stop in schedule.stops if stop.role == f"warpgroup {group}"),
                       key=lambda stop: stop.start)
        tile = -1
        for hue, same in itertools.groupby(stops, key=lambda stop: _STOPS.get(stop.reason)):
            same = list(same)
            tile += hue == "QK"
            yield group, same[0].start, same[-1].end, hue, tile


@styled
def plan_and_chip(schedule: Schedule, rows: Sequence[Mapping], *, tile: int, cycles: float,
                  source: str) -> Figure:
    """Draw two warpgroups as simulated and, below them, as recorded, on one axis of cycles.

    Args:
        schedule: of a plan with two consumer warpgroups.
        rows: of `assets/measurements/timeline_*.csv`, of one shape.
        tile: both pictures begin when warpgroup 0 has issued this key tile's Q·Kᵀ.
        cycles: how much both show.  source: where and when the rows were recorded.
    """
    parts = {"simulated": list(_simulated(schedule)), "recorded": list(_recorded(rows))}
    begun = [row for row in rows if row["event"] == "step"]
    between = [b["cycles"] - a["cycles"] for a, b in itertools.pairwise(begun)
               if a["warpgroup"] == b["warpgroup"] and b["step"] == a["step"] + 1]
    fig = theme.figure(2.95, layout=None)
    heading(fig, f"A key tile: {schedule.cycles_per_tile:,.0f} cycles planned;"
                 f" {np.median(between):,.0f} recorded, readings of the clock included")
    ax = fig.add_axes((0.2, 0.145, 0.785, 0.67))
    ax.set(xlim=(0, cycles), ylim=(4.35, -0.05))
    scale, ticks = 0.785 * theme.WIDTH / cycles, []
    for n, (name, found) in enumerate(parts.items()):
        zero = next(start for group, start, _, what, j in found
                    if (group, what, j) == (0, "QK", tile))
        for group, start, end, what, j in found:
            y = 2.35 * n + group
            look = face(what) if what else _IDLE
            text = f"Q·Kᵀ {j}" if what == "QK" else {"exp": "softmax"}.get(what or "", "")
            bar(ax, start - zero, end - zero, y + 0.1, 0.66, text, (0, cycles), scale, **look)
        ticks += [(2.35 * n + group + 0.45, f"{name},\nwarpgroup {group}") for group in (0, 1)]
        if name == "simulated":
            for event in schedule.of(what="PV"):
                y = int(event.role[-1])
                bar(ax, event.start - zero, event.end - zero, y + 0.79, 0.15, "", (0, cycles), scale,
                    **face("PV"))
    ax.axhline(2.15, color=GREY, lw=0.6)
    ax.set_yticks(*zip(*ticks, strict=True), fontsize=SMALL)
    bare(ax, "left")
    ax.set_xlabel(f"cycles since warpgroup 0 issued Q·Kᵀ {tile}; below: {source}", fontsize=SMALL)
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.tick_params(axis="x", labelsize=TINY)
    theme.patch_key(ax, [*((words, face(what)) for what, words in _PHASES.items()),
                         ("its P·V in the tensor cores (simulated)", face("PV")), ("idle", _IDLE)],
                    at=(-0.25, 1.01), loc="lower left")
    return theme.describe(fig, f"Two warpgroups over {cycles:,.0f} cycles, simulated above, {source}"
                               " below: both alternate between Q·Kᵀ and softmax, shifted against"
                               " each other; a key tile takes"
                               f" {schedule.cycles_per_tile:,.0f} cycles in the simulation, and a"
                               f" median of {np.median(between):,.0f} in the record, readings of the"
                               " clock included.")


@styled
def clock_falls(clock) -> Figure:
    """Draw a `Measurement`'s clocks over the tensor cores' share; a line joins 16 bits of one mask."""
    fig, ax = theme.subplots(height=2.3)
    words, joined = [], {0: [], 1: []}
    for row in clock.rows:
        share, ghz = row["tensor_cycles"] / row["active_cycles"] / 4, row["sm_clock_hz"] / 1e9
        mark, color = ("D", "#999933") if row["impl"].startswith("fp8") else ("o", "#31688E")
        joined[row["causal"]] += [(share, ghz)] * (mark == "o")
        ax.plot([share], [ghz], mark, ms=6.5, color=color, mfc="#FFFFFF" if row["causal"] else color)
        name = row["impl"].replace("fp8_block", "8 bits")
        at = (4, 9) if row["causal"] else (8, -5 if mark == "D" else 4)     # where no line is cut
        beside(ax, name, (share, ghz), at, fontsize=TINY, ha="center" if row["causal"] else "left",
               path_effects=theme.halo())
        words.append(f"{name}{', causal' * row['causal']} {share:.2f}, {ghz:.2f} GHz")
    for points in joined.values():
        ax.plot(*np.array(sorted(points)).reshape(-1, 2).T, color="#31688E", lw=0.6, zorder=1)
    matmul = clock.number("ceiling_matmul_clock_hz") / 1e9
    ax.axhline(matmul, color=GREY, lw=0.9, ls=":")
    beside(ax, "a large bf16 matmul", (0.41, matmul), (0, -7), fontsize=TINY, color=GREY)
    ax.text(0.99, 1.78, "open: causal mask; diamonds: 8 bits; lines: 16 bits", fontsize=TINY,
            ha="right", color=GREY)
    ax.set(xlim=(0.4, 1.0), ylim=(1.28, 1.82))
    ax.set_xlabel("share of a busy SM's cycles in which its tensor cores work", fontsize=SMALL)
    ax.set_ylabel("clock meanwhile, GHz", fontsize=SMALL)
    ax.set_title("16 bits: where the tensor cores are busy, the clock is low, down to a matmul's",
                 loc="left")
    ax.tick_params(labelsize=TINY)
    return theme.describe(fig, "Share of the time in which the tensor cores work, and the clock"
                               f" meanwhile: {'; '.join(words)}; a large matmul {matmul:.2f} GHz.")


@styled
def against_best(ratios: Mapping[str, Sequence[float]]) -> Figure:
    """Draw, for every shape, a rate over the best library's: a dot for each of several runs."""
    fig, ax = theme.subplots(height=0.75 + 0.165 * len(ratios))
    for y, found in enumerate(ratios.values()):
        mark, color = ("o-", "#31688E") if min(found) > 1 else ("D-", INK)
        ax.plot(found, [y] * len(found), mark, lw=1.2, color=color, ms=4, mec="#FFFFFF", mew=0.5)
    ax.axvline(1, color=GREY, lw=0.9)
    ax.set_yticks(range(len(ratios)), list(ratios), fontsize=TINY)
    ax.set(ylim=(len(ratios) - 0.4, -0.6))
    ahead = [name for name, found in ratios.items() if min(found) > 1]
    ax.set_title(f"Ahead of the best in every run: {len(ahead)} of {len(ratios)} shapes", loc="left")
    ax.set_xlabel("our rate ÷ the best library's; round and blue: ahead in every run", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    low, high = min(map(min, ratios.values())), max(map(max, ratios.values()))
    return theme.describe(fig, f"Our rate over the best library's, {low:.2f} to {high:.2f}; in"
                               f" {len(ahead)} of {len(ratios)} shapes ahead in every run:"
                               f" {'; '.join(ahead)}.")
