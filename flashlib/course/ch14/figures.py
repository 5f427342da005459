"""The figures of chapter 14: units racing each other, a polynomial's error, a maximum out of date."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from flashlib.course.plots import theme
from flashlib.course.plots.gantt import gantt
from flashlib.course.plots.parts import beside, cells, rect
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, Figure, styled

# Unit: its name for people, color, line, marker.
UNITS = {"matmul": ("matmul", "#31688E", "-", "s"),
         "exp": ("exponentials", "#999933", (0, (5, 1.5)), "o"),
         "vector": ("float32 lanes", "#B4B4B4", "-", "^"),
         "shared": ("shared memory", "#8B5E83", (0, (1, 1)), "D")}
_HATCHES = {"exp": "///", "vector": "...", "shared": "xx"}
_STEPS = ("#440154", "#3B528B", "#21918C", "#5DAA4B", "#B8A018", "#8A6D3B", "#222222")
_MARKERS = ("o", "D", "^", "v", "s", "P", "X")
BFLOAT16_HALF_STEP = 2.0 ** -8      # of numbers from 1 to 2, such as 2ᶠ
LONGEST = 3200                      # cycles on the lab's axis, whatever its controls say


@styled
def unit_race(panels: Mapping[str, Mapping[str, object]], *, title: str = "") -> Figure:
    """Draw cycles of each unit for a tile, from one GPU to the next, log scale.

    `panels` maps a title to {GPU: `models.exponentials.Units`}.
    """
    fig, axes = theme.subplots(1, len(panels), height=3.1, squeeze=False, sharey=True)
    if title:
        fig.suptitle(title, x=0.012, ha="left", fontsize=10, fontweight="bold")
    words = []
    for ax, (name, gpus) in zip(axes[0], panels.items(), strict=True):
        for unit, above in {"matmul": 9, "shared": 8, "exp": -17}.items():
            label, color, line, marker = UNITS[unit]
            cycles = [getattr(u, unit) for u in gpus.values()]
            ax.plot(range(len(gpus)), cycles, color=color, marker=marker, ms=6, lw=2, gid=unit, ls=line,
                    mec="white", mew=0.7)
            beside(ax, label, (0, cycles[0]), (-15, above), va="baseline", color=theme.readable(color),
                   fontsize=SMALL, fontweight="bold", path_effects=theme.halo())
        words.append(f"{name}: " + ", ".join(
            f"{gpu} {u.matmul:,.0f}, {u.shared:,.0f} and {u.exp:,.0f}" for gpu, u in gpus.items()))
        ax.set_xticks(range(len(gpus)), list(gpus))
        ax.set_title(name, fontsize=9, fontweight="normal" if title else "bold")
        ax.set(yscale="log", xlim=(-0.35, len(gpus) - 0.65), ylim=(330, 12500))
        ax.set_yticks([512, 1024, 2048, 4096, 8192], ["512", "1,024", "2,048", "4,096", "8,192"])
        ax.set_yticks([], minor=True)
        ax.grid(axis="y", color=theme.GRID, lw=0.6)
    axes[0][0].set_ylabel("cycles of an SM for a tile")
    return theme.describe(fig, "Cycles of an SM for the matmuls, for shared memory and for the"
                               f" exponentials of a tile of 128 by 128, computed. {'; '.join(words)}.")


@styled
def pipeline(schedule, window: tuple[float, float], *, title: str) -> Figure:
    """Draw a stretch of v4's schedule, in cycles; where the tensor cores stand still, it is red."""
    fig = gantt(schedule, window=window, units=("tensor", "exp", "alu"), title=title)
    for text in fig.axes[0].texts:                          # of the whole run; a stretch is not that
        if text.get_text().endswith((" %", "whole run")):
            text.set_visible(False)
    theme.describe(fig, theme.alt_text(fig).replace("busy:", "busy in the whole run:"))
    free = 0.0
    for event in (e for e in schedule.events if e.unit == "tensor"):      # in the order of their start
        if event.start > free:
            rect(fig.axes[0], free, 0, event.start - free, 1, fc=theme.tint(OVER, 0.6), ec="none",
                 zorder=0.1, gid="idle")
        free = max(free, event.end)
    return fig


