"""What each task of a kernel did in the interpreter, step by step, and where it went wrong."""

import textwrap
from collections.abc import Sequence

from flashlib.course.plots import theme
from flashlib.course.plots.gantt import bar, face
from flashlib.course.plots.parts import bare, sentences
from flashlib.course.plots.theme import GREY, OVER, SMALL, Figure, styled

# What an event is drawn as: words of the key, and look. Copies and products have a tensor's hue.
_LOOKS = {
    "wait": ("waits", {"facecolor": "#FFFFFF", "edgecolor": "#888888", "lw": 0.6, "ls": (0, (2, 2))}),
    "under way": ("still under way", {"facecolor": "#FFFFFF", "edgecolor": "#555555", "lw": 0.8,
                                      "hatch": "////"}),
    "ask": ("asks", {"facecolor": "#555555", "edgecolor": "#333333", "lw": 0.6}),
    "arrive": ("arrives", {"facecolor": "#CCCCCC", "edgecolor": "#777777", "lw": 0.6}),
}
_MADE = {"Q": "copy Q", "K": "K", "V": "V", "O": "O", "QK": "Q·Kᵀ", "PV": "P·V"}
_SAME = {"expect": "arrive"}
_ENGINE = "the copy engine"
_COPIES = 3.2                                               # rows that its lanes share


@styled
def steps(events: Sequence, title: str, remarks: Sequence[tuple[str, str]] = (),
          longest: int | None = None, tasks: Sequence[str] = (), ring: Sequence[str] = ()) -> Figure:
    """Draw the events of one program: a row for each task, one for its products, one for the copies.

    Args:
        events: of a `flashlib.interpreter.Run`, or of a `Hazard`.
        remarks: (text, color) of the sentences above.
        longest: how many steps the axis shows; all of them by default.
        tasks: who has a row; by default everyone who does something, and products only where some are.
        ring: "K 0", "K 1", "V 0" …, the tiles in the order in which the ring takes them, and every
            consumer multiplies with them.
    """
    seen = {e.task for e in events} - {_ENGINE, "the program"}
    multiply = {e.task for e in events if e.kind == "product"}
    names = [row for task in tasks or sorted(seen) for row in (task, f"{task}, products")
             if row == task or task in multiply or (tasks and task.startswith("consumer"))]
    copies = sorted((e for e in events if e.task == _ENGINE), key=lambda e: (e.start, e.stop))
    tensor_of = _tensors(events, ring)
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
        made, text = tensor_of.get(e, ("", str(e.what).partition(",")[0]))
        look = face(made) if made and e.kind != "under way" else _LOOKS[_SAME.get(e.kind, e.kind)][1]
        name = f"{e.task}, products" if e.kind == "product" else e.task
        if e in lane_of:
            tall = _COPIES / max(len(lanes), 3)
            bar(ax, e.start, e.stop, len(names) + tall * lane_of[e] + 0.04, tall - 0.08, text, (0, end),
                scale, **look)
        elif name in names:
            half = 0.45 if e.kind == "product" else 0.84    # Q·Kᵀ above P·V: both are under way at once
            y = names.index(name) + (0.52 if made == "PV" else 0.04 if half < 0.5 else 0.08)
            bar(ax, e.start, e.stop, y, half, text, (0, end), scale, **look)
    ax.set_yticks([*(n + 0.5 for n in range(len(names))), len(names) + _COPIES / 2], [*names, _ENGINE],
                  fontsize=SMALL)
    bare(ax, "left")
    ax.set_xlabel("steps of the interpreter, not time: one thing happens at a step", fontsize=SMALL,
                  color=GREY)
    hues = [(_MADE[made].removeprefix("copy "), face(made)) for made in _MADE]
    waits, *others = _LOOKS.values()
    theme.patch_key(ax, [waits, *hues, *others], at=(1.0, 1.01))
    said = [(title, theme.INK), *(remark for remark in remarks if remark[0])]
    said = sentences(fig, said, 0.012, 1 - 0.06 / height, 0.2 / height)
    return theme.describe(fig, f"{said}. Rows: {', '.join([*names, _ENGINE])}; {len(events)} events.")


def _tensors(events, ring):
    """Return, for copies and products, what hue they have and what they are called."""
    found, taken = {}, {}
    for e in sorted(events, key=lambda e: e.start):
        if e.task != _ENGINE and e.kind not in ("product", "store"):
            continue
        place = str(e.what)
        if place.startswith("tiles"):
            n = taken[e.task] = taken.get(e.task, -1) + 1
            name = ring[n] if n < len(ring) else place
            hue = name[0] if name in ring else "K"
            found[e] = ({"K": "QK", "V": "PV"}[hue] if e.kind == "product" else hue), name
        else:
            out = any(p.kind == "product" and p.stop < e.start for p in events)     # through Q's memory
            found[e] = ("Q", "O")[out], place.replace("q slot", ("Q", "O")[out])
    return found


def wrong(error: Exception, width: int = 104) -> list[tuple[str, str]]:
    """Return what a `Hazard` says as lines for `steps`, in red, of at most so many characters."""
    return [(text, OVER) for text in textwrap.wrap(str(error), width)]
