"""The checks of chapter 05 accept the solution and name each seeded mistake."""

import numpy as np
import pytest

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


def _merge_painted(O_a, a, O_b, b):
    m = np.maximum(a, b)
    p, q = np.exp(a - m), np.exp(b - m)
    O = np.nan_to_num((p[:, None] * O_a + q[:, None] * O_b) / (p + q)[:, None])
    return O, np.nan_to_num(m + np.log(p + q), nan=-np.inf, neginf=-np.inf)


def _v1_step(m, l, o, s, v):
    """The update of an o that is divided by l all the time."""
    new, l_new, _ = _step(m, l, o, s, v)
    return new, l_new, (l * np.exp(m - new) * o + np.exp(s - new) * v) / l_new


def _safe_masses(O_a, a, O_b, b):
    top = np.maximum(a, b)
    mass_a, mass_b = np.exp(a - top), np.exp(b - top)
    return mass_a[:, None] * O_a + mass_b[:, None] * O_b, top + np.log(mass_a + mass_b)


def _wrong_lse_of_one_half(O_a, a, O_b, b):
    O, lse = right.merge_finished(O_a, a, O_b, b)
    return O, lse + (np.isneginf(a) ^ np.isneginf(b))


def _wrong_start(m, l, o, s, v):
    new, l_new, o_new = _step(m, l, o, s, v)
    return new, 2 * l_new if np.isneginf(m) else l_new, o_new


def _step_in_place(m, l, o, s, v):
    new, l_new, o_new = _step(m, l, o, s, v)
    o[:] = o_new
    return new, l_new, o


def _nan_start(m, l, o, s, v):
    return _step(m, l, o, s, v, l_old=lambda alpha: alpha / alpha if np.isneginf(m) else alpha)


