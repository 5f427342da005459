"""Block-size lab I of chapter 06: what tiles cost, what fits, and where the roofline puts them."""

from __future__ import annotations

from flashlib.course.ch06.figures import block_lab as picture
from flashlib.course.widgets import base

SIZES = (8, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 65536)
DIMS = (32, 64, 128, 256)
SRAM_KIB = (16, 32, 64, 96, 128, 163, 227, 512)


def block_lab(Br=64, Bc=64, N=4096, d=128, gpu="A100", sram_bytes=None, algorithm="flash_v1",
              causal=False):
    """Return the widget: block sizes, shape, SRAM and GPU, with traffic, SRAM and roofline.

    The arguments are what it shows at first; see `figures.block_lab`. `gpu` may be a sheet
    of your own, and any size that is not on a slider is put there.
    """
    rooms = base.including(sram_bytes, [kib * 1024 for kib in SRAM_KIB])
    sram = [("that of the GPU", None), *((f"{size / 1024:g} KiB", size) for size in rooms)]
    gpus, redraw = base.over_gpus(picture, gpu, "whose shared memory, bandwidth and rates to take")
    return base.Lab("block_lab", {
        "algorithm": base.choice([("v1, K/V outside", "flash_v1"), ("v2, Q outside", "flash_v2")],
                                 algorithm, "algorithm", kind="toggle",
                                 tooltip="which tensor the outer loop walks over"),
        "causal": base.choice([("none", False), ("causal", True)], causal, "mask", kind="toggle",
                              tooltip="whether later keys are hidden"),
        "Br": base.choice(base.including(Br, SIZES), Br, "Br, rows of Q per tile"),
        "Bc": base.choice(base.including(Bc, SIZES), Bc, "Bc, rows of K per tile"),
        "N": base.choice([(f"{n:,}", n) for n in base.including(N, LENGTHS)], N, "N, queries and keys"),
        "d": base.choice(base.including(d, DIMS), d, "d, head dimension"),
        "gpu": gpus,
        "sram_bytes": base.choice(sram, sram_bytes, "SRAM", kind="dropdown",
                                  tooltip="the room for tiles, in place of that of the GPU"),
    }, redraw, note="One head, 16-bit elements, 4-byte accumulator and statistics.")
