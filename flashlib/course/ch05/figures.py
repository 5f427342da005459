"""The figures of chapter 05: the accumulator while it walks over the words of a sentence."""

from __future__ import annotations

import numpy as np

from flashlib.course.plots import theme


@theme.styled
def rescale_before_after(words, weights, accumulators, labels, *, query):
    """Draw the weights of the words seen so far, and the accumulator, at two or three moments.

    Args:
        words: the keys, in order.
        weights: one array per moment, e^(s − m) of the keys seen so far (shorter than `words`).
        accumulators: one array (d,) per moment, in the same units as its weights.
        labels: one sentence per moment.
        query: the word that asks.
    """
    moments = len(weights)
    fig = theme.figure(1.28 * moments + 0.75)
    axes = fig.subplots(moments, 2, sharex="col", width_ratios=(4.6, 1), squeeze=False)
    top = max(float(np.max(w)) for w in weights) * 1.12
    limit = max(float(np.abs(o).max()) for o in accumulators)
    for n, (ax, side) in enumerate(axes):
        w = np.asarray(weights[n])
        ax.bar(range(len(w)), w, width=0.74, color=theme.tensor_color("P"),
               edgecolor=theme.edge_color("P"), linewidth=0.5)
        ax.axvspan(len(w) - 0.5, len(words) - 0.5, color="#F4F4F4", lw=0)
        if len(w) < len(words):
            ax.text((len(w) + len(words)) / 2 - 0.5, top * 0.5, "not read yet", ha="center",
                    va="center", fontsize=8, color=theme.GREY)
        ax.set(ylim=(0, top), xlim=(-0.7, len(words) - 0.4), ylabel=r"$e^{s-m}$")
        ax.set_title(labels[n], fontsize=8.5, fontweight="normal", pad=4)
        side.barh(range(len(accumulators[n])), accumulators[n], height=0.8,
                  color=theme.tensor_color("O"))
        side.set(xlim=(-limit * 1.1, limit * 1.1), yticks=[])
        side.invert_yaxis()
        side.axvline(0, color=theme.GREY, lw=0.7)
        side.spines["left"].set_visible(False)
        side.set_title(f"o, {len(accumulators[n])} numbers", fontsize=8.5, fontweight="normal", pad=4)
    axes[-1][0].set_xticks(range(len(words)), words, rotation=90, fontsize=7.5)
    fig.suptitle(f"the query is “{query}”", x=0.01, ha="left", fontsize=10, fontweight="bold")
    return theme.describe(fig, f"The weights of the words seen so far and the accumulator, for the"
                               f" query {query!r}, at {moments} moments: {'; '.join(labels)}.")
