"""Who computes which query tile, in which order: decided on the host, once for a set of shapes.

A causal mask gives tiles different lengths. Handing the longest first to whichever program is free
(list scheduling) evens that out; doing it head group by head group keeps their keys and values in L2.
"""

import functools
import heapq

import numpy as np

from flashlib.kernels.configs import FUSED_KEYS, WARPGROUP_ROWS
from flashlib.kernels.problem import Problem
from flashlib.masks import Window, visits

HALVES_TO_START = 3                                         # of a key tile's time: measured, roughly
L2_SHARE_BYTES = 32 * 2**20                                 # of keys and values at a time
MANY_TILES = 100_000                                        # beyond, dealing them out is not worth it
FEW_TILES = 24                                              # of a head: two for each program at a time
FUSED_SHARE_BYTES, L2_RISING_BYTES = 24 * 2**20, 40 * 2**20  # of a fused backward, and at a mask's end
RISING_HEADS, RISING_STEPS, WAVE_TILES = 8, 8192, 12        # for grouped heads under a mask
RISING_BYTES, FEW_STEPS, MANY_STEPS = 256 * 2**20, 384, 7168            # the same, of shorter texts


def tile_lengths(window: Window, N_Q: int, N_K: int, tile_m: int, block_n: int) -> np.ndarray:
    """Return how many key tiles each query tile of a head visits, as the kernel counts them."""
    return np.maximum(visits(window, N_Q, N_K, tile_m, block_n), 1)


def order_tiles(heads: int, lengths: np.ndarray, groups: int, share: int = 1) -> np.ndarray:
    """Return all tiles, head · (tiles of a head) + tile, in the order in which to start them.

    Groups of heads, as alike as can be, come one after the other; `share` heads, which have their keys
    in common, stay together. In a group the longest tiles come first, of equal ones those of one head.
    """
    head, tile = np.divmod(np.arange(heads * len(lengths)), len(lengths))
    return np.lexsort((tile, head, -np.asarray(lengths)[tile],
                       head // share * groups // (heads // share)))


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
def order_table(B: int, H: int, tile_m: int, lengths: tuple[int, ...], groups: int, share: int,
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
        order = order_tiles(B * H, np.array(lengths), groups, share)
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
        return B, H, tile_m, (1,) * count, 1, 1, programs
    lengths = tuple(tile_lengths(window, N_Q, N_K, tile_m, block_n).tolist())
    most = max(1, L2_SHARE_BYTES // (2 * N_K * row_bytes))
    if programs and count <= FEW_TILES:                     # Q and O then stay in L2, too
        most = min(most, -(-2 * programs // (count * group)))
    return B, H, tile_m, lengths, max(1, round(B * H / group / most)), group, programs


def beside(p: Problem, head_dim: int) -> tuple[int, int, int]:
    """Return TOGETHER, IN_WAVES and WAVE of the fused kernel, by what an H200 was fastest with.

    So few key tiles of a head are at work that each finds the lock of its query tile free, and Q, dO
    and the sums of dQ stay in L2. Grouped or very long heads have too much of those: they rise where
    programs are long enough to hide its waits, or go in waves.
    """
    query_tiles, key_tiles = -(-p.N_Q // WARPGROUP_ROWS), -(-p.N_K // FUSED_KEYS)
    head_bytes, heads, group = 8 * p.N_Q * head_dim, p.B * p.H_K, p.H // p.H_K
    together = -(-p.device.sms * 128 // (query_tiles * head_dim))
    together = max(1, min(together, FUSED_SHARE_BYTES // (head_bytes * group)))
    rising = min(L2_RISING_BYTES // head_bytes, heads) if p.causal else 0
    few = (heads if rising == heads else together), rising, 1
    if not p.causal or (group == 1 and rising > 0):
        return few
    beside = min(heads, RISING_HEADS)
    steps = query_tiles * group                             # of a head's first key tile
    if steps > RISING_STEPS or key_tiles < WAVE_TILES:
        return 1, 0, 1
    if 2 * p.N_Q <= p.N_K:                                  # most of what is seen is a rectangle
        return (beside, heads, 1) if 16 * steps <= RISING_STEPS else few
    if beside * steps < RISING_STEPS:
        beside = min(heads, RISING_BYTES // head_bytes)
    if steps >= FEW_STEPS and beside * steps >= MANY_STEPS:
        return beside, heads, 1
    return wave(key_tiles, heads, p.device.sms)


def wave(tiles: int, heads: int, sms: int) -> tuple[int, int, int]:
    """Return what `beside` does, for waves: of as few heads as fill nearly all SMs."""
    waves = [(min(heads, sms // size), heads, size) for size in
             (-(-tiles // count) for count in range(-(-tiles // sms), tiles + 1))]
    return max(waves, key=lambda wave: min(wave[0] * wave[2], 0.95 * sms))
