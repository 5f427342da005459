"""The figures of chapter 16: who computes and sends when, when a link hides, and up to 1,024 GPUs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import NullLocator

from flashlib.course.ch16.ring_figures import hue
from flashlib.course.plots import theme
from flashlib.course.plots.parts import bare, beside, boxes
from flashlib.course.plots.theme import EDGE, GREY, INK, OVER, SMALL, TINY, Figure, styled

_IDLE = {"facecolor": "#F6F6F6", "edgecolor": "#CFCFCF", "hatch": "////", "lw": 0}
_LANE, _WIRE = (0.1, 0.52), (0.68, 0.2)      # top and height of a GPU's work and of its link, in a row


@styled
def timelines(panels: Mapping[str, Sequence[tuple]], lines: Sequence[str] = (), *,
              wrong: bool = False) -> Figure:
    """Draw a row for each GPU: its work in the hue of the keys' owner, below it what it sends.

    Args:
        panels: title → bars (gpu, start, end, source, "work" or "link"), in ms; one scale for all.
        lines: sentences above; `wrong` makes the first of them red.
    """
    P = 1 + max(gpu for bars in panels.values() for gpu, *_ in bars)
    each = {1: 0.42, 2: 0.42, 4: 0.36, 8: 0.24}.get(P, 0.17)
    end = max(bar[2] for bars in panels.values() for bar in bars)
    top = 0.2 * len(lines) + 0.08 * bool(lines)
    height = top + sum(0.32 + each * P for _ in panels) + 0.42
    fig, y = theme.figure(height, layout=None), height - top
    said = list(lines)
    for n, text in enumerate(lines):
        fig.text(0.012, 1 - (0.05 + 0.2 * n) / height, text, va="top", fontsize=9 if n else 10,
                 fontweight="normal" if n else "bold", color=OVER if wrong and not n else INK)
    for n, (title, bars) in enumerate(panels.items()):
        y -= 0.32 + each * P
        ax = fig.add_axes((0.075, y / height, 0.84, each * P / height))
        last = n == len(panels) - 1
        busy = _rows(ax, bars, P, each, 0.84 * theme.WIDTH / (1.02 * end))
        ax.set(xlim=(0, 1.02 * end), ylim=(P, 0))
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=3)
        ax.set_yticks(np.arange(P) + 0.4, [f"GPU {gpu}" if P <= 8 or not gpu % 4 else ""
                                           for gpu in range(P)], fontsize=TINY)
        bare(ax, "left")
        if not last:
            ax.tick_params(axis="x", labelbottom=False)
        ax.tick_params(axis="x", labelsize=TINY)
        for gpu in range(P) if P <= 8 else ():
            ax.text(1.01, gpu + 0.4, f"{100 * busy[gpu]:.0f} %", transform=ax.get_yaxis_transform(),
                    fontsize=TINY, va="center_baseline", fontweight="bold" if busy[gpu] < 0.9 else None)
        said.append(f"{title}: busy " + ", ".join(
            f"GPU {g} {100 * share:.0f} %" for g, share in enumerate(busy)))
    long = end > 20_000
    ax.xaxis.set_major_formatter(lambda x, _: f"{x / (1e3 if long else 1):,.3g}")
    ax.set_xlabel(f"{'s' if long else 'ms'}, simulated; hatched: waiting; numbers: whose keys; below:"
                  " what is sent", fontsize=SMALL, labelpad=2)
    return theme.describe(fig, f"Who works and who sends when, {P} GPUs. " + "; ".join(said) + ".")


def _rows(ax, bars, P, each, scale) -> list[float]:
    """Draw the bars of a panel, and idle time hatched; return the share each GPU is busy."""
    end = max(bar[2] for bar in bars)
    boxes(ax, [(0, gpu + _LANE[0], end, _LANE[1]) for gpu in range(P)], **_IDLE)
    busy = [0.0] * P
    for source in range(P):
        work, link = ([b for b in bars if b[3] == source and b[4] == kind] for kind in ("work", "link"))
        boxes(ax, [(a, gpu + _LANE[0], b - a, _LANE[1]) for gpu, a, b, *_ in work],
              facecolor=hue(source, P), edgecolor="white", lw=0.5)
        boxes(ax, [(a, gpu + _WIRE[0], b - a, _WIRE[1]) for gpu, a, b, *_ in link],
              facecolor=theme.tint(hue(source, P), 0.35), edgecolor=EDGE, lw=0.4)
        for gpu, a, b, *_ in work:
            busy[gpu] += (b - a) / end
            if (b - a) * scale > 0.2 and each > 0.2:
                ax.text((a + b) / 2, gpu + _LANE[0] + _LANE[1] / 2, str(source), fontsize=TINY,
                        ha="center", va="center_baseline", color=theme.ink_on(hue(source, P)))
    return busy


@styled
def hides(tokens: Sequence[int], work_s: Sequence[float], links: Mapping[str, Sequence[float]],
          crossings: Mapping[str, float]) -> Figure:
    """Draw the seconds of a step's work and of its message against the tokens of a GPU.

    Args:
        tokens: of a GPU.  work_s: seconds of a step.  links: a link → seconds of its message.
        crossings: a link → the tokens from which its message takes no longer than the work.
    """
    fig, ax = theme.subplots(height=3.3)
    ax.plot(tokens, [1e3 * t for t in work_s], color=INK, lw=2)
    beside(ax, "a step's work", (tokens[-1], 1e3 * work_s[-1]), (4, 0), fontsize=SMALL, color=INK,
           fontweight="bold")
    said = []
    for n, (name, times) in enumerate(links.items()):
        color = theme.version_style("link", n + 1)["color"]
        ax.plot(tokens, [1e3 * t for t in times], color=color, ls=(0, (4, 2)), lw=1.4)
        beside(ax, name, (tokens[-1], 1e3 * times[-1]), (4, 0), fontsize=SMALL,
               color=theme.readable(color))
        at = crossings[name]
        y = 1e3 * float(np.exp(np.interp(np.log(at), np.log(tokens), np.log(times))))
        if tokens[0] <= at <= tokens[-1]:
            ax.plot([at], [y], "o", color=color, ms=7, zorder=4)
            beside(ax, f"{at:,.0f}", (at, y), (7, -8), fontsize=SMALL, fontweight="bold",
                   color=theme.readable(color), path_effects=theme.halo(), ha="left")
        said.append(f"{name} from {at:,.0f} tokens")
    ax.set(xscale="log", yscale="log", xlim=(tokens[0], tokens[-1]))
    ticks = [n for n in tokens if np.log2(n) % 1 == 0][::2]
    ax.set_xticks(ticks, [f"{n // 1024}k" if n >= 1024 else str(n) for n in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_yticks([0.001, 0.01, 0.1, 1, 10, 100], ["0.001", "0.01", "0.1", "1", "10", "100"])
    ax.set_ylabel("ms of a step, computed", fontsize=SMALL)
    ax.set_xlabel("tokens of a GPU; right of its dot a link hides behind the work", fontsize=SMALL)
    return theme.describe(fig, "Seconds of a step's work and of its message against tokens of a GPU."
                               f" The message hides: {'; '.join(said)}.")


@styled
def scale(curves: Mapping[str, Mapping[int, float]], note: str) -> Figure:
    """Draw the efficiency of P GPUs, a curve for each way to use them."""
    fig, ax = theme.subplots(height=3.2)
    said = _efficiencies(ax, curves, {name: {"ls": _DASHED} for name in curves}, "{} GPUs")
    xs = sorted(next(iter(curves.values())))
    ax.set_xticks(xs, [f"{x:,}" for x in xs])
    ax.set_xlabel(f"GPUs ({note})", fontsize=SMALL)
    ax.text(0.0, 1.02, "simulated, not measured", transform=ax.transAxes, fontsize=TINY, color=GREY)
    return theme.describe(fig, f"Simulated efficiency against the number of GPUs, {note}. {said}.")


@styled
def measured(panels: Mapping[str, Mapping[str, Mapping[int, float]]], note: str) -> Figure:
    """Draw efficiency against tokens, a panel for each pass; what is simulated is dashed and grey."""
    fig, axes = theme.subplots(1, len(panels), height=3.4, sharey=True)
    said = []
    for ax, (title, curves) in zip(axes, panels.items(), strict=True):
        dashes = iter((_DASHED, ":"))
        looks = {name: {"ls": next(dashes), "color": GREY, "marker": ""} for name in curves
                 if "simulated" in name}
        said.append(f"{title}: " + _efficiencies(ax, curves, looks, "{:,} tokens", ends=False))
        xs = sorted(set().union(*curves.values()))
        ax.set_xticks(xs[::2], [f"{x // 1024:,}k" for x in xs[::2]])
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=3)
        ax.set_xlabel(f"tokens ({note})", fontsize=SMALL)
        ax.set_ylim(0, 125)
    axes[-1].legend(*axes[0].get_legend_handles_labels(), fontsize=SMALL, loc="lower right",
                    frameon=False)
    return theme.describe(fig, f"Efficiency against tokens, {note}. {'. '.join(said)}.")


_DASHED = (0, (4, 2))


def _efficiencies(ax, curves, looks, at, *, ends=True) -> str:
    """Draw curves of shares in per cent, with `ends` each with its name there; return them in words."""
    said = []
    for n, (name, found) in enumerate(curves.items()):
        look = theme.version_style("way", n) | {"ls": "-", "lw": 1.5, "ms": 5} | looks.get(name, {})
        xs = sorted(found)
        ax.plot(xs, [100 * found[x] for x in xs], label=name, **look)
        if ends:
            beside(ax, name, (xs[-1], 100 * found[xs[-1]]), (8, 0), fontsize=SMALL,
                   color=theme.readable(look["color"]))
        said.append(f"{name}: " + ", ".join(f"{at.format(x)} {100 * found[x]:.0f} %" for x in xs))
    xs = sorted(set().union(*curves.values()))
    ax.set(xscale="log", xlim=(xs[0] / 1.1, xs[-1] * 1.1), ylim=(0, 104))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylabel("efficiency, %", fontsize=SMALL)
    return "; ".join(said)
