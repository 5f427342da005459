"""Small matrices as colored grids with their numbers."""

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.collections import LineCollection

from flashlib.course.plots import theme
from flashlib.course.plots.parts import boxes, rect, whole
from flashlib.course.plots.theme import EDGE, GREY, SMALL, Figure, styled, text_width

MOST_NUMBERS = 12
_STATS = ("m", "l", "lse", "delta")


class _Grid(NamedTuple):
    name: str
    title: str
    array: np.ndarray
    shape: str
    texts: list[list[str]]
    rows: Sequence[str] | None
    cols: Sequence[str] | None
    cell: tuple[float, float]
    size: float
    left: float
    top: float

    @property
    def width(self) -> float:
        """Inches from the row labels to the right edge, with room for the title."""
        title = text_width(self.title, 10, "bold") + text_width(self.shape, SMALL) + 0.12
        return max(self.left + self.array.shape[1] * self.cell[0], self.left + title)

    @property
    def height(self) -> float:
        return self.top + self.array.shape[0] * self.cell[1]


@styled
def show(*, rows=None, cols=None, highlight=None, titles: Mapping[str, str] | None = None,
         decimals: int | None = None, width: float = theme.WIDTH, **arrays) -> Figure:
    """Draw small arrays side by side as colored grids with their numbers.

    `show(Q=Q, K=K, S=S)`: the name picks the hue; strength is the size of a number within its
    array, and negative numbers are grey. Vectors stand upright beside a matrix with as many rows.

    Args:
        rows, cols: labels, drawn at every array whose number of rows or columns they match; or a
            mapping from array name to labels.
        highlight: cells to frame: a list of (i, j) or a boolean mask for all arrays, or a mapping
            from array name to either.
        titles: what to write instead of a name, `{"S": "S = QKᵀ/√d"}`.
        decimals: digits after the point; None chooses.
    """
    if not arrays:
        raise ValueError("arrays: expected at least one, as in show(Q=Q), got none")
    prepared = {name: _two_dimensional(name, a, arrays) for name, a in arrays.items()}
    grids = [_layout(name, prepared[name], np.shape(_raw(arrays[name])), rows, cols, decimals, width,
                     (titles or {}).get(name, name)) for name in prepared]
    lines = _wrap(grids, width)
    gap = 0.42
    height = sum(max(g.height for g in line) for line in lines) + 0.25 * (len(lines) - 1) + 0.12
    widest = max(sum(g.width for g in line) + gap * (len(line) - 1) for line in lines) + 0.12
    fig = theme.figure(height, max(widest, 1.0), layout=None)
    ax = whole(fig, down=True)
    y = 0.06
    for line in lines:
        x = 0.06
        tallest_top = max(g.top for g in line)
        for grid in line:
            _draw_grid(ax, grid, x, y + tallest_top - grid.top, _cells(highlight, grid))
            x += grid.width + gap
        y += max(g.height for g in line) + 0.25
    names = ", ".join(f"{g.title} {g.shape}" for g in grids)
    return theme.describe(fig, f"Grids of numbers: {names}.")


def _raw(value):
    """Return the numbers behind an array, a tile or an HBM array: a picture is no kernel."""
    return getattr(value, "_array", value)


def _two_dimensional(name, value, arrays) -> np.ndarray:
    array = np.asarray(_raw(value))
    if array.ndim > 2 or array.dtype.kind not in "fiub":
        raise ValueError(f"{name}: expected numbers in at most two dimensions, "
                         f"got shape {array.shape} of {array.dtype}")
    if array.ndim == 2:
        return array
    array = np.atleast_1d(array)
    heights = {np.shape(_raw(a))[0] for a in arrays.values() if np.ndim(_raw(a)) == 2}
    upright = len(array) in heights or (theme.key_of(name) in _STATS and bool(heights))
    return array[:, None] if upright else array[None, :]


