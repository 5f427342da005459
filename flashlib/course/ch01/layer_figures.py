"""A Transformer layer under the roof of a GPU, and who takes its arithmetic, bytes and time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Polygon, Wedge

from flashlib import hardware
from flashlib.course.ch01.figures import duration
from flashlib.course.notebook import data
from flashlib.course.plots import theme
from flashlib.course.plots.parts import fitting, rect, whole
from flashlib.course.plots.theme import GREY, INK, SMALL, TINY, styled, text_width
from flashlib.hardware import human
from flashlib.models import roofline as model

_LAB_AXES = (-1.1, 5.2, 10.3, 15.7)          # decades of FLOP/B, of FLOP/s
_ROOF, _MEMORY, _COMPUTE = "#444444", "#EFF3F8", "#F6F4EC"
_PARTS = {"projection": "#5B6775", "feed-forward": "#97A2AE", "pointwise": "#E2E5E9"}
# What each operator of GPT-2's layer does, in the few words that stand below its box.
GPT2_WORDS = {
    "norm 1": "rescales each row", "project Q, K, V": "makes queries, keys, values",
    "S = QKᵀ": "every query with every key", "softmax": "logits to weights",
    "O = PV": "averages of values", "project O": "mixes the heads", "residual 1": "adds it back",
    "norm 2": "rescales each row", "FFN up": "to four times the width",
    "GELU": "a curve on each element", "FFN down": "back to the width", "residual 2": "adds it back"}
_UNITS, _UNIT_INK = {"exp": "exponentials", "vector": "vector units"}, "#A33B20"
_MADE = {"S = QKᵀ": "S", "softmax": "P", "O = PV": "O"}


def _add(ax, patch) -> None:
    """Add a patch without asking for the limits of the axes, which are fixed: half of the time."""
    patch.set_clip_on(False)
    ax.add_artist(patch)


def operator_color(op) -> str:
    """Return the hue of an operator: of the tensor that it makes inside attention, else a grey."""
    if op.part == "attention":
        return theme.tensor_color(_MADE.get(op.name, "O"))
    return _PARTS[op.part]


def recorded_attention(operators, B: int, N: int) -> list[tuple[str, float, float]]:
    """Return an H200's dots for `layer_roofline`: standard attention's three kernels and a fused one.

    `operators` are a layer of GPT-2 medium over B sequences of N tokens. Seconds are recorded, and so
    are the DRAM bytes of the fused kernel, whose FLOPs are those of its products; the three have the
    FLOPs and bytes of their operators.
    """
    ran = data.measurements("attention_demo_counters_h200").where(mode="forward", B=B, N_q=N)
    three = [op for op in operators if op.part == "attention"]
    dots = [("", op.intensity, op.flops / row["seconds"])
            for op, row in zip(three, ran.where(impl="standard").rows, strict=True)]
    (one,) = ran.where(impl="flash").rows
    flops = sum(op.matmul_flops for op in three)
    return [*dots, ("FlashAttention-2", flops / (one["dram_read_bytes"] + one["dram_write_bytes"]),
                    flops / one["seconds"])]


@styled
def layer_chain(operators, says: Mapping[str, str]) -> Figure:
    """Draw one layer as a chain of operators, two rows that each end in a sum with what came in.

    `says` has a few words for each operator, which stand below its box.
    """
    ends = [n + 1 for n, op in enumerate(operators) if op.name.startswith("residual")]
    rows = [operators[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    high, words = 1.52, []
    fig = theme.figure(high * len(rows), layout=None)
    ax = whole(fig)
    pitch = (theme.WIDTH - 0.62) / max(map(len, rows))
    arrow = {"arrowstyle": "-|>", "color": GREY, "lw": 0.9, "shrinkA": 0, "shrinkB": 0,
             "mutation_scale": 7}
    for r, row in enumerate(rows):
        y, last = high * (len(rows) - r) - 0.92, 0.5 + pitch * (len(row) - 1)
        for n, op in enumerate(row):
            x, color = 0.5 + pitch * n, operator_color(op)
            ax.add_patch(FancyBboxPatch((x, y), 0.86 * pitch, 0.42, facecolor=color, lw=0.9,
                                        boxstyle="round,pad=0,rounding_size=0.05",
                                        edgecolor=theme.mix(color, "#000000", 0.45)))
            name = op.name.replace("project ", "project\n").replace("FFN ", "FFN\n")
            ax.text(x + 0.43 * pitch, y + 0.21, name, ha="center", va="center", fontsize=TINY,
                    color=theme.ink_on(color), fontweight="bold", linespacing=1.15)
            ax.text(x + 0.43 * pitch, y - 0.06, textwrap.fill(says[op.name], 14), ha="center", va="top",
                    fontsize=TINY, color=INK, linespacing=1.2)
            ax.annotate("", (x - 0.01, y + 0.21), (x - 0.14 * pitch + 0.01 if n else 0.16, y + 0.21),
                        arrowprops=arrow)
            words.append(f"{op.name}: {says[op.name]}")
        ax.plot([0.28, 0.28, last + 0.43 * pitch], [y + 0.21, y + 0.62, y + 0.62], color=GREY, lw=0.9)
        over = last + 0.43 * pitch
        ax.annotate("", (over, y + 0.43), (over, y + 0.62), arrowprops=arrow)
        ax.text(0.5, y + 0.69, "what came in, unchanged", fontsize=TINY, color=GREY, va="bottom")
        own = [n for n, op in enumerate(row) if op.part == "attention"]
        if own:
            x0, x1 = 0.5 + pitch * own[0], 0.5 + pitch * (own[-1] + 0.86)
            ax.plot([x0, x0, x1, x1], [y + 0.47, y + 0.52, y + 0.52, y + 0.47], color=INK, lw=0.9)
            ax.text((x0 + x1) / 2, y + 0.69, "attention, for every head", ha="center", va="bottom",
                    fontsize=SMALL, fontweight="bold")
    return theme.describe(fig, "One Transformer layer as a chain of operators; what came in is added at"
                               f" the end of each of {len(rows)} rows. {'; '.join(words)}.")


@styled
def layer_roofline(operators, gpu, dtype: str = "float16", *, title: str | None = None,
                   recorded: Sequence[tuple[str, float, float]] = ()) -> Figure:
    """Draw the roof of a GPU with every operator of a layer on it; the area is the share of time.

    A disc stands where the roofline puts the operator, in intensity and in FLOP/s: on the roof, or
    below it where vector work or exponentials take longest. Operators of one place share a disc.

    Args:
        operators: of `models.transformer.layer`, or anything with a name, a part and costs.
        gpu: a `GPU` or the name of one.  dtype: what the matmul units work in.
        recorded: (label or "", FLOP per byte, FLOP/s) of kernels that ran, drawn as white dots.
    """
    fig = theme.figure(4.4, layout=None)
    ax, gpu = whole(fig), hardware.get(gpu)
    words, place = _roofline(ax, (0, 4.4), operators, gpu, dtype, title)
    for label, intensity, rate in recorded:
        most = model.attainable_flops_per_s(intensity, gpu, dtype)
        (x, y), roof = place(intensity, rate), place(intensity, most)[1]
        ax.plot([x, x], [y, roof], color=INK, lw=0.9, ls=(0, (2, 1.5)), zorder=7)
        if label:                                    # of the roof, not of a disc that stands there
            ax.text(x + 0.1, y - 0.17, f"{most / rate:.1f} times below the roof", va="center",
                    fontsize=SMALL, color=GREY, zorder=8, path_effects=theme.halo())
        ax.plot([x], [y], marker="o", ms=5.5, mfc="white", mec=INK, mew=1.1, zorder=8, gid="recorded")
        ax.text(x + 0.1, y, label, va="center", fontsize=SMALL, zorder=8, path_effects=theme.halo())
    if recorded:
        ax.plot([1.12], [3.62], marker="o", ms=5.5, mfc="white", mec=INK, mew=1.1)
        ax.text(1.22, 3.62, "recorded; the dotted line leads up to the roof", va="center",
                fontsize=SMALL, color=GREY)
        words += " Recorded, white dots: " + "; ".join(
            f"{label or 'a kernel of attention'} at {x:.3g} FLOP/B, {human(y, 'FLOP/s')}"
            for label, x, y in recorded) + "."
    return theme.describe(fig, words)


def _roofline(ax, span, operators, gpu, dtype, title, axes=None):
    """Draw a roofline between two heights, in inches.

    `axes` are the decades at the ends of both axes, (left, right, low, high); None fits them.

    Returns:
        What is drawn, in words, and the function that places (FLOP/B, FLOP/s) in inches.
    """
    base, H = span
    spots = _spots(operators, gpu, dtype)
    peak, ridge = float(gpu.matmul_flops_per_s[dtype]), model.ridge(gpu, dtype)
    bandwidth = float(gpu.hbm_bytes_per_s)
    xs, ys = ([np.log10(s[axis]) for s in spots] for axis in "xy")
    x_low, x_high, y_low, y_high = axes or (
        min(-1.0, np.floor(min(xs))), max(4.4, np.ceil(max(xs))), np.inf, np.log10(peak))
    x_low, x_high = min([x_low, *xs]), max([x_high, *xs])
    y_low, y_high = min([y_low, np.log10(bandwidth) + x_low - 0.1, *ys]), max(y_high, np.log10(peak))
    left, bottom, right, top = 1.0, base + 0.5, theme.WIDTH - 0.12, H - 1.2

    def place(intensity, rate):
        return (left + (np.log10(intensity) - x_low) / (x_high - x_low) * (right - left),
                bottom + (np.log10(rate) - y_low) / (y_high - y_low) * (top - bottom))

    knee, start = place(ridge, peak), place(10**x_low, bandwidth * 10**x_low)
    end = (right, knee[1])
    _add(ax, Polygon([(left, bottom), start, knee, (knee[0], bottom)], fc=_MEMORY, lw=0))
    _add(ax, Polygon([(knee[0], bottom), knee, end, (right, bottom)], fc=_COMPUTE, lw=0))
    ax.plot(*zip(start, knee, end, strict=True), color=_ROOF, lw=2, zorder=2, gid="roof")
    ax.plot([left, left, right], [top, bottom, bottom], color="#555555", lw=0.8)
    ax.plot([knee[0]] * 2, [bottom, knee[1]], color="#9A9A9A", lw=0.9, ls=(0, (2, 2)))
    small = {"fontsize": SMALL, "color": GREY}
    for x in range(int(x_low), int(x_high) + 1):
        px = place(10.0**x, peak)[0]
        ax.text(px, bottom - 0.07, f"{10.0**x:,.0f}" if x >= 0 else f"{10.0**x:g}", ha="center",
                va="top", **small)
    for y in range(int(np.ceil(y_low)), int(y_high) + 1):
        py = place(ridge, 10.0**y)[1]
        if abs(py - knee[1]) < 0.18:
            continue
        ax.text(left - 0.07, py, human(10.0**y, "FLOP/s"), ha="right", va="center", **small)
    ax.text((left + right) / 2, base + 0.02, "arithmetic intensity, FLOP per byte of HBM", ha="center",
            va="bottom", fontsize=SMALL)
    ax.text(knee[0] - 0.06, bottom + 0.06, "waits for memory", ha="right", va="bottom", **small)
    ax.text(knee[0] + 0.06, bottom + 0.06, "waits for arithmetic", va="bottom", **small)
    ax.text(knee[0] + 0.06, bottom + 0.24, f"ridge {ridge:.0f} FLOP/B", va="bottom", **small)
    bold = {"fontsize": SMALL, "color": _ROOF, "fontweight": "bold"}
    ax.plot([left, knee[0]], [knee[1]] * 2, color="#9A9A9A", lw=0.9, ls=(0, (2, 2)))
    ax.text(left - 0.07, knee[1], human(peak, "FLOP/s"), ha="right", va="center", **bold)
    _on_slope(ax, start, knee, [place(s["x"], s["y"]) for s in spots], human(bandwidth, "B/s"), bold)
    if title:
        ax.text(0.05, H - 0.06, title, va="top", fontsize=10, fontweight="bold")
    ceilings = _ceilings(ax, operators, gpu, dtype, place, right)
    _discs(ax, spots, place, knee)
    words = "; ".join(f"{s['label']} at {s['x']:.3g} FLOP/B, {s['share']:.1%} of the time"
                      for s in spots)
    return (f"Roofline of {gpu.name} in {dtype}, ridge at {ridge:.0f} FLOP/B, with the operators of a "
            f"layer: {words}.{ceilings}"), place


def _ceilings(ax, operators, gpu, dtype, place, right) -> str:
    """Draw how high vector or special units let the operators rise that wait for them, if any does."""
    binding, words = {}, ""
    for op in operators:
        t = model.time_s(op, gpu, dtype)
        if t.bound in _UNITS and t.time_s > binding.get(t.bound, (0, 0))[0]:
            binding[t.bound] = t.time_s, op.flops / t.time_s
    for unit, (_, rate) in binding.items():
        x, y = place(rate / float(gpu.hbm_bytes_per_s), rate)
        ax.plot([x, right], [y, y], color=_UNIT_INK, lw=1.3, ls=(0, (5, 2)), zorder=2,
                gid=f"ceiling {unit}")
        below = float(gpu.matmul_flops_per_s[dtype]) / rate
        ax.text(right, y - 0.05, f"{_UNITS[unit]}, {below:.2g} × below the roof", ha="right", va="top",
                fontsize=SMALL, color=_UNIT_INK, zorder=7, path_effects=theme.halo())
        words += f" A lower ceiling, dashed: {_UNITS[unit]}, {human(rate, 'FLOP/s')}."
    return words


def _on_slope(ax, start, knee, taken, text, look) -> None:
    """Write a text along the slanted roof, above it and away from the discs."""
    shares = np.linspace(0.12, 0.85, 30)
    spots = [np.add(start, f * np.subtract(knee, start)) for f in shares]
    far = [min(np.hypot(*np.subtract(spot, t)) for t in taken) for spot in spots]
    spot = spots[int(np.argmax(far))]
    angle = np.arctan2(knee[1] - start[1], knee[0] - start[0])
    ax.text(spot[0] - 0.07 * np.sin(angle), spot[1] + 0.07 * np.cos(angle), text, ha="center",
            va="bottom", rotation=np.degrees(angle), rotation_mode="anchor", **look)


def _spots(operators, gpu, dtype) -> list[dict]:
    """Return one entry for each place on the roofline, from left to right, and who stands there."""
    seconds = {op.name: model.time_s(op, gpu, dtype).time_s for op in operators}
    whole = sum(seconds.values())
    spots: list[dict] = []
    for op in sorted(operators, key=lambda op: op.intensity):
        rate, near = op.flops / seconds[op.name], None
        for spot in spots:
            if spot["part"] == op.part and max(abs(np.log10(op.intensity / spot["x"])),
                                               abs(np.log10(rate / spot["y"]))) < 0.06:
                near = spot
        if near is None:
            near = {"x": op.intensity, "y": rate, "part": op.part, "slices": []}
            spots.append(near)
        near["slices"].append((op.name, operator_color(op), seconds[op.name] / whole))
    order = [op.name for op in operators]
    for spot in spots:
        spot["slices"].sort(key=lambda piece: order.index(piece[0]))
        spot["share"] = sum(share for _, _, share in spot["slices"])
        spot["label"] = _join([name for name, _, _ in spot["slices"]])
    return spots


def _join(names) -> str:
    """Join names that begin alike: 'norm 1' and 'norm 2' are 'norm 1, 2'."""
    first = names[0].split(" ")[0]
    if len(names) > 1 and all(name.startswith(first + " ") for name in names):
        return first + " " + ", ".join(name[len(first) + 1:] for name in names)
    return " and ".join(names)


def _discs(ax, spots, place, knee) -> None:
    """Draw the discs, and labels where nothing is: below the low slope, above the high one."""
    for s in spots:
        x, y = s["at"] = place(s["x"], s["y"])
        s["r"] = max(0.045, 0.40 * np.sqrt(s["share"]))
        hues = list(dict.fromkeys(color for _, color, _ in s["slices"]))
        for n, color in enumerate(hues):
            _add(ax, Wedge((x, y), s["r"], 90 + 360 * n / len(hues),
                               90 + 360 * (n + 1) / len(hues), fc=color, lw=0.8, alpha=0.93,
                               ec=theme.mix(color, "#000000", 0.45),
                               zorder=4 - s["r"] + (s["part"] == "attention" and x > knee[0])))
    line = {"color": "#9A9A9A", "lw": 0.7, "zorder": 3}
    text = {"va": "center", "fontsize": SMALL, "color": INK, "zorder": 6}
    middle = place(8, 1)[0]
    low = [s for s in spots if s["at"][0] < middle]
    slope = [s for s in spots if middle <= s["at"][0] and s["at"][1] < knee[1] - 0.03]
    flat = [s for s in spots if s not in low and s not in slope]
    last = np.inf
    for s in sorted(low, key=lambda s: -s["at"][1]):
        x, y = s["at"]
        level = min(y - 0.02, last - 0.165)
        start = max(_edge(disc, level) for disc in low if disc["at"][0] - disc["r"] <= x + 0.2)
        start = max(start, x + 0.14) + 0.06
        if level <= y - 0.06 or start - x - s["r"] > 0.2:        # not beside its disc
            ax.plot([x, start - 0.03], [y, level], **line)
        ax.text(start, level, f"{s['label']}  {_percent(s['share'])}", **text)
        last = level
    last, clear = np.inf, {**text, "path_effects": theme.halo()}     # these may meet a line
    for s in sorted(slope, key=lambda s: -s["at"][1]):
        x, y = s["at"]
        if x > knee[0]:                                 # under the flat roof
            ax.text(x + 0.1, y - s["r"] - 0.12, f"{s['label']}  {_percent(s['share'])}", **clear)
            continue
        level = min(y + 0.05, last - 0.165)
        ax.text(x - s["r"] - 0.06, level, f"{s['label']}  {_percent(s['share'])}", ha="right", **clear)
        last = level
    for n, s in enumerate(sorted(flat, key=lambda s: s["at"][0])):
        x, y = s["at"]
        level = knee[1] + 0.36 + 0.165 * n
        ax.plot([x, x], [y, level + 0.05], **line)
        ax.text(x - 0.03, level, f"{s['label']}  {_percent(s['share'])}", ha="right", **text)


def _edge(spot, level) -> float:
    """Return how far right a disc reaches at the height of a line of text."""
    (x, y), r = spot["at"], spot["r"] + 0.03
    return x + np.sqrt(max(r * r - max(abs(level - y) - 0.05, 0) ** 2, 0))


def _percent(share) -> str:
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def _ordered(operators):
    """Return the operators with those of attention first, then by part, as bars show them."""
    parts = ["attention", *_PARTS]
    return sorted(operators, key=lambda op: parts.index(op.part))


@styled
def layer_shares(layers: Mapping[str, Sequence], gpu, dtype: str = "float16") -> Figure:
    """Draw, for each layer, who does its arithmetic, who moves its bytes and who takes its time.

    `layers` maps a title to the operators of one layer; times are those of the roofline of `gpu`.
    """
    gpu = hardware.get(gpu)
    high = 1.52
    fig = theme.figure(high * len(layers) + 0.36, layout=None)
    ax, words = whole(fig), []
    for n, (title, operators) in enumerate(layers.items()):
        top = 0.36 + high * (len(layers) - n)
        words.append(f"{title}: " + _shares(ax, top, operators, gpu, dtype, title))
    _key(ax, 1.05, 0.18)
    return theme.describe(fig, " ".join(words))


def _key(ax, x, y) -> None:
    """Write which hue is which kind of operator, in one row."""
    entries = [(name, theme.tensor_color(t)) for name, t in _MADE.items()] + list(_PARTS.items())
    for name, color in entries:
        rect(ax, x, y - 0.045, 0.16, 0.09, fc=color, ec="#8A8A8A", lw=0.5)
        ax.text(x + 0.21, y, name, va="center", fontsize=TINY, color=GREY)
        x += 0.36 + text_width(name, TINY)


def _shares(ax, H, operators, gpu, dtype, title) -> str:
    """Draw three stacked bars below a height, in inches, and return them in words."""
    if title:
        ax.text(0.05, H - 0.06, title, va="top", fontsize=10, fontweight="bold")
    left, length = 1.05, theme.WIDTH - 1.15
    ordered = _ordered(operators)
    times = [model.time_s(op, gpu, dtype) for op in ordered]
    rows = {"arithmetic": [op.flops for op in ordered], "HBM bytes": [op.hbm_bytes for op in ordered],
            "time": [t.time_s for t in times]}
    units = {"arithmetic": "FLOP", "HBM bytes": "B", "time": "s"}
    first = H - (0.34 if title else 0.02)
    words = []
    for n, (name, values) in enumerate(rows.items()):
        y, whole, x = first - 0.3 * n - 0.12, sum(values), left
        total = duration(whole) if name == "time" else human(whole, units[name])
        ax.text(left - 0.08, y, f"{name}\n{total}", ha="right", va="center", fontsize=TINY,
                linespacing=1.1)
        for op, value in zip(ordered, values, strict=True):
            w = length * value / whole
            color = operator_color(op)
            rect(ax, x, y - 0.12, w, 0.24, fc=color, ec="white", lw=0.7)
            _inside(ax, x, y, w, op.name, value / whole, color)
            x += w
        attention = sum(v for op, v in zip(ordered, values, strict=True) if op.part == "attention")
        words.append(f"attention has {attention / whole:.0%} of {name}")
    waits = sum(t.time_s for t in times if t.bound == "memory") / sum(rows["time"])
    ax.text(left, first - 1.0, f"{waits:.0%} of the time is spent in kernels that wait for memory"
            f" on the {gpu.name}", va="center", fontsize=SMALL, color=INK)
    return ", ".join(words) + f"; {waits:.0%} of the time is spent in kernels that wait for memory."


def _inside(ax, x, y, w, name, share, color) -> None:
    short = name.split(", fused")[0].split(" = ")[-1].removeprefix("project ").removeprefix("FFN ")
    percent = _percent(share)
    if text := fitting((f"{name} {percent}", f"{short} {percent}", short), w - 0.06, TINY):
        ax.text(x + w / 2, y, text, ha="center", va="center", fontsize=TINY, color=theme.ink_on(color))


@styled
def roofline_lab(operators, gpu, dtype: str = "float16", *, title: str | None = None) -> Figure:
    """Draw a layer's roofline with the shares of arithmetic, bytes and time below it.

    The axes are the same for every layer and GPU of the course, so that what moves is a disc or a roof.
    """
    gpu = hardware.get(gpu)
    fig = theme.figure(5.7, layout=None)
    ax = whole(fig)
    words, _ = _roofline(ax, (1.24, 5.7), operators, gpu, dtype, title, _LAB_AXES)
    words += " " + _shares(ax, 1.16, operators, gpu, dtype, None)
    return theme.describe(fig, words)
