"""The figures of chapter 10: recorded times of attention kernels, and what softmax alone costs."""

from collections.abc import Mapping, Sequence

import numpy as np

from flashlib.course.notebook.data import Measurement
from flashlib.course.plots import theme
from flashlib.course.plots.parts import bare, beside, origin, rect
from flashlib.course.plots.theme import GREY, INK, SMALL, TINY, Figure, styled

# Who ran: a name for people, a color, a marker. What is ours stands out, the others are quiet.
_RACERS = {
    "ours": ("this course's op", "#31688E", "D"),
    "ours_triton": ("this course's Triton kernels", "#6F9CC4", "d"),
    "sdpa_flash": ("SDPA FLASH (FlashAttention-2)", "#8C8C8C", "s"),
    "sdpa_cudnn": ("SDPA cuDNN", "#C9A66B", "h"),
    "flex": ("FlexAttention", "#A78BB0", "<"),
    "fa3": ("FlashAttention-3", "#5FC89A", "^"),
    "fa4": ("FlashAttention-4", "#D6C34F", "v"),
    "triton_tutorial": ("Triton's tutorial, fp16", "#C77D6B", ">"),
    "flash": ("SDPA FLASH (FlashAttention-2)", "#8C8C8C", "s"),
    "standard": ("standard, eager", "#D0D0D0", "o"),
}
# What `impl` of `flash_attention` takes, in the looks of the same kernels above.
_WINDOWED = {"auto": _RACERS["ours"], "triton": _RACERS["ours_triton"]}


def racer(impl: str) -> tuple[str, str, str]:
    """Return an implementation's name for people, its color and its marker."""
    return _RACERS.get(impl, (impl, theme.NEUTRAL, "o"))


