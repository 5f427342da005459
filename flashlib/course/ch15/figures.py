"""The figures of chapter 15: time against parts, busy SMs, two harnesses, a map of parts, the lab."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import NullLocator

from flashlib.course.plots import theme
from flashlib.course.plots.parts import beside, boxes, cells, rect
from flashlib.course.plots.theme import EDGE, GREY, INK, OVER, SMALL, TINY, Figure, styled
from flashlib.models.occupancy import Waves

_SLOWER = LinearSegmentedColormap.from_list(
    "flashlib_slower", ["#F7FBFA", "#CFE0E0", "#6FA0AE", "#1F4E5F"]
)
_PROGRAM = theme.tint(theme.tensor_color("Q"), 0.35)
_MOST_WAVES = 60
_IDLE = {"facecolor": "#F6F6F6", "edgecolor": "#CFCFCF", "hatch": "////", "lw": 0}


@styled
def u_shape(
    measured: Mapping[int, float],
    floor: float,
    choices: Mapping[str, int],
    source: str,
    *,
    predicted: Mapping[int, float] | None = None,
    ours: float | None = None,
    title: str = "",
) -> Figure:
    """Draw seconds against the number of parts, the floor, and which number each library takes.

    Args:
        measured: parts → seconds; empty where only `predicted` is drawn.
        floor: seconds of a kernel that only reads the same bytes.
        choices: a library → its number of parts.  source: where and when it was recorded.
        predicted: parts → seconds of a model.  ours: seconds of the library's kernel as it is shipped.
    """
    fig, ax = theme.subplots(height=3.7)
    shown = measured or predicted or {}
    xs, ys = np.array(sorted(shown)), [1e6 * shown[x] for x in sorted(shown)]
    low, high = 1e6 * floor / 1.9, 1.35 * max(ys)
    ax.axhspan(low, 1e6 * floor, fc="#ECECEC", ec="none", zorder=0)
    ax.text(
        xs[-1] * 1.25,
        1e6 * floor * 0.955,
        f"only reading K and V: {1e6 * floor:.1f} µs",
        fontsize=TINY,
        color=GREY,
        va="top",
        ha="right",
    )
    if measured:
        ax.plot(xs, ys, "-o", color=INK, ms=4.5, lw=1.4, zorder=3)
    if predicted:
        ax.plot(
            sorted(predicted),
            [1e6 * predicted[x] for x in sorted(predicted)],
            ls=(0, (4, 2)),
            color="#31688E",
            lw=1.4,
            zorder=2,
        )
        worst = max(predicted, key=lambda x: predicted[x] / measured.get(x, np.inf))
        beside(
            ax,
            "predicted",
            (worst, 1e6 * predicted[worst]),
            (3, 6),
            fontsize=TINY,
            color="#31688E",
        )
    best = min(shown, key=lambda x: shown[x])
    for x, by, text in (
        (xs[0], (7, 1), f"{ys[0]:,.0f} µs"),
        (best, (0, -11), f"{1e6 * shown[best]:.1f} µs"),
        (xs[-1], (0, 10), f"{ys[-1]:.0f} µs"),
    ):
        beside(
            ax,
            text,
            (x, 1e6 * shown[x]),
            by,
            fontsize=SMALL,
            fontweight="bold",
            ha="left" if x == xs[0] else "center",
            path_effects=theme.halo(),
        )
    if ours is not None:
        ax.plot([choices["flashlib"]], [1e6 * ours], "D", ms=7, mfc="none", mec=OVER, mew=1.3, zorder=4)
        beside(ax, f"flashlib: {1e6 * ours:.1f} µs", (choices["flashlib"], 1e6 * ours), (4, 30),
               fontsize=TINY, color=OVER, path_effects=theme.halo(),
               arrowprops={"arrowstyle": "-", "color": OVER, "lw": 0.7, "shrinkA": 0, "shrinkB": 5})
    at: dict[int, list[str]] = {}
    for name, parts in choices.items():
        at.setdefault(parts, []).append(name)
    for n, (parts, names) in enumerate(sorted(at.items())):
        y = low * (1.09 if n % 2 else 1.3)
        ax.plot([parts, parts], [low, y], color=EDGE, lw=0.9)
        ax.text(
            parts,
            y,
            f"{', '.join(names)}: {parts}",
            fontsize=TINY,
            ha="right" if n < len(at) / 2 else "left",
            va="bottom",
            path_effects=theme.halo(),
        )
    ax.set(xscale="log", yscale="log", xlim=(0.85, 1.35 * xs[-1]), ylim=(low, high))
    ticks = [x for x in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if x <= xs[-1]]
    ax.set_xticks(ticks, [str(x) for x in ticks])
    marks = [t for t in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if low < t < high]
    ax.set_yticks(marks, [f"{t:,}" for t in marks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(f"parts that the keys are cut into ({source})", fontsize=SMALL)
    ax.set_ylabel("parts and their merge, µs", fontsize=SMALL)
    ax.set_title(title, fontsize=10, loc="left")
    return theme.describe(
        fig,
        f"{'Recorded' if measured else 'Predicted'} time against the number of parts: "
        + "; ".join(f"{x} part{'s' * (x > 1)} {1e6 * shown[x]:.1f} µs" for x in sorted(shown))
        + f". Only reading takes {1e6 * floor:.1f} µs. "
        + "; ".join(f"{name} takes {parts}" for name, parts in choices.items())
        + ".",
    )


@styled
def sms(panels: Mapping[str, Waves]) -> Figure:
    """Draw every SM as a square, by how many programs it has; idle ones are hatched and counted."""
    across = 22
    rows = -(-next(iter(panels.values())).sms // across)
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    height = lines * (0.145 * rows + 0.32) + 0.1
    fig, words = theme.figure(height, layout=None), []
    for n, (title, w) in enumerate(panels.items()):
        x, y = n % columns, n // columns
        ax = fig.add_axes(
            (
                0.005 + x / columns,
                1 - (y + 1) * (height - 0.1) / lines / height,
                0.98 / columns,
                0.145 * rows / height,
            )
        )
        ax.set(xlim=(0, across), ylim=(rows, 0))
        ax.axis("off")
        most = -(-w.programs // w.sms)
        counts = [w.programs // w.sms + (sm < w.programs % w.sms) for sm in range(w.sms)]
        for count in sorted(set(counts)):
            places = [
                (sm % across + 0.07, sm // across + 0.07, 0.86, 0.86)
                for sm, k in enumerate(counts)
                if k == count
            ]
            share = 1 - 0.75 * count / most
            boxes(
                ax,
                places,
                **(
                    _IDLE
                    if not count
                    else {
                        "facecolor": theme.tint(theme.tensor_color("Q"), share),
                        "edgecolor": EDGE,
                        "lw": 0.4,
                    }
                ),
            )
        idle = counts.count(0)
        said = (
            f"{w.programs:,} programs, {idle} of {w.sms} SMs idle"
            if idle
            else (
                f"{w.programs:,} programs, {min(counts)} to {most} an SM"
                if min(counts) < most
                else f"{w.programs:,} programs, {most} an SM"
            )
        )
        ax.set_title(
            f"{title}: {said}", fontsize=8.5, loc="left", pad=3, color=OVER if idle > w.sms / 2 else INK
        )
        words.append(f"{title}: {said}")
    return theme.describe(fig, f"SMs by how many programs they have. {'; '.join(words)}.")


@styled
def harnesses(
    points: Mapping[str, Mapping[float, float]],
    lines: Mapping[str, tuple[float, float]],
    source: str,
    *,
    title: str = "",
) -> Figure:
    """Draw seconds against bytes under two harnesses, and the line through the points of each.

    `points` maps a harness to bytes → seconds, `lines` to (constant in s, bytes/s).
    """
    fig, ax = theme.subplots(height=3.0)
    looks = {
        "do_bench": ("o", OVER, "L2 full of lines to write back (do_bench)"),
        "rotating": ("s", "#31688E", "L2 clean (caches take turns)"),
    }
    top = 1.08 * max(max(found) for found in points.values())
    words = []
    for name, found in points.items():
        marker, hue, what = looks[name]
        constant, rate = lines[name]
        ax.plot([x / 1e6 for x in found], [1e6 * y for y in found.values()], marker, color=hue, ms=5.5)
        ax.plot(
            [0, top / 1e6],
            [1e6 * constant, 1e6 * (constant + top / rate)],
            ls=(0, (4, 2)),
            color=hue,
            lw=1.2,
        )
        said = f"{what}: {1e6 * constant:.1f} µs + bytes / {rate / 1e12:.2f} TB/s"
        ax.text(
            0.03,
            0.95 - 0.09 * len(words),
            said,
            transform=ax.transAxes,
            fontsize=SMALL,
            color=hue,
            va="top",
        )
        words.append(said)
    ax.set(xlim=(0, top / 1e6), ylim=(0, None))
    ax.set_xlabel(f"K and V, MB ({source})", fontsize=SMALL)
    ax.set_ylabel("a kernel that only reads, µs", fontsize=SMALL)
    ax.set_title(title, fontsize=10, loc="left")
    return theme.describe(fig, f"Time against bytes, and lines through the points. {'; '.join(words)}.")


@styled
def parts_map(
    times: Mapping[tuple[int, int], Mapping[int, float]],
    ours: Mapping[tuple[int, int], int],
    predicted: Mapping[tuple[int, int], int],
    source: str,
    *,
    title: str = "",
) -> Figure:
    """Draw how much slower than the best each number of parts is: a panel for each batch.

    Args:
        times: (B, N_k) → parts → seconds.
        ours: (B, N_k) → parts that the library takes.  predicted: (B, N_k) → parts of a model.
    """
    batches, lengths = (sorted({key[n] for key in times}) for n in (0, 1))
    columns = sorted({parts for found in times.values() for parts in found})
    across = 2
    down = -(-len(batches) // across)
    fig, axes = theme.subplots(
        down, across, height=0.45 + down * (0.5 + 0.215 * len(lengths)), squeeze=False
    )
    fig.get_layout_engine().set(rect=(0, 0, 1, 1 - (0.42 if title else 0.18) / fig.get_figheight()))
    fig.text(0.012, 0.995, title, fontsize=10, fontweight="bold", va="top")
    words = []
    for ax, B in zip(axes.flat, batches, strict=False):
        ratios = [[_ratio(times[B, N_k], parts) for parts in columns] for N_k in lengths]
        colors = [
            [_SLOWER(min(1.0, float(np.log(r) / np.log(8)))) if r else (1, 1, 1, 1) for r in row]
            for row in ratios
        ]
        texts = [
            [
                f"{r:.2f}"
                if r and r < 1.995
                else f"{r:.1f}"
                if r and r < 9.95
                else f"{r:.0f}"
                if r
                else ""
                for r in row
            ]
            for row in ratios
        ]
        cells(ax, colors, texts, range(len(columns)), range(len(lengths)), size=6)
        for i, N_k in enumerate(lengths):
            if (B, N_k) in ours:
                j = _nearest(columns, ours[B, N_k])
                rect(ax, j - 0.45, i - 0.45, 0.9, 0.9, fc="none", ec=OVER, lw=1.3)
            j = _nearest(columns, predicted[B, N_k])
            ax.plot([j - 0.3, j + 0.3], [i - 0.36, i - 0.36], color=INK, lw=1.3, solid_capstyle="butt")
            found = times[B, N_k]
            best = min(found, key=lambda x: found[x])
            words.append(f"B {B}, {N_k:,} keys: best {best} part{'s' * (best > 1)}")
        ax.set_xticks(range(len(columns)), columns, fontsize=TINY)
        ax.set_yticks(range(len(lengths)), [f"{n // 1024}k" for n in lengths], fontsize=TINY)
        ax.set_title(f"{B} sequence{'s' * (B > 1)}", fontsize=8.5, loc="left", pad=3)
        ax.set_ylabel("keys", fontsize=TINY)
    for ax in axes[-1]:
        ax.set_xlabel("parts", fontsize=TINY)
    fig.text(
        0.99,
        0.995 - (0.24 / fig.get_figheight() if title else 0),
        f"red frame: flashlib's choice; bar: the model's ({source})",
        fontsize=TINY,
        color=GREY,
        ha="right",
        va="top",
    )
    return theme.describe(
        fig, "Time of each number of parts over that of the best. " + "; ".join(words) + "."
    )


def _ratio(found, parts):
    return found[parts] / min(found.values()) if parts in found else None


def _nearest(columns, parts) -> int:
    return min(range(len(columns)), key=lambda j: abs(np.log(columns[j] / parts)))


@styled
def timeline(
    title: str, w: Waves, seconds: Mapping[str, float], lines: Sequence[str], *, late: bool
) -> Figure:
    """Draw programs on SMs over the time of a call, idle SMs hatched, then the merge.

    `seconds` has start, read (of the busiest SM), merge and floor.
    """
    fig, ax = theme.subplots(height=3.3)
    us = {name: 1e6 * t for name, t in seconds.items()}
    whole, rest = divmod(w.programs, w.sms)
    most = whole + (rest > 0)
    each, start = us["read"] / most, us["start"]
    if whole > _MOST_WAVES:  # too thin to be told apart
        rect(ax, start, 0, whole * each, w.sms, fc=theme.tint(theme.tensor_color("Q"), 0.5), lw=0)
        ax.text(
            start + whole * each / 2,
            w.sms / 2,
            f"{whole:,} programs an SM",
            fontsize=SMALL,
            ha="center",
            color=INK,
        )
    for n in range(0 if whole <= _MOST_WAVES else whole, most):
        busy = w.sms if n < whole else rest
        rect(
            ax,
            start + n * each,
            0,
            each,
            busy,
            fc=theme.tint(theme.tensor_color("Q"), 0.35 + 0.3 * (n % 2)),
            ec="white",
            lw=0.6,
        )
        if busy < w.sms:
            rect(ax, start + n * each, busy, each, w.sms - busy, **_IDLE)
    end = start + us["read"]
    if us["merge"]:
        rect(
            ax,
            end,
            0,
            us["merge"],
            w.sms,
            fc=theme.tint(theme.tensor_color("O"), 0.3),
            ec="white",
            lw=0.6,
        )
    total = end + us["merge"]
    ax.axvline(start + us["floor"], color=GREY, lw=1.1, ls=":")
    beside(
        ax,
        f"floor {start + us['floor']:.1f} µs",
        (start + us["floor"], w.sms * 1.03),
        (-3, 0),
        fontsize=TINY,
        color=GREY,
        ha="right",
    )
    ax.set(xlim=(0, 1.06 * max(total, start + us["floor"])), ylim=(0, w.sms * 1.08))
    ax.set_ylabel("SMs", fontsize=SMALL)
    ax.set_xlabel(
        "µs, predicted; shades: the programs of an SM; hatched: idle; pink: the merge", fontsize=SMALL
    )
    fig.suptitle("\n".join([title, *lines]), x=0.01, ha="left", fontsize=9, color=OVER if late else INK)
    return theme.describe(fig, f"{title}. {'; '.join(lines)}.")
