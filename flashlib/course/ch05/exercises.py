"""Exercises of chapter 05: the accumulator, its rescaling, and merging finished halves."""

from __future__ import annotations

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, hint, parts, solution
from flashlib.models import traffic

__all__ = ["check_finish", "check_merge_finished", "check_one_pass_bytes", "check_step", "hint",
           "solution"]


@exercise("05.1", "Finish the accumulator", difficulty=1, minutes=3, solution="finish",
          hints=("The accumulator holds Σ e^(s−m)·v and l holds Σ e^(s−m): which of them is missing"
                 " from a weighted mean?",
                 "l has one number per row and o has d: add an axis with l[:, None]. For an empty"
                 " row, divide by np.maximum(l, np.finfo(float).tiny)."))
@np.errstate(all="ignore")
def check_finish(finish):
    """Accept `finish(l, o) -> O`, and an empty row that gives zeros."""
    rng = np.random.default_rng(51)
    l, o = rng.uniform(1, 5, size=4), rng.normal(size=(4, 4))
    expect_close(finish(l.copy(), o.copy()), o / l[:, None], "O of four rows",
                 mistakes={"this is the accumulator itself: divide it by l": o,
                           "multiplied by l where it has to be divided": o * l[:, None],
                           "l + ε changes every row: only l = 0 may change": o / (l + 1e-6)[:, None],
                           "l went along the columns: row r must be divided by l[r]": o / l})
    l[2], o[2] = 0.0, 0.0
    got = np.asarray(finish(l.copy(), o.copy()))
    if np.isnan(got[2]).any():
        raise Wrong("a row that saw no key has l = 0 and o = 0, and 0/0 gave NaN: it should be 0")
    expect_close(got[2], np.zeros(4), "O of a row that saw no key")
    o[1, 3] = l[0] = np.nan
    lost = np.asarray(finish(l.copy(), o.copy()), float)
    if not np.isnan(lost[1, 3]):
        raise Wrong(f"a value that was NaN, an error made further up, became {lost[1, 3]:g}:"
                    " np.nan_to_num hides it. Only the row with l = 0 is to be 0: divide it by some"
                    " number that is not 0")
    if not np.isnan(lost[0]).all():
        raise Wrong("a NaN in l, an error made further up, vanished: ask for l == 0, not for l > 0, and"
                    " take np.maximum, not max: a NaN is not 0, nor above it")
    return "one division per row, at the very end."


@exercise("05.2", "Take one more key", difficulty=2, minutes=8, solution="step",
          hints=("Three things are in units of the old maximum and one is new. Bring the old ones to"
                 " the new maximum first.",
                 "alpha = e^(m − m_new) multiplies l and o; the new key comes in with"
                 " p = e^(s − m_new)."))
def check_step(step):
    """Accept `step(m, l, o, s, v) -> (m, l, o)`, the one-pass update by one key."""
    m, l, o, v = 1.0, 1.5, np.array([1.0, -2.0, 0.5, 3.0]), np.array([2.0, 1.0, -1.0, 0.5])
    for s, when in ((3.0, "a new maximum"), (-0.5, "no new maximum")):
        new = max(m, s)
        alpha, p = np.exp(m - new), np.exp(s - new)
        l_new, o_new = l * alpha + p, alpha * o + p * v
        mine, its = o.copy(), v.copy()
        got = parts(step(m, l, mine, s, its), "(m, l, o)", f"after {when}, ", right=(new, l_new, o_new))
        if not (np.array_equal(mine, o) and np.array_equal(its, v)):
            raise Wrong("this changed its input: o * alpha makes a new array, o *= alpha does not")
        expect_close(got[0], new, f"m after {when}", mistakes={
            "the maximum did not move": m, "the new logit replaced the maximum": s})
        wrong_l = {} if s < m else {
            "the old l was not rescaled by e^(m − m_new)": l + p,
            "nothing was converted: l is still in units of the old maximum": l + np.exp(s - m),
            "rescaled with the wrong sign: the exponent is m_old − m_new": l / alpha + p,
            "the new key was weighed against the old maximum": l * alpha + np.exp(s - m)}
        expect_close(got[1], l_new, f"l after {when}", mistakes=wrong_l)
        wrong_o = {
            "the new value came in without its weight e^(s − m_new)": alpha * o + v,
            "this is the update of a finished o, which was divided by l, as FlashAttention v1 keeps it:"
            " here o is the sum itself, which is divided once, at the end":
                (l * alpha * o + p * v) / l_new,
            "this is a normalised o: divide once, at the end": o_new / l_new}
        if s > m:
            wrong_o |= {
                "the old o was not rescaled: it still counts in units of the old maximum": o + p * v,
                "rescaled with the wrong sign: the exponent is m_old − m_new": o / alpha + p * v,
                "everything was rescaled, the new value too: only the past needs it":
                    (o + p * v) * alpha}
        expect_close(got[2], o_new, f"o after {when}", mistakes=wrong_o)
    with np.errstate(all="ignore"):
        start = parts(step(-np.inf, 0.0, np.zeros(4), -2.0, v.copy()), "(m, l, o)")
    if any(np.isnan(part).any() for part in start):
        raise Wrong("from the empty state (−∞, 0, 0) the first key gave NaN")
    for got, right, name in zip(start, (-2.0, 1.0, v), "mlo", strict=True):
        expect_close(got, right, f"{name} after the first key of all")
    return "the past is rescaled, the new key is not."


