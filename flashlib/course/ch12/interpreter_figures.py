"""What each task of a kernel did in the interpreter, step by step, and where it went wrong."""

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
    "product": ("product", {"facecolor": theme.tensor_color("S"), "lw": 0.6,
                            "edgecolor": theme.edge_color("S")}),
    "ask": ("asks", {"facecolor": theme.tint(theme.tensor_color("Q"), 0.4), "lw": 0.6,
                     "edgecolor": theme.edge_color("Q")}),
    "arrive": ("arrives", {"facecolor": theme.tint(theme.tensor_color("O"), 0.4), "lw": 0.6,
                           "edgecolor": theme.edge_color("O")}),
}
_SAME = {"expect": "arrive", "load": "copy", "store": "copy"}
_ENGINE = "the copy engine"


@styled
def steps(events: Sequence, title: str, remarks: Sequence[tuple[str, str]] = (),
          longest: int | None = None) -> Figure:
    """Draw the events of one program: a row for each task, one for its products, one for the copies.

    Args:
        events: of a `flashlib.interpreter.Run`.
        remarks: (text, color) of the sentences above.
        longest: how many steps the axis shows; all of them by default.
    """
    tasks = list(dict.fromkeys(e.task for e in events if e.task not in (_ENGINE, "the program")))
    rows = {}
    for task in sorted(tasks):
        rows[task] = len(rows)
        if any(e.kind == "product" and e.task == task for e in events):
            rows[f"{task}, products"] = len(rows)
    rows[_ENGINE] = len(rows)
    above = 0.3 + 0.2 * len(remarks)
    height = 0.26 * len(rows) + 0.75 + above
    fig = theme.figure(height, layout=None)
    ax = fig.add_axes((0.19, 0.42 / height, 0.795, 1 - (0.72 + above) / height))
    end = longest or max((e.stop for e in events), default=1)
    ax.set(xlim=(0, end), ylim=(len(rows) - 0.05, -0.05))
    scale = 0.795 * theme.WIDTH / end
    for e in events:
        name = f"{e.task}, products" if e.kind == "product" else e.task
        if name in rows:
            look = _LOOKS[_SAME.get(e.kind, e.kind)][1]
            text = str(e.what).partition(",")[0].replace(" slot ", " ")
            bar(ax, e.start, e.stop, rows[name] + 0.08, 0.84, text, (0, end), scale, **look)
    ax.set_yticks([y + 0.5 for y in rows.values()], list(rows), fontsize=SMALL)
    bare(ax, "left")
    ax.set_xlabel("steps of the interpreter, not time: one thing happens at a step", fontsize=SMALL,
                  color=GREY)
    theme.patch_key(ax, list(_LOOKS.values()), at=(1.0, 1.01))
    said = sentences(fig, [(title, theme.INK), *remarks], 0.012, 1 - 0.06 / height, 0.2 / height)
    return theme.describe(fig, f"{said}. Rows: {', '.join(rows)}; {len(events)} events.")


def wrong(error: Exception, width: int = 112) -> list[tuple[str, str]]:
    """Return what a `Hazard` says as lines for `steps`, in red, of at most so many characters."""
    lines, line = [], ""
    for word in str(error).split():
        if len(line) + len(word) >= width:
            lines, line = [*lines, line], ""
        line = f"{line} {word}".strip()
    return [(text, OVER) for text in [*lines, line][:5]]
