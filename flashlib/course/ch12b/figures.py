"""The figures of chapter 12b: schedules, sums that grow, bytes of shared memory, times of launches."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MultipleLocator

from flashlib.course.ch12b import order as orders
from flashlib.course.plots import theme
from flashlib.course.plots.animation import Animation, animate
from flashlib.course.plots.parts import bare, beside, boxes, heading
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, Figure, styled

_WAIT = {"facecolor": "#FFFFFF", "edgecolor": OVER, "lw": 0.6, "hatch": "////"}
_CELLS = {"to come": {"facecolor": "#F4F4F4", "lw": 0},
          "computes": {"facecolor": theme.tint(theme.tensor_color("dQ"), 0.6), "edgecolor": INK,
                       "lw": 0.7},
          "waits": _WAIT, "added": {"facecolor": theme.tensor_color("dQ"), "lw": 0},
          "second": {"facecolor": theme.mix(theme.tensor_color("dQ"), "#000000", 0.45), "lw": 0}}
NAMES = {"apart": "each program starts at a query tile of its own",
         "together": "all start at query tile 0", "unordered": "no order",
         "one_ring": "starts of its own, but one sum",
         "first_key_first": "the first key tile adds first"}


def _hue(m, tiles) -> str:
    """Return the color of query tile m: Q's hue, later ones darker."""
    return theme.tint(theme.tensor_color("Q"), 0.86 - 0.62 * m / (2 * tiles))


@styled
def timelines(schedules: Mapping[str, orders.Schedule], tiles: int, end: float | None = None) -> Figure:
    """Draw schedules one below the other: a row for each SM, a box for each visit, waits in red.

    `schedules` is title → schedule; `end` is where the axis ends, in steps.
    """
    rows = sum(s.sms for s in schedules.values())
    each = min(0.19, 3.6 / rows)
    height = each * rows + 0.5 * len(schedules) + 0.45
    fig = theme.figure(height, layout=None)
    end = end or max(s.length for s in schedules.values())
    top, words = height - 0.28, []
    for title, s in schedules.items():
        tall = each * s.sms
        ax = fig.add_axes((0.085, (top - 0.24 - tall) / height, 0.895, tall / height))
        _timeline(ax, s, tiles, end, each)
        ax.set_xticks([] if title != list(schedules)[-1] else np.arange(0, end + 1, _every(end)))
        ax.tick_params(axis="x", labelsize=TINY)
        red = bool(s.stuck)
        fig.text(0.012, (top - 0.02) / height, title, fontsize=9, va="top", fontweight="bold",
                 color=OVER if red else INK)
        words.append(f"{title}: {s.length:.1f} steps, {100 * s.idle:.0f} % idle"
                     + (f", {len(s.stuck)} programs wait for ever" if red else ""))
        top -= tall + 0.5
    ax.set_xlabel("steps", fontsize=SMALL, labelpad=1)
    key = fig.add_axes((0, 1 - 0.26 / height, 1, 0.26 / height))
    key.axis("off")
    said = "the number of the query tile" if _numbered(end) else "the darker, the later the query tile"
    theme.patch_key(key, [(f"computes; {said}", {"facecolor": _hue(1, 4)}),
                          ("waits for its turn, or for its last add to land", _WAIT)], at=(0.99, 0.1))
    return theme.describe(fig, f"Schedules, a row for each SM. {'; '.join(words)}.")


def _numbered(end) -> bool:
    """Tell whether a step is wide enough for a number."""
    return 0.895 * theme.WIDTH / end > 0.115


def _every(end) -> int:
    return next(n for n in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if end / n <= 14)


