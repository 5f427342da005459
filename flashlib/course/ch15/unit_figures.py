"""A picture of chapter 15: units of a run, the programs that take them, and who merges what."""

from collections.abc import Sequence

from flashlib.course.plots import theme
from flashlib.course.plots.parts import rect
from flashlib.course.plots.theme import EDGE, INK, OVER, SMALL, TINY, Figure, styled


def _order(each, run) -> str:
    """Return in which order a run is merged, and by whom, if a program takes so many units."""
    def folded(first, last):
        return "·".join(str(n) for n in range(first, last))

    if each == 1:
        return f"{folded(0, run)}, by the merge kernel"
    if each == run:
        return f"{folded(0, run)}, by the program"
    parts = " · ".join(f"({folded(at, at + each)})" for at in range(0, run, each))
    return f"{parts}: another order"


@styled
def units(each: Sequence[int], *, run: int = 8, runs: int = 2) -> Figure:
    """Draw the units of some runs and the programs that hold them, a line for each cut.

    `each` says how many units a program takes: a line is red where that changes the order of merging,
    as every number between one unit and a whole run does.
    """
    height = 0.12 + 0.62 * len(each)
    fig = theme.figure(height, layout=None)
    ax = fig.add_axes((0.01, 0.0, 0.98, 1))
    across = run * runs
    ax.set(xlim=(-5.6, across + 0.1), ylim=(len(each) - 0.1, -0.08))
    ax.axis("off")
    words = []
    for n in range(runs):
        ax.text(run * n + 0.05, 0.13, f"run {n}, for lane {n}", fontsize=TINY, va="bottom")
    for y, many in enumerate(each):
        color = OVER if 1 < many < run else INK
        what = f"{many} unit{'s' * (many > 1)} a program"
        ax.text(-5.6, y + 0.4, what, fontsize=SMALL, fontweight="bold", va="center", color=color)
        for unit in range(across):
            rect(ax, unit, y + 0.2, 1, 0.4, ec="white", lw=0.8,
                 fc=theme.tint(theme.tensor_color("K"), 0.3 if unit // run % 2 else 0.6))
            ax.text(unit + 0.5, y + 0.4, str(unit), fontsize=TINY, ha="center", va="center")
        for at in range(0, across, many):
            rect(ax, at + 0.04, y + 0.18, many - 0.08, 0.44, fc="none", ec=EDGE, lw=1.3, gid="program")
        ax.text(0.05, y + 0.68, _order(many, run), fontsize=TINY, va="top", color=color)
        words.append(f"{what}: {_order(many, run)}")
    words = "; ".join(words)
    return theme.describe(fig, f"{runs} runs of {run} units; the first run is merged as {words}.")
