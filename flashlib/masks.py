"""Which query may see which key, and what that makes of a tile: skip it, mask it, or take it whole."""

from __future__ import annotations

import numpy as np

from flashlib.arguments import check_block


def tiles(N: int, B: int) -> list[slice]:
    """Cut 0…N into slices of B; the last one is ragged if B does not divide N."""
    N, B = check_block("N", N, least=0), check_block("B", B)
    return [slice(start, min(start + B, N)) for start in range(0, N, B)]


class FullMask:
    """Every query sees every key."""

    def seen(self, row: int) -> int | None:
        """Return how many leading keys `row` sees; None means all."""
        return None

    def skips(self, rows: slice, keys: slice) -> bool:
        """Tell whether no query of `rows` sees any key of `keys`."""
        return False

    def visible(self, rows: slice, keys: slice) -> np.ndarray | None:
        """Return which of `keys` each of `rows` sees, as booleans; None where all are seen."""
        return None


class CausalMask(FullMask):
    """Query i sees keys j ≤ i + Nk − Nq: the last query sees every key (aligned bottom right).

    This is FlashAttention's convention. torch's `is_causal` aligns top left when Nq ≠ Nk.
    """

    def __init__(self, Nq: int, Nk: int):
        self.offset = Nk - Nq

    def seen(self, row: int) -> int:
        return max(0, row + self.offset + 1)

    def skips(self, rows: slice, keys: slice) -> bool:
        return keys.start >= self.seen(rows.stop - 1)

    def visible(self, rows: slice, keys: slice) -> np.ndarray | None:
        if keys.stop <= self.seen(rows.start):
            return None
        i = np.arange(rows.start, rows.stop)[:, None]
        j = np.arange(keys.start, keys.stop)[None, :]
        return j <= i + self.offset


def mask_of(causal: bool, Nq: int, Nk: int) -> FullMask:
    """Return the mask that the keyword `causal` asks for."""
    return CausalMask(Nq, Nk) if causal else FullMask()


def tile_class(mask: FullMask, rows: slice, keys: slice) -> str:
    """Name what a mask makes of a tile: "skip", "partial" or "full"."""
    if mask.skips(rows, keys):
        return "skip"
    return "full" if mask.visible(rows, keys) is None else "partial"
