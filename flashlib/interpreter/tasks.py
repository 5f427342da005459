"""Who runs when, and what has happened before what: tasks, asynchronous effects, clocks, hazards.

A program is one thread block. Its tasks are itself and the partitions of `warp_specialize`; one runs
at a time, until it waits. Tasks and asynchronous effects are agents; each has a vector clock (Lamport
1978, Mattern 1989): what it knows to have happened. Waiting for a barrier joins the clocks of all that
arrived at it. Two accesses of one slot of shared memory, one of them a write, are a hazard unless the
later one's clock has the earlier: in whatever order they ran this time.
"""

import linecache
import os
import random
import sys
import threading
import traceback
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

HOMES = os.path.dirname(__file__), os.path.dirname(np.__file__)     # of what no kernel's code is in
_places: dict[str, tuple[str, int]] = {}                    # where "file:line" is


class Hazard(RuntimeError):
    """A kernel that would be wrong, or never end, on some GPU at some time; the message says where."""

    events: list | None = None                              # of its program, with copies "under way"

    @property
    def source(self) -> str:
        """The kernel's statement at the first place that the message names; "" if it names none."""
        text = str(self)
        named = [place for place in _places if f"{place}: " in text]
        return linecache.getline(*_places[min(named, key=text.find)]).strip() if named else ""


class _Stopped(BaseException):
    """Ends the thread of a task when another has failed."""


def _statements(*beside: str):
    """Yield (file, line) of the kernel's code being executed, not in `beside`, innermost first."""
    for frame, number in traceback.walk_stack(sys._getframe(1)):
        if not frame.f_code.co_filename.startswith((*HOMES, *beside)):
            yield frame.f_code.co_filename, number


def line(*beside: str) -> str:
    """Return "file:line" of the kernel's statement being executed; it is in no file of `beside`."""
    path, number = next(_statements(*beside))
    place = f"{os.path.basename(path)}:{number}"
    _places[place] = path, number
    return place


def assigned(taken: Counter) -> str:
    """Return the name that the kernel gives to what it allocates, or its line.

    It is the statement, perhaps a caller's, that assigns. Of `a, b = f(), f()` first a: `taken` counts.
    """
    for place in _statements():
        left, equals, _ = linecache.getline(*place).partition("=")
        names = [name.strip() for name in left.split(",")]
        if equals and all(name.isidentifier() for name in names):
            taken[place] += 1
            return names[(taken[place] - 1) % len(names)]
    return line()


def join(clock: dict, other: dict) -> None:
    """Let a clock know all that another knows."""
    for agent, moment in other.items():
        if clock.get(agent, 0) < moment:
            clock[agent] = moment


class Event(NamedTuple):
    """What a task or an agent did: from one step of the program to another, both counted from 0."""

    task: str
    kind: str
    what: str
    where: str
    start: int
    stop: int


class Agent:
    """Somebody who reads and writes shared memory: a task, or an effect."""

    asynchronous = False

    def __init__(self, program, name: str, clock: dict):
        self.program, self.name, self.where = program, name, line()
        self.key = program.agents = program.agents + 1
        self.clock = {**clock, self.key: 1}                 # of each, by key, the last known to be over

    def access(self) -> "Access":
        """Return what is said of an access that is made now."""
        return Access(self, self.clock[self.key], line())

    def advance(self) -> None:
        """Begin a new moment, so that what comes is not taken for what was."""
        self.clock[self.key] += 1


class Access(NamedTuple):
    """A read or a write: by whom, when on its own clock, and the line that asks for it."""

    who: Agent
    moment: int
    where: str


class Effect(Agent):
    """What another unit does while the task that asked goes on: a copy, or a product.

    It counts as reading and writing from when it is asked for until somebody waits for it, and does so
    when it is told to `happen`.
    """

    asynchronous, done = True, False

    def __init__(self, program, name: str):
        super().__init__(program, name, program.current.clock)
        self.begun = program.step


class Task(Agent):
    """A partition of `warp_specialize`, or the program as a whole before and after it."""

    def __init__(self, program, name, clock, warps):
        super().__init__(program, name, clock)
        self.warps = warps
        self.stores, self.products = [], []                 # effects, not waited for
        self.unfenced: list = []                            # slots written, for the copy engine unseen
        self.ready: Any = lambda: True                      # tells whether it can go on
        self.reason: Any = str                              # says what it waits for, in its state now
        self.error: BaseException | None = None
        self.done, self.go = False, threading.Semaphore(0)

    def begin(self, call) -> None:
        """Let a function be what the task does, from when it is its turn."""
        self.program.tasks.append(self)
        threading.Thread(target=self._main, args=(call,), daemon=True).start()

    def _main(self, call):
        self.go.acquire()
        try:
            if not self.program.stopped:
                with np.errstate(all="ignore"):
                    call()
                self._require_nothing_under_way()
        except _Stopped:
            pass
        except BaseException as error:                      # raised again where the program was started
            self.error = error
        self.done = True
        self.program.baton.release()

    def _require_nothing_under_way(self):
        for kind, left, wait in (("store", self.stores, "tma.store_wait(0)"),
                                 ("product", self.products, "warpgroup_mma_wait(0, …)")):
            if left:
                raise Hazard(f"{left[0].where}: {self.name} ends before its {kind} has been waited for:"
                             f" {wait} is missing")


