"""Pictures of who holds what: words on two GPUs, four GPUs in a ring, triangles shared out."""

import colorsys
from collections.abc import Mapping, Sequence

import numpy as np

from flashlib.course.plots import theme
from flashlib.course.plots.animation import Animation, animate
from flashlib.course.plots.parts import boxes, rect, whole
from flashlib.course.plots.theme import EDGE, GREY, INK, SMALL, TINY, Figure, styled

# A GPU's hue, also that of its keys: these are no tensors.
_HUES = ("#5B7F95", "#A0703B", "#4F7A5B", "#A0527A")
_LATER = "#F4F4F4"


def hue(gpu: int, P: int) -> str:
    """Return the hue of one of P GPUs, round the circle of hues if there are more than four."""
    if len(_HUES) >= P:
        return _HUES[gpu]
    return theme.to_hex(colorsys.hls_to_rgb(gpu / P, 0.5 if gpu % 2 else 0.42, 0.36))


@styled
def words(held: Sequence[Sequence[str]], steps: Sequence[Sequence[int]]) -> Figure:
    """Draw which words' keys each GPU has at each step; the queries never leave.

    Args:
        held: the words of each GPU.  steps: for each step, whose keys each GPU has.
    """
    P, wide = len(held), 0.62
    height = 0.62 + 0.42 * (len(steps) + 1)
    fig = theme.figure(height, layout=None)
    ax = whole(fig, down=True)
    left, room = 1.35, (theme.WIDTH - 1.4) / P
    rows = [("queries, at home", list(range(P)), "Q")]
    rows += [(f"keys, step {n}", list(at), "K") for n, at in enumerate(steps)]
    for gpu in range(P):
        ax.text(left + gpu * room, 0.3, f"GPU {gpu}", fontsize=9, fontweight="bold",
                color=theme.readable(hue(gpu, P)))
    said = []
    for y, (name, owners, _) in enumerate(rows):
        top = 0.45 + 0.42 * y
        ax.text(0.05, top + 0.16, name, fontsize=SMALL, va="center_baseline", color=GREY)
        for gpu, owner in enumerate(owners):
            for n, word in enumerate(held[owner]):
                look = {"fc": theme.tint(hue(owner, P), 0.25 if y else 0.7), "ec": EDGE, "lw": 0.6}
                x = left + gpu * room + n * (wide + 0.04)
                rect(ax, x, top, wide, 0.3, **look)
                ax.text(x + wide / 2, top + 0.16, word, fontsize=SMALL, ha="center",
                        va="center_baseline", color=theme.ink_on(look["fc"]))
            said.append(f"{name}, GPU {gpu}: {' '.join(held[owner])}")
    return theme.describe(fig, f"Words of a sentence on {P} GPUs. {'; '.join(said)}.")


