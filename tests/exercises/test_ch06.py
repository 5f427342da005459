"""The checks of chapter 06 accept the solution and name each seeded mistake."""

import math

import numpy as np
import pytest

from flashlib.exercises import ch06
from flashlib.exercises.core import REGISTRY, ExerciseFailed
from flashlib.exercises.solutions import ch06 as right
from flashlib.models.blocks import largest_blocks, paper_blocks, working_set_bytes


def reads(N, d, Br, Bc, e, s, *, Tc=None, kv=2, qo=2, stats=2):
    Tc = math.ceil(N / Bc) if Tc is None else Tc
    return (kv + qo * Tc) * N * d * e + stats * Tc * N * s


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
    if form == "stale m":
        m_new = m
    tile = new[:, None] * (P @ V)
    kept = {"unscaled": l, "sign": sign * l, "not multiplied": old}.get(form, old * l)
    top = kept[:, None] * O + (P @ V if form == "tile unscaled" else tile)
    if form == "printed":
        return (l_new / l)[:, None] * O + tile / l_new[:, None], m_new, l_new
    if form == "upside down":
        return (old * l_new / l)[:, None] * O + tile / l_new[:, None], m_new, l_new
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


WRONG = [
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start <= r.stop - 1 + Nk - Nq, "opposite"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > r.stop - 1, "top left"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start >= r.stop - 1 + Nk - Nq, "keys are lost"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > r.stop + Nk - Nq, "safe side"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.start > r.start + Nk - Nq, "first query"),
    (ch06.check_skips, lambda r, k, Nq, Nk: k.stop > r.stop + Nk - Nq, "last key"),
    (ch06.check_skips, lambda r, k, Nq, Nk: False, "expected True, got False"),
    (ch06.check_skips, lambda r, k, Nq, Nk: 1, "True or False"),
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
    (ch06.check_merge_tile, merging("printed"), "circulating notes"),
    (ch06.check_merge_tile, merging("upside down"), "upside down"),
    (ch06.check_merge_tile, merging("unscaled"), "old mass"),
    (ch06.check_merge_tile, merging("sign"), "wrong sign"),
    (ch06.check_merge_tile, merging("l unscaled"), "old l is not rescaled"),
    (ch06.check_merge_tile, merging("l sign"), "wrong sign"),
    (ch06.check_merge_tile, merging("tile l unscaled"), "own sum"),
    (ch06.check_merge_tile, merging("no division"), "division"),
    (ch06.check_merge_tile, merging("not multiplied"), "multiply it by l"),
    (ch06.check_merge_tile, merging("tile unscaled"), "own P V"),
    (ch06.check_merge_tile, merging("stale m"), "old maximum"),
    (ch06.check_merge_tile, lambda *a: merge(*a)[0], "three arrays"),
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
]
PAIRS = [(ch06.check_skips, right.skips), (ch06.check_v1_read_bytes, right.v1_read_bytes),
         (ch06.check_merge_tile, right.merge_tile), (ch06.check_choose_blocks, right.choose_blocks)]


@pytest.mark.parametrize(("check", "answer"), PAIRS)
def test_solution_passes(check, answer):
    assert check(answer, strict=True)


@pytest.mark.parametrize(("check", "answer", "diagnosis"), WRONG)
def test_mistake_is_named(check, answer, diagnosis):
    verdict = check(answer)
    assert not verdict
    assert diagnosis in verdict.message


@pytest.mark.parametrize("check", [check for check, _ in PAIRS])
def test_stub_is_not_answered_and_strict_raises(check):
    def stub(*args):
        raise NotImplementedError

    assert "not answered yet" in check(stub).message
    assert "not answered yet" in check(lambda *args: None).message
    with pytest.raises(ExerciseFailed):
        check(stub, strict=True)


def test_an_error_in_the_answer_is_a_verdict_not_a_traceback():
    assert "ZeroDivisionError" in ch06.check_v1_read_bytes(lambda *args: 1 // 0).message


@pytest.mark.parametrize("name", ["06.1", "06.2", "06.3", "06.4"])
def test_hints_and_solutions_are_there(name, capsys):
    assert len(REGISTRY[name].hints) >= 2
    ch06.hint(name)
    ch06.solution(name)
    assert f"def {REGISTRY[name].solution}(" in capsys.readouterr().out
