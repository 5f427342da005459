"""Exercises of chapter 14: room in eight bits, eˣ, a maximum out of date, the best share."""

from fractions import Fraction

import numpy as np

from flashlib import exp2
from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution

__all__ = ["check_best_share", "check_lazy_step", "check_polynomial_exp", "check_room_for",
           "hint", "solution"]


@exercise("14.1", "Make room", difficulty=1, minutes=5, solution="room_for",
          hints=("The largest weight is 2^(shift + τ). By which power of two is `largest` reached?",
                 "shift + τ ≤ log₂(largest). Round down: −1.4 becomes −2."))
def check_room_for(room_for):
    """Accept `room_for(tau, largest) -> shift`, whole, with 2^(shift + tau) ≤ largest."""
    cases = [(0.5, 448.0), (1.0, 448.0), (4.0, 448.0), (8.0, 57344.0), (4.0, 6.0), (3.0, 64.0)]
    got, (tau, largest) = [room_for(*case) for case in cases], np.array(cases).T
    room = np.log2(largest) - tau
    expect_close(got, np.floor(room), "the shift", mistakes={
        "a shift is whole: round down": room,
        "a shift is whole: take τ off first, then round down": np.floor(np.log2(largest)) - tau,
        "a shift may be negative": np.maximum(np.floor(room), 0),
        "rounded up, the largest weights saturate: round down": np.ceil(room),
        "rounded to the nearest, the largest weights may saturate: round down": np.rint(room),
        "cut off towards zero, a negative shift is too large: round down": np.trunc(room),
        "τ needs room, too: weights reach 2^τ": np.floor(np.log2(largest)),
        "τ takes room, and makes none": np.floor(room + 2 * tau),
        "a shift counts powers of two: log₂": np.floor(np.log(largest) - tau),
        "a weight of exactly `largest` does not saturate": np.ceil(room) - 1})
    return "at τ = 4 there is room for a shift of 4 in e4m3, as the table above says."


@exercise("14.2", "Take eˣ apart", difficulty=2, minutes=15, solution="polynomial_exp",
          hints=("n is how often ln 2 goes into x, rounded down, also below zero; r is the rest.",
                 "Horner, for a cubic: ((c₃·r + c₂)·r + c₁)·r + c₀. np.ldexp(p, n) is p · 2ⁿ for an"
                 " array of whole numbers n.astype(int).",
                 "−∞ has no rest. Replace what lies below −88 by −88 first, and in the end give 0 to"
                 " all x below −87."))
def check_polynomial_exp(polynomial_exp):
    """Accept `polynomial_exp(x, c) -> p(r)·2ⁿ` with x = n·ln 2 + r, and 0 below −87."""
    c = np.array([0.75, 0.5, 0.25, 0.125])                # not near eʳ: np.exp is no answer
    x = np.array([0.0, 0.5, 2.25, -0.25, -3.5, 6.75])

    def parted(x, down=np.floor, by=_LN2):
        return down(x / by), x - down(x / by) * by

    (n, r), poly = parted(x), np.polynomial.Polynomial(c)
    with np.errstate(all="ignore"):
        got = _of_float64(polynomial_exp, x.copy(), c.copy())
        if np.asarray(got).dtype == np.float32:
            raise Wrong("x is float64, and so should the result be: float32 cannot hold e⁹⁰")
        edge = np.array([-20.25, -70.5, -86.5, -87.0, 90.5])
        kept = polynomial_exp(edge.copy(), c.copy())
        below = np.array([-np.inf, -1000.0, -200.0, -88.0, -87.5])
        nothing = np.asarray(polynomial_exp(below.copy(), c.copy()))
    short, near, (whole, rest) = parted(x, np.trunc), parted(x, np.rint), parted(x, by=1.0)
    expect_close(got, poly(r) * 2**n, "p(r)·2ⁿ", mistakes={
        "the coefficients came in the wrong order: c[0] is that of r⁰":
            np.polynomial.Polynomial(c[::-1])(r) * 2**n,
        "the factor 2ⁿ is missing": poly(r),
        "p takes r, not x": poly(x) * 2**n,
        "p takes r = x − n·ln 2, not the fraction of x / ln 2": poly(r / _LN2) * 2**n,
        "that takes 2ˣ apart: n is how often ln 2 goes into x": poly(rest) * 2**whole,
        "that is eⁿ·p with a whole n of x, and eⁿ needs an exponential": poly(rest) * np.exp(whole),
        "p was evaluated at x, and nothing else happened": poly(x),
        "the last coefficient was left out": np.polynomial.Polynomial(c[:-1])(r) * 2**n,
        "this is eˣ itself: compute p with the coefficients that you are given": np.exp(x),
        "n was cut off towards zero: round down, or negative x leave the range of p":
            poly(short[1]) * 2.0 ** short[0],
        "n was rounded to the nearest: round down, so that r is not negative":
            poly(near[1]) * 2.0 ** near[0],
        "2ⁿ was added, and not multiplied": poly(r) + 2**n,
        f"n was shifted past 23 bits, {_FLOAT64}":
            (poly(r).view(np.int64) + (n.astype(np.int64) << 23)).view(np.float64),
        "n went in with the wrong sign": poly(r) * 2.0**-n,
        "eʳ was computed as well: p(r) takes its place": poly(r) * np.exp(x),
        "the constant c[0] was left out": (poly(r) - c[0]) * 2**n,
        "the constant c[0] was taken to be 1": (poly(r) - c[0] + 1) * 2**n})
    if np.isnan(nothing).any():
        raise Wrong("−∞ gave NaN: what is left of −∞ has no value; a masked key must weigh exactly 0")
    if nothing.shape != below.shape:
        raise Wrong(f"five numbers below −87: expected shape {below.shape}, got {nothing.shape}")
    for number, weight in zip(below, nothing, strict=True):
        if weight != 0:
            name = "−∞" if np.isinf(number) else f"−{-number:g}"
            raise Wrong(f"{name} gave {weight:.2g}, and should give exactly 0: what is clamped still"
                        " gets c₀·2ⁿ or more. Put 0 there in the end")
    if np.any(np.asarray(kept) == 0):
        raise Wrong("too much became 0: −87 and what lies above it keep p(r)·2ⁿ")
    (n_edge, r_edge), (high, r_high) = parted(edge), parted(np.maximum(edge, -86))
    expect_close(kept, poly(r_edge) * 2**n_edge, "−20.25, −70.5, −86.5, −87, 90.5", atol=0.0, mistakes={
        "the clamp stands too high: −87 itself is not clamped": poly(r_high) * 2**high})
    longer = 1 / np.arange(1.0, 7.0)
    expect_close(polynomial_exp(x.copy(), longer.copy()), np.polynomial.Polynomial(longer)(r) * 2**n,
                 "six coefficients", mistakes={"only the first four were used: go through all of c":
                     np.polynomial.Polynomial(longer[:4])(r) * 2**n})
    expect_close(polynomial_exp(x.reshape(2, 3), c.copy()), (poly(r) * 2**n).reshape(2, 3), "two rows")
    return "r is below 0.7, so that a cubic would do, and eˣ itself needs no exponential either."