WRONG = [
    (ch05.check_finish, lambda l, o: o, "divide it by l"),
    (ch05.check_finish, lambda l, o: o / l, "along the columns"),
    (ch05.check_finish, lambda l, o: o / l[:, None], "gave NaN"),
    (ch05.check_finish, lambda l, o: o * l[:, None], "has to be divided"),
    (ch05.check_finish, lambda l, o: o / (l[:, None] + 1e-6), "changes every row"),
    (ch05.check_finish, lambda l, o: np.nan_to_num(o / l[:, None]), "an error made further up"),
    (ch05.check_finish, lambda l, o: [row / w if w > 0 else 0 * row
                                      for w, row in zip(l, np.nan_to_num(o), strict=True)],
     "an error made further up"),
    (ch05.check_finish, lambda l, o: np.where(l > 0, o.T, 0).T / np.where(l > 0, l, 1)[:, None],
     "a NaN in l"),
    (ch05.check_finish, lambda l, o: np.array([row / max(1e-300, w)
                                               for w, row in zip(l, o, strict=True)]), "a NaN in l"),
    (ch05.check_step, _step_in_place, "changed its input"),
    (ch05.check_step, lambda *a: _step(*a, o_old=lambda x: 1), "old o was not rescaled"),
    (ch05.check_step, lambda *a: _step(*a, l_old=lambda x: 1), "old l was not rescaled"),
    (ch05.check_step, lambda m, l, o, s, v: (max(m, s), l + np.exp(s - m), o + np.exp(s - m) * v),
     "nothing was converted"),
    (ch05.check_step, lambda *a: _step(*a, o_old=lambda x: 1 / x), "wrong sign"),
    (ch05.check_step, lambda m, l, o, s, v: (m, l, o), "did not move"),
    (ch05.check_step, lambda m, l, o, s, v: (s, *_step(m, l, o, s, v)[1:]), "replaced the maximum"),
    (ch05.check_step, lambda m, l, o, s, v: (*_step(m, l, o, s, v)[:2],
                                             _step(m, l, o, s, v)[2] / _step(m, l, o, s, v)[1]),
     "divide once"),
    (ch05.check_step, _v1_step, "as FlashAttention v1 keeps it"),
    (ch05.check_step, lambda *a: [_step(*a)[n] for n in (1, 0, 2)], "in the order (l, m, o)"),
    (ch05.check_step, lambda *a: _step(*a)[::-1], "in the order (o, l, m)"),
    (ch05.check_step, lambda *a: _step(*a)[:2], "expected a tuple (m, l, o)"),
    (ch05.check_step, _wrong_start, "l after the first key of all"),
    (ch05.check_step, _nan_start, "gave NaN"),
    (ch05.check_merge_finished, lambda O_a, a, O_b, b: ((O_a + O_b) / 2, np.logaddexp(a, b)),
     "plain mean"),
    (ch05.check_merge_finished, _safe_masses, "units of the larger one"),
    (ch05.check_merge_finished, _wrong_lse_of_one_half, "lse of a half and an empty half"),
    (ch05.check_merge_finished, lambda *a: right.merge_finished(*a)[::-1], "order (lse, O)"),
    (ch05.check_merge_finished,
     lambda O_a, a, O_b, b: (right.merge_finished(O_a, a, O_b, b)[0],
                             np.logaddexp(a, b) - np.maximum(a, b)), "add the larger lse back"),
    (ch05.check_merge_finished, lambda O_a, a, O_b, b: (_merge_nan(O_a, a, O_b, b)[0], a + b),
     "do not add"),
    (ch05.check_merge_finished, _naive_merge, "overflow"),
    (ch05.check_merge_finished, _merge_nan, "NaN"),
    (ch05.check_merge_finished, _merge_painted, "np.nan_to_num hides it"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nq * Nk) * d * e,
     "lse is written too"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: 2 * Nq * Nk * d * e + Nq * s,
     "Q is read and O written, too"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nk) * d * e + Nq * s,
     "for every query"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: (2 * Nq + 3 * Nq * Nk) * d * e + Nq * s,
     "two passes"),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nq * Nk) * d * 2 + Nq * 4,
     "use element_bytes and stats_bytes"),
    *((ch05.check_one_pass_bytes, answer, "queries and keys are confused") for answer in (
        lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nk * Nk) * d * e + Nq * s,
        lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nq * Nq) * d * e + Nq * s,
        lambda Nq, Nk, d, e, s: (2 * Nq + 2 * Nq * Nk) * d * e + Nk * s,
        lambda Nq, Nk, d, e, s: (2 * Nk + 2 * Nq * Nk) * d * e + Nk * s)),
]
PAIRS = [(ch05.check_finish, right.finish), (ch05.check_step, right.step),
         (ch05.check_merge_finished, right.merge_finished),
         (ch05.check_one_pass_bytes, right.one_pass_bytes)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


def single(answer):
    """Return an answer whose arrays are float32."""
    def rounded(*arguments):
        got = answer(*(np.float32(a) if isinstance(a, np.ndarray) else a for a in arguments))
        return tuple(map(np.float32, got)) if isinstance(got, tuple) else np.float32(got)
    return rounded


def merge_row_by_row(O_a, a, O_b, b):
    O, lse = [], []
    for row in range(len(a)):
        O_row, lse_row = right.merge_finished(*(x[row:row + 1] for x in (O_a, a, O_b, b)))
        O.append(O_row[0].tolist())
        lse.append(float(lse_row[0]))
    return O, lse


@pytest.mark.parametrize(("check", "answer"), [
    (ch05.check_finish,
     lambda l, o: [row / w if w else np.zeros(4) for w, row in zip(l, o, strict=True)]),
    (ch05.check_finish, lambda l, o: (o / np.where(l == 0, 1, l)[:, None]).tolist()),
    (ch05.check_finish, lambda l, o: np.divide(o, l[:, None], out=np.zeros_like(o),
                                               where=l[:, None] != 0)),
    (ch05.check_step, lambda *a: list(right.step(*a))),
    (ch05.check_step, lambda *a: tuple(map(np.asarray, right.step(*a)))),
    (ch05.check_merge_finished, merge_row_by_row),
    (ch05.check_one_pass_bytes, lambda Nq, Nk, d, e, s: float(Nq * (2 * d * e * (1 + Nk) + s))),
])
def test_another_right_form_passes(check, answer):
    assert check(answer), check(answer).message


@pytest.mark.parametrize(("check", "answer"), [(ch05.check_finish, right.finish),
                                               (ch05.check_step, right.step)])
def test_a_right_answer_in_float32_passes_with_a_word(check, answer):
    assert "float32" in check(single(answer), strict=True).message