@styled
def exp2_errors(f, errors: Mapping[int, np.ndarray], *, title: str = "", ax=None):
    """Draw the relative error of polynomials over the fraction f, by degree, and half a bf16 step.

    `errors` maps a degree to |p(f)/2ᶠ − 1|. Half a step is 2⁻⁸ for results from 1 to 2: divided by
    the result it is what rounding to the nearest may err by.
    """
    own = ax is None
    fig, ax = theme.canvas(ax, height=3.2)
    floor = 1e-9
    for degree, error in errors.items():
        color = _STEPS[(degree - 1) % len(_STEPS)]
        error = np.maximum(np.abs(error), floor)
        ax.plot(f, error, color=color, lw=1.5, gid=f"degree {degree}")
        beside(ax, f"degree {degree}: {error.max():.1e}", (1.0, error.max()), (5, 0), fontsize=SMALL,
               annotation_clip=False, color=theme.readable(color))
    ax.plot(f, BFLOAT16_HALF_STEP / np.exp2(f), color=OVER, lw=1, ls="--", gid="half a step")
    beside(ax, "half a step of bfloat16", (0.4, BFLOAT16_HALF_STEP / 2**0.4), (0, 2), va="bottom",
           color=OVER, fontsize=SMALL, ha="center")
    ax.set(yscale="log", xlim=(0, 1), ylim=(floor, 0.3), xlabel="f, the fraction of the exponent",
           ylabel="|p(f) / 2ᶠ − 1|")
    ax.set_title(title, fontsize=10)
    ax.set_yticks([1e-8, 1e-6, 1e-4, 1e-2], ["10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²"])
    ax.set_yticks([], minor=True)
    words = ", ".join(f"{d}: {np.abs(e).max():.1e}" for d, e in errors.items())
    text = ("Relative error of the polynomial over the fraction, log scale; largest by degree"
            f" {words}. Half a step of bfloat16 falls from {BFLOAT16_HALF_STEP:.1e} to"
            f" {BFLOAT16_HALF_STEP / 2:.1e}.")
    return theme.describe(fig, text) if own else ax


@styled
def share_sweep(shares: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[float]]], *,
                floors: Mapping[str, Sequence[float]]) -> Figure:
    """Draw cycles per tile over the emulated share: simulated with markers, the bound dashed.

    All panels have one vertical axis, which does not begin at 0 and says so.

    Args:
        panels: {title: {label: simulated cycles}}.  floors: {title: the busiest unit's cycles}.
    """
    fig, axes = theme.subplots(1, len(panels), height=3.0, squeeze=False, sharey=True)
    percent, words = 100 * np.asarray(shares), []
    low = min(np.min(floor) for floor in floors.values())
    high = max(np.max(cycles) for series in panels.values() for cycles in series.values())
    for ax, (title, series) in zip(axes[0], panels.items(), strict=True):
        floor = np.asarray(floors[title])
        ax.plot(percent, floor, color=GREY, ls=(0, (4, 2)), lw=1.5, gid="bound",
                label="busiest unit, no rescales")
        last, least = None, []
        for n, (label, cycles) in enumerate(series.items()):
            cycles = np.asarray(cycles)
            best = int(np.flatnonzero(cycles <= 1.0001 * cycles.min())[0])     # of equal ones the first
            ax.plot(percent, cycles, color=_STEPS[2 * n], marker=_MARKERS[n], ms=4, lw=1.5, gid=label,
                    label=label)
            if last is None or cycles[best] < 0.9999 * last:
                ax.plot(percent[best], cycles[best], marker="o", ms=10, mfc="none", mec=_STEPS[2 * n])
                last = cycles[best]
                least.append(f"{percent[best]:.0f}")
            words.append(f"{title}, {label}: {cycles[0]:,.0f} at no share, least {cycles[best]:,.0f}"
                         f" at {percent[best]:.0f} %")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        found = "no share gains" if least == ["0"] else f"best at {' or '.join(least)} %"
        ax.set_title(f"{title}:\n{found}", fontsize=9, loc="left")
        ax.set(xlabel="emulated share (%)", ylim=(0.96 * low, 1.04 * high))
    axes[0][0].legend(fontsize=TINY, frameon=False, loc="upper left")
    axes[0][0].set_ylabel("cycles for 128 × 128 (not from 0)")
    return theme.describe(fig, f"Simulated cycles per tile. {'; '.join(words)}.")


