"""The figures of chapter 08: idle SMs, the stair of v1 to v2, causal rows, warps, and the lab."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flashlib.course.plots import theme
from flashlib.course.plots.parts import bare, boxes, rect, whole
from flashlib.course.plots.theme import EDGE, GREY, INK, OVER, SMALL, TINY, human_bytes, percent, styled
from flashlib.course.plots.traffic import stack
from flashlib.models.occupancy import Schedule, Waves

# The share of a GPU's time that is work: white is all of it.
_IDLE = LinearSegmentedColormap.from_list("flashlib_idle", ["#7A4A0C", "#C08F43", "#EBD9B4", "#FBFAF5"])
_BUSY = "#31688E"
# What a step of the stair changes.
_CAUSES = {"start": "#8C8C8C", "division": INK, "trips": "#A8434F",
           "programs": _BUSY, "loads": "#B8A018"}
_CAUSE_NAMES = {"division": "the late division", "trips": "the trips of O",
                "programs": "more programs", "loads": "pipelined loads"}


@styled
def occupancy_grid(grids: Mapping[str, Sequence[Sequence[float]]], rows: Sequence[int],
                   cols: Sequence[int]) -> Figure:
    """Draw how full a GPU is, over batch · heads (rows) and sequence length (columns).

    Every cell carries the share of the SMs' time that is work, in percent, and is darker the smaller
    it is. `grids` maps a title to shares, up to 1, by row and column.
    """
    fig, axes = theme.subplots(1, len(grids), height=0.62 + 0.27 * len(rows) + 0.62, squeeze=False,
                               sharey=True)
    words = []
    for ax, (name, grid) in zip(axes[0], grids.items(), strict=True):
        share = np.array(grid)
        ax.pcolormesh(np.arange(len(cols) + 1) - 0.5, np.arange(len(rows) + 1) - 0.5, share,
                      cmap=_IDLE, vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
        for (i, j), work in np.ndenumerate(share):
            ax.text(j, i, ">99" if 0.99 < work < 1 else f"{100 * work:.0f}", ha="center",
                    va="center_baseline", fontsize=TINY, color=theme.ink_on(_IDLE(work)[:3]))
        ax.set_title(name, fontsize=9)
        ax.set_xticks(range(len(cols)), [_short(n) for n in cols], fontsize=TINY)
        ax.set_xlabel("sequence length N", fontsize=SMALL)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        bare(ax)
        words.append(f"{name}: {percent(share.min())} to {percent(share.max())}")
    axes[0, 0].set_yticks(range(len(rows)), [str(r) for r in rows], fontsize=SMALL)
    axes[0, 0].set_ylabel("batch · heads", fontsize=SMALL)
    bar = fig.colorbar(axes[0, 0].collections[0], ax=list(axes[0]), shrink=0.9, aspect=16, pad=0.01,
                       ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"], fontsize=TINY)
    bar.set_label("share of SM time that is work", fontsize=TINY)
    bar.outline.set_visible(False)
    return theme.describe(fig, f"Share of the SMs' time that is work. {'; '.join(words)}.")


@styled
def schedules(runs: Mapping[str, Schedule]) -> Figure:
    """Draw programs of unequal length on SMs, one picture for each order; idle time is hatched."""
    longest = max(s.time for s in runs.values()) or 1
    slots = max(s.slots for s in runs.values())
    fig, axes = theme.subplots(len(runs), 1, height=0.5 + len(runs) * (0.42 + 0.1 * slots),
                               sharex=True, squeeze=False)
    hue, words = theme.tensor_color("Q"), []
    top = max((stop - start for s in runs.values() for _, start, stop in s.runs), default=1)
    for ax, (name, s) in zip(axes[:, 0], runs.items(), strict=True):
        for slot in range(s.slots):
            done = max((stop for at, _, stop in s.runs if at == slot), default=0)
            rect(ax, done, slot - 0.42, s.time - done, 0.84, fc="#F6F6F6", ec="#CFCFCF", hatch="////",
                 lw=0, zorder=0)
        for slot, start, stop in s.runs:
            color = theme.tint(hue, 0.88 - 0.8 * (stop - start) / top)
            rect(ax, start, slot - 0.42, stop - start, 0.84, fc=color, ec="white", lw=0.5)
        ax.axvline(s.time, color=INK, lw=1.2)
        ax.set_title(f"{name}: done at {s.time:,}, {percent(s.efficiency)} of the SMs' time is work",
                     fontsize=9, loc="left")
        ax.set(xlim=(0, 1.02 * longest), ylim=(s.slots - 0.4, -0.6), yticks=[])
        ax.set_ylabel(f"{s.slots} SMs", fontsize=SMALL)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        words.append(f"{name} ends at {s.time:,}, {percent(s.efficiency)} work")
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes[-1, 0].set_xlabel("time, in tiles of S; darker programs are longer, hatched is idle",
                           fontsize=SMALL)
    return theme.describe(fig, f"Programs on SMs over time. {'; '.join(words)}.")


@styled
def stair(flights: Mapping[str, Sequence[Mapping]]) -> Figure:
    """Draw how a time falls step by step on one logarithmic axis, and which bytes DRAM gives and takes.

    Args:
        flights: a title to its steps, from the first to the last; the titles' steps have the same
            names. A step has `name`, `cause` (a key of `_CAUSES`), `seconds` and
            `dram_bytes`, and perhaps `beside`, a time to compare with.
    """
    steps = sum(map(len, flights.values()))
    fig = theme.figure(0.62 + 0.3 * len(flights) + 0.2 * steps, layout=None)
    ax, words, left, right = whole(fig, down=True), [], 1.86, 4.75
    seconds = [step["seconds"] for flight in flights.values() for step in flight]
    low, high = min(seconds) / 1.5, max(seconds) * 1.15

    def at(t):
        return left + (right - left) * math.log(t / low) / math.log(high / low)

    columns = {"ms": 5.3, "step": 5.8, "share": 6.27, "DRAM, GB": 6.95}
    for name, x in columns.items():
        ax.text(x, 0.3, name, ha="right", fontsize=TINY, color=GREY)
    bottom = fig.get_figheight() - 0.26
    ticks = [t for t in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2) if low < t < high]
    for tick in ticks:
        ax.text(at(tick), 0.3, f"{1e3 * tick:g} ms", ha="center", fontsize=TINY, color=GREY)
    y = 0.4
    for title, flight in flights.items():
        ax.text(0.1, y + 0.17, title, fontweight="bold", fontsize=9, va="center")
        cause, gain = _largest(flight)
        ax.text(columns["DRAM, GB"], y + 0.17, f"{_CAUSE_NAMES[cause]}: {percent(gain)} in this order",
                ha="right", fontsize=9, va="center", color=_CAUSES[cause], fontweight="bold")
        y, before, said = y + 0.3, None, []
        ax.vlines([at(tick) for tick in ticks], y, y + 0.2 * len(flight), color=theme.GRID, lw=0.7,
                  zorder=0)
        for step in flight:
            t, color, cells = step["seconds"], _CAUSES[step["cause"]], {}
            rect(ax, left, y + 0.03, at(t) - left, 0.14, fc="#E4E4E4" if before else color, lw=0)
            if before:
                share = math.log(before / t) / math.log(flight[0]["seconds"] / flight[-1]["seconds"])
                adds = {"fc": "white", "ec": color, "hatch": "//////", "lw": 0.8}
                rect(ax, at(min(t, before)), y + 0.03, abs(at(before) - at(t)), 0.14,
                     **({"fc": color, "lw": 0} if t < before else adds))
                cells = {"step": f"÷ {before / t:.2f}",
                         "share": f"{100 * share:z.0f} %".replace("-", "−")}
            cells |= {"ms": _digits(1e3 * t, 3), "DRAM, GB": _digits(step["dram_bytes"] / 1e9, 2)}
            if "beside" in step:
                ax.plot([at(step["beside"])], [y + 0.1], "o", ms=4.5, mfc="white", mec=INK, zorder=4)
            ax.text(0.2, y + 0.1, step["name"], fontsize=SMALL, va="center_baseline")
            for name, text in cells.items():
                ax.text(columns[name], y + 0.1, text, ha="right", fontsize=SMALL, va="center_baseline",
                        fontweight="bold" if name == "share" and share > 0.15 else "normal")
            said.append(f"{step['name']} {cells['ms']} ms"
                        + (f" ({cells['share']})" if "share" in cells else ""))
            y, before = y + 0.2, t
        words.append(f"{title}: {', '.join(said)}")
    ax.plot([left + 0.06], [bottom + 0.13], "o", ms=4.5, mfc="white", mec=INK)
    ax.text(left + 0.16, bottom + 0.13, "v1's loop order with as many programs as in this step",
            fontsize=TINY, color=GREY, va="center_baseline")
    return theme.describe(fig, f"Times step by step. {'; '.join(words)}.")


@styled
def warp_partition(costs: Mapping[str, tuple[str, object]], *, warps: int = 4) -> Figure:
    """Draw who computes which part of S, and what crosses between shared memory and registers.

    Args:
        costs: {title: ("keys" or "queries", cost)}: what is dealt out to the warps, and a
            `BlockCost`.
        warps: into how many parts.
    """
    height = 1.62 * len(costs) + 0.1
    fig = theme.figure(height, layout=None)
    longest = max(cost.shared_bytes for _, cost in costs.values())
    inch, words = longest / 4.1, []
    for n, (title, (dealt, cost)) in enumerate(costs.items()):
        ax = fig.add_axes((0, 1 - (n + 1) * 1.6 / height, 1, 1.6 / height))
        ax.set(xlim=(0, theme.WIDTH), ylim=(1.6, 0))
        ax.axis("off")
        ax.text(0.1, 0.17, title, fontweight="bold", fontsize=10, va="center")
        _split_picture(ax, dealt, warps)
        bar = fig.add_axes((2.0 / theme.WIDTH, 1 - (n * 1.6 + 1.22) / height, 4.9 / theme.WIDTH,
                            0.5 / height))
        bar.set(xlim=(0, 4.9 * inch), ylim=(0.5, -0.5))
        bar.axis("off")
        end = stack(bar, 0, cost.by_tensor, height=0.7, inch=inch)
        bar.text(end + 0.07 * inch, 0, human_bytes(end), va="center_baseline", fontweight="bold")
        waits = f"{cost.barriers} barrier{'s' if cost.barriers != 1 else ''}"
        note = (f"{waits}, {human_bytes(cost.exchanged_bytes)} exchanged between warps"
                if cost.exchanged_bytes else f"{waits}, nothing exchanged")
        ax.text(2.0, 0.52, note, fontsize=SMALL, color=GREY, va="center")
        words.append(f"{title}: {human_bytes(end)} of shared memory traffic, {note}")
    key = fig.add_axes((0, 0, 1, 0.16 / height))
    key.axis("off")
    theme.read_write_key(key, at=(0.99, 0.0))
    return theme.describe(fig, f"Work partition between {warps} warps. {'; '.join(words)}.")


def _split_picture(ax, dealt, warps) -> None:
    """Draw Q at the left, K and V on top, S in the corner; each warp's part in one shade."""
    x0, y0, side, thick = 0.55, 0.6, 0.92, 0.14
    shades = [theme.tint(_BUSY, 0.15 + 0.62 * n / max(warps - 1, 1)) for n in range(warps)]
    for n, color in enumerate(shades):
        a, size = n * side / warps, side / warps
        across = dealt == "keys"
        box = (x0 + a, y0, size, side) if across else (x0, y0 + a, side, size)
        rect(ax, *box, fc=color, ec="white", lw=0.8)
        at = (x0 + a + size / 2, y0 + side / 2) if across else (x0 + side / 2, y0 + a + size / 2)
        ax.text(*at, f"w{n}", ha="center", va="center", fontsize=TINY, color=theme.ink_on(color))
    for name, box, cut in (("Q", (x0 - thick - 0.06, y0, thick, side), dealt == "queries"),
                           ("K", (x0, y0 - thick - 0.06, side, thick), dealt == "keys")):
        rect(ax, *box, fc=theme.tensor_color(name), ec=EDGE, lw=0.8)
        for n in range(1, warps if cut else 1):
            if name == "Q":
                y = box[1] + n * side / warps
                ax.plot([box[0], box[0] + thick], [y, y], color="white", lw=1.2)
            else:
                x = box[0] + n * side / warps
                ax.plot([x, x], [box[1], box[1] + thick], color="white", lw=1.2)
    ax.text(x0 - thick - 0.12, y0 + side / 2, "Q", ha="right", va="center", fontsize=SMALL)
    ax.text(x0 + side + 0.06, y0 - thick / 2 - 0.06, "K, V", va="center", fontsize=SMALL)


