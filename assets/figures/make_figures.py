"""Draw the pictures of the README from the same code and data as the notebooks.

    python assets/figures/make_figures.py        writes the PNG files beside this script
"""

from pathlib import Path

import numpy as np

import flashlib as fl
from flashlib import plots
from flashlib.course.ch00 import figures
from flashlib.models import traffic

HERE = Path(__file__).resolve().parent


def tiles():
    """FlashAttention v1 on one head of the sentence: its tile visits and its traffic."""
    machine = fl.Machine()
    Q, K, V = fl.data.sentence().head(0)
    fl.flash_v1(Q, K, V, Br=14, Bc=14, machine=machine)
    return plots.key_frames(machine.trace, len(Q), len(K), count=4)


def surprise():
    """Attention forward and backward, as in chapter 00: two counted quantities, two recorded ones."""
    N, d, impls = 4096, 64, ("standard", "flash")
    shape, step = {"Nq": N, "Nk": N, "d": d}, {"mode": "forward+backward", "N_q": N}
    plain = traffic.standard_attention(**shape) + traffic.standard_backward(**shape)
    flash = traffic.flash_v2(**shape, Br=128, Bc=64) + traffic.flash_backward(**shape, Br=128, Bc=128)
    more = (3 * N * N + 2 * N * d) * 2                # two more kernels in PyTorch's backward
    timed = fl.data.measurements("attention_demo_h200").where(**step)
    seconds = [timed.where(impl=impl).column("seconds")[0] for impl in impls]
    counters = fl.data.measurements("attention_demo_counters_h200").where(**step)
    dram = [sum(counters.where(impl=impl).column(name).sum() for name in
                ("dram_read_bytes", "dram_write_bytes")) for impl in impls]
    labels = ("standard", "FlashAttention-2")
    return figures.surprise({
        title: (origin, unit, dict(zip(labels, values, strict=True)))
        for title, origin, unit, values in (
            ("arithmetic", "counted", "FLOP", np.multiply(64, (plain.flops, flash.flops))),
            ("bytes at the SMs", "counted", "B",
             np.multiply(64, (plain.hbm_bytes + more, flash.hbm_bytes))),
            ("bytes at DRAM", "recorded, H200", "B", dram),
            ("time", "recorded, H200", "s", seconds))})


if __name__ == "__main__":
    for draw in (tiles, surprise):
        (HERE / f"{draw.__name__}.png").write_bytes(draw().png(dpi=150))
        print(f"{draw.__name__}.png")
