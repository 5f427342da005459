"""A discrete-event simulator of one streaming multiprocessor: who works when, and who waits for whom.

Roles (a warp, or a warpgroup of 128 threads) run programs: Python generators that yield requests.
`issue` puts an operation on a unit and goes on; `finish` waits for it; `run` does both; `wait`,
`arrive` and `sync` talk to barriers. Units work as fast as their operations were told: the simulator
knows cycles and nothing else. It is deterministic, and it watches the data: an operation that would
read a tile that is not there, or overwrite one that is in use, is a `Hazard`.

The programs of FlashAttention are in `programs`. Taught in notebook 12.
"""

from __future__ import annotations

import heapq
import inspect
import itertools

from flashlib.models.sm.parts import (
    FIFO,
    SHARED,
    Deadlock,
    DoesNotFit,
    Event,
    Hazard,
    Op,
    Program,
    Request,
    Role,
    Schedule,
    ScheduleError,
    Wait,
    arrive,
    check_fit,
    finish,
    issue,
    run,
    sync,
    wait,
)

__all__ = ["FIFO", "SHARED", "Deadlock", "DoesNotFit", "Event", "Hazard", "Op", "Program", "Request",
           "Role", "Schedule", "ScheduleError", "Wait", "arrive", "check_fit", "finish", "issue", "run",
           "simulate", "sync", "wait"]

_MOST_REQUESTS = 100_000           # without time passing: then a program is stuck in a loop


def simulate(program: Program, *, check: bool = True) -> Schedule:
    """Run a program to its end and return what happened.

    Args:
        check: refuse what does not fit into registers and memories.
    Raises:
        DoesNotFit: see `check_fit`.  Deadlock, Hazard: the program is wrong; each names roles,
        operations, barriers.  ScheduleError: a program loops without time passing.
    """
    if check:
        check_fit(program)
    return _Run(program).to_the_end()


class _Barrier:
    def __init__(self, name: str, count: int):
        self.name, self.count = name, count
        self.arrived = self.completed = 0
        self.waiting: list[tuple[_Worker, int]] = []       # each with the phases it waits for

    def arrive(self) -> None:
        self.arrived += 1
        if self.arrived == self.count:
            self.arrived, self.completed = 0, self.completed + 1
            for worker, phases in self.waiting:
                if self.completed >= phases:
                    worker.blocked = None
            self.waiting = [(w, phases) for w, phases in self.waiting if self.completed < phases]

    @property
    def reason(self) -> str:
        return self.name.split("[")[0]


class _Flight:
    """An operation between its issue and its completion."""

    def __init__(self, op: Op, worker: _Worker, now: float):
        self.op, self.worker = op, worker
        self.left = {unit: float(cycles) for unit, cycles in op.work.items()}
        self.primary = next(iter(op.work))
        self.event = Event(worker.role.name, op, now)
        self.complete = False

    @property
    def started(self) -> bool:
        return self.event.start >= 0

    def __str__(self) -> str:
        return f"{self.op} of {self.worker.role.name}"


class _Worker:
    """A role at run time: its generator, and what it stands still for."""

    def __init__(self, role: Role):
        self.role, self.steps = role, role.program()
        self.blocked: _Flight | _Barrier | None = None
        self.since, self.stopped_by, self.done = 0.0, "", False
        self.parity = 0


