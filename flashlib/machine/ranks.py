"""Several GPUs on paper: programs that send to one another, run in one process, their links counted.

A rank's program is a generator. It yields `put`, which starts a message to another rank, `get`, which
waits for one, and `compute`. `Links.run` runs the programs of all ranks; `flashlib.parallel` drives the
same programs over torch.distributed, and `flashlib.models.ring` in simulated time. Taught in notebook
16.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashlib.errors import Deadlock


@dataclass(frozen=True, eq=False)
class Request:
    """What a rank's program yields; made by `put`, `get` and `compute`."""

    kind: str
    peer: int
    what: str
    payload: Any = None
    source: int | None = None
    function: Callable[..., Any] = tuple

    def __str__(self) -> str:
        way = {"put": "to", "get": "from"}.get(self.kind, "on the keys of")
        return f"{self.kind} {self.what} {way} rank {self.peer}"


Rank = Generator[Request, Any, Any]


def put(to: int, what: str, x, source: int | None = None) -> Request:
    """Start to send x to a rank, and go on; x must not change before the next `get`.

    source: the rank from which a message of the same shape and name will be got. Told now, so that a
    driver can start both as one: two ranks that send first and receive later may wait for ever.
    """
    return Request("put", to, what, x, source)


def get(source: int, what: str) -> Request:
    """Wait for the next message of this name from a rank, and receive it."""
    return Request("get", source, what)


def compute(source: int, function: Callable[..., Any], *arguments) -> Request:
    """Receive function(*arguments), which works on the keys of a rank."""
    return Request("compute", source, "attention", arguments, None, function)


@dataclass
class Message:
    """What went from one rank to another."""

    source: int
    to: int
    what: str
    bytes: int


@dataclass
class Links:
    """The links between ranks: what went over each, in the order in which it was sent.

    rendezvous: a `put` waits until the receiver stands at its `get`, as a blocking send does.
    """

    rendezvous: bool = False
    messages: list[Message] = field(default_factory=list)

    @property
    def bytes(self) -> dict[tuple[int, int], int]:
        """Bytes that went over each link, {(source, to): bytes}."""
        total: dict[tuple[int, int], int] = {}
        for message in self.messages:
            link = message.source, message.to
            total[link] = total.get(link, 0) + message.bytes
        return total

    def run(self, programs: Sequence[Rank], order: Sequence[int] | None = None) -> list[Any]:
        """Run one program a rank to their ends; return what each returned.

        order: in which order ranks get their turns; the results do not depend on it.

        Raises:
            Deadlock: no rank can go on; the message says who waits for whom.
        """
        P = len(programs)
        mail: dict[tuple[int, int, str], deque] = {}
        results: list[Any] = [None] * P
        at: dict[int, Request] = {}

        def go_on(rank, answer):
            """Let a rank work until it has to do with another."""
            try:
                request = programs[rank].send(answer)
                while request.kind == "compute":
                    request = programs[rank].send(request.function(*request.payload))
            except StopIteration as end:
                results[rank] = end.value
                at.pop(rank, None)
                return
            if not 0 <= request.peer < P or request.peer == rank:
                raise ValueError(f"rank {rank}: expected a peer out of the other ranks of {P}, got"
                                 f" {request}")
            at[rank] = request

        turns = list(range(P)) if order is None else list(order)
        for rank in turns:
            go_on(rank, None)
        while at:
            moved = False
            for rank in [rank for rank in turns if rank in at]:
                request = at[rank]
                if request.kind == "put":
                    if self.rendezvous and not self._meets(at.get(request.peer), rank, request):
                        continue
                    mail.setdefault((rank, request.peer, request.what), deque()).append(request.payload)
                    self.messages.append(Message(rank, request.peer, request.what,
                                                 getattr(request.payload, "nbytes", 0)))
                    answer = None
                else:
                    box = mail.get((request.peer, rank, request.what))
                    if not box:
                        continue
                    answer = box.popleft()
                moved = True
                go_on(rank, answer)
            if not moved:
                raise Deadlock("no rank can go on: " + "; ".join(
                    f"rank {rank} waits to {request}" for rank, request in sorted(at.items())))
        left = [f"{what} from rank {a} to rank {b}" for (a, b, what), box in mail.items() if box]
        if left:
            raise Deadlock(f"all ranks have ended, and nobody got {', '.join(left)}")
        return results

    @staticmethod
    def _meets(other, rank, request) -> bool:
        return (other is not None and other.kind == "get" and other.peer == rank
                and other.what == request.what)
