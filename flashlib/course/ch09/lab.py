"""Pointer lab of chapter 09: which elements a program points to, and which sectors memory sends."""

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
                         f"program {program} of {count}: {layout}")


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
