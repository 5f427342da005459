"""The checks of chapter 15 accept the solution and name each seeded mistake."""

import functools

import numpy as np
import pytest

from flashlib.course.ch15 import exercises as ch15
from flashlib.course.ch15 import solutions as right
from tests.course.exercises.examine import examine


def up(n, by):
    return -(-n // by) * by


def other_keys(of=lambda B, H_k: B * H_k, parts=lambda sms, n: max(1, sms // n), ceil=True):
    def keys(B, H_k, N_k, sms):
        many = parts(sms, of(B, H_k))
        return up(-(-N_k // many), 64) if ceil else max(64, N_k // many // 64 * 64)
    return keys


def weighed(a, b, m=None):
    m = max(a[0], b[0]) if m is None else m
    return m, np.exp(a[0] - m), np.exp(b[0] - m)


def no_guard(a, b):
    m, alpha, beta = weighed(a, b)
    return m, alpha * a[1] + beta * b[1], alpha * a[2] + beta * b[2]


def no_shift(a, b):
    m = max(a[0], b[0])
    l = np.exp(a[0]) * a[1] + np.exp(b[0]) * b[1]
    return m, l / np.exp(m), (np.exp(a[0]) * a[2] + np.exp(b[0]) * b[2]) / np.exp(m)


def mean(a, b):
    m, l, _ = right.merge(a, b)
    return m, l, (a[2] / a[1] + b[2] / b[1]) / 2


def divided(a, b):
    m, l, o = right.merge(a, b)
    return m, l, o / l


def plain_l(a, b):
    m, _, o = right.merge(a, b)
    return m, a[1] + b[1], o


def plain_o(a, b):
    m, l, _ = right.merge(a, b)
    return m, l, a[2] + b[2]


def clamped(a, b):
    m = max(a[0], b[0], -1e30)
    return m, *(np.exp(a[0] - m) * a[n] + np.exp(b[0] - m) * b[n] for n in (1, 2))


def swapped(a, b):
    m, alpha, beta = weighed(a, b)
    return m, beta * a[1] + alpha * b[1], beta * a[2] + alpha * b[2]


def whole_pages(table, lengths, page, free):
    return {(b, j) for b, n in enumerate(lengths) for j in range(n // page) if table[b][j] in free}


def every_entry(table, lengths, page, free):
    return {(b, j) for b, row in enumerate(table) for j, at in enumerate(row) if at in free}


def first_sequence(table, lengths, page, free):
    return right.dangling(table[:1], lengths[:1], page, free)


def pages(table, lengths, page, free):
    return {(b, table[b][j]) for b, j in right.dangling(table, lengths, page, free)}


def keys(table, lengths, page, free):
    return {(b, j * page) for b, j in right.dangling(table, lengths, page, free)}


def left(states, merge):
    return functools.reduce(merge, states)


def halves(states, merge):
    if len(states) == 1:
        return states[0]
    middle = len(states) // 2
    return merge(halves(states[:middle], merge), halves(states[middle:], merge))


def far(states, merge):
    while len(states) > 1:
        half = len(states) // 2
        states = [merge(states[i], states[i + half]) for i in range(half)] + states[2 * half:]
    return states[0]


def twice(states, merge):
    return merge(right.fold(states, merge), states[0]) if len(states) > 1 else states[0]


def idle(states, merge):
    for state in states[1:]:
        merge(state, state)
    return right.fold(states, merge)


WRONG = [
    (ch15.check_keys_of_part, lambda B, H, N, sms: max(1, sms // (B * H)), "the number of parts"),
    (ch15.check_keys_of_part, lambda B, H, N, sms: -(-N // max(1, sms // (B * H))), "multiple of 64"),
    (ch15.check_keys_of_part, other_keys(parts=lambda sms, n: -(-sms // n)), "wait for a second turn"),
    (ch15.check_keys_of_part, other_keys(of=lambda B, H: H), "right for one sequence"),
    (ch15.check_keys_of_part, other_keys(of=lambda B, H: 4 * B * H), "count key heads"),
    (ch15.check_keys_of_part, other_keys(of=lambda B, H: B), "key heads has programs of its own"),
    (ch15.check_keys_of_part, other_keys(ceil=False), "rounded down"),
    (ch15.check_keys_of_part, lambda B, H, N, sms: up(N, 64), "each still with an SM of its own"),
    (ch15.check_keys_of_part, lambda B, H, N, sms: N / 7, "a positive whole number"),
    (ch15.check_merge, no_guard, "two empty parts: NaN"),
    (ch15.check_merge, lambda a, b: tuple(np.nan_to_num(x, neginf=-np.inf) for x in no_guard(a, b)),
     "np.nan_to_num hides"),
    (ch15.check_merge, no_shift, "overflows"),
    (ch15.check_merge, mean, "the mean of both results"),
    (ch15.check_merge, divided, "divided by l already"),
    (ch15.check_merge, plain_l, "l is the plain sum"),
    (ch15.check_merge, plain_o, "o is the plain sum"),
    (ch15.check_merge, swapped, "the factors are swapped"),
    (ch15.check_merge, clamped, "two empty parts: m"),
    (ch15.check_merge, lambda a, b: right.merge(a, b)[:2], "expected a tuple"),
    (ch15.check_merge, lambda a, b: (*right.merge(a, b)[:2], right.merge(a, b)[2][:2]), "o has shape"),
    (ch15.check_merge, lambda a, b: (min(a[0], b[0]), *right.merge(a, b)[1:]), "two parts: m"),
    (ch15.check_dangling, every_entry, "behind its"),
    (ch15.check_dangling, whole_pages, "filled in part"),
    (ch15.check_dangling, first_sequence, "every sequence"),
    (ch15.check_dangling, pages, "the place in the row"),
    (ch15.check_dangling, keys, "j counts the entries of a row"),
    (ch15.check_dangling, lambda *x: {p[::-1] for p in right.dangling(*x)}, "the other way round"),
    (ch15.check_dangling, lambda *x: len(right.dangling(*x)), "expected pairs"),
    (ch15.check_dangling, lambda table, lengths, page, free: {(0, 1)}, "somebody holds"),
    (ch15.check_fold, left, "from the first to the last"),
    (ch15.check_fold, halves, "begins at a multiple of its size"),
    (ch15.check_fold, far, "A program has neighbors"),
    (ch15.check_fold, lambda states, merge: states[0], "not the merge of all units"),
    (ch15.check_fold, twice, "not the merge of all units"),
    (ch15.check_fold, idle, "here are more"),
]
CHECKS = [(ch15.check_keys_of_part, right.keys_of_part), (ch15.check_merge, right.merge),
          (ch15.check_dangling, right.dangling), (ch15.check_fold, right.fold)]


def recursive(states, merge):
    """A tree that cuts at the largest power of 2 below the number."""
    if len(states) == 1:
        return states[0]
    cut = 1 << (len(states) - 1).bit_length() - 1
    return merge(recursive(states[:cut], merge), recursive(states[cut:], merge))


def guarded(a, b):
    if not a[1]:
        return b
    return a if not b[1] else no_guard(a, b)


FORMS = [
    (ch15.check_keys_of_part, lambda *case: np.int64(right.keys_of_part(*case))),
    (ch15.check_keys_of_part, lambda *case: float(right.keys_of_part(*case))),
    (ch15.check_merge, guarded),
    (ch15.check_merge, lambda a, b: list(right.merge(a, b))),
    (ch15.check_merge, lambda a, b: (*right.merge(a, b)[:2], list(right.merge(a, b)[2]))),
    (ch15.check_dangling, lambda *x: sorted(right.dangling(*x))),
    (ch15.check_dangling, lambda *x: np.array(sorted(right.dangling(*x))).reshape(-1, 2)),
    (ch15.check_dangling, lambda *x: [list(pair) for pair in right.dangling(*x)]),
    (ch15.check_fold, recursive),
    (ch15.check_fold, lambda states, merge: list(right.fold(states, merge))),
]

TestAnswers = examine(right=CHECKS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), FORMS)
def test_other_forms_of_the_right_answer_pass(check, answer):
    assert check(answer, strict=True)


def test_the_solution_of_15_2_is_the_library_s_merge():
    from flashlib.algorithms.state import SoftmaxState

    rng = np.random.default_rng(0)
    S, V = rng.normal(size=(1, 10)), rng.normal(size=(10, 4))
    halves = [SoftmaxState.of(S[:, cut], V[cut]) for cut in (slice(0, 6), slice(6, 10))]
    whole = halves[0].merge(halves[1])
    m, l, o = right.merge(*((h.m[0], h.l[0], h.o[0]) for h in halves))
    assert (m, l) == (whole.m[0], whole.l[0]) and np.array_equal(o, whole.o[0])