@styled
def stale_maximum(maxima, used: Mapping[float, np.ndarray], *, ax=None):
    """Draw one row's running maximum over its key tiles, and the reference that it uses, by τ.

    Args:
        maxima: of every tile, units of log 2.  used: {τ: reference at every tile}.
    """
    own = ax is None
    fig, ax = theme.canvas(ax, height=2.9)
    maxima = np.asarray(maxima)
    x, running = np.arange(1, len(maxima) + 1), np.maximum.accumulate(maxima)
    ax.plot(x, maxima, ls="none", marker="o", ms=5.5, color=theme.edge_color("S"), zorder=3,
            mfc=theme.tensor_color("S"), label="largest logit of the tile")
    if 0.0 not in used:                                     # τ = 0 is the running maximum itself
        ax.step(x, running, where="mid", color=INK, lw=1, ls=":", label="true running maximum")
    words, marked = [], [tau for tau in used if tau]
    for n, (tau, m) in enumerate(used.items()):             # later ones thicker, and below
        m = np.asarray(m)
        renewed = np.flatnonzero(np.diff(m)) + 1
        color = _STEPS[2 * n]
        place = marked.index(tau) if tau else 0
        ax.step(x, m, where="mid", color=color, lw=2 + 3 * place if tau else 1.2,
                ls="-" if tau else (0, (3, 1.5)), zorder=2.4 - 0.1 * place if tau else 2.5,
                label=f"τ = {tau:g}: {len(renewed)} rescale{'s' * (len(renewed) != 1)}")
        if tau:
            shift = ScaledTranslation((place - (len(marked) - 1) / 2) * 0.15, 0, fig.dpi_scale_trans)
            ax.plot(x[renewed], m[renewed], ls="none", marker="^", ms=9, color=color, mec="white",
                    zorder=4, transform=ax.transData + shift)
        words.append(f"with tau {tau:g}, {len(renewed)} rescale{'s' * (len(renewed) != 1)}")
    ax.set(xlabel="key tile", ylabel="logit · log₂ e", xlim=(0.4, len(maxima) + 0.6))
    ax.legend(fontsize=TINY, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4,
              borderaxespad=0.1, handlelength=1.6, columnspacing=1.2)
    text = f"A row's maximum over {len(maxima)} key tiles; {'; '.join(words)}."
    return theme.describe(fig, text) if own else ax


def _whole(percent: float) -> str:
    """Round to whole per cent; what is not all or nothing does not become it."""
    return "<1" if 0 < percent < 0.5 else ">99" if 99.5 <= percent < 100 else f"{percent:.0f}"


@styled
def skipped_maps(maps: Mapping[str, np.ndarray], scales: Sequence[float],
                 taus: Sequence[float]) -> Figure:
    """Draw the share of skipped rescales, in per cent, over the logits' scale and τ."""
    fig, axes = theme.subplots(1, len(maps), height=2.75, squeeze=False)
    words = []
    for ax, (title, shares) in zip(axes[0], maps.items(), strict=True):
        shares = np.asarray(shares)
        colors = [[theme.mix("#FFFFFF", "#31688E", share) for share in line] for line in shares]
        texts = [[_whole(100 * share) for share in line] for line in shares]
        cells(ax, colors, texts, taus, scales)
        ax.set_xlabel("τ (units of log 2)")
        ax.set_title(title, fontsize=9)
        words.append(f"{title}: from {100 * shares[-1, 0]:.0f} % at std {scales[-1]:g}, tau"
                     f" {taus[0]:g}, to {100 * shares[0, -1]:.0f} % at std {scales[0]:g}, tau"
                     f" {taus[-1]:g}")
    axes[0][0].set_ylabel("std of the logits")
    return theme.describe(fig, f"Share of rescales skipped. {'; '.join(words)}.")


