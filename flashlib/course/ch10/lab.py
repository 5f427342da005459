"""Tile walk lab of chapter 10: which key tiles a program visits, in which order, masked or not."""

from flashlib.course.ch10.figures import tile_walk
from flashlib.course.widgets import base
from flashlib.masks import mask_of, tiles

SHAPES = ((512, 512), (450, 450), (128, 512), (512, 256))
MASKS = {"none": (False, None), "causal": (True, None), "window of 128 keys": (True, (127, None))}


def draw(mask="window of 128 keys", shape=(512, 512), BLOCK_M=128, BLOCK_N=64, program=0):
    """Draw the lab: the tiles of all programs, and the numbered walk of one.

    Args:
        mask: a key of `MASKS`.  shape: (Nq, Nk).
        BLOCK_M, BLOCK_N: rows of a tile of queries and of keys.
        program: counted from 0; the last one there is, if there are fewer.
    """
    causal, window = MASKS[mask]
    count = len(tiles(shape[0], BLOCK_M))
    program = min(program, count - 1)
    tile = count - 1 - program if causal else program       # the longest rows first
    last = min((tile + 1) * BLOCK_M, shape[0]) - 1
    return tile_walk(mask_of(causal, *shape, window), shape, BLOCK_M, BLOCK_N, tile,
                     f"program {program} of {count}: rows {tile * BLOCK_M} … {last}")


def tile_walk_lab(mask="window of 128 keys", shape=(512, 512), BLOCK_M=128, BLOCK_N=64, program=0):
    """Return the widget; the arguments are what it shows at first, see `draw`."""
    return base.Lab("tile_walk_lab", {
        "mask": base.choice(list(MASKS), mask, "mask", kind="toggle",
                            tooltip="which keys a query may see"),
        "shape": base.choice([(f"{q} × {k}", (q, k)) for q, k in SHAPES], shape, "queries × keys",
                             kind="toggle", tooltip="lengths; the diagonal ends in the last corner"),
        "BLOCK_M": base.choice((32, 64, 128), BLOCK_M, "BLOCK_M, rows of queries"),
        "BLOCK_N": base.choice((32, 64, 128), BLOCK_N, "BLOCK_N, rows of keys"),
        "program": base.choice(range(16), program, "program", kind="play",
                               tooltip="which program's walk is numbered"),
    }, draw, note="The walk is that of flash_fwd_kernel. A program beyond the last shows the last one.")
