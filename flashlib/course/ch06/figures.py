"""Blocks: what a causal mask makes of the tiles, and the block-size lab of chapter 06."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from flashlib import hardware
from flashlib.course.plots import stage, theme
from flashlib.course.plots.causal import face, tile_kinds
from flashlib.course.plots.parts import bare, cells, heading, sentences
from flashlib.course.plots.region import _LESS_MORE
from flashlib.course.plots.roofline import decades
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, human_bytes, human_count, styled
from flashlib.course.plots.traffic import sram_gauge, stack
from flashlib.machine.traffic import Traffic
from flashlib.models.roofline import ridge, time_s


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
def block_lab(costs: Mapping[str, Traffic], held: Sequence[tuple], capacity: int, gpu, *, title: str,
              what: str, ideal_fits: bool) -> Figure:
    """Draw what a choice of blocks costs: traffic, SRAM, and the place on the roofline.

    Args:
        costs: what "ideal", "same blocks" and, last, the algorithm move and compute.
        held: the tiles in SRAM, (name, shape, bytes).  capacity: of that SRAM, in bytes.
        gpu: whose roofline it is.
        title, what: the line on top, and what the alt text says of the choice.
        ideal_fits: whether the ideal would fit into SRAM, too.
    """
    over = sum(size for _, _, size in held) - capacity
    fig = theme.figure(4.75, layout=None)
    heading(fig, title, y=0.975)
    _bars(fig.add_axes((0.012, 0.665, 0.976, 0.25)), costs)
    sram_gauge(held, capacity, ax=fig.add_axes((0.012, 0.425, 0.976, 0.2)))
    _roof(fig.add_axes((0.012, 0.02, 0.575, 0.395)), gpu, costs)
    lines = _verdicts(list(costs)[-1], costs, gpu, over, ideal_fits)
    said = sentences(fig, lines, 0.625, 0.335, 0.062)
    return theme.describe(fig, f"Block-size lab. {what}: {said}.")


def _bars(ax, costs) -> None:
    """Draw the stacked bars without an axis: the totals stand at their ends."""
    longest = max(cost.hbm_bytes for cost in costs.values())
    inch = longest / 4.3
    ax.set(xlim=(-0.9 * inch, 5.98 * inch), ylim=(len(costs) - 0.2, -0.55))
    ax.axis("off")
    reference = costs["ideal"].hbm_bytes
    for y, (label, cost) in enumerate(costs.items()):
        ax.text(-0.1 * inch, y, label, ha="right", va="center", fontsize=9)
        end = stack(ax, y, cost.by_tensor, height=0.66, inch=inch)
        total = ax.text(end + 0.1 * inch, y, human_bytes(end), va="center", fontweight="bold")
        if y:
            ratio = end / reference
            width = theme.text_width(total.get_text(), 9) * 1.15 + 0.22
            ax.text(end + width * inch, y, f"{ratio:.2f} × ideal", va="center", fontsize=SMALL,
                    color=OVER if ratio > 1 and y == len(costs) - 1 else GREY)


def _roof(ax, gpu, costs, dtype="float16") -> None:
    """Draw the roofline with decades for ticks by hand: a tenth of the time of real axes."""
    points, (x0, x1, low, top, knee) = decades(ax, gpu, costs, dtype, reach=(0.0, 0.15), depth=0.35,
                                               ticks=(0.08, 0.13, 0.92), side=True)
    ax.set(xlim=(x0 - 0.56, x1 + 0.05), ylim=(low - 0.95, top + 1.75))
    note = {"fontsize": SMALL, "color": GREY}
    for y in range(int(np.ceil(low + 0.1)), int(top) + 1):
        ax.plot([x0 - 0.04, x0], [y, y], color="#555555", lw=0.8)
        ax.text(x0 - 0.07, y, human_count(10.0**y), ha="right", va="center_baseline", **note)
    ax.text(x0 - 0.5, top + 0.3, "attainable\nFLOP/s", ha="left", va="bottom", fontsize=SMALL,
            color=INK)
    ax.text(knee + 0.06, top - 0.14, f"ridge: {ridge(gpu, dtype):,.0f}", ha="left", va="top", **note)
    speed = hardware.human(float(gpu.hbm_bytes_per_s), "B/s")
    peak = hardware.human(float(gpu.matmul_flops_per_s[dtype]), "FLOP/s")
    ax.text(x0 + 0.45, low + 0.12, f"waits for memory: {speed}", va="bottom", ha="left", **note)
    ax.text(x1 - 0.05, low + 0.12, f"waits for arithmetic:\n{peak}", va="bottom", ha="right", **note)
    for n, (label, (x, y)) in enumerate(sorted(points.items(), key=lambda p: p[1])):
        look = theme.version_style("standard" if label in ("ideal", "same blocks") else label)
        face = "white" if label == "ideal" else look["color"]
        ax.plot([x], [y], ms=8, ls="none", zorder=5, marker=look["marker"], mfc=face, mew=1.3,
                mec=look["color"] if label == "ideal" else "white", gid=f"point {label}")
        level = top + 0.42 + 0.5 * n
        ax.plot([x, x], [level, y], color="#9A9A9A", lw=0.7, zorder=3)
        side = "center" if n == 1 or x < x0 + 0.9 else "right" if n == 0 else "left"
        ax.text(max(x, x0 + 0.45) if side == "center" else x, level, label, ha=side, va="center",
                fontsize=SMALL, zorder=6,
                bbox={"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.85})


def _verdicts(name, costs, gpu, over, ideal_fits) -> list[tuple[str, str]]:
    """Return the lines of text beside the roofline, with their colors."""
    flash = costs[name]
    to_ideal, to_same = (flash.hbm_bytes / costs[b].hbm_bytes for b in ("ideal", "same blocks"))
    least = time_s(flash, gpu, "float16")
    fits = (f"{gpu.name}: {over:,} B too many" if over > 0 else f"{gpu.name}: {name} fits",
            OVER if over > 0 else INK)
    return [fits,
            (f"{to_ideal:.2f} × the ideal, which {'fits too' if ideal_fits else 'does not fit'}",
             OVER if to_ideal > 1 else INK),
            (f"{to_same:.2f} × standard, same blocks", OVER if to_same > 1 else INK),
            (f"intensity {flash.intensity:,.0f} FLOP/B, {_side(flash.intensity, gpu)}", INK),
            (f"at best {_duration(least.time_s)}, {_bound(least.bound)}", GREY)]


def _duration(seconds) -> str:
    for size, unit in ((1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:,.{1 if seconds < 100 * size else 0}f} {unit}"
    return f"{1e9 * seconds:,.0f} ns"


def _side(intensity, gpu) -> str:
    return "left of the ridge" if intensity < ridge(gpu, "float16") else "right of the ridge"


def _bound(part) -> str:
    return {"memory": "waiting for memory", "matmul": "bound by matmul",
            "vector": "bound by vector work", "exp": "bound by exponentials"}.get(part, part)


@styled
def ratio_maps(Br_values, Bc_values, ratios: Mapping[str, np.ndarray], *, fits=None) -> Figure:
    """Draw several ratios over the same block sizes side by side, on one color scale.

    Args:
        Br_values, Bc_values: the block sizes, upwards and to the right.
        ratios: {title: array (len(Br_values), len(Bc_values))}; 1 is as much as the baseline.
        fits: booleans of that shape; blocks that do not fit into SRAM are crossed out.
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
    rows, cols = ratio.shape
    log = np.log2(ratio)
    norm = TwoSlopeNorm(0, -4, 4)
    colors = [[_LESS_MORE(norm(np.clip(v, -4, 4))) for v in line] for line in log]
    texts = [[_short(v) if fit else "" for v, fit in zip(*pair, strict=True)]
             for pair in zip(ratio, fits, strict=True)]
    crossed = {"fc": (1, 1, 1, 0.75), "ec": OVER, "lw": 0, "hatch": "xx"}
    cells(ax, colors, texts, Bc_values, Br_values, size=theme.TINY, lw=0.8,
          over={(i, j): crossed for i, j in np.argwhere(~fits).tolist()})
    edges = [((j - 0.5, j - 0.5), (i - 0.5, i + 0.5)) for i in range(rows) for j in range(1, cols)
             if (log[i, j] > 0) != (log[i, j - 1] > 0)]
    edges += [((j - 0.5, j + 0.5), (i - 0.5, i - 0.5)) for i in range(1, rows) for j in range(cols)
              if (log[i, j] > 0) != (log[i - 1, j] > 0)]
    for x, y in edges:
        ax.plot(x, y, color=INK, lw=2, solid_capstyle="projecting", zorder=5)


def _short(ratio) -> str:
    return f"{ratio:.2f}"[1:] if ratio < 0.995 else f"{ratio:.2f}" if ratio < 1.05 else f"{ratio:.2g}"
