"""The checks of chapter 05 accept the solution and name each seeded mistake."""

import numpy as np

from flashlib.course.ch05 import exercises as ch05
from flashlib.course.ch05 import solutions as right
from tests.course.exercises.examine import examine


def _step(m, l, o, s, v, *, l_old=None, o_old=None, p_of=None):
    new = max(m, s)
    alpha, p = np.exp(m - new), np.exp(s - new)
    return (new, l * (alpha if l_old is None else l_old(alpha)) + p,
            o * (alpha if o_old is None else o_old(alpha)) + p * v)


def _naive_merge(O_a, a, O_b, b):
    mass_a, mass_b = np.exp(a), np.exp(b)
    total = mass_a + mass_b
    return (mass_a[:, None] * O_a + mass_b[:, None] * O_b) / total[:, None], np.log(total)


def _merge_nan(O_a, a, O_b, b):
    lse = np.logaddexp(a, b)
    return np.exp(a - lse)[:, None] * O_a + np.exp(b - lse)[:, None] * O_b, lse


WRONG = [
    (ch05.check_finish, lambda l, o: o, "divide it by l"),
    (ch05.check_finish, lambda l, o: o / l, "along the columns"),
    (ch05.check_finish, lambda l, o: o / l[:, None], "gave NaN"),
    (ch05.check_finish, lambda l, o: o * l[:, None], "has to be divided"),
    (ch05.check_step, lambda *a: _step(*a, o_old=lambda x: 1), "old o was not rescaled"),
    (ch05.check_step, lambda *a: _step(*a, l_old=lambda x: 1), "old l was not rescaled"),
    (ch05.check_step, lambda *a: _step(*a, o_old=lambda x: 1 / x), "wrong sign"),
    (ch05.check_step, lambda m, l, o, s, v: (m, l, o), "did not move"),
    (ch05.check_step, lambda m, l, o, s, v: (s, *_step(m, l, o, s, v)[1:]), "replaced the maximum"),
    (ch05.check_step, lambda m, l, o, s, v: (*_step(m, l, o, s, v)[:2],
                                             _step(m, l, o, s, v)[2] / _step(m, l, o, s, v)[1]),
     "divide once"),
    (ch05.check_merge_finished, lambda O_a, a, O_b, b: ((O_a + O_b) / 2, np.logaddexp(a, b)),
     "plain mean"),
    (ch05.check_merge_finished, lambda O_a, a, O_b, b: (_merge_nan(O_a, a, O_b, b)[0], a + b),
     "do not add"),
    (ch05.check_merge_finished, _naive_merge, "overflow"),
    (ch05.check_merge_finished, _merge_nan, "NaN"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nq * Nk) * d * e,
     "lse is written too"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nk) * d * e + Nq * s,
     "for every query"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: (2 * Nq + 3 * Nq * Nk) * d * e + Nq * s,
     "two passes"),
]
PAIRS = [(ch05.check_finish, right.finish), (ch05.check_step, right.step),
         (ch05.check_merge_finished, right.merge_finished),
         (ch05.check_one_pass_bytes, right.one_pass_bytes)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)
