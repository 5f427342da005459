"""Exercises of chapter 08: waves, v2's update, tiles under a causal mask, and split-K's exchange."""

from collections import Counter

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, hint, parts, solution
from flashlib.masks import mask_of, tile_class, tiles
from flashlib.models import occupancy, warp_traffic

__all__ = ["check_count_classes", "check_count_waves", "check_split_k_exchange", "check_update",
           "hint", "solution"]


@exercise("08.1", "Count the waves", difficulty=1, minutes=4, solution="count_waves",
          hints=("How many programs does v2's forward pass launch? A ragged row tile is a program,"
                 " too.",
                 "-(-a // b) is a / b, rounded up, in whole numbers. You need it twice."))
def check_count_waves(count_waves):
    """Accept `count_waves(batch, heads, N, Br, sms) -> int` for v2's forward pass."""
    cases = ((1, 16, 24576, 128, 108), (4, 30, 1000, 64, 100), (8, 4, 1000, 64, 100),
             (1, 108, 128, 128, 108))
    for B, H, N, Br, sms in cases:
        ragged = -(-N // Br)
        expected = occupancy.waves(occupancy.programs(batch=B, heads=H, N=N, block=Br), sms).waves
        expect_close(count_waves(B, H, N, Br, sms), expected,
                     f"waves at B={B}, H={H}, N={N}, Br={Br} on {sms} SMs", mistakes={
            "one ceiling is not enough: a ragged row tile is a program of its own in every head":
                -(-B * H * N // (Br * sms)),
            "the last wave counts although it is not full: round up": B * H * ragged // sms,
            "the last row tile counts although it is ragged: ⌈N/Br⌉": -(-B * H * (N // Br) // sms),
            "these are v1's programs, one per head: v2 has one per row tile": -(-B * H // sms),
            "these are the programs: how many times must the SMs start anew?": B * H * ragged,
            "a wave is begun or not: a whole number, rounded up": B * H * ragged / sms,
            "the waves were counted head by head: programs of all heads share a wave":
                B * H * -(-ragged // sms),
            "the waves were counted sequence by sequence: the whole batch shares a wave":
                B * -(-H * ragged // sms),
            "every sequence of the batch has programs of its own": -(-H * ragged // sms),
            "every head has programs of its own": -(-B * ragged // sms),
            "a program has Br rows, not one": -(-B * H * N // sms),
            "a program has a whole row of tiles, not one of them": -(-B * H * ragged**2 // sms),
            "one wave too many: a full last wave is not followed by another":
                B * H * ragged // sms + 1})
    return "an SM that finds no program waits for the slowest."


@exercise("08.2", "Write v2's update", difficulty=2, minutes=10, solution="update",
          hints=("O and l are in units of the old maximum m. Bring both to the new one, then add what"
                 " the tile brings, already in new units.",
                 "P = e^(S − m_new), with the new maximum and not the tile's own: then P needs no"
                 " factor.",
                 "Nothing is divided. The division comes once, after the last tile."))
def check_update(update):
    """Accept `update(O, m, l, S, V) -> (O, m, l)` with O unfinished."""
    rng = np.random.default_rng(82)
    S0, S, V0, V = (rng.normal(scale=2, size=s) for s in ((4, 5), (4, 3), (5, 6), (3, 6)))
    S[0] -= 9                                              # one row whose maximum does not move
    m = S0.max(axis=1)
    P0 = np.exp(S0 - m[:, None])
    l, O = P0.sum(axis=1), P0 @ V0
    m_tile = S.max(axis=1)
    m_new = np.maximum(m, m_tile)
    alpha, P = np.exp(m - m_new), np.exp(S - m_new[:, None])
    own = np.exp(S - m_tile[:, None])
    l_new, O_new = alpha * l + P.sum(axis=1), alpha[:, None] * O + P @ V
    got = parts(update(O.copy(), m.copy(), l.copy(), S.copy(), V.copy()), "(O, m, l)",
                right=(O_new, m_new, l_new))
    expect_close(got[1], m_new, "m", mistakes={
        "this is the maximum of the tile alone: earlier keys count, too": m_tile,
        "every row has a maximum of its own": np.full_like(m, m_new.max()),
        "this is lse: m is the maximum alone": m_new + np.log(l_new),
        "the maximum did not move": m})
    expect_close(got[2], l_new, "l", mistakes={
        "the old l was not rescaled by e^(m − m_new)": l + P.sum(axis=1),
        "rescaled with the wrong sign: the exponent is m − m_new": l / alpha + P.sum(axis=1),
        "the old l is lost: the tile comes on top of it": P.sum(axis=1),
        "the tile was rescaled, too: only the past needs it": alpha * (l + P.sum(axis=1)),
        "no maximum was subtracted from the tile's logits": alpha * l + np.exp(S).sum(axis=1),
        "neither the past nor the tile is in units of m_new": l + np.exp(S).sum(axis=1),
        "the tile came in in units of its own maximum: subtract m_new, not the tile's":
            alpha * l + own.sum(axis=1),
        "the sum runs over the whole tile: every row has its own (axis=1)": alpha * l + P.sum(),
        "those are powers of 2; S, m and l are natural: np.exp, not np.exp2":
            np.exp2(m - m_new) * l + np.exp2(S - m_new[:, None]).sum(axis=1),
        "the tile was weighed against the old maximum":
            alpha * l + np.exp(S - m[:, None]).sum(axis=1)})
    expect_close(got[0], O_new, "O", mistakes={
        "you divided by l: that is v1's finished O; v2 divides once, after the last tile":
            O_new / l_new[:, None],
        "you divided by ℓ: that is v1, with a finished O; keep O unfinished":
            ((alpha * l)[:, None] * O + P @ V) / l_new[:, None],
        "this is v1's update, which multiplies O by l first: v2's O was never divided":
            (alpha * l)[:, None] * O + P @ V,
        "the old O was not rescaled: it still counts in units of the old maximum": O + P @ V,
        "rescaled with the wrong sign: the exponent is m − m_new": O / alpha[:, None] + P @ V,
        "the tile came in in units of its own maximum: subtract m_new, not the tile's":
            alpha[:, None] * O + own @ V,
        "the tile was weighed against the old maximum": alpha[:, None] * O + np.exp(S - m[:, None]) @ V,
        "no maximum was subtracted from the tile's logits": alpha[:, None] * O + np.exp(S) @ V,
        "the tile's weights were divided by their sum: nothing is divided before the end":
            alpha[:, None] * O + (P / P.sum(axis=1)[:, None]) @ V,
        "the new values were rescaled, too: only the past needs it":
            alpha[:, None] * (O + P @ V)})
    first = update(np.zeros((4, 6)), np.full(4, np.finfo(float).min), np.zeros(4), S, V)
    O_first, l_first = np.asarray(first[0]), np.asarray(first[2])
    expect_close(O_first / l_first[:, None], own @ V / own.sum(axis=1)[:, None],
                 "O / l after the first tile of all")
    return "right: O stays unfinished, and one division at the end of the row finishes it."


def _classes(N, Br, Bc):
    found = Counter(tile_class(mask_of(True, N, N), rows, keys)
                    for rows in tiles(N, Br) for keys in tiles(N, Bc))
    return found["full"], found["partial"], found["skip"]


@exercise("08.3", "Count tiles under a causal mask", difficulty=2, minutes=15, solution="count_classes",
          hints=("Take one row tile, rows a to b. Which keys does its first row see, which its last?",
                 "Row i sees the keys 0 … i. A tile is full if its last key is seen by the *first*"
                 " row a, and skipped if its first key lies beyond the *last* row b.",
                 "Tiles visited: ⌈(b + 1)/Bc⌉. Tiles full: ⌊(a + 1)/Bc⌋; but where row a is the last"
                 " row of all it sees every tile whole, a narrow last one too: ⌈N/Bc⌉."))
def check_count_classes(count_classes):
    """Accept `count_classes(N, Br, Bc) -> (full, partial, skipped)` for square attention."""
    for N, Br, Bc in ((56, 14, 14), (64, 16, 8), (40, 7, 4), (64, 8, 16), (512, 128, 64), (50, 16, 12),
                      (17, 16, 4), (49, 16, 16), (33, 32, 8)):
        got = parts(count_classes(N, Br, Bc), "(full, partial, skipped)")
        full, partial, skipped = _classes(N, Br, Bc)
        Tr, Tc = -(-N // Br), -(-N // Bc)
        starts = range(0, N, Br)
        early, by_first = sum(a // Bc for a in starts), sum(a // Bc + 1 for a in starts)
        unclipped = sum(-(-(a + Br) // Bc) for a in starts)
        strict = sum(-(-(min(a + Br, N) - 1) // Bc) for a in starts)
        where = f"tiles at N={N}, Br={Br}, Bc={Bc}"
        if sum(got) != Tr * Tc:
            raise Wrong(f"{where}: the three classes must add up to {Tr * Tc}, got {sum(got)}")
        expect_close(got, [full, partial, skipped], where, mistakes={
            "full and skipped are swapped, or Br and Bc: queries see the past, below the diagonal":
                [skipped, partial, full],
            "a tile that the diagonal cuts is visited: nothing partial was counted":
                [full + partial, 0, skipped],
            "the tiles on the diagonal were skipped, but some of their keys are seen":
                [full, 0, skipped + partial],
            "one tile per row tile is cut only if Br = Bc: here the diagonal cuts more or fewer":
                [full + partial - Tr, Tr, skipped],
            "the last row sees the last tile whole, as narrow as it is, so that it is full":
                [full - 1, partial + 1, skipped],
            "row a sees a + 1 keys, itself included: a tile that ends at key a is full":
                [early, full + partial - early, skipped],
            "row i sees key i, too": [early, strict - early, Tr * Tc - strict],
            "a row tile has Br rows, a key tile Bc keys, and a query sees the past, not the future":
                list(_classes(N, Bc, Br)),
            "a tile is skipped if the *last* row of its row tile does not see it, not the first":
                [full, by_first - full, Tr * Tc - by_first],
            "the last row tile ends at row N − 1, though Br rows would go on":
                [full, unclipped - full, Tr * Tc - unclipped],
            "a tile whose first key is the last row's own key is seen by that row: cut, not skipped":
                [full, strict - full, Tr * Tc - strict],
            "right counts, but in the order (partial, full, skipped)": [partial, full, skipped],
            "right counts, but in the order (full, skipped, partial)": [full, skipped, partial]})
    return "only full and partial tiles take time, and a partial one takes as long as a full one."


@exercise("08.4", "Count what split-K exchanges", difficulty=3, minutes=15, solution="split_k_exchange",
          hints=("Three things are partial: the row maxima, the row sums and the outputs. For each:"
                 " how many copies are written, and who reads them?",
                 "Every warp needs the maximum over all warps before it can form P, so each reads all"
                 " W of them. A row's sum and output are added up by one warp only.",
                 "P needs the maxima of all warps: a barrier. The sum needs all partial outputs:"
                 " another one."))
def check_split_k_exchange(split_k_exchange):
    """Accept `split_k_exchange(Br, d, warps, stats_bytes, accumulator_bytes) -> (barriers, bytes)`."""
    for Br, d, W, s, a in ((64, 64, 4, 4, 8), (16, 128, 8, 4, 4), (128, 32, 2, 8, 2)):
        cost = warp_traffic.split_k(Br=Br, Nk=W, d=d, warps=W, stats_bytes=s, accumulator_bytes=a)
        got = parts(split_k_exchange(Br, d, W, s, a), "(barriers, bytes)",
                    right=(cost.barriers, cost.exchanged_bytes))
        where = f"at Br={Br}, d={d}, {W} warps"
        expect_close(got[0], cost.barriers, f"barriers {where}", mistakes={
            "the maxima must have arrived before P is formed, the outputs before they are added:"
            " one barrier cannot do both": 1,
            "without a barrier, a warp reads what another has not yet written": 0,
            "a buffer is free again by the time it is written: no third barrier is needed": 3,
            "a barrier holds up all warps at once: count it once, not per warp": 2 * W,
            "a step has as many barriers with two warps as with eight": W})
        O, l, m = 2 * W * Br * d * a, 2 * W * Br * s, (W + W * W) * Br * s
        four = warp_traffic.split_k(Br=Br, Nk=4, d=d, warps=4, stats_bytes=s, accumulator_bytes=a)
        expect_close(got[1], cost.exchanged_bytes, f"exchanged bytes {where}", mistakes={
            "stats_bytes and accumulator_bytes are swapped": O / a * s + (l + m) / s * a,
            "warps is an argument: four is only the example": four.exchanged_bytes,
            "only what is written was counted: every partial result is read back, too":
                O / 2 + l / 2 + W * Br * s,
            "the partial row sums and maxima are exchanged, too": O,
            "every warp needs every maximum: W warps read W of them": O + l + 2 * W * Br * s,
            "a warp reads its own part back, too: W reads of W parts, not W − 1":
                (2 * W - 1) * Br * (d * a + s) + W * W * Br * s,
            "a warp reads its own maximum back, too: W warps read W of them": O + l + W * W * Br * s,
            "one warp per row reads the parts of O and ℓ, its own included: W, not W − 1":
                (2 * W - 1) * Br * (d * a + s) + m,
            "only what is read was counted: every partial result is written first":
                W * Br * (d * a + s) + W * W * Br * s,
            "a row's ℓ is summed by one warp: only the maxima are read by all": O + 2 * m,
            "a row's ℓ and O are summed by one warp: only the maxima are read by all":
                (W + W * W) * Br * (d * a + 2 * s),
            "the partial sums are statistics, not accumulators": O + l / s * a + m,
            "the partial outputs are accumulators, not statistics": O / a * s + l + m,
            "maxima and sums are statistics, not accumulators": O + (l + m) / s * a,
            "the maxima are exchanged, too": O + l,
            "the row sums are exchanged, too": O + m,
            "these are elements, not bytes": O / a + (l + m) / s,
            "this is what one warp stores, and what is read of it: there are W of them":
                (O + l + m) / W,
            "every warp has a whole (Br, d) of partial output, not a share of it":
                O / W + l + m})
    return "and split-Q exchanges nothing."
