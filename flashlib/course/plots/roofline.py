"""The roofline of a GPU, with algorithms on it."""

from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import FuncFormatter

from flashlib import hardware
from flashlib.course.plots import theme
from flashlib.course.plots.parts import beside
from flashlib.course.plots.theme import GREY, INK, SMALL, Figure, styled, text_width
from flashlib.machine.traffic import Traffic
from flashlib.models import roofline as model

_ROOF = "#444444"


@styled
def roofline(gpu, costs: Mapping[str, Traffic], dtype: str = "float16", *,
             measured: Mapping[str, float] | None = None) -> Figure:
    """Draw the roof of a GPU over arithmetic intensity, and where algorithms stand under it.

    A point stands at what the model predicts, which may be below the roof where vector work or
    exponentials take longest. With `measured`, {label: seconds}, the prediction becomes hollow and
    a solid marker of the same shape shows the measured rate.

    Args:
        gpu: a `GPU` or the name of one.
        costs: {label: Traffic}.
        dtype: what the matmul units work in.
    """
    gpu, measured = hardware.get(gpu), measured or {}
    unknown = set(measured) - set(costs)
    if unknown:
        raise ValueError(f"measured: expected labels of costs, got {sorted(unknown)}")
    for label, cost in costs.items():
        if not (cost.hbm_bytes and cost.flops):
            raise ValueError(f"{label}: expected a cost with bytes and FLOPs, got {cost.hbm_bytes}"
                             f" bytes and {cost.flops} FLOPs")
    fig, ax = theme.subplots(height=3.9)
    ridge = model.ridge(gpu, dtype)
    points = [(label, c.intensity, c.flops / model.time_s(c, gpu, dtype).time_s,
               theme.version_style(label, n)) for n, (label, c) in enumerate(costs.items())]
    rates = [c.flops / measured[label] for label, c in costs.items() if label in measured]
    left = min([p[1] for p in points] + [ridge / 100]) / 2.5
    right = max([p[1] for p in points] + [ridge * 6]) * 2.5
    x = np.geomspace(left, right, 300)
    roof = model.attainable_flops_per_s(x, gpu, dtype)
    peak = float(roof.max())
    floor = min([p[2] for p in points] + rates + [roof[0]]) / 6
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(floor, peak * 3.2))
    ax.fill_between(x, floor, roof, where=x <= ridge, color="#EFF3F8", lw=0, zorder=0)
    ax.fill_between(x, floor, roof, where=x >= ridge, color="#F6F4EC", lw=0, zorder=0)
    ax.plot(x, roof, color=_ROOF, lw=2, zorder=2, gid="roof")
    ax.plot([ridge, ridge], [floor, peak], color="#9A9A9A", lw=0.9, ls=(0, (2, 2)), zorder=1)
    notes = {"fontsize": SMALL, "color": GREY}
    ax.text(ridge, floor * 1.25, f" {ridge:.0f} FLOP/B", va="bottom", ha="left", **notes)
    ax.text(right, peak * 1.12, f"{gpu.name}, {dtype}: {hardware.human(peak, 'FLOP/s')}", ha="right",
            va="bottom", fontsize=SMALL, color=_ROOF, fontweight="bold")
    ax.set(xlabel="arithmetic intensity, FLOP per byte of HBM", ylabel="FLOP/s")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: hardware.human(v, "FLOP/s")))
    for label, px, py, look in points:
        seen = label in measured
        face = ({"mfc": "white", "mew": 1.5, "mec": look["color"]} if seen
                else {"mec": "white", "mew": 0.8})
        ax.plot([px], [py], ms=9, ls="none", zorder=5, gid=f"point {label}", **{**look, **face})
        if seen:
            rate = costs[label].flops / measured[label]
            ax.plot([px, px], [py, rate], color=look["color"], lw=1, ls=(0, (2, 2)), zorder=4)
            ax.plot([px], [rate], ms=9, ls="none", mec="white", zorder=5, gid=f"measured {label}",
                    **look)
    fig.draw_without_rendering()
    _on_slope(ax, x, roof, ridge, [p[1] for p in points],
              f"memory: {hardware.human(float(gpu.hbm_bytes_per_s), 'B/s')}")
    marks = [(p[1], p[2]) for p in points] + [(p[1], costs[p[0]].flops / measured[p[0]])
                                              for p in points if p[0] in measured]
    anchors = [(p[0], p[1], costs[p[0]].flops / measured[p[0]] if p[0] in measured else p[2])
               for p in points]
    _label_points(ax, anchors, marks)
    text = "; ".join(f"{label} at {px:.3g} FLOP/B, {hardware.human(py, 'FLOP/s')}"
                     for label, px, py, _ in points)
    return theme.describe(fig, f"Roofline of {gpu.name} in {dtype}, ridge at {ridge:.0f} FLOP/B:"
                               f" {text}.")


def _on_slope(ax, x, roof, ridge, taken, text) -> None:
    """Write a text along the slanted roof, where no point is near."""
    slope = np.flatnonzero(x < ridge)
    spots = slope[len(slope) // 6 : max(5 * len(slope) // 6, len(slope) // 6 + 1)]
    far = [min((abs(np.log(x[n] / t)) for t in taken), default=0) for n in spots]
    n = int(spots[int(np.argmax(far))])
    (x0, y0), (x1, y1) = ax.transData.transform([(x[n], roof[n]), (x[n + 1], roof[n + 1])])
    beside(ax, text, (x[n], roof[n]), (-5, 5), va="bottom", fontsize=SMALL, color=_ROOF,
           fontweight="bold", ha="center", rotation_mode="anchor",
           rotation=np.degrees(np.arctan2(y1 - y0, x1 - x0)))


def _label_points(ax, points, marks) -> None:
    """Write each label near its point, at the first of several places that touches nothing."""
    scale = ax.figure.dpi / 72
    box = ax.get_window_extent()
    taken = [(px - 7 * scale, py - 7 * scale, px + 7 * scale, py + 7 * scale)
             for px, py in ax.transData.transform(marks)]
    for label, x, y in sorted(points, key=lambda p: p[1]):
        px, py = ax.transData.transform((x, y))
        w, h = text_width(label, 9) * ax.figure.dpi, 12 * scale
        for dx, dy, ha in _places():
            start = px + dx * scale - (w if ha == "right" else w / 2 if ha == "center" else 0)
            spot = (start, py + dy * scale - h / 2, start + w, py + dy * scale + h / 2)
            free = not any(spot[0] < t[2] and t[0] < spot[2] and spot[1] < t[3] and t[1] < spot[3]
                           for t in taken)
            if free and box.x0 <= spot[0] and spot[2] <= box.x1 and box.y0 <= spot[1]:
                break
        taken.append(spot)
        line = {"arrowstyle": "-", "color": "#9A9A9A", "lw": 0.7, "shrinkA": 1, "shrinkB": 5}
        beside(ax, label, (x, y), (dx, dy), ha=ha, color=INK, arrowprops=line if abs(dy) > 15 else None,
               gid=f"label {label}", zorder=6, path_effects=theme.halo())


def _places():
    yield from ((10, -3, "left"), (0, -14, "center"), (9, -13, "left"), (-10, -3, "right"))
    for dy in range(28, 160, 14):
        yield from ((10, -dy, "left"), (0, -dy, "center"), (-10, -dy, "right"))
