"""Chapter 09's labs: the pointers of a program, the recorded rates, the fused kernel compiled."""

import itertools

from flashlib import lens
from flashlib.course.ch09.figures import pointer_block
from flashlib.course.widgets import base

SHAPE = (10, 12)
# Strides of the 10 × 12 matrix, in elements.
LAYOUTS = {"row by row": (12, 1), "transposed": (1, 10), "slice of a wider one": (16, 1)}
BLOCKS = ((1, 16), (2, 8), (4, 4), (8, 2), (16, 1))


def draw(layout="transposed", block=(1, 16), masked=True, program=0):
    """Draw the lab: one program's lanes on the matrix and in memory.

    Args:
        layout: a key of `LAYOUTS`.  block: its rows and columns, 16 lanes.
        masked: whether the load has a mask.
        program: counted from 0; the last one there is, if there are fewer.
    """
    count = -(-SHAPE[0] // block[0]) * -(-SHAPE[1] // block[1])
    program = min(program, count - 1)
    return pointer_block(SHAPE, LAYOUTS[layout], block, program, masked,
                         f"program {program} of {count}; X: {layout}")


def pointer_lab(layout="transposed", block=(1, 16), masked=True, program=0):
    """Return the widget; the arguments are what it shows at first, see `draw`."""
    return base.Lab("pointer_lab", {
        "layout": base.choice(list(LAYOUTS), layout, "X in memory", kind="toggle",
                              tooltip="what the two strides are"),
        "block": base.choice([(f"{m} × {n}", (m, n)) for m, n in BLOCKS], block, "block",
                             kind="toggle", tooltip="rows and columns of a program's 16 lanes"),
        "masked": base.choice([("on", True), ("off", False)], masked, "mask", kind="toggle",
                              tooltip="whether lanes beyond the matrix take part"),
        "program": base.choice(range(12), program, "program", kind="play",
                               tooltip="whose lanes are drawn"),
    }, draw, note="A program beyond the last shows the last one.")


def rates(recorded):
    """Return {dtype: {kernel: (lengths of a row, useful bytes per second)}}, of 2²⁸ numbers each.

    `recorded` are the measurements `softmax_h200`. The fused kernel's rows end at 32,768: beyond it the
    library runs the online kernel under that name.
    """
    found = {dtype: {} for dtype in ("float16", "float32")}
    for dtype, impl in itertools.product(found, ("3pass", "online", "fused")):
        longest = 2**15 if impl == "fused" else 2**28
        rows = [row for row in recorded.where(dtype=dtype, impl=impl).rows
                if row["rows"] * row["cols"] == 2**28 and row["cols"] <= longest]
        found[dtype][impl] = [r["cols"] for r in rows], [r["least_bytes_per_s"] for r in rows]
    return found


def fused_report(N, itemsize):
    """Return the lens's report of the fused softmax, rows of N, as the library starts it on an H100."""
    from flashlib.kernels import softmax

    BLOCK_M, num_warps, _, stages = softmax.fused_config(N, itemsize)
    X = {2: "*fp16", 4: "*fp32"}[itemsize]
    return lens.compile(softmax.softmax_fused_fwd_kernel, arch="H100", num_warps=num_warps, arguments={
        "X": X, "Y": X, "stride_xm": N, "stride_xn": 1, "stride_ym": N, "stride_yn": 1,
        "M": 16384, "N": N, "BLOCK_M": BLOCK_M, "BLOCK_N": N, "STAGES": stages})
