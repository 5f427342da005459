"""The figures of chapter 02: a tiled matmul replayed, its intensity by tile, and its lab."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from flashlib.course.plots import stage, theme
from flashlib.course.plots.animation import Animation, animate
from flashlib.course.plots.parts import bare, beside, heading, rect, sentences
from flashlib.course.plots.replay import Replay
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, Figure, human_bytes, styled, text_width
from flashlib.course.plots.traffic import sram_gauge
from flashlib.machine.trace import Trace
from flashlib.machine.traffic import Traffic
from flashlib.models.roofline import ridge


@styled
def matmul_visits(trace: Trace | Replay, M: int, N: int, K: int, upto: int | None = None, *,
                  naive: Traffic, sram_bytes: int | None = None) -> Figure:
    """Draw one moment of a matmul: A, B and C, what SRAM holds, and the bytes so far.

    A lies left of C and B above it, as in the row-times-column rule. A number in a tile of A or B
    says how often it was loaded so far; a tile in SRAM is framed.

    Args:
        trace: `machine.trace` after `tiled_matmul`.
        M, N, K: rows of A, columns of B, and the length that they share.
        upto: how many events to replay, None for all.
        naive: what one thread an element moves in all, for the bar below.
        sram_bytes: capacity of the SRAM, drawn as a line.
    """
    replay = trace if isinstance(trace, Replay) else Replay(trace, M, N, "C")
    moment = replay.at(upto)
    scale = min(4.2 / (N + K), 3.4 / (M + K))
    width, tall, left = scale * (N + K), scale * (M + K), 1.45
    height = tall + 1.62
    fig = theme.figure(height, layout=None)
    _three(stage.frame(fig, 0.14, 1.2, width, tall), replay, moment, M, N, K, (width, tall))
    stage.sram(stage.frame(fig, 4.55, 1.35, 2.31, tall - 0.15), replay, moment, sram_bytes,
               (2.31, tall - 0.15))
    least = SimpleNamespace(moved=naive.by_tensor, hbm_bytes=naive.hbm_bytes)
    bars = stage.frame(fig, left, 0.1, 6.86 - left, 0.7)
    stage.byte_bars(bars, [("tiles", moment), ("a thread an element", least)], naive.hbm_bytes,
                    6.86 - left, note="bytes that crossed so far")
    done = sum(upto is None or frame <= moment.upto for frame in replay.frames[:-1])
    status = f"step {done} of {len(replay.frames) - 1}"
    stage.heading(fig, 0.14, height - 0.26, moment.kernel, status)
    return theme.describe(fig, f"{moment.kernel}, {status}: {human_bytes(moment.hbm_bytes)}"
                               f" of {human_bytes(replay.total_bytes)} moved; one thread an element"
                               f" moves {human_bytes(naive.hbm_bytes)}.")


def film(trace: Trace, M: int, N: int, K: int, *, naive: Traffic, sram_bytes: int) -> Animation:
    """Return all moments of a matmul as an animated picture; the arguments are `matmul_visits`'s."""
    replay = Replay(trace, M, N, "C")
    times = _times(replay, len(replay.trace))
    most = {name: max(n for (tensor, *_), n in times.items() if tensor == name) for name in "AB"}
    alt = (f"A matmul of {M} × {K} times {K} × {N}, tile by tile, in {len(replay.frames) - 1} steps."
           f" In the end a tile of A was loaded {most['A']} times and a tile of B {most['B']} times,"
           f" and {human_bytes(replay.total_bytes)} moved; one thread an element moves"
           f" {human_bytes(naive.hbm_bytes)}.")
    return animate((matmul_visits(replay, M, N, K, at, naive=naive, sram_bytes=sram_bytes)
                    for at in replay.frames), alt=alt, colors=128, still=len(replay.frames) // 2)


def _times(replay, upto) -> Counter:
    return Counter((e.tensor, e.rows, e.cols) for e in replay.trace.events[:upto] if e.op == "load")


def _three(ax, replay, moment, M, N, K, size) -> None:
    """Draw A, B and C around their corner, into bare axes of `size` inches."""
    gap = 0.05 * (N + K)
    s = size[0] / (N + K + gap)
    ax.set(xlim=(0, size[0]), ylim=(size[1], 0))
    y0 = size[1] - s * M
    origin = {"A": (0.0, y0), "B": (s * (K + gap), y0 - s * (K + gap)), "C": (s * (K + gap), y0)}
    origin["B"] = (origin["B"][0], max(origin["B"][1], 0.0))
    extent = {"A": (M, K), "B": (K, N), "C": (M, N)}
    times, final = _times(replay, moment.upto), _times(replay, len(replay.trace))
    most = max(final.values(), default=1)
    live = {(e.tensor, e.rows, e.cols) for e in moment.sram}
    for name, (x, y) in origin.items():
        rows, cols = extent[name]
        rect(ax, x, y, s * cols, s * rows, fc="white", ec="#C4C4C4", lw=0.8)
        boxes = final if name != "C" else {("C", *region): 0 for region in _tiles_of_C(replay)}
        for tensor, r, c in boxes:
            if tensor == name:
                _tile(ax, name, r, c, x, y, s, times=times[tensor, r, c], most=most,
                      framed=(tensor, r, c) in live, stored=(r, c) in moment.stored.get("C", ()))
        bold = {"fontsize": 9, "fontweight": "bold", "color": INK}
        if name == "A":
            ax.text(x + s * cols / 2, y - 0.05, name, ha="center", va="bottom", **bold)
        elif name == "B":
            ax.text(x - 0.06, y + s * rows / 2, name, ha="right", va="center", **bold)
        elif size[0] > 3:
            ax.text(x + s * cols + 0.06, y + s * rows / 2, name, va="center", **bold)


def _tiles_of_C(replay) -> list:
    return list(dict.fromkeys((v.rows, v.cols) for v in replay.visits))


def _tile(ax, name, rows, cols, x, y, s, *, times, most, framed, stored) -> None:
    """Draw one tile: darker the oftener it was loaded, framed while it is in SRAM."""
    hue = theme.tensor_color(name)
    left, top = x + s * cols[0], y + s * rows[0]
    w, h = s * (cols[1] - cols[0]), s * (rows[1] - rows[0])
    share = 0.55 + 0.33 * (1 - times / most)
    color = hue if framed else theme.tint(hue, 0.4 if name == "C" else share)
    fine = min(w, h) < 0.06
    if name != "C" or stored or framed:
        edge = "face" if fine else theme.tint(hue, 0.25 if name == "C" else 0.45)
        rect(ax, left, top, w, h, facecolor=color, edgecolor=edge, lw=0.4,
             gid=f"{name} {'sram' if framed else 'hbm'}")
    elif not fine:
        rect(ax, left, top, w, h, fill=False, edgecolor="#DADADA", lw=0.5)
    if framed:
        rect(ax, left, top, w, h, fill=False, ec=INK, lw=1.6, zorder=6)
    if times and text_width(str(times), SMALL) + 0.05 < w and h > 0.14:
        ax.text(left + w / 2, top + h / 2, str(times), ha="center", va="center_baseline",
                fontsize=SMALL, color=theme.ink_on(color), gid="times", zorder=7,
                bbox=None if framed else {"boxstyle": "round,pad=0.1", "fc": color, "ec": "none"})


@styled
def intensity_by_tile(edges: Sequence[int], predicted: Sequence[float], counted: Mapping[int, float],
                      gpu: tuple[str, float, int], *, band: tuple[str, float, float],
                      recorded: tuple[str, float, float], title: str = "") -> Figure:
    """Draw FLOP per byte at the SMs over the edge of a square tile, with the ridges of a GPU.

    Args:
        edges, predicted: tile edges, rising, and the closed form's FLOP per byte at each; give
            every edge, since tiles are whole and the curve has stairs. A hollow circle stands at
            the first edge that reaches the ridge.
        counted: {edge: FLOP per byte} as a machine counted.
        gpu: its name, the ridge of HBM in FLOP per byte, the largest square tile that fits its SRAM.
        band: a name and the lowest and highest ridge of a faster memory.
        recorded: a name, the edge and the FLOP per byte of a kernel that ran.
        title: what the picture shows, in bold above it.
    """
    fig, ax = theme.subplots(height=3.6)
    ax.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=12)
    ax.axhspan(*band[1:], color=theme.SRAM["facecolor"], zorder=0, gid="band")
    ax.text(edges[0], np.sqrt(band[1] * band[2]), band[0], fontsize=SMALL, va="center", color=INK)
    edges, predicted = np.asarray(edges, float), np.asarray(predicted, float)
    ax.plot(edges, predicted, color=INK, lw=1.5, ls=(0, (4, 2)), gid="predicted", zorder=3)
    ax.plot(list(counted), list(counted.values()), ls="none", marker="o", ms=6, color=INK,
            mec="white", gid="counted", zorder=4)
    ax.set(xscale="log", yscale="log", xlim=(edges[0] * 0.85, edges[-1] * 1.9),
           xlabel="edge b of the tile of C (Bm = Bn = b)", ylabel="FLOP per byte that an SM loads")
    ticks = [int(b) for b in edges if np.log2(b) == int(np.log2(b))]
    ax.set_xticks(ticks, [f"{b:,}" for b in ticks])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:,g}")
    (name, height, fits), color, reached = gpu, "#440154", ""
    here, point = float(np.interp(fits, edges, predicted)), {"ls": "none", "zorder": 5}
    ax.hlines(height, edges[0] * 0.85, edges[-1] * 1.1, color=color, lw=1.1)
    beside(ax, f"{name}, HBM: {height:.0f}", (edges[-1] * 1.12, height), (0, 0), fontsize=SMALL,
           color=color)
    ax.vlines(fits, here, height, color=color, lw=1.3, ls=(0, (1, 1.2)))
    ax.plot([fits], [here], marker="s", ms=7, color=color, mec="white", **point)
    if (predicted >= height).any():
        needed = int(edges[np.argmax(predicted >= height)])
        ax.plot([needed], [height], marker="o", ms=6, mfc="white", mec=color, mew=1.4, gid="needed",
                **point)
        beside(ax, f"b = {needed} would reach it", (needed, height), (-8, 8), ha="right",
               fontsize=SMALL, color=color)
        reached = f", reached at b = {needed}"
    what, edge, rate = recorded
    ax.plot([edge], [rate], marker="*", ms=12, color="#CC3311", mec="white", gid="recorded", **point)
    for n, (text, at, ink, weight) in enumerate((
            (f"{name}: SRAM is full at b = {fits}", (fits, here), color, "normal"),
            (f"{what}: {rate:.0f}", (edge, rate), "#A8280C", "bold"))):
        ax.annotate(text, at, xytext=(fits * 1.35, predicted[-1] / 9 / 1.9**n), fontsize=SMALL,
                    color=ink, fontweight=weight, va="center", arrowprops={
                        "arrowstyle": "-", "color": ink, "lw": 0.6, "shrinkB": 5, "relpos": (0, 0.5)})
    ax.text(0.99, 0.04, "● counted    ╌╌ predicted    ★ recorded", transform=ax.transAxes, ha="right",
            va="bottom", fontsize=SMALL, color=GREY)
    return theme.describe(fig, f"Intensity of a tiled matmul over the tile's edge: "
                               f"{predicted[0]:.2g} at {edges[0]:g}, {predicted[-1]:.3g} at "
                               f"{edges[-1]:g}. {name}: ridge of HBM {height:.0f}, SRAM full at b = "
                               f"{fits}{reached}. {band[0]}: {band[1]:.0f} to {band[2]:.0f}."
                               f" {what}: {rate:.0f} at {edge:.0f}.")