def _layout(name, array, shape, rows, cols, decimals, width, title) -> _Grid:
    n, k = array.shape
    rows, cols = _labels(rows, name, n), _labels(cols, name, k)
    texts = _numbers(array, decimals) if max(n, k) <= 2 * MOST_NUMBERS else []
    longest = max((text_width(t, 9) for line in texts for t in line), default=0)
    left = max((text_width(str(w), SMALL) for w in rows), default=0) + 0.1 if rows is not None else 0.0
    fit = (width - 0.12 - left) / max(k, 1)
    cell = (min(max(0.36, longest + 0.13), fit), 0.27) if texts else (min(0.16, fit),) * 2
    size = 9.0
    if texts and longest + 0.06 > cell[0]:
        size = 9 * (cell[0] - 0.05) / longest
        if size < theme.TINY:
            texts, cell = [], (min(0.16, fit),) * 2
    across = _upright(cols, cell[0])
    top = 0.27
    if cols is not None:
        longest = max((text_width(str(w), SMALL) for w in cols), default=0)
        top += longest + 0.1 if across else 0.17
    shape = " × ".join(map(str, shape)) or "1"
    return _Grid(name, title, array, shape, texts, rows, cols, cell, size, left, top)


def _upright(cols, cell) -> bool:
    return cols is not None and max((text_width(str(w), SMALL) for w in cols), default=0) > cell - 0.04


def _labels(labels, name, count):
    if isinstance(labels, Mapping):
        labels = labels.get(name)
        if labels is not None and len(labels) != count:
            raise ValueError(f"labels of {name}: expected {count}, got {len(labels)}")
    return labels if labels is not None and len(labels) == count else None


def _wrap(grids, width) -> list[list[_Grid]]:
    lines, used = [[]], 0.0
    for grid in grids:
        if lines[-1] and used + grid.width > width:
            lines.append([])
            used = 0.0
        lines[-1].append(grid)
        used += grid.width + 0.42
    return lines


def _numbers(array, decimals) -> list[list[str]]:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    if decimals is None:
        whole = array.dtype.kind != "f" or bool(np.all(finite == np.round(finite)))
        big = float(np.max(np.abs(finite), initial=0)) if finite.size else 0.0
        decimals = 0 if whole else 2 if big < 100 else 1
        if not whole and np.all(np.abs(finite * 10 - np.round(finite * 10)) < 1e-9):
            decimals = 1
    return [[_number(v, decimals) for v in line] for line in array]


def _number(value, decimals) -> str:
    if isinstance(value, bool | np.bool_):
        return "1" if value else "0"
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= 1e5:
        return f"{value:.0e}".replace("-", "−").replace("e+0", "e").replace("e+", "e")
    text = f"{value:.{decimals}f}"
    return "0" if float(text) == 0 and value == 0 else text.replace("-", "−")


def _shades(name, array) -> np.ndarray:
    """Return an RGB color per cell: the hue for positive numbers, grey for negative, by size."""
    values = array.astype(float)
    finite = np.isfinite(values)
    largest = np.max(np.abs(values[finite]), initial=0) or 1.0
    share = np.where(finite, np.abs(values, where=finite, out=np.zeros_like(values)) / largest, 0)
    hue = np.array(theme.to_rgb(theme.tensor_color(name)))
    grey = np.array(theme.to_rgb("#9A9A9A"))
    target = np.where((values >= 0)[..., None], hue, grey)
    strength = np.where(values >= 0, 0.85 if hue.mean() < 0.5 else 1.0, 0.75) * share
    return 1 - strength[..., None] * (1 - target)


