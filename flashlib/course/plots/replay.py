"""What a trace says about one moment: the tiles visited, what is in SRAM, the bytes so far."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flashlib.machine.trace import Event, Range, Trace
from flashlib.machine.traffic import Moved

# tensor of the matrix: (tensors whose tiles cover it, left strips, top strips, right strips)
LAYOUTS = {"S": (("S", "P"), ("Q",), ("K", "V"), ("O",)), "C": (("C",), ("A",), ("B",), ())}


class Visit(NamedTuple):
    """One tile of the matrix at work: which event made it, whose it is, where it lies."""

    event: int
    tensor: str
    rows: Range
    cols: Range


class Moment(NamedTuple):
    """The machine after some events of a trace."""

    upto: int
    kernel: str
    visits: list[Visit]
    current: Visit | None
    sram: list[Event]
    sram_bytes: int
    moved: dict[str, Moved]
    stored: dict[str, list[tuple[Range, Range]]]

    @property
    def hbm_bytes(self) -> int:
        return sum(m.total_bytes for m in self.moved.values())


class Replay:
    """A trace, prepared for pictures of its moments.

    Args:
        trace: what a machine recorded.
        Nq, Nk: rows and columns of the matrix (M and N for a matmul).
        tensor: "S" for attention, "C" for a matmul.
    """

    def __init__(self, trace: Trace, Nq: int, Nk: int, tensor: str = "S"):
        if tensor not in LAYOUTS:
            raise ValueError(f"tensor: expected one of {sorted(LAYOUTS)}, got {tensor!r}")
        if not len(trace):
            raise ValueError("trace: expected events, got none; give the algorithm a Machine() of its "
                             "own (record=True) and run it first")
        self.trace, self.Nq, self.Nk, self.tensor = trace, int(Nq), int(Nk), tensor
        self.covers, self.left, self.top, self.right = LAYOUTS[tensor]
        self.visits = self._visits()
        self.peak_bytes = max(e.sram_bytes for e in trace)
        self.total_bytes = self.at().hbm_bytes
        self._grids: dict[str, tuple[list[Range], list[Range], list[Visit]]] = {}

    def _visits(self) -> list[Visit]:
        found = [Visit(n, e.tensor, e.rows, e.cols)
                 for n, e in enumerate(self.trace) if e.op == "tile" and e.tensor in self.covers]
        if found or self.tensor != "S":
            return found
        query: Range | None = None  # no tile of S is kept: a key meets a query
        for n, e in enumerate(self.trace):
            if e.op == "load" and e.tensor == "Q":
                query = e.rows
            elif e.op == "load" and e.tensor == "K" and query is not None:
                found.append(Visit(n, "S", query, e.rows))
        return found

    @property
    def frames(self) -> list[int]:
        """The moments worth a frame: each visit with its operands loaded, and the end."""
        starts = {v.event for v in self.visits}
        if self.tensor == "C":  # a tile of C stays while A and B pass by
            starts = {n for n, e in enumerate(self.trace) if e.op == "load" and e.tensor == "B"}
        frames = []
        for start in sorted(starts):
            stop = start + 1
            while (stop < len(self.trace) and stop not in starts
                   and self.trace[stop].op in ("tile", "load") and self.trace[stop].tensor in self.top):
                stop += 1
            frames.append(stop)
        return [*frames, len(self.trace)]

    def at(self, upto: int | None = None) -> Moment:
        """Return the moment after the first `upto` events (all of them: None)."""
        upto = len(self.trace) if upto is None else int(np.clip(upto, 0, len(self.trace)))
        live: dict[tuple, Event] = {}
        reads, writes, stored, last = Counter(), Counter(), defaultdict(list), None
        for event in self.trace.events[:upto]:
            where = (event.tensor, event.rows, event.cols)
            if event.op == "tile":
                live[where] = event
            elif event.op == "free":
                live.pop(where, None)
            elif event.op == "load":
                reads[event.tensor] += event.bytes
            elif event.op == "store":
                writes[event.tensor] += event.bytes
                stored[event.tensor].append((event.rows, event.cols))
            last = event
        kernel = last.kernel if last else self.trace[0].kernel
        visits = [v for v in self.visits if v.event < upto and self.trace[v.event].kernel == kernel]
        current = visits[-1] if visits and self._at_work(visits[-1], live) else None
        moved = {n: Moved(reads[n], writes[n]) for n in dict.fromkeys([*reads, *writes])}
        return Moment(upto, kernel, visits, current, list(live.values()),
                      last.sram_bytes if last else 0, moved, stored)

    def _at_work(self, visit, live) -> bool:
        made = self.trace[visit.event]
        return (made.tensor, made.rows, made.cols) in live

    def grid(self, kernel: str) -> tuple[list[Range], list[Range], list[Visit]]:
        """Return the row and column ranges of a kernel's tiles, and all its visits."""
        if kernel not in self._grids:
            visits = [v for v in self.visits if self.trace[v.event].kernel == kernel]
            self._grids[kernel] = (_cut({v.rows for v in visits}, self.Nq),
                                   _cut({v.cols for v in visits}, self.Nk), visits)
        return self._grids[kernel]

    def skipped(self, kernel: str) -> list[tuple[Range, Range]]:
        """Return the tiles of the matrix that a kernel never visits."""
        rows, cols, visits = self.grid(kernel)
        seen = {(v.rows, v.cols) for v in visits}
        if not visits or len(seen) == len(rows) * len(cols):
            return []
        return [(r, c) for r in rows for c in cols if (r, c) not in seen]

    def extent(self, tensor: str) -> tuple[int, int]:
        """Return (rows, cols) of a tensor, as far as the trace has seen it."""
        regions = [(e.rows[1], e.cols[1]) for e in self.trace if e.tensor == tensor]
        return tuple(np.max(regions, axis=0)) if regions else (0, 0)


def _cut(ranges: Sequence[Range], length: int) -> list[Range]:
    """Complete the ranges that were seen to a cut of 0…length, in steps of the largest."""
    if not ranges:
        return [(0, length)]
    step = max(stop - start for start, stop in ranges)
    steps = [(start, min(start + step, length)) for start in range(0, length, step)]
    return steps if set(ranges) <= set(steps) else sorted(ranges)
