"""What each task of a kernel did in the interpreter, step by step, and where it went wrong."""

import textwrap
from collections.abc import Sequence

from flashlib.course.plots import theme
from flashlib.course.plots.gantt import bar
from flashlib.course.plots.parts import bare, sentences
from flashlib.course.plots.theme import GREY, OVER, SMALL, Figure, styled

# What an event is drawn as: the words of the key, and the look.
_LOOKS = {
    "wait": ("waits", {"facecolor": "#FFFFFF", "edgecolor": "#888888", "lw": 0.6, "ls": (0, (2, 2))}),
    "copy": ("copy", {"facecolor": theme.tint(theme.tensor_color("K"), 0.0), "lw": 0.6,
                      "edgecolor": theme.edge_color("K")}),
    "under way": ("still under way", {"facecolor": "#FFFFFF", "edgecolor": theme.edge_color("K"),
                                      "lw": 0.8, "hatch": "////"}),
    "product": ("product", {"facecolor": theme.tensor_color("S"), "lw": 0.6,
                            "edgecolor": theme.edge_color("S")}),
    "ask": ("asks", {"facecolor": theme.tint(theme.tensor_color("Q"), 0.4), "lw": 0.6,
                     "edgecolor": theme.edge_color("Q")}),
    "arrive": ("arrives", {"facecolor": theme.tint(theme.tensor_color("O"), 0.4), "lw": 0.6,
                           "edgecolor": theme.edge_color("O")}),
}
_SAME = {"expect": "arrive", "load": "copy", "store": "copy"}
_ENGINE = "the copy engine"
_COPIES = 3.2                                               # rows that its lanes share


@styled
def steps(events: Sequence, title: str, remarks: Sequence[tuple[str, str]] = (),
          longest: int | None = None, tasks: Sequence[str] = ()) -> Figure:
    """Draw the events of one program: a row for each task, one for its products, one for the copies.

    Args:
        events: of a `flashlib.interpreter.Run`, or of a `Hazard`.
        remarks: (text, color) of the sentences above.
        longest: how many steps the axis shows; all of them by default.
        tasks: who has a row; by default everyone who does something, and products only where some are.
    """
    seen = {e.task for e in events} - {_ENGINE, "the program"}
    multiply = {e.task for e in events if e.kind == "product"}
    names = [row for task in tasks or sorted(seen) for row in (task, f"{task}, products")
             if row == task or task in multiply or (tasks and task.startswith("consumer"))]
    copies = sorted((e for e in events if e.task == _ENGINE), key=lambda e: (e.start, e.stop))
    lanes: list[int] = []                                   # where the last copy of each lane ends
    lane_of = {}
    for e in copies:
        free = next((n for n, stop in enumerate(lanes) if stop <= e.start), len(lanes))
        lanes[free:free + 1] = [e.stop]
        lane_of[e] = free
    above = 0.3 + 0.2 * len(remarks)
    height = 0.26 * (len(names) + _COPIES) + 0.75 + above
    fig = theme.figure(height, layout=None)
    ax = fig.add_axes((0.19, 0.42 / height, 0.795, 1 - (0.72 + above) / height))
    end = longest or max((e.stop for e in events), default=1)
    ax.set(xlim=(0, end), ylim=(len(names) + _COPIES - 0.05, -0.05))
    scale = 0.795 * theme.WIDTH / end
    for e in events:
        look = _LOOKS[_SAME.get(e.kind, e.kind)][1]
        text = str(e.what).partition(",")[0].replace(" slot ", " ")
        name = f"{e.task}, products" if e.kind == "product" else e.task
        if e in lane_of:
            tall = _COPIES / max(len(lanes), 3)
            bar(ax, e.start, e.stop, len(names) + tall * lane_of[e] + 0.04, tall - 0.08, text, (0, end),
                scale, **look)
        elif name in names:
            bar(ax, e.start, e.stop, names.index(name) + 0.08, 0.84, text, (0, end), scale, **look)
    ax.set_yticks([*(n + 0.5 for n in range(len(names))), len(names) + _COPIES / 2], [*names, _ENGINE],
                  fontsize=SMALL)
    bare(ax, "left")
    ax.set_xlabel("steps of the interpreter, not time: one thing happens at a step", fontsize=SMALL,
                  color=GREY)
    theme.patch_key(ax, list(_LOOKS.values()), at=(1.0, 1.01))
    said = [(title, theme.INK), *(remark for remark in remarks if remark[0])]
    said = sentences(fig, said, 0.012, 1 - 0.06 / height, 0.2 / height)
    return theme.describe(fig, f"{said}. Rows: {', '.join([*names, _ENGINE])}; {len(events)} events.")


def wrong(error: Exception, width: int = 104) -> list[tuple[str, str]]:
    """Return what a `Hazard` says as lines for `steps`, in red, of at most so many characters."""
    return [(text, OVER) for text in textwrap.wrap(str(error), width)]
