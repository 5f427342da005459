"""The record of what a machine did, event by event: what the animations replay."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flashlib.machine.traffic import csv_text

Range = tuple[int, int]


class Event(NamedTuple):
    """One thing that happened on the machine.

    `op` is "load" or "store" (bytes crossed between HBM and SRAM), "tile" (room was made in SRAM),
    "free" or "vote" (a branch: `tensor` is its question, `rows` were asked, and `cols` is (0, how many
    said yes)). Else `rows` and `cols` are (start, stop) in the tensor's own coordinates: the tile of S
    carries query rows and key columns. `bytes` counts HBM bytes for loads and stores, SRAM bytes for
    "tile" and "free"; `sram_bytes` is the SRAM in use after the event. `atomic` marks a store that
    ends an update which a GPU must do atomically.
    """

    kernel: str
    op: str
    tensor: str
    rows: Range
    cols: Range
    bytes: int
    sram_bytes: int
    atomic: bool = False


class Trace:
    """A list of `Event`s with the two questions that pictures ask of it."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __getitem__(self, index: int) -> Event:
        return self.events[index]

    def visits(self, tensor: str = "S") -> list[int]:
        """Return the positions of the events at which a tile of `tensor` was made, in order."""
        return [n for n, e in enumerate(self.events) if e.op == "tile" and e.tensor == tensor]

    def votes(self, question: str) -> list[tuple[Range, int]]:
        """Return, for every vote on a question, the rows that voted and how many said yes."""
        return [(e.rows, e.cols[1]) for e in self.events if (e.op, e.tensor) == ("vote", question)]

    def atomic_updates(self) -> int:
        """Return how many updates of HBM would have to be atomic on a GPU."""
        return sum(event.atomic for event in self.events)

    def hbm_bytes(self, upto: int | None = None) -> dict[str, int]:
        """Return the HBM bytes moved by tensor over the first `upto` events (all: None)."""
        moved: dict[str, int] = {}
        for event in self.events[:upto]:
            if event.op in ("load", "store"):
                moved[event.tensor] = moved.get(event.tensor, 0) + event.bytes
        return moved

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the events as CSV text, one row each; also write it to `path` if one is given."""
        header = ("kernel", "op", "tensor", "row_start", "row_stop", "col_start", "col_stop", "bytes",
                  "sram_bytes", "atomic")
        return csv_text(header, ((e.kernel, e.op, e.tensor, *e.rows, *e.cols, e.bytes, e.sram_bytes,
                                  int(e.atomic)) for e in self.events), path)
