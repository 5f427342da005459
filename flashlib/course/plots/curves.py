"""Sweeps over a size on log-log axes, with direct labels: predicted dashed, counted as markers."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from flashlib.course.plots import theme
from flashlib.course.plots.parts import beside
from flashlib.course.plots.theme import GREY, SMALL, Figure, human_bytes, human_count, styled

_KINDS = ("measured", "counted", "predicted")


@styled
def sweep(x, series: Mapping[str, Sequence[float]] | None = None, xlabel: str = "", ylabel: str = "", *,
          predicted: Mapping[str, Sequence[float]] | None = None,
          counted: Mapping[str, Sequence[float]] | None = None, slope_guides: Sequence[float] = (),
          xticks: Sequence[float] | None = None, title: str = "") -> Figure:
    """Draw quantities over a size, log-log, each labeled at its right end.

    One label has one color, whichever kinds of curve it has; a second curve of the same version
    is paler, with hollow markers.

    Args:
        x: the sizes that all curves share.
        series: measured, {label: y}: a solid line with markers.
        predicted: closed forms: a dashed line.  counted: by a machine: solid markers alone.
        slope_guides: exponents; a grey line with each slope, labeled.
        xticks: where to put ticks; None for all x if there are few.  title: what the curves show.
    A y with another x is given as a pair, {label: (x, y)}.
    """
    kinds = dict(zip(_KINDS, (series or {}, counted or {}, predicted or {}), strict=True))
    labels = list(dict.fromkeys(label for curves in kinds.values() for label in curves))
    if not labels:
        raise ValueError("series, predicted, counted: expected at least one {label: y}, got none")
    fig, ax = theme.subplots(height=3.7)
    ends, drawn, looks = [], [], _looks(labels)
    for label in labels:
        look = looks[label]
        for kind, curves in kinds.items():
            if label not in curves:
                continue
            cx, cy = _pair(x, curves[label], label)
            line = {"measured": {"ls": "-"}, "counted": {"ls": "none", "zorder": 4},
                    "predicted": {"ls": (0, (4, 2)), "marker": "", "lw": 1.5}}[kind]
            ax.plot(cx, cy, gid=f"{kind} {label}", **{"mec": "white", "mew": 0.7, **look, **line})
            drawn.append((cx, cy))
        ends.append((label, theme.readable(look["color"]), cx, cy))
    xs = np.unique(np.concatenate([cx for cx, _ in drawn]))
    values = np.concatenate([cy[np.isfinite(cy)] for _, cy in drawn])
    ax.set(xscale="log", yscale="log", title=title)
    _axes(ax, xs, values, xlabel, ylabel, xticks)
    _guides(ax, slope_guides, xs, drawn)
    _labels(ax, ends)
    _kind_key(ax, [kind for kind, curves in kinds.items() if curves])
    parts = [f"{label} from {cy[0]:.3g} to {cy[-1]:.3g}" for label, _, _, cy in ends]
    return theme.describe(fig, f"{ylabel or 'Values'} over {xlabel or 'x'}, from {xs[0]:g} to"
                               f" {xs[-1]:g}: {'; '.join(parts)}.")


def _looks(labels) -> dict[str, dict]:
    """Return {label: color and marker}, no two of them the same."""
    looks, others, seen = {}, 0, {}
    for label in labels:
        look = theme.version_style(label, others)
        if look == theme.version_style(label, others + 1):  # a version, whatever the index
            again = seen.get(look["marker"], 0)
            seen[look["marker"]] = again + 1
            if again:
                pale = theme.tint(look["color"], min(0.3 * again, 0.6))
                look |= {"color": pale, "mfc": "white", "mec": pale, "mew": 1.5}
        else:
            others += 1
        looks[label] = look
    return looks


def _pair(x, y, label):
    if isinstance(y, tuple) and len(y) == 2 and np.ndim(y[0]) == 1:
        x, y = y
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise ValueError(f"{label}: expected as many values as sizes, {x.shape}, got {y.shape}")
    return x, y


def _axes(ax, xs, values, xlabel, ylabel, xticks) -> None:
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if xticks is None and len(xs) <= 9:
        xticks = xs
    if xticks is not None:
        ax.set_xticks(xticks, [f"{v:,.0f}" if v >= 1 else f"{v:g}" for v in xticks])
        ax.xaxis.set_minor_locator(NullLocator())
    show = human_bytes if "byte" in ylabel.lower() else human_count
    positive = values[values > 0]
    decades = np.log10(positive.max() / positive.min()) if len(positive) else 1
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,), numticks=12))
    ax.yaxis.set_minor_formatter(NullFormatter())
    if "byte" in ylabel.lower() or values.min() >= 0.1:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: show(v)))
    ax.yaxis.grid(True)


def _guides(ax, slopes, xs, drawn) -> None:
    """Draw a line of each slope, below all curves, one below the other."""
    low, high = np.log(xs[0]), np.log(xs[-1])
    below = np.log(ax.get_ylim()[1] / ax.get_ylim()[0])
    for n, slope in enumerate(slopes):
        span = low + (high - low) * np.array([0.5, 0.8] if slope > 0 else [0.15, 0.45])
        guide = slope * span
        fine = np.linspace(*span, 20)
        curves = [np.interp(fine, np.log(cx[cy > 0]), np.log(cy[cy > 0]))
                  for cx, cy in drawn if (cy > 0).sum() > 1]
        room = min((np.min(c - slope * fine) for c in curves), default=0.0)
        guide = guide + room - below * (0.07 + 0.09 * n)
        ax.plot(np.exp(span), np.exp(guide), color="#9A9A9A", lw=1.3, zorder=1, gid=f"slope {slope:g}")
        beside(ax, f"slope {slope:g}".replace("-", "−"), np.exp([span.mean(), guide.mean()]),
               (6, -6) if slope > 0 else (-6, -6), va="top", fontsize=SMALL, color=GREY,
               ha="left" if slope > 0 else "right")


def _labels(ax, ends) -> None:
    """Write each label at the right end of its curve, moved apart where they would touch."""
    ax.margins(x=0.03)
    last = [(label, color, cx[np.isfinite(cy)][-1], cy[np.isfinite(cy)][-1])
            for label, color, cx, cy in ends if np.isfinite(cy).any()]
    height = ax.figure.get_figheight() * ax.get_position().height * 72
    low, high = ax.get_ylim()

    def position(v):
        return np.log(max(v, 1e-300) / low) / np.log(high / low)

    order = sorted(last, key=lambda end: position(end[3]))
    wanted = [position(end[3]) * height for end in order]
    placed = spread(wanted, 12.5, height)
    right = max(end[2] for end in last)
    for (label, color, x, y), at, want in zip(order, placed, wanted, strict=True):
        beside(ax, label, (x if x < right else right, y), (9, at - want),
               color=theme.mix(color, "#000000", 0.15), annotation_clip=False, gid=f"label {label}")


def spread(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Move sorted positions apart to at least `gap`, as little as possible, within 0…top."""
    groups = [[w, 1, w] for w in wanted]  # center, members, sum of wishes
    merged: list[list[float]] = []
    for group in groups:
        merged.append(group)
        while (len(merged) > 1
               and merged[-1][0] - merged[-2][0] < gap * (merged[-1][1] + merged[-2][1]) / 2):
            last = merged.pop()
            count, total = merged[-1][1] + last[1], merged[-1][2] + last[2]
            merged[-1] = [min(max(total / count, gap * (count - 1) / 2), top - gap * (count - 1) / 2),
                          count, total]
    return [center + gap * (n - (count - 1) / 2) for center, count, _ in merged
            for n in range(int(count))]


def _kind_key(ax, kinds) -> None:
    """Say in words which mark is which kind of number, where there is more than one kind."""
    if len(kinds) < 2:
        return
    words = {"measured": "●━ measured", "counted": "● counted", "predicted": "╌╌ predicted"}
    ax.text(1.0, 1.03, "    ".join(words[k] for k in kinds), transform=ax.transAxes, ha="right",
            va="bottom", fontsize=SMALL, color=GREY)
