"""Who runs when, and what has happened before what: tasks, asynchronous agents, clocks, hazards.

A program is one thread block. Its tasks are the partitions of `warp_specialize`, and one runs at a
time, until it waits. Tasks, copies of the copy engine and asynchronous products are agents; each has a
vector clock (Lamport 1978, Mattern 1989): what it knows to have happened. Waiting for a barrier joins
the clocks of all that arrived at it. Two accesses of one slot of shared memory, one of them a write,
are a hazard unless the later one's clock has the earlier: in whatever order they ran this time.
"""

import linecache
import os
import random
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HOME = str(Path(__file__).parent)
ORDERS = ("late", "early")
_places: dict[str, tuple[str, int]] = {}                    # where "file:line" is


class Hazard(RuntimeError):
    """A kernel that would be wrong, or never end, on some GPU at some time; the message says where.

    `events` are those of its program until then, with the copies that are "under way".
    """

    events: list | None = None

    @property
    def source(self) -> str:
        """The kernel's statement at the first place that the message names; "" if it names none."""
        text = str(self)
        named = [place for place in _places if f"{place}: " in text]
        return linecache.getline(*_places[min(named, key=text.find)]).strip() if named else ""


class _Stopped(BaseException):
    """Ends the thread of a task when another has failed."""


def line(*beside: str) -> str:
    """Return "file:line" of the kernel's statement being executed; it is in no file of `beside`."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith((HOME, *beside)):
        frame = frame.f_back
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    _places[place] = frame.f_code.co_filename, frame.f_lineno
    return place


def assigned(taken: dict) -> str:
    """Return the name that the kernel gives to what it allocates, or its line.

    That is the statement, perhaps of a caller, that assigns. Of `a, b = f(), f()` the first is a;
    `taken` counts.
    """
    frame, first = sys._getframe(1), None
    while frame is not None:
        if not frame.f_code.co_filename.startswith(HOME):
            first = first or f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            names = [name.strip() for name in text.partition("=")[0].split(",")]
            if "=" in text and all(name.isidentifier() for name in names):
                at = frame.f_code.co_filename, frame.f_lineno
                taken[at] = taken.get(at, -1) + 1
                return names[taken[at] % len(names)]
        frame = frame.f_back
    return first or "shared memory"


def join(clock: dict, other: dict) -> None:
    """Let a clock know all that another knows."""
    for agent, tick in other.items():
        if clock.get(agent, 0) < tick:
            clock[agent] = tick


@dataclass(frozen=True)
class Event:
    """What a task or an agent did: from one step of the program to another, both counted from 0."""

    task: str
    kind: str
    what: str
    where: str
    start: int
    stop: int


class Agent:
    """Somebody who reads and writes: a task, a copy under way, or an asynchronous product."""

    def __init__(self, program, name: str, clock: dict):
        self.program, self.name, self.where = program, name, line()
        self.key = program.agents = program.agents + 1
        self.clock = {**clock, self.key: 1}

    def tick(self) -> tuple:
        """Return the moment of an access, and who made it where."""
        return self.key, self.clock[self.key], self.name, line()


class Task(Agent):
    """A partition of `warp_specialize`, or the program as a whole before and after it."""

    def __init__(self, program, name, clock, warps, call: Any = None):
        super().__init__(program, name, clock)
        self.warps, self.call = warps, call
        self.products: list = []                            # asynchronous, not waited for
        self.stores: list = []                              # likewise
        self.unfenced: list = []                            # slots written, for the copy engine unseen
        self.ready: Any = None
        self.reason = ""
        self.error: BaseException | None = None
        self.done, self.go = False, threading.Semaphore(0)
        self.since = program.step
        self.thread = threading.Thread(target=self._main, daemon=True) if call else None

    def _main(self):
        self.go.acquire()
        try:
            if not self.program.stopped:
                with np.errstate(all="ignore"):
                    self.call()
                self.require_nothing_under_way()
        except _Stopped:
            pass
        except BaseException as error:                      # raised again where the tasks were started
            self.error = error
        self.done = True
        self.program.baton.release()

    def require_nothing_under_way(self):
        """Raise Hazard if the task ends before what it started."""
        for kind, left, wait in (("store", self.stores, "tma.store_wait(0)"),
                                 ("product", self.products, "warpgroup_mma_wait(0, …)")):
            if left:
                raise Hazard(f"{left[0].where}: {self.name} ends before its {kind} has been waited for:"
                             f" {wait} is missing")

    def advance(self) -> None:
        """Begin a new moment, so that what comes is not taken for what was."""
        self.clock[self.key] += 1


@dataclass
class Program:
    """One thread block: its tasks, what is under way, and the order in which things happen.

    `order` is "late": a copy lands only when nobody can go on without it; "early": at once; or a
    number: tasks and landings are drawn at random from it.
    """

    order: str | int
    identity: tuple                                         # its number, and how many there are
    counts: dict = field(default_factory=dict)
    events: list = field(default_factory=list)
    warps: int = 4
    agents: int = 0
    step: int = 0
    stopped: bool = False

    def __post_init__(self):
        self.pending: list = []                             # copies that have not landed
        self.taken: dict = {}                               # names of memory, by where it is assigned
        self.named: dict = {}                               # barriers of the hardware, by number
        self.baton = threading.Semaphore(0)
        self.random = random.Random(f"{self.order} {self.identity}")
        self.current = Task(self, "the program", {}, self.warps)

    @property
    def drawn(self) -> bool:
        """Tell whether order is drawn."""
        return self.order not in ORDERS

    def count(self, what, amount) -> None:
        """Add to a total."""
        self.counts[what] = self.counts.get(what, 0) + int(amount)

    def note(self, kind: str, what: str, start: int | None = None, task: str | None = None) -> None:
        """Record an event that ends now."""
        self.step += 1
        begun = self.step - 1 if start is None else start
        self.events.append(Event(task or self.current.name, kind, what, line(), begun, self.step))

    def start(self, copy) -> None:
        """Let a copy be under way."""
        self.pending.append(copy)
        if self.order == "early":
            self.land(copy)

    def under_way(self) -> list:
        """Return the copies that have not landed, as events that last until now."""
        return [Event("the copy engine", "under way", copy.view.name, copy.where, copy.begun, self.step)
                for copy in self.pending]

    def land(self, copy) -> None:
        """Let a copy take effect."""
        self.pending.remove(copy)
        copy.land()

    def finish_stores(self, pendings: int = 0) -> None:
        """Let all but the last `pendings` of the current task's stores take effect."""
        task = self.current
        while len(task.stores) > pendings:
            copy = task.stores.pop(0)
            if not copy.landed:
                self.land(copy)
            join(task.clock, copy.clock)

    def wait(self, ready, reason) -> None:
        """Let others run until `ready()`."""
        task, begun = self.current, self.step
        if task.thread is None:
            while not ready():
                if not self.pending:
                    raise Hazard(f"{line()}: {task.name} waits for ever: {reason}")
                self.land(self.pending[0])
        elif self.drawn or not ready():
            task.ready, task.reason = ready, f"{line()}: {task.name} waits for {reason}"
            self.baton.release()
            task.go.acquire()
            if self.stopped:
                self.note("wait", str(reason).partition(",")[0], begun, task.name)
                raise _Stopped
            task.ready = None
        self.note("wait", str(reason).partition(",")[0], begun)

    def run(self, tasks: list) -> None:
        """Run tasks to their end; raise what one of them raises, or Hazard if none can go on."""
        outside = self.current
        for task in tasks:
            task.thread.start()
        try:
            while alive := [task for task in tasks if not task.done]:
                ready = [task for task in alive if task.ready is None or task.ready()]
                choices = ready + self.pending if self.drawn else ready or self.pending[:1]
                if not choices:
                    raise Hazard("no task can go on. " + "; ".join(task.reason for task in alive))
                chosen = self.random.choice(choices) if self.drawn else choices[0]
                if not isinstance(chosen, Task):
                    self.land(chosen)
                    continue
                self.current = chosen
                chosen.go.release()
                self.baton.acquire()
                if chosen.error is not None:
                    raise chosen.error
        finally:
            self.stopped = any(not task.done for task in tasks)
            for task in tasks:                              # those that wait end now
                if not task.done:
                    task.go.release()
                task.thread.join()
            self.current = outside
        for task in tasks:
            join(outside.clock, task.clock)