def _draw_grid(ax, grid: _Grid, x, y, cells) -> None:
    n, k = grid.array.shape
    (w, h), left, top = grid.cell, x + grid.left, y + grid.top
    ax.text(left, y + 0.02, grid.title, fontsize=10, fontweight="bold", va="top")
    ax.text(left + text_width(grid.title, 10, "bold") + 0.1, y + 0.045, grid.shape, fontsize=SMALL,
            color=GREY, va="top")
    colors = _shades(grid.name, grid.array)
    boxes(ax, [(left + j * w, top + i * h, w, h) for i, j in np.ndindex(n, k)],
          facecolors=colors.reshape(-1, 3), edgecolors="#FFFFFF",
          linewidths=0.8 if grid.texts else 0.3, gid=f"cells {grid.name}")
    rect(ax, left, top, k * w, h * n, fill=False, ec=theme.edge_color(grid.name), lw=1.0)
    for i, line in enumerate(grid.texts):
        for j, text in enumerate(line):
            ax.text(left + (j + 0.5) * w, top + (i + 0.52) * h, text, ha="center", va="center",
                    fontsize=grid.size, color=theme.ink_on(colors[i, j]))
    for i, word in enumerate(grid.rows or ()):
        ax.text(left - 0.07, top + (i + 0.5) * h, str(word), ha="right", va="center", fontsize=SMALL,
                color=GREY)
    upright = _upright(grid.cols, w)
    for j, word in enumerate(grid.cols or ()):
        ax.text(left + (j + 0.5) * w, top - 0.05, str(word), ha="center", va="bottom", color=GREY,
                fontsize=SMALL, rotation=90 if upright else 0)
    if cells.any():
        ax.add_collection(LineCollection(_outline(cells, left, top, w, h), colors=EDGE, linewidths=2.0,
                                         capstyle="projecting", zorder=5), autolim=False)


def _outline(cells, left, top, w, h):
    """Return the border of a set of cells as line segments."""
    padded = np.pad(cells, 1)
    segments = []
    for i, j in np.argwhere(cells):
        x, y = left + j * w, top + i * h
        around = ((padded[i, j + 1], (x, y), (x + w, y)),
                  (padded[i + 2, j + 1], (x, y + h), (x + w, y + h)),
                  (padded[i + 1, j], (x, y), (x, y + h)),
                  (padded[i + 1, j + 2], (x + w, y), (x + w, y + h)))
        segments += [(start, stop) for inside, start, stop in around if not inside]
    return segments


def _cells(highlight, grid) -> np.ndarray:
    chosen = highlight.get(grid.name) if isinstance(highlight, Mapping) else highlight
    mask = np.zeros(grid.array.shape, dtype=bool)
    for i, j in chosen_cells(chosen, grid.array.shape):
        mask[i, j] = True
    return mask


def chosen_cells(highlight, shape) -> list[tuple[int, int]]:
    if highlight is None:
        return []
    if isinstance(highlight, np.ndarray) and highlight.dtype == bool:
        mask = highlight.reshape(shape) if highlight.size == np.prod(shape) else np.zeros(shape, bool)
        return [(int(i), int(j)) for i, j in np.argwhere(mask)]
    pairs = [tuple(c) if not isinstance(c, int | np.integer) else (c, 0) if shape[1] == 1 else (0, c)
             for c in highlight]
    return [(i, j) for i, j in pairs if -shape[0] <= i < shape[0] and -shape[1] <= j < shape[1]]


def _grid_png(value):
    """Return PNG and metadata of a small array, or None: then IPython falls back to its text."""
    array = _raw(value)
    small = array.ndim in (1, 2) and array.size > 0 and max(array.shape) <= MOST_NUMBERS
    if not small or array.dtype.kind != "f" or not getattr(value, "live", True):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return show(**{getattr(value, "name", "array"): value}).shown()


def register_formatters(shell) -> None:
    """Teach an IPython shell to show small float arrays, tiles and pictures as images."""
    from flashlib.machine import HBMArray, Tile

    formatter = shell.display_formatter.formatters["image/png"]
    for kind in (np.ndarray, Tile, HBMArray):
        formatter.for_type(kind, _grid_png)
    formatter.for_type(theme.Picture, theme.Picture.shown)