def _timeline(ax, s, tiles, end, each) -> None:
    ax.set(xlim=(0, end), ylim=(s.sms, 0))
    width = 0.895 * theme.WIDTH / end
    every = next(n for n in (1, 2, 4, 8) if width * n > 0.165 or n == 8)
    programs: dict[tuple, list] = {}
    for step in s.steps:
        programs.setdefault((step.sm, step.head, step.tile), []).append(step)
    stuck = {(head, tile) for head, tile, _ in s.stuck}
    visits: dict[int, list] = {m: [] for m in range(2 * tiles)}
    waits = []
    for (sm, head, tile), steps in programs.items():
        for step in steps:
            hue = _hue(step.visit.m, tiles)
            visits[step.visit.m].append((step.start, sm + 0.06, 1, 0.88))
            if step.stop > step.start + 1 + 1e-9:
                waits.append((step.start + 1, sm + 0.06, step.stop - step.start - 1, 0.88))
            if step.visit.m % every == 0 and each > 0.1 and _numbered(end):
                ax.text(step.start + 0.5, sm + 0.5, step.visit.m, fontsize=TINY, ha="center",
                        va="center_baseline", color=theme.ink_on(hue))
        to = end if (head, tile) in stuck else max(step.added for step in steps[-2:])
        if to > steps[-1].stop:
            waits.append((steps[-1].stop, sm + 0.06, to - steps[-1].stop, 0.88))
    for m, places in visits.items():
        boxes(ax, places, facecolor=_hue(m, tiles), edgecolor="#FFFFFF", lw=0.3)
    boxes(ax, waits, **_WAIT)
    boxes(ax, [(steps[0].start, sm + 0.06, 0.0, 0.88) for (sm, *_), steps in programs.items()],
          facecolor="none", edgecolor=INK, lw=1.4)
    one = {sm: tile for sm, _, tile in programs} if len(programs) == s.sms else {}
    if each > 0.1:
        names = [f"keys {one[sm]}" if one else f"SM {sm}" for sm in range(s.sms)]
        ax.set_yticks([sm + 0.5 for sm in range(s.sms)], names, fontsize=TINY)
    else:
        ax.set_yticks([])
        ax.set_ylabel(f"{s.sms} SMs", fontsize=TINY)
    bare(ax, "left")
    ax.tick_params(axis="y", pad=3)


@styled
def sums(schedules: Mapping[str, orders.Schedule], tiles: int, now: float) -> Figure:
    """Draw what has been added by a time: a row for each query tile, a column for each key tile.

    In a cell stands the turn of the key tile; who waits for its turn has a red frame.
    """
    count, side = len(schedules), 2 * tiles
    height = 0.165 * side + 0.85
    fig = theme.figure(height, layout=None)
    wide = 0.9 / count
    for n, (title, s) in enumerate(schedules.items()):
        ax = fig.add_axes((0.065 + n * (wide + 0.03), 0.3 / height, wide - 0.03, 0.165 * side / height))
        ax.set(xlim=(-0.5, tiles - 0.5), ylim=(side - 0.5, -0.5))
        places: dict[str, list] = {look: [] for look in _CELLS}
        for step in s.steps:
            places[_look(step, now)].append((step.tile - 0.46, step.visit.m - 0.44, 0.92, 0.88))
            if step.added <= now + 1e-9 and step.visit.turn is not None:
                second = step.visit.second
                ax.text(step.tile, step.visit.m, f"{step.visit.turn}{'′' * second}", fontsize=TINY,
                        ha="center", va="center_baseline",
                        color=theme.ink_on(_CELLS["second" if second else "added"]["facecolor"]))
        for look, at in places.items():
            boxes(ax, at, **_CELLS[look])
        done = sum(step.added <= now + 1e-9 for step in s.steps)
        state = f"{done} of {len(s.steps)} added"
        ax.set_title(f"{title}: {state}", fontsize=8.5, fontweight="normal", pad=3)
        ax.set_xticks(range(tiles), range(tiles), fontsize=TINY)
        ax.set_yticks(range(0, side, 2), range(0, side, 2), fontsize=TINY)
        ax.set_xlabel("key tile (program)", fontsize=TINY, labelpad=1)
        if n == 0:
            ax.set_ylabel("query tile (its sums)", fontsize=TINY, labelpad=1)
        bare(ax)
    heading(fig, f"after {now:4.1f} steps", y=1 - 0.05 / height)
    key = fig.add_axes((0, 1 - 0.3 / height, 1, 0.3 / height))
    key.axis("off")
    theme.patch_key(key, [("computes, or adds", _CELLS["computes"]), ("waits for its turn", _WAIT),
                          ("added", _CELLS["added"]), ("′ to the second sum", _CELLS["second"])],
                    at=(0.99, 0.15))
    return theme.describe(fig, f"After {now:.1f} steps. " + "; ".join(
        f"{title}: {sum(x.added <= now + 1e-9 for x in s.steps)} of {len(s.steps)} added"
        for title, s in schedules.items()))