def _attend(S, V):
    m = S.max(axis=1)
    P = np.exp(S - m[:, None])
    l = P.sum(axis=1)
    return P @ V / l[:, None], m + np.log(l)


@exercise("05.3", "Merge two half-attentions", difficulty=3, minutes=15, solution="merge_finished",
          hints=("lse is the logarithm of a half's total mass Σ e^s. What share of the whole mass does"
                 " each half have?",
                 "share_a = e^(lse_a − lse) with lse = ln(e^lse_a + e^lse_b). Subtract the larger lse"
                 " before any exponential.",
                 "If both halves are empty, both lse are −∞ and their masses 0: let the larger lse be"
                 " at least np.finfo(float).min, and divide by at least np.finfo(float).tiny."))
def check_merge_finished(merge_finished):
    """Accept `merge_finished(O_a, lse_a, O_b, lse_b) -> (O, lse)`, safe for large and empty parts."""
    rng = np.random.default_rng(53)
    S, V = rng.normal(scale=2, size=(5, 12)), rng.normal(size=(12, 4))
    (O_a, a), (O_b, b) = _attend(S[:, :7], V[:7]), _attend(S[:, 7:], V[7:])
    O, lse = _attend(S, V)

    def call(*states, what, right=()):
        with np.errstate(all="ignore"):
            got = merge_finished(*(part.copy() for part in states))
        return parts(got, "(O, lse)", f"{what}: ", right=right)

    got_O, got_lse = call(O_a, a, O_b, b, what="two halves", right=(O, lse))
    weighted = a[:, None] * O_a + b[:, None] * O_b
    top = np.maximum(a, b)
    expect_close(got_O, O, "O of two halves", mistakes={
        "this is the plain mean: a half with more mass must weigh more": (O_a + O_b) / 2,
        "this is the sum: the two shares must add to 1": O_a + O_b,
        "weighed by lse itself: the mass is e^lse": weighted / (a + b)[:, None],
        "these are masses, not shares: divide by the total mass":
            np.exp(a)[:, None] * O_a + np.exp(b)[:, None] * O_b,
        "these are masses in units of the larger one, not shares: divide by their sum":
            np.exp(a - top)[:, None] * O_a + np.exp(b - top)[:, None] * O_b,
        "the shares are swapped": np.exp(b - lse)[:, None] * O_a + np.exp(a - lse)[:, None] * O_b})
    expect_close(got_lse, lse, "lse of two halves", mistakes={
        "lse values do not add: their exponentials do": a + b,
        "this is the larger lse: the other half has mass, too": top,
        "this is ln of the sum in units of the larger mass: add the larger lse back": lse - top})
    huge_O, huge_lse = call(O_a, a + 1e4, O_b, b + 1e4, what="logits around 10,000")
    if not np.isfinite(huge_O).all():
        raise Wrong("logits around 10,000 overflow: subtract the larger lse before taking e^")
    expect_close(huge_O, O, "O with logits around 10,000", rtol=1e-6)
    expect_close(huge_lse, lse + 1e4, "lse with logits around 10,000")
    empty, none = np.zeros_like(O_a), np.full_like(a, -np.inf)
    for first, second, what in (((O_a, a), (empty, none), "a half and an empty half"),
                                ((empty, none), (O_a, a), "an empty half and a half"),
                                ((empty, none), (empty, none), "two empty halves")):
        both_O, both_lse = call(*first, *second, what=what)
        whole_O, whole_lse = (O_a, a) if np.isfinite(first[1]).all() or np.isfinite(
            second[1]).all() else (empty, none)
        if np.isnan(both_O).any() or np.isnan(both_lse).any():
            raise Wrong(f"{what}: got NaN; −∞ − (−∞) is the usual culprit")
        expect_close(both_O, whole_O, f"O of {what}")
        expect_close(both_lse, whole_lse, f"lse of {what}")
    lost = O_a.copy()
    lost[1, 2] = np.nan
    if not np.isnan(np.asarray(call(lost, a, O_b, b, what="a half with a NaN")[0], float)[1, 2]):
        raise Wrong("a value that was NaN, an error made further up, vanished: np.nan_to_num hides it."
                    " Where both halves are empty, let no NaN arise")
    return "this is all that the two machines need to exchange."


