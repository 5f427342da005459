"""A picture of chapter 15: keys of some sequences in a room each, and in pages of one pool."""

from collections.abc import Sequence

from flashlib.course.plots import theme
from flashlib.course.plots.parts import boxes, rect
from flashlib.course.plots.theme import EDGE, GREY, INK, SMALL, TINY, Figure, styled

_IDLE = {"facecolor": "#F6F6F6", "edgecolor": "#CFCFCF", "hatch": "////", "lw": 0}
# A sequence's hue, where pages are drawn: these are no tensors.
_SEQUENCES = ("#4F7A5B", "#8A6D3B", "#5B7F95", "#A0527A", "#7A5C86", "#9C9C9C")


@styled
def memory(
    lengths: Sequence[int], tables: Sequence[Sequence[int]], *, page: int, room: int, pool: int
) -> Figure:
    """Draw the keys of some sequences in a room each, and in pages of one pool.

    `tables` holds the pages of each sequence; one that several hold is drawn in several colors.
    """
    count = len(lengths)
    height = 0.62 + 0.24 * max(count, -(-pool // 6) * 1.6)
    fig = theme.figure(height, layout=None)
    left = fig.add_axes((0.05, 0.04, 0.33, 1 - 0.4 / height))
    left.set(xlim=(0, room), ylim=(count, -0.1))
    left.axis("off")
    for b, n in enumerate(lengths):
        boxes(left, [(n, b + 0.12, room - n, 0.72)], **_IDLE)
        boxes(left, [(k + 0.04, b + 0.12, 0.92, 0.72) for k in range(n)], facecolor=_SEQUENCES[b], lw=0)
        left.text(-0.4, b + 0.48, "ABCDEF"[b], fontsize=SMALL, ha="right", va="center_baseline")
        left.text(room + 0.5, b + 0.48, f"pages {' '.join(map(str, tables[b]))}", fontsize=SMALL,
                  va="center_baseline", color=_SEQUENCES[b], fontweight="bold")
    reserved, used = count * room, sum(lengths)
    fig.text(
        0.05,
        1 - 0.06 / height,
        f"a room each: {reserved - used} of {reserved} empty",
        fontsize=8.5,
        fontweight="bold",
        va="top",
    )
    right = fig.add_axes((0.52, 0.04, 0.46, 1 - 0.4 / height))
    across = 6
    right.set(xlim=(0, across * (page + 0.5)), ylim=(-(-pool // across) * 1.6, -0.1))
    right.axis("off")
    held: dict[int, list[tuple[int, int]]] = {}
    for b, row in enumerate(tables):
        for j, at in enumerate(row):
            held.setdefault(at, []).append((b, min(page, lengths[b] - j * page)))
    filled = 0
    for at in range(pool):
        x, y = at % across * (page + 0.5), at // across * 1.6
        owners = held.get(at, [])
        look = {
            "fc": "none",
            "ec": EDGE if owners else "#BDBDBD",
            "lw": 0.8 if owners else 0.6,
            "ls": "-" if owners else ":",
        }
        most = max((keys for _, keys in owners), default=0)
        filled += most
        if owners:
            boxes(right, [(x + most, y, page - most, 1)], **_IDLE)
        for n, (b, keys) in enumerate(owners):
            tall = 1 / len(owners)
            boxes(
                right,
                [(x + k + 0.04, y + n * tall, 0.92, tall) for k in range(keys)],
                facecolor=_SEQUENCES[b],
                lw=0,
            )
        rect(right, x, y, page, 1, **look)
        right.text(
            x + page / 2,
            y + 1.07,
            f"{at}" + (f" {''.join('ABCDEF'[b] for b, _ in owners)}"),
            fontsize=TINY,
            ha="center",
            va="top",
            color=INK if owners else GREY,
        )
    empty = len(held) * page - filled
    fig.text(
        0.52,
        1 - 0.06 / height,
        f"pages of {page}: {empty} of {len(held) * page} empty",
        fontsize=8.5,
        fontweight="bold",
        va="top",
    )
    return theme.describe(
        fig,
        f"{count} sequences in a room each: {reserved - used} of {reserved} places empty;"
        f" in pages of {page}: {empty} of {len(held) * page}. Tables: "
        + "; ".join(f"{'ABCDEF'[b]} {list(row)}" for b, row in enumerate(tables))
        + ".",
    )