_LN2 = np.log(2)
_FLOAT64 = ("the mantissa of a float32: x is float64, with 52 of them and np.int64 beside it"
            " (np.ldexp asks for neither)")


def _of_float64(answer, x, c):
    """Call the answer; NumPy's complaint about halves of a float64 would not say where to look."""
    try:
        return answer(x, c)
    except ValueError as error:
        if f"({2 * x.size},)" not in str(error):
            raise
        raise Wrong(f"np.int32 saw every number as two: that, and 23 bits, is {_FLOAT64}") from None


def _lazy(m, l, O, S, V, tau, *, grows=lambda top, m, tau: top - m > tau, renewed=lambda top, m: top,
          P_from="new", rescaled="lO", power=np.exp2, sign=1, sinks=False):
    """Return what a lazy step makes of (m, l, O): the right one, or with one slip."""
    top = S.max(axis=1) if sinks else np.maximum(m, S.max(axis=1))
    m_new = np.where(grows(top, m, tau), renewed(top, m), m)
    alpha = power(sign * (m - m_new))
    P = power(S - {"new": m_new, "top": top, "old": m}[P_from][:, None])
    return (m_new, (alpha if "l" in rescaled else 1) * l + P.sum(axis=1),
            (alpha[:, None] if "O" in rescaled else 1) * O + P @ V)


@exercise("14.3", "Rescale only if you must", difficulty=2, minutes=12, solution="lazy_step",
          hints=("First decide per row: by how much does the tile exceed m? Rows at or below τ keep m.",
                 "alpha = 2^(m − m_new) is 1 where m stays, so one formula serves all rows.",
                 "P, l and O of a row must all be in units of the same m, the one that you return."))
