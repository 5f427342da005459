"""The checks of chapter 17 accept the solution and name each seeded mistake."""

import math

import numpy as np
import pytest

from flashlib.course.ch17 import exercises as ch17
from flashlib.course.ch17 import solutions as right
from tests.course.exercises.examine import examine


def solved(by):
    """Return `length` with its N made of (12·C, x, faster, wanted)."""
    return lambda C, f, w: by(12 * C, (w - 1) / (1 - w / f), f, w) if w < f else math.inf


def fitting(which, bytes_of):
    """Return `longest` by trial, with `which` of its two counts replaced by `bytes_of`."""
    def longest(L, H, C, e, room):
        found = list(right.longest(L, H, C, e, room))
        low, high = 0, room
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if bytes_of(middle, L, H, C, e) <= room else (low, middle - 1)
        found[which] = low
        return tuple(found)
    return longest


def writing(shared, own, up=math.ceil):
    """Return `at_once` that reads `shared` bytes for all and `own` for each, of (w, cache, e, L)."""
    def at_once(w, L, H_k, d, N, e, rate, wanted):
        cache = 2 * L * H_k * d * N
        left = rate - wanted * own(w, cache, e, L)
        return up(wanted * shared(w, cache, e, L) / left) if left > 0 else math.inf
    return at_once


def weights(w, c, e, L):
    return w * e


def standard(N, L, H, C, e):
    return L * (3 * C * N * e + H * N * N * e)


def ours(N, L, H, C, e):
    return L * (4 * C * N * e + 4 * H * N)


def at_the_end(model, tokens):
    """Look at the last place only: a row that sees but the next token leaks there, too."""
    other = np.array(tokens)
    other[-1] += 1
    moved = np.any(model(other)[:-1] != model(tokens)[:-1], axis=-1)
    return (int(np.argmax(moved)), len(tokens) - 1) if moved.any() else None


def at_the_front(model, tokens):
    """Look at the first row only."""
    for place in range(1, len(tokens)):
        other = np.array(tokens)
        other[place] += 1
        if np.any(model(other)[0] != model(tokens)[0]):
            return 0, place
    return None


def in_place(model, tokens):
    before = model(tokens).copy()
    tokens[-1] += 1
    return (0, 7) if np.any(model(tokens)[:-1] != before[:-1]) else None


def the_row_before(model, tokens):
    """Change every place, but look at the row before it only."""
    for place in range(1, len(tokens)):
        other = np.array(tokens)
        other[place] += 1
        if np.any(model(other)[place - 1] != model(tokens)[place - 1]):
            return place - 1, place
    return at_the_end(model, tokens) or at_the_front(model, tokens)


def emptied(model, tokens):
    """Set every place to 0, which changes nothing where a 0 stands."""
    for place in range(1, len(tokens)):
        other = np.array(tokens)
        other[place] = 0
        moved = np.any(model(other)[:place] != model(tokens)[:place], axis=-1)
        if moved.any():
            return int(np.argmax(moved)), place
    return None


def of_prefixes(model, tokens):
    """Compare with the rows of a prefix: no leak shows where the later token is a 0."""
    for k in range(len(tokens) - 1, 0, -1):
        moved = np.any(model(tokens[:k]) != model(tokens)[:k], axis=-1)
        if moved.any():
            return int(np.argmax(moved)), k
    return None


def of_changed_prefixes(model, tokens):
    """Compare a prefix with the whole text in which the next token is another."""
    for k in range(len(tokens) - 1, 0, -1):
        other = np.array(tokens)
        other[k] += 1
        moved = np.any(model(tokens[:k]) != model(other)[:k], axis=-1)
        if moved.any():
            return int(np.argmax(moved)), k
    return None


def itself(model, tokens):
    return (len(tokens) - 1, len(tokens) - 1)


