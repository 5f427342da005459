"""The figures of chapter 02: a tiled matmul replayed, its intensity by tile, and its lab."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from flashlib import hardware
from flashlib.course.plots import stage, theme
from flashlib.course.plots.parts import beside, heading, rect, sentences
from flashlib.course.plots.replay import Replay
from flashlib.course.plots.roofline import decades
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, Figure, human_bytes, styled, text_width
from flashlib.course.plots.traffic import sram_gauge, stack
from flashlib.machine.trace import Trace
from flashlib.machine.traffic import Traffic
from flashlib.models.roofline import ridge, time_s

_LOOK = {"facecolor": theme.tint("#8A8A8A", 0.8), "edgecolor": "#A8A8A8"}


@styled
def matmul_frames(trace: Trace | Replay, M: int, N: int, K: int, count: int = 4) -> Figure:
    """Draw a matmul at `count` moments side by side, the last one the end.

    A lies left of C and B above it, as in the row-times-column rule. A number in a tile of A or B
    says how often it was loaded so far; a tile in SRAM is framed. Below, the HBM bytes so far.

    Args:
        trace: `machine.trace` after `naive_matmul` or `tiled_matmul`.
        M, N, K: rows of A, columns of B, and the length that they share.
    """
    replay = _replay(trace, M, N)
    frames = replay.frames
    picks = np.unique(np.round(np.linspace(0, len(frames) - 1, count)).astype(int))
    moments = [frames[n] for n in picks]
    gap = 0.26
    width = (theme.WIDTH - 0.2 - gap * (len(moments) - 1)) / len(moments)
    tall = width * (M + K) / (N + K)
    height = tall + 1.3
    fig = theme.figure(height, layout=None)
    words = []
    for n, upto in enumerate(moments):
        left, moment = 0.1 + n * (width + gap), replay.at(upto)
        _three(stage.frame(fig, left, 0.9, width, tall), replay, moment, M, N, K, (width, tall))
        stage.byte_bars(stage.frame(fig, left, 0.6, width, 0.2), [("", moment)],
                        replay.total_bytes, width, small=True)
        last = upto == len(replay.trace)
        name = "the end" if last else f"step {picks[n] + 1} of {len(frames) - 1}"
        fig.text(left / theme.WIDTH, (1.02 + tall) / height, name, fontsize=9, fontweight="bold")
        fig.text(left / theme.WIDTH, 0.43 / height, f"{human_bytes(moment.hbm_bytes)} moved",
                 fontsize=SMALL, va="center")
        words.append(f"{name}: {human_bytes(moment.hbm_bytes)} moved")
    _key(fig)
    return theme.describe(fig, f"A matmul of {M} × {K} times {K} × {N}, tile by tile. "
                               f"{'; '.join(words)}. {_loads(replay)}.")


@styled
def matmul_visits(trace: Trace | Replay, M: int, N: int, K: int, upto: int | None = None, *,
                  sram_bytes: int | None = None) -> Figure:
    """Draw one moment of a matmul large: A, B and C, what SRAM holds, the bytes so far.

    The arguments are those of `matmul_frames`; `upto` is how many events to replay, None for all.
    """
    replay = _replay(trace, M, N)
    moment = replay.at(upto)
    scale = min(4.2 / (N + K), 3.4 / (M + K))
    width, tall = scale * (N + K), scale * (M + K)
    height = tall + 1.22
    fig = theme.figure(height, layout=None)
    _three(stage.frame(fig, 0.14, 0.8, width, tall), replay, moment, M, N, K, (width, tall))
    stage.sram(stage.frame(fig, 4.55, 0.95, 2.31, tall - 0.15), replay, moment, sram_bytes,
               (2.31, tall - 0.15))
    stage.byte_bars(stage.frame(fig, 0.14, 0.14, 6.72, 0.34), [("", moment)], replay.total_bytes,
                    6.72, note="HBM bytes so far")
    done = sum(upto is None or frame <= moment.upto for frame in replay.frames[:-1])
    status = f"step {done} of {len(replay.frames) - 1}"
    stage.heading(fig, 0.14, height - 0.26, moment.kernel, status)
    return theme.describe(fig, f"{moment.kernel}, {status}: {human_bytes(moment.hbm_bytes)}"
                               f" of {human_bytes(replay.total_bytes)} moved.")


def _replay(trace, M, N) -> Replay:
    return trace if isinstance(trace, Replay) else Replay(trace, M, N, "C")


def _loads(replay) -> str:
    """Say how often the tiles of A and of B are loaded in all."""
    times = _times(replay, len(replay.trace))
    return " and ".join(f"a tile of {name} is loaded {_range(times, name)} times" for name in "AB")


def _range(times, name) -> str:
    counts = sorted({count for (tensor, *_), count in times.items() if tensor == name})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "0"


def _times(replay, upto) -> Counter:
    return Counter((e.tensor, e.rows, e.cols) for e in replay.trace.events[:upto] if e.op == "load")


def _key(fig) -> None:
    ax = stage.frame(fig, 0.1, 0.05, theme.WIDTH - 0.2, 0.2)
    theme.patch_key(ax, [("in HBM, with how often it was loaded", {**_LOOK, "hatch": "////"}),
                         ("in SRAM", {"facecolor": "#8A8A8A", "edgecolor": INK, "lw": 1.6}),
                         ("not written yet", {"facecolor": "white", "edgecolor": "#A8A8A8"})],
                    at=(1.0, 0.0))


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
        hatch = None if framed or fine else "////"
        edge = "face" if fine else theme.tint(hue, 0.25 if name == "C" else 0.45)
        rect(ax, left, top, w, h, facecolor=color, edgecolor=edge, lw=0.4, hatch=hatch,
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
                      gpus: Mapping[str, tuple[float, int]]) -> Figure:
    """Draw arithmetic intensity over the edge of a square tile, with the ridges of GPUs.

    Args:
        edges, predicted: tile edges, rising, and the closed form's FLOP per byte at each; give
            every edge, since tiles are whole and the curve has stairs. A hollow circle stands at
            the first edge that reaches a ridge.
        counted: {edge: FLOP per byte} as a machine counted.
        gpus: {name: (ridge in FLOP per byte, largest square tile that fits its SRAM)}.
    """
    fig, ax = theme.subplots(height=3.5)
    edges, predicted = np.asarray(edges, float), np.asarray(predicted, float)
    ax.plot(edges, predicted, color=INK, lw=1.5, ls=(0, (4, 2)), gid="predicted", zorder=3)
    ax.plot(list(counted), list(counted.values()), ls="none", marker="o", ms=6, color=INK,
            mec="white", gid="counted", zorder=4)
    ax.set(xscale="log", yscale="log", xlim=(edges[0] * 0.85, edges[-1] * 1.9),
           xlabel="edge b of the tile of C (Bm = Bn = b)", ylabel="FLOP per byte of HBM")
    ticks = [int(b) for b in edges if np.log2(b) == int(np.log2(b))]
    ax.set_xticks(ticks, [f"{b:,}" for b in ticks])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:,g}")
    order = sorted(gpus.items(), key=lambda g: g[1][0])
    hues = {name: theme.mix("#440154", "#35B779", n / max(len(order) - 1, 1))
            for n, (name, _) in enumerate(order)}
    needed: dict[str, int] = {}
    for n, (name, (height, fits)) in enumerate(order):
        color, here = hues[name], float(np.interp(fits, edges, predicted))
        ax.hlines(height, edges[0] * 0.85, edges[-1] * 1.1, color=color, lw=1.1)
        beside(ax, f"{name}, ridge {height:.0f}", (edges[-1] * 1.12, height),
               (0, 5 * (n - (len(order) - 1) / 2)), fontsize=SMALL, color=theme.readable(color))
        ax.vlines(fits, here, height, color=color, lw=1.3, ls=(0, (1, 1.2)))
        ax.plot([fits], [here], marker="s", ms=7, color=color, mec="white", zorder=5, ls="none")
        if (predicted >= height).any():
            needed[name] = int(edges[np.argmax(predicted >= height)])
            ax.plot([needed[name]], [height], marker="o", ms=6, mfc="white", mec=color, mew=1.4,
                    zorder=5, ls="none", gid=f"needed {name}")
    right = max(fits for _, fits in gpus.values()) * 1.35
    for n, (name, (_, fits)) in enumerate(sorted(gpus.items(), key=lambda g: -g[1][1])):
        here = float(np.interp(fits, edges, predicted))
        ax.annotate(f"{name}: SRAM is full at b = {fits}", (fits, here),
                    xytext=(right, predicted[-1] / 9 / 1.9**n), fontsize=SMALL,
                    color=theme.readable(hues[name]), va="center",
                    arrowprops={"arrowstyle": "-", "color": hues[name], "lw": 0.6, "shrinkB": 4,
                                "relpos": (0, 0.5)})
    ax.text(1.0, 1.03, "● counted    ╌╌ predicted", transform=ax.transAxes, ha="right",
            va="bottom", fontsize=SMALL, color=GREY)
    words = "; ".join(f"{name}: ridge {r:.0f}, SRAM full at b = {b}"
                      + (f", reached at b = {needed[name]}" if name in needed else "")
                      for name, (r, b) in gpus.items())
    return theme.describe(fig, f"Intensity of a tiled matmul over the tile's edge: "
                               f"{predicted[0]:.2g} at {edges[0]:g}, {predicted[-1]:.3g} at "
                               f"{edges[-1]:g}. {words}.")


@styled
def matmul_lab(costs: Mapping[str, Traffic], held: Sequence[tuple], gpu, *, title: str,
               what: str) -> Figure:
    """Draw what a choice of tiles costs a matmul: traffic, SRAM, and the place on the roofline.

    Args:
        costs: what "each once", "these tiles" and "naive" move and compute.
        held: the tiles in SRAM, (name, shape, bytes).
        gpu: whose roofline it is; its shared memory per block is the SRAM.
        title, what: the line on top, and what the alt text says of the choice.
    """
    over = sum(bytes_ for *_, bytes_ in held) - gpu.sram_bytes
    fig = theme.figure(4.75, layout=None)
    heading(fig, title, y=0.975)
    _bars(fig.add_axes((0.012, 0.665, 0.976, 0.25)), costs)
    sram_gauge(held, gpu.sram_bytes, ax=fig.add_axes((0.012, 0.425, 0.976, 0.2)))
    _roof(fig.add_axes((0.012, 0.02, 0.56, 0.375)), gpu, costs)
    said = sentences(fig, _verdicts(costs, gpu, over), 0.62, 0.345, 0.062)
    return theme.describe(fig, f"Matmul lab. {what}: {said}.")


def _bars(ax, costs) -> None:
    """Draw the tiles' bar on the scale of the naive one where that fits, and cut it where not."""
    ideal, tiled = (costs[name].hbm_bytes for name in ("each once", "these tiles"))
    longest = max(ideal, tiled)
    inch = longest / 4.0
    ax.set(xlim=(-0.95 * inch, 5.88 * inch), ylim=(len(costs) - 0.2, -0.55))
    ax.axis("off")
    for y, (label, cost) in enumerate(costs.items()):
        ax.text(-0.1 * inch, y, label, ha="right", va="center", fontsize=9)
        end = cost.hbm_bytes
        if end <= longest:
            stack(ax, y, cost.by_tensor, height=0.66, inch=inch)
        else:                                          # off the scale: a bar that is torn off
            end = 4.0 * inch
            for part, name in enumerate("AB"):
                rect(ax, 2 * inch * part, y - 0.33, 2 * inch, 0.66,
                     fc=theme.tint(theme.tensor_color(name), 0.5), lw=0)
            for x in (3.55, 3.68):
                ax.plot([(x - 0.05) * inch, (x + 0.05) * inch], [y + 0.42, y - 0.42],
                        color="white", lw=3.5)
        total = ax.text(end + 0.1 * inch, y, human_bytes(cost.hbm_bytes), va="center",
                        fontweight="bold")
        if y:
            ratio = cost.hbm_bytes / ideal
            beside(ax, f"× {ratio:,.{0 if ratio >= 100 else 1}f}", (1, 0.5), (8, 0), xycoords=total,
                   fontsize=SMALL, color=GREY)