def check_lazy_step(lazy_step):
    """Accept `lazy_step(m, l, O, S, V, tau) -> (m, l, O)`, all logits in units of log 2."""
    rng = np.random.default_rng(143)
    m, tau = np.array([4.0, 1.0, -2.0, 5.0, -1.5]), 2.0
    S, V = rng.uniform(-9, -5, size=(5, 4)), rng.normal(size=(4, 3))
    S[np.arange(5), [0, 3, 1, 2, 2]] = np.add(m, [1.5, 5.0, 2.0, -5.0, 2.5])     # grows by that
    l, O = rng.uniform(1, 3, size=5), rng.normal(size=(5, 3))
    with np.errstate(all="ignore"):
        got = parts(lazy_step(m.copy(), l.copy(), O.copy(), S.copy(), V.copy(), tau), "(m, l, O)")
    want = _lazy(m, l, O, S, V, tau)

    def slips(part):
        return {
            "every new maximum was taken: decide row by row, those that grow by τ or less keep theirs":
                _lazy(m, l, O, S, V, 0.0)[part],
            "the maximum itself was compared with τ: what counts is how much it has grown":
                _lazy(m, l, O, S, V, tau, grows=lambda top, m, tau: top > tau)[part],
            "a row that is renewed takes the new maximum, not m + τ":
                _lazy(m, l, O, S, V, tau, renewed=lambda top, m: m + tau)[part],
            "a row that is renewed takes the new maximum, not one that is τ lower":
                _lazy(m, l, O, S, V, tau, renewed=lambda top, m: top - tau)[part],
            "no row took its new maximum": _lazy(m, l, O, S, V, 1e9)[part],
            "m sank where the tile lies far below it: alpha is then above 1, and l and O may overflow":
                _lazy(m, l, O, S, V, tau, sinks=True,
                      grows=lambda top, m, tau: np.abs(top - m) > tau)[part],
            "growth by exactly τ is no rescale: more than τ is":
                _lazy(m, l, O, S, V, tau, grows=lambda top, m, tau: top - m >= tau)[part],
            "τ was compared in natural logarithms: these logits are in units of log 2":
                _lazy(m, l, O, S, V, tau, grows=lambda top, m, tau: (top - m) * np.log(2) > tau)[part],
            "P was made with the true maximum, while m stayed behind: they must be the same":
                _lazy(m, l, O, S, V, tau, P_from="top")[part],
            "P was made with the m from before the tile: where m is renewed, P needs the new one":
                _lazy(m, l, O, S, V, tau, P_from="old")[part],
            "e was raised to the powers: in units of log 2 the weights are powers of two, np.exp2":
                _lazy(m, l, O, S, V, tau, power=np.exp)[part],
            "the factor is upside down: what was summed before shrinks by 2 to the m − m_new":
                _lazy(m, l, O, S, V, tau, sign=-1)[part]}

    expect_close(got[0], want[0], "m", mistakes=slips(0))
    expect_close(got[1], want[1], "l", mistakes={
        "l was forgotten: where m is renewed, l must be rescaled like O":
            _lazy(m, l, O, S, V, tau, rescaled="O")[1], **slips(1)})
    expect_close(got[2], want[2], "O", mistakes={
        "O was forgotten: where m is renewed, O must be rescaled like l":
            _lazy(m, l, O, S, V, tau, rescaled="l")[2],
        "you divided by l: the division comes once, after the last tile": want[2] / want[1][:, None],
        **slips(2)})
    return "O / l does not know which m you chose."


@exercise("14.4", "Find the best share", difficulty=2, minutes=12, solution="best_share",
          hints=("With a share y, the exponential unit is busy for (1 − y)·E cycles. And the lanes?",
                 "The lanes do A + y·B. One line falls, the other rises: the later of the two is least"
                 " where they meet.",
                 "If the lanes are the later ones at y = 0 already, nothing should be moved."))
def check_best_share(best_share):
    """Accept `best_share(E, A, B) -> y` in 0…1: the share of exponentials to emulate."""
    cases = [(1024.0, 640.0, 1280.0), (1024.0, 0.0, 1024.0), (2000.0, 500.0, 700.0),
             (1024.0, 1280.0, 2560.0), (100.0, 100.0, 300.0)]
    got = given([float(y) if isinstance(y, Fraction) else y for y in (best_share(*c) for c in cases)])
    E, A, B = np.array(cases).T
    free = (E - A) / (E + B)
    best = np.maximum(free, 0)
    expect_close(got, best, "the share", mistakes={
        "there is no negative share: lanes that are busy longer already get nothing": free,
        "the lanes have other work, too: A cycles of it, whatever y is": E / (E + B),
        "that makes (1 − y)·E = y·B + y·A: A does not depend on y": E / (E + A + B),
        "B is what all exponentials add to A, not the lanes' whole work": np.maximum(
            (E - A) / (E - A + B), 0),
        "that is the share that stays on the unit": np.minimum(1 - free, 1),
        "every exponential moved also relieves its unit: (1 − y)·E": np.maximum((E - A) / B, 0),
        "every exponential moved also relieves its unit, (1 − y)·E, and no share is negative":
            (E - A) / B,
        "the lines close in on each other by E and by B; A is only where one of them begins":
            np.maximum((E - A) / (A + B), 0),
        "the lines close in on each other by E and by B, not by A; and no share is negative":
            (E - A) / (A + B),
        "that is in per cent, and a share lies in 0…1": 100 * best,
        "everything was moved": np.ones(len(E)),
        "the two lines were not made equal: solve (1 − y)·E = A + y·B":
            np.maximum((E - A) / E, 0)}, atol=0.02)
    expect_close(got, best, "the share", mistakes={
        "that is near, but not exact: instead of trying shares, solve (1 − y)·E = A + y·B for y": got})
    return f"on a B200 at degree 3, where B is {exp2.slots(3)} slots a logit: one in six."