WRONG = [
    (ch17.check_length, solved(lambda C, x, f, w: x), "which N makes it so"),
    (ch17.check_length, solved(lambda C, x, f, w: x / (1 + x)), "share of the time: which"),
    (ch17.check_length, solved(lambda C, x, f, w: C * x / (1 + x)), "is not its time over"),
    (ch17.check_length, solved(lambda C, x, f, w: C * x / 2), "without a causal mask"),
    (ch17.check_length, solved(lambda C, x, f, w: C * (w - 1)), "still takes time"),
    (ch17.check_length, lambda C, f, w: np.divide(12 * C * (w - 1), 1 - w / f), "less than"),
    (ch17.check_length, lambda C, f, w: 12 * C * f * (w - 1) / (f - w) if f != w else math.inf,
     "3× of 1.5× at (1,): expected inf, got -30720"),
    (ch17.check_length, lambda *x: 7.0, "expected"),
    (ch17.check_length, lambda *x: "far", "expected numb"),
    (ch17.check_longest, fitting(0, lambda N, L, H, C, e: standard(N, L, 1, C, e)), "a P of its own"),
    (ch17.check_longest, fitting(0, lambda N, L, H, C, e: standard(N, L, 2 * H, C, e)), "S is not"),
    (ch17.check_longest, fitting(0, lambda N, L, H, C, e: standard(N, L, H, 0, e)), "Q, K and V"),
    (ch17.check_longest, fitting(0, lambda N, L, *x: standard(N, 1, *x)), "standard: every layer"),
    (ch17.check_longest, fitting(0, lambda N, L, H, C, e: standard(N, L, H, H * C, e)), "C are the"),
    (ch17.check_longest, fitting(1, lambda N, L, H, C, e: ours(N, L, 0, C, e)), "lse is missing"),
    (ch17.check_longest, fitting(1, lambda N, L, H, C, e: ours(N, L, H * e / 4, C, e)), "float32 what"),
    (ch17.check_longest, fitting(1, lambda N, L, H, C, e: ours(N, L, 1, C, e)), "an lse of its own"),
    (ch17.check_longest, fitting(1, lambda N, L, H, C, e: ours(N, L, H, 3 * C / 4, e)), "O is miss"),
    (ch17.check_longest, fitting(1, lambda N, L, *x: ours(N, 1, *x)), "ours: every layer keeps"),
    (ch17.check_longest, fitting(1, lambda N, L, H, C, e: ours(N, L, H, H * C, e)), "C are the"),
    (ch17.check_longest, lambda *x: right.longest(*x)[::-1], "in the order (ours"),
    (ch17.check_longest, lambda *x: np.array(right.longest(*x)) + 1, "expected"),
    (ch17.check_longest, lambda *x: {}, "expected a tuple"),
    (ch17.check_at_once, writing(lambda w, c, e, L: (w + c) * e, lambda *x: 0), "a cache of its own"),
    (ch17.check_at_once, writing(weights, lambda *x: 0), "caches are read as well"),
    (ch17.check_at_once, writing(weights, lambda w, c, e, L: c * e / 2), "K and V are two"),
    (ch17.check_at_once, writing(weights, lambda w, c, e, L: c * e / L), "every layer has"),
    (ch17.check_at_once, writing(lambda w, *x: w, lambda w, c, e, L: c * e), "not bytes"),
    (ch17.check_at_once, writing(weights, lambda w, c, e, L: c), "a number in a cache"),
    (ch17.check_at_once, writing(weights, lambda w, c, e, L: c * e, math.floor), "and enough"),
    (ch17.check_at_once, writing(weights, lambda w, c, e, L: c * e, float), "a whole number: round up"),
    (ch17.check_at_once, lambda w, L, H_k, d, N, e, rate, wanted: math.ceil(
        wanted * w * e / (rate - wanted * 2 * L * H_k * d * N * e)), "return math.inf"),
    (ch17.check_at_once, lambda *x: right.at_once(*x) + (x[0] > 1e9), "B at (1,): expected"),
    (ch17.check_at_once, lambda *x: 5, "expected"),
    (ch17.check_first_leak, lambda model, tokens: (0, 7), "expected None"),
    (ch17.check_first_leak, itself, "expected None"),
    (ch17.check_first_leak, at_the_front, "Try every place"),
    (ch17.check_first_leak, at_the_end, "a single row in the middle: got None"),
    (ch17.check_first_leak, the_row_before, "row 2 changes with place 5, which holds token 0"),
    (ch17.check_first_leak, emptied, "with another token than it holds"),
    (ch17.check_first_leak, of_prefixes, "with another token than it holds"),
    (ch17.check_first_leak, in_place, "copy them first"),
    (ch17.check_first_leak, lambda m, t: right.first_leak(m, t) and True, "expected (row, place)"),
    (ch17.check_first_leak, lambda m, t: right.first_leak(m, t) and (5, 2), "leads to a later place"),
    (ch17.check_first_leak, lambda m, t: right.first_leak(m, t) and (0, 7), "does not change"),
]
CHECKS = [(ch17.check_length, right.length), (ch17.check_longest, right.longest),
          (ch17.check_at_once, right.at_once), (ch17.check_first_leak, right.first_leak)]
FORMS = [
    (ch17.check_length, lambda C, f, w: 12 * C * f * (w - 1) / (f - w) if f > w else float("inf")),
    (ch17.check_length, lambda *x: np.ceil(right.length(*x))),
    (ch17.check_longest, lambda *x: list(right.longest(*x))),
    (ch17.check_longest, lambda *x: np.array(right.longest(*x), float)),
    (ch17.check_longest, fitting(0, standard)),
    (ch17.check_longest, fitting(1, ours)),
    (ch17.check_longest, lambda L, H, C, e, room: (int(
        (np.sqrt(9 * C * C * e * e + 4 * H * e * room / L) - 3 * C * e) / (2 * H * e)),
        right.longest(L, H, C, e, room)[1])),
    (ch17.check_at_once, lambda *x: np.float64(right.at_once(*x))),
    (ch17.check_first_leak, lambda m, t: (found := right.first_leak(m, t)) and list(found)),
    (ch17.check_first_leak, of_changed_prefixes),
]

TestAnswers = examine(right=CHECKS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), FORMS)
def test_other_forms_of_the_right_answer_pass(check, answer):
    assert check(answer, strict=True)
