"""The programs of ranks in simulated time: who computes and which link carries what when.

The programs are those of `flashlib.algorithms.ring`; the clock is that of the schedule simulator of
chapter 12, with a unit `gpu r` for each rank and a unit `link r→s` between two, in microseconds.
Messages begin when both ends are ready, as NCCL's do. Taught in notebook 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from flashlib.algorithms.ring import ring_backward, ring_forward
from flashlib.arguments import check_block, check_flag
from flashlib.machine.ranks import Links, Rank
from flashlib.models.ring import Rates, Sharing, step_seconds
from flashlib.models.sm.simulator import (
    FIFO,
    Hazard,
    Op,
    Program,
    Request,
    Role,
    Schedule,
    arrive,
    run,
    simulate,
    wait,
)

US = 1e6                           # microseconds of a second


@dataclass(frozen=True)
class Ghost:
    """What a program moves when nothing is computed: whose keys, or whose gradients, and how large."""

    what: str
    rank: int
    nbytes: int

    def __add__(self, other: Ghost) -> Ghost:
        if (self.what, self.rank) != (other.what, other.rank):
            raise Hazard(f"{self} and {other} are added")
        return self

    def __str__(self) -> str:
        return f"{self.what} {self.rank}"


def ghost_program(s: Sharing, rank: int) -> Rank:
    """Return a rank's program of the ring, forward or backward, on ghosts instead of arrays."""
    def fold(source, kv):
        if kv.rank != source:
            raise Hazard(f"rank {rank} takes {kv} for KV {source}")
        return Ghost("dKV", source, s.dkv_bytes) if s.backward else None

    kv = Ghost("KV", rank, s.kv_bytes)
    return (ring_backward(rank, s.P, [(kv, fold, lambda dkv: None)]) if s.backward
            else ring_forward(rank, s.P, kv, fold))


def timeline(s: Sharing, rates: Rates | None = None, *, program: Callable[[int], Rank] | None = None,
             rendezvous: bool = False, rooms: int = 2) -> Schedule:
    """Return what happened when as a schedule whose cycles are microseconds.

    An event's `what` is "attention" on a `gpu`, "KV" or "dKV" on a `link`; its tile is the rank whose
    keys they are; `role` is the unit's name.

    Args:
        program: returns a rank's program, each time a new one; None for `ghost_program(s, rank)`.
        rendezvous: a `put` waits until its message has arrived, and announces no receive: what
            blocking sends do.
        rooms: for keys and values in a rank's memory.
    Raises:
        Deadlock: ranks wait for one another.  Hazard: a rank computes on keys that are not there, or a
        message overwrites keys that are still in use.
    """
    rendezvous, rooms = check_flag("rendezvous", rendezvous), check_block("rooms", rooms)
    run_of = _Timeline(s, rates or Rates(), program or partial(ghost_program, s), rendezvous, rooms)
    schedule = simulate(run_of.program(), check=False)
    return replace(schedule, events=tuple(e for e in schedule.events if e.what != "shard"))


