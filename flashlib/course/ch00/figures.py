"""The figures of chapter 00: the map of the course, the two memories, and the surprise."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from flashlib.course.plots import theme
from flashlib.course.plots.parts import rect, whole
from flashlib.course.plots.theme import text_width
from flashlib.hardware import human
from flashlib.models.hierarchy import levels

READY, READY_EDGE = "#E3ECF5", "#31688E"


@theme.styled
def course_map(chapters, parts):
    """Draw the chapters as one road: a row for each part, what exists filled, the rest dashed."""
    width, height, gap = 1.27, 0.62, 0.12
    rows = [[c for c in chapters if c.part == part] for part in parts]
    fig = theme.figure(0.86 * len(rows) + 0.1, layout=None)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, theme.WIDTH), ylim=(-0.86 * len(rows) + 0.05, 0.08))
    ax.axis("off")
    left = 1.44
    for r, (part, row) in enumerate(zip(parts, rows, strict=True)):
        y = -0.86 * r - 0.74
        if r % 2 == 0:
            rect(ax, 0, y - 0.12, theme.WIDTH, 0.86, color="#F7F7F7", zorder=0)
        ax.text(0.12, y + height / 2, textwrap.fill(part, 15), va="center", fontsize=9,
                fontweight="bold", color=theme.INK, linespacing=1.25)
        for c, chapter in enumerate(row):
            x = left + c * (width + gap) * (4 / max(4, len(row)))
            box = width * (4 / max(4, len(row)))
            fill, edge, ink = ((READY, READY_EDGE, theme.INK) if chapter.ready else
                               ("white", theme.GREY, theme.GREY))
            ax.add_patch(FancyBboxPatch((x, y), box, height, boxstyle="round,pad=0,rounding_size=0.07",
                                        zorder=2, facecolor=fill, edgecolor=edge, linewidth=1.2,
                                        linestyle="solid" if chapter.ready else (0, (3, 3))))
            ax.text(x + 0.08, y + 0.43, chapter.number, fontsize=9, fontweight="bold", color=edge)
            for n, line in enumerate(textwrap.wrap(chapter.title, 20)):
                ax.text(x + 0.08, y + 0.26 - 0.13 * n, line, fontsize=7.5, color=ink)
            if c:
                ax.annotate("", (x - 0.01, y + height / 2), (x - gap + 0.01, y + height / 2),
                            arrowprops={"arrowstyle": "-|>", "color": theme.GREY, "lw": 0.8,
                                        "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6})
    ax.annotate("", (left + 0.25, height - 1.6), (left + 0.25, -0.74), arrowprops={
        "arrowstyle": "-|>", "color": READY_EDGE, "lw": 1.4, "shrinkA": 0, "shrinkB": 0})
    ax.text(left + 0.36, -0.86, "or straight on", va="center", fontsize=7.5, color=READY_EDGE)
    ahead = [f"; {c.number} is in preparation (dashed box)" for c in chapters if not c.ready]
    return theme.describe(fig, f"Map of the course: {len(chapters)} chapters in {len(parts)} parts, "
                               f"{', '.join(c.number for c in chapters)}{''.join(ahead)}. An arrow"
                               f" leads from {rows[0][0].number} straight on to {rows[1][0].number}.")


@theme.styled
def memory_ladder(gpu):
    """Draw the two memories of a GPU to scale: bands as wide as their rates, areas as their rooms."""
    sms, sram, sram_rate = int(gpu.sms), int(gpu.shared_memory_per_sm_bytes), float(levels(gpu)[1].rate)
    hbm_rate, hbm = float(gpu.hbm_bytes_per_s), float(gpu.hbm_bytes)
    fig = theme.figure(3.55, layout=None)
    ax = whole(fig)
    left, width, wide = 1.3, 5.55, 2.0
    for y, name in ((3.17, "arithmetic"), (1.98, "SRAM"), (0.65, "HBM")):
        ax.text(0.12, y, name, va="center", fontsize=9.5, fontweight="bold")
    rect(ax, left, 2.97, width, 0.4, facecolor="#FFF8E6", edgecolor="#C9B37A")
    ax.text(left + width / 2, 3.17, f"tensor cores and vector units of {sms} SMs", ha="center",
            va="center", fontsize=8.5)
    columns = -(-sms // 3)
    pitch = width / columns
    for n in range(sms):
        rect(ax, left + pitch * (n % columns), 2.1 - 0.17 * (n // columns), 0.86 * pitch, 0.14, lw=0.6,
             **theme.SRAM)
    ax.text(0.12, 1.79, f"{sms} × {gpu.shared_memory_per_sm_bytes}", va="center", fontsize=8.5)
    with mpl.rc_context({"hatch.color": "#D2D2D2"}):
        rect(ax, left, 0.15, width, 1.0, **theme.HBM)
    ax.text(0.12, 0.46, f"1 × {gpu.hbm_bytes}", va="center", fontsize=8.5)
    bands = ((2.28, 2.97, wide, f"inside the SMs, together\n{human(sram_rate, 'B/s')}"),
             (1.15, 1.72, wide * hbm_rate / sram_rate,
              f"traffic, for all SMs together\n{human(hbm_rate, 'B/s')}"))
    for low, high, w, text in bands:                # as wide as the rate
        x, y = left + 2.2, (low + high) / 2
        rect(ax, x - w / 2, low, w, high - low, facecolor="#C5D5E4", edgecolor="none", lw=0)
        ax.text(x, y, "↕", ha="center", va="center", fontsize=13, color=READY_EDGE)
        ax.text(x + w / 2 + 0.15, y, text, va="center", fontsize=8.5, fontweight="bold",
                linespacing=1.3)
    side = np.sqrt(width * 1.0 * sms * sram / hbm)
    rect(ax, left + 0.9, 0.63, side, side, facecolor=READY_EDGE, edgecolor=READY_EDGE, lw=0)
    ax.annotate(f"this dot: all {sms} SRAMs, to the scale of HBM's field", (left + 0.92 + side, 0.645),
                (left + 1.25, 0.645), va="center", fontsize=8.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 2, "alpha": 0.9},
                arrowprops={"arrowstyle": "-", "color": theme.INK, "lw": 0.7})
    return theme.describe(
        fig, f"{gpu.name}: the SRAMs of {sms} SMs, {human(sram, 'B', binary=True)} each, deliver"
             f" {human(sram_rate, 'B/s')} together, a wide band to the arithmetic; one HBM of"
             f" {gpu.hbm_bytes} delivers {human(hbm_rate, 'B/s')} to all of them, a narrow band. All"
             f" SRAMs together are a dot in the field of HBM, which is {hbm / (sms * sram):,.0f} times"
             " as large.")


@theme.styled
def surprise(panels):
    """Draw one small bar chart per quantity: {title: (origin, unit, {label: value})}.

    `origin` says in two or three words where the numbers come from; under each chart stands what the
    first bar is multiplied (×) or divided (÷) by to give the second.
    """
    fig, axes = theme.subplots(1, len(panels), height=2.35)
    words = []
    for ax, (title, (origin, unit, bars)) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        labels, values = list(bars), list(bars.values())
        styles = [theme.version_style(version) for version in ("standard", "v2")]
        ax.bar(range(len(values)), values, width=0.6, color=[s["color"] for s in styles])
        for n, value in enumerate(values):
            text = f"{value * 1e3:.2f} ms" if unit == "s" else human(value, unit)
            ax.text(n, value, text, ha="center", va="bottom", fontsize=8.5)
        ax.set_xticks(range(len(values)), [name.replace("FlashA", "Flash-\nA") for name in labels],
                      fontsize=8)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.set_ylim(0, max(values) * 1.18)
        ax.set_title(title, loc="center", fontsize=9.5)
        ratio = values[1] / values[0]
        says = f"× {ratio:.2f}" if ratio >= 1 else f"÷ {1 / ratio:.{0 if ratio < 0.1 else 1}f}"
        ax.set_xlabel(f"{says}\n{origin}", fontsize=8.5, color=theme.INK, linespacing=1.4)
        words.append(f"{title} ({origin}): {human(values[0], unit)} for {labels[0]},"
                     f" {human(values[1], unit)} for {labels[1]}")
    return theme.describe(fig, "; ".join(words) + ".")


@theme.styled
def heatmap(array, rows: Sequence[str], cols: Sequence[str] | None = None, name: str = "P", *,
            marked: Sequence[int] = ()) -> Figure:
    """Draw an attention map: a row for each query word, a column for each key word.

    Args:
        array: (rows, cols); non-finite entries (hidden keys) stay white.
        rows, cols: the words; cols is rows if only one is given.
        name: which tensor it is, for the hue and the color bar.
        marked: rows to frame, whose words are bold.
    """
    array, cols = np.asarray(array, dtype=float), rows if cols is None else cols
    if array.ndim != 2:
        raise ValueError(f"array: expected two dimensions, got shape {array.shape}")
    for label, words, count in (("rows", rows, array.shape[0]), ("cols", cols, array.shape[1])):
        if len(words) != count:
            raise ValueError(f"{label}: expected {count} labels, got {len(words)}")

    def longest(words, size):
        return max(text_width(str(w), size) for w in words) + 0.14

    n, k = array.shape
    cell = min(0.26, (theme.WIDTH - longest(rows, theme.TINY) - 0.1) / k)
    size = min(9, max(theme.TINY, cell * 72 * 0.5))
    left, top, w, h = longest(rows, size), longest(cols, size) + 0.05, k * cell, n * cell
    width, height = left + w + 0.1, top + h + 0.55
    fig = theme.figure(height, width, layout=None)
    ax = fig.add_axes((left / width, 0.55 / height, w / width, h / height))
    finite = array[np.isfinite(array)]
    image = ax.pcolormesh(np.arange(k + 1) - 0.5, np.arange(n + 1) - 0.5, np.ma.masked_invalid(array),
                          cmap=theme.tensor_cmap(name), linewidth=0.5,
                          norm=Normalize(min(finite.min(), 0), finite.max()))
    ax.set(xlim=(-0.5, k - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
    ax.xaxis.tick_top()
    ax.set_yticks(range(n), [str(word) for word in rows], fontsize=size)
    ax.set_xticks(range(k), [str(word) for word in cols], fontsize=size, rotation=90)
    ax.tick_params(length=0, pad=3)
    for row in marked:
        rect(ax, -0.5, row - 0.5, k, 1, fill=False, ec=theme.INK, lw=1.0, clip_on=False, gid="marked")
        ax.get_yticklabels()[row].set_fontweight("bold")
    for spine in ax.spines.values():
        spine.set(visible=True, color="#BBBBBB", linewidth=0.8)
    bar = fig.colorbar(image, cax=ax.inset_axes([0, -0.2 / h, min(2.2 / w, 1), 0.1 / h]),
                       orientation="horizontal")
    bar.outline.set(edgecolor="#BBBBBB", linewidth=0.6)
    bar.ax.tick_params(length=2, labelsize=theme.TINY)
    bar.ax.locator_params(nbins=5)
    bar.ax.text(1.04, 0.5, name, transform=bar.ax.transAxes, va="center", fontweight="bold",
                fontsize=theme.SMALL)
    i, j = np.unravel_index(int(np.nanargmax(array)), array.shape)
    return theme.describe(fig, f"Heat map of {name}, {n} queries by {k} keys; largest at query"
                               f" “{rows[i]}”, key “{cols[j]}”.")
