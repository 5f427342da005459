"""Block-size lab of chapter 11: a configuration's budgets, and its predicted time among neighbors."""

from flashlib import hardware
from flashlib.course.ch11.figures import tile_lab as picture
from flashlib.course.widgets import base
from flashlib.models import predict

# With bfloat16 on their sheets, and O and S in registers: on a B200 they lie in tensor memory.
GPUS = ("A100", "RTX 4090", "H100", "H200")
BATCH, HEADS, MAP = 4, 16, (32, 64, 128, 256)
SIZES = (16, 32, 64, 128, 256)
HEAD_DIMS = (32, 64, 128, 256)
LENGTHS = (256, 512, 1024, 4096, 16384)


def draw(Br=128, Bc=64, warps=4, stages=2, gpu="H200", d=128, N=4096):
    """Draw the lab: everything is `models.predict`'s, in bfloat16, without a mask, for 4 × 16 heads.

    Args:
        Br, Bc, warps, stages: the configuration that is examined.
        gpu: a `GPU` with O and S in registers, or the name of one.  d, N: the shape.
    """
    gpu, shape = _modeled(gpu), {"batch": BATCH, "heads": HEADS, "N": N, "d": d}

    def predicted(rows, columns):
        return predict.predict(gpu, predict.Config(rows, columns, warps, stages), **shape)

    times = {(rows, columns): predicted(rows, columns).time_s
             for rows in sorted({*MAP, Br}) for columns in sorted({*MAP, Bc})}
    title = (f"Predicted: {gpu.name}, (B, H, N, d) = ({BATCH}, {HEADS}, {N}, {d}), {warps} warps,"
             f" {stages} stages")
    return picture(times, (Br, Bc), predicted(Br, Bc), gpu, title=title)


def _modeled(gpu):
    """Return a GPU; raise if the model of this chapter does not hold for it."""
    found = hardware.get(gpu)
    if "bfloat16" not in found.matmul_flops_per_s:
        raise ValueError(f"gpu: expected one with a bfloat16 rate, such as {', '.join(GPUS)}, got"
                         f" {found.name!r}")
    if found.generation == "sm_100":
        raise ValueError(f"gpu: expected one that keeps O and S in registers, such as"
                         f" {', '.join(GPUS)}, got {found.name!r}, which has tensor memory for them")
    return found


def tile_lab(Br=128, Bc=64, warps=4, stages=2, gpu="H200", d=128, N=4096):
    """Return the widget: tile heights, warps, stages, a GPU and a shape of 4 × 16 heads.

    The arguments are what it shows at first; see `draw`. `gpu` may be a sheet of your own that knows
    its bfloat16 rate.
    """
    gpus, redraw = base.over_gpus(draw, _modeled(gpu), "whose budgets and rates to take", GPUS)
    return base.Lab("tile_lab", {
        "Br": base.choice(SIZES, Br, "Br, rows of Q"),
        "Bc": base.choice(SIZES, Bc, "Bc, rows of K and V"),
        "warps": base.choice((4, 8), warps, "warps", kind="toggle",
                             tooltip="of one program, 32 threads each"),
        "stages": base.choice((2, 3, 4), stages, "stages", kind="toggle",
                              tooltip="tiles of K and of V on their way or in use"),
        "d": base.choice(HEAD_DIMS, d, "d, head dimension"),
        "N": base.choice([(f"{n:,}", n) for n in LENGTHS], N, "N, queries and keys"),
        "gpu": gpus,
    }, redraw, note="Every number is the model's: bfloat16, no mask, 4 × 16 heads. Nothing is"
                    " measured. A B200 keeps O and S in tensor memory, which this model lacks.")
