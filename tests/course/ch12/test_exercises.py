"""The checks of chapter 12 accept the solution and name each seeded mistake."""

from fractions import Fraction

import numpy as np
import pytest

from flashlib.course.ch12 import exercises as ch12
from flashlib.course.ch12 import solutions as right
from flashlib.models.sm import programs
from flashlib.models.sm.simulator import arrive, run, sync, wait
from tests.course.exercises.examine import examine


def without(kind, target, nth=None):
    """The reference solution, with some of its requests left out."""
    def consumer(sm, w):
        seen = 0
        for request in right.my_pingpong(sm, w):
            if (request.kind, str(request.target).split("[")[0]) == (kind, target):
                seen += 1
                if nth in (None, seen):
                    continue
            yield request
    return consumer


def two_turns(sm, w):
    """Q·Kᵀ in one turn, P·V in another: the other warpgroup waits with nothing to do."""
    other = f"turn[{1 - w}]"
    yield wait("Q full", 0)
    if w == 1:
        yield arrive("turn[0]")
    for j in range(sm.tiles):
        yield sm.k.full(j)
        yield sync(f"turn[{w}]")
        yield run(sm.qk(w, j))
        yield sm.k.release(j)
        yield from sm.softmax(w, j)
        yield from sm.rescale(w, j)
        yield sm.v.full(j)
        yield run(sm.pv(w, j, then=(other,)))
        yield sm.v.release(j)
    yield run(sm.store(w))


def early(sm, w):
    for request in right.my_pingpong(sm, w):
        yield request
        if request.kind == "sync":
            yield arrive(f"turn[{1 - w}]")


def hasty(sm, w):
    for request in right.my_pingpong(sm, w):
        if request.kind == "wait" and str(request.target).startswith("V full"):
            continue
        yield request


def generous(sm, w):
    """Both hand over the first turn."""
    if w == 0:
        yield arrive("turn[0]")
    yield from right.my_pingpong(sm, w)


def impolite(sm, w):
    """Waits for a turn, where `sync` would arrive as well."""
    for lap, request in enumerate(right.my_pingpong(sm, w)):
        yield wait(f"turn[{w}]", lap % 2) if request.kind == "sync" else request


def without_a_comma(sm, w):
    yield run(sm.qk(w, 0, then=("turn[1]")))


def naked(sm, w):
    yield sm.qk(w, 0)


def nested(sm, w):
    yield wait("Q full", 0)
    yield sm.k.full(0)
    yield run(sm.qk(w, 0))
    yield sm.softmax(w, 0)


def rarely(ring, waits):
    """The reference solution, with only these of the waits for K or for V, counted from 0."""
    def consumer(sm, w):
        seen = -1
        for request in right.my_pingpong(sm, w):
            if request.kind == "wait" and str(request.target).startswith(f"{ring} full"):
                seen += 1
                if not waits(seen, sm.tiles):
                    continue
            yield request
    return consumer


