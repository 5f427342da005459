"""The parts of the key figure: the matrix with its strips, the SRAM, the bytes.

Lengths are inches, so that every text knows whether it has room.
"""

from flashlib.course.plots import theme
from flashlib.course.plots.parts import boxes, rect
from flashlib.course.plots.replay import Moment, Replay
from flashlib.course.plots.theme import EDGE, GREY, INK, SMALL, TINY, Axes, human_bytes, text_width
from flashlib.course.plots.traffic import ordered, stack

_STRIP, _GAP = 0.2, 0.07
_GREY = {"facecolor": theme.tint("#8A8A8A", 0.8), "edgecolor": "#A8A8A8"}
PLACES = [("in HBM", {**_GREY, "hatch": "////"}),
          ("in SRAM", {"facecolor": "#8A8A8A", "edgecolor": EDGE, "lw": 1.2}),
          ("not written", {**_GREY, "facecolor": "white"})]


def frame(fig, left, bottom, width, height) -> Axes:
    """Return bare axes at a place given in inches."""
    w, h = fig.get_size_inches()
    ax = fig.add_axes((left / w, bottom / h, width / w, height / h))
    ax.axis("off")
    return ax


def heading(fig, x, y, title, status) -> None:
    """Write a bold title and, after it, where we are; x and y in inches."""
    w, h = fig.get_size_inches()
    fig.text(x / w, y / h, title, fontsize=10, fontweight="bold", va="baseline")
    fig.text((x + text_width(title, 10, "bold") + 0.14) / w, y / h, status, fontsize=SMALL, color=GREY,
             va="baseline")


def status(replay: Replay, moment: Moment) -> str:
    total = len(replay.grid(moment.kernel)[2])
    skipped = len(replay.skipped(moment.kernel))
    text = f"tile {len(moment.visits)} of {total}" if total else "no tile of the matrix in this kernel"
    return text + (f", {skipped} skipped" if skipped else "")


def matrix(ax, replay: Replay, moment: Moment, size, *, numbers: bool, small: bool = False) -> None:
    """Draw the matrix with its strips into bare axes of `size` inches."""
    strip, gap = (_STRIP * 0.65, _GAP * 0.7) if small else (_STRIP, _GAP)
    strip *= 1.0 if replay.tensor == "S" else 1.6  # a tile of A or B is only a part of its depth
    ax.set(xlim=(0, size[0]), ylim=(size[1], 0))
    left = 0.02 + len(replay.left) * (strip + gap) + (0.0 if small else 0.24)
    top = 0.02 + len(replay.top) * (strip + gap)
    room = (size[0] - left - len(replay.right) * (strip + gap) - 0.02, size[1] - top - 0.2)
    scale = min(room[0] / replay.Nk, room[1] / replay.Nq)
    w, h = max(replay.Nk * scale, 0.25 * room[0]), max(replay.Nq * scale, 0.25 * room[1])
    sx, sy, x0, y0 = w / replay.Nk, h / replay.Nq, left, top

    _cells(ax, replay, moment, x0, y0, sx, sy, numbers)
    for n, name in enumerate(replay.left):
        box = (x0 - (n + 1) * (strip + gap), y0, strip, h)
        _strip(ax, replay, moment, name, box, sy, upright=True)
    for n, name in enumerate(replay.right):
        box = (x0 + w + gap + n * (strip + gap), y0, strip, h)
        _strip(ax, replay, moment, name, box, sy, upright=True)
    for n, name in enumerate(replay.top):
        box = (x0, y0 - (len(replay.top) - n) * (strip + gap), w, strip)
        _strip(ax, replay, moment, name, box, sx, upright=False)
    if not small:
        words = ("queries", "keys") if replay.tensor == "S" else ("rows", "columns")
        words = [word if n != 1 else {"queries": "query"}.get(word, word[:-1])
                 for word, n in zip(words, (replay.Nq, replay.Nk), strict=True)]
        ax.text(x0 + w / 2, y0 + h + 0.06, f"{replay.Nk} {words[1]} →", ha="center", va="top",
                fontsize=TINY, color=GREY)
        ax.text(x0 - len(replay.left) * (strip + gap) - 0.07, y0 + h / 2, f"← {replay.Nq} {words[0]}",
                ha="right", va="center", fontsize=TINY, color=GREY, rotation=90)