@exercise("05.4", "Count the bytes of one-pass attention", difficulty=2, minutes=5,
          solution="one_pass_bytes",
          hints=("Take one query first: what does it read, what does it write? Then ask who shares"
                 " anything.",
                 "Nothing is shared: every query reads all of K and V. Q is read and O written once;"
                 " lse is a statistic, at stats_bytes."))
def check_one_pass_bytes(one_pass_bytes):
    """Accept `one_pass_bytes(Nq, Nk, d, element_bytes, stats_bytes) -> int`, unmasked."""
    for Nq, Nk, d, e, s in ((6, 6, 4, 2, 4), (56, 56, 32, 2, 4), (7, 30, 5, 4, 8)):
        right = traffic.one_pass_attention(Nq=Nq, Nk=Nk, d=d, element_bytes=e, stats_bytes=s).hbm_bytes
        elements = 2 * Nq * d + 2 * Nq * Nk * d
        got = one_pass_bytes(Nq, Nk, d, e, s)
        confused = [2 * (rows + pairs) * d * e + statistics * s for rows in (Nq, Nk)
                    for pairs in (Nq * Nk, Nq * Nq, Nk * Nk) for statistics in (Nq, Nk)]
        if np.ndim(got) == 0 and got != right and got in confused:
            raise Wrong(f"bytes at {Nq=}, {Nk=}, {d=}: queries and keys are confused. Q, O and lse have"
                        " Nq rows; each of the Nq queries reads the Nk rows of K and of V")
        expect_close(got, right, f"bytes at {Nq=}, {Nk=}, {d=}", mistakes={
            "lse is written too: Nq statistics": elements * e,
            "these are elements, not bytes": elements + Nq,
            "you wrote 2 and 4: use element_bytes and stats_bytes": elements * 2 + Nq * 4,
            "lse moves at stats_bytes": (elements + Nq) * e,
            "K and V are read once for every query, not once": (2 * Nq + 2 * Nk) * d * e + Nq * s,
            "two passes read that: here K is read once a query": (elements + Nq * Nk * d) * e + Nq * s,
            "O is written, too": (Nq * d + 2 * Nq * Nk * d) * e + Nq * s,
            "Q is read and O written, too: Nq·d elements each": 2 * Nq * Nk * d * e + Nq * s,
            "these are the reads alone: O and lse are written": (Nq * d + 2 * Nq * Nk * d) * e,
            "there is one statistic, lse, not two: m and l stay on chip": elements * e + 2 * Nq * s,
            "a query is loaded once, not once for every key":
                (elements + (Nk - 1) * Nq * d) * e + Nq * s})
    return "and the factor Nq on K and V is what chapter 06 gets rid of."
