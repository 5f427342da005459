"""Reference solutions of chapter 12b."""


def shared_bytes(d, stages):
    """12b.1: K and V once, Q and dO in stages, four quarters of dS, two tiles of dQ in float32."""
    keys_and_values = 2 * 128 * d * 2
    ring = stages * 2 * (64 * d * 2 + 64 * 4)
    ds = 4 * 64 * 64 * 2
    dq = 2 * 64 * d * 4
    return keys_and_values + ring + ds + dq


def hazards(adds):
    """12b.2: in a safe order every sum is added to in the order of the numbers."""
    return {(p, q) for row in adds for place, p in enumerate(row) for q in row[:place] if q > p}


def order(m, tiles):
    """12b.3: those that start at m or before it, then, to another sum, those that come round."""
    first = list(range(m // 2, -1, -1))
    second = list(range(tiles - 1, m // 2, -1))
    return first, second
