"""Tile sizes on a GPU: whose bytes, predicted and measured times, and how well their orders agree."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from flashlib.course.plots import theme
from flashlib.course.plots.parts import bare, beside, cells, heading, rect, sentences
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, Figure, styled
from flashlib.models import predict as model

# Light is fast: the best tile stays readable, slow ones sink into the dark.
_SLOWER = LinearSegmentedColormap.from_list("flashlib_slower",
                                            ["#F3F8F0", "#CFE3CF", "#8DBFAF", "#4A8C94", "#2F5A78"])
_MARKERS = ("o", "s", "^", "D", "v", "P")
_COLORS = ("#33628D", "#C08F43", "#882255", "#117733", "#6F6F6F")


@styled
def whose_bytes(reads: Mapping[str, Sequence[float]], places: Sequence[str], *,
                title: str = "") -> Figure:
    """Draw what programs read, in GB: counted by the paper machine, received by the SMs, from DRAM.

    Args:
        reads: {program: three numbers of bytes}; a name with "v1", "v2" or "standard" has its hue.
        places: what the three numbers are.
    """
    fig, ax = theme.subplots(height=3.2 if title else 3.0)
    ax.set_title(title, loc="left")
    words, longest = [], max(map(max, reads.values())) / 1e9
    for n, (name, found) in enumerate(reads.items()):
        hue = theme.version_style(name, n)["color"]
        looks = ({"fc": "white", "ec": hue, "ls": "--", "lw": 1.4}, {"fc": hue, "ec": hue},
                 {"fc": theme.HBM["facecolor"], "ec": theme.EDGE, "hatch": theme.HBM["hatch"]})
        said = [f"{count / 1e9:.2f} GB {place}" for count, place in zip(found, places, strict=True)]
        for k, (count, text, look) in enumerate(zip(found, said, looks, strict=True)):
            y = 3.7 * n + k
            ax.barh(y, count / 1e9, height=0.82, **{"lw": 0.8, **look})
            beside(ax, text, (count / 1e9, y), (5, 0), fontsize=TINY,
                   fontweight="bold" if k == 2 else None)
        beside(ax, name, (0, 3.7 * n + 1), (-6, 0), ha="right", annotation_clip=False)
        words.append(f"{name}: {', '.join(said)}")
    ax.set(xlim=(0, 1.6 * longest), ylim=(3.7 * len(reads) - 1, -0.7), yticks=[], xticks=[])
    bare(ax, "bottom")
    return theme.describe(fig, f"Bytes read. {'; '.join(words)}.")


@styled
def l2_rates(curves: Mapping[str, tuple], *, l2_bytes: float, dram_rate: float) -> Figure:
    """Draw how fast all SMs together read one piece again and again, over its size.

    Args:
        curves: {label: (bytes of the piece, bytes per second)}.
        l2_bytes: where a line marks the L2's size.  dram_rate: the sheet's, a dashed line.
    """
    fig, ax = theme.subplots(height=3.2)
    words = []
    for n, (label, (sizes, rates)) in enumerate(curves.items()):
        sizes, rates = np.asarray(sizes) / 2**20, np.asarray(rates) / 1e12
        ax.plot(sizes, rates, marker=_MARKERS[n], color=_COLORS[n], ms=4.5, lw=1.6, label=label)
        words.append(f"{label}: {rates[0]:.1f} TB/s at {sizes[0]:g} MiB, {rates[-1]:.1f} at"
                     f" {sizes[-1]:,g}")
    ax.axvline(l2_bytes / 2**20, color=INK, lw=1)
    beside(ax, f"L2, {l2_bytes / 2**20:.0f} MiB", (l2_bytes / 2**20, 23), (4, 0), fontsize=TINY)
    ax.axhline(dram_rate / 1e12, color=GREY, lw=1, ls="--")
    beside(ax, f"DRAM by the sheet, {dram_rate / 1e12:.1f} TB/s", (1, dram_rate / 1e12), (0, -7),
           fontsize=TINY, color=GREY)
    ticks = [2**n for n in range(0, 11, 2)]
    ax.set(xscale="log", ylim=(0, 24), xlabel="size of the piece (MiB)", ylabel="received (TB/s)")
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.set_title("L2 gives two to four times DRAM's rate", loc="left")
    ax.legend(fontsize=TINY, frameon=False, loc="upper right")
    return theme.describe(fig, f"Read rate of all SMs over the size of a piece. {'; '.join(words)}.")


@styled
def time_maps(maps: Mapping[str, np.ndarray], Br_values: Sequence[int], Bc_values: Sequence[int], *,
              reach: float = 4.0) -> Figure:
    """Draw times in milliseconds over tile heights, one map beside the other, each map's best framed.

    Args:
        maps: {title: (len(Br_values), len(Bc_values)) seconds}; NaN or infinity has no time.
        reach: how many times the best is as dark as it gets.
    """
    shape = (len(Br_values), len(Bc_values))
    for title, seconds in maps.items():
        if np.shape(seconds) != shape:
            raise ValueError(f"maps: expected shape {shape} for {title!r}, got {np.shape(seconds)}")
    fig, axes = theme.subplots(1, len(maps), height=2.75, squeeze=False)
    words = []
    for ax, (title, seconds) in zip(axes[0], maps.items(), strict=True):
        seconds = np.asarray(seconds, dtype=float)
        best = np.unravel_index(np.nanargmin(np.where(np.isfinite(seconds), seconds, np.nan)), shape)
        _time_map(ax, seconds, Br_values, Bc_values, seconds[best], [best], reach)
        rect(ax, best[1] - 0.47, best[0] - 0.47, 0.94, 0.94, fill=False, ec=INK, lw=2)
        ax.set_title(title, fontsize=9)
        words.append(f"{title}: best {1e3 * seconds[best]:.2f} ms at {Br_values[best[0]]}×"
                     f"{Bc_values[best[1]]}")
    axes[0][0].set_ylabel("Br, queries per tile")
    return theme.describe(fig, f"Milliseconds over tile heights. {'; '.join(words)}.")


def _time_map(ax, seconds, rows, columns, least, bold, reach=4.0) -> None:
    """Draw milliseconds over tile heights, darker up to `reach` times the least; hatched has none."""
    colors = [[_SLOWER(min(1.0, np.log(s / least) / np.log(reach))) if np.isfinite(s) else "#FFFFFF"
               for s in line] for line in seconds]
    texts = [[f"{1e3 * s:.2f}" if np.isfinite(s) else "" for s in line] for line in seconds]
    none = {"fc": "none", "lw": 0, "hatch": "////", "ec": theme.tint(OVER, 0.45)}
    over = {(i, j): none for i, j in np.argwhere(~np.isfinite(seconds)).tolist()}
    cells(ax, colors, texts, columns, rows, size=9, bold=bold, over=over)
    ax.set_xlabel("Bc, keys per tile")


@styled
def predicted_scatter(panels: Mapping[str, Mapping[str, tuple]]) -> Figure:
    """Draw measured over predicted milliseconds, log-log, groups marked; the line is 'as predicted'.

    `panels` maps a title to {group: (predicted seconds, measured seconds)}. Below the line a kernel
    is faster than predicted.
    """
    fig, axes = theme.subplots(1, len(panels), height=3.1, squeeze=False, sharex=True, sharey=True)
    values = [1e3 * np.asarray(x) for groups in panels.values() for p in groups.values() for x in p]
    low, high = min(v.min() for v in values) * 0.8, max(v.max() for v in values) * 1.25
    names = list(dict.fromkeys(name for groups in panels.values() for name in groups))
    words = []
    for ax, (title, groups) in zip(axes[0], panels.items(), strict=True):
        ax.plot([low, high], [low, high], color=GREY, lw=1, ls="--", zorder=1)
        for name, (predicted, measured) in groups.items():
            n = names.index(name)
            ax.plot(1e3 * np.asarray(predicted), 1e3 * np.asarray(measured), ls="none", ms=5,
                    marker=_MARKERS[n], color=_COLORS[n], alpha=0.75, mec="white", mew=0.5, label=name)
            words.append(f"{title}, {name}: {np.median(np.divide(measured, predicted)):.2f} times")
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), title=title,
               xlabel="predicted (ms)")
        ticks = [t for t in (0.5, 1, 2, 4, 8) if low < t < high]
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(ticks, [f"{t:g}" for t in ticks])
            axis.set_ticks([], minor=True)
    axes[0][0].set_ylabel("measured (ms)")
    axes[0][-1].legend(loc="lower right", fontsize=TINY, frameon=False, handletextpad=0.2)
    beside(axes[0][0], "as predicted", (high * 0.9, high * 0.9), (-8, 2), va="top", ha="right",
           fontsize=TINY, color=GREY, rotation=0)
    return theme.describe(fig, f"Measured over predicted time, medians. {'; '.join(words)}.")


@styled
def agreement(levels: Sequence[str], correlation: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the rank correlation of prediction and measurement as the model learns more."""
    fig, ax = theme.subplots(height=2.7)
    for n, (label, values) in enumerate(correlation.items()):
        ax.plot(range(len(levels)), values, marker=_MARKERS[n], color=_COLORS[n])
        for x, value in enumerate(values):
            beside(ax, f"{value:.2f}", (x, value), (0, 6 if n == 0 else -13), va="baseline",
                   ha="center", fontsize=TINY, color=theme.readable(_COLORS[n]))
        beside(ax, label, (len(levels) - 1, values[-1]), (9, 0), fontsize=SMALL,
               color=theme.readable(_COLORS[n]), annotation_clip=False)
    ax.set_xticks(range(len(levels)), [f"{'+ ' if n else ''}{level}" for n, level in enumerate(levels)])
    ax.set(ylim=(0, 1.05), xlim=(-0.3, len(levels) - 0.35), ylabel="rank correlation")
    ax.set_title("Occupancy, spills and shapes improve the order that bytes give", loc="left")
    words = "; ".join(f"{label} from {v[0]:.2f} to {v[-1]:.2f}" for label, v in correlation.items())
    return theme.describe(fig, f"Spearman's rank correlation by what the model knows: {words}.")


