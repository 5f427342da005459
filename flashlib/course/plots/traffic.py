"""Bytes: bars by tensor, the gauge of an SRAM, and sweeps over a size."""

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from flashlib.course.plots import theme
from flashlib.course.plots.parts import bare, beside, fitting, rect
from flashlib.course.plots.theme import GREY, INK, SMALL, human_bytes, human_room, styled, text_width
from flashlib.machine.traffic import Moved, Traffic

ORDER = ("Q", "K", "V", "A", "B", "x", "S", "P", "C", "y", "O", "m", "l", "lse", "delta")


def ordered(names: Iterable[str]) -> list[str]:
    """Return tensor names in the order that every stacked bar of the course has."""
    rank = {name: n for n, name in enumerate(ORDER)}
    return sorted(names, key=lambda n: (rank.get(n, rank.get(theme.key_of(n), 99)), n))


def stack(ax: Axes, y: float, moved: Mapping[str, Moved], *, height: float, inch: float,
          label: bool = True, size: float = SMALL) -> float:
    """Draw one stacked bar, a segment for each tensor and direction, and return its length.

    Read segments are solid, written ones hatched. A segment with room says what it is; `inch` is
    how many bytes an inch holds.
    """
    left = 0.0
    for name in ordered(moved):
        color, edge = theme.tensor_color(name), theme.edge_color(name)
        start = left
        for count, written in zip(moved[name], (False, True), strict=True):
            if count:
                rect(ax, left, y - height / 2, count, height, facecolor=color, ec="white", lw=0.6,
                     gid=f"{'write' if written else 'read'} {name}")
                if written:
                    rect(ax, left, y - height / 2, count, height, fill=False, lw=0, ec=edge,
                         hatch="/////")
                left += count
        if label and left > start:
            text = fitting((f"{name}  {human_bytes(left - start)}", name),
                           (left - start) / inch - 0.12 - 0.07 * (name == "l"), size)  # l only beside m
            hatched = bool(moved[name][1])
            if text:
                box = {"boxstyle": "round,pad=0.12", "fc": color, "ec": "none"} if hatched else None
                ax.text((start + left) / 2, y, text, ha="center", va="center_baseline", fontsize=size,
                        color=theme.ink_on(color), bbox=box, zorder=4)
    return left


@styled
def traffic_bars(costs: Mapping[str, Traffic], logx: bool = False, *,
                 title: str | None = None) -> Figure:
    """Draw the HBM bytes of several algorithms as bars, stacked by tensor.

    Read bytes are solid and written ones hatched; the total stands at the end, with its ratio to
    the first. A stacked bar lies on a log axis, so `logx=True` draws the totals only, as points.
    """
    if not costs:
        raise ValueError("costs: expected at least one {label: Traffic}, got none")
    labels = list(costs)
    longest = max(text_width(label, 9) for label in labels)
    fig, ax = theme.subplots(height=0.46 * len(labels) + 1.0 + 0.3 * bool(title))
    largest = max(cost.hbm_bytes for cost in costs.values()) or 1
    first = costs[labels[0]].hbm_bytes
    inch = largest / max(theme.WIDTH - longest - 2.3, 1.5)
    for y, label in enumerate(labels):
        total = costs[label].hbm_bytes
        if logx:
            ax.plot([total], [y], ms=9, ls="none", **theme.version_style(label, y))
            ax.hlines(y, 0.8 * min(c.hbm_bytes for c in costs.values()), total, color="#BBBBBB", lw=1,
                      zorder=1)
        else:
            stack(ax, y, costs[label].by_tensor, height=0.62, inch=inch)
        note = human_bytes(total)
        at = {"textcoords": "offset points", "va": "center_baseline"}
        ax.annotate(note, (total, y), xytext=(8, 0), fontweight="bold", color=INK, **at)
        if y and first and total:
            ax.annotate(_ratio(total, first), (total, y), fontsize=SMALL, color=GREY,
                        xytext=(18 + 72 * text_width(note, 9, "bold"), 0), **at)
    ax.set_yticks(range(len(labels)), labels, fontsize=9, color=INK)
    ax.set(ylim=(len(labels) - 0.5, -0.5), xlabel="HBM bytes")
    bare(ax, "left")
    if logx:
        ax.set_xscale("log")
        smallest = min(c.hbm_bytes for c in costs.values()) or 1
        ax.set_xlim(smallest * 0.8, largest * (largest / smallest) ** 0.45 * 2)
        decades = np.log10(largest / smallest)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=12))
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        ax.set_xlim(0, largest + 1.75 * inch)
        ax.set_xticks([t for t in MaxNLocator(5).tick_values(0, largest) if 0 <= t <= 1.03 * largest])
        theme.read_write_key(ax)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: human_bytes(v)))
    ax.xaxis.grid(True)
    if title:
        ax.set_title(title)
    text = ", ".join(f"{label} {human_bytes(costs[label].hbm_bytes)}" for label in labels)
    return theme.describe(fig, f"Bars of HBM bytes by tensor: {text}.")


