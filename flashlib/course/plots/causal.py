"""What a causal mask leaves: full tiles, tiles that the diagonal cuts, and tiles that are skipped."""

from collections import Counter
from collections.abc import Mapping

from flashlib.course.plots import theme
from flashlib.course.plots.parts import rect
from flashlib.course.plots.theme import GREY, INK, SMALL, TINY, Figure, percent, styled
from flashlib.masks import mask_of, tile_class, tiles


def face(kind: str, alpha: float = 0.5) -> dict:
    """Return the look of a tile that is "full", "partial" (cut by the diagonal) or "skip"."""
    color, edge = theme.tensor_color("S"), {"edgecolor": theme.edge_color("S")}
    if kind == "skip":
        return edge | {"facecolor": "#FFFFFF", "hatch": "...", "alpha": alpha}
    return edge | {"facecolor": color if kind == "full" else theme.tint(color, 0.55)}


def tile_kinds(ax, Nq: int, Nk: int, Br: int, Bc: int, *, lw: float, alpha: float = 0.5):
    """Draw the tiles under a causal mask; return, for each row of them, how many are of which kind."""
    mask, found = mask_of(True, Nq, Nk), []
    for rows in tiles(Nq, Br):
        found.append((rows, Counter()))
        for keys in tiles(Nk, Bc):
            kind = tile_class(mask, rows, keys)
            found[-1][1][kind] += 1
            rect(ax, keys.start, rows.start, keys.stop - keys.start, rows.stop - rows.start, lw=lw,
                 **face(kind, alpha))
    return found


@styled
def causal_rows(cases: Mapping[str, tuple[int, int, int]]) -> Figure:
    """Draw the tiles that a causal mask leaves, and beside each row tile how many it visits.

    `cases` maps a title to (N, Br, Bc). Full tiles are dark, those that the diagonal cuts pale, the
    skipped ones dotted.
    """
    each = (theme.WIDTH - 0.1) / len(cases)
    side, strip = min(2.3, 0.56 * each), 0.3 * each
    height, words = side + 0.85, []
    fig = theme.figure(height, layout=None)
    for n, (title, (N, Br, Bc)) in enumerate(cases.items()):
        box = (0.15 + n * each) / theme.WIDTH, 0.42 / height
        ax = fig.add_axes((*box, side / theme.WIDTH, side / height))
        bar = fig.add_axes((box[0] + (side + 0.06) / theme.WIDTH, box[1], strip / theme.WIDTH,
                            side / height))
        found, T = tile_kinds(ax, N, N, Br, Bc, lw=0.7, alpha=0.45), -(-N // Bc)
        total = sum((kinds for _, kinds in found), Counter())
        for rows, kinds in found:
            left, thick = 0, 0.7 * (rows.stop - rows.start)
            for kind in ("full", "partial"):
                rect(bar, left, rows.start + 0.15 * Br, kinds[kind], thick, **face(kind), lw=0.7)
                left += kinds[kind]
            bar.text(left + 0.04 * T, (rows.start + rows.stop) / 2, str(left), fontsize=TINY,
                     va="center_baseline")
        ax.plot([0, N], [0, N], color=INK, lw=1.3)
        ax.set(xlim=(0, N), ylim=(N, 0))
        bar.set(xlim=(0, 1.25 * T), ylim=(N, 0))
        for a in (ax, bar):
            a.axis("off")
        visited, count = total["full"] + total["partial"], sum(total.values())
        fig.text(box[0], 1 - 0.08 / height, title, fontsize=10, fontweight="bold", va="top")
        fig.text(box[0] + (side + 0.06) / theme.WIDTH, 1 - 0.12 / height, "tiles in the row",
                 fontsize=SMALL, color=GREY, va="top")
        note = f"{total['full']} full, {total['partial']} cut, {total['skip']} skipped"
        fig.text(box[0], 0.34 / height, f"{note}:\n{visited} of {count} visited, "
                 f"{percent(visited / count)}", fontsize=SMALL, va="top")
        words.append(f"{title}: {note} of {count}")
    return theme.describe(fig, f"Tiles under a causal mask. {'; '.join(words)}. The last row "
                               "visits all of its tiles.")