def _roof(ax, gpu, costs) -> None:
    """Draw the roofline in decades, without an axis: a tenth of the time of one with ticks."""
    points, (x0, x1, low, top, _) = decades(ax, gpu, costs, "float16", reach=(-0.5, 0.25), depth=1.3,
                                            ticks=(0.09, 0.15, 1.08))
    ax.set(xlim=(x0 - 0.12, x1 + 0.05), ylim=(low - 1.2, top + 1.0))
    peak = hardware.human(float(gpu.matmul_flops_per_s["float16"]), "FLOP/s")
    ax.text(x1, top + 0.3, f"{gpu.name}: {peak}, "
            f"{hardware.human(float(gpu.hbm_bytes_per_s), 'B/s')}", ha="right", va="bottom",
            fontsize=SMALL, fontweight="bold", color="#444444")
    looks = {"each once": ("s", "white", GREY), "naive": ("X", GREY, "white"),
             "these tiles": ("o", "#31688E", "white")}
    last, level = -9.0, 0
    for label, (x, y) in sorted(points.items(), key=lambda p: p[1]):
        marker, face, rim = looks[label]
        ax.plot([x], [y], ms=9 if label == "these tiles" else 8, ls="none", marker=marker, mfc=face,
                mec=rim, mew=1.2, zorder=6 if label == "these tiles" else 5, gid=f"point {label}")
        level = level + 1 if x - last < 1.0 else 0
        last, depth = x, low + 0.28 + 0.48 * level
        ax.plot([x, x], [depth + 0.1, y], color="#9A9A9A", lw=0.7, zorder=3)
        ax.text(x, depth, label, ha="center", va="center", fontsize=SMALL, zorder=7,
                bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.85})


def _verdicts(costs, gpu, over) -> list[tuple[str, str]]:
    """Return the lines of text beside the roofline, with their colors."""
    tiled, edge = costs["these tiles"], ridge(gpu, "float16")
    least = time_s(tiled, gpu, "float16")
    what = {"memory": "waiting for memory", "matmul": "bound by matmul"}[least.bound]
    saved = costs["naive"].hbm_bytes / tiled.hbm_bytes
    return [(f"does not fit: {over:,} B too many", OVER) if over > 0 else ("the tiles fit", INK),
            ("as many bytes as naive" if saved < 1.005
             else f"{saved:,.3g} times fewer bytes than naive", INK),
            (f"{tiled.hbm_bytes / costs['each once'].hbm_bytes:,.3g} × each matrix once", INK),
            (f"intensity {tiled.intensity:,.3g} FLOP/B, ridge {edge:.0f}", INK),
            (f"at best {_duration(least.time_s)}, {what}", GREY)]


def _duration(seconds) -> str:
    return f"{1e3 * seconds:,.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:,.3g} µs"
