"""Chapter 09's pictures: which program touches which element, and softmax rates by row length."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter

from flashlib.course.plots import theme
from flashlib.course.plots.parts import rect
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, Figure, styled

_PROGRAMS = ("#6FA8C9", "#E0B36A", "#9BBF85", "#C79BC2", "#D98E7E", "#8FA0B5")
_STEP = matplotlib.colormaps["viridis"]
_KERNELS = {"3pass": (_STEP(0.02), "o", "three passes"), "online": (_STEP(0.45), "s", "online, two"),
            "fused": (_STEP(0.72), "D", "fused, one"), "torch": ("#8A8A8A", "x", "torch.softmax")}


def _program_color(program: int) -> str:
    return _PROGRAMS[program % len(_PROGRAMS)]


@styled
def lanes(touches: Sequence, n: int) -> Figure:
    """Draw n elements in memory and above them the lanes of each program that point to them.

    `touches` holds one load or store per program, with `program`, `lanes`, `mask` and `outside`, as
    `interpreter_trace` records them. A masked lane is white, one that reads poison red.
    """
    end = max(n, 1 + max(int(t.lanes.max()) for t in touches))
    fig, ax = theme.subplots(height=1.75)
    ax.set(xlim=(-1.9, end + 0.1), ylim=(2.75, -0.75))
    ax.axis("off")
    for cell in range(end):
        inside = cell < n
        rect(ax, cell, 1.7, 1, 0.8, **(theme.HBM if inside else {
            "facecolor": "white", "edgecolor": OVER, "hatch": "xxxx", "lw": 0.6}))
        ax.text(cell + 0.5, 2.1, str(cell) if inside else "NaN", ha="center", va="center",
                fontsize=SMALL, color=INK if inside else OVER,
                bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"})
    for touch in touches:
        color = _program_color(touch.program[0])
        positions = np.asarray(touch.lanes).ravel()
        for lane, (place, on, astray) in enumerate(zip(
                positions, touch.mask.ravel(), touch.outside.ravel(), strict=True)):
            face = theme.tint(OVER, 0.3) if astray else color if on else "white"
            rect(ax, place + 0.06, 0, 0.88, 0.75, facecolor=face, edgecolor=INK, lw=0.7,
                 ls="-" if on else (0, (2, 2)))
            ax.text(place + 0.5, 0.375, str(lane), ha="center", va="center", fontsize=SMALL,
                    color=INK if on else GREY)
            if on:
                ax.annotate("", (place + 0.5, 1.66), (place + 0.5, 0.8), arrowprops={
                    "arrowstyle": "-|>", "color": OVER if astray else INK, "lw": 0.8})
        ax.text(positions.min() + positions.size / 2, -0.25, f"program {touch.program[0]}",
                ha="center", va="center", fontsize=SMALL, fontweight="bold")
    ax.text(-0.15, 0.375, "lanes", ha="right", va="center", fontsize=SMALL)
    ax.text(-0.15, 2.1, "x in HBM", ha="right", va="center", fontsize=SMALL)
    count = sum(int(np.count_nonzero(t.outside)) for t in touches)
    return theme.describe(fig, f"{len(touches)} programs over {n} elements of x; "
                               f"{count} lanes read outside.")


@styled
def program_grid(shape: tuple[int, int], touches: Sequence, *, row_stride: int) -> Figure:
    """Draw a matrix as it lies in memory, each element in the color of the program that touched it.

    Columns beyond the matrix belong to the buffer, not to it; an element in red was touched there.
    """
    rows, cols = shape
    owner = np.full((rows, row_stride), -1)
    for touch in touches:
        places = np.asarray(touch.lanes)[touch.mask]
        places = places[(places >= 0) & (places < rows * row_stride)]
        owner.ravel()[places] = touch.program[0]
    fig, ax = theme.subplots(height=0.3 * rows + 0.55)
    ax.set(xlim=(-2.6, row_stride + 0.05), ylim=(rows + 0.05, -0.75))
    ax.axis("off")
    for r in range(rows):
        for c in range(row_stride):
            touched, outside = owner[r, c] >= 0, c >= cols
            face = (theme.tint(OVER, 0.3) if outside else _program_color(owner[r, c])) if touched else (
                "white")
            rect(ax, c, r, 1, 1, facecolor=face, lw=0.7, edgecolor=OVER if outside else INK,
                 hatch="xxxx" if outside and not touched else None)
            if touched:
                ax.text(c + 0.5, r + 0.5, str(owner[r, c]), ha="center", va="center", fontsize=SMALL)
        ax.text(-0.15, r + 0.5, f"row {r}", ha="right", va="center", fontsize=SMALL)
    ax.text(cols / 2, -0.3, f"x: {cols} columns", ha="center", va="center", fontsize=SMALL)
    if row_stride > cols:
        ax.text((cols + row_stride) / 2, -0.3, "not ours: NaN", ha="center", va="center",
                fontsize=SMALL, color=OVER)
    bad = int(np.count_nonzero(owner[:, cols:] >= 0))
    return theme.describe(fig, f"x, {rows} × {cols}: which program touches which element; "
                               f"{bad} elements outside are touched.")


@styled
def softmax_rates(panels: Mapping[str, Mapping[str, tuple[Sequence, Sequence]]], copy_rate: float,
                  predicted: Mapping[str, float] | None = None) -> Figure:
    """Draw bytes per second against the row's length, one panel a dtype.

    Args:
        panels: {title: {impl: (columns, bytes per second)}}, measured.
        copy_rate: the ceiling, bytes per second.
        predicted: {impl: which share of the ceiling its passes leave}, drawn dashed; None draws none.
    """
    fig, axes = theme.subplots(1, len(panels), height=3.1, sharey=True)
    for ax, (title, series) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        lengths = sorted({length for cols, _ in series.values() for length in cols})
        ax.axhline(1, color=INK, lw=1)
        for impl, share in (predicted or {}).items():
            ax.axhline(share, color=_KERNELS[impl][0], ls=(0, (4, 3)), lw=1.1, zorder=1)
        for impl, (cols, rate) in series.items():
            color, marker, _ = _KERNELS[impl]
            ax.plot(cols, np.asarray(rate) / copy_rate, color=color, marker=marker, ms=4.5, lw=1.5,
                    ls="-" if impl != "torch" else (0, (1, 1)))
        ax.set_xscale("log", base=2)
        ticks = {2**9: "512", 2**12: "4K", 2**15: "32K", 2**18: "256K", 2**20: "1M"}
        ticks = {at: text for at, text in ticks.items() if at <= lengths[-1]}
        ax.set_xticks(list(ticks), list(ticks.values()))
        ax.xaxis.set_minor_locator(FixedLocator(lengths))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.tick_params(axis="x", which="minor", bottom=True, length=2, width=0.7)
        ax.set(ylim=(0, 1.08), xlabel="length of a row, in elements", title=title)
    first = np.atleast_1d(axes)[0]
    first.set_ylabel(f"share of the copy rate, {copy_rate / 1e12:.2f} TB/s")
    shown = [impl for impl in _KERNELS if any(impl in s for s in panels.values())]
    handles = [Line2D([], [], color=_KERNELS[i][0], marker=_KERNELS[i][1], ms=4.5, label=_KERNELS[i][2],
                      ls="-" if i != "torch" else (0, (1, 1))) for i in shown]
    if predicted:
        handles.append(Line2D([], [], color=GREY, ls=(0, (4, 3)), label="predicted by its passes"))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=SMALL,
               frameon=False, columnspacing=1.2, handlelength=2)
    words = []
    for title, series in panels.items():
        at = max(set.intersection(*(set(cols) for cols, _ in series.values())))
        shares = ", ".join(f"{_KERNELS[impl][2]} {rate[list(cols).index(at)] / copy_rate:.2f}"
                           for impl, (cols, rate) in series.items())
        words.append(f"{title} at {at:,}: {shares}")
    lines = ", ".join(f"{_KERNELS[impl][2]} {share:.2f}" for impl, share in (predicted or {}).items())
    words += [f"dashed, predicted: {lines}"] if lines else []
    return theme.describe(fig, "Useful bytes per second by length of a row, as shares of the"
                               f" copy rate. {'; '.join(words)}.")
