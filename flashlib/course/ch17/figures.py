"""The figures of chapter 17: the race, losses, memory and time over length, the lab's step."""

from collections.abc import Mapping, Sequence

from flashlib.course.ch17.race import Lead
from flashlib.course.plots import theme
from flashlib.course.plots.parts import beside
from flashlib.course.plots.theme import GREY, INK, OVER, SMALL, TINY, Figure, human_bytes, styled

# Attention is no tensor: a color, a marker and a name for each implementation.
LOOKS = {"ours": (INK, "o", "ours"), "sdpa_flash": ("#5B7F95", "s", "SDPA FLASH"),
         "sdpa_cudnn": ("#8A6D3B", "^", "SDPA cuDNN"), "sdpa": ("#5B7F95", "s", "SDPA"),
         "standard": ("#7A5C86", "D", "standard"), "left_out": (GREY, "x", "no attention")}
_LEAST, _MOST = 0.8, 1.45                                 # of the race's axis; what lies beyond is said
_DENSE, _ATTENTION = "#B9C6D6", "#5B7F95"


@styled
def race(groups: Mapping[str, Sequence[Lead]], source: str) -> Figure:
    """Draw our speed over the best other's, a line a shape, with the range of the rounds.

    Args:
        groups: a title → its shapes.  source: where it was recorded.
    """
    most = max(map(len, groups.values()))
    fig, axes = theme.subplots(1, len(groups), height=0.8 + 0.21 * most, sharex=True)
    said = []
    for ax, (title, found) in zip(axes, groups.items(), strict=True):
        ordered = sorted(found, key=lambda lead: lead.ratio)
        ahead = sum(lead.ratio > 1 for lead in ordered)
        ax.axvline(1, color=GREY, lw=0.9, zorder=0)
        for y, lead in enumerate(ordered):
            color = INK if lead.ratio > 1 else OVER
            ax.text(_LEAST - 0.005, y, lead.shape, fontsize=TINY, va="center", ha="right", color=INK)
            if lead.ratio > _MOST:
                beside(ax, f"{lead.ratio:.1f} →", (_MOST, y), (0, 0), fontsize=TINY, ha="right")
                continue
            ax.plot([max(lead.low, _LEAST), min(lead.high, _MOST)], [y, y], color=color, lw=1.1)
            ax.plot(lead.ratio, y, "o" if lead.ratio > 1 else "X", color=color, ms=4.2)
        ax.set(xlim=(_LEAST, _MOST + 0.01), ylim=(-0.7, most - 0.3), yticks=[])
        ax.spines["left"].set_visible(False)
        ax.set_title(f"{title}: ahead in {ahead} of {len(found)}", fontsize=8.5, loc="right")
        worst = ordered[0]
        said.append(f"{title}: ahead in {ahead} of {len(found)},"
                    f" least {worst.ratio:.2f} at {worst.shape}")
        ax.set_xticks([0.8, 1, 1.2, 1.4], ["0.8", "1", "1.2", "1.4"], fontsize=TINY)
    fig.supxlabel(f"our speed over the best other's ({source})", fontsize=SMALL)
    return theme.describe(fig, f"Our speed over the fastest other implementation, by shape. "
                               f"{'; '.join(said)}.")


@styled
def losses(curves: Mapping[str, Sequence[float]], uniform: float, *, every: int = 1) -> Figure:
    """Draw the loss over steps, one line an attention, drawn so that all can be seen."""
    fig, ax = theme.subplots(height=2.6)
    for n, (name, values) in enumerate(curves.items()):
        color, _, words = LOOKS.get(name, (INK, "o", name))
        ax.plot([every * i for i in range(len(values))], values, color=color,
                lw=4.5 - 1.5 * n if n < 3 else 1, ls=("-", "--", ":")[n % 3], label=words)
    ax.axhline(uniform, color=GREY, lw=0.8, ls=":")
    beside(ax, f"all characters alike: {uniform:.2f}", (0, uniform), (14, -6), fontsize=TINY,
           color=GREY)
    ax.set(xlabel="step", ylabel="loss, nats a character")
    ax.legend(frameon=False, fontsize=SMALL)
    said = "; ".join(f"{name} from {values[0]:.3f} to {values[-1]:.3f}"
                     for name, values in curves.items())
    return theme.describe(fig, f"Training losses over steps. {said}.")


@styled
def over_length(series: Mapping[str, Mapping[int, float]], ylabel: str, *,
                predicted: Mapping[str, Mapping[int, float]] | None = None, source: str = "") -> Figure:
    """Draw a number over the sequence's length for each attention; predictions are dashed."""
    fig, ax = theme.subplots(height=2.9)
    for name, points in series.items():
        color, marker, words = LOOKS.get(name, (INK, "o", name))
        xs = sorted(points)
        ax.plot(xs, [points[x] for x in xs], color=color, marker=marker, lw=1.4, label=words,
                ms=8 if name == "sdpa" else 4.5)            # ours lies on it
        more = (predicted or {}).get(name)
        if more:
            ax.plot(sorted(more), [more[x] for x in sorted(more)], color=color, lw=1.1, ls=(0, (4, 2)))
    lengths = sorted({x for points in series.values() for x in points})
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [f"{x:,}" for x in lengths])
    low, high = (f(y for points in series.values() for y in points.values()) for f in (min, max))
    ticks = [t for n in range(-4, 13) for t in (10.0**n, 2 * 10.0**n, 5 * 10.0**n)
             if 0.6 * low <= t <= 1.6 * high]
    ax.set_yticks(ticks, [human_bytes(t) if t > 1e4 else f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set(xlabel="length N", ylabel=ylabel)
    ax.legend(frameon=False, fontsize=SMALL)
    if source:
        fig.text(0.995, 0.01, source, fontsize=TINY, color=GREY, ha="right", va="bottom")
    said = "; ".join(f"{name}: " + ", ".join(f"{points[x]:.3g} at {x:,}" for x in sorted(points))
                     for name, points in series.items())
    return theme.describe(fig, f"{ylabel} over length. {said}.")


@styled
def step(bars: Mapping[str, tuple[float, float]], lines: Sequence[str]) -> Figure:
    """Draw a step's time as two pieces, matrices and attention, in seconds, one bar a case."""
    fig, ax = theme.subplots(height=2.7)
    for y, (_name, (dense, attention)) in enumerate(bars.items()):
        dense, attention = 1e3 * dense, 1e3 * attention
        ax.barh(y, dense, color=_DENSE, height=0.6)
        ax.barh(y, attention, left=dense, color=_ATTENTION, height=0.6, hatch="//", ec="white", lw=0)
        total = dense + attention
        beside(ax, f"{total:.3g} ms, {attention / total:.0%} attention", (total, y), (4, 0),
               fontsize=TINY)
    most = 1e3 * max(map(sum, bars.values()))
    ax.set(xlim=(0, 1.45 * most), ylim=(len(bars) - 0.4, -0.6), xlabel="ms a layer, predicted;"
           " plain: matrices, hatched: attention")
    ax.set_yticks(range(len(bars)), list(bars))
    fig.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9)
    return theme.describe(fig, ". ".join(lines) + ".")