def _look(step, now) -> str:
    """Return how a visit's cell looks at a time."""
    if step.added <= now + 1e-9:
        return "second" if step.visit.second else "added"
    if step.start > now + 1e-9:
        return "to come"
    return "waits" if step.start + 1 <= now + 1e-9 and now < step.adds - 1e-9 else "computes"


def film(tiles=8, hand=1.0) -> Animation:
    """Return the sums of one head as they grow, under two orders, as an animated picture."""
    shown = {"all start at 0": orders.simulate("together", tiles=tiles, sms=tiles, hand=hand),
             "each at its own": orders.simulate("apart", tiles=tiles, sms=tiles, hand=hand)}
    end = int(np.ceil(max(s.length for s in shown.values())))
    ends = " and ".join(f"{s.length:.0f} steps ({name})" for name, s in shown.items())
    return animate((sums(shown, tiles, now) for now in range(end + 1)), seconds=0.7, still=6, colors=64,
                   alt=f"The sums of dQ grow, a row for each query tile, a column for each key tile;"
                       f" those who wait are red. All is added after {ends}.")


TENSORS = (("K, V", "K"), ("Q, dO", "Q"), ("dS", "S"), ("dQ", "dQ"), ("lse, delta", "lse"))


@styled
def rooms(found: Mapping[str, Mapping[str, int]], limit: int) -> Figure:
    """Draw bytes of shared memory by tensor, a bar for each case, beside what a program may have."""
    fig, ax = theme.subplots(height=0.75 + 0.34 * len(found))
    for y, parts in enumerate(found.values()):
        at = 0
        for name, hue in TENSORS:
            ax.barh(y, parts[name] / 1024, left=at / 1024, height=0.72, color=theme.tensor_color(hue),
                    edgecolor=theme.edge_color(hue), lw=0.5, label=name if y == 0 else None)
            at += parts[name]
        over = at > limit
        beside(ax, theme.human_room(at), (at / 1024, y), (9, 0), fontsize=SMALL,
               color=OVER if over else INK, fontweight="bold" if over else "normal")
    ax.axvline(limit / 1024, color=INK, lw=1.2, ls=(0, (4, 2)))
    ax.text(limit / 1024, -0.62, f"{theme.human_room(limit)}, all that a program may have",
            fontsize=TINY, ha="right", va="bottom")
    ax.set_yticks(range(len(found)), list(found), fontsize=SMALL)
    ax.set(ylim=(len(found) - 0.5, -0.6), xlim=(0, 1.14 * max(sum(p.values()) for p in found.values())
                                                / 1024))
    ax.set_xlabel("shared memory, KiB", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="upper right", bbox_to_anchor=(1.0, 1.02), frameon=False, fontsize=TINY)
    said = "; ".join(f"{name} {theme.human_room(sum(p.values()))}" for name, p in found.items())
    return theme.describe(fig, f"Bytes of shared memory: {said}; a program may have"
                               f" {theme.human_room(limit)}.")


_PARTS = {"before": ("delta", ""), "zeros": ("O", "////"), "fused": ("dQ", ""), "after": ("Q", "xx")}


