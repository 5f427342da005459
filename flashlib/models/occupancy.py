"""How full a GPU is: programs, waves, idle SMs, and how many thread blocks share an SM.

A program is one thread block's worth of work. The hardware hands programs out in order, each to the
first SM with room, and an SM that finds none is idle until the kernel ends. Taught in notebook 08.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from flashlib import hardware
from flashlib.arguments import check_block
from flashlib.generations import MOST_REGISTERS, SM
from flashlib.machine.thread_block import THREADS_PER_WARP
from flashlib.masks import visits, window_of

SCHEDULERS = 4                     # an SM's quarters, each with its own part of the registers
REGISTER_UNIT = 256                # registers that a warp is given at a time
SHARED_UNIT = 128                  # bytes of shared memory that a block is given at a time
TENSOR_MEMORY_COLUMNS = 512        # per SM (sm_100): 128 lanes of 4 bytes each


def programs(*, batch: int, heads: int, N: int, block: int | None = None) -> int:
    """Return B·H·⌈N/block⌉: how many thread blocks a kernel launches.

    `block` is Br where query tiles run in parallel (v2's forward pass) and Bc where key tiles do
    (its backward pass); None where a head is one program, as in v1 as published.
    """
    for name, size in (("batch", batch), ("heads", heads), ("N", N)):
        check_block(name, size)
    return batch * heads * (1 if block is None else -(-N // check_block("block", block)))


@dataclass(frozen=True)
class Waves:
    """Equal programs on a GPU that runs `slots` of them at a time."""

    programs: int
    sms: int
    per_sm: int = 1

    @property
    def slots(self) -> int:
        return self.sms * self.per_sm

    @property
    def waves(self) -> int:
        """How many programs the busiest slot runs, one after the other."""
        return -(-self.programs // self.slots)

    @property
    def last(self) -> int:
        """How many programs the last wave has."""
        return self.programs - (self.waves - 1) * self.slots

    @property
    def idle_sms(self) -> int:
        """How many SMs have nothing to do in the last wave; a wave spreads over SMs first."""
        return max(0, self.sms - self.last)

    @property
    def efficiency(self) -> float:
        """Which share of the slots' time is work: programs over waves times slots."""
        return self.programs / (self.waves * self.slots)


def waves(programs: int, gpu, *, per_sm: int = 1) -> Waves:
    """Return how `programs` equal programs fill a GPU (or a number of SMs)."""
    sms = gpu if isinstance(gpu, int) else int(hardware.get(gpu).fact("sms"))
    return Waves(check_block("programs", programs), check_block("gpu", sms),
                 check_block("per_sm", per_sm))


@dataclass(frozen=True)
class Schedule:
    """Programs of unequal length on `slots` slots: (slot, start, stop) of each, in launch order."""

    runs: tuple[tuple[int, int, int], ...]
    slots: int

    @property
    def time(self) -> int:
        """When the last program ends."""
        return max((stop for _, _, stop in self.runs), default=0)

    @property
    def work(self) -> int:
        """The sum of all programs."""
        return sum(stop - start for _, start, stop in self.runs)

    @property
    def efficiency(self) -> float:
        """Which share of the slots' time is work."""
        return self.work / (self.slots * self.time) if self.time else 1.0


def schedule(lengths: Iterable[int], slots: int) -> Schedule:
    """Hand programs of given lengths out in order, each to the slot that is free first."""
    free = [(0, slot) for slot in range(check_block("slots", slots))]
    runs = []
    for length in lengths:
        start, slot = heapq.heappop(free)
        runs.append((slot, start, start + length))
        heapq.heappush(free, (start + length, slot))
    return Schedule(tuple(runs), slots)


def tiles_per_program(N: int, Br: int, Bc: int, *, causal: bool = False) -> list[int]:
    """Return how many K/V tiles each row tile of v2 visits, first rows first."""
    return visits(window_of(causal), N, N, Br, Bc).tolist()


def causal_lengths(N: int, block: int) -> list[int]:
    """Return the tiles that each of ⌈N/block⌉ causal programs visits, square tiles, longest first.

    The longest is the last row tile of a forward pass, and the first key tile of a backward pass.
    """
    return list(range(-(-check_block("N", N) // check_block("block", block)), 0, -1))


def schedule_of(lengths: Iterable[int], copies: int, slots: int) -> Schedule:
    """Return the schedule of `copies` heads with the same programs, the first program of all first.

    FlashAttention-2 launches head by head, which is `schedule(lengths * copies, slots)`. The list
    must not depend on the head.
    """
    check_block("copies", copies)
    return schedule((length for length in lengths for _ in range(copies)), slots)


def causal_time(lengths: list[int], copies: int, slots: int, *, exact_up_to: int = 20_000) -> int:
    """Return when `copies` heads of causal programs are done, longest first, in tiles.

    Beyond `exact_up_to` programs no schedule is played through: the many short programs at the end
    fill every gap, and the time is the larger of the longest program and the mean load.
    """
    if len(lengths) * copies <= exact_up_to:
        return schedule_of(lengths, copies, slots).time
    return max(*lengths, -(-sum(lengths) * copies // slots))


@dataclass(frozen=True)
class BlockNeeds:
    """What one thread block of a v2 forward kernel asks of its SM.

    shared_bytes: the tiles of Q, K and V. accumulator_registers: 4-byte registers of a thread for
    the accumulator O and the tile S, of the 255 that it can have; indices, pointers and operands
    come on top.
    """

    shared_bytes: int
    accumulator_registers: int
    threads: int

    def fits(self, gpu) -> bool:
        """Tell whether shared memory and registers of `gpu` can hold one such block."""
        return (self.shared_bytes <= hardware.get(gpu).sm.shared_per_block_bytes
                and self.accumulator_registers < MOST_REGISTERS)

    def places(self, gpu) -> dict[str, int]:
        """Return how many such blocks an SM holds, as "shared" and as "registers" limit it.

        The smaller one counts; it is an upper bound, as only accumulators are counted as registers.
        """
        found = occupancy(hardware.get(gpu).sm, threads=self.threads,
                          registers=self.accumulator_registers, shared_bytes=self.shared_bytes)
        return {"shared": found.by_limit["shared memory"], "registers": found.by_limit["registers"]}


def block_needs(*, Br: int, Bc: int, d: int, warps: int = 4, element_bytes: int = 2) -> BlockNeeds:
    """Return what a v2 forward block needs: Q, K, V in shared memory, O and S in registers."""
    for name, size in (("Br", Br), ("Bc", Bc), ("d", d), ("warps", warps)):
        check_block(name, size)
    threads = warps * THREADS_PER_WARP
    return BlockNeeds(element_bytes * d * (Br + 2 * Bc), math.ceil(Br * (d + Bc) / threads), threads)


@dataclass(frozen=True)
class Occupancy:
    """Blocks resident on one SM at a time; `by_limit` is what each resource alone would allow."""

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
        return min(self.by_limit, key=self.by_limit.__getitem__)

    def __str__(self) -> str:
        limits = ", ".join(f"{name} {count}" for name, count in self.by_limit.items())
        return (f"{self.programs} programs per SM, {self.warps} of {self.max_warps} warps"
                f" ({self.fraction:.0%}), limited by {self.limited_by} (each alone: {limits})")


def occupancy(sm: SM, *, threads: int, registers: int, shared_bytes: int,
              tensor_memory_columns: int = 0) -> Occupancy:
    """Return how many equal blocks share one SM: by registers, shared memory, warps and slots.

    A warp takes registers in units of 256 from its quarter of the SM. A block takes shared memory in
    units of 128 bytes, with what the system keeps.
    """
    warps = -(-threads // THREADS_PER_WARP)
    per_warp = _rounded_up(max(registers, 1) * THREADS_PER_WARP, REGISTER_UNIT)
    room = SCHEDULERS * (sm.registers // SCHEDULERS // per_warp)             # for so many warps
    kept = sm.shared_bytes - sm.shared_per_block_bytes
    shared = _rounded_up(shared_bytes + kept, SHARED_UNIT)
    limits = {"registers": room // warps,
              "shared memory": sm.shared_bytes // shared if shared else sm.blocks,
              "warps": sm.warps // warps, "slots": sm.blocks}
    if shared_bytes > sm.shared_per_block_bytes:
        limits["shared memory"] = 0
    if tensor_memory_columns:
        limits["tensor memory"] = TENSOR_MEMORY_COLUMNS // tensor_memory_columns
    programs = min(limits.values())
    return Occupancy(programs, programs * warps, sm.warps, limits)


def _rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