@styled
def kernel_race(race: Measurement, *, B: int, H: int, N_q: int, d: int,
                ours: str = "ours", without: Sequence[str] = ()) -> Figure:
    """Draw TFLOP/s of every implementation at one shape, forward and backward, causal below.

    `race` holds rows with impl, mode, causal, B, H, N_q, d, seconds and tflops_per_s; an empty cell
    is left out, and so are the implementations of `without`. A bar carries its rate, its time, and
    the speed relative to it of the implementation that `ours` names.
    """
    race = race.where(B=B, H=H, N_q=N_q, d=d)
    race = Measurement(race.provenance, [row for row in race.rows if row["impl"] not in without],
                       race.columns)
    panels = [(mode, causal) for causal in (0, 1) for mode in ("forward", "backward")
              if _timed(race, mode, causal)]
    if not panels:
        raise ValueError(f"race: expected timed rows at B={B}, H={H}, N_q={N_q}, d={d}, found none")
    most = max(len(_timed(race, *panel)) for panel in panels)
    lines = -(-len(panels) // 2)
    fig, axes = theme.subplots(lines, min(2, len(panels)), squeeze=False,
                               height=0.45 + lines * (0.5 + 0.27 * most))
    top = max(r["tflops_per_s"] for panel in panels for r in _timed(race, *panel))
    words = []
    for ax, (mode, causal) in zip(axes.flat, panels, strict=False):
        rows = _timed(race, mode, causal)
        own_s = next((r["seconds"] for r in rows if r["impl"] == ours), None)
        for y, row in enumerate(rows):
            name, color, _ = racer(row["impl"])
            ax.barh(y, row["tflops_per_s"], height=0.72, color=color, gid=f"bar {row['impl']}")
            text = f"{row['tflops_per_s']:.0f}  ·  {1e3 * row['seconds']:.2f} ms"
            ax.text(row["tflops_per_s"] + 0.015 * top, y, text, va="center_baseline", fontsize=TINY,
                    fontweight="bold" if row["impl"] == ours else "normal")
            if own_s and row["impl"] != ours:
                ax.text(0.015 * top, y, f"ours is {row['seconds'] / own_s:.2f} ×", fontsize=TINY,
                        va="center_baseline", color=theme.ink_on(color))
            words.append(f"{mode}{', causal' * causal}, {name}: {text}")
        ax.set_yticks(range(len(rows)), [racer(r["impl"])[0] for r in rows], fontsize=TINY, color=INK)
        ax.set_title(f"{mode}{', causal' if causal else ''}", fontsize=9, loc="left")
        ax.set(xlim=(0, 1.42 * top), ylim=(len(rows) - 0.5, -0.6))
        ax.tick_params(axis="y", length=0)
        if ax in axes[-1]:
            ax.set_xlabel("TFLOP/s", fontsize=SMALL)
    for ax in axes[:, 1:].flat:
        ax.set_yticklabels([])
    for ax in axes.flat[len(panels):]:
        ax.axis("off")
    shape = f"(B, H, N, d) = ({B}, {H}, {N_q}, {d})"
    fig.suptitle(f"{shape}, {origin(race)}", fontsize=9, fontweight="bold", x=0.01, ha="left")
    return theme.describe(fig, f"Speed of attention at {shape}, {origin(race)}. {'; '.join(words)}.")


def _timed(race: Measurement, mode: str, causal: int) -> list[dict]:
    """Return the rows that were timed, in the order of the table of names."""
    order = list(_RACERS)
    rows = [row for row in race.where(mode=mode, causal=causal).rows if row["seconds"] is not None]
    return sorted(rows, key=lambda r: order.index(r["impl"]) if r["impl"] in order else len(order))


@styled
def race_by_shape(race: Measurement, *, ours: str = "ours", ceiling: float | None = None) -> Figure:
    """Draw TFLOP/s of every implementation over all recorded shapes, forward and backward.

    One line per shape; a mark per implementation, the largest for the one that `ours` names;
    `ceiling` is a rate in FLOP/s to draw beside.
    """
    shapes = list(dict.fromkeys((r["d"], r["causal"], r["N_q"], r["B"], r["H"]) for r in race.rows))
    shapes.sort()
    fig, axes = theme.subplots(1, 2, height=0.95 + 0.235 * len(shapes), sharey=True)
    impls = [name for name in _RACERS if name in set(race.column("impl"))]
    top = np.nanmax(race.column("tflops_per_s"))
    wins = {}
    for ax, mode in zip(axes, ("forward", "backward"), strict=True):
        for y, (d, causal, N, B, H) in enumerate(shapes):
            rows = {r["impl"]: r["tflops_per_s"]
                    for r in race.where(mode=mode, causal=causal, B=B, H=H, N_q=N, d=d).rows
                    if r["tflops_per_s"] is not None}
            if not rows:
                continue
            ax.plot([min(rows.values()), max(rows.values())], [y, y], color="#D9D9D9", lw=1.2, zorder=1)
            for impl, rate in rows.items():
                _, color, marker = racer(impl)
                own = impl == ours
                ax.plot(rate, y, marker, color=color, ms=7 if own else 6, mec=INK if own else "white",
                        mew=0.8 if own else 0.5, zorder=4 if own else 3, gid=f"{impl} {mode} {y}")
            if ours in rows and "sdpa_flash" in rows:
                wins.setdefault(mode, []).append(rows[ours] / rows["sdpa_flash"])
        if ceiling:
            ax.axvline(ceiling / 1e12, color=GREY, lw=0.9, ls=(0, (4, 2)), zorder=0)
            ax.text(ceiling / 1e12, -0.5, "large matmul ", fontsize=TINY, color=GREY, ha="right",
                    va="center")
        ax.set_title(mode, fontsize=9, loc="left")
        ax.set_xlabel("TFLOP/s", fontsize=SMALL)
        ax.set_xlim(0, 1.05 * max(top, (ceiling or 0) / 1e12))
        for y in range(1, len(shapes)):
            if shapes[y][0] != shapes[y - 1][0]:
                ax.axhline(y - 0.5, color="#EBEBEB", lw=0.8, zorder=0)
    axes[0].set_yticks(range(len(shapes)), [
        f"{B}, {H}, {N}, {d}{' causal' if causal else ''}" for d, causal, N, B, H in shapes],
        fontsize=TINY, color=INK)
    axes[0].set_ylim(len(shapes) - 0.4, -0.6)
    axes[0].tick_params(axis="y", length=0)
    marks = [axes[0].plot([], [], racer(i)[2], color=racer(i)[1], ms=6, mec=INK if i == ours
                          else "white", mew=0.8, label=racer(i)[0])[0] for i in impls]
    fig.legend(handles=marks, loc="outside lower center", ncols=min(4, len(impls)), fontsize=TINY,
               frameon=False, handletextpad=0.2, columnspacing=1.2)
    title = f"B, H, N, d by shape, {origin(race)}"
    fig.suptitle(title, fontsize=9, fontweight="bold", x=0.01, ha="left")
    words = "; ".join(f"{mode}: {racer(ours)[0]} run at {min(r):.2f} to {max(r):.2f} times the"
                      " rate of SDPA FLASH" for mode, r in wins.items())
    return theme.describe(fig, f"TFLOP/s, {title}. {words}.")


@styled
def window_time(recorded: Measurement) -> Figure:
    """Draw the time of causal windows over their size, log-log, beside time in proportion to tiles.

    `recorded` holds rows as `bench.windows` writes them. Measured times are solid; dashed is what plain
    causal attention takes, times the share of its logits that lie in the tiles that a window visits.
    Plain causal attention stands at the right, a hollow mark.
    """
    fig, axes = theme.subplots(1, 2, height=3.0, sharey=True)
    impls, words = list(dict.fromkeys(row["impl"] for row in recorded.rows)), []
    for ax, mode in zip(axes, ("forward", "backward"), strict=True):
        for impl in impls:
            rows = recorded.where(impl=impl, mode=mode).rows
            (whole,) = [row for row in rows if row["window_left"] is None]
            some = sorted((row for row in rows if row is not whole), key=lambda row: row["window_left"])
            keys = [row["window_left"] + 1 for row in some]
            took = [1e3 * row["seconds"] for row in some]
            spread = [[1e3 * abs(row[f"seconds_{end}"] - row["seconds"]) for row in some]
                      for end in ("low", "high")]
            share = [_visited(row) / _visited(whole) for row in some]
            name, color, marker = _WINDOWED.get(impl, racer(impl))
            ax.errorbar(keys, took, spread, color=color, marker=marker, ms=5, lw=1.5, label=name,
                        gid=f"measured {impl} {mode}")
            ax.plot([*keys, whole["N_k"]], [1e3 * whole["seconds"] * s for s in (*share, 1)],
                    color=color, ls=(0, (4, 2)), lw=1, zorder=1, gid=f"tiles {impl} {mode}")
            ax.plot(whole["N_k"], 1e3 * whole["seconds"], marker, color=color, mfc="white", ms=6,
                    gid=f"causal {impl} {mode}")
            words.append(f"{mode}, {name}: {took[0]:.3g} ms for a window of {keys[0]:,} keys"
                         f" ({share[0] * 1e3 * whole['seconds']:.3g} in proportion to its tiles), to"
                         f" {1e3 * whole['seconds']:.3g} ms without a window")
        ax.set(xscale="log", yscale="log", xlabel="keys in the window, up to the query's own")
        ticks = [*keys[::2], whole["N_k"]]
        ax.set_xticks(ticks, [f"{key:,}" for key in ticks], fontsize=TINY)
        ax.set_xticks([], minor=True)
        ax.set_title(mode, fontsize=9, loc="left")
    axes[0].set_ylabel("milliseconds")
    axes[0].yaxis.set_major_formatter(lambda ms, _: f"{ms:g}")
    axes[0].plot([], [], color=GREY, ls=(0, (4, 2)), lw=1, label="in proportion to visited tiles")
    axes[0].plot([], [], "o", color=GREY, mfc="white", label="causal, no window")
    axes[0].legend(loc="upper left", fontsize=TINY, frameon=False)
    shape = ", ".join(str(whole[key]) for key in ("B", "H", "N_q", "d"))
    title = f"Causal windows at (B, H, N, d) = ({shape}), {origin(recorded)}"
    fig.suptitle(title, fontsize=9, fontweight="bold", x=0.01, ha="left")
    return theme.describe(fig, f"{title}. {'; '.join(words)}.")


def _visited(row: Mapping) -> int:
    """Return how many logits lie in the tiles that a row of `bench.windows` visits."""
    return row["key_tiles"] * row["BLOCK_M"] * row["BLOCK_N"]


@styled
def softmax_share(cases: Mapping[str, Mapping[str, Sequence[tuple[str, float]]]], note: str) -> Figure:
    """Draw the time of each kernel of an implementation as one stacked bar.

    `cases` maps a shape to {implementation: [(kind, seconds), …]}; kind is one of "QKᵀ", "softmax",
    "PV" and "all in one". `note` says where the times come from.
    """
    look = {"QKᵀ": theme.tensor_color("S"), "softmax": theme.tensor_color("P"),
            "PV": theme.tensor_color("O"), "all in one": racer("sdpa_flash")[1]}
    bars = [(case, impl, parts) for case, impls in cases.items() for impl, parts in impls.items()]
    fig, axes = theme.subplots(len(cases), 1, squeeze=False, height=0.45 + 0.98 * len(cases))
    words = []
    for ax, (case, impls) in zip(axes[:, 0], cases.items(), strict=True):
        longest = max(sum(s for _, s in parts) for parts in impls.values()) * 1e3
        for y, (impl, parts) in enumerate(impls.items()):
            left = 0.0
            for kind, seconds in parts:
                width, color = 1e3 * seconds, look[kind]
                rect(ax, left, y - 0.34, width, 0.68, fc=color, ec="white", lw=0.8,
                     gid=f"{impl} {kind}")
                text = f"{kind} {width:.2f}"
                if theme.text_width(text, TINY) < 4.6 * width / longest:
                    ax.text(left + width / 2, y, text, ha="center", va="center_baseline",
                            fontsize=TINY, color=theme.ink_on(color))
                left += width
                words.append(f"{case}, {impl}: {text} ms")
            beside(ax, f"{left:.2f} ms", (left, y), (5, 0), va="center_baseline", fontsize=SMALL,
                   fontweight="bold")
        ax.set(xlim=(0, 1.14 * longest), ylim=(len(impls) - 0.45, -0.55), xticks=[])
        ax.set_yticks(range(len(impls)), list(impls), fontsize=SMALL, color=INK)
        ax.set_title(case, fontsize=SMALL, loc="left")
        bare(ax)
    fig.suptitle(note, fontsize=9, fontweight="bold", x=0.01, ha="left")
    return theme.describe(fig, f"{note}. {'; '.join(words)}. {len(bars)} bars.")
