"""The figures of chapter 10: the page beside the kernel, units' times, a tile's walk, the race."""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.patches import Polygon

from flashlib.course.notebook import show
from flashlib.course.notebook.data import Measurement
from flashlib.course.plots import theme
from flashlib.course.plots.causal import face
from flashlib.course.plots.parts import beside, boxes, origin, rect, sentences, whole
from flashlib.course.plots.theme import INK, OVER, SMALL, TINY, Figure, styled
from flashlib.masks import Mask, tiles

_OURS = {"ours": "this course's op", "ours_triton": "this course's Triton kernels"}
_RIVALS = {"fa3": "FA3", "fa4": "FA4", "fa4_deterministic": "FA4 det.", "sdpa_cudnn": "cuDNN"}

# The page's line, the kernel's lines that do the same, and the tensor whose hue joins them ("": grey).
_JOINED = (
    ("for rows in tiles(Nq, Br)", ("tile = pid % tiles_per_head", "start = tile * BLOCK_M"), ""),
    ("Qi = sram.load(Q[rows])", ("q = load_rows((Q,",), "Q"),
    ("Oi = sram.tile(", ("acc = tl.zeros",), "O"),
    ("m = sram.tile(", ("m_i = tl.full",), "m"),
    ("l = sram.tile(", ("l_i = tl.zeros",), "m"),
    ("for keys in tiles(Nk, Bc)", ("for start in tl.range",), ""),
    ("if mask.skips(rows, keys)", ("begin, whole, cut, end =",), ""),
    ("Kj, Vj = sram.load", ("k = load_rows", "v = load_rows"), "K"),
    ("Sij[...] = (Qi @ Kj.T)", ("qk = tl.dot",), "S"),
    ("if (visible := mask.visible", ("seen = visible(",), ""),
    ("Sij[...] = np.where(visible", ("qk = tl.where(seen",), "S"),
    ("m_new = np.maximum", ("m_new = tl.maximum",), "m"),
    ("alpha = np.exp", ("alpha = tl.exp2",), "m"),
    ("Pij[...] = np.exp", ("p = tl.exp2",), "P"),
    ("l[...] = alpha * l", ("l_i = l_i * alpha",), "m"),
    ("Oi[...] = alpha[:, None]", ("acc = acc * alpha", "acc = tl.dot"), "O"),
    ("m[...] = m_new", ("m_i = m_new",), "m"),
    ("Oi[...] = Oi / np.maximum", ("acc = acc / tl.where",), "O"),
    ("sram.store(Oi, O[rows])", ("store_rows(acc",), "O"),
    ("sram.store(m + np.log(l)", ("lse = tl.where", "tl.store(LSE"), "m"),
)


def page_lines(page: Callable) -> list[str]:
    """Return the lines of `flash_v2`, which is `page`, that compute, without comments."""
    lines = inspect.getsource(page).splitlines()
    return _code(lines[next(n for n, line in enumerate(lines) if "for rows in tiles" in line):-1])


# What the compiler knows of a bfloat16 call, d <= 64, without windows, sinks, softcaps or packed
# sequences: the listings leave out the branches that this decides.
PLAIN = {"sequences": None, "SINK": None, "window": None, "EARLY_V": False, "INTO": False,
         "len(logits[1]) > 0": False, "O.dtype.element_ty == tl.float16": False}


def kernel_lines() -> list[str]:
    """Return the lines of the forward kernel of a plain causal call, with the loop that it calls.

    The loop is that of the tiles that the mask cuts; it stands where it is called.
    """
    where = PLAIN | {"IS_CAUSAL": True, "MASKED": True}
    own, loop = (_code(show.kernel_text("triton/forward", name, "body", where).splitlines())
                 for name in ("flash_fwd_kernel", "_attend"))
    at = {key: next(n for n, line in enumerate(own) if line.startswith(key))
          for key in ("pid =", "acc, l_i, m_i = _attend", "acc = acc /")}
    start = next(n for n, line in enumerate(loop) if line.startswith("for start"))
    return [*own[at["pid ="]:at["acc, l_i, m_i = _attend"]],
            *("  " + line for line in loop[start:-1]), *own[at["acc = acc /"]:]]