class _Timeline:
    """One run: it translates what ranks ask of one another into operations and barriers."""

    def __init__(self, s, rates, make, rendezvous, rooms):
        self.s, self.rates, self.make, self.rendezvous = s, rates, make, rendezvous
        self.rooms = rooms
        dry = Links()
        dry.run([make(rank) for rank in range(s.P)])
        self.sent: dict[tuple[int, int], list[str]] = {}    # what each link carries, in order
        for message in dry.messages:
            self.sent.setdefault((message.source, message.to), []).append(message.what)
        self.payload: dict[str, Ghost] = {}
        self.from_place: dict[str, str] = {}
        self.to_place: dict[str, str] = {}
        self.put_count: dict[tuple[int, int], int] = {}
        self.expected: dict[tuple, int] = {}

    def program(self) -> Program:
        names = [self._name(link, k) for link, sent in self.sent.items() for k in range(len(sent))]
        barriers = {f"ready {name}": 2 for name in names} | {f"here {name}": 1 for name in names}
        roles = [Role(f"gpu {rank}", partial(self._gpu, rank), 0, 0) for rank in range(self.s.P)]
        roles += [Role(self._unit(link), partial(self._link, link), 0, 0) for link in self.sent]
        return Program(f"a ring of {self.s.P}", tuple(roles), barriers,
                       {role.name: FIFO for role in roles}, self.s.P)

    @staticmethod
    def _unit(link) -> str:
        return "link {}→{}".format(*link)

    @staticmethod
    def _name(link, k) -> str:
        return "{}→{}[{}]".format(*link, k)

    def _link(self, link) -> Iterator[Request]:
        """Carry what is sent, one message after the other, each once both ends are ready."""
        for k in range(len(self.sent[link])):
            name = self._name(link, k)
            yield wait(f"ready {name}", 0)
            ghost = self.payload[name]
            kept = ghost.what == "KV"                       # gradients are new at every step
            yield run(Op(ghost.what, ghost.rank,
                         {self._unit(link): US * ghost.nbytes / self.rates.link_bytes_per_s},
                         reads={self.from_place[name]: str(ghost)} if kept else {},
                         writes={self.to_place[name]: str(ghost)} if kept else {},
                         arrives=(f"here {name}",)))

    def _next(self, kind, link, what) -> str:
        """Return the name of the next message of `what` on a link, for those who announce or get it."""
        key = kind, link, what
        number = self.expected[key] = self.expected.get(key, 0) + 1
        at = [k for k, sent in enumerate(self.sent.get(link, ())) if sent == what]
        return self._name(link, at[number - 1])

    def _gpu(self, rank) -> Iterator[Request]:
        program, answer, unit = self.make(rank), None, f"gpu {rank}"
        lies: dict[str, str] = {}                           # ghost: place
        announced: dict[str, str] = {}                      # message: the one sent with it
        received = 0

        def expect(name):
            nonlocal received
            received += 1
            self.to_place[name] = f"KV room {received % self.rooms} of {unit}"
            return arrive(f"ready {name}")

        while True:
            try:
                request = program.send(answer)
            except StopIteration:
                return
            answer = None
            ghosts = request.payload if request.kind == "compute" else (request.payload,)
            for ghost in ghosts:                            # its own keys lie there from the beginning
                if isinstance(ghost, Ghost) and ghost.what == "KV" and str(ghost) not in lies:
                    lies[str(ghost)] = f"KV room 0 of {unit}"
                    yield run(Op("shard", rank, {unit: 0.0}, writes={lies[str(ghost)]: str(ghost)}))
            if request.kind == "compute":
                answer = request.function(*request.payload)
                took = step_seconds(self.s, self.rates, rank, request.peer)
                reads = {lies[str(ghost)]: str(ghost) for ghost in ghosts if str(ghost) in lies}
                if took:
                    yield run(Op(request.what, request.peer, {unit: US * took}, reads=reads))
            elif request.kind == "put":
                link = rank, request.peer
                k = self.put_count[link] = self.put_count.get(link, -1) + 1
                name = self._name(link, k)
                self.payload[name] = request.payload
                self.from_place[name] = lies.get(str(request.payload), "")
                yield arrive(f"ready {name}")
                if request.source is not None and not self.rendezvous:
                    coming = self._next("announced", (request.source, rank), request.what)
                    announced[coming] = name
                    yield expect(coming) if request.what == "KV" else arrive(f"ready {coming}")
                    if not self.rates.hidden:
                        yield wait(f"here {coming}", 0)
                if self.rendezvous or not self.rates.hidden:
                    yield wait(f"here {name}", 0)
            else:
                name = self._next("got", (request.peer, rank), request.what)
                if name not in announced:
                    yield expect(name) if request.what == "KV" else arrive(f"ready {name}")
                yield wait(f"here {name}", 0)
                if name in announced:                       # its own message has left, too
                    yield wait(f"here {announced[name]}", 0)
                answer = self.payload[name]
                if answer.what == "KV":
                    lies[str(answer)] = self.to_place[name]