@styled
def mass_curve(taus: Sequence[float], kept: Mapping[str, Sequence[float]], room: float, *,
               title: str = "") -> Figure:
    """Draw the smallest mass of all rows over τ, and the τ that the format has room for."""
    fig, ax = theme.subplots(height=2.8)
    words = []
    for n, (label, mass) in enumerate(kept.items()):
        color = _STEPS[2 * n]
        ax.plot(taus, mass, color=color, marker=_MARKERS[n], ms=5, mec="white", gid=label)
        beside(ax, f"{label}: {mass[-1]:.2f}", (taus[-1], mass[-1]), (8, 0),
               color=theme.readable(color), fontsize=SMALL, annotation_clip=False)
        words.append(f"{label} from {mass[0]:.2f} to {mass[-1]:.2f}")
    ax.axvline(room, color=OVER, lw=1, ls="--")
    ax.text(room, 0.06, f" log₂ 448 − 8 = {room:.2f}", color=OVER, fontsize=SMALL, va="bottom")
    ax.axhline(1, color=GREY, lw=0.8)
    ax.set(xlabel="τ (units of log 2)", ylabel="smallest O of a row, V = 1", ylim=(0, 1.08))
    ax.set_title(title, fontsize=10)
    return theme.describe(fig, f"Smallest mass over tau; the bound is {room:.2f}. {'; '.join(words)}.")


