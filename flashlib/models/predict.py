"""Predict how long a v2 forward kernel takes in one configuration, from sheets and counts alone.

Nothing is fitted to measurements. The model grows in `LEVELS`, so that one sees which idea is worth
how much; each level keeps the ones before it. Taught in notebook 11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flashlib import hardware
from flashlib.arguments import check_block, check_choice
from flashlib.generations import MOST_REGISTERS
from flashlib.machine.thread_block import THREADS_PER_WARP
from flashlib.models import traffic
from flashlib.models.occupancy import Waves, occupancy
from flashlib.models.occupancy import waves as waves_of

LEVELS = ("bytes", "arithmetic", "L2", "occupancy", "spills", "shapes")

# L2 → SMs: the A100's whitepaper gives 5,120 B a clock; no later sheet says, so it stands for all.
L2_BYTES_PER_CLOCK = 5120
L1_BYTES_PER_CLOCK = 128           # one SM, spilled registers go through it
# Registers of a thread beside its tiles: addresses, counters, m and l. An estimate.
OTHER_REGISTERS = 40
# mma.sync on Hopper in place of wgmma, as measured in arXiv:2402.13499.
MMA_SYNC_SHARE = 0.63


@dataclass(frozen=True)
class Config:
    """Tile heights, warps of a program, and stages of its load pipeline."""

    Br: int
    Bc: int
    warps: int = 4
    stages: int = 2

    def __post_init__(self):
        for name in ("Br", "Bc", "warps", "stages"):
            check_block(name, getattr(self, name))

    @classmethod
    def of(cls, row) -> Config:
        """Return the configuration of a row of a recorded sweep, as `blocks_sweep` writes it."""
        return cls(row["BLOCK_M"], row["BLOCK_N"], row["num_warps"], row["num_stages"])

    @property
    def threads(self) -> int:
        return self.warps * THREADS_PER_WARP

    def __str__(self) -> str:
        counts = ((self.warps, "warp"), (self.stages, "stage"))
        return f"{self.Br}×{self.Bc}, " + ", ".join(f"{n} {name}{'s' * (n > 1)}" for n, name in counts)


@dataclass(frozen=True)
class Prediction:
    """What one configuration needs of an SM, how programs fill the GPU, and the predicted time.

    registers is what a thread wants and may exceed the 255 it can have; per_sm is how many programs
    an SM holds at a time, 0 if not even one fits: then `time_s` is infinite.
    """

    shared_bytes: int
    registers: int
    per_sm: int
    limit: str
    waves: Waves | None
    seconds: dict[str, float]
    time_s: float

    @property
    def spilled_words(self) -> int:
        """Registers of a thread that have no room, in 4-byte words."""
        return max(0, self.registers - MOST_REGISTERS)

    @property
    def bound(self) -> str:
        """The longest part, or 'does not fit'."""
        return max(self.seconds, key=self.seconds.__getitem__) if self.per_sm else "does not fit"


def shared_bytes(config: Config, d: int, element_bytes: int = 2) -> int:
    """Return the shared memory of a program: a tile of Q, and `stages` tiles of K and of V."""
    return element_bytes * d * (config.Br + 2 * config.stages * config.Bc)


def registers(config: Config, d: int) -> int:
    """Return the registers that a thread wants: O and S in float32, P in 16 bits, and the rest."""
    tiles = config.Br * (d + config.Bc + config.Bc / 2) / config.threads
    return 8 * math.ceil((tiles + OTHER_REGISTERS) / 8)


def resident(gpu, config: Config, d: int) -> tuple[int, str]:
    """Return how many programs one SM holds at a time, and what limits it (of equals, the first)."""
    found = occupancy(hardware.get(gpu).sm, threads=config.threads,
                      registers=min(registers(config, d), MOST_REGISTERS),
                      shared_bytes=shared_bytes(config, d))
    limit = min(("shared memory", "registers", "warps", "slots"), key=lambda name: found.by_limit[name])
    return found.programs, limit


def matmul_share(gpu, config: Config, d: int) -> float:
    """Return which share of the tensor cores' rate a tile's shape allows.

    On Hopper a warpgroup (4 warps) multiplies 64 rows at a time: fewer rows fall back to the older
    `mma.sync`. Instructions narrower than 64 columns do not keep the cores busy; the columns of S
    are the keys that one warpgroup has, those of O are the head dimension.
    """
    if hardware.get(gpu).name not in ("H100", "H200"):
        return 1.0
    if config.Br < 64:
        return MMA_SYNC_SHARE
    side_by_side = max(1, config.warps // 4 // (config.Br // 64))
    return 2 / (max(1.0, 64 * side_by_side / config.Bc) + max(1.0, 64 * side_by_side / d))


def predict(gpu, config: Config, *, batch: int, heads: int, N: int, d: int,
            dtype: str = "bfloat16", level: str = LEVELS[-1]) -> Prediction:
    """Return the predicted time of a v2 forward pass without a mask.

    Levels, each with all before it:
        bytes: the paper machine's traffic over the memory bandwidth.
        arithmetic: at least as long as matmul, exponentials or vector work take; all overlap.
        L2: K and V of the heads at work come from L2, memory moves every tensor once.
        occupancy: only different programs of an SM overlap; whole waves of programs.
        spills: registers beyond 255 go through L1 and back for every tile.
        shapes: tiles too small for the tensor cores slow them down.
    """
    check_choice("level", level, LEVELS)
    gpu, depth = hardware.get(gpu), LEVELS.index(level)
    check_choice("dtype", dtype, tuple(gpu.matmul_flops_per_s))
    for name, size in (("batch", batch), ("heads", heads), ("N", N), ("d", d)):
        check_block(name, size)
    per_sm, limit = resident(gpu, config, d)
    shared, wanted = shared_bytes(config, d), registers(config, d)
    if not per_sm:
        return Prediction(shared, wanted, 0, limit, None, {}, math.inf)
    cost = traffic.flash_v2(Nq=N, Nk=N, d=d, Br=config.Br, Bc=config.Bc)
    copies, sms, clock = batch * heads, int(gpu.fact("sms")), float(gpu.fact("clock_hz"))
    hbm_rate = float(gpu.fact("hbm_bytes_per_s"))
    Tr, Tc = -(-N // config.Br), -(-N // config.Bc)
    waves = waves_of(copies * Tr, gpu, per_sm=per_sm)

    moved = copies * cost.hbm_bytes
    seconds = {"memory": moved / hbm_rate}
    if depth >= LEVELS.index("L2"):
        least = copies * (8 * N * d + 4 * N)
        in_flight = math.ceil(waves.slots / Tr) * 4 * N * d
        seconds["memory"] = (least if in_flight <= int(gpu.fact("l2_bytes")) else moved) / hbm_rate
        seconds["L2"] = moved / (L2_BYTES_PER_CLOCK * clock)
    if depth >= LEVELS.index("arithmetic"):
        share = matmul_share(gpu, config, d) if level == "shapes" else 1.0
        seconds["matmul"] = copies * cost.matmul_flops / float(gpu.matmul_flops_per_s[dtype]) / share
        seconds["softmax"] = copies * (cost.exps / float(gpu.fact("exps_per_s"))
                                       + cost.vector_flops / float(gpu.fact("vector_flops_per_s")))
    if depth >= LEVELS.index("spills"):
        words = max(0, wanted - MOST_REGISTERS)
        spilled_bytes = copies * Tr * Tc * 2 * 4 * words * config.threads
        seconds["softmax"] += spilled_bytes / (L1_BYTES_PER_CLOCK * sms * clock)
    if depth < LEVELS.index("occupancy"):
        return Prediction(shared, wanted, per_sm, limit, waves, seconds, max(seconds.values()))
    on_chip = _on_chip(waves, *(seconds[part] / waves.programs for part in ("matmul", "softmax")))
    time_s = max(seconds["memory"], seconds["L2"], on_chip)
    return Prediction(shared, wanted, per_sm, limit, waves, seconds, time_s)


def _on_chip(waves: Waves, matmul_s: float, softmax_s: float) -> float:
    """Return the time of all waves; the two times are one program's, if it had the whole GPU.

    One program does matmul and softmax in turn; k programs of one SM overlap with each other, and
    the busier of the two units sets the pace, unless a single program's chain is longer.
    """
    matmul_s, softmax_s = matmul_s * waves.sms, softmax_s * waves.sms

    def wave(k):
        return max(k * matmul_s, k * softmax_s, matmul_s + softmax_s)

    return (waves.waves - 1) * wave(waves.per_sm) + wave(math.ceil(waves.last / waves.sms))


def predict_rows(gpu, rows, *, level: str = LEVELS[-1]) -> np.ndarray:
    """Return the predicted seconds of the rows of a recorded sweep; infinite if it should not fit."""
    return np.array([predict(gpu, Config.of(row), batch=row["B"], heads=row["H"], N=row["N_q"],
                             d=row["d"], level=level).time_s for row in rows])


def best_by_tile(rows, seconds, Br_values, Bc_values) -> np.ndarray:
    """Return the shortest of `seconds` for every pair of tile heights, over warps and stages.

    A pair that no row has is NaN.
    """
    best = np.full((len(Br_values), len(Bc_values)), np.nan)
    for row, s in zip(rows, seconds, strict=True):
        place = Br_values.index(row["BLOCK_M"]), Bc_values.index(row["BLOCK_N"])
        best[place] = np.fmin(best[place], s)
    return best
