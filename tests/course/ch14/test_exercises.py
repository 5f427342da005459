"""The checks of chapter 14 accept the solution and name each seeded mistake."""

import math
from fractions import Fraction

import numpy as np

from flashlib.course.ch14 import exercises as ch14
from flashlib.course.ch14 import solutions as right
from flashlib.course.ch14.exercises import _lazy
from tests.course.exercises.examine import examine


def poly(x, c):
    return np.polynomial.Polynomial(c)(x)


def parted(x, down=np.floor):
    n = down(x / np.log(2))
    return n, x - n * np.log(2)


def made(make, down=np.floor):
    """Return `polynomial_exp` that is `make` of (n, r, p(r), x, c); it clamps nothing."""
    def answer(x, c):
        n, r = parted(x, down)
        return make(n, r, poly(r, c), x, c)
    return answer


unclamped = made(lambda n, r, p, x, c: p * np.exp2(n))


def shifted(past, integer):
    def answer(x, c):
        n, r = parted(np.maximum(x, -88.0))
        p = np.array(poly(r, c))
        return np.where(x < -87, 0, (p.view(integer) + (n.astype(integer) << past)).view(np.float64))
    return answer


def step(**slip):
    return lambda m, l, O, S, V, tau: _lazy(m, l, O, S, V, tau, **slip)


def of_lazy(change):
    return lambda *a: change(*right.lazy_step(*a))