@styled
def ring_step(P: int, step: int, tokens: int = 4) -> Figure:
    """Draw P GPUs in a ring at a step, and which blocks of the N×N logits are done.

    A block has the hue of the GPU whose keys it is made of; each GPU has `tokens` rows.
    """
    fig = theme.figure(2.9, layout=None)
    ax = whole(fig)
    cx, cy, radius = 1.72, 1.4, 0.98
    places = [(cx - radius * np.sin(-2 * np.pi * r / P), cy + radius * np.cos(2 * np.pi * r / P))
              for r in range(P)]
    for gpu, (x, y) in enumerate(places):
        to = np.array(places[(gpu + 1) % P])
        way = to - (x, y)
        ax.annotate("", to - 0.36 * way, (x, y) + 0.36 * way, arrowprops={
            "arrowstyle": "-|>", "color": GREY, "lw": 1.3, "shrinkA": 0, "shrinkB": 0})
    for gpu, (x, y) in enumerate(places):
        source = (gpu - step) % P
        rect(ax, x - 0.42, y - 0.27, 0.84, 0.56, fc="white", ec=hue(gpu, P), lw=1.6)
        ax.text(x, y + 0.16, f"GPU {gpu}", fontsize=SMALL, ha="center", va="center_baseline",
                fontweight="bold", color=theme.readable(hue(gpu, P)))
        rect(ax, x - 0.35, y - 0.21, 0.7, 0.27, fc=hue(source, P), ec=EDGE, lw=0.6)
        ax.text(x, y - 0.07, f"K, V of {source}", fontsize=TINY, ha="center", va="center_baseline",
                color=theme.ink_on(hue(source, P)))
    ax.text(cx, cy, f"step {step}", fontsize=10, ha="center", va="center_baseline", fontweight="bold")
    x0, y0, side = 3.9, 0.12, 2.4 / P
    for row in range(P):
        for column in range(P):
            done = (row - column) % P
            x, y = x0 + column * side, y0 + (P - 1 - row) * side
            if done > step:
                rect(ax, x, y, side, side, fc=_LATER, ec="white", lw=1.0)
                continue
            boxes(ax, [(x + side * i / tokens, y + side * j / tokens, 0.94 * side / tokens,
                        0.94 * side / tokens) for i in range(tokens) for j in range(tokens)],
                  facecolor=theme.tint(hue(column, P), 0.0 if done == step else 0.5), lw=0)
            ax.text(x + side / 2, y + side / 2, f"{done}", fontsize=SMALL, ha="center",
                    va="center_baseline", path_effects=theme.halo(2.5), fontweight="bold"
                    if done == step else None)
        ax.text(x0 - 0.08, y0 + (P - 0.5 - row) * side, f"rows of {row}", fontsize=TINY, ha="right",
                va="center_baseline", color=theme.readable(hue(row, P)))
        ax.text(x0 + (row + 0.5) * side, y0 + P * side + 0.06, f"keys of {row}", fontsize=TINY,
                ha="center", color=theme.readable(hue(row, P)))
    ax.text(x0 + P * side + 0.06, y0 + 0.04, "numbers:\nthe step", fontsize=TINY, color=GREY)
    return theme.describe(fig, f"{P} GPUs in a ring, step {step}: " + "; ".join(
        f"GPU {r} has K and V of {(r - step) % P}" for r in range(P)) + ".")


def film(P: int = 4) -> Animation:
    """Return the steps of a ring as an animated picture."""
    return animate((ring_step(P, step) for step in range(P)), seconds=1.4, still=1, loops=6, colors=48,
                   alt=f"{P} GPUs in a ring. In each of {P} steps a GPU works on the keys and values"
                       f" that it has, and passes them on. After step {P - 1} all {P * P} blocks of"
                       " logits are done, and no GPU has seen more than two shards of keys at a time.")


@styled
def triangles(owners: Mapping[str, np.ndarray]) -> Figure:
    """Draw a causal mask for each way to share out the rows, in the hues of the GPUs that own them.

    `owners` maps a title to the GPU of each row. Below: how many cells each GPU has.
    """
    N = len(next(iter(owners.values())))
    P = 1 + max(int(max(rows)) for rows in owners.values())
    count = len(owners)
    side = (theme.WIDTH - 0.25 * (count + 1)) / count
    fig = theme.figure(side + 1.3, layout=None)
    ax = whole(fig, down=True)
    words = []
    for n, (title, rows) in enumerate(owners.items()):
        x, cell = 0.25 + n * (side + 0.25), side / N
        ax.text(x, 0.17, title, fontsize=9, fontweight="bold")
        cells = np.zeros(P, int)
        for i, gpu in enumerate(rows):
            cells[gpu] += i + 1
            boxes(ax, [(x + j * cell, 0.25 + i * cell, 0.93 * cell, 0.93 * cell) for j in range(i + 1)],
                  facecolor=hue(gpu, P), lw=0)
            boxes(ax, [(x + j * cell, 0.25 + i * cell, 0.93 * cell, 0.93 * cell)
                       for j in range(i + 1, N)], facecolor=_LATER, lw=0)
        most = cells.max()
        for gpu in range(P):
            top, length = side + 0.36 + 0.2 * gpu, (side - 1.0) * cells[gpu] / most
            ax.text(x, top + 0.08, f"GPU {gpu}", fontsize=TINY, va="center_baseline", color=INK)
            rect(ax, x + 0.48, top, length, 0.15, fc=hue(gpu, P), lw=0)
            ax.text(x + 0.54 + length, top + 0.08, f"{cells[gpu]}", fontsize=TINY,
                    va="center_baseline", fontweight="bold" if cells[gpu] == most else None)
        words.append(f"{title}: " + ", ".join(f"GPU {g} {c}" for g, c in enumerate(cells)))
    return theme.describe(fig, f"Cells below the diagonal of {N} tokens by GPU. {'; '.join(words)}.")