def _code(lines: Sequence[str]) -> list[str]:
    """Return lines of code two spaces a level deep, without comments and empty lines."""
    bare_lines = (re.sub(r"(^|\s\s+)#.*$", "", line).rstrip() for line in lines)
    kept = textwrap.dedent("\n".join(line for line in bare_lines if line.strip())).splitlines()
    return [" " * ((len(line) - len(line.lstrip())) // 2) + line.lstrip() for line in kept]


@styled
def page_and_kernel(page: Callable) -> Figure:
    """Draw the NumPy page, `flash_v2`, and the Triton kernel, and join the lines that do the same."""
    sides, step, size, wide = (page_lines(page), kernel_lines()), 0.152, 7.0, 8.95
    room, gap = (66, 70), 0.62                              # letters a line, inches between the two
    letter = 0.6021 * size / 72
    height = 0.42 + step * len(sides[1])
    fig = theme.figure(height, wide, layout=None)
    ax = whole(fig, down=True)
    left, right = 0.06, 0.14 + letter * room[0] + gap
    tops = [0.36 + step * (len(sides[1]) - len(sides[0])) / 2, 0.36]
    for x, top, lines, most, name in zip((left, right), tops, sides, room, (
            "the page: flash_v2, NumPy", "the kernel: flash_fwd_kernel, Triton"), strict=True):
        name = f"{name}, {len(lines)} lines"
        ax.text(x, top - 0.16, name, fontsize=9, fontweight="bold", va="center")
        for n, line in enumerate(lines):
            text = line if len(line) <= most else line[:line.rindex(" ", 0, most - 1)] + " …"
            ax.text(x, top + step * (n + 0.5), text, fontsize=size, va="center_baseline",
                    family="DejaVu Sans Mono", zorder=3)
    edges = left + 0.1 + letter * room[0], right - 0.04
    words = []
    for line_of_page, kernel, tensor in _JOINED:
        color = theme.tensor_color(tensor) if tensor else "#9A9A9A"
        (n,) = (n for n, line in enumerate(sides[0]) if line.strip().startswith(line_of_page))
        y = tops[0] + step * n
        boxes(ax, [(left - 0.03, y, edges[0] - left + 0.03, step)], fc=theme.tint(color, 0.72),
              ec="white", lw=0.6)
        found = [m for m, line in enumerate(sides[1]) if line.strip().startswith(kernel)]
        heights = [tops[1] + step * m for m in found]
        for m, z in zip(found, heights, strict=True):
            boxes(ax, [(edges[1], z, wide - edges[1] - 0.03, step)], fc=theme.tint(color, 0.72),
                  ec="white", lw=0.6)
            ax.add_artist(Polygon([(edges[0], y), (edges[1], z), (edges[1], z + step),
                                   (edges[0], y + step)], fc=theme.tint(color, 0.45), ec="white",
                                  lw=0.5, alpha=0.75, gid=f"join {n} {m}"))
        for x, at in ((edges[0] + 0.06, y), *((edges[1] - 0.06, z) for z in heights)):
            ax.text(x, at + step / 2, str(len(words) + 1), fontsize=5.5, ha="center",
                    va="center_baseline", zorder=3)
        words.append(f"{line_of_page} … is {' and '.join(kernel)} …")
    return theme.describe(fig, "The NumPy page of FlashAttention-2 beside the Triton kernel, lines that"
                               f" do the same joined: {'; '.join(words)}.")


def _shape(row: Mapping) -> tuple:
    return tuple(row[key] for key in ("d", "causal", "N_q", "B", "H"))


@styled
def race_by_shape(forward: Measurement, backward: Measurement) -> Figure:
    """Draw every implementation's speed over the fastest rival's, which is named, shape by shape.

    Both hold a race's rows. Clearly ahead is whose slowest round beats the fastest of every rival.
    """
    shapes = sorted({_shape(r) for r in forward.rows})
    fig, axes = theme.subplots(1, 2, height=1.2 + 0.2 * len(shapes), sharey=True, sharex=True)
    words = []
    for ax, mode, race in zip(axes, ("forward", "backward"), (forward, backward), strict=True):
        best, ahead, behind = [], 0, 0
        for y, shape in enumerate(shapes):
            rows = {r["impl"]: r for r in race.where(mode=mode).rows
                    if _shape(r) == shape and r["tflops_per_s"]}
            rivals = [r for impl, r in rows.items() if impl not in _OURS]
            top, first = max((r["tflops_per_s"], r["impl"]) for r in rivals)
            ax.plot([r["tflops_per_s"] / top for r in rivals], [y] * len(rivals), "|", color="#A0A0A0",
                    ms=8, mew=1.2, gid=f"rivals {mode} {y}", label="a rival, the fastest named")
            ax.text(1.37, y, _RIVALS.get(first, first), fontsize=TINY, ha="right",
                    va="center_baseline", gid=f"fastest {mode} {y}")
            leads = rows["ours"]["seconds_high"] < min(r["seconds_low"] for r in rivals)
            trails = rows["ours"]["seconds_low"] > min(r["seconds_high"] for r in rivals)
            for n, impl in enumerate(i for i in _OURS if i in rows):
                color, hollow = ("#31688E", "#8DB4D3")[n], impl == "ours" and not (leads or trails)
                ax.plot(rows[impl]["tflops_per_s"] / top, y, ("D", "o")[n], ms=5.5, zorder=3 - n,
                        color="white" if hollow else color, mec=color if hollow else "white",
                        mew=1.3 if hollow else 0.5, gid=f"{impl} {mode} {y}", label=_OURS[impl])
            best.append(rows["ours"]["tflops_per_s"] / top)
            ahead, behind = ahead + leads, behind + trails
        ax.axvline(1, color=INK, lw=0.9, zorder=0)
        ax.set_title(f"{mode}, {len(best)} shapes:\n{ahead} clearly ahead, {behind} clearly behind",
                     fontsize=9, fontweight="bold", loc="left")
        ax.set_xlabel(f"speed ÷ the fastest rival's, {race.provenance['date']}", fontsize=SMALL)
        for y in np.flatnonzero(np.diff([d for d, *_ in shapes])):
            ax.axhline(y + 0.5, color="#E0E0E0", lw=0.8, zorder=0)
        words.append(f"{mode}, {origin(race)}: {_OURS['ours']} runs at {min(best):.2f} to"
                     f" {max(best):.2f} of the fastest rival's speed, clearly ahead in {ahead} of"
                     f" {len(best)}, clearly behind in {behind}")
    axes[0].set_yticks(range(len(shapes)), [
        f"{B}, {H}, {N}, {d}{' causal' if causal else ''}" for d, causal, N, B, H in shapes],
        fontsize=TINY, color=INK)
    axes[0].set(ylim=(len(shapes) - 0.4, -0.6), xlim=(0.3, 1.38), xticks=(0.4, 0.6, 0.8, 1, 1.2))
    axes[0].tick_params(axis="y", length=0)
    fig.legend(handles=axes[0].lines[:3], loc="outside lower center", ncols=3, fontsize=TINY,
               title="a hollow diamond is neither clearly ahead nor behind", title_fontsize=TINY)
    title = f"Speed by shape (B, H, N, d), recorded on {forward.provenance['gpu']}"
    fig.suptitle(title, fontsize=SMALL, x=0.01, ha="left")
    return theme.describe(fig, f"{title}. {'; '.join(words)}.")


@styled
def between_two_times(rows: Sequence[Mapping], gpu: str) -> Figure:
    """Draw each unit's time end to end, a bar a head dimension, and the recorded time on it.

    Each row holds d, recorded, and the milliseconds of matmul, exp and others. The slowest unit's end
    and the bar's end are the two times between which the kernel lies if it overlaps a part.
    """
    fig, ax = theme.canvas(None, 0.75 + 0.45 * len(rows))
    looks = {"matmul": ("#31688E", "matrix products"), "exp": ("#999933", "exponentials"),
             "others": ("#B4B4B4", "arithmetic")}
    words = []
    for y, row in enumerate(rows):
        left, wanted = 0.0, max(row[unit] for unit in looks)
        for unit, (color, name) in looks.items():
            ax.barh(y, row[unit], left=left, height=0.5, fc=theme.tint(color, 0.5), ec="white", lw=0.8,
                    gid=f"{unit} {row['d']}")
            text = f"{row[unit]:.2f}" if y else f"{name} {row[unit]:.2f}"
            if row[unit] > 0.05:
                ax.text(left + row[unit] / 2, y, text, ha="center", va="center_baseline",
                        fontsize=SMALL if row[unit] > 0.1 else TINY,
                        fontweight="bold" if row[unit] == wanted else "normal")
            left += row[unit]
        ax.plot(row["recorded"], y + 0.38, "^", color=OVER, ms=6, gid=f"recorded {row['d']}")
        beside(ax, f"{row['recorded']:.2f}{'' if y else ', the kernel, recorded'}",
               (row["recorded"], y + 0.38), (6, -1), fontsize=SMALL, color=OVER)
        words.append(f"d = {row['d']}: matrix products {row['matmul']:.2f} ms, exponentials"
                     f" {row['exp']:.2f}, arithmetic {row['others']:.2f}, kernel {row['recorded']:.2f}")
    ax.set_yticks(range(len(rows)), [f"d = {row['d']}" for row in rows])
    ax.set(ylim=(len(rows) - 0.4, -0.45), xlim=(0, 2))
    ax.set_xlabel(f"milliseconds on {gpu}; matrix products at a large one's rate", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    softmax = rows[0]["exp"] + rows[0]["others"]
    title = f"At d = {rows[0]['d']} softmax needs {softmax:.2f} ms, products {rows[0]['matmul']:.2f}"
    ax.set_title(title, fontsize=10, fontweight="bold", loc="left")
    return theme.describe(fig, f"{title}. {'; '.join(words)}.")


@styled
def tile_walk(mask: Mask, shape: tuple[int, int], BLOCK_M: int, BLOCK_N: int, tile: int,
              title: str, *, side: int = 512, most: float = 2.5) -> Figure:
    """Draw which key tiles each tile of queries visits, and in which order one of them does.

    Args:
        mask: which keys each row sees.  shape: (Nq, Nk), at most `side` each, the axis of the picture.
        tile: the tile of queries whose walk is numbered.
        most: where the axis of "logits computed for each one needed" ends.
    """
    (Nq, Nk), (walk, marks) = shape, walk_of(mask, shape, BLOCK_M, BLOCK_N, tile)
    fig = theme.figure(3.5, layout=None)
    ax = fig.add_axes((0.08, 0.13, 0.42, 0.82))
    rows = tiles(Nq, BLOCK_M)
    visited, needed = 0, int(np.sum(mask.stop - mask.first))
    for n, r in enumerate(rows):
        masked = dict(walk_of(mask, shape, BLOCK_M, BLOCK_N, n)[0])
        visited += len(masked)
        for keys in tiles(Nk, BLOCK_N):
            kind = {None: "skip", True: "partial", False: "full"}[masked.get(keys.start)]
            rect(ax, keys.start, r.start, keys.stop - keys.start, r.stop - r.start, lw=0.6,
                 **face(kind))
    own = rows[tile]
    for number, (start, _) in enumerate(walk, 1):
        wide = min(start + BLOCK_N, Nk) - start
        rect(ax, start, own.start, wide, own.stop - own.start, fc="none", ec=INK, lw=1.5, zorder=4)
        ax.text(start + wide / 2, (own.start + own.stop) / 2, str(number), ha="center",
                va="center_baseline", fontsize=SMALL, fontweight="bold", zorder=5)
    ax.set(xlim=(-4, side + 4), ylim=(side + 4, -4), xticks=range(0, side + 1, 128),
           yticks=range(0, side + 1, 128))
    ax.set_xlabel("keys", fontsize=SMALL)
    ax.set_ylabel("queries", fontsize=SMALL)
    for seen in (mask.stop, mask.first) if mask.first.any() else (mask.stop,):
        ax.plot(seen, np.arange(Nq) + 0.5, color=OVER, lw=1.2, zorder=6, gid="edge")
    begin, whole_ = marks[:2]
    text: dict[int, list[str]] = {}
    named = list(zip(("begin", "whole", "cut", "end"), marks, strict=True))
    named = named if begin < whole_ else named[2:]          # without a window two say it all
    for name, mark in named:
        ax.plot([mark, mark], [0, own.start], color=INK, lw=0.7, ls=":", zorder=5)
        last = max(text, default=-side)
        text[mark] = (text.pop(last) if mark - last < side / 16 else []) + [name]
    for mark, names in text.items():
        ax.text(mark, -10, ", ".join(names), ha="center", fontsize=TINY)
    masked = sum(kind for _, kind in walk)
    share = visited * BLOCK_M * BLOCK_N / max(needed, 1)
    words = sentences(fig, [
        (f"{len(walk)} tiles: {masked} behind a mask, {len(walk) - masked} whole", INK),
        (title, INK),
        (", ".join(f"{name} {mark}" for name, mark in named), INK),
        ("between the red edges a row sees its keys" if mask.first.any() else
         "left of the red edge a row sees its keys", OVER)], 0.55, 0.93, 0.085)
    fig.text(0.55, 0.48, "logits computed for each one needed, all programs", fontsize=SMALL)
    bar = fig.add_axes((0.55, 0.32, 0.42, 0.12))
    bar.barh(0, share, height=0.8, color=theme.tensor_color("S"), ec=theme.edge_color("S"), lw=0.7)
    bar.axvline(1, color=INK, lw=1)
    bar.text(0.05, 0, f"{share:.2f}", va="center_baseline", fontsize=SMALL, fontweight="bold")
    bar.set(xlim=(0, most), ylim=(-0.6, 0.6), yticks=[])
    theme.patch_key(bar, [(text, {"lw": 0.6, **face(kind)}) for text, kind in (
        ("whole", "full"), ("masked", "partial"), ("skipped", "skip"))], at=(1, -1.7))
    return theme.describe(fig, f"{Nq} queries, {Nk} keys, tiles {BLOCK_M} × {BLOCK_N}. {words};"
                               f" {share:.2f} logits computed for each one needed.")


def walk_of(mask: Mask, shape: tuple[int, int], BLOCK_M: int, BLOCK_N: int, tile: int):
    """Return ([(first key, masked), …] in the kernel's order, (begin, whole, cut, end)) of a tile.

    As `key_range` and the three calls of `_attend` in `flash_fwd_kernel`: the end's masked tiles, those
    that all rows see, and those that a window's left edge cuts.
    """
    lo, whole_lo, whole_hi, hi = mask.key_range(tiles(shape[0], BLOCK_M)[tile])
    begin, cut = lo // BLOCK_N * BLOCK_N, whole_hi // BLOCK_N * BLOCK_N
    middle = -(-whole_lo // BLOCK_N) * BLOCK_N
    cut = max(cut, middle)
    walk = [(start, masked) for first, stop, masked in (
        (cut, hi, True), (middle, cut, False), (begin, middle, True))
        for start in range(first, stop, BLOCK_N)]
    return walk, (begin, middle, cut, hi)