def _cells(ax, replay, moment, x0, y0, sx, sy, numbers) -> None:
    """Draw the tiles of the matrix: to come, skipped, visited, at work."""
    rows, cols, visits = replay.grid(moment.kernel)
    h, w = replay.Nq * sy, replay.Nk * sx

    def box(r, c):
        return x0 + c[0] * sx, y0 + r[0] * sy, (c[1] - c[0]) * sx, (r[1] - r[0]) * sy

    rect(ax, x0, y0, w, h, fc="white", ec="#C4C4C4", lw=0.8)
    step = min(sx * max(stop - start for start, stop in cols),
               sy * max(stop - start for start, stop in rows))
    fine = step < 0.08  # then lines between tiles would hide the tiles
    if visits and not fine:
        boxes(ax, [box(r, c) for r in rows for c in cols], facecolors="none", edgecolors="#DADADA",
              linewidths=0.6, gid="to come")
    skipped = replay.skipped(moment.kernel)
    if skipped:
        boxes(ax, [box(r, c) for r, c in skipped], facecolors="#FAFAFA", edgecolors="#D9D9D9",
              linewidths=0 if fine else 0.5, hatch="....", gid="skipped")
    if moment.visits:
        colors = [_shade(v, n, len(visits)) for n, v in enumerate(moment.visits)]
        boxes(ax, [box(v.rows, v.cols) for v in moment.visits], facecolors=colors, gid="visits",
              edgecolors="face" if fine else "white", linewidths=0.3 if fine else min(0.9, 4 * step))
        if numbers:
            _stamp(ax, moment.visits, colors, x0, y0, sx, sy, len(visits))
    if moment.current:
        rect(ax, *box(moment.current.rows, moment.current.cols), fill=False, ec=INK,
             lw=1.2 if fine else 2.0, gid="current", zorder=6, joinstyle="miter")
    if skipped:
        _say_skipped(ax, skipped, x0, y0, sx, sy)


def _shade(visit, n, total):
    """Return light to dark in the hue of the tensor, in the order of the visits."""
    return theme.tensor_cmap(visit.tensor, 0.2)(0.9 * n / max(total - 1, 1))


