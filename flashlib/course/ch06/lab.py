"""Block-size lab I of chapter 06: what tiles move, what fits, and how all other choices compare."""

from __future__ import annotations

import functools

import numpy as np

from flashlib import hardware
from flashlib.course.ch06 import figures
from flashlib.course.ch06.figures import Grid
from flashlib.course.ch06.figures import block_lab as picture
from flashlib.course.widgets import base
from flashlib.models import traffic
from flashlib.models.blocks import ideal_bytes, working_set_bytes

SIZES = (8, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 65536)
DIMS = (32, 64, 128, 256)
SRAM_KIB = (16, 32, 64, 96, 128, 163, 227, 512)
MODELS = {"flash_v1": traffic.flash_v1, "flash_v2": traffic.flash_v2}


def resident_tiles(algorithm: str, *, Br: int, Bc: int, d: int, element_bytes=2, stats_bytes=4,
                   accumulator_bytes=4) -> list[tuple[str, tuple, int]]:
    """Return the tiles (name, shape, bytes) that a FlashAttention kernel holds at its peak."""
    keys = [("K", (Bc, d), Bc * d * element_bytes), ("V", (Bc, d), Bc * d * element_bytes)]
    rows = [("Q", (Br, d), Br * d * element_bytes), ("O", (Br, d), Br * d * accumulator_bytes),
            ("m", (Br,), Br * stats_bytes), ("l", (Br,), Br * stats_bytes)]
    outer, inner = (keys, rows) if algorithm == "flash_v1" else (rows, keys)
    return [*outer, *inner, ("S", (Br, Bc), Br * Bc * element_bytes)]


def draw(Br=32, Bc=32, N=4096, d=128, gpu="A100", sram_bytes=None, algorithm="flash_v1", causal=False):
    """Draw the lab: blocks for one head in 16 bits, by the closed forms of `models.traffic`.

    Args:
        Br, Bc, N, d: tile heights, sequence length, head dimension.
        gpu: a `GPU` or the name of one; its shared memory per block is the SRAM.
        sram_bytes: another capacity; None takes that of the GPU.
        algorithm: "flash_v1" or "flash_v2".
        causal: hide later keys; the two baselines stay dense.
    """
    if algorithm not in MODELS:
        raise ValueError(f"algorithm: expected one of {sorted(MODELS)}, got {algorithm!r}")
    gpu, name = hardware.get(gpu), algorithm.removeprefix("flash_")
    capacity = int(sram_bytes or gpu.sram_bytes)
    shape = {"Nq": N, "Nk": N, "d": d, "causal": causal}
    costs = {"ideal": traffic.standard_attention(**shape),
             "same blocks": traffic.standard_attention(**shape, Br=Br, Bc=Bc),
             name: MODELS[algorithm](**shape, Br=Br, Bc=Bc)}
    title = f"{name}: bytes of one head, N = {N:,}, d = {d}, Br = {Br}, Bc = {Bc}"
    rows, cols = (tuple(base.including(edge, SIZES)) for edge in (Br, Bc))
    ratio, need = _choices(algorithm, rows, cols, N, d, causal)
    return picture(costs, resident_tiles(algorithm, Br=min(Br, N), Bc=min(Bc, N), d=d), capacity,
                   Grid(rows, cols, ratio, need <= capacity, (Br, Bc)),
                   title=title + (", causal" if causal else ""),
                   what=f"{name} at N={N}, d={d}, Br={Br}, Bc={Bc} on {gpu.name}", sram=gpu.name,
                   ideal_fits=ideal_bytes(N, d) <= capacity)


@functools.lru_cache(maxsize=256)
def _choices(algorithm, rows, cols, N, d, causal):
    """Return the bytes of every choice as a ratio to the ideal, and what it needs in SRAM."""
    shape = {"Nq": N, "Nk": N, "d": d, "causal": causal}
    ideal = traffic.standard_attention(**shape).hbm_bytes
    move = MODELS[algorithm]
    pairs = [(Br, Bc) for Br in rows for Bc in cols]
    ratio = [move(**shape, Br=Br, Bc=Bc).hbm_bytes / ideal for Br, Bc in pairs]
    need = [working_set_bytes(algorithm, Br=min(Br, N), Bc=min(Bc, N), d=d) for Br, Bc in pairs]
    size = len(rows), len(cols)
    return np.reshape(ratio, size), np.reshape(need, size)


def ratio_maps(N=4096, d=128, gpu="A100", sizes=(8, 16, 32, 64, 96, 128, 256)):
    """Draw v1 and v2 against the ideal, and v1 against standard attention with the same blocks."""
    shape, pairs = {"Nq": N, "Nk": N, "d": d}, [{"Br": Br, "Bc": Bc} for Br in sizes for Bc in sizes]
    ideal = traffic.standard_attention(**shape).hbm_bytes
    v1, v2, same = ([form(**shape, **pair).hbm_bytes for pair in pairs]
                    for form in (traffic.flash_v1, traffic.flash_v2, traffic.standard_attention))
    room = hardware.get(gpu).sram_bytes
    fits = [working_set_bytes("flash_v1", **pair, d=d) <= room for pair in pairs]
    ratios = {"v1 / ideal": np.divide(v1, ideal), "v2 / ideal": np.divide(v2, ideal),
              "v1 / same blocks": np.divide(v1, same)}
    square = len(sizes), len(sizes)
    return figures.ratio_maps(sizes, sizes, {name: r.reshape(square) for name, r in ratios.items()},
                              fits=np.reshape(fits, square), notes=dict(zip(ratios, (
                                  "only Bc counts", "only Br counts", "both count"), strict=True)))


def block_lab(Br=32, Bc=32, N=4096, d=128, gpu="A100", sram_bytes=None, algorithm="flash_v1",
              causal=False):
    """Return the widget: block sizes, shape, SRAM and GPU, with bytes, tiles and all other choices.

    The arguments are what it shows at first; see `draw`. `gpu` may be a sheet
    of your own, and any size that is not on a slider is put there.
    """
    rooms = base.including(sram_bytes, [kib * 1024 for kib in SRAM_KIB])
    sram = [("that of the GPU", None), *((f"{size / 1024:g} KiB", size) for size in rooms)]
    gpus, redraw = base.over_gpus(draw, gpu, "whose shared memory to take")
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
