"""The figures of chapter 12: who works when on an SM, which units are busy, what each gains."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from flashlib.course.plots import theme
from flashlib.course.plots.gantt import UNITS, bar, face
from flashlib.course.plots.parts import bare, heading
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, Figure, styled
from flashlib.models.sm.simulator import Schedule

_UNIT_COLORS = {"copy": ("#DDCC77", ""), "tensor": ("#31688E", ""), "exp": ("#999933", "///"),
                "alu": ("#B4B4B4", "..."), "shared": ("#ECECEC", "xx")}


@styled
def refusal(what: str, message: str) -> Figure:
    """Draw that a program does not fit on an SM, and why, in red, in place of its schedule."""
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
                     units: Sequence[str] = ("tensor", "exp", "copy")) -> Figure:
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
    return theme.describe(fig, f"Busy share of the units. {'; '.join(words)}.")


@styled
def gains(steps: Sequence[Mapping], *, label: str = "speed, relative to the first row", digits: int = 2,
          band: tuple[float, float, str] | None = None, source: str = "") -> Figure:
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
    return theme.describe(fig, f"Gains. {'; '.join(words)}.")


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
                    title: str | None = None) -> Figure:
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
            look = (face(what) if what else
                    {"facecolor": "#FFFFFF", "edgecolor": "#888888", "lw": 0.6, "ls": (0, (2, 2))})
            if row["cycles"] < window[1] and after["cycles"] > window[0]:
                seen.setdefault(words, look)
            text = str(row["step"]) if what == "QK" else words.split(",")[0] if what else ""
            bar(ax, row["cycles"], after["cycles"], y + 0.12, 0.76, text, window, scale, **look)
    ax.set_yticks([y + 0.5 for y in range(len(groups))], [f"warpgroup {g}" for g in groups],
                  fontsize=SMALL)
    bare(ax, "left")
    ax.tick_params(axis="y", pad=2)
    ax.set_xlabel(f"cycles of the SM's clock; {source}", fontsize=SMALL, labelpad=2)
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.tick_params(axis="x", labelsize=TINY)
    order = dict.fromkeys(words for words, _ in _AFTER.values())
    theme.patch_key(ax, [(words, seen[words]) for words in order if words in seen], at=(-0.18, 1.02),
                    loc="lower left")
    if title:
        heading(fig, title, y=1 - 0.05 / whole)
    return theme.describe(fig, f"What {len(groups)} warpgroups did, cycles {window[0]:,.0f} to"
                               f" {window[1]:,.0f}, {source}: {'; '.join(seen)}.")