@styled
def predicted_gains(groups: Mapping[str, Sequence[Mapping]], strays: Mapping[str, tuple[float, float]],
                    *, title: str, source: str = "") -> Figure:
    """Draw speed relative to a kernel, a panel for each change to it and a line for each group.

    Predicted are rings, measured diamonds with their range; 1 is the kernel as it is.

    Args:
        groups: {group: rows with label, predicted, measured, low, high}; every group has the same
            labels, in the same order.
        strays: {group: (low, high)}, how far that kernel strays from its own median; drawn grey.
    A diamond is filled if its range lies wholly outside the grey.
    """
    panels = len(next(iter(groups.values())))
    fig, axes = theme.subplots(1, panels, height=1.35 + 0.27 * len(groups), squeeze=False, sharey=True)
    words = []
    for y, (group, rows) in enumerate(groups.items()):
        low, high = strays[group]
        for ax, row in zip(axes[0], rows, strict=True):
            rect(ax, low, y - 0.42, high - low, 0.84, fc="#E4E4E4", ec="none", zorder=0,
                 gid=f"strays: {group}")
            clear = row["low"] > high or row["high"] < low
            ax.plot([row["low"], row["high"]], [y, y], color=_STEPS[1], lw=3, alpha=0.5,
                    solid_capstyle="butt")
            ax.plot(row["measured"], y, marker="D", ms=6, color=_STEPS[1], mec=_STEPS[1],
                    mfc=_STEPS[1] if clear else "white")
            ax.plot(row["predicted"], y, marker="o", ms=9, mfc="none", mec=OVER, mew=1.4)
            words.append(f"{group}, {row['label']}: predicted {row['predicted']:.2f}, measured"
                         f" {row['measured']:.2f}{', clearly' * clear}")
    ends = [x for rows in groups.values() for r in rows for x in (r["low"], r["high"], r["predicted"])]
    ends += [x for pair in strays.values() for x in pair]
    for ax, row in zip(axes[0], next(iter(groups.values())), strict=True):
        ax.axvline(1, color=GREY, lw=1, zorder=0.5)
        ax.set_title(row["label"], fontsize=9)
        ax.set(xlim=(min(ends) - 0.02, max(ends) + 0.02), ylim=(len(groups) - 0.5, -0.5))
    axes[0][0].set_yticks(range(len(groups)), list(groups), fontsize=SMALL)
    axes[0][0].plot([], [], ls="none", marker="o", ms=9, mfc="none", mec=OVER, mew=1.4,
                    label="simulated")
    for name, face in (("recorded, clear", _STEPS[1]), ("recorded, not clear", "white")):
        axes[0][0].plot([], [], ls="none", marker="D", color=_STEPS[1], mfc=face, label=name)
    rect(axes[0][0], 1, 0, 0, 0, fc="#E4E4E4", label="range of the kernel as it is")
    fig.legend(*axes[0][0].get_legend_handles_labels(), fontsize=SMALL, frameon=False, ncols=4,
               loc="outside lower center", handletextpad=0.4, columnspacing=1.2)
    below = f"speed, relative to the kernel as it is{source and f' ({source})'}"
    axes[0][panels // 2].set_xlabel(below)
    fig.suptitle(title, x=0.012, ha="left", fontsize=10, fontweight="bold")
    return theme.describe(fig, f"{title}. {source and f'{source}. '}{'; '.join(words)}.")


@styled
def exp2_lab(f, error, units, simulated, maxima, used, *, degree: int, tau: float, gpu: str,
             fits: bool) -> Figure:
    """Draw the lab's three panels: the polynomial's error, the units' cycles, one row's maximum.

    Args:
        f, error: the fraction and |p(f)/2ᶠ − 1|.
        units: `models.exponentials.Units` of a tile.  simulated: cycles per tile.
        maxima, used: of one row, over its key tiles; see `stale_maximum`.
        fits: whether e4m3 has room for a shift of 8 and this τ.
    """
    fig = theme.figure(4.9, layout=None)
    curve = fig.add_axes((0.09, 0.63, 0.33, 0.30))
    bars = fig.add_axes((0.60, 0.63, 0.36, 0.30))
    row = fig.add_axes((0.09, 0.10, 0.87, 0.32))
    exp2_errors(f, {degree: error}, ax=curve)
    curve.texts[0].set_visible(False)                      # the title says it
    curve.set_title(f"degree {degree}: error up to {np.max(error):.1e}", fontsize=9)
    values = {unit: getattr(units, unit) for unit in UNITS}
    longest = max(values, key=values.get)
    for y, (unit, cycles) in enumerate(values.items()):
        rect(bars, 0, y - 0.3, cycles, 0.6, fc=UNITS[unit][1], ec="white", hatch=_HATCHES.get(unit),
             lw=0.6)
        bars.text(0.02 * LONGEST, y, f"{cycles:,.0f}", va="center_baseline", fontsize=SMALL,
                  fontweight="bold" if unit == longest else None,
                  bbox={"fc": "white", "ec": "none", "pad": 1.2})
    bars.axvline(simulated, color=OVER, lw=1.2, ls="--", zorder=1.5)
    bars.set(xlim=(0, LONGEST), ylim=(3.5, -0.5), xlabel="cycles of an SM for 128 × 128")
    bars.set_yticks(range(4), [UNITS[unit][0] for unit in values], fontsize=SMALL)
    bars.set_title(f"{gpu}: simulated {simulated:,.0f}", fontsize=9)
    stale_maximum(maxima, {tau: used}, ax=row)
    row.set_title(f"one row of 32 key tiles; e4m3 with a shift of 8 has {'' if fits else 'no '}room"
                  f" for τ = {tau:g}", fontsize=9, pad=18)
    curve.set_xticks([0, 0.5, 1])
    for axis in (bars.xaxis, row.xaxis, row.yaxis):        # few ticks in plain text draw faster
        axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    for axis in (curve.xaxis, bars.xaxis, row.xaxis, row.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}".replace("-", "−")))
    renewed = int(np.count_nonzero(np.diff(used)))
    rescales = f"{renewed} rescale{'s' * (renewed != 1)}"
    return theme.describe(fig, f"Degree {degree}: largest error {np.max(error):.1e}. {gpu}:"
                               f" matmul {units.matmul:,.0f}, exponentials {units.exp:,.0f}, vector"
                               f" {units.vector:,.0f}, shared memory {units.shared:,.0f} cycles,"
                               f" {simulated:,.0f} cycles simulated. One row with tau {tau:g}:"
                               f" {rescales}; e4m3 has {'' if fits else 'no '}room for it.")
