"""Where one algorithm beats another, over block sizes."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

from flashlib.course.plots import theme
from flashlib.course.plots.parts import bare, rect
from flashlib.course.plots.theme import INK, SMALL, TINY, Figure, styled, text_width

# Teal is less, brown is more: apart under every color deficiency, and red stays for "does not fit".
LESS_MORE = LinearSegmentedColormap.from_list("flashlib_ratio", [
    "#0B5C55", "#5AB0A5", "#CBE8E3", "#FBFBFB", "#EBD9B4", "#C08F43", "#7A4A0C"])


@styled
def ratio_map(Br_values: Sequence[int], Bc_values: Sequence[int], ratio, *, baseline: str = "baseline",
              fits=None, mark: Mapping[str, tuple[int, int]] | None = None) -> Figure:
    """Draw HBM bytes relative to a baseline: teal is less, brown is more, the line is equal.

    Args:
        Br_values, Bc_values: the block sizes, upwards and to the right.
        ratio: (len(Br_values), len(Bc_values)); 1 is as much as the baseline.
        baseline: what 1 means.
        fits: booleans of the same shape; cells that do not fit into SRAM are crossed out in red.
        mark: {label: (Br, Bc)}, choices to point at; each must be on the grid.
    """
    ratio = np.asarray(ratio, dtype=float)
    shape = (len(Br_values), len(Bc_values))
    if ratio.shape != shape:
        raise ValueError(f"ratio: expected shape {shape}, (Br, Bc), got {ratio.shape}")
    fits = np.ones(shape, dtype=bool) if fits is None else np.asarray(fits, dtype=bool)
    if fits.shape != shape:
        raise ValueError(f"fits: expected shape {shape}, (Br, Bc), got {fits.shape}")
    cell = min(0.56, 5.1 / shape[1])
    fig, ax = theme.subplots(height=min(max(2.4, shape[0] * min(cell, 0.4) + 1.2), 5.6))
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(ratio > 0, np.log2(ratio), np.nan)
    reach = max(float(np.nanmax(np.abs(log[np.isfinite(log)]), initial=0)), 0.5)
    image = ax.pcolormesh(np.arange(shape[1] + 1) - 0.5, np.arange(shape[0] + 1) - 0.5,
                          np.ma.masked_invalid(log), cmap=LESS_MORE, edgecolors="white", linewidth=0.8,
                          norm=TwoSlopeNorm(0, -reach, reach))
    for i, j in np.argwhere(~fits):
        rect(ax, j - 0.5, i - 0.5, 1, 1, fc=(1, 1, 1, 0.6), hatch="///",
             ec=theme.tint(theme.OVER, 0.45), lw=0, gid="does not fit")
    ax.add_collection(LineCollection(_border(log <= 0, fits), colors=INK, linewidths=2.0, gid="equal",
                                     capstyle="projecting", zorder=4), autolim=False)
    texts = [[f"{v:.2g}" if v < 9.95 else f"{v:.0f}" for v in row] for row in ratio]
    if max(text_width(t, TINY) for row in texts for t in row) + 0.06 < cell:
        for i, j in np.argwhere(fits & np.isfinite(log)):
            ax.text(j, i, texts[i][j], ha="center", va="center_baseline", fontsize=TINY,
                    color=theme.ink_on(LESS_MORE(image.norm(log[i, j]))), gid="value")
    _ticks(ax, Br_values, Bc_values)
    _bar(ax, image, reach, baseline)
    _marks(ax, mark or {}, list(Br_values), list(Bc_values))
    if (~fits).any():
        theme.patch_key(ax, [("does not fit into SRAM", {"facecolor": "white", "lw": 0.8,
                                                         "edgecolor": theme.tint(theme.OVER, 0.35),
                                                         "hatch": "////"})])
    wins = int((fits & (ratio < 1)).sum())
    return theme.describe(fig, f"Map of HBM bytes relative to {baseline} over Br and Bc: less in {wins}"
                               f" of {fits.size} cells; {int((~fits).sum())} do not fit.")


def _border(less, fits):
    """Return the line between cells below and above the baseline, along cells that fit."""
    lines = []
    for i, j in np.argwhere(fits):
        if j + 1 < less.shape[1] and fits[i, j + 1] and less[i, j] != less[i, j + 1]:
            lines.append([(j + 0.5, i - 0.5), (j + 0.5, i + 0.5)])
        if i + 1 < less.shape[0] and fits[i + 1, j] and less[i, j] != less[i + 1, j]:
            lines.append([(j - 0.5, i + 0.5), (j + 0.5, i + 0.5)])
    return lines


def _ticks(ax, Br_values, Bc_values) -> None:
    for axis, values, word in ((ax.xaxis, Bc_values, "Bc, keys per tile"),
                               (ax.yaxis, Br_values, "Br, queries per tile")):
        step = -(-len(values) // 16)
        axis.set_ticks(range(0, len(values), step), [str(v) for v in values[::step]])
        axis.set_label_text(word)
    bare(ax)


def _bar(ax, image, reach, baseline) -> None:
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.9, aspect=24, pad=0.03)
    whole = np.arange(-np.floor(reach), np.floor(reach) + 1)
    step = -(-len(whole) // 7)
    ticks = [t for t in whole if t % step == 0]
    bar.set_ticks(ticks, labels=[f"{2**t:g}×" if t >= 0 else f"÷{2**-t:g}" for t in ticks])
    bar.set_label(f"HBM bytes relative to {baseline}", fontsize=SMALL)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)


def _marks(ax, mark, rows, cols) -> None:
    for label, (Br, Bc) in mark.items():
        if Br not in rows or Bc not in cols:
            raise ValueError(f"mark: expected blocks on the grid, got {label!r} at Br={Br}, Bc={Bc}")
        i, j = rows.index(Br), cols.index(Bc)
        rect(ax, j - 0.5, i - 0.5, 1, 1, fill=False, ec=INK, lw=2.2, zorder=5, gid="mark")
        leftwards, downwards = j > len(cols) / 2, i > len(rows) / 2
        ax.annotate(label, (j, i),
                    xytext=(j + (-1.6 if leftwards else 1.6), i + (-1.4 if downwards else 1.4)),
                    ha="right" if leftwards else "left", va="center", fontsize=SMALL, fontweight="bold",
                    zorder=6,
                    bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": "#9A9A9A", "lw": 0.6},
                    arrowprops={"arrowstyle": "-", "color": INK, "lw": 1, "shrinkB": 10})