@styled
def asked_and_arrived(kernels: Sequence[tuple[str, float, float, float]], title: str) -> Figure:
    """Draw what the loads of some kernels ask for and what arrives at the SMs, in bytes.

    Args:
        kernels: (name, bytes by the closed form, bytes from L2, seconds), each.
        title: what the picture shows, in bold above it.
    """
    fig, ax = theme.subplots(height=0.42 * len(kernels) + 1.15)
    ax.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=16)
    color, words = "#31688E", []
    for n, (name, asked, arrived, seconds) in enumerate(kernels):
        ax.plot([arrived, asked], [n, n], color="#C4C4C4", lw=3, zorder=1)
        ax.plot([asked], [n], ls="none", marker="o", ms=9, mfc="white", mec=GREY, mew=1.5,
                gid=f"asked {name}")
        ax.plot([arrived], [n], ls="none", marker="o", ms=7, color=color, zorder=3,
                gid=f"arrived {name}")
        beside(ax, human_bytes(arrived), (arrived, n), (-9, 0), ha="right", fontsize=9,
               fontweight="bold", color=color)
        if asked > 1.2 * arrived:
            beside(ax, human_bytes(asked), (asked, n), (9, 0), fontsize=9, color=GREY)
        ms = f"{seconds * 1e3:,.3g} ms"
        ax.text(1.0, n, ms, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=9)
        words.append(f"{name}: {human_bytes(asked)} asked for, {human_bytes(arrived)} arrived, {ms}")
    ax.text(1.0, -0.75, "time", transform=ax.get_yaxis_transform(), ha="right", va="center",
            fontsize=SMALL, color=GREY)
    first = kernels[0]
    beside(ax, "arrived from L2", (first[2], -0.75), (0, 0), ha="center", fontsize=SMALL, color=color)
    beside(ax, "asked for", (first[1], -0.75), (0, 0), ha="center", fontsize=SMALL, color=GREY)
    every = [size for _, *sizes, _ in kernels for size in sizes]
    ax.set(xscale="log", xlim=(min(every) / 5, max(every) * 8), ylim=(len(kernels) - 0.5, -1),
           xlabel="bytes that the SMs read")
    ax.set_yticks(range(len(kernels)), [name for name, *_ in kernels])
    ax.xaxis.set_major_locator(LogLocator())
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: human_bytes(v)))
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return theme.describe(fig, f"Bytes that matmul kernels read. {'; '.join(words)}.")


