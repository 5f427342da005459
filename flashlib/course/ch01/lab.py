"""Roofline lab of chapter 01: a Transformer layer under the roof of a GPU of your choice."""

from __future__ import annotations

from flashlib import hardware
from flashlib.course.ch01.layer_figures import roofline_lab as picture
from flashlib.course.widgets import base
from flashlib.models import transformer

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
DIMS = (16, 32, 64, 128, 256)
DTYPES = ("float32", "float16", "float8")
TOKENS = 65_536


def draw(shape="GPT-2 medium", N=1024, d=None, dtype="float16", gpu="B200", attention="fused"):
    """Draw the lab: a layer over 65,536 tokens (or one longer sequence) on a GPU.

    Args:
        shape: the name of one of `models.transformer.SHAPES`.
        N: tokens of a sequence.  d: width of a head; None for that of the shape.
        dtype: of everything; where the GPU cannot multiply in it, float16 is drawn, and says so.
        gpu: a `GPU` or the name of one.
        attention: "standard", three kernels, or "fused", one that keeps S and P on chip.
    """
    sizes = {s.name: s for s in transformer.SHAPES}
    if shape not in sizes:
        raise ValueError(f"shape: expected one of {sorted(sizes)}, got {shape!r}")
    if attention not in ("standard", "fused"):
        raise ValueError(f"attention: expected 'standard' or 'fused', got {attention!r}")
    gpu, model = hardware.get(gpu), sizes[shape]
    model = transformer.with_head_dimension(model, d or model.d)
    used = dtype if dtype in gpu.matmul_flops_per_s else "float16"
    batch = max(1, TOKENS // N)
    operators = transformer.layer(model, N, batch, used)
    if attention == "fused":
        one = transformer.fuse(operators, transformer.ATTENTION)
        place = [op.part for op in operators].index("attention")
        operators = [op for op in operators if op.part != "attention"]
        operators.insert(place, transformer.Operator("attention, fused", "attention", one.traffic))
    note = "" if used == dtype else f" (it has no {dtype})"
    title = f"{shape}, d = {model.d}, {batch} × {N:,} tokens, {used}{note}, {gpu.name}"
    return picture(operators, gpu, used, title=title)


def roofline_lab(shape="GPT-2 medium", N=1024, d=64, dtype="float16", gpu="B200", attention="fused"):
    """Return the widget: shape, N, d, dtype, GPU and attention move the operators under the roof.

    The arguments are what it shows at first; `gpu` may be a sheet of your own.
    """
    gpus, redraw = base.over_gpus(draw, gpu, "whose bandwidth and rates to take")
    return base.Lab("roofline_lab", {
        "shape": base.choice([s.name for s in transformer.SHAPES], shape, "layer", kind="toggle",
                             tooltip="whose layer to draw"),
        "attention": base.choice([("three kernels", "standard"), ("fused", "fused")], attention,
                                 "attention", kind="toggle",
                                 tooltip="whether S and P go through HBM or stay on chip"),
        "N": base.choice([(f"{n:,}", n) for n in base.including(N, LENGTHS)], N, "N, tokens"),
        "d": base.choice(base.including(d, DIMS), d, "d, width of a head",
                         tooltip="the width of all heads together stays"),
        "dtype": base.choice(DTYPES, dtype, "dtype", kind="dropdown",
                             tooltip="of every tensor and weight"),
        "gpu": gpus,
    }, redraw, note="Discs: area is the share of the layer's time. The axes stay. Bars: attention in "
                    "color, projections dark grey, feed-forward grey, norms, residuals and activation "
                    "light.")
