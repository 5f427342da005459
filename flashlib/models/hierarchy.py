"""The memories of a GPU, from registers to HBM: room and rate of each, with where the number is from.

What a spec sheet states is taken from `hardware`; what follows from it is derived here, and says so.
A rate that the vendor does not state stays None. Taught in notebook 01.
"""

from dataclasses import dataclass

from flashlib import hardware
from flashlib.hardware import GPU, Fact

SRAM_BYTES_PER_CLOCK = {"T4": 64}           # of an SM; 128 where nothing else stands
FMA_BYTES, FMA_FLOPS = 3 * 4, 2

_BANKS = ("derived: 32 banks × 4 B per clock and SM (NVIDIA CUDA Programming Guide, Shared Memory), "
          "half on a T4 (16 load/store units an SM; Jia et al. 2019, arXiv:1903.07486), × SMs × clock")
_OPERANDS = ("derived: what the float32 rate reads, three operands of 4 B for every 2 FLOPs; a lower "
             "bound on what the register files deliver")
_A100_WHITEPAPER = ("NVIDIA A100 Tensor Core GPU Architecture whitepaper, L2 cache read bandwidth in "
                    "bytes per clock, × clock")
_L2_BYTES_PER_CLOCK = {"V100": 2048, "A100": 5120}


@dataclass(frozen=True)
class Level:
    """One kind of memory: all of it on the GPU (`room`), and what it delivers (`rate`, or None)."""

    name: str
    room: Fact
    rate: Fact | None


def levels(gpu: GPU | str) -> list[Level]:
    """Return registers, SRAM, L2 and HBM of a GPU, each summed over the whole chip.

    Raises:
        ValueError: the sheet of this GPU lacks a size, the clock, or a rate that one follows from.
    """
    gpu = hardware.get(gpu)
    sms, clock = int(gpu.fact("sms")), float(gpu.fact("clock_hz"))
    registers = FMA_BYTES / FMA_FLOPS * float(gpu.fact("vector_flops_per_s"))
    l2 = _L2_BYTES_PER_CLOCK.get(gpu.name)
    return [
        Level("registers", _all(gpu.fact("registers_per_sm_bytes"), sms),
              Fact(registers, "B/s", _OPERANDS)),
        Level("SRAM", _all(gpu.fact("shared_memory_per_sm_bytes"), sms),
              Fact(SRAM_BYTES_PER_CLOCK.get(gpu.name, 128) * sms * clock, "B/s", _BANKS)),
        Level("L2", gpu.fact("l2_bytes"), Fact(l2 * clock, "B/s", _A100_WHITEPAPER) if l2 else None),
        Level("HBM", gpu.fact("hbm_bytes"), gpu.fact("hbm_bytes_per_s")),
    ]


def _all(fact: Fact, sms: int) -> Fact:
    return Fact(fact.value * sms, fact.unit, f"{fact.source}; × {sms} SMs", fact.measured, fact.binary)
