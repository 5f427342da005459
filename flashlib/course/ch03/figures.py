"""Where eˣ leaves the range of a number format: chapter 03's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from flashlib.course.plots import theme
from flashlib.course.plots.curves import sweep
from flashlib.course.plots.parts import bare, rect, whole
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, styled, text_width

_GOOD = theme.tint(theme.TENSOR_COLORS["P"], 0.45)
_SOME = "#F4CE7E"
_BAD = theme.tint(OVER, 0.82)
_HATCH = theme.tint(OVER, 0.5)
_DASH = {"color": INK, "lw": 1.8, "ls": (0, (2, 1)), "zorder": 6}


@styled
def overflow_map(scales: Sequence[float], kept: Mapping[str, Mapping[str, Sequence[int]]],
                 walls: Mapping[str, Mapping[str, float]] | None = None, *, rows: int) -> Figure:
    """Draw how many rows a softmax keeps, by dtype and by scale of the logits.

    A cell is olive if no row is lost, amber if some are, red if all are; one that lost any is hatched.

    Args:
        scales: factors on the logits, ascending: the columns.
        kept: for each panel's title, for each dtype, the number of rows kept at each scale.
        walls: for each panel's title, for each dtype, the scale beyond which a logit or term overflows
            (a sum may earlier). It is written at the right, beside an arrow where it lies off the map,
            and drawn as a dashed line between the last scale that it allows and the next.
        rows: how many rows there are.
    """
    lines = sum(len(panel) for panel in kept.values())
    cell, head, foot, left = 0.29, 0.42, 0.55, 0.8
    height = lines * cell + len(kept) * head + foot
    fig = theme.figure(height, layout=None)
    ax = whole(fig, down=True)
    width = (theme.WIDTH - left - (0.8 if walls else 0.1)) / len(scales)
    y = 0.0
    for title, panel in kept.items():
        ax.text(left, y + head - 0.1, title, fontsize=10, fontweight="bold", va="bottom")
        if walls and title in walls:
            ax.text(theme.WIDTH - 0.05, y + head - 0.1, "predicted wall", fontsize=TINY, color=GREY,
                    ha="right", va="bottom")
        y += head
        for dtype, counts in panel.items():
            ax.text(left - 0.1, y + cell / 2, dtype, ha="right", va="center", fontsize=9)
            for column, count in enumerate(counts):
                _cell(ax, left + column * width, y, width, cell, count / rows, f"{count}")
            if (wall := (walls or {}).get(title, {}).get(dtype)) is not None:
                allowed = int(np.sum(np.asarray(scales) <= wall))
                if 0 < allowed < len(scales):
                    ax.plot([left + allowed * width] * 2, [y + 0.01, y + cell - 0.01],
                            gid=f"wall {dtype}", **_DASH)
                ax.text(theme.WIDTH - 0.05, y + cell / 2, _factor(wall, scales), fontsize=SMALL,
                        ha="right", va="center_baseline")
            y += cell
    for column, scale in enumerate(scales):
        ax.text(left + (column + 0.5) * width, y + 0.06, f"×{scale:g}", ha="center", va="top",
                fontsize=SMALL)
    _map_key(ax, left, y + 0.38, rows, bool(walls))
    return theme.describe(fig, _map_alt(scales, kept, rows))


def _cell(ax, x, y, w, h, share, text) -> None:
    lost = {"hatch": "/////", "gid": "lost"} if share < 1 else {"gid": "kept"}
    rect(ax, x, y, w, h, facecolor=_shade(share), edgecolor=_HATCH, lw=0, zorder=1, **lost)
    rect(ax, x, y, w, h, fill=False, ec="white", lw=1.6, zorder=2)
    patch = {"boxstyle": "round,pad=0.14", "fc": "white", "ec": "none"} if share < 1 else None
    ax.text(x + w / 2, y + h / 2, text, ha="center", va="center_baseline", fontsize=SMALL,
            color=INK if share else OVER, zorder=5, bbox=patch)


def _shade(share):
    return _GOOD if share == 1 else _SOME if share else _BAD


def _factor(wall, scales) -> str:
    number = f"{wall:,.0f}" if 1000 <= wall < 1e6 else f"{wall:.2g}" if wall >= 1e6 else f"{wall:.3g}"
    mark = "◂ " if wall < scales[0] else "▸ " if wall > 2 * scales[-1] else ""
    return f"{mark}×{number}".replace("e+", "e")


def _map_key(ax, x, y, rows, walls) -> None:
    for share, label in ((1, f"all {rows} rows kept"), (0.5, "some"), (0, "none")):
        rect(ax, x, y - 0.06, 0.26, 0.12, edgecolor=_HATCH, lw=0,
             facecolor=_shade(share), hatch=None if share == 1 else "/////")
        ax.text(x + 0.33, y, label, va="center_baseline", fontsize=TINY, color=GREY)
        x += 0.33 + text_width(label, TINY) + 0.2
    if walls:
        ax.plot([x + 0.1] * 2, [y - 0.09, y + 0.07], **_DASH)
        ax.text(x + 0.2, y, "predicted: a logit or a term overflows to the right",
                va="center_baseline", fontsize=TINY, color=GREY)


def _map_alt(scales, kept, rows) -> str:
    def losses(title, dtype, counts):
        lost = [scale for scale, count in zip(scales, counts, strict=True) if count < rows]
        return f"{dtype} {f'loses rows from ×{lost[0]:g} on' if lost else 'loses none'}"

    panels = "; ".join(
        f"{title}: " + ", ".join(losses(title, dtype, counts) for dtype, counts in panel.items())
        for title, panel in kept.items())
    return f"Map of softmax rows kept by dtype and logit scale. {panels}."


@styled
def passes(heights: Sequence[int], counted: Mapping[str, Sequence[float]], *, d: int,
           title: str = "") -> Figure:
    """Draw bytes over the height of a query block, {what: bytes at each height}, with d marked."""
    fig = sweep(heights, counted, "rows of a query block, Bᵣ", "bytes moved")
    ax = fig.axes[0]
    ax.set_title(title, loc="left", pad=12)
    ax.axvline(d, color=GREY, lw=1.2, ls=(0, (1, 2)), zorder=1)
    ax.text(d, 1.0, f" Bᵣ = d = {d}", transform=ax.get_xaxis_transform(), fontsize=SMALL, color=GREY,
            va="top")
    return fig


@styled
def exp_range(ranges: Mapping[str, tuple[float, float]], rows: Mapping[str, np.ndarray], *,
              wall: str = "float32", xlim: tuple[float, float] | None = None,
              title: str = "Where eˣ is a number") -> Figure:
    """Draw, on one axis of x, where eˣ is a number in each format, and where some logits lie.

    Args:
        ranges: for each dtype, the smallest and the largest x whose eˣ is neither 0 nor ∞.
        rows: for each label, logits to mark by a tick each, on a line of their own.
        wall: the dtype whose two limits are drawn through the whole picture; at the right stands
            how many logits of a row lie beyond each.
        title: what the picture shows, in bold above it.
    """
    finite = np.concatenate([np.ravel(values) for values in rows.values()])
    low, high = xlim or (finite.min() - 15, max(finite.max(), max(ranges[wall])) + 25)
    bar, tick, gap = 0.27, 0.36, 0.3
    height = len(ranges) * bar + len(rows) * tick + gap + 0.95
    left = 0.15 + max(text_width(name, 9) for name in [*ranges, *rows])
    right = 0.15 + text_width("00 of 00 → ∞", TINY)
    fig = theme.figure(height, layout=None)
    ax = fig.add_axes((left / theme.WIDTH, 0.45 / height, 1 - (left + right) / theme.WIDTH,
                       1 - 0.9 / height))
    total = height - 0.9
    ax.set(xlim=(low, high), ylim=(total, 0), xlabel="x")
    y, labels = 0.0, {}
    for dtype, (smallest, largest) in ranges.items():
        start, stop = max(smallest, low), min(largest, high)
        rect(ax, low, y + 0.04, start - low, bar - 0.08, facecolor="#E3E3E3", lw=0, gid=f"zero {dtype}")
        rect(ax, start, y + 0.04, stop - start, bar - 0.08, facecolor=_GOOD, lw=0,
             gid=f"finite {dtype}")
        rect(ax, stop, y + 0.04, high - stop, bar - 0.08, facecolor=_BAD, lw=0, edgecolor=_HATCH,
             hatch="/////", gid=f"infinite {dtype}")
        _limits(ax, y + bar / 2, start, stop, (low, high), (smallest, largest))
        labels[y + bar / 2] = dtype
        y += bar
    bars, y = y, y + gap
    for limit, text, color, side in ((ranges[wall][0], "0", GREY, "right"),
                                     (ranges[wall][1], "∞", OVER, "left")):
        ax.plot([limit] * 2, [0, bars + gap], color=color, lw=1.4, ls=(0, (4, 2)), zorder=3)
        ax.plot([limit] * 2, [bars + gap, total], color=theme.tint(color, 0.55), lw=1.0,
                ls=(0, (1, 2)), zorder=2)
        ax.annotate(f"{wall}: eˣ = {text}", (limit, y - gap / 2),
                    xytext=(-5 if side == "right" else 5, 0), textcoords="offset points",
                    ha=side, va="center", color=color, fontsize=TINY, fontweight="bold")
    for label, values in rows.items():
        values = np.ravel(values)
        over, under = values > ranges[wall][1], values < ranges[wall][0]
        for chosen, color in ((over, OVER), (under, "#A0A0A0"),
                              (~over & ~under, theme.edge_color("S"))):
            ax.vlines(values[chosen], y + 0.07, y + tick - 0.07, color=color, zorder=4,
                      lw=1.8 if color == OVER else 1.1)
        for count, fate, color, side in ((under.sum(), "0", GREY, 0.3), (over.sum(), "∞", OVER, 0.7)):
            ax.text(1.015, y + side * tick, f"{count} of {len(values)} → {fate}", color=color,
                    fontsize=TINY, va="center_baseline", transform=ax.get_yaxis_transform())
        ax.plot([low, high], [y + tick / 2] * 2, color=theme.FAINT, lw=0.8, zorder=1)
        labels[y + tick / 2] = label
        y += tick
    ax.set_yticks(list(labels), list(labels.values()), fontsize=9, color=INK)
    bare(ax, "left")
    ax.set_title(title)
    text = "; ".join(f"{dtype} from {a:.4g} to {b:.4g}" for dtype, (a, b) in ranges.items())
    smallest, largest = ranges[wall]
    beyond = "; ".join(f"{label}: {np.sum(np.ravel(v) > largest)} beyond the upper limit of"
                       f" {wall}, {np.sum(np.ravel(v) < smallest)} below the lower"
                       for label, v in rows.items())
    return theme.describe(fig, f"Where the exponential is a number: {text}. {beyond}.")


def _limits(ax, y, start, stop, view, limits) -> None:
    """Write the limits of a range at the ends of its bar: inside, or outside a narrow one."""
    smallest, largest = limits
    texts = [f"{'◂ ' if smallest < view[0] else ''}{smallest:.4g}".replace("-", "−"),
             f"{largest:.4g}{' ▸' if largest > view[1] else ''}"]
    inch = (view[1] - view[0]) / (ax.get_position().width * theme.WIDTH)
    pad = 0.05 * inch
    narrow = stop - start < (sum(text_width(t, TINY) for t in texts) + 0.3) * inch
    places = ((start - pad, "right"), (stop + pad, "left")) if narrow else (
        (start + pad, "left"), (stop - pad, "right"))
    for text, (x, side) in zip(texts, places, strict=True):
        box = {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none"} if narrow else None
        ax.text(x, y, text, ha=side, va="center_baseline", fontsize=TINY, bbox=box)
