"""What a state costs into which keys are folded: float32 O and lse, read once and written once."""

from typing import NamedTuple

WIDE_BYTES = 4                                              # of a number of the state


class StateBytes(NamedTuple):
    """Bytes one way, O's and those of lse."""

    o: int
    lse: int


def state_bytes(rows: int, d: int) -> StateBytes:
    """Return what one fold reads of a state of so many rows, over all heads; it writes as much."""
    return StateBytes(rows * d * WIDE_BYTES, rows * WIDE_BYTES)


def saved_bytes(rows: int, d: int, element_bytes: int = 2) -> int:
    """Return what a merge in a kernel of its own moves beyond that.

    The new part's O and lse are written, and read again; its O, at `element_bytes`, is rounded then.
    """
    return 2 * rows * (d * element_bytes + WIDE_BYTES)