WRONG = [
    (ch12.check_break_even, lambda f, e: f / (2 * e), "there are two matmuls"),
    (ch12.check_break_even, lambda f, e: f / e, "counts as two FLOPs"),
    (ch12.check_break_even, lambda f, e: 4 * e / f, "upside down"),
    (ch12.check_break_even, lambda f, e: f / (8 * e), "not 8·d"),
    (ch12.check_break_even, lambda f, e: Fraction(f, 2 * e), "there are two matmuls"),
    (ch12.check_break_even, lambda f, e: 64, "compute it from the arguments"),
    (ch12.check_break_even, lambda f, e: f // e // 4, "do not round"),
    (ch12.check_break_even, lambda f, e: e / f, "upside down"),
    (ch12.check_break_even, lambda f, e: -(-f // (4 * e)), "do not round up"),
    (ch12.check_break_even, lambda f, e: f / 4 * e, "so divide by them"),
    (ch12.check_place, lambda j, n: (j % n, j // n % 2), "a ring of V alone"),
    (ch12.check_place, lambda j, n: (2 * j % n, 2 * j // n % 2), "holds V of tile j − 1"),
    (ch12.check_place, lambda j, n: ((2 * j + 1) % n, (2 * j + 1) // n % 2), "two tiles of K"),
    (ch12.check_place, lambda j, n: ((2 * j + 3) % n, (2 * j + 3) // n % 2), "counted from 0"),
    (ch12.check_place, lambda j, n: ((2 * j - 1) % n, (2 * j - 1) // n % 2), "this is K's place"),
    (ch12.check_place, lambda j, n: ((j + 2) % n, (j + 2) // n % 2), "takes two tiles for one"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n, j // n % 2), "the laps of the ring count"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n, (2 * j + 2) % 2), "always 0"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n, j % 2), "does not flip with every tile"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n, (2 * j + 2) // n), "counts the laps"),
    (ch12.check_place, lambda j, n: right.place(j, n)[::-1], "in this order"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n, 1 - (2 * j + 2) // n % 2), "producer's parity"),
    (ch12.check_place, lambda j, n: (2 * j + 2) % n, "expected a tuple"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n,) * 2, "the slot again"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n, (j + 1) // n % 2), "not with every second one"),
    (ch12.check_place, lambda j, n: (2 * j + 2, (2 * j + 2) // n % 2), "a place in the ring"),
    (ch12.check_place, lambda j, n: divmod(2 * j + 2, n), "divmod gives"),
    (ch12.check_place, lambda j, n: ((2 * j + 2) % n, (2 * j + 2) / n % 2), "two whole numbers"),
    (ch12.check_place, lambda j, n: (2 * j % n, ("even", "odd")[j % 2]), "a parity is 0 or 1"),
    (ch12.check_split_registers, lambda c: (24, (512 - 24) / c), "multiples of 8"),
    (ch12.check_split_registers, lambda c: (512 // (c + 1) // 8 * 8,) * 2, "equal share"),
    (ch12.check_split_registers, lambda c: (24, 512 / c), "leaves nothing"),
    (ch12.check_split_registers, lambda c: (24, (2048 - 24) // c // 8 * 8), "Did you divide bytes"),
    (ch12.check_split_registers, lambda c: (24, (512 - 6) // c // 8 * 8), "a whole warpgroup"),
    (ch12.check_split_registers, lambda c: (40, (512 - 24) // c // 8 * 8), "an SM has 65,536"),
    (ch12.check_split_registers, lambda c: (24, 128), "the most that fit"),
    (ch12.check_split_registers, lambda c: (Fraction(24), Fraction(488, c)), "multiples of 8"),
    (ch12.check_split_registers, lambda c: 240, "expected a tuple"),
    (ch12.check_split_registers, lambda c: ((512 - 24) // c // 8 * 8, 24), "in this order"),
    (ch12.check_split_registers, lambda c: (24 * 128, (512 - 24) // c // 8 * 8 * 128), "divide by 128"),
    (ch12.check_split_registers, lambda c: (8, (512 - 8) // c // 8 * 8), "less than the 24"),
    (ch12.check_split_registers, lambda c: (24, -(-(512 - 24) // c // 8) * 8), "round down"),
    (ch12.check_split_registers, lambda c: (24, round((512 - 24) / c / 8) * 8), "round down"),
    (ch12.check_my_pingpong, programs.specialized, "both warpgroups multiply at once"),
    (ch12.check_my_pingpong, without("sync", "turn"), "both warpgroups multiply at once"),
    (ch12.check_my_pingpong, without("arrive", "turn"), "handed over the first turn"),
    (ch12.check_my_pingpong, without("arrive", "K empty"), "a slot that is not released"),
    (ch12.check_my_pingpong, without("wait", "Q full"), "by luck"),
    (ch12.check_my_pingpong, rarely("K", lambda n, tiles: n == 0), "waited for 1 of the 10 tiles of K"),
    (ch12.check_my_pingpong, rarely("V", lambda n, tiles: n < tiles - 1),
     "waited for 9 of the 10 tiles of V"),
    (ch12.check_my_pingpong, generous, "hands it on twice"),
    (ch12.check_my_pingpong, impolite, "takes it without arriving"),
    (ch12.check_my_pingpong, without_a_comma, "got 'turn[1]': with one in it, a tuple ends in a comma"),
    (ch12.check_my_pingpong, naked, "the operation QK 0: yield run"),
    (ch12.check_my_pingpong, nested, "`yield from` it"),
    (ch12.check_my_pingpong, early, "both warpgroups multiply at once"),
    (ch12.check_my_pingpong, hasty, "Hazard: PV"),
    (ch12.check_my_pingpong, two_turns, "the order is right, and it takes"),
    (ch12.check_my_pingpong, without("run", "O"), "nobody has stored O"),
    (ch12.check_my_pingpong, lambda sm, w: [], "with `yield` in it"),
]
CHECKS = [(ch12.check_break_even, right.break_even), (ch12.check_place, right.place),
          (ch12.check_split_registers, right.split_registers),
          (ch12.check_my_pingpong, right.my_pingpong)]

FORMS = [(ch12.check_break_even, lambda f, e: Fraction(f, 4 * e)),
         (ch12.check_break_even, lambda f, e: np.float32(f / (4 * e))),
         (ch12.check_break_even, lambda f, e: np.float64(f) / e / 4),
         (ch12.check_place, lambda j, n: np.array([(2 * j + 2) % n, (2 * j + 2) // n % 2])),
         (ch12.check_place, lambda j, n: [np.int64(2 * j + 2) % n, np.int32((2 * j + 2) // n) & 1]),
         (ch12.check_split_registers, lambda c: np.array([24, (512 - 24) // c // 8 * 8])),
         (ch12.check_split_registers, lambda c: (24, Fraction(488 // c // 8 * 8))),
         (ch12.check_my_pingpong, lambda sm, w: right.my_pingpong(sm, w))]

TestAnswers = examine(right=CHECKS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), FORMS)
def test_other_forms_of_the_right_answer_pass(check, answer):
    assert check(answer, strict=True)
