"""Blocks: what a causal mask makes of the tiles, and the block-size lab of chapter 06."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.path import Path

from flashlib.course.plots import stage, theme
from flashlib.course.plots.animation import Animation, animate
from flashlib.course.plots.causal import face, tile_kinds
from flashlib.course.plots.parts import bare, cells, heading, rect, sentences
from flashlib.course.plots.replay import Replay
from flashlib.course.plots.theme import FAINT, GREY, INK, OVER, SMALL, TINY, human_bytes, styled
from flashlib.course.plots.traffic import ordered, sram_gauge
from flashlib.course.plots.visits import tile_visits
from flashlib.machine.traffic import Traffic

# Teal is less, brown is more: apart under every color deficiency, and red stays for "does not fit".
LESS_MORE = LinearSegmentedColormap.from_list("flashlib_ratio", [
    "#0B5C55", "#5AB0A5", "#CBE8E3", "#FBFBFB", "#EBD9B4", "#C08F43", "#7A4A0C"])


@styled
def tile_classes(cases: Mapping[str, tuple[int, int, int, int]]) -> Figure:
    """Draw what a causal mask makes of every tile: skipped, cut by the diagonal, or full.

    `cases` maps a title to (Nq, Nk, Br, Bc). The line is the edge of what the queries may see,
    aligned bottom right.
    """
    if not cases:
        raise ValueError("cases: expected at least one {title: (Nq, Nk, Br, Bc)}, got none")
    side = (theme.WIDTH - 0.1) / len(cases) - 0.3
    height = side + 1.22
    fig = theme.figure(height, layout=None)
    words = []
    for n, (title, (Nq, Nk, Br, Bc)) in enumerate(cases.items()):
        longer = max(Nq, Nk, 1)
        w, h = side * Nk / longer, side * Nq / longer
        ax = fig.add_axes(((0.3 + n * (side + 0.3)) / theme.WIDTH, 0.88 / height + (side - h) / height,
                           w / theme.WIDTH, h / height))
        found = sum((kinds for _, kinds in tile_kinds(ax, Nq, Nk, Br, Bc, lw=0.8)), Counter())
        steps = np.arange(Nq + 1)
        ax.step(np.clip(steps + Nk - Nq, 0, Nk), steps, where="pre", color=INK, lw=1.0)
        ax.set(xlim=(0, Nk), ylim=(Nq, 0), aspect="equal", xticks=[0, Nk], yticks=[0, Nq])
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("keys", labelpad=-7, fontsize=SMALL)
        ax.set_ylabel("queries", labelpad=-9, fontsize=SMALL)
        bare(ax)
        total = sum(found.values())
        note = f"{found['full']} full, {found['partial']} cut, {found['skip']} skipped of {total}"
        ax.annotate(note.replace(" cut, ", " cut,\n"), (0, 0), xycoords="axes fraction",
                    xytext=(0, -17), textcoords="offset points", va="top", fontsize=SMALL)
        words.append(f"{title}: {note}")
    key = [("full", face("full")),
           ("cut by the diagonal: computed whole, then masked", face("partial")),
           ("skipped", face("skip"))]
    theme.patch_key(stage.frame(fig, 0, 0, theme.WIDTH, 0.2), key, at=(1.0, 0.0))
    return theme.describe(fig, f"Tiles under a causal mask. {'; '.join(words)}.")


@styled
def block_lab(costs: Mapping[str, Traffic], held: Sequence[tuple], capacity: int, grid: Grid, *,
              title: str, what: str, sram: str, ideal_fits: bool) -> Figure:
    """Draw what a choice of blocks costs: its bytes, its tiles in SRAM, and all choices around it.

    Args:
        costs: what "ideal", "same blocks" and, last, the algorithm move.
        held: the tiles in SRAM, (name, shape, bytes).  capacity: of that SRAM, in bytes.
        grid: the ratio to the ideal of every choice.
        title, what: the line on top, and what the alt text says of the choice.
        sram: whose SRAM it is.  ideal_fits: whether the ideal would fit into it, too.
    """
    over = sum(size for _, _, size in held) - capacity
    fig = theme.figure(5.4, layout=None)
    heading(fig, title, y=0.978)
    _bars(fig.add_axes((0.012, 0.69, 0.976, 0.235)), costs, over > 0)
    sram_gauge(held, capacity, ax=fig.add_axes((0.012, 0.475, 0.976, 0.18)))
    _map_of_choices(fig.add_axes((0.075, 0.085, 0.5, 0.345)), grid, list(costs)[-1])
    said = sentences(fig, _verdicts(list(costs)[-1], costs, sram, over, ideal_fits), 0.625, 0.4, 0.062)
    return theme.describe(fig, f"Block-size lab. {what}: {said}.")


class Grid(NamedTuple):
    """The bytes of every choice of blocks as a ratio to the ideal, whether it fits, and the choice."""

    Br_values: Sequence[int]
    Bc_values: Sequence[int]
    ratio: np.ndarray
    fits: np.ndarray
    chosen: tuple[int, int]


LONGEST = 4.0                       # the axis of the bars ends at so many times the ideal


def _bars(ax, costs, too_large) -> None:
    """Draw the stacked bars on an axis in multiples of the ideal, which no choice moves."""
    ideal = costs["ideal"].hbm_bytes
    inch = ideal * LONGEST / 4.55
    ax.set(xlim=(-0.9 * inch, 5.93 * inch), ylim=(len(costs) + 0.1, -0.55))
    ax.axis("off")
    for n in range(int(LONGEST) + 1):
        ax.plot([n * ideal] * 2, [-0.5, len(costs) - 0.45], lw=0.8, color=FAINT, zorder=0)
        ax.text(n * ideal, len(costs) - 0.35, f"{n}×", ha="center", va="top", fontsize=TINY, color=GREY)
    for y, (label, cost) in enumerate(costs.items()):
        ax.text(-0.1 * inch, y, label, ha="right", va="center", fontsize=9)
        faded = too_large and y == len(costs) - 1
        end = _stack_to(ax, y, cost.by_tensor, LONGEST * ideal, inch)
        ratio = cost.hbm_bytes / ideal
        if end < cost.hbm_bytes:
            ax.annotate("", (end + 0.18 * inch, y), (end, y), arrowprops={
                "arrowstyle": "-|>", "color": INK, "lw": 1.6, "shrinkA": 0, "shrinkB": 0})
            end += 0.16 * inch
        if faded:
            rect(ax, 0, y - 0.36, end, 0.72, fc="white", alpha=0.75, lw=0, zorder=5, gid="too large")
        total = ax.text(end + 0.1 * inch, y, human_bytes(cost.hbm_bytes), va="center_baseline",
                        fontweight="bold", color=GREY if faded else INK, path_effects=theme.halo())
        if y:
            width = theme.text_width(total.get_text(), 9, "bold") + 0.22
            ax.text(end + width * inch, y, "does not fit" if faded else f"{ratio:.2f}×", fontsize=SMALL,
                    color=OVER if faded or (ratio > 1 and y == len(costs) - 1) else GREY,
                    va="center_baseline", path_effects=theme.halo())


def _stack_to(ax, y, moved, limit, inch) -> float:
    """Draw a stacked bar as far as `limit`, and return where it ends."""
    left = 0.0
    for name in ordered(moved):
        start, color = left, theme.tensor_color(name)
        for count, written in zip(moved[name], (False, True), strict=True):
            width = min(left + count, limit) - min(left, limit)
            if width > 0:
                rect(ax, left, y - 0.33, width, 0.66, fc=color, ec="white", lw=0.6)
                if written:
                    rect(ax, left, y - 0.33, width, 0.66, fill=False, lw=0, hatch="/////",
                         ec=theme.edge_color(name))
            left += count
        seen = min(left, limit) - min(start, limit)
        if theme.text_width(name, SMALL) + 0.14 < seen / inch:
            box = {"boxstyle": "round,pad=0.15", "fc": color, "ec": "none"}
            ax.text(min(start, limit) + seen / 2, y, name, ha="center", va="center_baseline",
                    fontsize=SMALL, color=theme.ink_on(color), zorder=4, bbox=box)
    return min(left, limit)


def _map_of_choices(ax, grid: Grid, name) -> None:
    """Draw every choice of blocks in the color of its ratio to the ideal, and frame the one made."""
    rows, cols = grid.ratio.shape
    log = np.log2(grid.ratio)
    ax.imshow(log, origin="lower", aspect="auto", cmap=LESS_MORE, norm=TwoSlopeNorm(0, -4, 4))
    cells = [Path([(j - 0.5, i - 0.5), (j + 0.5, i - 0.5), (j + 0.5, i + 0.5), (j - 0.5, i + 0.5),
                   (j - 0.5, i - 0.5)], closed=True) for i, j in np.argwhere(~grid.fits)]
    # One path, because each takes as long to hatch as all of them together.
    ax.add_collection(PathCollection([Path.make_compound_path(*cells)] if cells else [], hatch="xx",
                                     facecolors=(1, 1, 1, 0.7), linewidths=0,
                                     edgecolors=theme.tint(OVER, 0.5)), autolim=False)
    ax.add_collection(LineCollection(_border(log > 0), colors=INK, linewidths=2.0, zorder=4),
                      autolim=False)
    i, j = grid.Br_values.index(grid.chosen[0]), grid.Bc_values.index(grid.chosen[1])
    rect(ax, j - 0.5, i - 0.5, 1, 1, fill=False, ec=theme.version_style(name)["color"], lw=3, zorder=6,
         gid="chosen")
    ax.set_xticks(range(cols), grid.Bc_values, fontsize=TINY)
    ax.set_yticks(range(rows), grid.Br_values, fontsize=TINY)
    ax.set_xlabel("Bc", labelpad=1)
    ax.set_ylabel("Br", labelpad=1)
    ax.set_title(f"every choice: teal, {name} moves less than the ideal; crossed, too large",
                 fontsize=SMALL, fontweight="normal", pad=4)
    bare(ax)


def _border(more) -> list:
    """Return the lines between cells of `more`, (rows, cols) booleans, that differ."""
    beside, above = np.argwhere(more[:, 1:] != more[:, :-1]), np.argwhere(more[1:] != more[:-1])
    return [*(((j + 0.5, i - 0.5), (j + 0.5, i + 0.5)) for i, j in beside),
            *(((j - 0.5, i + 0.5), (j + 0.5, i + 0.5)) for i, j in above)]


def _verdicts(name, costs, sram, over, ideal_fits) -> list[tuple[str, str]]:
    """Return the lines of text beside the map, with their colors."""
    to_ideal, to_same = (costs[name].hbm_bytes / costs[b].hbm_bytes for b in ("ideal", "same blocks"))
    if over > 0:
        return [(f"{sram}: {over:,} B too many", OVER), ("Take smaller tiles.", INK)]
    return [(f"{sram}: {name} fits", INK),
            (f"{to_ideal:.2f} × the ideal, which {'fits too' if ideal_fits else 'does not fit'}",
             OVER if to_ideal > 1 else INK),
            (f"{to_same:.2f} × standard, same blocks", OVER if to_same > 1 else INK),
            (f"{costs[name].intensity:,.0f} FLOP per byte counted", GREY)]


@styled
def ratio_maps(Br_values, Bc_values, ratios: Mapping[str, np.ndarray], *, fits=None,
               notes: Mapping[str, str] = {}) -> Figure:
    """Draw several ratios over the same block sizes side by side, on one color scale.

    Args:
        Br_values, Bc_values: the block sizes, upwards and to the right.
        ratios: {title: array (len(Br_values), len(Bc_values))}; 1 is as much as the baseline.
        fits: booleans of that shape; blocks that do not fit into SRAM are crossed out.
        notes: {title: what its map shows}, in grey beside the title.
    """
    rows, cols = len(Br_values), len(Bc_values)
    fits = np.ones((rows, cols), dtype=bool) if fits is None else np.asarray(fits, dtype=bool)
    for title, ratio in ratios.items():
        if np.shape(ratio) != (rows, cols):
            raise ValueError(f"{title}: expected shape {(rows, cols)}, got {np.shape(ratio)}")
    gap, left = 0.16, 0.62
    side = (theme.WIDTH - left - 0.05 - gap * (len(ratios) - 1)) / len(ratios)
    tall = side * rows / cols * 0.92
    height = tall + 1.0
    fig = theme.figure(height, layout=None)
    for n, (title, ratio) in enumerate(ratios.items()):
        ax = fig.add_axes(((left + n * (side + gap)) / theme.WIDTH, 0.46 / height,
                           side / theme.WIDTH, tall / height))
        _one_map(ax, np.asarray(ratio, dtype=float), fits, Br_values, Bc_values)
        ax.set_title(title, fontsize=9)
        ax.set_title(notes.get(title, ""), fontsize=SMALL, fontweight="normal", color=GREY, loc="right")
        ax.tick_params(axis="x", labelsize=theme.TINY)
        ax.tick_params(axis="y", labelleft=n == 0)
        ax.set_xlabel("Bc", labelpad=2)
        if n == 0:
            ax.set_ylabel("Br")
    fig.text(0.995, 0.015, "line: equal to the baseline     crossed out: does not fit", ha="right",
             fontsize=theme.TINY, color=GREY)
    words = "; ".join(f"{title}: below 1 in {int((np.asarray(r) < 1)[fits].sum())} of"
                      f" {int(fits.sum())} choices that fit" for title, r in ratios.items())
    return theme.describe(fig, f"Ratio maps over Br and Bc. {words}.")


def _one_map(ax, ratio, fits, Br_values, Bc_values) -> None:
    log = np.log2(ratio)
    norm = TwoSlopeNorm(0, -4, 4)
    colors = [[LESS_MORE(norm(np.clip(v, -4, 4))) for v in line] for line in log]
    texts = [[_short(v) if fit else "" for v, fit in zip(*pair, strict=True)]
             for pair in zip(ratio, fits, strict=True)]
    crossed = {"fc": (1, 1, 1, 0.75), "ec": OVER, "lw": 0, "hatch": "xx"}
    cells(ax, colors, texts, Bc_values, Br_values, size=theme.TINY, lw=0.8,
          over={(i, j): crossed for i, j in np.argwhere(~fits).tolist()})
    ax.add_collection(LineCollection(_border(log > 0), colors=INK, linewidths=2, zorder=5,
                                     capstyle="projecting"), autolim=False)


def _short(ratio) -> str:
    return f"{ratio:.2f}"[1:] if ratio < 0.995 else f"{ratio:.2f}" if ratio < 1.05 else f"{ratio:.2g}"


def film(trace, N, *, title) -> Animation:
    """Return the tile visits of a trace as an animated picture, for readers on GitHub."""
    replay = Replay(trace, N, N)
    count = len(replay.frames)
    alt = (f"{title}: {count - 1} tiles of a {N} × {N} matrix are visited, one after the other, while"
           f" the bytes moved grow to {human_bytes(replay.total_bytes)}.")
    return animate((tile_visits(replay, N, N, at, title=title) for at in replay.frames), alt=alt,
                   seconds=0.9, still=-2, colors=192)
