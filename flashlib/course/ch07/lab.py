"""The lab of chapter 07: tiles and loop orders of the backward pass, and what they move."""

from flashlib import hardware
from flashlib.course.ch07.figures import backward_lab as picture
from flashlib.course.widgets import base
from flashlib.masks import tiles
from flashlib.models import traffic

SIZES = (16, 32, 48, 64, 96, 128, 192, 256)
LENGTHS = (512, 1024, 2048, 4096, 16384)
DIMS = (32, 64, 128, 256)


def draw(Br=32, Bc=32, N=2048, d=64, causal=False, gpu="H200"):
    """Draw the lab: one head's backward pass in 16 bits, by the closed forms of `models.traffic`.

    Standard attention's stays dense under a causal mask, as a library without a kernel for it does.

    Args:
        Br, Bc, N, d: tile heights, sequence length, head dimension.
        causal: hide later keys.
        gpu: a `GPU` or the name of one; its shared memory per block is the SRAM.
    """
    gpu, shape = hardware.get(gpu), {"Nq": N, "Nk": N, "d": d}
    costs = {"standard, ideal": traffic.standard_backward(**shape)} | {
        order: traffic.flash_backward(**shape, Br=Br, Bc=Bc, order=order, causal=causal)
        for order in ("kv", "q")}
    updates = sum(-(-(rows.stop if causal else N) // Bc) for rows in tiles(N, Br))
    title = f"Backward pass of a head, N = {N:,}, d = {d}, Br = {Br}, Bc = {Bc}{', causal' * causal}"
    return picture(costs, int(gpu.sram_bytes), title=title, gpu=gpu.name, updates=updates)


def backward_lab(Br=32, Bc=32, N=2048, d=64, causal=False, gpu="H200"):
    """Return the widget; the arguments are those of `draw`, and what it shows at first."""
    gpus, redraw = base.over_gpus(draw, gpu, "whose shared memory to take")
    return base.Lab("backward_lab", {
        "Br": base.choice(base.including(Br, SIZES), Br, "Br, rows of Q"),
        "Bc": base.choice(base.including(Bc, SIZES), Bc, "Bc, rows of K"),
        "N": base.choice(base.including(N, LENGTHS), N, "N, tokens"),
        "d": base.choice(base.including(d, DIMS), d, "d, head dimension"),
        "causal": base.choice([False, True], causal, "causal"),
        "gpu": gpus,
    }, redraw, note="16-bit elements, 4-byte accumulators and statistics.")
