"""How many programs of a compiled kernel share one SM, and what stops the next one."""

from __future__ import annotations

from dataclasses import dataclass

from flashlib.lens.targets import (
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    SHARED_UNIT,
    TENSOR_MEMORY_COLUMNS,
    Arch,
)

SCHEDULERS = 4                     # an SM's quarters, each with its own part of the registers


@dataclass(frozen=True)
class Occupancy:
    """Programs resident on one SM at a time; `by_limit` is what each resource alone would allow."""

    gpu: str
    programs: int
    warps: int
    max_warps: int
    by_limit: dict[str, int]

    @property
    def fraction(self) -> float:
        """Which share of the warps that an SM can hold is there."""
        return self.warps / self.max_warps

    @property
    def limited_by(self) -> str:
        """Name the resource that stops the next program."""
        return min(self.by_limit, key=self.by_limit.get)

    def __str__(self) -> str:
        limits = ", ".join(f"{name} {count}" for name, count in self.by_limit.items())
        return (f"{self.gpu}: {self.programs} programs per SM, {self.warps} of {self.max_warps} warps"
                f" ({self.fraction:.0%}), limited by {self.limited_by} (each alone: {limits})")


def occupancy(arch: Arch, gpu: str, *, registers: int, shared_bytes: int, num_warps: int,
              tensor_memory_columns: int = 0) -> Occupancy:
    """Return the occupancy by registers, shared memory, warps and slots, with the chip's rounding.

    A warp takes registers in units of 256 from its quarter of the SM; a program takes shared memory in
    units of 128 bytes, with the KiB that the system keeps.
    """
    per_warp = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    warps = SCHEDULERS * (REGISTERS_PER_SM // SCHEDULERS // per_warp)
    shared = -(-(shared_bytes + arch.reserved_bytes) // SHARED_UNIT) * SHARED_UNIT
    fits = shared_bytes <= arch.shared_per_program_bytes
    limits = {"registers": warps // num_warps,
              "shared memory": (arch.shared_per_sm_bytes // shared if shared else arch.max_programs)
              if fits else 0,
              "warps": arch.max_warps // num_warps, "slots": arch.max_programs}
    if tensor_memory_columns:
        limits["tensor memory"] = TENSOR_MEMORY_COLUMNS // tensor_memory_columns
    programs = min(limits.values())
    return Occupancy(gpu, programs, programs * num_warps, arch.max_warps, limits)
