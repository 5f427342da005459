"""Who holds which tokens of a sequence, and what one rank's rows see of another rank's keys.

Under a causal mask a GPU with the first tokens has little to do and the one with the last has most.
Three layouts: `contiguous` gives every rank one run of N/P tokens; `zigzag` a chunk from either end, so
that all ranks have the same work; `stripe` the tokens rank, rank + P, rank + 2P, … Within a shard
positions always rise. Taught in notebook 16.
"""

from typing import NamedTuple

import numpy as np

from flashlib.arguments import check_block, check_choice, check_flag
from flashlib.masks import Window

LAYOUTS = ("contiguous", "zigzag", "stripe")


class Block(NamedTuple):
    """One call of attention: these rows of a shard, these keys of another, aligned bottom right."""

    rows: slice
    keys: slice
    window: Window


def check_layout(layout: str, P: int, N: int) -> int:
    """Refuse what cannot be shared out; return the tokens of a rank, N/P."""
    check_choice("layout", layout, LAYOUTS)
    P, N = check_block("P", P), check_block("N", N)
    parts = 2 * P if layout == "zigzag" else P
    if N % parts:
        raise ValueError(f"N: expected a multiple of {'2·P' if parts > P else 'P'} = {parts} for layout"
                         f" {layout!r}, got {N}")
    return N // P


def positions(layout: str, rank: int, P: int, N: int) -> np.ndarray:
    """Return the positions in the sequence that a rank holds, (N/P,), in the order in which it does.

    >>> positions("zigzag", 0, 2, 8), positions("stripe", 1, 2, 8)
    (array([0, 1, 6, 7]), array([1, 3, 5, 7]))
    """
    n = check_layout(layout, P, N)
    if not 0 <= rank < P:
        raise ValueError(f"rank: expected a whole number from 0 to {P - 1}, got {rank}")
    if layout == "contiguous":
        return np.arange(rank * n, (rank + 1) * n)
    if layout == "stripe":
        return np.arange(rank, N, P)
    c, last = n // 2, 2 * P - 1 - rank
    return np.r_[rank * c:(rank + 1) * c, last * c:(last + 1) * c]


def shard(x, layout: str, rank: int, P: int, axis: int = 0):
    """Return a rank's part of a whole sequence, a copy; tokens lie along `axis`."""
    at = positions(layout, rank, P, x.shape[axis])
    return x[(slice(None),) * (axis % x.ndim) + (at,)]


def unshard(shards, layout: str, axis: int = 0) -> np.ndarray:
    """Return the whole sequence from the shards of all ranks, in the order of ranks."""
    P, whole = len(shards), np.concatenate(shards, axis)
    at = [positions(layout, rank, P, whole.shape[axis]) for rank in range(P)]
    return np.take(whole, np.argsort(np.concatenate(at)), axis)


def block(layout: str, rank: int, source: int, n: int, causal: bool):
    """Return (rows, keys, causal) of the one call of a rank on a source's keys; None: nothing seen.

    A causal call is aligned bottom right, as everywhere here. Shards have n tokens each.
    """
    check_choice("layout", layout, LAYOUTS)
    whole, half = slice(0, n), n // 2
    if not check_flag("causal", causal):
        return whole, whole, False
    if source == rank:
        return whole, whole, True                          # positions rise within a shard
    if layout == "stripe":                                 # a later source: one key less for each row
        if source < rank:
            return whole, whole, True
        return (slice(1, n), slice(0, n - 1), True) if n > 1 else None
    if layout == "contiguous":
        return (whole, whole, False) if source < rank else None
    if source < rank:
        return whole, slice(0, half), False
    return slice(half, n), whole, False


def blocks(layout: str, rank: int, source: int, P: int, n: int, window: Window) -> tuple[Block, ...]:
    """Return the calls of a rank on a source's keys, none if its rows see none of them.

    Full and causal attention need one call at most (`block`), a window in layout `zigzag` up to four.
    """
    if window.left is None and window.right in (None, 0):
        found = block(layout, rank, source, n, window.right == 0)
        return () if found is None else (Block(*found[:2], Window(None, 0 if found[2] else None)),)
    pieces = []
    for row, first, step, count in _runs(layout, rank, P, n):
        for key, start, _, _ in _runs(layout, source, P, n):
            # Row i lies on first + step·i and key j on start + step·j: the band is lo ≤ j − i ≤ hi.
            lo = None if window.left is None else -((start - first + window.left) // step)
            hi = None if window.right is None else (first - start + window.right) // step
            if (found := _band(count, lo, hi)) is not None:
                rows, keys, seen = found
                pieces.append(Block(slice(row + rows.start, row + rows.stop),
                                    slice(key + keys.start, key + keys.stop), seen))
    return tuple(pieces)


def _runs(layout, rank, P, n):
    """Return a shard's runs of evenly spaced tokens: (index, first position, spacing, tokens)."""
    if layout == "contiguous":
        return ((0, rank * n, 1, n),)
    if layout == "stripe":
        return ((0, rank, P, n),)
    half = n // 2
    return ((0, rank * half, 1, half), (half, (2 * P - 1 - rank) * half, 1, half))


def _band(n, lo, hi):
    """Cut lo ≤ j − i ≤ hi out of n rows i and n keys j: what sees or is seen, and its window.

    The last row left and the last key left always see each other, so that bottom right lies within.
    """
    lo, hi = -n if lo is None else max(lo, -n), n if hi is None else min(hi, n)
    rows, keys = slice(max(0, -hi), min(n, n - lo)), slice(max(0, lo), min(n, n + hi))
    if rows.start >= rows.stop or keys.start >= keys.stop or lo > hi:
        return None
    on = (keys.stop - rows.stop)                           # the key that the last row lies on
    return rows, keys, Window(None if lo <= -n else on - lo, None if hi >= n else hi - on)