@styled
def occupancy_lab(w: Waves, efficiency: float, note: str, neighbors: Mapping[int, Waves], *, N: int,
                  title: str) -> Figure:
    """Draw how full a GPU is: its SMs in the last wave, the waves, and the neighbors in N.

    Args:
        w: the waves of the choice.
        efficiency: which share of the SMs' time is work; `note` is a sentence about that time.
        neighbors: the waves at other sequence lengths; `N` is the one that is chosen.
    """
    fig = theme.figure(3.55, layout=None)
    ax = whole(fig, down=True)
    ax.text(0.1, 0.2, title, fontsize=10, fontweight="bold", va="center")
    _chip(ax, w, 0.1, 0.5, 2.95)
    lines = [(f"{w.programs:,} programs on {w.sms} SMs", INK),
             (f"{w.waves:,} wave{'s' if w.waves > 1 else ''}", INK),
             (f"{w.idle_sms} SMs idle in the last wave", OVER if w.idle_sms > w.sms / 2 else INK),
             (f"{percent(efficiency)} of the SMs' time is work", OVER if efficiency < 0.7 else INK),
             (note, GREY)]
    for n, (text, color) in enumerate(lines):
        ax.text(3.35, 0.62 + 0.23 * n, text, color=color, va="center", fontweight="bold"
                if n == 3 else "normal", fontsize=9)
    _neighbors(ax, (3.35, 1.98, 3.2, 1.2), neighbors, N)
    return theme.describe(fig, f"Occupancy lab. {title}: "
                               + "; ".join(text for text, _ in lines if text) + ".")


