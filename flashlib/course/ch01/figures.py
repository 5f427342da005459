"""The figures of chapter 01: the parts of a GPU, and the ten steps of standard attention."""

from __future__ import annotations

from itertools import groupby

from matplotlib import rc_context
from matplotlib.figure import Figure

from flashlib import hardware
from flashlib.course.plots import theme
from flashlib.course.plots.parts import rect, whole
from flashlib.course.plots.theme import GREY, INK, SMALL, TINY, styled
from flashlib.models.hierarchy import levels

_ROOF = "#444444"
_SIDE, _GAP = 0.3, 0.06                        # of the largest matrix, and between two, in inches
_LOOKS = {"registers": theme.REGISTER, "SRAM": theme.SRAM, "HBM": theme.HBM,
          "L2": {"facecolor": "#E4E4E4", "edgecolor": "#A8A8A8"}}


@styled
def gpu_anatomy(gpu) -> Figure:
    """Draw one SM and what stands between its arithmetic and HBM, with room and rates.

    What stands inside the box is of that one SM; the rates beside and below it are of the chip.
    """
    gpu = hardware.get(gpu)
    by_name = {m.name: m for m in levels(gpu)}
    sms = int(gpu.sms)
    fig = theme.figure(4.15, layout=None)
    ax = whole(fig)
    rect(ax, 0.2, 1.86, 3.7, 2.12, facecolor="#FAFAFA", edgecolor=GREY, lw=1)
    ax.text(0.32, 3.86, "one SM", va="top", fontweight="bold")
    units = (("tensor cores", "matmul", gpu.matmul_flops_per_s["float16"]),
             ("vector units", "add, max, …", gpu.vector_flops_per_s),
             ("special units", "exponentials", gpu.exps_per_s))
    for n, (name, does, rate) in enumerate(units):
        x = 0.34 + 1.17 * n
        rect(ax, x, 2.98, 1.08, 0.64, facecolor="#FFF8E6", edgecolor="#C9B37A")
        own = hardware.human(float(rate) / sms, rate.unit)
        ax.text(x + 0.54, 3.30, f"{name}\n{does}\n{own}", ha="center", va="center", fontsize=TINY,
                linespacing=1.3)
    _room(ax, (0.34, 2.45, 3.42, 0.36), "registers", f"registers {gpu.registers_per_sm_bytes}")
    _room(ax, (0.34, 1.96, 3.42, 0.36), "SRAM",
          f"SRAM: shared memory, up to {gpu.shared_memory_per_sm_bytes}, beside L1")
    ax.text(4.1, 3.86, f"{gpu.name}: {sms} SMs", va="top", fontweight="bold")
    cols = 22
    for n in range(sms):
        x, y = 4.1 + 0.122 * (n % cols), 3.46 - 0.122 * (n // cols)
        rect(ax, x, y, 0.098, 0.098, lw=0.6,
             **{**theme.SRAM, **({"facecolor": "#31688E"} if n == 0 else {})})
    ax.plot([4.09, 3.92], [3.51, 3.51], color="#31688E", lw=1)
    note = ["all SMs together:", f"tensor cores {units[0][2]}"]
    note += [f"{m} {by_name[m].room}, {by_name[m].rate}" for m in ("registers", "SRAM")]
    rows = -(-sms // cols)
    ax.text(4.1, 3.40 - 0.122 * (rows - 1) - 0.1, "\n".join(note), va="top", fontsize=SMALL,
            linespacing=1.5)
    rate = by_name["L2"].rate
    _room(ax, (0.2, 1.1, 6.6, 0.38), "L2",
          f"L2 cache: {by_name['L2'].room}, one for all SMs" + (f", {rate}" if rate else ""))
    _room(ax, (0.2, 0.16, 6.6, 0.5), "HBM", f"HBM: {by_name['HBM'].room}")
    crosses = "loads and stores" if rate else "loads and stores: NVIDIA publishes no rate"
    for x, (y0, y1), text in ((2.05, (1.86, 1.48), crosses),
                              (3.5, (1.1, 0.66), f"{by_name['HBM'].rate} for all SMs together")):
        ax.annotate("", (x, y1), (x, y0), arrowprops={"arrowstyle": "<|-|>", "color": INK, "lw": 1.2,
                                                      "shrinkA": 0, "shrinkB": 0})
        ax.text(x + 0.12, (y0 + y1) / 2, text, va="center", fontsize=SMALL)
    parts = "; ".join(f"{m.name} {m.room}" + (f" at {m.rate}" if m.rate else "")
                      for m in by_name.values())
    return theme.describe(fig, f"Anatomy of the {gpu.name}: {sms} SMs, each with registers and SRAM "
                               f"beside its arithmetic, one L2, one HBM. Over the chip: {parts}.")


def _room(ax, box, look, text) -> None:
    x, y, w, h = box
    with rc_context({"hatch.color": "#D2D2D2"}):
        rect(ax, x, y, w, h, **_LOOKS[look])
    back = {"facecolor": "white", "edgecolor": "none", "pad": 2, "alpha": 0.9}
    ax.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=SMALL,
            bbox=back if look == "HBM" else None)


@styled
def ten_steps(trace) -> Figure:
    """Draw standard attention as steps between HBM and SRAM, with the bytes that have moved so far.

    A step is a group of loads, the computation of a kernel, or a group of stores; a last one hands
    the result to the host. Squares are N×N matrices, narrow bars N×d ones.
    """
    steps = _steps(trace)
    fig = theme.figure(3.75, layout=None)
    ax = whole(fig)
    left, right = 0.78, theme.WIDTH - 0.1
    width = (right - left) / len(steps)
    total = sum(e.bytes for _, kind, es in steps for e in es if kind != "compute")
    rect(ax, left, 2.42, right - left, 0.72, **theme.SRAM)
    with rc_context({"hatch.color": "#DADADA"}):
        rect(ax, left, 1.2, right - left, 0.72, **theme.HBM)
    for y, text in ((2.78, "SRAM"), (1.56, "HBM"), (0.62, "bytes\nso far")):
        ax.text(left - 0.12, y, text, ha="right", va="center", fontweight="bold", linespacing=1.2)
    most = max(max(e.rows[1], e.cols[1]) for _, _, es in steps for e in es)
    done, words = 0, []
    ax.plot([left, right], [0.3, 0.3], color=_ROOF, lw=0.8)
    for n, (kernel, kind, events) in enumerate(steps):
        x0, middle = left + n * width, left + (n + 0.5) * width
        if n and kernel != steps[n - 1][0]:
            ax.plot([x0, x0], [0.3, 3.42], color="#9A9A9A", lw=0.9, ls=(0, (2, 2)), zorder=1)
        ax.text(middle, 3.28, str(n + 1), ha="center", va="center", fontsize=SMALL, color=GREY)
        names = [e.tensor for e in events]
        words.append(f"{n + 1} {kind} {' and '.join(names) if kind != 'compute' else kernel}")
        if kind == "compute":
            ax.text(middle, 2.78, kernel.replace(" = ", "\n= ").replace("softmax(S)", "softmax"),
                    ha="center", va="center", fontsize=TINY, linespacing=1.25,
                    bbox={"boxstyle": "round,pad=0.25", "fc": "#FFF8E6", "ec": "#C9B37A", "lw": 0.8})
            grown = 0
        else:
            sides = [_SIDE * (e.cols[1] - e.cols[0]) / most for e in events]
            x = middle - (sum(sides) + _GAP * (len(sides) - 1)) / 2
            for event, side in zip(events, sides, strict=True):
                _crossing(ax, x + side / 2, event, kind, most)
                x += side + _GAP
            grown = 0 if kind == "return" else sum(e.bytes for e in events)
        _bytes_bar(ax, x0, width, done, grown, events, total)
        done += grown
        if grown:
            ax.text(middle, 0.16, f"+{grown:,}", ha="center", va="center", fontsize=TINY, color=INK)
    ax.text(right, 1.03, f"{done:,} B", ha="right", va="center", fontsize=SMALL, fontweight="bold")
    for kernel, group in groupby(range(len(steps)), key=lambda n: steps[n][0]):
        columns = list(group)
        x = left + width * (columns[0] + columns[-1] + 1) / 2
        ax.text(x, 3.57, f"kernel {kernel}" if kernel else "", ha="center", va="center",
                fontsize=SMALL, fontweight="bold")
    return theme.describe(fig, f"Standard attention in {len(steps)} steps: {', '.join(words)}; "
                               f"{done:,} bytes cross between HBM and SRAM.")


def _steps(trace):
    """Group loads and stores of a trace by kernel; between them stands what the kernel computes."""
    moves = [e for e in trace if e.op in ("load", "store")]
    steps = []
    for kernel, events in groupby(moves, key=lambda e: e.kernel):
        for op, group in groupby(events, key=lambda e: e.op):
            if op == "store":
                steps.append((kernel, "compute", []))
            steps.append((kernel, op, list(group)))
    return [*steps, ("", "return", steps[-1][2])]


def _crossing(ax, x, event, kind, most) -> None:
    """Draw one matrix that crosses: the patch where it lands, a pale one where it was, an arrow."""
    h, w = (_SIDE * (stop - start) / most for start, stop in (event.rows, event.cols))
    color = theme.tensor_color(event.tensor)
    patch = {"facecolor": color, "edgecolor": theme.edge_color(event.tensor), "lw": 0.8, "zorder": 3}
    if kind == "return":
        rect(ax, x - w / 2, 1.56 - h / 2, w, h, **patch)
        ax.text(x, 2.2, f"{event.tensor} is\nin HBM", ha="center", va="center", fontsize=TINY,
                color=GREY)
        return
    y = 2.78 if kind == "load" else 1.56
    rect(ax, x - w / 2, y - h / 2, w, h, **patch)
    rect(ax, x - w / 2, 2.78 + 1.56 - y - h / 2, w, h, **{**patch, "facecolor": theme.tint(color, 0.7)})
    ends = ((x, 2.46), (x, 1.88)) if kind == "load" else ((x, 1.88), (x, 2.46))
    ax.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "color": theme.edge_color(event.tensor),
                                       "lw": 1.6, "shrinkA": 0, "shrinkB": 0})
    ax.text(x + (0.06 if w < 0.3 else 0.07), 2.17, event.tensor, ha="left", va="center",
            fontsize=9, fontweight="bold", path_effects=theme.halo())


def _bytes_bar(ax, x0, width, done, grown, events, total) -> None:
    """Draw the bytes so far as a column, the new ones in the hue of their tensor."""
    scale, x, w = 0.62 / max(total, 1), x0 + 0.1 * width, 0.8 * width
    rect(ax, x, 0.3, w, done * scale, fc="#D9D9D9", lw=0)
    base = 0.3 + done * scale
    for event in events if grown else ():
        rect(ax, x, base, w, event.bytes * scale, lw=0.6, fc=theme.tensor_color(event.tensor),
             ec=theme.edge_color(event.tensor))
        base += event.bytes * scale


def duration(seconds) -> str:
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{1e3 * seconds:,.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:,.1f} µs"
