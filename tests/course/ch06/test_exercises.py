"""The checks of chapter 06 accept the solution and name each seeded mistake."""

import math

import numpy as np
import pytest

from flashlib.course.ch06 import exercises as ch06
from flashlib.course.ch06 import solutions as right
from flashlib.models.blocks import largest_blocks, paper_blocks, working_set_bytes
from tests.course.exercises.examine import examine


def reads(N, d, Br, Bc, e, s, *, Tc=None, kv=2, qo=2, stats=2):
    Tc = math.ceil(N / Bc) if Tc is None else Tc
    return (kv + qo * Tc) * N * d * e + stats * Tc * N * s


def tc(*case):
    return math.ceil(case[0] / case[3])


def padded(N, d, Br, Bc, e, s, keys=False, rows=False):
    Tc = math.ceil(N / Bc)
    k, r = Tc * Bc if keys else N, math.ceil(N / Br) * Br if rows else N
    return 2 * k * d * e + 2 * Tc * r * (d * e + s)


def merge(O, m, l, S, V, *, form="right"):
    m_tile = S.max(axis=1)
    P = np.exp(S - m_tile[:, None])
    m_new = np.maximum(m, m_tile)
    old, new = np.exp(m - m_new), np.exp(m_tile - m_new)
    sign = np.exp(m_new - m)
    l_tile = P.sum(axis=1)
    l_new = {"l unscaled": l, "l sign": sign * l}.get(form, old * l) + new * l_tile
    if form == "tile l unscaled":
        l_new = old * l + l_tile
    if form == "both l unscaled":
        l_new = l + l_tile
    if form == "l twice":
        l_new = old * l + new**2 * l_tile
    if form == "stale m":
        m_new = m
    tile = new[:, None] * (P @ V) * (new[:, None] if form == "tile twice" else 1)
    if form == "unnormalised":
        return old[:, None] * O + tile, m_new, l_new
    kept = {"unscaled": l, "sign": sign * l, "not multiplied": old}.get(form, old * l)
    top = kept[:, None] * O + (P @ V if form == "tile unscaled" else tile)
    if form == "printed":
        return (l_new / l)[:, None] * O + tile / l_new[:, None], m_new, l_new
    if form == "upside down":
        return (old * l_new / l)[:, None] * O + tile / l_new[:, None], m_new, l_new
    if form == "no bracket":
        return (old * l)[:, None] * O + tile / l_new[:, None], m_new, l_new
    if form == "old division":
        return old[:, None] * O + tile / l_new[:, None], m_new, l_new
    return (top if form == "no division" else top / l_new[:, None]), m_new, l_new


def merging(form):
    return lambda *args: merge(*args, form=form)


def grow(fits, Bc=16):
    """Return a choice of blocks that raises Br while `fits(Br, d) <= sram`."""
    def choose(sram, d):
        Br = 16
        while fits(Br + 16, d) <= sram:
            Br += 16
        return Br, Bc
    return choose


def square(sram, d):
    """Return the largest square of multiples of 16 that fits."""
    B = 16
    while working_set_bytes("flash_v2", Br=B + 16, Bc=B + 16, d=d) <= sram:
        B += 16
    return B, B