class _Run:
    def __init__(self, program: Program):
        self.program, self.now = program, 0.0
        self.barriers = {name: _Barrier(name, count) for name, count in program.barriers.items()}
        self.workers = [_Worker(role) for role in program.roles]
        self.flights: list[_Flight] = []                   # in the order of issue, work left
        self.by_op: dict[Op, _Flight] = {}
        self.landing: list[tuple[float, int, _Flight]] = []
        self.number = itertools.count()
        self.holds: dict[str, str] = {}                    # place: the tile that lies there
        self.writer: dict[str, _Flight] = {}
        self.readers: dict[str, list[_Flight]] = {}
        self.events: list[Event] = []
        self.stops: list[Wait] = []

    def to_the_end(self) -> Schedule:
        while True:
            self._let_roles_run()
            active = self._active()
            if not active and not self.landing:
                break
            self._advance(active)
        stuck = [worker for worker in self.workers if not worker.done]
        if stuck:
            raise Deadlock("; ".join(map(self._why, stuck)))
        for worker in self.workers:
            if self.now > worker.since:
                self.stops.append(Wait(worker.role.name, "done", worker.since, self.now))
        self.events.sort(key=lambda e: e.start)
        return Schedule(self.program, tuple(self.events), tuple(self.stops), self.now)

    @staticmethod
    def _why(worker) -> str:
        what, name = worker.blocked, worker.role.name
        if isinstance(what, _Barrier):
            return (f"{name} waits for ever at barrier {what.name!r} ({what.arrived} of {what.count}"
                    f" arrivals, {what.completed} phases complete, waits for parity {worker.parity})")
        return f"{name} waits for ever for {what}"

    def _let_roles_run(self) -> None:
        requests = 0
        moved = True
        while moved:
            moved = False
            for worker in self.workers:
                while not worker.done and worker.blocked is None:
                    moved = True
                    requests += 1
                    if requests > _MOST_REQUESTS:
                        raise ScheduleError(f"{worker.role.name} makes requests for ever, and no time"
                                            " passes")
                    self._one_step(worker)

    def _one_step(self, worker) -> None:
        if self.now > worker.since and worker.stopped_by:
            self.stops.append(Wait(worker.role.name, worker.stopped_by, worker.since, self.now))
        worker.since, worker.stopped_by = self.now, ""
        try:
            request = next(worker.steps)
        except StopIteration:
            worker.done = True
            return
        if not isinstance(request, Request):
            got = (f"the operation {request}: yield run(…), issue(…) or finish(…) of it"
                   if isinstance(request, Op) else "a generator: `yield from` it"
                   if inspect.isgenerator(request) else repr(request))
            raise TypeError(f"{worker.role.name}: expected its program to yield a request such as"
                            f" run(op) or wait(barrier, parity), got {got}")
        if request.kind in ("issue", "finish", "run"):
            self._operate(worker, request)
        else:
            self._meet(worker, request)

    def _operate(self, worker, request) -> None:
        op = request.target
        if request.kind != "finish":
            if op in self.by_op:
                raise ScheduleError(f"{worker.role.name} issues {op} twice: make a new operation")
            unknown = set(op.work) - set(self.program.units)
            if unknown or not op.work:
                raise ValueError(f"work: expected units out of {sorted(self.program.units)}, got"
                                 f" {sorted(op.work)} for {op}")
            flight = self.by_op[op] = _Flight(op, worker, self.now)
            self.flights.append(flight)
        if request.kind == "issue":
            return
        if op not in self.by_op:
            raise ScheduleError(f"{worker.role.name} waits for {op}, which nobody has issued")
        if not self.by_op[op].complete:
            worker.blocked, worker.stopped_by = self.by_op[op], op.what

    def _meet(self, worker, request) -> None:
        if request.target not in self.barriers:
            raise ValueError(f"barrier: expected one of {sorted(self.barriers)}, got"
                             f" {request.target!r}")
        barrier = self.barriers[request.target]
        if request.kind == "wait":
            if barrier.completed % 2 == request.parity:
                self._stop(worker, barrier, barrier.completed + 1, request.parity)
            return
        phase = barrier.completed
        barrier.arrive()
        if request.kind == "sync" and barrier.completed == phase:
            self._stop(worker, barrier, phase + 1, phase % 2)

    @staticmethod
    def _stop(worker, barrier, phases, parity) -> None:
        worker.blocked, worker.stopped_by, worker.parity = barrier, barrier.reason, parity
        barrier.waiting.append((worker, phases))

    def _active(self) -> dict[str, list[_Flight]]:
        """Return who is served on every unit, and start those that are served for the first time."""
        active: dict[str, list[_Flight]] = {}
        for unit, policy in self.program.units.items():
            heads: dict[str, _Flight] = {}                 # a role's operations keep their order
            for flight in self.flights:
                if flight.primary == unit:                 # held until all its work is done
                    heads.setdefault("" if policy == FIFO else flight.worker.role.name, flight)
            for flight in heads.values():
                if not flight.started:
                    self._start(flight)
            active[unit] = [flight for flight in heads.values() if unit in flight.left]
        for flight in self.flights:
            if flight.started:
                for unit in flight.left:
                    if unit != flight.primary:
                        active[unit].append(flight)
        return {unit: served for unit, served in active.items() if served}

    def _start(self, flight) -> None:
        flight.event.start = self.now
        for place, tile in flight.op.reads.items():
            other = self.writer.get(place)
            if other is not None:
                raise Hazard(f"{flight} reads {place} while {other} still writes it")
            held = self.holds.get(place)
            if held != tile:
                raise Hazard(f"{flight} expects {tile} in {place}, which holds {held or 'nothing'}")
        for place in flight.op.writes:
            users = [f for f in [*self.readers.get(place, []), self.writer.get(place)] if f is not None]
            if users:
                raise Hazard(f"{flight} overwrites {place} while {users[0]} still uses it")
        for place in flight.op.reads:
            self.readers.setdefault(place, []).append(flight)
        for place in flight.op.writes:
            self.writer[place] = flight

    def _advance(self, active) -> None:
        """Let time pass until the next operation has done its work on a unit, or a result lands."""
        step = min((f.left[unit] * len(served) for unit, served in active.items() for f in served),
                   default=float("inf"))
        if self.landing:
            step = min(step, self.landing[0][0] - self.now)
        self.now += step
        for unit, served in active.items():
            for flight in served:
                flight.left[unit] -= step / len(served)
        for flight in list(self.flights):
            if flight.started:
                flight.left = {unit: left for unit, left in flight.left.items()
                               if left > 1e-9 * (1 + flight.op.work[unit])}
                if not flight.left:
                    flight.event.end = self.now
                    self.flights.remove(flight)
                    for name in flight.op.passes:
                        self.barriers[name].arrive()
                    heapq.heappush(self.landing, (self.now + flight.op.latency, next(self.number),
                                                  flight))
        while self.landing and self.landing[0][0] <= self.now + 1e-9:
            self._land(heapq.heappop(self.landing)[2])

    def _land(self, flight) -> None:
        flight.complete, flight.event.done = True, self.now
        self.events.append(flight.event)
        for place in flight.op.reads:
            self.readers[place].remove(flight)
        for place, tile in flight.op.writes.items():
            del self.writer[place]
            self.holds[place] = tile
        for worker in self.workers:
            if worker.blocked is flight:
                worker.blocked = None
        for name in flight.op.arrives:
            self.barriers[name].arrive()
