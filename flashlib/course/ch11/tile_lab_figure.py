"""The block-size lab of chapter 11: one configuration's budgets, and what the model makes of all."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from flashlib import hardware
from flashlib.course.ch11.figures import _SLOWER
from flashlib.course.plots import theme
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, styled
from flashlib.models import predict as model

SIZES = (32, 64, 128, 256)
_PARTS = {"memory": "#ECECEC", "L2": "#8DA9C4", "matmul": "#33628D", "softmax": "#999933"}
_HATCH = {"memory": "////", "L2": "....", "matmul": "", "softmax": "xxxx"}


@styled
def tile_lab(Br: int = 128, Bc: int = 64, warps: int = 4, stages: int = 2, gpu="H200", *, d: int = 128,
             batch: int = 4, heads: int = 16, N: int = 4096) -> Figure:
    """Draw what a configuration asks of an SM, and the predicted times of its neighbors.

    Everything is computed by `models.predict`, in bfloat16 and without a mask; nothing is measured.

    Args:
        Br, Bc, warps, stages: the configuration that is examined.
        gpu: a `GPU` or the name of one.
        d, batch, heads, N: the shape.
    """
    gpu = hardware.get(gpu)
    shape = {"batch": batch, "heads": heads, "N": N, "d": d}
    rows = sorted({*SIZES, Br})
    columns = sorted({*SIZES, Bc})
    times = {(r, c): model.predict(gpu, model.Config(r, c, warps, stages), **shape).time_s
             for r in rows for c in columns}
    mine = model.predict(gpu, model.Config(Br, Bc, warps, stages), **shape)
    fig = theme.figure(3.45, layout=None)
    title = (f"Computed, not measured: {gpu.name}, (B, H, N, d) = ({batch}, {heads}, {N}, {d}),"
             f" {warps} warps, {stages} stages")
    fig.text(0.012, 0.985, title, fontsize=10, fontweight="bold", va="top")
    best = _map(fig.add_axes((0.085, 0.15, 0.41, 0.68)), times, rows, columns, (Br, Bc))
    lines = _verdicts(mine, gpu, Br, Bc)
    for n, (text, color) in enumerate(lines):
        fig.text(0.545, 0.85 - 0.083 * n, text, color=color, va="top", fontsize=9 if n else 10,
                 fontweight="normal" if n else "bold")
    _parts(fig.add_axes((0.63, 0.06, 0.30, 0.3)), mine)
    return theme.describe(fig, f"Tile lab. {title}. " + "; ".join(text for text, _ in lines)
                          + (f". Best of the map: {' and '.join(f'{r}×{c}' for r, c in best)},"
                             f" {1e3 * times[best[0]]:.2f} ms."
                             if best else ". No tile of the map fits."))


def _map(ax, times, rows, columns, chosen):
    """Draw predicted milliseconds over tile heights; return the best tiles, several if they tie."""
    fitting = {tile: s for tile, s in times.items() if math.isfinite(s)}
    least = min(fitting.values(), default=math.inf)
    best = [tile for tile, s in fitting.items() if s <= least * (1 + 1e-9)]
    for (Br, Bc), s in times.items():
        x, y = columns.index(Bc), rows.index(Br)
        fits = math.isfinite(s)
        color = _SLOWER(min(1.0, float(np.log(s / least) / np.log(4)))) if fits else "#FFFFFF"
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=color, ec="white", lw=1))
        if fits:
            ax.text(x, y, f"{1e3 * s:.2f}", ha="center", va="center_baseline", fontsize=9,
                    color=theme.ink_on(color), fontweight="bold" if (Br, Bc) in best else None)
        else:
            ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc="none", lw=0, hatch="////",
                                   ec=theme.tint(OVER, 0.45)))
        if (Br, Bc) == chosen:
            ax.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, ec=INK, lw=2))
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5), xlabel="Bc, keys per tile",
           ylabel="Br, queries per tile")
    ax.set_xticks(range(len(columns)), [str(b) for b in columns])
    ax.set_yticks(range(len(rows)), [str(b) for b in rows])
    ax.set_title("predicted ms: yours framed, the best bold", fontsize=SMALL, color=GREY)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return best


def _verdicts(mine, gpu, Br, Bc) -> list[tuple[str, str]]:
    """Return the sentences about one configuration and their colors; red is what does not go."""
    head = (f"{Br} × {Bc}: {1e3 * mine.time_s:.2f} ms, longest: {mine.bound}" if mine.per_sm
            else f"{Br} × {Bc} does not fit")
    room = f"{mine.shared_bytes / 1024:,.0f} of {gpu.sram_bytes / 1024:,.0f} KiB of shared memory"
    over = mine.shared_bytes > gpu.sram_bytes
    registers = f"{mine.registers} of {model.MOST_REGISTERS} registers a thread"
    spilled = mine.spilled_words
    lines = [(head, INK if mine.per_sm else OVER), (room, OVER if over else INK),
             (registers + (f": {spilled} spill" if spilled else ""), OVER if spilled else INK)]
    if mine.per_sm:
        lines.append((f"{mine.per_sm} program{'s' * (mine.per_sm > 1)} per SM, limited by {mine.limit}",
                      INK if mine.per_sm > 1 else OVER))
        w = mine.waves
        count = f"{w.waves:,} wave{'s' * (w.waves > 1)} of {w.slots:,}"
        lines.append((f"{count}, the last holds {w.last:,}", INK if w.efficiency >= 0.8 else OVER))
    return lines


def _parts(ax, mine) -> None:
    """Draw the four parts of the prediction as bars, in milliseconds."""
    parts = mine.seconds or dict.fromkeys(_PARTS, 0.0)
    longest = max(parts.values())
    for y, (name, color) in enumerate(_PARTS.items()):
        ax.barh(y, 1e3 * parts[name], height=0.7, color=color, ec=theme.EDGE, lw=0.5,
                hatch=_HATCH[name], gid=f"part {name}")
        ax.text(1e3 * (parts[name] + 0.03 * (longest or 1)), y,
                f"{1e3 * parts[name]:.2f} ms" if mine.per_sm else "–", va="center_baseline",
                fontsize=SMALL, fontweight="bold" if parts[name] == longest and longest else None)
    ax.set(ylim=(3.6, -0.6), xlim=(0, 1.35e3 * (longest or 1)), xticks=[])
    ax.set_yticks(range(len(_PARTS)), list(_PARTS), fontsize=SMALL)
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)
