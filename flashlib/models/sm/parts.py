"""What a simulated SM is made of: operations, requests, roles, programs, and the schedule that results.

`simulator` runs them; this module defines them. Taught in notebook 12.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flashlib.arguments import check_number
from flashlib.generations import GENERATIONS

FIFO, SHARED = "fifo", "shared"


class ScheduleError(RuntimeError):
    """A program that the simulated chip cannot run to its end."""


class Deadlock(ScheduleError):
    """A role waits for ever; the message names each such role and its barrier."""


class Hazard(ScheduleError):
    """An operation reads what is not there yet, or overwrites what is still in use."""


class DoesNotFit(ValueError):
    """Tiles that the registers, the shared memory or the tensor memory of an SM cannot hold."""


@dataclass(frozen=True, eq=False)
class Op:
    """One asynchronous operation: cycles on its unit, and on others that it occupies meanwhile.

    Args:
        what: what it does, as in "QK" or "exp".  tile: the number of its key tile, or None.
        work: {unit: cycles}. The first unit admits it; on all of them it has to be done.
        latency: cycles from the end of the work to the arrival of the result.
        reads, writes: {place: tile that lies there}, such as {"K slot 1": "K 3"}.
        arrives: barriers that its completion arrives at.  passes: those that the end of its work
            arrives at, before the latency: the unit is free for whoever is next.
    """

    what: str
    tile: int | None
    work: Mapping[str, float]
    latency: float = 0.0
    reads: Mapping[str, str] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)
    arrives: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()

    def __post_init__(self):
        check_number(f"latency of {self.what}", self.latency, least=0)
        for barriers in (self.arrives, self.passes):
            if isinstance(barriers, str):
                raise ValueError(f"barriers of {self.what}: expected a tuple, got {barriers!r}: with"
                                 " one in it, a tuple ends in a comma")
        for unit, cycles in self.work.items():
            check_number(f"work of {self.what} on {unit}", cycles, least=0)

    def __str__(self) -> str:
        return self.what if self.tile is None else f"{self.what} {self.tile}"


@dataclass(frozen=True, eq=False)
class Request:
    """What a program yields; made by `issue`, `finish`, `run`, `wait`, `arrive` and `sync`."""

    kind: str
    target: Op | str
    parity: int = 0


def issue(op: Op) -> Request:
    """Start an operation and go on at once."""
    return Request("issue", op)


def finish(op: Op) -> Request:
    """Wait until an operation that was issued is complete."""
    return Request("finish", op)


def run(op: Op) -> Request:
    """Start an operation and wait until it is complete."""
    return Request("run", op)


def wait(barrier: str, parity: int) -> Request:
    """Wait for the phase of this parity, 0 or 1, to be complete, as `mbarrier.try_wait.parity` does.

    A barrier begins in its phase 0. So waiting for parity 1 passes at once on a fresh barrier: the
    phase before the first counts as complete.
    """
    return Request("wait", barrier, parity)


def arrive(barrier: str) -> Request:
    """Count one arrival; the last one expected completes the barrier's phase."""
    return Request("arrive", barrier)


def sync(barrier: str) -> Request:
    """Arrive, and wait until all others have: `bar.sync` of a named barrier."""
    return Request("sync", barrier)


@dataclass(frozen=True)
class Role:
    """One warp or warpgroup: its program, its threads and the registers that each may have.

    needs: {what: registers of a thread}, such as {"O": 64}; their sum must not exceed `registers`.
    """

    name: str
    program: Callable[[], Iterator[Request]]
    threads: int = 128
    registers: int = 128
    needs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """All that runs on one SM at a time: roles, barriers, units, and the memory that they ask for.

    Args:
        barriers: {name: arrivals that complete a phase}.
        units: {name: policy}; "fifo" serves whole operations in the order of their issue, "shared"
            gives every role that has one an equal part of the unit.
        asks: {memory: (asked, available, unit)}, such as {"shared memory": (163840, 232448, "B")}.
        tiles: key tiles that each consumer visits.
    """

    name: str
    roles: tuple[Role, ...]
    barriers: Mapping[str, int]
    units: Mapping[str, str]
    tiles: int
    asks: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)
    registers_per_sm: int = GENERATIONS["sm_90"].registers


@dataclass(eq=False)
class Event:
    """One operation as it happened. Times in cycles; `done` is `end` plus the latency."""

    role: str
    op: Op
    issued: float
    start: float = -1.0
    end: float = -1.0
    done: float = -1.0

    @property
    def unit(self) -> str:
        return next(iter(self.op.work))

    @property
    def what(self) -> str:
        return self.op.what

    @property
    def tile(self) -> int | None:
        return self.op.tile


@dataclass(frozen=True)
class Wait:
    """A stretch of time in which a role stood still: until an operation or a barrier let it go."""

    role: str
    reason: str
    start: float
    end: float


@dataclass(frozen=True)
class Schedule:
    """What happened: events in the order of their start, waits, and what follows from them."""

    program: Program
    events: tuple[Event, ...]
    stops: tuple[Wait, ...]
    cycles: float

    @property
    def busy(self) -> dict[str, float]:
        """Cycles of work that every unit has done."""
        total = dict.fromkeys(self.program.units, 0.0)
        for event in self.events:
            for unit, cycles in event.op.work.items():
                total[unit] += cycles
        return total

    @property
    def utilization(self) -> dict[str, float]:
        """Share of the time in which each unit was at work."""
        return {unit: work / self.cycles if self.cycles else 0.0 for unit, work in self.busy.items()}

    @property
    def cycles_per_tile(self) -> float:
        """Cycles from one key tile to the next in steady state, between the middle half's ends.

        A tile is complete when the last P·V of it is. With fewer than four tiles: between the
        first and the last; with one, all of the time.
        """
        ends: dict[int, float] = {}
        for event in self.events:
            if event.what == "PV" and event.tile is not None:
                ends[event.tile] = max(ends.get(event.tile, 0.0), event.done)
        order = [ends[tile] for tile in sorted(ends)]
        if len(order) < 2:
            return self.cycles
        first, last = (len(order) // 4, 3 * len(order) // 4) if len(order) >= 4 else (0, len(order) - 1)
        return (order[last] - order[first]) / (last - first)

    def of(self, *, role: str | None = None, what: str | None = None, tile: int | None = None):
        """Return the events of a role, a kind or a tile."""
        return [e for e in self.events if role in (None, e.role) and what in (None, e.what)
                and (tile is None or e.tile == tile)]


def check_fit(program: Program) -> None:
    """Refuse a program whose tiles the chip cannot hold; the message gives the sum.

    Raises:
        DoesNotFit: registers of a thread, registers of the SM, or a memory in `program.asks`.
    """
    for role in program.roles:
        need = sum(role.needs.values())
        if need > role.registers:
            parts = ", ".join(f"{what} {count}" for what, count in role.needs.items())
            raise DoesNotFit(f"registers: {role.name} needs {need} a thread ({parts}) and has"
                             f" {role.registers}")
    total = sum(role.threads * role.registers for role in program.roles)
    if total > program.registers_per_sm:
        parts = " + ".join(f"{role.threads}·{role.registers}" for role in program.roles)
        raise DoesNotFit(f"registers: the roles of {program.name} ask for {parts} = {total:,}, an SM"
                         f" has {program.registers_per_sm:,}")
    for memory, (asked, room, unit) in program.asks.items():
        if asked > room:
            raise DoesNotFit(f"{memory}: {program.name} asks for {asked:,} {unit}, an SM has"
                             f" {room:,} {unit}")
