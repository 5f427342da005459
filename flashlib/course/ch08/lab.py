"""Occupancy lab of chapter 08: how many SMs a shape keeps busy, in v1, in v2, and backward."""

from __future__ import annotations

from flashlib.course.ch08.figures import occupancy_lab as picture
from flashlib.course.widgets import base

BATCHES = (1, 2, 3, 4, 8, 16, 32, 64)
HEADS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 64)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
BLOCKS = (16, 32, 64, 128, 192, 256)
KERNELS = ("v1 forward", "v2 forward", "v2 backward")


def occupancy_lab(batch=1, heads=16, N=16384, block=128, gpu="A100", kernel="v2 forward",
                  causal=False):
    """Return the widget: a shape and a GPU, with waves, idle SMs and efficiency.

    The arguments are what it shows at first; see `figures.occupancy_lab`. `gpu` may be a
    sheet of your own, and any size that is not on a slider is put there.
    """
    gpus, redraw = base.over_gpus(picture, gpu, "whose SMs to fill")
    return base.Lab("occupancy_lab", {
        "kernel": base.choice(KERNELS, kernel, "kernel", kind="toggle",
                              tooltip="what runs in parallel: heads, row tiles or key tiles"),
        "causal": base.choice([("none", False), ("causal", True)], causal, "mask", kind="toggle",
                              tooltip="whether later keys are hidden"),
        "batch": base.choice(base.including(batch, BATCHES), batch, "B, batch"),
        "heads": base.choice(base.including(heads, HEADS), heads, "H, heads"),
        "N": base.choice([(f"{n:,}", n) for n in base.including(N, LENGTHS)], N, "N, queries and keys"),
        "block": base.choice(base.including(block, BLOCKS), block, "rows per program",
                             tooltip="Br in the forward pass, Bc in the backward pass"),
        "gpu": gpus,
    }, redraw, note="One program per SM at a time. Causal programs start with the longest.")
