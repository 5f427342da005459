"""Chapter 02's pictures of the GPU's threads: grid to thread, lines of a cache, banks of SRAM."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.collections import LineCollection

from flashlib.course.plots import stage, theme
from flashlib.course.plots.parts import boxes, rect
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, Figure, styled
from flashlib.models.coalescing import (
    BANKS,
    LINE_BYTES,
    SECTOR_BYTES,
    WORD_BYTES,
    bank_passes,
    transactions,
    words_by_bank,
)

_USED = theme.TENSOR_COLORS["B"]
_SECTOR = theme.mix(_USED, "#6B4E00", 0.45)


@styled
def launch_hierarchy(C: tuple[int, int], block: tuple[int, int], warp: tuple[int, int],
                     thread: tuple[int, int]) -> Figure:
    """Draw C cut into blocks, a block into warps, a warp into threads, a thread's own elements.

    Beside each part lie the pieces of A and B that it reads, on the background of their memory.
    Every argument is (rows, columns) of C.
    """
    sizes = [C, block, warp, thread, (1, 1)]
    for whole, part in itertools.pairwise(sizes):
        if whole[0] % part[0] or whole[1] % part[1]:
            raise ValueError(f"{part}: expected a size that divides {whole}")
    counts = [(w[0] // p[0], w[1] // p[1]) for w, p in itertools.pairwise(sizes)]
    titles = ["the grid", "a block", "a warp", "a thread"]
    parts = ["blocks", "warps", "threads", "elements"]
    homes = ["A, B in HBM", "pieces in SRAM", "pieces in SRAM", "pieces in registers"]
    strips = [theme.HBM, theme.SRAM, theme.SRAM, theme.REGISTER]
    gap, side, strip = 0.36, 1.44, 0.13
    fig = theme.figure(2.62, layout=None)
    ax = stage.frame(fig, 0, 0, theme.WIDTH, 2.62)
    ax.set(xlim=(0, theme.WIDTH), ylim=(2.62, 0))
    zoom, words = None, []
    for n, (title, part, home, look) in enumerate(zip(titles, parts, homes, strips, strict=True)):
        rows, cols = counts[n]
        scale = (side - strip - 0.05) / max(sizes[n])
        w, h = scale * sizes[n][1], scale * sizes[n][0]
        x, y = 0.1 + n * (side + gap) + strip + 0.05, 0.36 + strip + 0.05
        y += (side - strip - 0.05 - h) / 2
        if zoom:
            ax.add_collection(LineCollection(
                [[(zoom[0], zoom[1]), (x - strip - 0.05, y)],
                 [(zoom[0], zoom[2]), (x - strip - 0.05, y + h)]], colors="#9A9A9A",
                linewidths=0.8, linestyles=(0, (2, 2))), autolim=False)
        beside = {"A": (x - strip - 0.05, y, strip, h), "B": (x, y - strip - 0.05, w, strip)}
        for name, box in beside.items():
            hue = theme.tensor_color(name)
            face = {**look, "facecolor": theme.tint(hue, 0.8) if n == 0 else hue,
                    "edgecolor": theme.edge_color(name)}
            rect(ax, *box, lw=0.8, gid=f"{title} {name}", **face)
            if n in (0, 3):
                at = (box[0] + box[2] / 2, box[1] + box[3] / 2)
                ax.text(*at, name, ha="center", va="center_baseline", fontsize=SMALL,
                        fontweight="bold", color=theme.ink_on(face["facecolor"]),
                        bbox=None if n else {"boxstyle": "square,pad=0.05",
                                             "fc": face["facecolor"], "ec": "none"})
        cell = (w / cols, h / rows)
        pale, full = theme.tint(theme.tensor_color("C"), 0.6), theme.tensor_color("C")
        boxes(ax, [(x + c * cell[0], y + r * cell[1], *cell) for r, c in np.ndindex(rows, cols)],
              facecolors=pale if n < 3 else full, edgecolors=theme.edge_color("C"), linewidths=0.6,
              gid=title)
        if n < 3:
            r, c = min(1, rows - 1), cols - 1
            rect(ax, x + c * cell[0], y + r * cell[1], *cell, facecolor=full, edgecolor=INK, lw=1.5,
                 zorder=5)
            zoom = (x + cols * cell[0], y + r * cell[1], y + (r + 1) * cell[1])
        left = 0.1 + n * (side + gap)
        ax.text(left, 0.2, title, fontsize=10, fontweight="bold", va="baseline")
        total = rows * cols
        lines = [f"{sizes[n][0]} × {sizes[n][1]} elements of C",
                 f"{total} {parts[n]}, {rows} × {cols}" if n < 3 else f"{total} sums in registers",
                 home]
        for k, line in enumerate(lines):
            ax.text(left, 2.06 + 0.18 * k, line, fontsize=SMALL, va="center",
                    color=GREY if k == 2 else INK)
        words.append(f"{title}: {sizes[n][0]} × {sizes[n][1]} elements, {total} {part}")
    return theme.describe(fig, f"How threads share a matmul. {'; '.join(words)}.")


@styled
def coalescing(patterns: Mapping[str, Sequence[int]], *, row_bytes: int, rows: int,
               word_bytes: int = 4) -> Figure:
    """Draw which lines and sectors of a row-major matrix one load of a warp touches.

    Args:
        patterns: {title: byte addresses, one for each thread}.
        row_bytes, rows: length of a row of the matrix, and how many to draw.
        word_bytes: what each thread takes.
    """
    gap = 0.25
    width = (theme.WIDTH - 0.2 - gap * (len(patterns) - 1)) / len(patterns)
    high = round(110 * min(width * word_bytes / row_bytes * 1.3, 0.06)) / 110     # whole pixels
    tall = rows * high
    height = tall + 1.34
    fig, words, rest = theme.figure(height, layout=None), [], theme.tint(_USED, 0.65)
    key = [("asked for", INK), ("rest of their sectors", _SECTOR), ("rest of their lines", rest)]
    theme.patch_key(stage.frame(fig, 0, 0, theme.WIDTH, height),
                    [(text, {"color": color}) for text, color in key], loc="upper right")
    for n, (title, addresses) in enumerate(patterns.items()):
        ax = stage.frame(fig, 0.1 + n * (width + gap), 0.72, width, tall)
        ax.set(xlim=(0, row_bytes), ylim=(rows, 0))
        lines = {a // LINE_BYTES for a in addresses}
        every = range(rows * row_bytes // LINE_BYTES)
        boxes(ax, [(k * LINE_BYTES % row_bytes, k * LINE_BYTES // row_bytes, LINE_BYTES, 1)
                   for k in every],
              facecolors=[rest if k in lines else "#F3F3F3" for k in every],
              edgecolors="white", linewidths=0.7, gid="lines")
        moved = sorted({a // SECTOR_BYTES * SECTOR_BYTES for a in addresses})
        boxes(ax, [(a % row_bytes, a // row_bytes, SECTOR_BYTES, 1) for a in moved],
              facecolors=_SECTOR, edgecolors="white", linewidths=0.7, gid="sectors")
        boxes(ax, [(a % row_bytes, a // row_bytes, word_bytes, 1) for a in addresses],
              facecolors=INK, edgecolors="none", gid="used")
        count = transactions(addresses)
        sectors = transactions(addresses, SECTOR_BYTES)
        used = len(set(addresses)) * word_bytes
        notes = [(f"{count} line{'s' * (count != 1)} of 128 bytes", INK, "bold"),
                 (f"{sectors} sectors of 32 bytes: {sectors * SECTOR_BYTES:,} B",
                  OVER if sectors * SECTOR_BYTES > used else INK, "normal"),
                 (f"{used} B are used", GREY, "normal")]
        left = (0.1 + n * (width + gap)) / theme.WIDTH
        fig.text(left, (tall + 0.8) / height, title, fontsize=9, fontweight="bold")
        for k, (text, color, weight) in enumerate(notes):
            fig.text(left, (0.55 - 0.18 * k) / height, text, fontsize=SMALL, color=color,
                     fontweight=weight, va="center")
        words.append(f"{title}: lines {count}, sectors {sectors}, bytes used {used}")
    return theme.describe(fig, f"Lines that one load of a warp touches. {'; '.join(words)}.")


@styled
def banks(patterns: Mapping[str, tuple[Sequence[int], int]]) -> Figure:
    """Draw which words of shared memory a warp asks for, and how many of them each bank has.

    Args:
        patterns: {title: (byte addresses, row length in words of the tile that lies there)};
            words beyond the 32 of a tile's row are padding. A column is a bank.
    """
    gap = 0.3
    width = (theme.WIDTH - 0.2 - gap * (len(patterns) - 1)) / len(patterns)
    cell = width / BANKS
    tall, bars = max(length for _, length in patterns.values()) * cell, 0.5
    height = tall + bars + 1.12
    fig, words = theme.figure(height, layout=None), []
    pale = [theme.tint(_USED, share) for share in (0.75, 0.5)]
    key = [("asked for", {"color": INK}), ("unused", {"fc": "white", "ec": GREY})]
    theme.patch_key(stage.frame(fig, 0, 0, theme.WIDTH, height), key, loc="upper right")
    for n, (title, (addresses, length)) in enumerate(patterns.items()):
        left = 0.1 + n * (width + gap)
        ax = stage.frame(fig, left, 0.56 + bars, width, tall)
        ax.set(xlim=(0, BANKS), ylim=(tall / cell, 0))
        index = np.arange(length * BANKS)                       # the words of a tile of 32 rows
        asked = {a // WORD_BYTES for a in addresses}
        faces = [INK if word in asked else "#FFFFFF" if word % length >= BANKS
                 else pale[word // length % 2] for word in index]
        boxes(ax, [(word % BANKS, word // BANKS, 1, 1) for word in index], facecolors=faces,
              edgecolors="white", linewidths=0.3, gid="words")
        rect(ax, 0, 0, BANKS, length, fill=False, ec="#B9C6D6", lw=0.8)
        by_bank = words_by_bank(addresses)
        passes = bank_passes(addresses)
        low = stage.frame(fig, left, 0.5, width, bars)
        low.set(xlim=(0, BANKS), ylim=(34, -1))
        low.bar([bank + 0.5 for bank in by_bank], list(by_bank.values()), width=0.8,
                color=OVER if passes > 1 else INK)
        if passes > 1:
            bank = max(by_bank, key=by_bank.get)
            low.text(bank + 2, 17, f"{passes} words asked of one bank", fontsize=SMALL, color=OVER,
                     va="center")
        low.plot([0, BANKS], [0, 0], color="#9A9A9A", lw=0.7)
        fig.text(left / theme.WIDTH, 1 - 0.42 / height, title, fontsize=9, fontweight="bold")
        fig.text(left / theme.WIDTH, 0.36 / height, f"{passes} pass{'es' * (passes != 1)}", fontsize=9,
                 fontweight="bold", color=OVER if passes > 1 else INK, va="center")
        fig.text(left / theme.WIDTH, 0.17 / height, f"{len(by_bank)} of {BANKS} banks at work",
                 fontsize=SMALL, color=GREY, va="center")
        words.append(f"{title}: passes {passes}, banks at work {len(by_bank)}")
    return theme.describe(fig, f"Words of shared memory that a warp asks for, by bank. "
                               f"{'; '.join(words)}.")