def _stamp(ax, visits, colors, x0, y0, sx, sy, total) -> None:
    """Write the order of the visits into the tiles, where every number has room."""
    widths = [(v.cols[1] - v.cols[0]) * sx for v in visits]
    heights = [(v.rows[1] - v.rows[0]) * sy for v in visits]
    room = sorted(widths)[len(widths) // 4], sorted(heights)[len(heights) // 4]
    size = next((s for s in (9, SMALL, TINY)
                 if text_width(str(total), s) + 0.05 <= room[0] and 1.25 * s / 72 <= room[1]), None)
    if size is None or len(visits) > 400:
        return
    latest = {(v.rows, v.cols): n for n, v in enumerate(visits)}
    for n, (visit, color) in enumerate(zip(visits, colors, strict=True)):
        if latest[visit.rows, visit.cols] != n:
            continue
        if text_width(str(n + 1), size) + 0.03 > widths[n] or 1.1 * size / 72 > heights[n]:
            continue
        ax.text(x0 + sum(visit.cols) / 2 * sx, y0 + sum(visit.rows) / 2 * sy, str(n + 1), ha="center",
                va="center_baseline", fontsize=size, color=theme.ink_on(color), gid="order")


def _say_skipped(ax, skipped, x0, y0, sx, sy) -> None:
    """Write "skipped" at the top of the skipped tiles, if they leave room for it."""
    first = min(r for r, _ in skipped)
    middle = max((first[1] - first[0]) / 2 * sy, 0.12)
    covered = {r for r, _ in skipped if (r[0] - first[0]) * sy < middle + 0.08}
    runs = [[c for r, c in skipped if r == row] for row in covered]
    left = max(min(c[0] for c in run) for run in runs) * sx
    right = min(max(c[1] for c in run) for run in runs) * sx
    deep = (max(r[1] for r in covered) - first[0]) * sy
    if text_width("skipped", TINY) + 0.1 < right - left and deep > 0.2:
        ax.text(x0 + (left + right) / 2, y0 + first[0] * sy + middle, "skipped", ha="center",
                va="center_baseline", fontsize=TINY, color=GREY, gid="skipped label", zorder=5,
                bbox={"boxstyle": "round,pad=0.2", "fc": "#FAFAFA", "ec": "none"})


def _strip(ax, replay, moment, name, box, scale, *, upright) -> None:
    """Draw one tensor beside the matrix: what is in HBM, what is in SRAM now."""
    x, y, w, h = box
    depth_axis = _depth_axis(name, upright)
    depth = max(replay.extent(name)[depth_axis], 1)
    color = theme.tensor_color(name)

    def place(rows, cols):
        along, across = (cols, rows) if depth_axis == 0 else (rows, cols)
        a, length = along[0] * scale, (along[1] - along[0]) * scale
        b, thick = across[0] / depth, (across[1] - across[0]) / depth
        if upright:
            return x + b * w, y + a, thick * w, length
        return x + a, y + b * h, length, thick * h

    comes_in = any(e.op == "load" and e.tensor == name for e in replay.trace.events)
    first = next((e.op for e in replay.trace if e.tensor == name and e.op in ("load", "store")), "load")
    rect(ax, x, y, w, h, fc="white", ec="#C4C4C4", lw=0.8, ls="-")
    in_hbm = ([box] if comes_in and first == "load"
              else [place(*region) for region in dict.fromkeys(moment.stored.get(name, []))])
    if in_hbm:
        boxes(ax, in_hbm, facecolors=theme.tint(color, 0.84), edgecolors=theme.tint(color, 0.6),
              linewidths=0.5, hatch="////", gid=f"hbm {name}")
    live = [e for e in moment.sram if e.tensor == name]
    if live:
        boxes(ax, [place(e.rows, e.cols) for e in live], facecolors=color, edgecolors=EDGE,
              linewidths=1.4, gid=f"sram {name}", zorder=5)
    at = (x + w / 2, y + h + 0.05) if upright else (x - 0.06, y + h / 2)
    ax.text(*at, name, ha="center" if upright else "right", va="top" if upright else "center_baseline",
            fontsize=9 if max(w, h) > 2 else SMALL, fontweight="bold", color=INK)


def frames_key(ax, replay: Replay) -> None:
    """Write the key of a row of moments: what the strips show, what the bars show."""
    bar = {"facecolor": "#C8C8C8", "edgecolor": "#6B6B6B", "lw": 0}
    items = [*PLACES[:2], ("bar: read", bar), ("bar: written", {**bar, "hatch": "/////"})]
    statistics = [name for name in ("m", "l") if name in {e.tensor for e in replay.trace}]
    if statistics:
        words = " and ".join(statistics).replace("l", "ℓ")
        items.append((words, {"facecolor": theme.tensor_color("m"), "lw": 0}))
    theme.patch_key(ax, items, at=(1.0, 0.0))


def _depth_axis(name, upright) -> int:
    """Return which axis of a tensor runs across its strip: rows only for B of a matmul."""
    return 0 if name == "B" else 1


def sram(ax, replay, moment, capacity, size) -> None:
    """Draw what is in SRAM as a column of tiles, as tall as their bytes."""
    ax.set(xlim=(0, size[0]), ylim=(0, size[1]))
    top, bottom, column = size[1] - 0.42, 0.2, 0.62
    most = max(capacity or 0, replay.peak_bytes, 1)
    scale = (top - bottom) / most
    ax.text(0, size[1] - 0.09, "In SRAM now", fontsize=9, fontweight="bold", va="top")
    rect(ax, 0, bottom, column, top - bottom, **theme.SRAM, gid="sram")
    y, labels = bottom, []
    for name in ordered({e.tensor for e in moment.sram}):
        count = sum(e.bytes for e in moment.sram if e.tensor == name)
        color = theme.tensor_color(name)
        rect(ax, 0, y, column, count * scale, fc=color, ec="white", lw=0.7, gid=f"in sram {name}")
        shapes = [(e.rows[1] - e.rows[0], e.cols[1] - e.cols[0])
                  for e in moment.sram if e.tensor == name]
        labels.append((y + count * scale / 2, name, shapes[0], count))
        y += count * scale
    heights = _apart([at for at, *_ in labels], 0.165, bottom + 0.05, top + 0.02)
    for (at, name, shape, count), height in zip(labels, heights, strict=True):
        ax.plot([column + 0.03, column + 0.13], [at, height], color="#9A9A9A", lw=0.7, clip_on=False)
        dims = f"{shape[0]}" if name in ("m", "l", "lse", "delta") else f"{shape[0]} × {shape[1]}"
        ax.text(column + 0.18, height, name, fontsize=SMALL, fontweight="bold", va="center_baseline")
        ax.text(column + 0.44, height, dims, fontsize=TINY, color=GREY, va="center_baseline")
        ax.text(size[0], height, human_bytes(count), fontsize=SMALL, va="center_baseline", ha="right")
    used = sum(count for *_, count in labels)
    if capacity:
        ax.plot([-0.04, column + 0.04], [bottom + capacity * scale] * 2, color=INK, lw=1.8,
                gid="capacity")
    note = (f"{human_bytes(used)} of {human_bytes(capacity)}" if capacity
            else (f"{human_bytes(used)} in use; peak {human_bytes(replay.peak_bytes)}"))
    ax.text(0, bottom - 0.07, note, fontsize=SMALL, color=GREY, va="top")


def _apart(wanted, gap, low, high) -> list[float]:
    """Move heights apart to at least `gap`, staying within low…high, in their order."""
    placed = []
    for at in wanted:
        placed.append(max(at, placed[-1] + gap if placed else low))
    ceiling = high
    for n in range(len(placed) - 1, -1, -1):
        placed[n] = min(placed[n], ceiling)
        ceiling = placed[n] - gap
    return placed


def byte_bars(ax, bars, most, inches, *, note="", small=False, rail=True) -> None:
    """Draw stacked bars of the HBM bytes so far, on an axis (with a `rail`) that ends at `most`."""
    inch = most / (inches - (0.0 if small else 0.85))
    ax.set(xlim=(0, inch * inches), ylim=(len(bars) - 0.5, -0.5))
    for y, (label, moment) in enumerate(bars):
        if rail:
            rect(ax, 0, y - 0.36, most, 0.72, fc="#F4F4F4", ec="#D5D5D5", lw=0.6)
        end = stack(ax, y, moment.moved, height=0.72, inch=inch, label=True,
                    size=TINY if small else SMALL)
        if label:
            ax.text(-0.08 * inch, y, label, ha="right", va="center_baseline", fontsize=9)
        if not small:
            said = human_bytes(moment.hbm_bytes)
            inside = end + inch * (text_width(said, 9, "bold") + 0.16) < most
            ax.text((end if inside else max(end, most)) + 0.08 * inch, y, said, va="center_baseline",
                    fontsize=9, fontweight="bold", zorder=6)
    if small:
        return
    if note:
        ax.text(0, -0.62, note, fontsize=SMALL, color=GREY, va="bottom")
    theme.read_write_key(ax)
