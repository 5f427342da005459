"""Exercises of chapter 06: the tiles of FlashAttention v1, what they move, and what must fit."""

from __future__ import annotations

import math
import numbers

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution
from flashlib.masks import mask_of, tiles
from flashlib.models import traffic
from flashlib.models.blocks import largest_blocks, paper_blocks, working_set_bytes

__all__ = ["check_choose_blocks", "check_merge_tile", "check_skips", "check_v1_read_bytes", "hint",
           "solution"]

_SHAPES = ((6, 6, 2, 3), (8, 8, 2, 2), (5, 8, 2, 3), (9, 6, 4, 2))


@exercise("06.1", "Skip a tile in one line", difficulty=1, minutes=5, solution="skips", hints=(
    "Skip only if the most generous query of the tile sees nothing of it. Which of the rows sees"
    " furthest, and which of the keys comes into view first?",
    "The last query of the tile is rows.stop - 1; it sees keys j ≤ i + Nk − Nq."))
def check_skips(skips):
    """Check skips(rows, keys, Nq, Nk) -> True if a causal mask hides the whole tile."""
    wrong = {
        "you answer the opposite question: True must mean that the tile is skipped":
            lambda r, k, o: k.start <= r.stop - 1 + o,
        "this aligns the mask top left: with Nk ≠ Nq, query i sees keys j ≤ i + Nk − Nq":
            lambda r, k, o: k.start > r.stop - 1,
        "off by one, and keys are lost: a tile whose first key is the last one that its last query"
        " sees holds one visible logit":
            lambda r, k, o: k.start >= r.stop - 1 + o,
        "off by one on the safe side: the result would be right, but tiles without a single visible"
        " key are visited (rows.stop is one past the last query)":
            lambda r, k, o: k.start > r.stop + o,
        "you ask the first query of the tile; the last one sees further, and its keys are lost":
            lambda r, k, o: k.start > r.start + o,
        "you ask about the last key of the tile; a tile is skipped only if its first key is hidden":
            lambda r, k, o: k.stop - 1 > r.stop - 1 + o,
        "the shift has the wrong sign: query i sees keys j ≤ i + Nk − Nq, not i + Nq − Nk":
            lambda r, k, o: k.start > r.stop - 1 - o,
        "you never skip: the result would be right, and all tiles above the diagonal are computed"
        " for nothing": lambda r, k, o: False,
        "you skip every tile: at least those on the diagonal hold visible keys":
            lambda r, k, o: True,
    }
    grid = [(r, k, Nq, Nk) for Nq, Nk, Br, Bc in _SHAPES for r in tiles(Nq, Br) for k in tiles(Nk, Bc)]
    right = [mask_of(True, Nq, Nk).skips(r, k) for r, k, Nq, Nk in grid]
    got = given([skips(*place) for place in grid])
    for g in got:
        if not isinstance(g, bool | np.bool_ | numbers.Integral) or g not in (0, 1):
            raise Wrong(f"skips: expected True or False, got {g!r}")
    got = [bool(g) for g in got]
    for mistake, guess in wrong.items():
        if got == [guess(r, k, Nk - Nq) for r, k, Nq, Nk in grid]:
            raise Wrong(mistake)
    for g, expected, (r, k, Nq, Nk) in zip(got, right, grid, strict=True):
        if g != expected:
            raise Wrong(f"Nq={Nq}, Nk={Nk}, queries {r.start}–{r.stop - 1}, keys {k.start}–"
                        f"{k.stop - 1}: expected {expected}, got {g}")
    return "right, for square and for ragged shapes, aligned bottom right."


