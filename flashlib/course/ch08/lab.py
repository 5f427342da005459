"""Occupancy lab of chapter 08: how many SMs a shape keeps busy, in v1, in v2, and backward."""

from flashlib import hardware
from flashlib.course.ch08.figures import occupancy_lab as picture
from flashlib.course.widgets import base
from flashlib.models import occupancy

BATCHES = (1, 2, 3, 4, 8, 16, 32, 64)
HEADS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 64)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
BLOCKS = (16, 32, 64, 128, 192, 256)
KERNELS = ("v1 forward", "v2 forward", "v2 backward")


def draw(batch=1, heads=16, N=16384, block=128, gpu="A100", kernel="v1 forward", causal=False):
    """Draw the lab: how full a GPU is, with one program per SM at a time.

    Args:
        batch, heads, N: the shape; block: rows per program, Br forward and Bc backward.
        gpu: a `GPU` or the name of one.
        kernel: "v1 forward" (a head is a program), "v2 forward" or "v2 backward".
        causal: programs take as long as the tiles that they visit (square tiles), else all the same.
    """
    gpu, split = hardware.get(gpu), None if kernel == "v1 forward" else block

    def waves(length):
        return occupancy.waves(occupancy.programs(batch=batch, heads=heads, N=length, block=split), gpu)

    efficiency, note = _efficiency(waves(N), batch * heads, N, block, kernel, causal)
    title = f"{kernel} on {gpu.name}: B = {batch}, H = {heads}, N = {N:,}"
    title += (f", {block} rows per program" if split else ", one program per head")
    return picture(waves(N), efficiency, note, {n: waves(n) for n in LENGTHS}, N=N,
                   title=title + (", causal" if causal else ""))


def _efficiency(w, pairs, N, block, kernel, causal) -> tuple[float, str]:
    """Return the share of work, by simulation where programs differ, and a note on other programs."""
    if kernel == "v1 forward":
        v2 = occupancy.programs(batch=1, heads=pairs, N=N, block=block)
        return w.efficiency, f"v2, by {block} rows: {v2:,} program{'s' if v2 > 1 else ''}"
    if not causal:
        return w.efficiency, "all programs take equally long"
    lengths = occupancy.causal_lengths(N, block)
    work = pairs * sum(lengths)
    time = occupancy.causal_time(lengths, pairs, w.slots)
    return (work / (w.slots * time),
            f"{time / (w.waves * len(lengths)):.2f} of the time without a mask, longest first")


def occupancy_lab(batch=1, heads=16, N=16384, block=128, gpu="A100", kernel="v1 forward", causal=False):
    """Return the widget: a shape and a GPU, with waves, idle SMs and efficiency.

    The arguments are what it shows at first; see `draw`. `gpu` may be a
    sheet of your own, and any size that is not on a slider is put there.
    """
    gpus, redraw = base.over_gpus(draw, gpu, "whose SMs to fill")
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
    }, redraw, note="One program per SM at a time. Causal ones start with the longest; v1's are alike.")
