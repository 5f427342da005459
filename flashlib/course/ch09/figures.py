"""Chapter 09's pictures: which program touches which element, and softmax rates by row length."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import FixedLocator, NullFormatter

from flashlib.course.notebook import show
from flashlib.course.plots import theme
from flashlib.course.plots.parts import beside, rect, sentences, whole
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, Figure, styled

_PROGRAMS = ("#E6E6E6", "#C2C2C2", "#A2A2A2")
_KERNELS = {"3pass": ("#222222", "o", "three passes"), "online": ("#8A6D3B", "s", "online, two passes"),
            "fused": ("#A0527A", "D", "fused, one pass")}
SECTOR = 8                                                  # float32 numbers in 32 bytes


@styled
def lanes(touches: Sequence, n: int) -> Figure:
    """Draw n elements in memory and above them the lanes of each program that point to them.

    `touches` holds one load or store per program, with `program`, `lanes`, `mask` and `outside`, as
    `interpreter_trace` records them. A masked lane is white, one that reads poison red.
    """
    end = max(n, 1 + max(int(t.lanes.max()) for t in touches))
    fig, ax = theme.subplots(height=1.95)
    ax.set(xlim=(-1.9, end + 0.1), ylim=(2.75, -0.75))
    ax.axis("off")
    for cell in range(end):
        inside = cell < n
        rect(ax, cell, 1.7, 1, 0.8, **(theme.HBM if inside else {
            "facecolor": "white", "edgecolor": OVER, "hatch": "xxxx", "lw": 0.6}))
        ax.text(cell + 0.5, 2.1, str(cell) if inside else "NaN", ha="center", va="center",
                fontsize=SMALL, color=INK if inside else OVER,
                bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"})
    for touch in touches:
        color = _PROGRAMS[touch.program[0] % 3]
        positions = np.asarray(touch.lanes).ravel()
        for lane, (place, on, astray) in enumerate(zip(
                positions, touch.mask.ravel(), touch.outside.ravel(), strict=True)):
            face = theme.tint(OVER, 0.3) if astray else color if on else "white"
            rect(ax, place + 0.06, 0, 0.88, 0.75, facecolor=face, edgecolor=INK, lw=0.7,
                 ls="-" if on else (0, (2, 2)))
            ax.text(place + 0.5, 0.375, str(lane), ha="center", va="center", fontsize=SMALL,
                    color=INK if on else GREY)
            if on:
                ax.annotate("", (place + 0.5, 1.66), (place + 0.5, 0.8), arrowprops={
                    "arrowstyle": "-|>", "color": OVER if astray else INK, "lw": 0.8})
        ax.text(positions.min() + positions.size / 2, -0.25, f"program {touch.program[0]}",
                ha="center", va="center", fontsize=SMALL, fontweight="bold")
    ax.text(-0.15, 0.375, "lanes", ha="right", va="center", fontsize=SMALL)
    ax.text(-0.15, 2.1, "x in HBM", ha="right", va="center", fontsize=SMALL)
    count = sum(int(np.count_nonzero(t.outside)) for t in touches)
    idle = sum(int(np.count_nonzero(~t.mask)) for t in touches)
    ax.set_title(f"{count} lanes ask for what is not x's" if count else
                 f"{idle} lanes are masked, and none reads beyond x" if idle else
                 "no lane reads beyond x", loc="left")
    return theme.describe(fig, f"{len(touches)} programs over {n} elements of x; "
                               f"{count} lanes read outside.")


@styled
def program_grid(shape: tuple[int, int], touches: Sequence, *, row_stride: int) -> Figure:
    """Draw a matrix as it lies in memory, each element in the color of the program that touched it.

    Columns beyond the matrix belong to the buffer, not to it; an element in red was touched there.
    """
    rows, cols = shape
    owner, programs = np.full((rows, row_stride), -1), sorted({tuple(t.program) for t in touches})
    axes = 2 if any(program[1] for program in programs) else 1
    names = [",".join(map(str, program[:axes])) for program in programs]
    for touch in touches:
        places = np.asarray(touch.lanes)[touch.mask]
        places = places[(places >= 0) & (places < rows * row_stride)]
        owner.ravel()[places] = programs.index(tuple(touch.program))
    fig, ax = theme.subplots(height=0.3 * rows + 0.75)
    ax.set(xlim=(-2.6, row_stride + 0.05), ylim=(rows + 0.05, -0.75))
    ax.axis("off")
    for r in range(rows):
        for c in range(row_stride):
            touched, outside = owner[r, c] >= 0, c >= cols
            face = (theme.tint(OVER, 0.3) if outside else _PROGRAMS[owner[r, c] % 3]) if touched else (
                "white")
            rect(ax, c, r, 1, 1, facecolor=face, lw=0.7, edgecolor=OVER if outside else INK,
                 hatch="xxxx" if outside and not touched else None)
            if touched:
                ax.text(c + 0.5, r + 0.5, names[owner[r, c]], ha="center", va="center", fontsize=SMALL)
        ax.text(-0.15, r + 0.5, f"row {r}", ha="right", va="center", fontsize=SMALL)
    ax.text(cols / 2, -0.3, f"x: {cols} columns", ha="center", va="center", fontsize=SMALL)
    if row_stride > cols:
        ax.text((cols + row_stride) / 2, -0.3, "not ours: NaN", ha="center", va="center",
                fontsize=SMALL, color=OVER)
    bad = int(np.count_nonzero(owner[:, cols:] >= 0))
    ax.set_title(f"{len(programs)} programs share {rows * cols} elements and touch"
                 f" {bad or 'none'} beyond", loc="left")
    return theme.describe(fig, f"x, {rows} × {cols}: which program touches which element; "
                               f"{bad} elements outside are touched.")


@styled
def softmax_rates(panels: Mapping[str, Mapping[str, tuple[Sequence, Sequence]]], copy_rate: float,
                  predicted: Mapping[str, float] | None = None, *,
                  asked: Sequence[str] = ()) -> Figure:
    """Draw bytes per second against the row's length, one panel a dtype.

    Args:
        panels: {title: {impl: (columns, bytes per second)}}, measured.
        copy_rate: the ceiling, bytes per second.
        predicted: {impl: which share of the ceiling its passes leave}, drawn dashed; None draws none.
        asked: kernels that are not drawn yet; each panel asks where they lie.
    """
    fig, axes = theme.subplots(1, len(panels), height=3.1 if predicted else 2.3, sharey=True)
    for ax, (title, series) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        lengths = sorted({length for cols, _ in series.values() for length in cols})
        ax.axhline(1, color=INK, lw=1)
        for impl, share in (predicted or {}).items():
            ax.axhline(share, color=_KERNELS[impl][0], ls=(0, (4, 3)), lw=1.1, zorder=1)
        for impl, (cols, rate) in series.items():
            color, marker, name = _KERNELS[impl]
            ax.plot(cols, np.asarray(rate) / copy_rate, color=color, marker=marker, ms=4.5, lw=1.5)
            if title == list(panels)[-1]:                   # the last panel names the curves
                by = (8, -5 if impl == "fused" else 0) if predicted else (8, -14)
                beside(ax, name, (cols[-1], rate[-1] / copy_rate), by, color=color, fontsize=SMALL,
                       ha="left" if predicted else "right")
        ax.set_xscale("log", base=2)
        ticks = {2**9: "512", 2**12: "4K", 2**15: "32K", 2**18: "256K", 2**20: "1M"}
        ticks = {at: text for at, text in ticks.items() if at <= lengths[-1]}
        ax.set_xticks(list(ticks), list(ticks.values()))
        ax.xaxis.set_minor_locator(FixedLocator(lengths))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.tick_params(axis="x", which="minor", bottom=True, length=2, width=0.7)
        for n, impl in enumerate(asked):
            ax.text(0.5, 0.5 - 0.12 * n, f"{_KERNELS[impl][2]}: ?", color=_KERNELS[impl][0],
                    ha="center", transform=ax.transAxes)
        ax.set(ylim=(0, 1.08), xlabel="length of a row, in elements", title=title)
    np.atleast_1d(axes)[0].set_ylabel("share of a copy's rate")
    heading = ("At 32K a row the passes (dashed) predict the rate; longer rows fall below" if predicted
               else "One softmax runs almost as fast as a copy. And the two others?" if asked else "")
    fig.suptitle(heading, fontsize=10, fontweight="bold", x=0.01, ha="left")
    beside(np.atleast_1d(axes)[-1], f"a copy, {copy_rate / 1e12:.2f} TB/s", (lengths[-1], 1),
           (14, 0) if predicted else (0, 7), fontsize=SMALL, ha="left" if predicted else "right")
    words = []
    for title, series in panels.items():
        at = max(set.intersection(*(set(cols) for cols, _ in series.values())))
        shares = ", ".join(f"{_KERNELS[impl][2]} {rate[list(cols).index(at)] / copy_rate:.2f}"
                           for impl, (cols, rate) in series.items())
        words.append(f"{title} at {at:,}: {shares}")
    lines = ", ".join(f"{_KERNELS[impl][2]} {share:.2f}" for impl, share in (predicted or {}).items())
    words += [f"dashed, predicted: {lines}"] if lines else []
    return theme.describe(fig, "Useful bytes per second by length of a row, as shares of the"
                               f" copy rate. {'; '.join(words)}.")


@styled
def languages(texts: Mapping[str, tuple[str, str, str]]) -> Figure:
    """Draw one load as each language of the compiler writes it, one below the other.

    `texts` maps a language to (whose view it is, its text, a regular expression); the first two lines
    that match are shown.
    """
    found = {name: [line.strip() for line in show.ir_lines(text, only)[:2]]
             for name, (_, text, only) in texts.items()}
    step, room = 0.19, 92
    height = 0.35 + sum(0.36 + step * len(lines) for lines in found.values())
    fig = theme.figure(height, layout=None)
    ax, y, words = whole(fig, down=True), 0.35, []
    last = list(found)[-1]
    ax.text(0.05, 0.17, f"One load of a block becomes {len(found[last])} loads of each thread",
            fontsize=10, fontweight="bold", va="center_baseline")
    for name, lines in found.items():
        if not lines:
            raise ValueError(f"texts: expected a line of {name} like {texts[name][2]!r}, found none")
        tall = 0.26 + step * len(lines)
        rect(ax, 0.05, y, theme.WIDTH - 0.1, tall, **theme.REGISTER, lw=0.8)
        ax.text(0.13, y + 0.13, name, fontsize=SMALL, fontweight="bold", va="center_baseline")
        ax.text(theme.WIDTH - 0.13, y + 0.13, texts[name][0], fontsize=SMALL, color=GREY, ha="right",
                va="center_baseline")
        for n, line in enumerate(lines):
            text = line if len(line) <= room else line[:room - 1] + "…"
            ax.text(0.13, y + 0.32 + step * n, text, fontsize=7.6, family="DejaVu Sans Mono",
                    va="center_baseline")
        y += tall + 0.1
        words.append(f"{name}, {texts[name][0]}: {' / '.join(lines)}")
    return theme.describe(fig, f"One load in {len(found)} languages. {'; '.join(words)}.")


@styled
def register_file(rows: Sequence[Mapping], *, registers: int = 65_536) -> Figure:
    """Draw an SM's register file as a bar, cut into the programs that share it, for every row.

    Each row holds `name`, `warps`, `registers` (of a thread) and `programs`. A warp gets registers in
    steps of 256.
    """
    fig, ax = theme.subplots(height=0.85 + 0.27 * len(rows))
    for y, row in enumerate(rows):
        each = row["warps"] * -(-32 * row["registers"] // 256) * 256
        for n in range(row["programs"]):
            rect(ax, n * each, y - 0.36, each, 0.72, fc=_PROGRAMS[n % 3], ec=INK, lw=0.6)
        used = row["programs"] * each
        if used < registers:
            rect(ax, used, y - 0.36, registers - used, 0.72, fc="white", ec=GREY, lw=0.6,
                 ls=(0, (2, 2)))
        beside(ax, str(row["programs"]), (registers, y), (6, 0), fontsize=SMALL, fontweight="bold")
    ax.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=SMALL)
    ax.set(xlim=(0, 1.06 * registers), ylim=(len(rows) - 0.5, -0.55),
           xticks=[registers * n // 4 for n in range(5)])
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.set_xlabel("registers of one SM; a box is a program, dotted: left over", fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    counts = [row["programs"] for row in rows]
    alone = "one has it alone" if min(counts) == 1 else f"{min(counts)}"
    title = f"{max(counts)} programs share an SM, or {alone}"
    ax.set_title(title, loc="left")
    words = "; ".join(f"{row['name']}: {row['programs']} programs of {row['warps']} warps with"
                      f" {row['registers']} registers a thread" for row in rows)
    return theme.describe(fig, f"{title}. {words}.")


def touched(shape, strides, block, program: int, masked: bool):
    """Return (rows, cols, addresses, inside, takes part) of the lanes of a program, each flat.

    Programs count along the rows of blocks; addresses are elements of memory.
    """
    M, N = shape
    across = -(-N // block[1])
    row, col = np.indices(block).reshape(2, -1)
    row, col = row + program // across * block[0], col + program % across * block[1]
    inside = (row < M) & (col < N)
    return row, col, row * strides[0] + col * strides[1], inside, inside | (not masked)


@styled
def pointer_block(shape, strides, block, program: int, masked: bool, title: str, *,
                  side: int = 16, sectors: int = 32) -> Figure:
    """Draw the lanes of a program on a float32 matrix, and the sectors of memory that they touch.

    Args:
        shape, strides: of the matrix, in elements.  block: its rows and columns.
        side, sectors: what the fixed axes show.
    """
    row, col, at, inside, on = touched(shape, strides, block, program, masked)
    fig = theme.figure(2.9, layout=None)
    ax = fig.add_axes((0.03, 0.29, 0.45, 0.69))
    for r, c in np.ndindex(*shape):
        rect(ax, c, r, 1, 1, fc="white", ec=GREY, lw=0.5)
    for r, c, ok, part in zip(row, col, inside, on, strict=True):
        if r < side and c < side:
            look = {"fc": _PROGRAMS[1] if ok else theme.tint(OVER, 0.4)} if part else {
                "fc": "white", "ls": (0, (2, 2))}
            rect(ax, c, r, 1, 1, ec=INK, lw=1.1, zorder=3, **look)
    ax.set(xlim=(-0.2, side + 0.2), ylim=(side + 0.2, -0.2), aspect="equal")
    ax.axis("off")
    strip = fig.add_axes((0.03, 0.05, 0.94, 0.15))
    hit = set((at[on] // SECTOR).tolist())
    end = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    for n in range(sectors):
        ours = n * SECTOR < end
        rect(strip, n, 0, 0.92, 1, ec=GREY, lw=0.7, ls="-" if ours else (0, (1, 2)),
             fc=theme.tensor_color("x") if n in hit else "#F4F4F4" if ours else "white")
    for place, ok in zip(at[on], inside[on], strict=True):
        rect(strip, place // SECTOR + 0.92 * (place % SECTOR) / SECTOR, 0.2, 0.92 / SECTOR, 0.6,
             fc=INK if ok else OVER, lw=0)
    strip.set(xlim=(-0.1, sectors), ylim=(-0.05, 1.05))
    strip.axis("off")
    fig.text(0.03, 0.225, "memory, in sectors of 32 bytes; bar: an element that a lane points to;"
             " dotted: beyond the matrix", fontsize=SMALL)
    wild, least = int((on & ~inside).sum()), -(-int(on.sum()) // SECTOR)
    words = sentences(fig, [
        (f"{len(hit)} sectors cross for {int(on.sum())} elements",
         OVER if len(hit) > 2 * least else INK),
        (f"packed, they would fill {least}", INK),
        (title, INK),
        (f"{on.size} lanes, " + (f"{int((~on).sum())} of them masked" if masked else "no mask"), INK),
        (f"{wild} read outside the matrix", OVER if wild else INK)], 0.54, 0.93, 0.085)
    return theme.describe(fig, f"{shape[0]} × {shape[1]} float32, strides {strides}, blocks"
                               f" {block[0]} × {block[1]}: {words}.")
