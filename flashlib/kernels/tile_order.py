"""Who computes which query tile, in which order: decided on the host, once for a set of shapes.

A causal mask gives tiles different lengths. Handing the longest first to whichever program is free
(list scheduling) evens that out; doing it head group by head group keeps their keys and values in L2.
"""

from __future__ import annotations

import heapq

START_UP = 1.5                                              # of a tile, in key tiles: measured, roughly


def tile_lengths(N_Q: int, N_K: int, tile_m: int, block_n: int, causal: bool) -> list[int]:
    """Return how many key tiles each query tile of a head visits, as the kernel counts them."""
    lengths = []
    for start in range(0, N_Q, tile_m):
        sees = min(N_K, max(start + tile_m + N_K - N_Q, 0)) if causal else N_K
        lengths.append(max(-(-sees // block_n), 1))
    return lengths


def order_tiles(heads: int, lengths: list[int], heads_at_once: int) -> list[int]:
    """Return all tiles, head · (tiles of a head) + tile, in the order in which to start them.

    Groups of `heads_at_once` heads come one after the other; in a group the longest tiles come first,
    and of equal ones those of one head together.
    """
    order, count = [], len(lengths)
    for first in range(0, heads, heads_at_once):
        group = [(-length, head, tile) for head in range(first, min(first + heads_at_once, heads))
                 for tile, length in enumerate(lengths)]
        order += [head * count + tile for _, head, tile in sorted(group)]
    return order


def deal(order: list[int], lengths: list[int], programs: int) -> list[list[int]]:
    """Return the tiles of each program: the next one goes to the program that would be free first."""
    free, hands = [(0.0, program) for program in range(programs)], [[] for _ in range(programs)]
    for tile in order:
        time, program = heapq.heappop(free)
        hands[program].append(tile)
        heapq.heappush(free, (time + lengths[tile % len(lengths)] + START_UP, program))
    return hands
