"""The figures of chapter 07: what is kept for the backward pass, its loop orders, and its lab."""

from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from flashlib.course.plots import theme
from flashlib.course.plots.curves import spread
from flashlib.course.plots.parts import bare, beside, heading, rect, sentences
from flashlib.course.plots.replay import Replay
from flashlib.course.plots.stage import byte_bars, frame
from flashlib.course.plots.theme import EDGE, GREY, INK, OVER, SMALL, TINY, Figure, human_bytes, styled
from flashlib.course.plots.traffic import stack
from flashlib.machine.trace import Trace
from flashlib.machine.traffic import Traffic


@styled
def saved_memory(N: Sequence[int], curves: Mapping[str, Sequence[float]],
                 limits: Mapping[str, float], *,
                 fits: Mapping[str, Mapping[str, int]] | None = None) -> Figure:
    """Draw the bytes kept for the backward pass over N, with the memories of GPUs as lines.

    Args:
        N: sequence lengths.  curves: {label: bytes}; a label's version gives its color.
        limits: {GPU: bytes of its memory}.
        fits: {label: {GPU: longest N that fits}}, marked where curve and line cross.
    """
    fig, ax = theme.subplots(height=3.5)
    N = np.asarray(N, dtype=float)
    ax.set(xscale="log", yscale="log", xlabel="N, tokens in the sequence",
           ylabel="bytes kept between the passes")
    lowest = min(min(limits.values()) / 40, min(np.min(y) for y in curves.values()) * 4)
    top = max(limits.values()) * 25
    ax.set(xlim=(N[0], N[-1]), ylim=(lowest, top))
    for n, (label, y) in enumerate(curves.items()):
        look = theme.version_style(label, n)
        dash = (0, (5, 2)) if n and look["color"] in [
            theme.version_style(other)["color"] for other in list(curves)[:n]] else "-"
        ax.plot(N, y, color=look["color"], lw=2.2, ls=dash, gid=f"curve {label}", zorder=3)
        y = np.asarray(y, dtype=float)
        at = np.flatnonzero(y < top / 2.2)[-1]
        steep = at < len(N) - 1
        place = at if steep else (len(N) - 1) // 4         # left of the line, or right below it
        beside(ax, label, (N[place], y[place]), (-10, 4) if steep else (8, -4),
               va="center" if steep else "top", fontsize=9, fontweight="bold", zorder=6,
               color=theme.mix(look["color"], "#000000", 0.15), path_effects=theme.halo(),
               ha="right" if steep else "left")
    logs = np.log(sorted(limits.values()))
    inches = fig.get_figheight() * 0.78 * 72
    scale = inches / np.log(top / lowest)
    placed = spread(list((logs - np.log(lowest)) * scale), 10.5, inches)
    for (gpu, size), y in zip(sorted(limits.items(), key=lambda item: item[1]), placed, strict=True):
        ax.axhline(size, color="#9A9A9A", lw=0.9, ls=(0, (2, 2)), zorder=1, gid=f"limit {gpu}")
        beside(ax, f"{gpu}  {human_bytes(size)}", (N[-1], np.exp(y / scale) * lowest), (6, 0),
               fontsize=SMALL, color=GREY, annotation_clip=False)
    for n, label in enumerate(fits or {}):
        look = theme.version_style(label, n)
        for place, (gpu, longest) in enumerate(fits[label].items()):
            ax.plot([longest], [limits[gpu]], ls="none", ms=7, mec="white", mew=0.8, zorder=5, **look)
            if place == len(fits[label]) - 1:
                beside(ax, f"{gpu} full at\nN = {longest:,}", (longest, limits[gpu]), (9, -5), va="top",
                       ha="left", fontsize=SMALL, color=INK, path_effects=theme.halo(), zorder=6,
                       linespacing=1.25)
    ticks = [t for t in 2 ** np.arange(4, 31) if N[0] <= t <= N[-1]]
    ticks = ticks[:: max(1, len(ticks) // 7)]
    ax.set_xticks(ticks, [f"{t:,}" if t < 10_000 else f"{t / 1024:,.0f}k" for t in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(LogLocator(numticks=12))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: human_bytes(v)))
    if len(fits or {}) == 2:
        short, long = fits.values()
        gpu = min(short)
        ax.set_title(f"The same {gpu} holds a sequence {long[gpu] / short[gpu]:.1f} times as long",
                     fontsize=10, fontweight="bold", loc="left")
    parts = [f"{label}: {gpu} is full at {longest:,} tokens" for label, by_gpu in (fits or {}).items()
             for gpu, longest in by_gpu.items()]
    ends = [f"{label} from {human_bytes(y[0])} to {human_bytes(y[-1])}" for label, y in curves.items()]
    return theme.describe(fig, f"Bytes kept for the backward pass over N = {N[0]:,.0f} to "
                               f"{N[-1]:,.0f}: {'; '.join(ends + parts)}.")


# One line of the figure: (name, is it N×N, does it live in HBM); None starts the backward pass.
_STANDARD = (("Q", 0, 1), ("K", 0, 1), ("V", 0, 1), ("S", 1, 1), ("P", 1, 1), ("O", 0, 1), None,
             ("dO", 0, 1), ("dP", 1, 1), ("dS", 1, 1), ("dQ", 0, 1), ("dK", 0, 1), ("dV", 0, 1))
_FLASH = (("Q", 0, 1), ("K", 0, 1), ("V", 0, 1), ("S", 1, 0), ("P", 1, 0), ("O", 0, 1),
          ("lse", -1, 1), None, ("dO", 0, 1), ("delta", -1, 1), ("S", 1, 0), ("P", 1, 0),
          ("dP", 1, 0), ("dS", 1, 0), ("dQ", 0, 1), ("dK", 0, 1), ("dV", 0, 1))


@styled
def what_is_kept(kept: Mapping[str, Sequence[str]]) -> Figure:
    """Draw where every matrix of a training step lives: {"standard": names kept, "flash": ...}.

    N×N matrices are squares, N×d ones are tall, rows of statistics are thin. Those that pass the
    dividing line are framed in black.
    """
    fig = theme.figure(4.5, layout=None)
    words = []
    notes = ("tiles pass through, all go back to HBM", "never stored")
    for n, (label, parts) in enumerate(zip(kept, (_STANDARD, _FLASH), strict=True)):
        ax = frame(fig, 0.0, 2.27 * (1 - n) + 0.02, theme.WIDTH, 2.2)
        ax.set(xlim=(0, theme.WIDTH), ylim=(0, 2.2))
        words.append(_memories(ax, label, parts, kept[label], notes[n]))
    return theme.describe(fig, "Two rows of matrices, forward on the left and backward on the right. "
                               + " ".join(words))


def _memories(ax, label, parts, kept, note) -> str:
    with mpl.rc_context({"hatch.color": "#DADADA"}):
        rect(ax, 0.62, 0.08, 6.3, 1.02, **(theme.HBM | {"hatch": "//"}))
    rect(ax, 0.62, 1.2, 6.3, 0.66, **theme.SRAM)
    for y, name in ((0.59, "HBM"), (1.53, "SRAM")):
        ax.text(0.56, y, name, ha="right", va="center", fontsize=SMALL, color=GREY)
    ax.text(0.62, 2.13, label, va="top", fontsize=10, fontweight="bold")
    sizes = {1: (0.62, 0.62), 0: (0.2, 0.62), -1: (0.09, 0.62)}
    chip = (0.3, 0.3)
    widths = [0.5 if part is None else (sizes[part[1]] if part[2] else chip)[0] for part in parts]
    gap = (6.3 - 0.2 - sum(widths)) / (len(parts) - 1)
    x, middle = 0.72, None
    for part, width in zip(parts, widths, strict=True):
        if part is None:
            middle = x + width / 2
            ax.plot([middle, middle], [0.0, 1.98], color=INK, lw=1.2, ls=(0, (4, 2)), zorder=3)
        else:
            name, shape, hbm = part
            w, h = sizes[shape] if hbm else chip
            y = 0.3 if hbm else 1.24
            held = middle is None and name in kept
            rect(ax, x, y, w, h, facecolor=theme.tensor_color(name), zorder=4,
                 edgecolor="black" if held else theme.edge_color(name), lw=2.2 if held else 0.8)
            ax.text(x + w / 2, (0.2 if hbm else 1.71), name, ha="center", va="center",
                    fontsize=TINY if len(name) > 2 else SMALL, zorder=5,
                    bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none"})
        x += width + gap
    ax.text(middle - 0.12, 2.1, "forward →", ha="right", va="top", fontsize=9)
    ax.text(middle + 0.12, 2.1, "backward →", ha="left", va="top", fontsize=9)
    square = [name for name in kept if (name, 1, 1) in parts]
    ax.text(6.92, 2.13, f"{' and '.join(square)}, N×N, is kept" if square
            else "nothing N×N is kept", ha="right", va="top", fontsize=10, fontweight="bold",
            color=OVER if square else INK)
    ax.text(6.84, 1.53, note, ha="right", va="center", fontsize=SMALL, color=GREY)
    return f"{label} keeps {', '.join(kept)} between the passes."


@styled
def backward_orders(traces: Mapping[str, Trace], Nq: int, Nk: int) -> Figure:
    """Draw the loop orders of the backward pass: each pass's visits, and who is written how often.

    Tiles of S carry the number of their visit. The strip on top shows dK and dV, the one on the
    left dQ: each tile says how many times HBM received it; red means that the updates are atomic.

    Args:
        traces: {label: machine.trace}, of `flash_backward` with either order.
        Nq, Nk: rows and columns of S.
    """
    passes = []
    for label, trace in traces.items():
        kernels = dict.fromkeys(e.kernel for e in trace if e.op == "tile" and e.tensor == "S")
        for n, kernel in enumerate(kernels):
            events = [e for e in trace if e.kernel == kernel]
            title = label if len(kernels) == 1 else f"{label}, pass {n + 1}"
            passes.append((title, kernel.rpartition(": ")[2], events))
    gap, foot = 0.32, 0.5 + 0.5 * len(traces)
    size = (theme.WIDTH - 0.2 - gap * (len(passes) - 1)) / len(passes)
    height = foot + size + 0.82
    fig = theme.figure(height, layout=None)
    heading(fig, "One pass that updates dQ atomically, or two that compute S twice")
    for n, (title, makes, events) in enumerate(passes):
        left = 0.1 + n * (size + gap)
        ax = frame(fig, left, foot, size, size)
        ax.set(xlim=(0, size), ylim=(size, 0))
        _visits(ax, events, Nq, Nk, size)
        fig.text(left / theme.WIDTH, 1 - 0.46 / height, title, fontsize=10, fontweight="bold")
        fig.text(left / theme.WIDTH, 1 - 0.62 / height, f"makes {makes}", fontsize=SMALL, color=GREY)
    moments = [(label, Replay(trace, Nq, Nk).at()) for label, trace in traces.items()]
    longest = max(theme.text_width(label, 9) for label in traces) + 0.15
    inches = theme.WIDTH - 0.24 - longest
    byte_bars(frame(fig, 0.1 + longest, 0.05, inches, 0.5 * len(traces)), moments,
              max(m.hbm_bytes for _, m in moments), inches, rail=False)
    text = "; ".join(f"{label}: {human_bytes(m.hbm_bytes)}, {traces[label].atomic_updates()} atomic"
                     " updates" for label, m in moments)
    return theme.describe(fig, f"Loop orders of the backward pass. {text}.")


def _visits(ax, events, Nq, Nk, size) -> None:
    strip, gap = 0.22, 0.06
    tiles = [(e.rows, e.cols) for e in events if e.op == "tile" and e.tensor == "S"]
    stores = Counter((e.tensor, e.rows) for e in events if e.op == "store")
    atomic = {(e.tensor, e.rows) for e in events if e.atomic}
    x0, y0 = strip + gap + 0.02, 2 * (strip + gap) + 0.02
    sx, sy = (size - x0 - 0.02) / Nk, (size - y0 - 0.02) / Nq
    cmap = theme.tensor_cmap("S", 0.15)
    for n, (rows, cols) in enumerate(tiles):
        color = cmap(0.15 + 0.6 * n / max(len(tiles) - 1, 1))
        box = (x0 + cols[0] * sx, y0 + rows[0] * sy, (cols[1] - cols[0]) * sx, (rows[1] - rows[0]) * sy)
        rect(ax, *box, facecolor=color, ec="white", lw=0.9)
        ax.text(box[0] + box[2] / 2, box[1] + box[3] / 2, str(n + 1), ha="center", va="center",
                fontsize=SMALL, color=theme.ink_on(mpl.colors.to_hex(color)))
    rect(ax, x0, y0, Nk * sx, Nq * sy, fill=False, ec="#B0B0B0", lw=0.8)

    def cell(x, y, w, h, name, region):
        times, red = stores[name, region], (name, region) in atomic
        empty = {"facecolor": "white", "edgecolor": "#C8C8C8", "lw": 0.6}
        rect(ax, x, y, w, h, **({"facecolor": theme.tensor_color(name),
                                 "edgecolor": OVER if red else EDGE, "lw": 1.6 if red else 0.8} if times
                                else empty))
        if times:
            ax.text(x + w / 2, y + h / 2, f"{times}×", ha="center", va="center", fontsize=TINY,
                    fontweight="bold" if red else "normal", zorder=5,
                    color=OVER if red else theme.ink_on(theme.tensor_color(name)),
                    bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none"} if red else None)

    for cols in sorted({cols for _, cols in tiles}):
        for n, name in enumerate(("dK", "dV")):
            cell(x0 + cols[0] * sx, 0.02 + n * (strip + gap), (cols[1] - cols[0]) * sx, strip, name,
                 cols)
    for rows in sorted({rows for rows, _ in tiles}):
        cell(0.02, y0 + rows[0] * sy, strip, (rows[1] - rows[0]) * sy, "dQ", rows)
    for n, name in enumerate(("dK", "dV")):
        ax.text(x0 - 0.04, 0.02 + n * (strip + gap) + strip / 2, name, ha="right", va="center",
                fontsize=TINY, color=GREY)
    ax.text(0.02 + strip / 2, size + 0.02, "dQ", ha="center", va="top", fontsize=TINY, color=GREY)


@styled
def backward_lab(costs: Mapping[str, Traffic], sram_bytes: int, *, title: str, gpu: str,
                 updates: int) -> Figure:
    """Draw the bytes of a backward pass for a choice of tiles, on an axis that tiles do not move.

    Args:
        costs: ideal standard attention, the unit of the axis, then the loop orders "kv" and "q".
        sram_bytes: what an SM of `gpu` has for a block.
        title: the line on top.
        updates: how many updates of dQ the order "kv" makes.
    """
    fig = theme.figure(2.95, layout=None)
    heading(fig, title, y=0.965)
    unit, reach = next(iter(costs.values())).hbm_bytes, 2.0
    ax = fig.add_axes((0.115, 0.42, 0.875, 0.42))
    ax.set(xlim=(0, unit * reach * 1.27), ylim=(len(costs) - 0.5, -0.5))
    for y, cost in enumerate(costs.values()):
        end = stack(ax, y, cost.by_tensor, height=0.66, inch=unit * reach * 1.27 / 6.1)
        ratio = f"   {cost.hbm_bytes / unit:.2f} ×" if y else ""
        inside = end <= unit * reach
        if not inside:
            rect(ax, unit * reach, y - 0.4, unit * reach, 0.8, fc="white", lw=0, zorder=5)
        text = f"{'' if inside else '▶ '}{human_bytes(cost.hbm_bytes)}{ratio}"
        ax.text(min(end, unit * reach) + 0.012 * unit * reach, y, text, va="center_baseline",
                fontweight="bold", zorder=6, color=OVER if cost.hbm_bytes > unit else INK)
    ax.axvline(unit, color=GREY, lw=1, ls=(0, (3, 2)), zorder=0)      # behind the bars
    ax.set_yticks(range(len(costs)), [n.replace(", ", ",\n") for n in costs], fontsize=9, color=INK)
    ax.set_xticks([0, unit / 2, unit, 1.5 * unit, 2 * unit], ["0", "½", "1", "1½", "2"])
    bare(ax, "left")
    ax.set_xlabel("bytes between L2 and the SMs, in multiples of ideal standard attention's")
    need = max(costs[order].sram_peak_bytes for order in ("kv", "q"))
    fits = need <= sram_bytes
    worse = [order for order in ("kv", "q") if costs[order].hbm_bytes > unit]
    said = sentences(fig, [
        (f"{' and '.join(worse)} move more than ideal standard attention" if worse
         else "both orders move less than ideal standard attention", OVER if worse else INK),
        (f"{need:,} B of SRAM, and {gpu} has {sram_bytes:,} B for a block"
         + ("" if fits else ": too many"), INK if fits else OVER),
        (f"{updates:,} atomic updates of dQ in kv, none in q", GREY)], 0.012, 0.225, 0.075)
    return theme.describe(fig, f"{title}: " + ", ".join(
        f"{label} {human_bytes(cost.hbm_bytes)}" for label, cost in costs.items()) + f"; {said}.")
