"""The FP8 lab of chapter 13: one number bit by bit, and what its format does to attention."""

import functools

import numpy as np

from flashlib import quant
from flashlib.course.ch13.figures import fp8_lab as picture
from flashlib.course.widgets import base
from flashlib.models import fp8

VALUES = (0.001, 0.004, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.06, 1.1, 1.3, 2.0, 2.7, 3.3,
          5.0, 7.7, 10.0, 17.0, 30.0, 45.0, 100.0, 300.0, 440.0, 460.0, 1000.0, -0.3, -17.0)
SCALES = (("1 / 16", 1 / 16), ("45 / 448, a largest |x| of 45", 45 / 448), ("1", 1.0), ("4", 4.0))
RATES = (0.0, 0.0003, 0.001, 0.003, 0.01, 0.03)
SIZES = (1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
N, D, ROWS, DRAWS, BLOCK, AROUND = 4096, 64, 64, 4, 128, 4
RECIPES = (("one scale", None, False), ("block scales", BLOCK, False),
           ("one scale, rotated", None, True), ("block scales, rotated", BLOCK, True))


def draw(value=0.3, scale=1.0, fmt="e4m3", rate=0.001, size=10.0, block_scales=True, rotation=True):
    """Draw the lab.

    Args:
        value, scale: the number that is looked at, and what it is divided by before it is rounded.
        fmt: "e4m3" or "e5m2", for the number and for attention.
        rate, size: outliers in Q, K and V: how many of the entries, and their standard deviation.
        block_scales, rotation: which of the four recipes is dark.
    """
    bits, near, f = quant.fields(value / scale, fmt), _near(value / scale, fmt), quant.FORMATS[fmt]
    chosen = f"{'block scales' if block_scales else 'one scale'}{', rotated' if rotation else ''}"
    heading = f"attention, {N:,} keys, d = {D}, outliers of size {size:g} in {rate:.2%} of the entries"
    errors, weight = errors_of(fmt, rate, size)
    return picture(value, scale, fmt, bits, near * scale, errors, chosen=chosen, heading=heading,
                   note=f"largest weight P of a row, median: {weight:.2g}",
                   formula=(f.mantissa_bits, f.bias))


def fp8_lab(value=0.3, scale=1.0, fmt="e4m3", rate=0.001, size=10.0, block_scales=True, rotation=True):
    """Return the widget: a number and its scale, a format, outliers, and what is done about them.

    The arguments are what it shows at first; see `draw`.
    """
    return base.Lab("fp8_lab", {
        "value": base.choice([(f"{v:g}", v) for v in sorted({*VALUES, value})], value, "number",
                             tooltip="the number that is rounded"),
        "scale": base.choice(SCALES, scale, "scale", kind="dropdown",
                             tooltip="what the number is divided by first"),
        "fmt": base.choice(quant.FLOATS, fmt, "format", kind="toggle",
                           tooltip="of the number, and of Q, K, V and P"),
        "rate": base.choice([(f"{r:.2%}", r) for r in RATES], rate, "outlier rate",
                            tooltip="the share of entries of Q, K and V that are outliers"),
        "size": base.choice([(f"{s:g}", s) for s in SIZES], size, "outlier size",
                            tooltip="the standard deviation of what an outlier adds"),
        "block_scales": base.choice([(f"each block of {BLOCK} rows", True), ("one for all", False)],
                                    block_scales, "scales", kind="toggle",
                                    tooltip="how many rows share a scale"),
        "rotation": base.choice([("Q and K rotated", True), ("as they are", False)], rotation,
                                "rotation", kind="toggle",
                                tooltip="whether Q and K go through a Hadamard matrix first"),
    }, draw, note=f"The errors are computed here, on {ROWS} of {N:,} queries, in {DRAWS} draws; P is in"
                  " the format, too. Bars: the dark one is what the last two controls choose.")


def _near(x, fmt):
    """Return the values of the format around x, at most four on either side."""
    grid = quant.values(fmt)
    at = int(np.searchsorted(grid, x))
    start = min(max(at - AROUND, 0), len(grid) - 2 * AROUND)
    return grid[start:start + 2 * AROUND]


@functools.lru_cache(maxsize=256)
def errors_of(fmt, rate, size):
    """Return each recipe's error over all draws, its gains, and the median of the largest weights."""
    recipes = [fp8.Recipe("float16", "float16"),
               *(fp8.Recipe(name, fmt, block, rotation) for name, block, rotation in RECIPES)]
    errors, weights = [], []
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        p = fp8.problem(*(fp8.outliers((N, D), rate=rate, size=size, seed=rng) for _ in range(3)),
                        rows=ROWS, seed=seed)
        errors.append([fp8.error(p, recipe, seed=seed) for recipe in recipes])
        weights.append(np.median(p.P.max(axis=1)))
    each = np.transpose(errors)                            # (recipes, draws); the second is one scale
    return ([{"recipe": r.name, "rmse": float(np.sqrt(np.mean(e**2))), "gains": np.sort(each[1] / e)}
             for r, e in zip(recipes, each, strict=True)], float(np.median(weights)))
