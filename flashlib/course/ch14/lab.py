"""Exponential lab of chapter 14: degree, emulated share, τ and the logits' scale, on a GPU."""

import functools
import math
from dataclasses import replace

import numpy as np

from flashlib import exp2, hardware
from flashlib.course.ch14.figures import exp2_lab as picture
from flashlib.course.widgets import base
from flashlib.models import exponentials, stale_maximum
from flashlib.models.sm import programs
from flashlib.quant import E4M3_MAX

# Blackwell Ultra; all but the exponentials is left as on a B200, which it is not quite.
ULTRA = replace(
    hardware.B200, name="B300, a B200 with twice the exponentials", exps_per_s=hardware.Fact(
        2 * float(hardware.B200.exps_per_s), "exp/s", "twice a B200's: NVIDIA blog, Making Softmax More"
        " Efficient with NVIDIA Blackwell Ultra"))
GPUS = {"H100": hardware.H100, "B200": hardware.B200, "B300": ULTRA}
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0)
TAUS = (0.0, 0.5, 0.8, 1.0, 2.0, 4.0, 8.0)
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
OFFSET = 8.0
TILES, KEYS, ROWS = 32, 128, 128


@functools.cache
def maxima_of_rows() -> np.ndarray:
    """Return the tile maxima of 128 rows of standard normal logits, in units of log 2."""
    logits = np.random.default_rng(14).normal(size=(ROWS, TILES, KEYS))
    return logits.max(axis=2) * exp2.LOG2E


@functools.cache
def cycles_of(gpu, d, share, degree, rescales) -> float:
    """Return simulated cycles for 128 query rows and 128 keys, of v3's program or of v4's."""
    name, rows = ("pingpong_overlap", 128) if gpu == "H100" else ("v4", 256)
    run = programs.schedule_of(name, gpu=GPUS[gpu], d=d, emulate=share, rescales=rescales, tiles=TILES,
                               emulated_slots=exp2.slots(degree))
    return run.cycles_per_tile * ROWS / rows


def draw(gpu="B200", d=128, degree=3, share=0.3, tau=8.0, scale=1.0):
    """Draw the lab: one tile on one GPU, and one row of random logits.

    Args:
        gpu: one of `GPUS`.  d: head dimension.
        degree, share: of the emulated exponentials.
        tau: threshold of a rescale.  scale: standard deviation of the logits.
    """
    f = np.linspace(0, 1, 513)
    error = np.abs(exp2.software_exp2(f[:-1], degree) / np.exp2(f[:-1]) - 1)
    maxima = scale * maxima_of_rows()
    used = stale_maximum.references(maxima, tau)
    rescales = float(used.renewed[:, 1:].any(axis=0).mean())
    units = exponentials.units(GPUS[gpu], d=d, share=share, degree=degree)
    fits = OFFSET + tau <= math.log2(E4M3_MAX)
    row = int(used.renewed.sum(axis=1).argmax())
    return picture(f[:-1], error, units, cycles_of(gpu, d, share, degree, rescales), maxima[row],
                   used.m[row], degree=degree, tau=tau, gpu=gpu, fits=fits)


def exp2_lab(gpu="B200", d=128, degree=3, share=0.3, tau=8.0, scale=1.0):
    """Return the widget: degree, emulated share, τ, the logits' scale and the GPU.

    The arguments are what it shows at first; see `draw`.
    """
    return base.Lab("exp2_lab", {
        "gpu": base.choice(tuple(GPUS), gpu, "GPU", kind="toggle", tooltip="whose units to take"),
        "d": base.choice((64, 128), d, "d, head dimension", kind="toggle"),
        "degree": base.choice(range(1, exp2.HIGHEST_DEGREE + 1), degree, "degree of p",
                              tooltip="degree of the polynomial that stands for 2ᶠ"),
        "share": base.choice([(f"{s:.0%}", s) for s in SHARES], share, "emulated share",
                             tooltip="share of the exponentials on the vector lanes"),
        "tau": base.choice([(f"{t:g}", t) for t in TAUS], tau, "τ, units of log 2",
                           tooltip="how much a maximum may grow before a rescale"),
        "scale": base.choice([(f"{s:g}", s) for s in SCALES], scale, "std of the logits"),
    }, draw, note="Bars: busy cycles of every unit. Dashed: simulated cycles, with the rescales that a"
                  " tile of 128 rows of such logits needs. Triangles (τ > 0): a new maximum.")