WRONG = [
    (ch14.check_room_for, lambda tau, most: math.log2(most) - tau, "whole: round down"),
    (ch14.check_room_for, lambda tau, most: math.ceil(math.log2(most) - tau), "rounded up"),
    (ch14.check_room_for, lambda tau, most: round(math.log2(most) - tau), "to the nearest"),
    (ch14.check_room_for, lambda tau, most: int(math.log2(most) - tau), "towards zero"),
    (ch14.check_room_for, lambda tau, most: math.floor(math.log2(most)), "τ needs room"),
    (ch14.check_room_for, lambda tau, most: math.floor(math.log2(most) + tau), "makes none"),
    (ch14.check_room_for, lambda tau, most: math.floor(math.log(most) - tau), "powers of two"),
    (ch14.check_room_for, lambda tau, most: math.ceil(math.log2(most) - tau) - 1, "of exactly"),
    (ch14.check_room_for, lambda tau, most: 8, "expected"),
    (ch14.check_room_for, lambda tau, most: math.floor(math.log2(most)) - tau, "take τ off first"),
    (ch14.check_room_for, lambda tau, most: max(0, math.floor(math.log2(most) - tau)), "be negative"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x, c[::-1]), "wrong order"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: p), "2ⁿ is missing"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: poly(x, c) * np.exp2(n)), "p takes r, not"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: poly(r / np.log(2), c) * np.exp2(n)),
     "not the fraction"),
    (ch14.check_polynomial_exp, lambda x, c: poly(x - np.floor(x), c) * np.exp2(np.floor(x)),
     "takes 2ˣ apart"),
    (ch14.check_polynomial_exp, lambda x, c: poly(x - np.floor(x), c) * np.exp(np.floor(x)),
     "eⁿ needs an exponential"),
    (ch14.check_polynomial_exp, lambda x, c: poly(x, c), "nothing else happened"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x, c[:-1]), "left out"),
    (ch14.check_polynomial_exp, lambda x, c: np.exp(x), "eˣ itself"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: p * np.exp2(n), np.trunc), "towards zero"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: p * np.exp2(n), np.rint), "to the nearest"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: p + np.exp2(n)), "was added"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: p * np.exp2(-n)), "wrong sign"),
    (ch14.check_polynomial_exp, made(lambda n, r, p, x, c: p * np.exp(x)), "eʳ was computed"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x, [0.0, *c[1:]]), "c[0] was left"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x, [1.0, *c[1:]]), "taken to be 1"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x, c).ravel(), "two rows"),
    (ch14.check_polynomial_exp, lambda x, c: np.where(x < 88, right.polynomial_exp(x, c), np.inf),
     "−87, 90.5"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x, c[:4]), "only the first four"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x, c).astype(np.float32),
     "x is float64"),
    (ch14.check_polynomial_exp, shifted(23, np.int64), "past 23 bits"),
    (ch14.check_polynomial_exp, shifted(23, np.int32), "every number as two"),
    (ch14.check_polynomial_exp, unclamped, "−∞ gave NaN"),
    *((ch14.check_polynomial_exp, lambda x, c, at=at: unclamped(np.maximum(x, at), c), "−∞ gave")
      for at in (-10.0, -86.0, -87.0, -88.0, -700.0)),
    (ch14.check_polynomial_exp, lambda x, c: np.where(x < -88, 0, unclamped(np.maximum(x, -88), c)),
     "−88 gave"),
    (ch14.check_polynomial_exp, lambda x, c: np.where(x <= -88, 0, unclamped(np.maximum(x, -88), c)),
     "−87.5 gave"),
    (ch14.check_polynomial_exp,
     lambda x, c: np.where(np.isinf(x), 0, unclamped(np.maximum(x, -700), c)), "−1000 gave"),
    *((ch14.check_polynomial_exp, lambda x, c, at=at: np.where(x < at, 0, right.polynomial_exp(x, c)),
       "too much became 0") for at in (-20.0, -86.75)),
    (ch14.check_polynomial_exp, lambda x, c: np.where(x <= -87, 0, right.polynomial_exp(x, c)),
     "too much became 0"),
    (ch14.check_polynomial_exp, lambda x, c: np.where(x < -87, 0, unclamped(np.maximum(x, -86), c)),
     "clamp stands too high"),
    (ch14.check_polynomial_exp,
     lambda x, c: right.polynomial_exp(x, c) + (x > -87) * (x < -69) * 1e-30, "−20.25, −70.5"),
    (ch14.check_polynomial_exp, lambda x, c: right.polynomial_exp(x[x > -87], c), "expected shape"),
    (ch14.check_lazy_step, lambda m, l, O, S, V, tau: _lazy(m, l, O, S, V, 0.0), "every new maximum"),
    (ch14.check_lazy_step, lambda m, l, O, S, V, tau: _lazy(m, l, O, S, V, 1e9), "no row took"),
    (ch14.check_lazy_step, step(renewed=lambda top, m: m + 2.0), "not m + τ"),
    (ch14.check_lazy_step, lambda m, l, O, S, V, tau: _lazy(
        m, l, O, S, V, tau, renewed=lambda top, m: top - tau), "τ lower"),
    (ch14.check_lazy_step, step(grows=lambda top, m, tau: top - m >= tau), "more than τ is"),
    (ch14.check_lazy_step, step(grows=lambda top, m, tau: top > tau), "how much it has grown"),
    (ch14.check_lazy_step, step(grows=lambda top, m, tau: (top - m) * np.log(2) > tau),
     "natural logarithms"),
    (ch14.check_lazy_step, step(grows=lambda top, m, tau: (top - m > tau).any()), "decide row by row"),
    (ch14.check_lazy_step, step(sinks=True, grows=lambda top, m, tau: np.abs(top - m) > tau), "m sank"),
    (ch14.check_lazy_step, step(P_from="top"), "while m stayed behind"),
    (ch14.check_lazy_step, step(P_from="old"), "from before the tile"),
    (ch14.check_lazy_step, step(power=np.exp), "np.exp2"),
    (ch14.check_lazy_step, step(sign=-1), "upside down"),
    (ch14.check_lazy_step, step(rescaled="O"), "l was forgotten"),
    (ch14.check_lazy_step, step(rescaled="l"), "O was forgotten"),
    (ch14.check_lazy_step, of_lazy(lambda m, l, O: (m, l, O / l[:, None])), "divided by l"),
    (ch14.check_lazy_step, of_lazy(lambda m, l, O: O), "(m, l, O)"),
    (ch14.check_best_share, lambda E, A, B: (E - A) / (E + B), "no negative share"),
    (ch14.check_best_share, lambda E, A, B: E / (E + B), "other work"),
    (ch14.check_best_share, lambda E, A, B: E / (E + A + B), "does not depend on y"),
    (ch14.check_best_share, lambda E, A, B: (E - A) / B, "relieves its unit, (1 − y)·E, and no"),
    (ch14.check_best_share, lambda E, A, B: max(0, (E - A) / (A + B)), "where one of them begins"),
    (ch14.check_best_share, lambda E, A, B: (E - A) / (A + B), "not by A; and no"),
    (ch14.check_best_share, lambda E, A, B: E / (E + B), "whatever y is"),
    (ch14.check_best_share, lambda E, A, B: 1 - right.best_share(E, A, B), "stays on the unit"),
    (ch14.check_best_share, lambda E, A, B: max(0, (E - A) / B), "relieves its unit"),
    (ch14.check_best_share, lambda E, A, B: max(0, (E - A) / (E - A + B)), "whole work"),
    (ch14.check_best_share, lambda E, A, B: 100 * right.best_share(E, A, B), "per cent"),
    (ch14.check_best_share, lambda E, A, B: 1.0, "everything was moved"),
    (ch14.check_best_share, lambda E, A, B: max(0, (E - A) / E), "not made equal"),
    *((ch14.check_best_share, lambda E, A, B, n=n: min(
        np.linspace(0, 1, n), key=lambda y: max((1 - y) * E, A + y * B)), "near, but not exact")
      for n in (101, 1001)),
    (ch14.check_best_share, lambda E, A, B: round(right.best_share(E, A, B), 6), "near, but not exact"),
    (ch14.check_best_share, lambda E, A, B: "a sixth", "expected numbers"),
]
TestAnswers = examine(
    right=[(ch14.check_room_for, right.room_for), (ch14.check_polynomial_exp, right.polynomial_exp),
           (ch14.check_lazy_step, right.lazy_step), (ch14.check_best_share, right.best_share)],
    wrong=WRONG)


def test_a_row_that_does_not_grow_needs_no_maximum_with_the_old_one():
    assert ch14.check_lazy_step(step(sinks=True))


def test_right_answers_of_other_forms():
    assert ch14.check_polynomial_exp(shifted(52, np.int64))

    def each(x, c):
        weights = [0.0 if v < -87 else float(unclamped(v, c)) for v in x.flat]
        return np.reshape(weights, x.shape).tolist()

    assert ch14.check_room_for(lambda tau, most: int(np.log2(most) - tau + 1000) - 1000)
    assert ch14.check_room_for(lambda tau, most: max(
        s for s in range(-20, 20) if 2.0 ** (s + tau) <= most))
    assert ch14.check_polynomial_exp(each)
    assert ch14.check_lazy_step(of_lazy(lambda *parts: [part.tolist() for part in parts]))
    assert ch14.check_best_share(lambda E, A, B: max(Fraction(0), Fraction(E - A) / Fraction(E + B)))
    assert ch14.check_best_share(lambda E, A, B: np.clip(np.float64(E - A) / (E + B), 0, 1))
