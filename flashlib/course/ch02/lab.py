"""The widget of chapter 02: tiles of a matmul, what they move and whether they fit."""

from dataclasses import replace

from flashlib import hardware
from flashlib.course.ch02.figures import matmul_lab as picture
from flashlib.course.widgets import base
from flashlib.models import traffic
from flashlib.models.matmul import matmul_tiles

EDGES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 384, 512)
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ONE_TOKEN = "one token through a 4,096 × 4,096 layer"
SHAPES = {
    "4,096³": (4096, 4096, 4096),
    "1,024³": (1024, 1024, 1024),
    "16,384³": (16384, 16384, 16384),
    "QKᵀ of one head, N = 4,096, d = 128": (4096, 4096, 128),
    "PV of one head, N = 4,096, d = 128": (4096, 128, 4096),
    ONE_TOKEN: (1, 4096, 4096),
    "ragged: 1,000 × 1,500 × 700": (1000, 1500, 700),
}


def draw(Bm=128, Bn=128, Bk=32, shape=SHAPES[ONE_TOKEN], gpu="H200"):
    """Draw the lab: a choice of tiles for a matmul in 16 bits, by the closed forms of `models.traffic`.

    Matrix units accumulate by themselves, so only matmul FLOPs count here.

    Args:
        Bm, Bn, Bk: tile edges along M, N and K.
        shape: (M, N, K).
        gpu: a `GPU` or the name of one.
    """
    gpu, (M, N, K) = hardware.get(gpu), shape
    size = {"M": M, "N": N, "K": K}
    costs = {"each matrix once": traffic.tiled_matmul(**size, Bm=M, Bn=N, Bk=K),
             "these tiles": traffic.tiled_matmul(**size, Bm=Bm, Bn=Bn, Bk=Bk),
             "naive": traffic.naive_matmul(**size)}
    costs = {name: replace(cost, vector_flops=0) for name, cost in costs.items()}
    title = f"{M:,} × {K:,} times {K:,} × {N:,} in tiles {Bm} × {Bn}, Bk = {Bk}, on {gpu.name}"
    what = f"Tiles {Bm} × {Bn}, Bk = {Bk}, for {M} × {K} times {K} × {N} on {gpu.name}"
    return picture(costs, matmul_tiles(min(Bm, M), min(Bn, N), min(Bk, K)), gpu, title=title, what=what)


def matmul_lab(Bm=128, Bn=128, Bk=32, shape=ONE_TOKEN, gpu="H200"):
    """Return the widget: tile edges, shape and GPU, with traffic and SRAM gauge.

    The arguments are what it shows at first. `shape` is a name in `SHAPES` or your own (M, N, K);
    `gpu` may be a sheet of your own, and an edge that is not on a slider is put there.
    """
    shapes = dict(SHAPES)
    if not isinstance(shape, str):
        shape, sizes = " × ".join(f"{n:,}" for n in shape), tuple(shape)
        shapes[shape] = sizes

    def named(shape, **choices):
        return draw(shape=shapes[shape], **choices)

    gpus, redraw = base.over_gpus(named, gpu, "whose shared memory and ridge to take")
    return base.Lab("matmul_lab", {
        "Bm": base.choice(base.including(Bm, EDGES), Bm, "Bm, rows of a tile of C"),
        "Bn": base.choice(base.including(Bn, EDGES), Bn, "Bn, columns of it"),
        "Bk": base.choice(base.including(Bk, STEPS), Bk, "Bk, depth of a step"),
        "shape": base.choice(list(shapes), shape, "shape", kind="dropdown",
                             tooltip="M × N × K: the rows of A, the columns of B, what they share"),
        "gpu": gpus,
    }, redraw, note="16-bit elements, 4-byte accumulators; only matmul FLOPs count.")
