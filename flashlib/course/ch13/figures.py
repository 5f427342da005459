"""Chapter 13's pictures: the bits of a number, what a rotation does to an outlier, errors by recipe."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from flashlib.course.notebook.data import Measurement
from flashlib.course.plots import theme
from flashlib.course.plots.gantt import face
from flashlib.course.plots.parts import bare, beside, heading, origin, rect
from flashlib.course.plots.theme import FAINT, GREY, INK, OVER, SMALL, TINY, Axes, Figure, styled

SIGN, EXPONENT, MANTISSA = "#D9D9D9", "#BFD3E6", "#F3DDB0"
_FORMATS = {"e4m3": ("#33628D", "o"), "e5m2": ("#8A6D3B", "^"), "int8": ("#882255", "s"),
            "float16": ("#6F6F6F", "D")}


def _plain(value, position=None) -> str:
    return f"{value:g}".replace("-", "−")


# Phases of a step, as `bench.stalls` names them, in the hues of chapter 12's charts.
_PHASES = {"ready": ({"facecolor": "#FFFFFF", "hatch": ".."}, "wait for K and the turn"),
           "issue": (face("QK"), "ask for products"),
           "scores": (face("QK") | {"hatch": "//"}, "wait for QKᵀ"),
           "maximum": (face("max"), "maximum"),
           "weights": (face("exp"), "exponentials, sum, rescaling"),
           "output": (face("PV"), "PV, and the wait for it")}
_STEPS = {"own_bf16": "bfloat16", "fp8_block": "FP8"}
WORST = 1.75                        # of the lab's axis, whatever its controls say


# One number.

@styled
def bit_fields(numbers: Sequence, *, mantissa_bits: int = 3, bias: int = 7) -> Figure:
    """Draw the eight bits of some numbers in boxes, with what they say beside them.

    `numbers` holds pairs of what was meant and `flashlib.quant.fields` of it.
    """
    row = 0.42
    fig = theme.figure(0.42 + row * len(numbers), layout=None)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 7), ylim=(0.42 + row * len(numbers), 0))
    ax.axis("off")
    for x, text, side in ((0.9, "wanted", "right"), (2.28, "sign, exponent, mantissa", "center"),
                          (3.72, "what the bits say", "left"), (6.9, "kept", "right")):
        ax.text(x, 0.2, text, fontsize=TINY, color=GREY, va="center", ha=side)
    for n, (wanted, bits) in enumerate(numbers):
        y = 0.42 + row * (n + 0.5)
        ax.text(0.9, y, _plain(wanted), ha="right", va="center_baseline")
        draw_bits(ax, 1.2, y, bits)
        ax.text(3.72, y, says(bits, mantissa_bits, bias), va="center_baseline", fontsize=SMALL)
        ax.text(6.9, y, f"{bits.value:.5g}".replace("-", "−"), ha="right", va="center_baseline",
                fontweight="bold")
    text = "; ".join(f"{wanted:g} is kept as {bits.bits}, {bits.value:g}" for wanted, bits in numbers)
    return theme.describe(fig, f"Eight-bit numbers bit by bit: {text}.")


def draw_bits(ax: Axes, x: float, y: float, bits, size: float = 0.27) -> None:
    """Draw the boxes of one number from x on: sign, exponent and mantissa in three shades."""
    shades = [SIGN] + [EXPONENT] * len(bits.bits.split()[1]) + [MANTISSA] * len(bits.bits.split()[2])
    for n, (digit, shade) in enumerate(zip(bits.bits.replace(" ", ""), shades, strict=True)):
        rect(ax, x + n * size, y - size / 2, size * 0.94, size, facecolor=shade, edgecolor=theme.EDGE,
             lw=0.8)
        ax.text(x + (n + 0.47) * size, y, digit, ha="center", va="center_baseline",
                family="monospace", fontsize=9)


def says(bits, mantissa_bits: int, bias: int) -> str:
    """Return the formula that the bits stand for, with their numbers in it."""
    sign, whole = "−" if bits.sign else "", 2**mantissa_bits
    if bits.kind == "NaN":
        return "not a number"
    if bits.kind in ("zero", "subnormal"):
        return f"{sign}{bits.mantissa}/{whole} · {_two_to(1 - bias)} ({bits.kind})"
    power = _two_to(f"{bits.exponent}-{bias}")
    return (f"{sign}(1 + {bits.mantissa}/{whole}) · {power} = {sign}{1 + bits.mantissa / whole:g} · "
            + _two_to(bits.exponent - bias))


def _two_to(power: int | str) -> str:
    return "2" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


@styled
def number_line(grids: Mapping[str, np.ndarray], *, limit: float, title: str = "") -> Figure:
    """Draw every value that some formats can hold, a line each, from 0 to `limit`."""
    fig, ax = theme.subplots(height=0.5 + 0.42 * len(grids))
    for n, (name, grid) in enumerate(grids.items()):
        shown = grid[(grid >= 0) & (grid <= limit)]
        color = _FORMATS.get(name.split()[0].rstrip(","), (GREY, "o"))[0]
        ax.vlines(shown, n - 0.3, n + 0.3, color=color, lw=0.9)
        ax.plot([0, limit], [n, n], color=FAINT, lw=0.8, zorder=0)
    ax.set(xlim=(-0.01 * limit, limit * 1.01), ylim=(len(grids) - 0.4, -0.6))
    ax.set_yticks(range(len(grids)), list(grids), color=INK, fontsize=9)
    ax.set_title(title, fontsize=10, loc="left")
    bare(ax, "left")
    counts = "; ".join(f"{name}: {int(np.sum((g >= 0) & (g <= limit)))} values"
                       for name, g in grids.items())
    return theme.describe(fig, f"Values that can be held from 0 to {limit:g}. {counts}.")


# One row with an outlier.

@styled
def outlier_spread(panels: Mapping[str, tuple], *, tensor: str = "Q") -> Figure:
    """Draw rows of a tensor over the values that their format can hold, and the errors below.

    Args:
        panels: {title: (row, rounded, grid)}: the exact entries, what became of them, and all
            values of the format times its scale.
    """
    fig, axes = theme.subplots(2, len(panels), height=3.7, sharex=True, sharey="row",
                               gridspec_kw={"height_ratios": [1.9, 1]}, squeeze=False)
    reach = 1.12 * max(np.abs(row).max() for row, _, _ in panels.values())
    worst = max(np.abs(row - kept).max() for row, kept, _ in panels.values())
    words = []
    for (upper, lower), (title, (row, kept, grid)) in zip(axes.T, panels.items(), strict=True):
        n, error = len(row), np.asarray(kept) - np.asarray(row)
        shown = grid[np.abs(grid) <= reach]
        upper.hlines(shown, -2, n + 1, color="#C9CED6", lw=0.5, zorder=0)
        lines = [((i, 0.0), (i, v)) for i, v in enumerate(row)]
        upper.add_collection(LineCollection(lines, colors=theme.tensor_color(tensor), lw=1.3))
        top = int(np.abs(row).argmax())
        upper.plot([top], [row[top]], "o", ms=4.5, color=theme.tensor_color(tensor), mec=INK, mew=0.6)
        beside(upper, f"largest: {row[top]:.1f}".replace("-", "−"), (top, row[top]),
               (7 if top < n / 2 else -7, 0), fontsize=SMALL, ha="left" if top < n / 2 else "right",
               path_effects=theme.halo())
        upper.set(xlim=(-2, n + 1), ylim=(-reach, reach))
        upper.set_title(title)
        lower.axhline(0, color=GREY, lw=0.6)
        lower.vlines(np.arange(n), 0, error, color=OVER, lw=1.3)
        lower.set(ylim=(-1.25 * worst, 1.25 * worst), xlabel=f"entry of the row, 0 … {n - 1}")
        norm = float(np.sqrt(np.sum(error**2)))
        note = f"length of the error: {norm:.2f}, largest: {np.abs(error).max():.2f}"
        lower.text(0.985, 0.93, note, transform=lower.transAxes, ha="right", va="top",
                   fontsize=TINY, path_effects=theme.halo())
        words.append(f"{title}: largest entry {np.abs(row).max():.1f}, error of length {norm:.2f},"
                     f" largest error {np.abs(error).max():.2f}")
    axes[0, 0].set_ylabel("value; grid: e4m3")
    axes[1, 0].set_ylabel("error")
    return theme.describe(fig, f"A row of {tensor} before and after. {'; '.join(words)}.")


@styled
def scale_dilemma(limits: Sequence[float], errors: Mapping[str, Sequence[float]], *,
                  largest: float) -> Figure:
    """Draw the error of a tensor against the |x| that its scale still covers, a line per format.

    `largest` is the tensor's largest |x|: left of it, values are clipped.
    """
    fig, ax = theme.subplots(height=2.7)
    words = []
    for name, error in errors.items():
        color, marker = _FORMATS[name]
        ax.plot(limits, error, color=color, label=name)
        best = int(np.argmin(error))
        ax.plot([limits[best]], [error[best]], marker=marker, color=color, mec="white", ms=8)
        beside(ax, f"best {error[best]:.1%}", (limits[best], error[best]), (0, 18), va="baseline",
               ha="center", fontsize=SMALL, color=theme.readable(color), path_effects=theme.halo())
        beside(ax, name, (limits[-1], error[-1]), (4, 0), color=theme.readable(color),
               fontweight="bold")
        words.append(f"{name}: at best {error[best]:.1%}, at ±{limits[best]:.3g}")
    ax.axvline(largest, color=INK, lw=0.9, ls=(0, (4, 2)))
    ax.text(largest, 0.99, " the tensor's largest |x|", transform=ax.get_xaxis_transform(), va="top",
            fontsize=SMALL)
    for text, side in (("clipped ◂ ", "right"), (" ▸ coarser", "left")):
        ax.text(largest, 0.88, text, transform=ax.get_xaxis_transform(), va="top", ha=side,
                fontsize=SMALL, color=GREY)
    ax.set(xscale="log", yscale="log", xlabel="largest |x| that the scale covers",
           ylabel="relative error")
    ax.set_title("int8 has one good scale, e4m3 many", loc="left")
    ax.set_ylim(min(min(error) for error in errors.values()) / 1.7, 1.0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.set_major_formatter(FuncFormatter(_plain))
        axis.set_minor_formatter(NullFormatter())
    return theme.describe(fig, f"Relative error by what the scale covers. {'; '.join(words)}.")


# Errors by recipe.

@styled
def error_bars(rows: Sequence[Mapping], *, rotated: Collection[str], title: str = "") -> Figure:
    """Draw root mean square errors as bars on a linear axis, with their spread and the paper's.

    Args:
        rows: with "recipe", "rmse", "lowest" and "highest" (of a single seed) and "paper".
        rotated: names of the recipes that rotate.  title: what the bars say.
    """
    fig, ax = theme.subplots(height=0.95 + 0.36 * len(rows))
    fig.suptitle(title, x=0.012, ha="left", fontsize=10, fontweight="bold")
    for n, row in enumerate(rows):
        turned = row["recipe"] in rotated
        ax.barh([n], [row["rmse"]], height=0.62, edgecolor=theme.EDGE, lw=0.8,
                facecolor="#9FD6BC" if turned else "#E3C3B5", hatch="//" if turned else None)
        ax.plot([row["lowest"], row["highest"]], [n, n], color=INK, lw=1.6, solid_capstyle="butt",
                path_effects=theme.halo(3.6))
        ax.plot([row["paper"]], [n], "D", ms=6, color="white", mec=INK, mew=1.2)
        beside(ax, f"{row['rmse']:.4f}, {'rotated' if turned else 'not rotated'}",
               (max(row["rmse"], row["highest"], row["paper"]), n), (8, 0), fontsize=SMALL)
    ax.set(xlim=(0, 1.35 * max(row["highest"] for row in rows)), ylim=(len(rows) - 0.5, -0.5),
           xlabel="root mean square error of O")
    ax.set_yticks(range(len(rows)), [row["recipe"] for row in rows], color=INK, fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.text(1, 1.01, "line: lowest and highest set   ◇ paper", ha="right", fontsize=TINY, color=GREY,
            transform=ax.transAxes, va="bottom")
    text = "; ".join(f"{row['recipe']}: {row['rmse']:.2e}" for row in rows)
    return theme.describe(fig, f"Root mean square errors. {text}. {title}")


# Who holds which key.

@styled
def register_layout(layouts: Mapping[str, Sequence[int]], order: Sequence[int] = ()) -> Figure:
    """Draw which of four threads holds each of a row's columns, one line per layout.

    `order`: the column of the first layout that lies at each place of the second; arrows show thread 0.
    """
    count = len(next(iter(layouts.values())))
    fig, ax = theme.subplots(height=0.7 + 0.5 * len(layouts))
    shades = ("#FFFFFF", "#CFE0EC", "#86AFCB", "#33628D")
    for n, (title, owners) in enumerate(layouts.items()):
        for column, owner in enumerate(owners):
            rect(ax, column, n + 0.12, 1, 0.62, facecolor=shades[owner], edgecolor=theme.EDGE, lw=0.7)
            ax.text(column + 0.5, n + 0.43, str(owner), ha="center", va="center_baseline",
                    fontsize=SMALL, color=theme.ink_on(shades[owner]))
        ax.text(-0.5, n + 0.43, title, ha="right", va="center_baseline", fontsize=SMALL)
    first, second = list(layouts.values())[::max(len(layouts) - 1, 1)][:2] if order else ((), ())
    for place, column in enumerate(order):
        if first[column] == second[place] == 0 and column < 16:
            ax.annotate("", (place + 0.5, 1.12), (column + 0.5, 0.74), arrowprops={
                "arrowstyle": "-|>", "color": OVER, "lw": 1.1, "shrinkA": 0, "shrinkB": 0})
    ax.text(-0.5, 0.02, "column", ha="right", fontsize=TINY, color=GREY, va="bottom")
    for column in range(0, count, 4):
        ax.text(column + 0.5, 0.02, str(column), ha="center", fontsize=TINY, color=GREY, va="bottom")
    wide = max(theme.text_width(title, SMALL) for title in layouts)
    inch = (count + 0.5) / (theme.WIDTH - wide - 0.35)
    ax.set(xlim=(-0.5 - (wide + 0.1) * inch, count + 0.2), ylim=(len(layouts), -0.35))
    ax.axis("off")
    text = "; ".join(f"{title}: {' '.join(map(str, owners))}" for title, owners in layouts.items())
    return theme.describe(fig, f"Which thread of four holds which of {count} columns. {text}.")


# A kernel on a GPU.

@styled
def fp8_step(stalls: Measurement) -> Figure:
    """Draw where a warpgroup spends the cycles of one key tile, a bar for each kernel."""
    fig = theme.figure(2.15, layout=None)
    ax = fig.add_axes((0.1, 0.24, 0.88, 0.39))
    words = []
    for y, (variant, label) in enumerate(_STEPS.items()):
        x = 0.0
        for row in stalls.where(impl=variant).rows:
            look, name = _PHASES[row["phase"]]
            ax.barh(y, row["cycles"], 0.72, x, label=name, **{"edgecolor": theme.EDGE, **look})
            ax.text(x + row["cycles"] / 2, y, f"{row['cycles']:,.0f}", ha="center",
                    va="center_baseline", fontsize=TINY,
                    bbox={"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 0.8})
            words.append(f"{label}, {name}: {row['cycles']:.0f}")
            x += row["cycles"]
        ax.text(x + 20, y, f"{x:,.0f}", va="center_baseline", fontsize=SMALL, fontweight="bold")
    where = origin(stalls)
    heading(fig, f"In FP8 {theme.percent(row['cycles'] / x)} of a step is spent at the products")
    fig.text(0.012, 0.84, "In bfloat16 the maximum contains the wait for PV; in FP8 the softmax"
             " contains the wait for K and the request for QKᵀ.", fontsize=TINY)
    ax.margins(x=0.1)
    ax.set(ylim=(len(_STEPS) - 0.5, -0.5), xlabel=f"cycles of a warpgroup for one key tile; {where}")
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.set_yticks(range(len(_STEPS)), _STEPS.values(), fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    named = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    ax.legend(named.values(), named, loc="lower left", bbox_to_anchor=(-0.11, 1.0), ncols=3,
              fontsize=TINY, columnspacing=1.4, handlelength=1.4)
    return theme.describe(fig, f"Cycles of a warpgroup for one key tile, {where}. {'; '.join(words)}.")


@styled
def fp8_lab(value: float, scale: float, fmt: str, bits, near: Sequence[float], rows: Sequence[Mapping],
            *, chosen: str, heading: str, note: str = "", formula: tuple[int, int] = (3, 7)) -> Figure:
    """Draw the lab: one number bit by bit among its neighbors, and below the errors of attention.

    Args:
        value: the number; `scale`, by which it is divided; `bits`, `flashlib.quant.fields` of that.
        near: the values around it that the format can hold, times the scale.
        rows: for each recipe "recipe" and "rmse", drawn as a share of that of the second, "one scale",
            and "gains" of single draws, least first; the one named `chosen` is dark.
        note: a line under the heading of the bars.
        formula: the format's mantissa bits and its bias.
    """
    fig = theme.figure(4.5, layout=None)
    top = fig.add_axes((0, 0.66, 1, 0.34))
    top.set(xlim=(0, 7), ylim=(1.53, 0))
    top.axis("off")
    kept = bits.value * scale
    error = kept - value
    share = f" ({abs(error / value):.1%} of it)" if value else ""
    top.text(0.15, 0.2, f"{_plain(value)} / scale {scale:.4g} = {value / scale:.5g}, in {fmt}",
             fontsize=10, fontweight="bold", va="center")
    draw_bits(top, 0.15, 0.58, bits, size=0.3)
    top.text(2.75, 0.58, says(bits, *formula), va="center_baseline")
    top.text(0.15, 0.95, f"kept: {bits.value:g} × scale = {kept:.5g};   error {error:+.3g}{share}"
             .replace("-", "−"), va="center_baseline")
    line = fig.add_axes((0.05, 0.61, 0.9, 0.1))
    near = np.asarray(near)
    pad = 0.06 * (near[-1] - near[0])
    low, high = min(near[0], value) - pad, max(near[-1], value) + pad
    line.vlines(near, 0, 0.5, color="#8A94A3", lw=1.2)
    line.plot([value], [0.78], "v", color=OVER, ms=8, clip_on=False)
    beside(line, _plain(value), (value, 0.78), (7, 0), color=OVER, fontsize=SMALL,
           annotation_clip=False)
    line.vlines([kept], 0, 0.62, color=INK, lw=2.6)
    line.set(xlim=(low, high), ylim=(0, 0.8))
    line.set_yticks([])
    line.set_xticks(near[::2], [f"{x:.4g}".replace("-", "−") for x in near[::2]], fontsize=TINY)
    line.spines["left"].set_visible(False)
    bars = fig.add_axes((0.31, 0.105, 0.56, 0.34))
    plain = rows[1]["rmse"]
    for n, row in enumerate(rows):
        rect(bars, 0, n - 0.31, row["rmse"] / plain, 0.62, edgecolor=theme.EDGE, lw=0.8,
             facecolor="#35B779" if row["recipe"] == chosen else "#D5DDD8")
        gain = n > 1 and (f", {plain / row['rmse']:.1f} times less (draws: {row['gains'][0]:.1f} to"
                          f" {row['gains'][-1]:.1f})")
        bars.text(row["rmse"] / plain + 0.02, n, f"{row['rmse']:.2g}{gain or ''}", va="center_baseline",
                  fontsize=SMALL)
    bars.set(xlim=(0, WORST), ylim=(len(rows) - 0.5, -0.5))
    bars.set_xlabel("root mean square error of O, over that with one scale")
    bars.set_yticks(range(len(rows)), [row["recipe"] for row in rows], color=INK, fontsize=SMALL)
    bars.tick_params(axis="y", length=0)
    fig.text(0.02, 0.5, heading, fontsize=10, fontweight="bold")
    fig.text(0.02, 0.465, note, fontsize=SMALL)
    text = "; ".join(f"{row['recipe']}: {row['rmse']:.2e}" for row in rows)
    return theme.describe(fig, f"FP8 lab. {value:g} over a scale of {scale:.4g} in {fmt} is"
                               f" {bits.bits}, which keeps {kept:.5g}. Errors, {heading}: {text}.")