def _reads(N, d, Br, Bc, e, s, *, Tc=None, K=1, Q=1, O=1, stats=1):
    Tc = -(-N // Bc) if Tc is None else Tc
    return (2 * K * N * d + (Q + O) * Tc * N * d) * e + stats * 2 * Tc * N * s


def _same(got, expected) -> bool:
    return all(isinstance(g, numbers.Real) and math.isclose(g, x, rel_tol=1e-12)
               for g, x in zip(got, expected, strict=True))


@exercise("06.2", "Predict what v1 reads", difficulty=2, minutes=8, solution="v1_read_bytes", hints=(
    "Walk down Algorithm 1 and write beside each load how often it happens and how many elements it"
    " moves. K and V are loaded in the outer loop, Q, O, m, l in the inner one.",
    "One walk over all row tiles loads all of Q, O, m and l once. There are T_c = ⌈N/B_c⌉ walks."))
def check_v1_read_bytes(v1_read_bytes):
    """Check v1_read_bytes(N, d, Br, Bc, element_bytes, stats_bytes) against the closed form."""
    cases = ((4096, 128, 64, 128, 2, 4), (6, 4, 2, 3, 8, 8), (97, 16, 8, 20, 2, 4),
             (1025, 64, 64, 256, 4, 4))
    costs = [traffic.flash_v1(Nq=N, Nk=N, d=d, Br=Br, Bc=Bc, element_bytes=e, stats_bytes=s)
             for N, d, Br, Bc, e, s in cases]
    got = given([v1_read_bytes(*case) for case in cases])
    for mistake, bytes_of_it in _wrong_reads(cases, [cost.hbm_bytes for cost in costs]):
        if _same(got, bytes_of_it):
            raise Wrong(mistake)
    for case, cost, g in zip(cases, costs, got, strict=True):
        named = zip(("N", "d", "Br", "Bc", "element_bytes", "stats_bytes"), case, strict=True)
        what = ", ".join(f"{name}={value}" for name, value in named)
        expect_close(g, cost.hbm_read_bytes, what, rtol=0)
    return "equal to the machine's count to the byte, ragged tiles included."


def _wrong_reads(cases, both_directions):
    """Yield (mistake, the bytes that it gives in each case)."""
    def if_only(**change):
        return [_reads(*case, **{name: f(*case) for name, f in change.items()}) for case in cases]

    def Tc(N, d, Br, Bc, e, s):
        return -(-N // Bc)

    def Tr(N, d, Br, Bc, e, s):
        return -(-N // Br)

    def once(*case):
        return 1 / Tc(*case)

    def but_one(*case):
        return 1 - 1 / Tc(*case)

    def padded_keys(*case):
        return Tc(*case) * case[3] / case[0]

    def padded_rows(*case):
        return Tr(*case) * case[2] / case[0]

    def none(*case):
        return 0

    def half(*case):
        return 0.5

    yield "m and l are missing: each visit reads both", if_only(stats=none)
    yield "one of m and l is missing: each visit reads both", if_only(stats=half)
    yield "m and l are read at every visit, like O, not once", if_only(stats=once)
    yield ("these are elements, the question asks for bytes",
           [_reads(*case[:4], 1, 1) for case in cases])
    yield ("m and l move at stats_bytes, not at element_bytes",
           [_reads(*case[:5], case[4]) for case in cases])
    yield ("the bytes of an element are fixed at 2 and 4 here: use element_bytes and stats_bytes",
           [_reads(*case[:4], 2, 4) for case in cases])
    yield ("Q or O is missing: v1 reads both at every visit, the tile of Q and the old O",
           if_only(O=none))
    yield ("Q or O is read once here: the outer loop brings key tiles, and each of the T_c of them"
           " meets all of Q and O anew", if_only(O=once))
    first = ("the first visit reads O, m and l too: step 1 has put O = 0, l = 0 and m = −∞ into HBM,"
             " so that no visit is special")
    yield ("N·d elements are missing: either V is missing, which a key tile brings along, or the"
           " first visit's read of O, which finds the zeros of step 1", if_only(K=half))
    yield first, if_only(stats=but_one)
    yield first, if_only(O=but_one, stats=but_one)
    yield ("T_c = N/Bc is a fraction where Bc does not divide N: there are ⌈N/Bc⌉ key tiles",
           if_only(Tc=lambda *case: case[0] / case[3]))
    yield ("the last, ragged key tile is missing: ⌈N/Bc⌉, not ⌊N/Bc⌋",
           if_only(Tc=lambda *case: case[0] // case[3]))
    yield ("⌊N/Bc⌋ + 1 counts a tile too many where Bc divides N",
           if_only(Tc=lambda *case: case[0] // case[3] + 1))
    ragged = ("the last tile is padded here: a ragged tile moves only the rows it has, so that all"
              " key tiles together are N rows, not T_c·Bc, and all row tiles N, not T_r·Br")
    rows = {"Q": padded_rows, "O": padded_rows, "stats": padded_rows}
    yield ragged, if_only(K=padded_keys)
    yield ragged, if_only(**rows)
    yield ragged, if_only(K=padded_keys, **rows)
    yield "T_c is the number of key tiles, ⌈N/Bc⌉; you divide by Br", if_only(Tc=Tr)
    yield "these are the bytes in both directions: leave the writes out", both_directions
    yield ("step 1 stores O = 0, l = 0 and m = −∞: that is written, not read",
           [_reads(*case) + case[0] * case[1] * case[4] + 2 * case[0] * case[5] for case in cases])
    yield "K and V are loaded in the outer loop, once each: not once per row tile", if_only(K=Tr)
    yield ("this is v2's loop order (Q outside): in v1 K and V move once, Q and O move T_c times",
           [(N * d + 2 * N * d * -(-N // Br)) * e for N, d, Br, Bc, e, s in cases])


@exercise("06.3", "Write the update of one tile", difficulty=2, minutes=12,
          solution="merge_tile", hints=(
    "Work with unnormalised sums. The old O is finished, so its sum is l·O in units of e^m; bring it"
    " to units of e^{m_new}, add the tile's P V in the same units, and divide by the new l.",
    "Three lines matter: m_new = max(m, m_tile); l_new = e^{m−m_new}·l + e^{m_tile−m_new}·l_tile;"
    " O_new = (e^{m−m_new}·l·O + e^{m_tile−m_new}·P V) / l_new."))
def check_merge_tile(merge_tile):
    """Check merge_tile(O, m, l, S, V) -> (O, m, l) on a second tile, then on a first one."""
    rng = np.random.default_rng(6)
    S, V = rng.standard_normal((4, 10)), rng.standard_normal((10, 3))
    S[0, 7], S[1, 2], S[2, 9] = 4.0, 5.0, 3.0
    start = (np.zeros((4, 3)), np.full(4, -np.inf), np.zeros(4))
    middle, _ = _merged(*start, S[:, :6], V[:6])
    second, first = ("second tile", middle, slice(6, 10)), ("first tile", start, slice(0, 6))
    for what, state, part in (second, first):
        right, wrong = _merged(*state, S[:, part], V[part])
        with np.errstate(all="ignore"):
            got = merge_tile(*(a.copy() for a in state), S[:, part].copy(), V[part].copy())
        got = parts(got, "(O, m, l)", f"{what}: ", right=right)
        for place, name in ((1, "m"), (2, "l"), (0, "O")):
            expect_close(got[place], right[place], f"{what}, {name}", mistakes=wrong[name])
    return "right for a tile that raises the maximum, one that does not, and the very first."


def _merged(O, m, l, S, V):
    """Return the state after one more tile, and wrong states under the names of the mistakes."""
    m_tile = S.max(axis=1)
    P = np.exp(S - m_tile[:, None])
    l_tile = P.sum(axis=1)
    m_new = np.maximum(m, m_tile)
    old, new = np.exp(m - m_new), np.exp(m_tile - m_new)
    l_new = old * l + new * l_tile
    tile = new[:, None] * (P @ V)
    with np.errstate(all="ignore"):
        sign, past, tile_O = np.exp(m_new - m), (old * l)[:, None] * O, tile / l_new[:, None]
        turned = "the exponent of the rescale has the wrong sign: e^{m−m_new} is at most 1"
        wrong = {
            "m": {"you keep the maximum of this tile only: m_new = max(m, m_tile)": m_tile,
                  "you keep the old maximum: m_new = max(m, m_tile)": m},
            "l": {"the old sum is in units of e^m, and not rescaled: multiply by e^{m−m_new}":
                      l + new * l_tile,
                  "neither sum is rescaled: the old sum is in units of e^m, multiply it by"
                  " e^{m−m_new}, and the tile's by e^{m_tile−m_new}": l + l_tile,
                  "the tile is rescaled twice: with P = e^{S−m_new} its sum is in the new units"
                  " already, e^{m_tile−m_new} belongs to P = e^{S−m_tile}":
                      old * l + new**2 * l_tile,
                  turned: sign * l + new * l_tile,
                  "the tile's own sum is not rescaled: where the old maximum is the larger one,"
                  " multiply by e^{m_tile−m_new}": old * l + l_tile,
                  "you keep this tile's sum only: add the old one, rescaled": new * l_tile},
            "O": {"this is the formula in section 2.3 of the FlashAttention-2 paper, (l/l_new)⁻¹·O"
                  " without e^{m−m_new}: the ratio is upside down and the rescale is missing":
                      (l_new / l)[:, None] * O + tile_O,
                  "the ratio is upside down: l/l_new, not l_new/l":
                      (old * l_new / l)[:, None] * O + tile_O,
                  "the rescale is missing: the old sum l·O must be multiplied by e^{m−m_new}":
                      (l[:, None] * O + tile) / l_new[:, None],
                  turned: ((sign * l)[:, None] * O + tile) / l_new[:, None],
                  "only the tile is divided by l_new, a bracket is missing: divide the whole sum":
                      past + tile_O,
                  "the old O was divided by the old l, not by l_new: multiply it by l/l_new, too":
                      old[:, None] * O + tile_O,
                  "the division by l_new is missing: v1 keeps a finished O in HBM": past + tile,
                  "this is the update of the unnormalised o of chapter 05: v1's O is finished,"
                  " multiply it by the old l, and divide the sum by l_new":
                      old[:, None] * O + tile,
                  "the tile is rescaled twice: with P = e^{S−m_new} its P V is in the new units"
                  " already, e^{m_tile−m_new} belongs to P = e^{S−m_tile}":
                      (past + new[:, None] * tile) / l_new[:, None],
                  "the old O is finished, that is divided by l: multiply it by l before you add":
                      (old[:, None] * O + tile) / l_new[:, None],
                  "the tile's own P V is not rescaled: multiply it by e^{m_tile−m_new}":
                      (past + P @ V) / l_new[:, None]},
        }
    return ((past + tile) / l_new[:, None], m_new, l_new), wrong


@exercise("06.4", "Choose blocks for v2", difficulty=3, minutes=20, solution="choose_blocks", hints=(
    "Which of the two edges does the traffic of v2 depend on? Give the other as little room as the"
    " rule allows.",
    "At 2 and 4 bytes v2 holds Q: 2·Br·d, O: 4·Br·d, m and l: 8·Br, K and V: 4·Bc·d, S: 2·Br·Bc"
    " bytes. With Bc = 16, raise Br in steps of 16 until the next one does not fit."))
def check_choose_blocks(choose_blocks):
    """Check choose_blocks(sram_bytes, d) -> (Br, Bc): multiples of 16 that fit and move least."""
    N, gains = 4096, []
    for sram, d in ((166_912, 128), (166_912, 64), (65_536, 128), (232_448, 256), (24_576, 64)):
        got = parts(choose_blocks(sram, d), "(Br, Bc)")
        where = f"sram_bytes={sram:,}, d={d}: Br={got[0]}, Bc={got[1]}"
        numbers = all(isinstance(b, int | float | np.integer | np.floating) for b in got)
        if not numbers or any(b < 16 or b % 16 for b in got):
            raise Wrong(f"{where}: both must be whole multiples of 16, at least 16")
        Br, Bc = map(int, got)
        need = working_set_bytes("flash_v2", Br=Br, Bc=Bc, d=d)
        if need > sram:
            raise Wrong(f"{where} need {need:,} B, {need - sram:,} B too many"
                        f"{_why_too_large(Br, Bc, d, sram)}")
        best = max(b for b in range(16, N + 1, 16)
                   if working_set_bytes("flash_v2", Br=b, Bc=16, d=d) <= sram)
        moved, least = (traffic.flash_v2(Nq=N, Nk=N, d=d, Br=b, Bc=16).hbm_bytes for b in (Br, best))
        if moved > 1.01 * least:
            raise Wrong(f"{where} fit, but move {moved / least:.2f} times what the best choice"
                        f" moves at N={N:,}{_why_too_small(Br, Bc, d, sram)}")
        gains.append(f"{best}×{Bc}")
    return f"all of them fit, and none moves less: Br×Bc = {', '.join(gains)}."


def _why_too_large(Br, Bc, d, sram):
    parts = {"without O, which stays on chip as an accumulator": 4 * Br * d,
             "with an accumulator of 2 bytes; it takes 4": 2 * Br * d,
             "without the tile of S": 2 * Br * Bc,
             "without V": 2 * Bc * d,
             "without m and l, 4 bytes each a row": 8 * Br}
    need = working_set_bytes("flash_v2", Br=Br, Bc=Bc, d=d)
    if (Br, Bc) == tuple(16 * math.ceil(b / 16) for b in paper_blocks(sram // 2, d)) or (
            (Br, Bc) == tuple(b // 16 * 16 for b in paper_blocks(sram // 2, d))):
        return " (the paper's rule is asymptotic, it does not check what fits)"
    if sram < need <= 2 * sram and working_set_bytes("flash_v2", Br=Br + 16, Bc=Bc, d=d) > 2 * sram:
        return " (did you take sram_bytes for elements?)"
    for forgotten, size in sorted(parts.items(), key=lambda part: part[1]):
        if need - size <= sram:
            return f" (they would fit {forgotten})"
    return ""


def _why_too_small(Br, Bc, d, sram):
    if Bc > 16 and working_set_bytes("flash_v2", Br=Br + 16, Bc=16, d=d) <= sram:
        if Br == Bc:
            return (": the tiles are square, so room goes to Bc, but v2 reads K and V once per row"
                    " tile, so that only a larger Br helps")
        cap = largest_blocks(sram, d, algorithm="flash_v1")
        like_v1 = " as v1 would" if Bc > Br or (Br, Bc) == tuple(b // 16 * 16 for b in cap) else ""
        return (f": room goes to Bc{like_v1}, but v2 reads K and V once per row tile, so that only"
                " a larger Br helps")
    return ": there is room for a larger Br"
