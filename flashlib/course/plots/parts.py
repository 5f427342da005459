"""What figures are put together from: boxes, grids of cells, bars of parts, axes without lines."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

from flashlib.course.plots import theme
from flashlib.course.plots.theme import SMALL, Axes, Figure, text_width


def rect(ax: Axes, x: float, y: float, width: float, height: float, **look) -> Rectangle:
    """Draw a rectangle from one corner, without moving the limits of the axes, and return it."""
    return ax.add_artist(Rectangle((x, y), width, height, **look))


def boxes(ax: Axes, places: Iterable[tuple], **look) -> None:
    """Draw many rectangles, (x, y, width, height), at once, without moving the limits of the axes."""
    made = [Rectangle((x, y), width, height) for x, y, width, height in places]
    ax.add_collection(PatchCollection(made, **look), autolim=False)


def bare(ax: Axes, *sides: str) -> None:
    """Take the line and the ticks' marks off the left or the bottom side; off all sides by default."""
    for side in sides or ax.spines:
        ax.spines[side].set_visible(False)
    for side in sides or ("left", "bottom"):
        ax.tick_params(axis="y" if side == "left" else "x", length=0)


def named(word: str) -> str:
    """Return a word as an axis shows it: a comma that lies on its side would be taken for a quote."""
    return {",": "(comma)", ".": "(period)"}.get(word, word)


def whole(fig: Figure, *, down: bool = False) -> Axes:
    """Return axes without a frame over a whole figure, in inches from its bottom, or top `down`."""
    ax = fig.add_axes((0, 0, 1, 1))
    height = fig.get_figheight()
    ax.set(xlim=(0, fig.get_figwidth()), ylim=(height, 0) if down else (0, height))
    ax.axis("off")
    return ax


def cells(ax: Axes, colors, texts, xs: Sequence, ys: Sequence, *, size: float = SMALL, lw: float = 1.0,
          bold: Sequence[tuple[int, int]] = (), over: Mapping[tuple[int, int], dict] = {}) -> None:
    """Draw a grid of cells in colors with a text in each, row 0 lowest, and what they stand for.

    `xs` and `ys` are numbers; `over` holds the looks of a second patch on some of the cells.
    """
    for i, j in np.ndindex(len(ys), len(xs)):
        for look in ({"fc": colors[i][j], "ec": "white", "lw": lw}, over.get((i, j))):
            if look:
                rect(ax, j - 0.5, i - 0.5, 1, 1, **look)
        if texts[i][j]:
            ax.text(j, i, texts[i][j], ha="center", va="center_baseline", fontsize=size,
                    color=theme.ink_on(colors[i][j]), fontweight="bold" if (i, j) in bold else None)
    ax.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
    ax.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    ax.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    bare(ax)


def origin(race) -> str:
    """Return where and when a `Measurement` was recorded, in words."""
    return f"recorded on {race.provenance['gpu']}, {race.provenance['date']}"


def beside(ax: Axes, text: str, at: tuple, by: tuple, **look) -> Annotation:
    """Write a text at a point of the data, moved `by` so many points to the right and up."""
    return ax.annotate(text, at, xytext=by, textcoords="offset points", **{"va": "center", **look})


def fitting(texts: Iterable[str], room: float, size: float = SMALL) -> str:
    """Return the first text that fits into `room` inches, "" if none does."""
    return next((t for t in texts if text_width(t, size) < room), "")


def heading(fig: Figure, text: str, *, x: float = 0.012, y: float = 0.985) -> None:
    """Write the bold line at the top of a figure."""
    fig.text(x, y, text, fontsize=10, fontweight="bold", va="top")


def sentences(fig: Figure, lines: Sequence[tuple[str, str]], x: float, y: float, step: float) -> str:
    """Write (text, color) one below the other, the first one bold, and return them for the alt text."""
    for n, (text, color) in enumerate(lines):
        fig.text(x, y - step * n, text, color=color, va="top", fontsize=9 if n else 10,
                 fontweight="normal" if n else "bold")
    return "; ".join(text for text, _ in lines)