@styled
def matmul_lab(costs: Mapping[str, Traffic], held: Sequence[tuple], gpu, *, title: str,
               what: str) -> Figure:
    """Draw what a choice of tiles costs a matmul: bytes on an axis of its own shape, and SRAM.

    Args:
        costs: what "each matrix once", "these tiles" and "naive" move and compute, in this order.
        held: the tiles in SRAM, (name, shape, bytes).
        gpu: its shared memory per block is the SRAM.
        title, what: the line on top, and what the alt text says of the choice.
    """
    over = sum(bytes_ for *_, bytes_ in held) - gpu.sram_bytes
    fig = theme.figure(3.9, layout=None)
    heading(fig, title, y=0.97)
    _scale(fig.add_axes((0.03, 0.7, 0.94, 0.2)), costs, fits=over <= 0)
    sram_gauge(held, gpu.sram_bytes, ax=fig.add_axes((0.012, 0.3, 0.976, 0.26)))
    said = sentences(fig, _verdicts(costs, gpu, over), 0.012, 0.27, 0.068)
    return theme.describe(fig, f"Matmul lab. {what}: {said}.")


def _scale(ax, costs, *, fits) -> None:
    """Draw the bytes of the three on an axis whose ends are those of the shape, not of the tiles."""
    ideal, tiled, naive = (cost.hbm_bytes for cost in costs.values())
    ax.set(xlim=(0, max(naive, tiled) * 1.15), ylim=(-1.3, 1.5))
    if naive > 10 * ideal:
        ax.set(xscale="log", xlim=(ideal / 1.35, max(naive, tiled) * 1.35))
        subs = (1, 2, 5) if naive / ideal < 300 else (1,)
        ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
        ax.xaxis.set_minor_locator(NullLocator())
    bare(ax, "left")
    ax.set_yticks([])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: human_bytes(v)))
    ax.set_xlabel("bytes between L2 and the SMs")
    ax.hlines(0, ideal, naive, color="#C4C4C4", lw=5, zorder=1)
    for at, name, side in ((ideal, "each matrix once", "left"), (naive, "naive", "right")):
        ax.plot([at], [0], ls="none", marker="|", ms=18, mec=GREY, mew=2.5, gid=f"end {name}")
        ax.text(at, -0.5, f"{name}, {human_bytes(at)}", ha=side, va="top", fontsize=SMALL, color=GREY)
    color = "#31688E" if fits else OVER
    ax.plot([tiled], [0], ls="none", marker="o", ms=11, mfc=color if fits else "white", mec=color,
            mew=1.6, zorder=5, gid="these tiles")
    share = np.log(tiled / ideal) / np.log(naive / ideal)
    ax.text(tiled, 0.55, f"these tiles, {human_bytes(tiled)}", fontweight="bold", fontsize=9,
            color=color, ha="left" if share < 0.15 else "right" if share > 0.85 else "center")


def _verdicts(costs, gpu, over) -> list[tuple[str, str]]:
    """Return the lines of text below the gauge, with their colors."""
    once, tiled, naive = costs.values()
    height = f"HBM's ridge of {ridge(gpu, 'float16'):.0f}"
    saved = naive.hbm_bytes / tiled.hbm_bytes
    fed = (f"above {height}: HBM alone could feed it" if tiled.intensity >= ridge(gpu, "float16") else
           f"below {height}, as even each matrix once would be: no tile reaches it"
           if once.intensity < ridge(gpu, "float16") else
           f"below {height}: at full speed only if L2 answers a part")
    return [(f"does not fit: {over:,} B too many", OVER) if over > 0 else ("the tiles fit", INK),
            ("as many bytes as naive" if saved < 1.005
             else f"{saved:,.3g} times fewer bytes than naive", INK),
            (f"{tiled.hbm_bytes / once.hbm_bytes:,.3g} × each matrix once", INK),
            (f"{tiled.intensity:,.3g} FLOP per byte, {fed}", GREY)]