def _ratio(value, reference) -> str:
    if 0.95 < value / reference < 1.05:
        return "about the same"
    more, less = value / reference, reference / value
    return f"{more:.1f}× as much" if more > 1 else f"{less:.1f}× less"


@styled
def sram_gauge(tiles, capacity_bytes: int, *, title: str | None = None,
               ax: Axes | None = None) -> Figure | Axes:
    """Draw the tiles of a kernel as one bar against the capacity of the SRAM.

    `tiles` is a list of (name, shape, bytes), as in `machine.peak_tiles` or in the `tiles` of an
    `SRAMOverflow`. What does not fit is red, and the picture says by how much.
    """
    if capacity_bytes <= 0:
        raise ValueError(f"capacity_bytes: expected a positive size, got {capacity_bytes}")
    tiles, own = list(tiles), ax is None
    fig, ax = theme.canvas(ax, height=1.55 + 0.3 * bool(title))
    used = sum(size for _, _, size in tiles)
    over = used - capacity_bytes
    right = max(used, capacity_bytes) * 1.02
    inch = right / (theme.WIDTH - 0.5)
    rect(ax, 0, -0.5, capacity_bytes, 1, **theme.SRAM, gid="capacity")
    left = 0.0
    for name, shape, size in tiles:
        color = theme.tensor_color(name)
        rect(ax, left, -0.5, size, 1, facecolor=color, ec="white", lw=0.8, gid=f"tile {name}")
        for text in (f"{name}\n{'×'.join(map(str, shape))}", name):
            if max(text_width(t, SMALL) for t in text.split("\n")) + 0.08 < size / inch:
                ax.text(left + size / 2, 0, text, ha="center", va="center", fontsize=SMALL,
                        color=theme.ink_on(color), linespacing=1.35, zorder=5,
                        bbox={"boxstyle": "round,pad=0.15", "fc": color, "ec": "none"})
                break
        left += size
    if over > 0:
        rect(ax, capacity_bytes, -0.5, over, 1, facecolor=(*theme.to_rgb(theme.OVER), 0.25),
             edgecolor=theme.OVER, hatch="xxxx", lw=1.4, gid="over", zorder=4)
    line = theme.OVER if over > 0 else INK
    ax.plot([capacity_bytes] * 2, [-0.72, 0.62], color=line, lw=1.8, zorder=6, gid="line",
            solid_capstyle="butt")
    beside(ax, f"SRAM holds {human_room(capacity_bytes)}", (capacity_bytes, 0.62), (0, 3), va="bottom",
           color=line, fontsize=SMALL, zorder=6, ha="right" if capacity_bytes > right / 2 else "left")
    one = len(tiles) == 1
    need = f"{len(tiles)} {'tile needs' if one else 'tiles need'} {human_room(used)}"
    fit = "it fits" if one else "they fit"
    verdict = f"{need}: {over:,} B too many" if over > 0 else f"{need}: {fit}, {-over:,} B are free"
    beside(ax, verdict, (0, -0.5), (0, -7), va="top", fontweight="bold",
           color=theme.OVER if over > 0 else INK, gid="verdict")
    ax.set(xlim=(-0.005 * right, right), ylim=(-1.3, 1.05))
    ax.axis("off")
    if title:
        ax.set_title(title)
    return theme.describe(fig, f"Gauge of the SRAM: {verdict}.") if own else ax
