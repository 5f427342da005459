"""Who adds to which sum of dQ in which order, and a schedule of it: the fused backward, simulated.

A program has a key tile of 128 rows and visits query tiles of 64, as many queries as keys. Walk and
turns are those of `flashlib.kernels.gluon.backward_fused`; a test compares them. Time is counted in
steps: what one visit takes.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

BUFFERS = 2                                                 # tiles of dQ that wait to be added


class Visit(NamedTuple):
    """A program's visit of query tile m: it is number `turn` to add to a sum; None: any time."""

    m: int
    turn: int | None
    second: bool = False                                    # to the tile's second sum


def walk(tile, tiles, causal=False, apart=True):
    """Return the query tiles that a key tile visits, each with whether the program has come round."""
    begin, end = 2 * tile if causal else 0, 2 * tiles
    start = 2 * tile if apart else begin                    # tile · end // tiles
    return [(m, False) for m in range(start, end)] + [(m, True) for m in range(begin, start)]


def turn(m, tile, tiles, causal=False, apart=True, around=False):
    """Return how many programs add to a sum of query tile m before that of key tile `tile`."""
    last = m // 2 if causal or (apart and not around) else tiles - 1    # the first to add
    return last - tile


def apart(tile, tiles, causal):
    """The kernel's order: each program starts at its own query tile; the last key tile adds first."""
    return [Visit(m, turn(m, tile, tiles, causal, True, around), around)
            for m, around in walk(tile, tiles, causal)]


def together(tile, tiles, causal):
    """All programs of a head start at query tile 0; the last key tile adds first."""
    return [Visit(m, turn(m, tile, tiles, causal, False))
            for m, _ in walk(tile, tiles, causal, False)]


def unordered(tile, tiles, causal):
    """Each adds when it has something to add."""
    return [visit._replace(turn=None) for visit in apart(tile, tiles, causal)]


def one_ring(tile, tiles, causal):
    """As `apart`, but with one sum a query tile: who has come round adds after all the others."""
    return [Visit(v.m, (v.m // 2 - tile) % tiles) for v in apart(tile, tiles, causal)]


def first_key_first(tile, tiles, causal):
    """As `together`, but the first key tile adds first, though its program starts last."""
    return [Visit(v.m, tile) for v in together(tile, tiles, causal)]


ORDERS: dict[str, Callable] = {f.__name__: f for f in (
    apart, together, unordered, one_ring, first_key_first)}


class Step(NamedTuple):
    """A visit: computed from `start`, handed on at `stop`, added from `adds` to `added`."""

    sm: int
    head: int
    tile: int
    visit: Visit
    start: float
    stop: float
    adds: float
    added: float


@dataclass
class Schedule:
    """What `simulate` found. `stuck`: who waits for ever, as (head, key tile, query tile)."""

    sms: int
    steps: list[Step] = field(default_factory=list)
    stuck: list[tuple[int, int, int]] = field(default_factory=list)
    count: int = 0
    length: float = 0.0

    @property
    def idle(self) -> float:
        """The share of the SMs' time in which nothing is computed."""
        return 1 - self.count / (self.sms * self.length) if self.count else 0.0


def numbers(tiles, heads, beside=1, rising=0):
    """Yield (head, key tile) in the order of the programs' numbers.

    `beside` heads go side by side, the last key tile first; the last `rising` heads, all side by side,
    begin with their first key tile.
    """
    for first in range(0, heads - rising, beside):
        for tile in reversed(range(tiles)):
            yield from ((head, tile) for head in range(first, min(first + beside, heads - rising)))
    for tile in range(tiles):
        yield from ((head, tile) for head in range(heads - rising, heads))


def simulate(order, *, tiles, heads=1, sms=132, hand=0.5, causal=False, beside=1, rising=0, keep=True):
    """Return the `Schedule` of all programs on some SMs.

    Args:
        order: of `ORDERS`, or a function (tile, tiles, causal) -> visits.
        tiles: key tiles of a head.  hand: steps from a sum's being free until the next may add.
        beside, rising: see `numbers`; in a head that rises the first key tile adds first.
        keep: whether to keep the steps; without them it is twice as fast.
    """
    order = ORDERS[order] if isinstance(order, str) else order
    visits = [list(order(tile, tiles, causal)) for tile in range(tiles)]
    risen = [[v if v.turn is None else v._replace(turn=tile) for v in visits[tile]]
             for tile in range(tiles)]
    todo = list(numbers(tiles, heads, beside, rising))[::-1]
    found, given, active = Schedule(sms), {}, []
    free = [(0.0, sm) for sm in range(sms)]                 # a heap
    while todo or active:
        moved = False
        for program in list(active):
            before = len(program.landed)
            if _run(program, found, given, hand, keep):
                active.remove(program)
                last = max(program.landed[-BUFFERS:], default=program.stop)
                heapq.heappush(free, (last, program.sm))
                moved = True
            moved = moved or len(program.landed) > before
        if moved:
            continue
        if not (todo and free):                             # nobody can go on
            found.stuck = [(p.head, p.tile, p.visits[len(p.landed)].m) for p in active]
            break
        begin, sm = heapq.heappop(free)
        head, tile = todo.pop()
        mine = (risen if head >= heads - rising else visits)[tile]
        active.append(_Program(sm, head, tile, mine, begin))
    return found


@dataclass
class _Program:
    sm: int
    head: int
    tile: int
    visits: list
    stop: float                                             # when the last visit was handed on
    landed: list = field(default_factory=list)              # when each visit's dQ had been added


def _run(p, found, given, hand, keep):
    """Let a program go on as far as it can; tell whether it has come to its end."""
    landed = p.landed
    for visit in p.visits[len(landed):]:
        m, turn, second = visit
        at = p.head, m, second
        count, when = given.get(at, (0, 0.0))
        if turn is not None and count != turn:
            return False
        start, p.stop = p.stop, p.stop + 1
        if len(landed) >= BUFFERS and landed[-BUFFERS] > p.stop:
            p.stop = landed[-BUFFERS]                       # the last but one has left its buffer
        adds = when if turn is not None and when > p.stop else p.stop
        added = adds + hand
        if keep:
            found.steps.append(Step(p.sm, p.head, p.tile, visit, start, p.stop, adds, added))
        found.count += 1
        found.length = max(found.length, added)
        given[at] = count + 1, added
        landed.append(added)
    return True