class Program:
    """One thread block: its tasks, what is under way, and the order in which things happen.

    `order` is "late": a copy lands only when nobody can go on without it; "early": at once; or a
    number: tasks and landings are drawn at random from it. `identity`: its number, and of how many.
    """

    def __init__(self, order: str | int, identity: tuple, counts: dict | None = None, warps: int = 4):
        self.order, self.identity, self.counts = order, identity, {} if counts is None else counts
        self.events: list[Event] = []
        self.tasks: list[Task] = []
        self.pending: list = []                             # copies that have not landed
        self.loads: list = []                               # key, place, name of all to shared memory
        self.taken: Counter = Counter()                     # names of memory, by where it is assigned
        self.named: dict = {}                               # barriers of the hardware, by number
        self.agents, self.step, self.stopped = 0, 0, False
        self.baton = threading.Semaphore(0)                 # given back by a task that waits or ends
        self.random = random.Random(f"{order} {identity}")
        self.drawn = order not in ("late", "early")
        self.current = Task(self, "the program", {}, warps)

    def count(self, what, amount) -> None:
        """Add to a total."""
        self.counts[what] = self.counts.get(what, 0) + int(amount)

    def note(self, kind: str, what: str, start: int | None = None, effect=None) -> None:
        """Record an event that ends now: the current task's, or a copy's."""
        self.step += 1
        task, where = ("the copy engine", effect.where) if effect else (self.current.name, line())
        begun = self.step - 1 if start is None else start
        self.events.append(Event(task, kind, what, where, begun, self.step))

    def start(self, effect, by_itself: bool) -> None:
        """Let an effect be under way; one that happens by itself may do so while a task waits."""
        if self.order == "early":
            self.land(effect)
        elif by_itself:
            self.pending.append(effect)

    def land(self, effect) -> None:
        """Let an effect happen, unless it has."""
        if not effect.done:
            effect.done = True
            self.pending = [other for other in self.pending if other is not effect]
            effect.happen()

    def finish(self, effects: list, left: int = 0) -> list:
        """Let all but the last `left` of the current task's effects happen; return them."""
        count = max(len(effects) - left, 0)
        finished, effects[:] = effects[:count], effects[count:]
        for effect in finished:
            self.land(effect)
            join(self.current.clock, effect.clock)
        return finished

    def pause(self, ready, reason: Any = str) -> None:
        """Let others run, until it is this task's turn again and `ready()`."""
        task = self.current
        task.ready, task.reason, task.where = ready, reason, line()
        self.baton.release()
        task.go.acquire()
        if self.stopped:
            raise _Stopped

    def wait(self, ready, name: str, state: Any = str) -> None:
        """Let others run until `ready()`, if it is not; where the order is drawn, in any case."""
        begun = self.step
        try:
            if self.drawn or not ready():
                self.pause(ready, lambda: name + state())
        finally:
            self.note("wait", name, begun)

    def run(self, call) -> None:
        """Run a function as the program's; raise what a task raises, or Hazard if none can go on."""
        self.current.begin(call)
        try:
            self._let(self.current)
            while alive := [task for task in self.tasks if not task.done]:
                ready = [task for task in alive if task.ready()]
                choices = ready + self.pending if self.drawn else ready or self.pending[:1]
                if not choices:
                    raise Hazard(_stuck(alive))
                chosen = self.random.choice(choices) if self.drawn else choices[0]
                if isinstance(chosen, Task):
                    self._let(chosen)
                else:
                    self.land(chosen)
            for key, where, name in self.loads:
                if key not in self.tasks[0].clock:          # which knows all that a task has waited for
                    raise Hazard(f"{where}: the program ends before {name} has been waited for")
        except Hazard as hazard:
            hazard.events = self.events
            raise
        finally:
            self.stopped = True
            for task in self.tasks:
                if not task.done:                           # it waits, and ends now
                    self._let(task)
            self.events += [Event("the copy engine", "under way", copy.view.name, copy.where,
                                  copy.begun, self.step) for copy in self.pending]

    def _let(self, task):
        self.current = task
        task.go.release()
        self.baton.acquire()
        if task.error is not None:
            raise task.error


def _stuck(alive):
    if len(alive) == 1:
        return f"{alive[0].where}: {alive[0].name} waits for ever: {alive[0].reason()}"
    return "no task can go on. " + "; ".join(
        f"{task.where}: {task.name} waits for {why}" for task in alive if (why := task.reason()))