@styled
def tuning_curves(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw how far the best of k tried configurations is from the best of all, for growing k.

    `curves` maps a panel's title to {strategy: slowdown after 1, 2, … trials}.
    """
    fig, axes = theme.subplots(1, len(curves), height=2.8, squeeze=False, sharey=True)
    words = []
    for ax, (title, strategies) in zip(axes[0], curves.items(), strict=True):
        for n, (label, slowdown) in enumerate(strategies.items()):
            ax.plot(range(1, len(slowdown) + 1), slowdown, color=_COLORS[n], lw=1.8,
                    ls="-" if n == 0 else "--", label=label, drawstyle="steps-post" if n == 0 else None)
            words.append(f"{title}, {label}: {slowdown[0]:.2f} after one trial")
        ax.set(xscale="log", title=title, xlabel="configurations tried")
        ticks = [t for t in (1, 3, 10, 30) if t <= max(len(s) for s in strategies.values())]
        ax.set_xticks(ticks, [str(t) for t in ticks])
        ax.set_xticks([], minor=True)
        ax.axhline(1, color=GREY, lw=0.8)
    axes[0][0].set(ylabel="time of the best so far ÷ best", ylim=(0.95, None))
    axes[0][-1].legend(fontsize=TINY, frameon=False)
    return theme.describe(fig, f"What tuning finds. {'; '.join(words)}.")


_PARTS = {"memory": "#ECECEC", "L2": "#8DA9C4", "matmul": "#33628D", "softmax": "#999933"}
_HATCH = {"memory": "////", "L2": "....", "matmul": "", "softmax": "xxxx"}


@styled
def tile_lab(times: Mapping[tuple[int, int], float], chosen: tuple[int, int], mine: model.Prediction,
             gpu, *, title: str) -> Figure:
    """Draw what a configuration asks of an SM, and the predicted times of its neighbors.

    Args:
        times: {(Br, Bc): seconds}, infinite where nothing fits; `chosen` is the one examined.
        mine: its prediction.  gpu: whose budgets they are.
    """
    fig = theme.figure(3.45, layout=None)
    heading(fig, title)
    best = _map(fig.add_axes((0.085, 0.15, 0.41, 0.68)), times, chosen)
    said = sentences(fig, _verdicts(mine, gpu, *chosen), 0.545, 0.85, 0.083)
    _parts(fig.add_axes((0.63, 0.06, 0.30, 0.3)), mine)
    return theme.describe(fig, f"Tile lab. {title}. {said}"
                          + (f". Best of the map: {' and '.join(f'{r}×{c}' for r, c in best)},"
                             f" {1e3 * times[best[0]]:.2f} ms."
                             if best else ". No tile of the map fits."))


def _map(ax, times, chosen):
    """Draw predicted milliseconds over tile heights; return the best tiles, several if they tie."""
    rows, columns = (sorted({tile[n] for tile in times}) for n in (0, 1))
    seconds = np.array([[times[r, c] for c in columns] for r in rows])
    least = seconds.min()
    best = [(i, j) for i, j in np.ndindex(seconds.shape)
            if seconds[i, j] <= least * (1 + 1e-9) and math.isfinite(least)]
    _time_map(ax, seconds, rows, columns, least, best)
    rect(ax, columns.index(chosen[1]) - 0.46, rows.index(chosen[0]) - 0.46, 0.92, 0.92, fill=False,
         ec=INK, lw=2)
    ax.set_ylabel("Br, queries per tile")
    ax.set_title("predicted ms: yours framed, the best bold", fontsize=SMALL, color=GREY)
    return [(rows[i], columns[j]) for i, j in best]


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