@styled
def launches(cases: Mapping[str, Mapping[str, float]], source: str) -> Figure:
    """Draw the times of a backward's launches, in milliseconds, one bar for each case."""
    fig, ax = theme.subplots(height=1.0 + 0.26 * len(cases))
    shares = [parts["fused"] / sum(parts.values()) for parts in cases.values()]
    ax.set_title(f"One launch has {np.floor(100 * min(shares)):.0f} % of the time, or more", loc="left")
    for y, parts in enumerate(cases.values()):
        at = 0.0
        for name, seconds in parts.items():
            hue, hatch = _PARTS[name]
            ax.barh(y, 1e3 * seconds, left=1e3 * at, height=0.72, color=theme.tensor_color(hue),
                    hatch=hatch, edgecolor=theme.edge_color(hue), lw=0.5,
                    label=name if y == 0 else None)
            at += seconds
        beside(ax, f"{1e3 * at:.2f} ms, {theme.percent(shares[y])} in the fused kernel", (1e3 * at, y),
               (5, 0), fontsize=TINY)
    ax.set_yticks(range(len(cases)), list(cases), fontsize=SMALL)
    longest = max(sum(parts.values()) for parts in cases.values())
    ax.set(ylim=(len(cases) - 0.5, -0.5), xlim=(0, 1.5e3 * longest))
    ax.set_xlabel(f"milliseconds ({source})", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=TINY)
    said = "; ".join(f"{name} {', '.join(f'{k} {1e3 * v:.3f} ms' for k, v in parts.items())}"
                     for name, parts in cases.items())
    return theme.describe(fig, f"Times of the launches: {said}.")


@styled
def side_by_side(rows: Sequence[Mapping], source: str, hand: str) -> Figure:
    """Draw what the simulator says and what was recorded: speed, that of the fastest order = 1.

    `rows` holds dicts: name, predicted (drawn as a span), measured. `hand`: the longest hand-over.
    """
    groups, widths = zip(*(row["name"].rpartition(", ")[::2] for row in rows), strict=True)
    new = [n == 0 or groups[n] != groups[n - 1] for n in range(len(rows))]
    places = np.arange(len(rows)) + 0.5 * np.cumsum(new)
    fig, ax = theme.subplots(height=1.0 + 0.22 * (places[-1] + 1))
    said: list[str] = []
    for n, (y, row) in enumerate(zip(places, rows, strict=True)):
        ends, dot = [min(row["predicted"]), max(row["predicted"])], row["measured"]
        ax.plot(ends, [y, y], "|", ls=(0, (2.5, 1.2)), lw=1.6, ms=9, mew=1.6, color="#31688E",
                label=None if n else f"simulated, a hand-over of {hand} (left) and none (right)")
        ax.plot([dot], [y], "o", ms=5, color=INK, label=None if n else "recorded")
        said.append(f"{' … '.join(dict.fromkeys(f'{end:.2f}' for end in ends))} | {dot:.2f}")
        beside(ax, said[-1], (max(*ends, dot, 1), y), (9, 0), fontsize=TINY)
    ax.axvline(1, color=GREY, lw=0.8, ls=":")
    ax.set_yticks(places, [row["name"] if first else width for row, first, width in
                           zip(rows, new, widths, strict=True)], fontsize=SMALL)
    speeds = [speed for row in rows for speed in (*row["predicted"], row["measured"])]
    ax.set(ylim=(places[-1] + 0.6, places[0] - 0.6), xlim=(min(speeds) - 0.02, max(speeds) + 0.05))
    cost = theme.percent(1 - min(row["measured"] for row in rows))
    ax.set_title(f"In this recording an order costs {cost} of the speed at the worst", loc="left")
    ax.xaxis.set_major_locator(MultipleLocator(0.05))
    ax.set_xlabel(f"speed of the fused kernel, without locks = 1 ({source})", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.13), ncols=2, frameon=False, fontsize=TINY)
    return theme.describe(fig, "Speeds, simulated and recorded. " + "; ".join(
        f"{row['name']}: {text.replace('|', 'and')}" for row, text in zip(rows, said, strict=True)))
