"""Which query may see which key, and what that makes of a tile: skip it, mask it, or take it whole.

Every mask of the course is one run of keys a row, from `first` up to `stop`, neither of which ever
decreases from row to row: full, causal and windows, and padding or packed documents as well. A
`Window` gives the run of a row; a `Mask` holds the runs of all rows, and what a tile needs to know
follows from them in one place.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashlib.arguments import check_block, check_flag


def tiles(N: int, B: int) -> list[slice]:
    """Cut 0…N into slices of B; the last one is ragged if B does not divide N."""
    N, B = check_block("N", N, least=0), check_block("B", B)
    return [slice(start, min(start + B, N)) for start in range(0, N, B)]


@dataclass(frozen=True)
class Window:
    """Query i sees the keys from i + Nk − Nq − left to i + Nk − Nq + right; None is no bound.

    `Window()` is full attention and `Window(None, 0)` causal. The last query lies on the last key
    (aligned bottom right), as FlashAttention's `window_size`; torch's `is_causal` aligns top left
    when Nq ≠ Nk.

    >>> Window(left=1, right=0).keys_of(2, Nq=4, Nk=5)     # query 2 lies on key 3
    (2, 4)
    """

    left: int | None = None
    right: int | None = None

    def __post_init__(self):
        for side in ("left", "right"):
            bound = getattr(self, side)
            if bound is None:
                continue
            wrong = isinstance(bound, bool) or not isinstance(bound, int | np.integer)
            if wrong or bound < 0:
                raise (TypeError if wrong else ValueError)(
                    f"window: expected for {side} a whole number from 0 or None, got {bound!r}")
            object.__setattr__(self, side, int(bound))

    def keys_of(self, rows, Nq: int, Nk: int) -> tuple[Any, Any]:
        """Return (first, stop) of the keys that a row sees, or of an array of rows."""
        left, right = (Nq + Nk if bound is None else min(bound, Nq + Nk)
                       for bound in (self.left, self.right))
        on = np.asarray(rows) + (Nk - Nq)                  # the key that the query lies on
        first, stop = np.clip(on - left, 0, Nk), np.clip(on + right + 1, 0, Nk)
        return (first, stop) if first.ndim else (int(first), int(stop))


def window_of(causal: bool, window=None) -> Window:
    """Return the one window that the keywords `causal` and `window` ask for together.

    `window` is None or (left, right); with causal, right is 0 whatever it says.
    """
    check_flag("causal", causal)
    if window is None:
        window = Window()
    elif not isinstance(window, Window):
        if not isinstance(window, tuple | list) or len(window) != 2:
            raise TypeError("window: expected None or (left, right), each a whole number from 0 or"
                            f" None, got {window!r}")
        window = Window(*window)
    return Window(window.left, 0) if causal else window


class Mask:
    """One run of keys a row: row i sees the keys first[i] … stop[i] − 1, none if the two are equal.

    The runs of a window leave no gap between rows. Where others do, a tile that lies in a gap counts as
    visited: all of it is masked, and the result is right.

    Args:
        first, stop: whole numbers, (Nq,), neither ever decreasing.
        Nk: how many keys there are.
    """

    def __init__(self, first: np.ndarray, stop: np.ndarray, Nk: int):
        self.first, self.stop, self.Nk = first, stop, Nk

    def keys_of(self, rows):
        """Return (first, stop) of a row, or two arrays of them for a slice of rows."""
        return self.first[rows], self.stop[rows]

    def key_range(self, rows: slice) -> tuple[int, int, int, int]:
        """Return (lo, whole_lo, whole_hi, hi): lo … hi holds each key that one of `rows` sees.

        All rows see the keys whole_lo … whole_hi; there are none if whole_lo ≥ whole_hi.
        """
        if rows.start >= rows.stop:
            return 0, 0, self.Nk, 0
        (lo, whole_hi), (whole_lo, hi) = self.keys_of(rows.start), self.keys_of(rows.stop - 1)
        return int(lo), int(whole_lo), int(whole_hi), int(hi)

    def row_range(self, keys: slice) -> tuple[int, int, int, int]:
        """Return (lo, whole_lo, whole_hi, hi): lo … hi holds each row that sees one of `keys`.

        The rows whole_lo … whole_hi see all of them; there are none if whole_lo ≥ whole_hi.
        """
        lo, whole_hi = (np.searchsorted(x, keys.start, side="right") for x in (self.stop, self.first))
        whole_lo, hi = (np.searchsorted(x, keys.stop, side="left") for x in (self.stop, self.first))
        return int(lo), int(whole_lo), int(whole_hi), int(hi)

    def key_tiles(self, rows: slice, Bc: int) -> list[slice]:
        """Return the tiles of keys that `rows` visit; `visible` tells which of them need a mask."""
        lo, _, _, hi = self.key_range(rows)
        return tiles(self.Nk, Bc)[lo // Bc:-(-hi // Bc)]

    def row_tiles(self, keys: slice, Br: int) -> list[slice]:
        """Return the tiles of rows that visit `keys`."""
        lo, _, _, hi = self.row_range(keys)
        return tiles(len(self.first), Br)[lo // Br:-(-hi // Br)]

    def skips(self, rows: slice, keys: slice) -> bool:
        """Tell whether no query of `rows` sees any key of `keys`."""
        lo, _, _, hi = self.key_range(rows)
        return keys.start >= hi or keys.stop <= lo

    def visible(self, rows: slice, keys: slice) -> np.ndarray | None:
        """Return which of `keys` each of `rows` sees, as booleans; None where all are seen."""
        _, whole_lo, whole_hi, _ = self.key_range(rows)
        if whole_lo <= keys.start and keys.stop <= whole_hi:
            return None
        first, stop = self.keys_of(rows)
        j = np.arange(keys.start, keys.stop)
        return (first[:, None] <= j) & (j < stop[:, None])


def mask_of(causal: bool, Nq: int, Nk: int, window=None) -> Mask:
    """Return the mask that the keywords `causal` and `window` ask for."""
    return Mask(*window_of(causal, window).keys_of(np.arange(Nq), Nq, Nk), Nk)


def tile_class(mask: Mask, rows: slice, keys: slice) -> str:
    """Name what a mask makes of a tile: "skip", "partial" or "full"."""
    if mask.skips(rows, keys):
        return "skip"
    return "full" if mask.visible(rows, keys) is None else "partial"


def visits(window: Window, Nq: int, Nk: int, Br: int, Bc: int) -> np.ndarray:
    """Return how many key tiles each tile of queries visits, (⌈Nq/Br⌉,), without a loop."""
    start = np.arange(0, Nq, Br)
    lo, _ = window.keys_of(start, Nq, Nk)
    _, hi = window.keys_of(np.minimum(start + Br, Nq) - 1, Nq, Nk)
    return -(-hi // Bc) - lo // Bc
