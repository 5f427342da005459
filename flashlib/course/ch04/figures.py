"""The figures of chapter 04: a state that walks along a row, its merges, its rounding errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from flashlib.course.plots import theme
from flashlib.course.plots.parts import boxes, named, rect
from flashlib.course.plots.theme import FAINT, GREY, INK, SMALL, TINY, styled

# A rescale is an event and no tensor, so it is ink; what is not read yet is pale.
UNREAD = "#EFEFEF"
BAND = "#F3F3EE"


@styled
def running_state(x, m, l, factor, *, words: Sequence[str], future=None, at: int | None = None,
                  query: str | None = None, title: str | None = None, note: str = "") -> Figure:
    """Draw a row of logits with its running maximum m above, its running sum l below.

    Args:
        x, m, l: the logits and the state after each of them, (n,).
        factor: what l was multiplied by at each step, (n,); below 1 it is marked as a rescale (below
            0.8 where rescales are many).
        words: the word under each logit.
        future: the sum L relative to the final maximum, (n,), which a first pass cannot know.
        at: the number of logits read so far; the rest stays pale. None for all.
        query: the word that asks.
        note: one sentence above the figure.
    """
    x, m, l, factor = (np.asarray(a, dtype=float) for a in (x, m, l, factor))
    n = len(x)
    if not len(m) == len(l) == len(factor) == len(words) == n:
        raise ValueError(f"m, l, factor, words: expected {n} entries each, as many as x has, got"
                         f" {len(m)}, {len(l)}, {len(factor)}, {len(words)}")
    seen = n if at is None else int(at)
    if not 0 <= seen <= n:
        raise ValueError(f"at: expected a number of logits from 0 to {n}, got {at}")
    longest = max(theme.text_width(named(w), TINY) for w in words)
    head = 0.3 + 0.24 * bool(note)
    foot = longest + 0.14
    height = head + 3.3 + foot
    fig = theme.figure(height, layout=None)
    left, right = 0.58, 0.12
    box = (left / theme.WIDTH, 1 - (left + right) / theme.WIDTH)
    upper = fig.add_axes((box[0], (foot + 1.45) / height, box[1], 1.75 / height))
    lower = fig.add_axes((box[0], foot / height, box[1], 1.3 / height))
    all_events = [i for i in range(1, seen) if factor[i] < 1]
    crowded = np.sum(factor[1:] < 1) > 0.35 * n
    events = [i for i in all_events if factor[i] < 0.8] if crowded else all_events
    steps = np.arange(seen)

    for ax in (upper, lower):
        boxes(ax, [(i - 0.5, 0, 1, 1) for i in events], facecolors=BAND, linewidths=0, zorder=0,
              transform=ax.get_xaxis_transform())
    _bars(upper, steps, x[:seen], theme.tensor_color("x"), theme.edge_color("x"))
    _bars(upper, np.arange(seen, n), x[seen:], UNREAD, FAINT)
    upper.axhline(0, color=GREY, lw=0.6)
    span = max(np.ptp(np.append(x, 0.0)), 1e-9)
    upper.set_ylim(min(x.min(), 0) - 0.06 * span, max(x.max(), 0) + 0.22 * span)
    lower.set_ylim(0, 1.34 * max(1.0, np.max(l)))
    if seen:
        _steps(upper, m[:seen], theme.TENSOR_COLORS["m"])
        upper.plot(events, m[events], ls="", marker="v", color=INK, ms=5.5, zorder=5)
        _steps(lower, l[:seen], theme.TENSOR_COLORS["m"])
        if future is not None:
            lower.step(steps, np.asarray(future)[:seen], where="mid", color=GREY, lw=1.2,
                       ls=(0, (3, 2)), zorder=3)
        _factors(lower, l, factor, events, n, crowded)
        if at is not None:
            rect(upper, seen - 1.36, 0, 0.72, x[seen - 1], fill=False, ec=INK, lw=2.0, zorder=5)
            lower.plot([seen - 1], [l[seen - 1]], marker="o", color=INK, ms=5, zorder=6)
    _label_lines(upper, lower, l, future, events, seen, n)
    upper.spines["bottom"].set_visible(False)
    for ax, label in ((upper, "logits x"), (lower, "running sum ℓ")):
        ax.set(xlim=(-0.8, n - 0.2), xticks=[], ylabel=label)
        ax.yaxis.set_label_coords(-0.062, 0.5)
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        ax.yaxis.set_major_formatter(_plain)
    marked = {*events, *({seen - 1} if at is not None and seen else ())}
    for i, word in enumerate(words):                # plain texts: ticks would redraw half as fast
        lower.text(i, -0.035, named(word), rotation=90, ha="center", va="top", fontsize=TINY,
                   transform=lower.get_xaxis_transform(), color=INK if i in marked else "#444444",
                   fontweight="bold" if i in marked else "normal")
    heading = title if title is not None else (f"the query is “{query}”" if query else "")
    fig.text(0.012, 1 - 0.09 / height, heading, fontsize=10, fontweight="bold", va="top")
    if note:
        fig.text(0.012, 1 - 0.32 / height, note, fontsize=9, va="top")
    marks = "; ".join(f"“{words[i]}”, factor {factor[i]:.2g}" for i in events) or "none"
    count = f"{len(all_events)} rescales, by less than 0.8" if crowded else "Rescales"
    return theme.describe(fig, f"A row of {n} logits, {seen} of them read, with the running"
                               f" maximum and the running sum. {count}: {marks}.")


def _plain(value, position=None) -> str:
    """Write a tick without mathtext, which is slow."""
    return f"{value:g}".replace("-", "−")


def _steps(ax, y, color) -> None:
    edges = np.arange(len(y) + 1) - 0.5
    ax.stairs(y, edges, baseline=None, color=color, lw=2.0, zorder=4)


def _bars(ax, places, heights, color, edge) -> None:
    """Draw bars as one collection, which a slider can redraw much faster than single patches."""
    boxes(ax, [(i - 0.36, 0, 0.72, y) for i, y in zip(places, heights, strict=True)], zorder=2,
          facecolors=color, edgecolors=edge, linewidths=0.6)


def _factors(ax, l, factor, events, n, crowded) -> None:
    """Mark by an arrow how far each rescale shrank the sum; factors stand upright in a crowd."""
    before = np.array([l[i - 1] for i in events])
    after = np.array([l[i - 1] * factor[i] for i in events])
    tip = np.minimum(after + 0.05 * ax.get_ylim()[1], before)
    ax.vlines(events, tip, before, color=INK, lw=1.1, zorder=5)
    ax.plot(events, tip, ls="", marker="v", ms=3.6, color=INK, zorder=5)
    last, row = -10.0, 0
    for i in events:
        text = "×" + (f"{factor[i]:.2f}" if factor[i] >= 0.095 else
                      f"{factor[i]:.2g}".replace("e-0", "e−").replace("e-", "e−"))
        close = i - last < 1.4 * theme.text_width(text, TINY) / (6.3 / n)
        row = (row + 1) % 3 if close and not crowded else 0
        last = i
        ax.text(i, 0.985 - 0.1 * row, text, ha="center", va="top", fontsize=TINY, color=INK,
                rotation=90 if crowded else 0, transform=ax.get_xaxis_transform(), zorder=6)


def _label_lines(upper, lower, l, future, events, seen, n) -> None:
    """Name the maximum above all bars, the sum where it ends, the dashed line where it has room."""
    if not seen:
        return
    upper.plot([-0.5, 0.9], [0.955] * 2, color=theme.TENSOR_COLORS["m"], lw=2.0,
               transform=upper.get_xaxis_transform())
    words = {"fontsize": 9, "fontweight": "bold", "color": theme.TENSOR_COLORS["m"], "zorder": 7}
    upper.text(1.6, 0.955, "running maximum m", va="center_baseline", **words,
               transform=upper.get_xaxis_transform())
    top, at_right = lower.get_ylim()[1], seen >= n - 1
    if at_right:                                    # beside the axes, clear of a last rescale's arrow
        lower.text(n - 0.1, l[seen - 1], "ℓ", ha="left", va="center", **words)
    else:
        lower.text(seen - 0.3, min(l[seen - 1] + 0.04 * top, 0.9 * top), "ℓ", ha="left",
                   va="bottom", **words)
    if future is not None and events:
        start, stop = max(zip([0, *events], events, strict=False), key=lambda gap: gap[1] - gap[0])
        k = (start + stop) // 2
        text = "L, relative to the final m"
        k = max(k, round(0.5 * theme.text_width(text, SMALL) / (6.3 / n)) + 1)
        lower.text(k, future[k] + 0.04 * top, text, va="bottom", ha="center",
                   fontsize=SMALL, color=GREY, zorder=7)
        last = events[-1]
        if seen - last > 0.2 * n:
            lower.text((last + seen) / 2, 0.5 * l[last], "from here on ℓ = L", va="center",
                       ha="center", fontsize=SMALL, color=GREY, zorder=7)


@styled
def rescale_events(counts, *, expected: float, actual: Mapping[str, int], lengths=None,
                   expected_by_length=None, counted_by_length=None) -> Figure:
    """Draw how often a row in random order rescales, and how that grows with its length.

    Args:
        counts: rescales in each random order of one row.
        expected: their expectation.
        actual: rescales of named orders of the same row, {"as written": 4}.
        lengths, expected_by_length, counted_by_length: expectation and measured mean over the
            length of a row.
    """
    fig, (left, right) = theme.subplots(1, 2, height=2.9, width_ratios=(1.25, 1))
    counts = np.asarray(counts)
    values, times = np.unique(counts, return_counts=True)
    share = times / len(counts)
    left.bar(values, share, width=0.8, color=theme.tensor_color("x"),
             edgecolor=theme.edge_color("x"), linewidth=0.6)
    top = share.max()
    left.axvline(expected, color=INK, lw=1.4, ls=(0, (4, 2)), ymax=0.9)
    left.text(expected, 1.2 * top, f"expected: {expected:.2f}", fontsize=SMALL, ha="center",
              va="center")
    last = int(values.max())
    for name, count in actual.items():
        if count > last:
            left.annotate(f"{name}: {count}", (last + 1.4, 0.1 * top), (last + 0.7, 0.1 * top),
                          ha="right", va="center", fontsize=SMALL,
                          arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.1})
            continue
        height = float(share[values == count][0]) if count in values else 0.0
        place = (-0.7, 0.5 * top) if count < 2 else (count + 1.0, height + 0.1 * top)
        left.annotate(f"{name}: {count}".replace(" ", "\n" if count < 2 else " ", 1),
                      (count + (0 if count < 2 else 0.3), height + 0.01 * top), place, ha="left",
                      va="bottom" if count < 2 else "center", fontsize=SMALL,
                      arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkB": 0,
                                  "relpos": (0.2, 0) if count < 2 else (0, 0.5)})
    left.set(xlim=(-0.8, last + 1.6), ylim=(0, 1.28 * top), xlabel="rescales while folding the row",
             ylabel=f"share of {len(counts):,} random orders", title="Most orders rescale a few times")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.plot(lengths, expected_by_length, color=GREY, lw=1.4, ls=(0, (4, 2)))
    right.plot(lengths, counted_by_length, ls="", marker="o", color=INK, ms=4.5)
    right.set(xscale="log", xlabel="length n of the row", ylabel="rescales, random order",
              ylim=(0, None), title="Ten times the length adds 2.3")
    right.text(lengths[-1], 0.62 * expected_by_length[-1], "dashed: expected\ndots: counted",
               fontsize=SMALL, ha="right", va="top", color=GREY)
    orders = ", ".join(f"{name} {count}" for name, count in actual.items())
    return theme.describe(fig, f"Left: share of random orders by their number of rescales, expected"
                               f" {expected:.2f}; the named orders have {orders}. Right: the number"
                               " grows with the logarithm of the row's length.")


@styled
def maxima_by_distance(means, shares, *, title="") -> Figure:
    """Draw the mean logit over the distance of key and query, and how often a new maximum is there.

    Args:
        means: the mean logit of the keys 1, 2, 3 … tokens before their query.
        shares: the share of rows that reach a new maximum there.
    """
    fig, (upper, lower) = theme.subplots(2, 1, height=3.0, sharex=True, height_ratios=(1.3, 1))
    places = -np.arange(1, len(means) + 1)
    _bars(upper, places, means, theme.tensor_color("x"), theme.edge_color("x"))
    _bars(lower, places, shares, theme.TENSOR_COLORS["m"], theme.TENSOR_COLORS["m"])
    upper.axhline(0, color=GREY, lw=0.6)
    upper.set(ylim=(1.08 * min(*means, 0), 1.08 * max(means)), ylabel="mean logit", title=title)
    upper.spines["bottom"].set_visible(False)
    upper.tick_params(bottom=False)
    lower.set(xlim=(places[-1] - 0.8, -0.2), ylim=(0, 1), xlabel="key − query, in tokens",
              ylabel="share of rows with\na new maximum")
    fig.align_ylabels()
    often = ", ".join(f"{place}: {share:.2f}" for place, share in zip(places, shares, strict=True)
                      if share >= 0.5)
    return theme.describe(fig, "The mean logit swings with the distance of key and query. The share of"
                               f" rows with a new maximum is at least one half at {often}.")


@styled
def error_growth(lengths, by_length: Mapping[str, Sequence[float]], blocks, by_blocks,
                 predicted) -> Figure:
    """Draw the rounding error of l over the row's length, and over the number of blocks.

    Args:
        lengths: lengths of rows.
        by_length: errors at these lengths in units of 2⁻²⁴, one series for each way to sum.
        blocks, by_blocks: number of blocks at the greatest length, and the error with so many.
        predicted: what the error with so many blocks was predicted to be.
    """
    fig, (left, right) = theme.subplots(1, 2, height=3.2, sharey=True, width_ratios=(1.15, 1))
    colors, markers = (INK, GREY, "#31688E", "#35B779"), "osD^"
    ends: dict[float, tuple[str, str]] = {}                   # curves that end together share a label
    for (name, errors), color, marker in zip(by_length.items(), colors, markers, strict=False):
        left.plot(lengths, errors, color=color, marker=marker, ms=4.5, lw=1.5,
                  mfc="white" if marker == "s" else color)
        near = next((end for end in ends if abs(np.log10(errors[-1] / end)) < 0.1), errors[-1])
        ends[near] = (f"{ends[near][0]} ≈\n{name}" if near in ends else name, color)
    for end, (label, color) in ends.items():
        left.annotate(label, (lengths[-1], end), xytext=(6, 0), textcoords="offset points",
                      va="center", fontsize=SMALL, color=theme.readable(color), annotation_clip=False)
    left.set(xscale="log", yscale="log", xlabel="length n of the row",
             ylabel="relative error of ℓ, in 2⁻²⁴", title="A long sum loses digits, online or not")
    left.set_xlim(lengths[0] * 0.7, lengths[-1] * 40)
    left.set_xticks([10, 100, 1000, 10_000, 100_000][: 1 + int(np.log10(lengths[-1]))])
    right.plot(blocks, predicted, color=GREY, lw=1.4, ls=(0, (4, 2)))
    right.plot(blocks, by_blocks, color="#31688E", marker="D", ms=4.5, ls="")
    right.set(xscale="log", xlabel=f"blocks that a row of n = {lengths[-1]:,} is cut into")
    right.tick_params(axis="y", labelleft=True)
    for text, end, side in (("one block", 0, "left"), ("a block\nfor each logit", -1, "right")):
        right.annotate(text, (blocks[end], by_blocks[end]), xytext=(0, 8),
                       textcoords="offset points", ha=side, va="bottom", fontsize=SMALL, color=GREY)
    best = int(np.argmin(by_blocks))
    size = lengths[-1] // int(blocks[best])
    right.annotate(f"{blocks[best]} blocks of {size:,}", (blocks[best], by_blocks[best]),
                   xytext=(0, -9), textcoords="offset points", ha="center", va="top",
                   fontsize=SMALL, color=GREY)
    right.text(0.5, 0.93, "dashed: predicted\nmarkers: measured", transform=right.transAxes,
               ha="center", va="top", fontsize=SMALL, color=GREY)
    right.margins(y=0.14)
    last = ", ".join(f"{name} {errors[-1]:.1f}" for name, errors in by_length.items())
    return theme.describe(fig, "Left: the relative error of the sum in units of 2⁻²⁴ over the"
                               f" length of the row; at {lengths[-1]:,} logits: {last}. Right: it"
                               f" falls to {by_blocks[best]:.1f} at {blocks[best]} blocks and"
                               " rises again, as predicted.")


@styled
def merge_orders(orders: Mapping[str, tuple], value: Callable, leaf: Callable = str) -> Figure:
    """Draw several orders of merging the same row, each as a tree with its states.

    Args:
        orders: name to nested pairs of leaf numbers, {"tree": ((0, 1), (2, 3))}.
        value: order -> its state (m, l).
        leaf: leaf number -> what is written under it.
    """
    trees = {name: _layout(order, 0)[0] for name, order in orders.items()}
    deepest = max(root["y"] for root in trees.values())
    fig = theme.figure(0.78 + 0.47 * deepest + 0.35, layout=None)
    high = fig.get_figheight()
    share = 1 / len(trees)
    for k, (name, root) in enumerate(trees.items()):
        ax = fig.add_axes((k * share + 0.008, 0.0, share - 0.016, 1 - 0.3 / high))
        ax.axis("off")
        nodes = list(_walk(root))
        leaves = [node for node in nodes if "parts" not in node]
        ax.set(xlim=(-0.55, len(leaves) - 0.45), ylim=(-0.75, deepest + 0.5))
        ax.add_collection(LineCollection(
            [((part["x"], part["y"]), (node["x"], node["y"])) for node in nodes
             for part in node.get("parts", ())], colors=GREY, linewidths=1.0, zorder=1))
        for node in nodes:
            _draw_node(ax, node, value, leaf, node is root)
        fig.text(k * share + 0.012, 1 - 0.06 / high, name, fontsize=10, fontweight="bold", va="top")
    m, l = value(next(iter(orders.values())))
    return theme.describe(fig, f"The same logits merged in {len(orders)} orders,"
                               f" {', '.join(orders)}: every order ends in the state"
                               f" m = {m:.4g}, l = {l:.4g}.")


def _layout(order, first):
    """Return the tree of an order with places, and the number of the next leaf to the right."""
    if not isinstance(order, tuple):
        return {"order": order, "x": float(first), "y": 0}, first + 1
    parts = []
    for part in order:
        node, first = _layout(part, first)
        parts.append(node)
    return {"order": order, "parts": parts, "x": float(np.mean([p["x"] for p in parts])),
            "y": 1 + max(p["y"] for p in parts)}, first


def _walk(node):
    yield node
    for part in node.get("parts", ()):
        yield from _walk(part)


def _draw_node(ax, node, value, leaf, is_root) -> None:
    x, y = node["x"], node["y"]
    if "parts" not in node:
        _box(ax, x, y, 0.86, 0.48, theme.tint(theme.tensor_color("x"), 0.35),
             theme.edge_color("x"), 0.8)
        _write(ax, x, y - 0.01, leaf(node["order"]))
        return
    m, l = value(node["order"])
    _box(ax, x, y, 1.14, 0.72, "#E9E9E9" if is_root else "white", INK if is_root else GREY,
         1.4 if is_root else 0.8)
    _write(ax, x, y + 0.16, f"{m:.1f}", fontweight="bold")
    _write(ax, x, y - 0.17, f"{l:.3f}")


def _box(ax, x, y, width, height, face, edge, lw) -> None:
    ax.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, zorder=2, lw=lw,
                                boxstyle="round,pad=0,rounding_size=0.08", facecolor=face,
                                edgecolor=edge))


def _write(ax, x, y, text, **kwargs) -> None:
    ax.text(x, y, text.replace("-", "−"), ha="center", va="center", fontsize=TINY, zorder=3, **kwargs)
