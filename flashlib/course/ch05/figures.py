"""The figures of chapter 05: the accumulator while it walks over the words of a sentence."""

from __future__ import annotations

import numpy as np

from flashlib.course.plots import theme
from flashlib.course.plots.parts import heading, named
from flashlib.course.plots.theme import GREY, INK, SMALL, TINY

_GHOST = {"fill": False, "edgecolor": GREY, "linestyle": (0, (2, 1.5)), "linewidth": 0.8}
_NOTE = {"fontsize": 8.5, "fontweight": "normal", "pad": 4}


@theme.styled
def rescale_before_after(words, weights, accumulators, labels, *, query, title=None):
    """Draw the weights of the words seen so far, and the accumulator, at two or three moments.

    What a moment changed keeps a dashed outline of the moment before.

    Args:
        words: the keys, in order.
        weights: one array per moment, e^(s − m) of the keys seen so far (shorter than `words`).
        accumulators: one array (d,) per moment, in the same units as its weights.
        labels: one sentence per moment.
        query: the word that asks.  title: the line on top; None names the query.
    """
    moments = len(weights)
    fig = theme.figure(1.28 * moments + 0.75)
    axes = fig.subplots(moments, 2, sharex="col", width_ratios=(5.6, 1), squeeze=False)
    limit = 1.1 * max(float(np.abs(o).max()) for o in accumulators)
    before = None, None
    for n, (ax, side) in enumerate(axes):
        now = np.asarray(weights[n]), np.asarray(accumulators[n])
        _weights(ax, now[0], before[0], len(words))
        ax.set_title(labels[n], **_NOTE)
        _accumulator(side, now[1], before[1], limit)
        side.set_title(f"o, {len(now[1])} numbers" if n == 0 else "o", **_NOTE)
        before = now
    axes[-1][0].set_xticks(range(len(words)), map(named, words), rotation=90, fontsize=6.3)
    for word in axes[-1][0].get_xticklabels()[len(weights[0]):len(weights[-1])]:
        word.set(fontweight="bold")
    fig.suptitle(title or f"the query is “{query}”", x=0.01, ha="left", fontsize=10, fontweight="bold")
    return theme.describe(fig, f"The weights of the words seen so far and the accumulator, for the"
                               f" query {query!r}, at {moments} moments: {'; '.join(labels)}.")


def _weights(ax, w, before, total) -> None:
    """Draw the weights as bars, those before dashed, and a common factor where there is one."""
    ax.bar(range(len(w)), w, width=0.74, color=theme.tensor_color("P"),
           edgecolor=theme.edge_color("P"), linewidth=0.5)
    old = 0 if before is None else len(before)
    if old and (factor := w[0] / before[0]) < 1:
        ax.bar(range(old), before, width=0.74, **_GHOST)
        ax.text(_calm(before, 9, total), 0.72, f"× {factor:.3f}", ha="center", va="center",
                fontsize=11, fontweight="bold", color=INK, path_effects=theme.halo())
    if 0 < old < len(w):
        ax.bar(range(old, len(w)), w[old:], width=0.74, fill=False, edgecolor=INK, linewidth=1.6)
    ax.axvspan(len(w) - 0.5, total - 0.5, color="#F4F4F4", lw=0)
    if total - len(w) > 0.17 * total:
        ax.text((len(w) + total) / 2 - 0.5, 0.56, "not read yet", ha="center", va="center",
                fontsize=SMALL, color=GREY)
    ax.set(ylim=(0, 1.12), xlim=(-0.7, total - 0.4), yticks=[0, 0.5, 1], ylabel=r"$e^{s-m}$")


def _calm(heights, width, total) -> float:
    """Return the middle of `width` places in a row whose tallest bar is the lowest."""
    line = np.append(heights, np.full(total - len(heights), 0.3))
    tops = [line[i:i + width].max() for i in range(max(total - width, 1))]
    return int(np.argmin(tops)) + (width - 1) / 2


def _accumulator(ax, o, before, limit) -> None:
    """Draw a row of O as bars to the left and right of 0, over the one before, dashed."""
    if before is not None and not np.array_equal(o, before):
        ax.barh(range(len(o)), before, height=0.8, **{**_GHOST, "linewidth": 0.5})
    ax.barh(range(len(o)), o, height=0.8, color=theme.tensor_color("O"), lw=0.7,
            edgecolor=theme.edge_color("O"), zorder=3)
    ax.set(xlim=(-limit, limit), yticks=[])
    ax.invert_yaxis()
    ax.axvline(0, color=GREY, lw=0.7)
    ax.spines["left"].set_visible(False)


@theme.styled
def walk(words, now, before, final, *, limits, title, note):
    """Draw the state of one query in the middle of its walk: weights, accumulator, and their quotient.

    Args:
        words: the keys, in order.
        now, before: (weights, m, l, o) after the last block and before it; `before` None at the start.
        final: the output (d,) at the end of the walk.
        limits: the ends of the axes of o and of o / ℓ, the same at every step.
        title, note: the two lines on top.
    """
    longest = max(theme.text_width(named(word), TINY) for word in words)
    low, foot = 1.72, 1.72 + longest
    height = foot + 1.45 + 0.6
    fig = theme.figure(height, layout=None)

    def panel(x, y, w, h):
        return fig.add_axes((x / theme.WIDTH, y / height, w / theme.WIDTH, h / height))

    weights, _, l, o = now
    ax = panel(0.55, foot, 6.4, 1.45)
    _weights(ax, weights, before and before[0], len(words))
    ax.set_xticks([])
    seen = len(before[0]) if before else 0
    for i, word in enumerate(words):                # plain texts: ticks would redraw half as fast
        new = seen <= i < len(weights)
        ax.text(i, -0.03, named(word), rotation=90, ha="center", va="top", fontsize=TINY,
                transform=ax.get_xaxis_transform(), fontweight="bold" if new else "normal",
                color=INK if i < len(weights) else GREY)
    places = np.arange(len(o))
    side, quotient = panel(0.55, 0.2, 3.0, low - 0.5), panel(3.95, 0.2, 3.0, low - 0.5)
    side.bar(places, o, width=0.8, color=theme.tensor_color("O"))
    if before:
        side.bar(places, before[3], width=0.8, **_GHOST)
    quotient.bar(places, o / l, width=0.8, color=theme.tint(theme.tensor_color("O"), 0.35))
    quotient.bar(places, final, width=0.8, fill=False, edgecolor=INK, linewidth=0.8)
    side.set_title(f"the accumulator o, {len(o)} numbers", **_NOTE)
    quotient.set_title("o / ℓ; framed: the output at the end", **_NOTE)
    for ax, limit in zip((side, quotient), limits, strict=True):
        ax.axhline(0, color=GREY, lw=0.7)
        ax.set(ylim=(-limit, limit), xlim=(-0.8, len(o) - 0.2), xticks=[])
        ax.spines["bottom"].set_visible(False)
    heading(fig, title, y=1 - 0.07 / height)
    fig.text(0.012, 1 - 0.3 / height, note, fontsize=9, va="top")
    return theme.describe(fig, f"{title}. {note}.")
