"""Attention maps with words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from flashlib.course.plots import theme
from flashlib.course.plots.matrices import chosen_cells
from flashlib.course.plots.theme import INK, SMALL, styled, text_width


@styled
def heatmap(
    array,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    name: str = "P",
    ax: Axes | None = None,
    *,
    title: str | None = None,
    highlight=None,
    vmax: float | None = None,
    bar: bool = True,
    alt: str | None = None,
) -> Figure | Axes:
    """Draw an attention map: a row for each query word, a column for each key word.

    Args:
        array: (rows, cols); non-finite entries (hidden keys) stay white.
        rows, cols: the words; cols is rows if only one is given and the array is square.
        name: which tensor it is, for the hue and the color bar.
        highlight: cells to frame, a list of (i, j) or a boolean mask.
    """
    array = np.asarray(array, dtype=float)
    if array.ndim != 2:
        raise ValueError(f"array: expected two dimensions, got shape {array.shape}")
    n, k = array.shape
    if cols is None and rows is not None and n == k:
        cols = rows
    for label, words, count in (("rows", rows, n), ("cols", cols, k)):
        if words is not None and len(words) != count:
            raise ValueError(f"{label}: expected {count} labels, got {len(words)}")
    own = ax is None
    below = own and bar and k > 30
    if own:
        ax, size = _heatmap_axes(n, k, rows, cols, bar, below, title)
    else:
        size = SMALL
    finite = array[np.isfinite(array)]
    low = min(float(finite.min(initial=0.0)), 0.0)
    high = vmax if vmax is not None else float(finite.max(initial=0.0))
    norm = Normalize(low, high if high > low else low + 1)
    image = ax.pcolormesh(
        np.arange(k + 1) - 0.5,
        np.arange(n + 1) - 0.5,
        np.ma.masked_invalid(array),
        cmap=theme.tensor_cmap(name),
        norm=norm,
        edgecolors="#EEEEEE" if max(n, k) <= 40 else "none",
        linewidth=0.5,
    )
    ax.set(xlim=(-0.5, k - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
    ax.xaxis.tick_top()
    for axis, words, count in ((ax.xaxis, cols, k), (ax.yaxis, rows, n)):
        if words is None:
            continue
        axis.set_ticks(range(count), [str(w) for w in words], fontsize=size)
    if cols is not None:
        ax.tick_params(axis="x", rotation=90)
    ax.tick_params(length=0, pad=3)
    for spine in ax.spines.values():
        spine.set(visible=True, color="#BBBBBB", linewidth=0.8)
    for i, j in chosen_cells(highlight, array.shape):
        ax.add_artist(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, ec=INK, lw=1.6, zorder=4))
    if title:
        ax.set_title(title)
    if bar:
        _color_bar(ax, image, name, own, below)
    if not own:
        return ax
    default = f"Heat map of {name}, {n} queries by {k} keys"
    peak = np.unravel_index(int(np.nanargmax(array)), array.shape) if finite.size else None
    if peak and rows is not None and cols is not None:
        default += f"; largest at query “{rows[peak[0]]}”, key “{cols[peak[1]]}”"
    return theme.describe(ax.figure, alt or default + ".")


def _heatmap_axes(n, k, rows, cols, bar, below, title) -> tuple[Axes, float]:
    """Return axes whose cells have room for their words, and the size of the words."""

    def longest(words, size, otherwise):
        return (
            max((text_width(str(w), size) for w in words), default=0) + 0.14 if words else otherwise
        )

    right = 0.75 if bar and not below else 0.1
    cell = min(0.26, (theme.WIDTH - longest(rows, theme.TINY, 0.3) - right) / max(k, 1))
    size = min(9, max(theme.TINY, cell * 72 * 0.5))
    left, top = longest(rows, size, 0.3), longest(cols, size, 0.25) + (0.34 if title else 0.05)
    w, h, foot = max(k * cell, 0.3), max(n * cell, 0.3), 0.55 if below else 0.1
    width, height = left + w + right, top + h + foot
    fig = theme.figure(height, width, layout=None)
    return fig.add_axes((left / width, foot / height, w / width, h / height)), size


def _color_bar(ax, image, name, own, below) -> None:
    if own:
        box, fig = ax.get_position(), ax.figure
        w, h = box.width * fig.get_figwidth(), box.height * fig.get_figheight()
        bounds = [0, -0.2 / h, 2.2 / w, 0.1 / h] if below else [1 + 0.14 / w, 0, 0.1 / w, 1]
    else:
        bounds = [1.04, 0, 0.03, 1]
    bar = ax.figure.colorbar(
        image, cax=ax.inset_axes(bounds), orientation="horizontal" if below else "vertical"
    )
    bar.outline.set(edgecolor="#BBBBBB", linewidth=0.6)
    bar.ax.tick_params(length=2, labelsize=theme.TINY)
    bar.ax.locator_params(nbins=5)
    if below:
        bar.ax.text(
            1.04,
            0.5,
            name,
            transform=bar.ax.transAxes,
            va="center",
            fontweight="bold",
            fontsize=SMALL,
        )
    else:
        bar.ax.set_title(name, fontsize=SMALL, loc="center", pad=5)