WRONG = [
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start <= r.stop - 1 + Nk - Nq, "opposite"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > r.stop - 1, "top left"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start >= r.stop - 1 + Nk - Nq, "keys are lost"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > r.stop + Nk - Nq, "safe side"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > r.start + Nk - Nq, "first query"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.stop > r.stop + Nk - Nq, "last key"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > r.stop - 1 + Nq - Nk, "wrong sign"),
    (ch06.check_skips, lambda r, k, Nq, Nk: False, "never skip"),
    (ch06.check_skips, lambda r, k, Nq, Nk: True, "skip every tile"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > 3, "expected True, got False"),
    (ch06.check_skips, lambda r, k, Nq, Nk: 1, "skip every tile"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start - r.stop, "expected True or False, got -2"),
    (ch06.check_skips, lambda r, k, Nq, Nk: "no", "expected True or False, got 'no'"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, stats=0), "m and l are missing"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, stats=1), "one of m and l"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c[:4], 1, 1), "elements"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c[:5], c[4]), "stats_bytes"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c[:4], 2, 4), "fixed at 2 and 4"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, qo=1), "O is missing"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, Tc=c[0] // c[3]), "ragged"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, Tc=c[0] // c[3] + 1), "too many"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, Tc=math.ceil(c[0] / c[2])), "divide by Br"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, kv=2 * math.ceil(c[0] / c[2])), "outer loop"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, kv=1), "V is missing"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) * 2, "expected"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c, Tc=c[0] / c[3]), "fraction"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) - (tc(*c) - 1) * c[0] * c[1] * c[4],
     "once here"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) - tc(*c) * c[0] * c[1] * c[4], "is missing"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) - (tc(*c) - 1) * 2 * c[0] * c[5],
     "like O, not once"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) - c[0] * c[1] * c[4], "first visit's read of O"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) - 2 * c[0] * c[5], "first visit"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) - c[0] * c[1] * c[4] - 2 * c[0] * c[5],
     "first visit"),
    (ch06.check_v1_read_bytes, lambda *c: padded(*c, keys=True), "padded"),
    (ch06.check_v1_read_bytes, lambda *c: padded(*c, rows=True), "padded"),
    (ch06.check_v1_read_bytes, lambda *c: padded(*c, keys=True, rows=True), "padded"),
    (ch06.check_v1_read_bytes, lambda *c: "many", "expected"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) + c[0] * c[1] * c[4] + 2 * c[0] * c[5],
     "that is written, not read"),
    (ch06.check_v1_read_bytes, lambda *c: reads(*c) + 1, "expected 70,254,592, got 70,254,593"),
    (ch06.check_merge_tile, merging("printed"), "section 2.3 of the FlashAttention-2 paper"),
    (ch06.check_merge_tile, merging("no bracket"), "a bracket is missing"),
    (ch06.check_merge_tile, merging("old division"), "divided by the old l"),
    (ch06.check_merge_tile, merging("upside down"), "upside down"),
    (ch06.check_merge_tile, merging("unscaled"), "old sum l·O"),
    (ch06.check_merge_tile, merging("sign"), "wrong sign"),
    (ch06.check_merge_tile, merging("l unscaled"), "multiply by e^{m−m_new}"),
    (ch06.check_merge_tile, merging("both l unscaled"), "neither sum is rescaled"),
    (ch06.check_merge_tile, merging("l twice"), "rescaled twice"),
    (ch06.check_merge_tile, merging("tile twice"), "O: the tile is rescaled twice"),
    (ch06.check_merge_tile, merging("unnormalised"), "unnormalised o of chapter 05"),
    (ch06.check_merge_tile, lambda *a: merge(*a)[1:] + merge(*a)[:1], "order (m, l, O)"),
    (ch06.check_merge_tile, lambda *a: [merge(*a)[n] for n in (0, 2, 1)], "order (O, l, m)"),
    (ch06.check_merge_tile, merging("l sign"), "wrong sign"),
    (ch06.check_merge_tile, merging("tile l unscaled"), "own sum"),
    (ch06.check_merge_tile, merging("no division"), "division"),
    (ch06.check_merge_tile, merging("not multiplied"), "multiply it by l before"),
    (ch06.check_merge_tile, merging("tile unscaled"), "own P V"),
    (ch06.check_merge_tile, merging("stale m"), "old maximum"),
    (ch06.check_merge_tile, lambda *a: merge(*a)[0], "expected a tuple (O, m, l)"),
    (ch06.check_choose_blocks, lambda sram, d: paper_blocks(sram // 2, d), "multiples of 16"),
    (ch06.check_choose_blocks,
     lambda sram, d: tuple(b // 16 * 16 for b in paper_blocks(sram // 2, d)), "asymptotic"),
    (ch06.check_choose_blocks,
     grow(lambda Br, d: working_set_bytes("flash_v2", Br=Br, Bc=16, d=d) - 4 * Br * d),
     "without O"),
    (ch06.check_choose_blocks,
     grow(lambda Br, d: working_set_bytes("flash_v2", Br=Br, Bc=16, d=d) - 2 * Br * d),
     "accumulator of 2 bytes"),
    (ch06.check_choose_blocks,
     grow(lambda Br, d: working_set_bytes("flash_v2", Br=Br, Bc=16, d=d) // 2), "for elements"),
    (ch06.check_choose_blocks,
     lambda sram, d: tuple(max(16, b // 16 * 16)
                           for b in largest_blocks(sram, d, algorithm="flash_v1")),
     "room goes to Bc"),
    (ch06.check_choose_blocks, lambda sram, d: (16, 16), "room for a larger Br"),
    (ch06.check_choose_blocks, lambda sram, d: (96.5, 16), "whole multiples of 16"),
    (ch06.check_choose_blocks, lambda sram, d: (True, 16), "whole multiples of 16"),
    (ch06.check_choose_blocks,                       # not twice the least, and too much all the same
     lambda sram, d: (right.choose_blocks(sram, d)[0] * 3 // 64 * 16, 16), "room for a larger Br"),
    (ch06.check_choose_blocks, lambda sram, d: square(sram, d), "square"),
]
PAIRS = [(ch06.check_skips, right.skips), (ch06.check_v1_read_bytes, right.v1_read_bytes),
         (ch06.check_merge_tile, right.merge_tile), (ch06.check_choose_blocks, right.choose_blocks)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


def merge_row_by_row(O, m, l, S, V):
    rows = [right.merge_tile(*(x[r:r + 1] for x in (O, m, l, S)), V) for r in range(len(m))]
    return [np.concatenate(part).tolist() for part in zip(*rows, strict=True)]


@pytest.mark.parametrize(("check", "answer"), [
    (ch06.check_skips, lambda *place: int(right.skips(*place))),
    (ch06.check_skips, lambda *place: np.bool_(right.skips(*place))),
    (ch06.check_v1_read_bytes, lambda *case: float(right.v1_read_bytes(*case))),
    (ch06.check_merge_tile, merge_row_by_row),
    (ch06.check_choose_blocks, lambda sram, d: np.array(right.choose_blocks(sram, d))),
    (ch06.check_choose_blocks, lambda sram, d: list(right.choose_blocks(sram, d))),
    (ch06.check_choose_blocks, lambda sram, d: tuple(float(b) for b in right.choose_blocks(sram, d)))])
def test_another_right_form_passes(check, answer):
    assert check(answer), check(answer).message


def test_an_error_in_the_answer_is_a_verdict_not_a_traceback():
    assert "ZeroDivisionError" in ch06.check_v1_read_bytes(lambda *args: 1 // 0).message
