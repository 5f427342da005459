"""Closed forms of what one thread block moves through shared memory, equal to the block's count.

Sums over K/V tiles, from the shapes alone; nothing is shared with `algorithms.warp_partition`.
Taught in notebook 08.
"""

from flashlib.arguments import check_block
from flashlib.machine.thread_block import BlockCost


def _sizes(Br, Nk, d, Bc, warps):
    Bc = Nk if Bc is None else Bc
    for name, size in (("Br", Br), ("Nk", Nk), ("d", d), ("Bc", Bc), ("warps", warps)):
        check_block(name, size)
    row_share = -(-Br // warps)
    full, rest = divmod(Nk, Bc)
    steps = [(full, min(Bc, Nk)), (1, rest)] if rest else [(full, Bc)]
    return row_share, [(count, keys) for count, keys in steps if count]


def split_q(*, Br, Nk, d, Bc=None, warps=4, element_bytes=2, stats_bytes=4,
            accumulator_bytes=4) -> BlockCost:
    """Return what `split_q` costs: Q once a step, all of K and V once for every warp."""
    rows, steps = _sizes(Br, Nk, d, Bc, warps)
    busy = -(-Br // rows)
    count = sum(n for n, _ in steps)
    kv = element_bytes * busy * Nk * d
    peak = rows * (2 * stats_bytes + accumulator_bytes * (d + max(c for _, c in steps)))
    return BlockCost.of({"Q": (element_bytes * count * Br * d, 0), "K": (kv, 0), "V": (kv, 0)},
                        matmul_flops=4 * Br * Nk * d, register_peak_bytes=peak)


def split_k(*, Br, Nk, d, Bc=None, warps=4, element_bytes=2, stats_bytes=4,
            accumulator_bytes=4) -> BlockCost:
    """Return what `split_k` costs: K and V once, Q for every warp, and the exchange of partials."""
    rows, steps = _sizes(Br, Nk, d, Bc, warps)
    shares = [(n, -(-c // warps), c) for n, c in steps]
    parts = sum(n * -(-c // share) for n, share, c in shares)      # partial results, all steps
    stats, output = stats_bytes * parts * Br, accumulator_bytes * parts * Br * d
    kv = element_bytes * Nk * d
    by_tensor = {"Q": (element_bytes * parts * Br * d, 0), "K": (kv, 0), "V": (kv, 0),
                 "m partial": (warps * stats, stats), "l partial": (stats, stats),
                 "O partial": (output, output)}
    peak = (stats_bytes * (Br + rows)
            + accumulator_bytes * (rows * d + Br * d + Br * max(share for _, share, _ in shares)))
    return BlockCost.of(by_tensor, ("m partial", "l partial", "O partial"),
                        2 * sum(n for n, _ in steps), 4 * Br * Nk * d, peak)
