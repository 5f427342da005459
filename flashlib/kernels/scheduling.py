"""Who computes which query tile, in which order: decided on the host, once for a set of shapes.

A causal mask gives tiles different lengths. Handing the longest first to whichever program is free
(list scheduling) evens that out; doing it head group by head group keeps their keys and values in L2.
"""

import functools
import heapq

import numpy as np

from flashlib.masks import Window, visits

HALVES_TO_START = 3                                         # of a key tile's time: measured, roughly
L2_SHARE_BYTES = 32 * 2**20                                 # of keys and values at a time
MANY_TILES = 100_000                                        # beyond, dealing them out is not worth it


def tile_lengths(window: Window, N_Q: int, N_K: int, tile_m: int, block_n: int) -> np.ndarray:
    """Return how many key tiles each query tile of a head visits, as the kernel counts them."""
    return np.maximum(visits(window, N_Q, N_K, tile_m, block_n), 1)


def order_tiles(heads: int, lengths: np.ndarray, heads_at_once: int) -> np.ndarray:
    """Return all tiles, head · (tiles of a head) + tile, in the order in which to start them.

    Groups of `heads_at_once` heads come one after the other; in a group the longest tiles come first,
    and of equal ones those of one head together.
    """
    head, tile = np.divmod(np.arange(heads * len(lengths)), len(lengths))
    return np.lexsort((tile, head, -np.asarray(lengths)[tile], head // heads_at_once))


def assign(order: np.ndarray, lengths: np.ndarray, programs: int) -> np.ndarray:
    """Return the program of each tile of `order`: the next goes to the program that is free first.

    Of those that are free at once it is the first. The loop is over every tile, so that time and
    program are one number in the heap, time · programs + program.
    """
    costs = (2 * np.asarray(lengths) + HALVES_TO_START)[np.asarray(order) % len(lengths)] * programs
    free, replace = list(range(programs)), heapq.heapreplace
    taken = [replace(free, free[0] + cost) for cost in costs.tolist()]
    return np.fromiter(taken, np.int64, len(taken)) % programs


@functools.lru_cache(256)
def order_table(B: int, H: int, tile_m: int, lengths: tuple[int, ...], heads_at_once: int,
                programs: int | None) -> np.ndarray:
    """Return the table of who computes what, as the kernel reads it: int32 (programs, entries, 4).

    A program's first entry is the number of its tiles; then come batch, head and first row of each, and
    one entry more. Without `programs` each tile has a program of its own.
    """
    count, tiles = len(lengths), B * H * len(lengths)
    if tiles > MANY_TILES:
        order = np.arange(tiles)
        owner = order % (programs or tiles)
    else:
        order = order_tiles(B * H, np.array(lengths), heads_at_once)
        owner = assign(order, np.array(lengths), min(tiles, programs)) if programs else np.arange(tiles)
    together = np.argsort(owner, kind="stable")             # a program's tiles, in their order
    owner, (head, tile) = owner[together], np.divmod(order[together], count)
    mine = np.bincount(owner)
    table = np.zeros((len(mine), mine.max() + 2, 4), np.int32)
    table[:, 0, 0] = mine
    entry = owner * table.shape[1] + np.arange(1, tiles + 1) - np.repeat(np.cumsum(mine) - mine, mine)
    table.reshape(-1, 4)[entry, :3] = np.stack((head // H, head % H, tile * tile_m), -1)
    return table


def shape_of_order(window: Window, B: int, H: int, group: int, N_Q: int, N_K: int, row_bytes: int,
                   tile_m: int, block_n: int, programs: int | None) -> tuple:
    """Return the arguments of `order_table` for these lengths; many lengths have the same.

    `group` query heads share a key head; `row_bytes` are those of a row of keys. Where all tiles are
    equally long, as in decoding, the order is that of the heads, however long they are.
    """
    count = -(-N_Q // tile_m)
    if count == 1 or window == Window():
        return B, H, tile_m, (1,) * count, B * H, programs
    lengths = tuple(tile_lengths(window, N_Q, N_K, tile_m, block_n).tolist())
    at_once = max(1, L2_SHARE_BYTES // (2 * N_K * row_bytes)) * group
    return B, H, tile_m, lengths, min(at_once, B * H), programs