def _chip(ax, w, x, y, width) -> None:
    """Draw the SMs as squares; those that the last wave leaves empty are white."""
    cols = 14 if w.sms > 60 else 10
    rows, step = -(-w.sms // cols), min(width / cols, 2.45 / -(-w.sms // cols))
    for busy, look in ((True, {"facecolor": _BUSY, "edgecolor": "white"}),
                       (False, {"facecolor": "#F6F6F6", "edgecolor": "#B5B5B5", "hatch": "////"})):
        boxes(ax, [(x + step * (n % cols), y + step * (n // cols), 0.86 * step, 0.86 * step)
                   for n in range(w.sms) if (n < w.sms - w.idle_sms) == busy], lw=0.6, **look)
    ax.text(x, y + step * rows + 0.16, "SMs in the last wave: blue works, hatched is idle",
            fontsize=TINY, color=GREY, va="center")


def _neighbors(ax, box, neighbors, N) -> None:
    """Draw the share of work at other lengths with the same choices, the present one framed."""
    x, y, width, height = box
    step = width / len(neighbors)
    ax.text(x, y - 0.14, "without a mask, at other N: % of the time that is work", fontsize=SMALL,
            color=GREY)
    for n, (length, w) in enumerate(neighbors.items()):
        h = 0.82 * height * w.efficiency
        left, base = x + n * step, y + 0.12 + 0.82 * height
        look = {"fc": _BUSY if length == N else theme.tint(_BUSY, 0.6)}
        rect(ax, left + 0.04, base - h, step - 0.08, h, **look)
        ax.text(left + step / 2, base - h - 0.03, f"{100 * w.efficiency:.0f}",
                ha="center", va="bottom", fontsize=TINY, path_effects=theme.halo())
        ax.text(left + step / 2, base + 0.05, _short(length), ha="center", va="top", fontsize=TINY,
                fontweight="bold" if length == N else "normal")
    ax.plot([x, x + width], [base, base], color="#777777", lw=0.8)
    ax.plot([x, x + width], [y + 0.12] * 2, color=GREY, lw=0.6, ls=":", zorder=0)
    ax.text(x + width + 0.03, y + 0.12, "100 %", fontsize=TINY, color=GREY, va="center")


def _largest(flight: Sequence[Mapping]) -> tuple[str, float]:
    """Return the cause whose steps together gain most, and its share of the logarithm of the gain."""
    gains = dict.fromkeys(_CAUSES, 0.0)
    for before, step in itertools.pairwise(flight):
        gains[step["cause"]] += math.log(before["seconds"] / step["seconds"])
    cause = max(gains, key=lambda name: gains[name])
    return cause, gains[cause] / sum(gains.values())


def _digits(value, count) -> str:
    return f"{value:#.{count}g}".rstrip(".")


def _short(n) -> str:
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n)
