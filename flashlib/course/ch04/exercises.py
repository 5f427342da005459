"""The exercises of notebook 04: the rescale factor, the merge, counting rescales, and a test."""

from __future__ import annotations

import math
import warnings

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, solution

__all__ = ["check_factor", "check_merge", "check_property_test", "check_rescales", "hint",
           "solution", "state"]

EMPTY = (-np.inf, 0.0)


def state(x) -> tuple[float, float]:
    """Return (m, l) of the logits x, from all of them at once; of no logits, (−∞, 0)."""
    x = np.asarray(x, dtype=np.float64)
    m = np.max(x, initial=-np.inf)
    if m == -np.inf:
        return EMPTY
    return float(m), float(np.sum(np.exp(x - m)))


@exercise("04.1", "The rescale factor", difficulty=1, minutes=2, solution="rescale_factor", hints=(
    "ℓ is a sum of e^{x − m_old} and shall become a sum of e^{x − m_new}. What is the quotient of"
    " two such terms? x should drop out.",
    "e^{x − m_new} = e^{x − m_old} · e^{m_old − m_new}. The maximum grows, so the factor is ≤ 1.",
))
def check_factor(factor):
    """Check a function (m_old, m_new) -> the factor that ℓ is multiplied by."""
    with np.errstate(all="ignore"):
        for old, new in ((1.5, 2.25), (-2.0, 1.0), (3.0, 3.0), (1000.0, 1001.0)):
            try:
                got = factor(old, new)
            except OverflowError:
                got = math.nan
            if old == 1000.0 and isinstance(got, float) and math.isnan(got):
                raise Wrong("factor(1000.0, 1001.0): expected 0.367879, got nan: each exponential"
                            " overflows alone, so subtract first")
            expect_close(got, math.exp(old - new), f"factor({old}, {new})", mistakes={
                "the sign is wrong: the maximum grew, so what was summed must shrink":
                    math.exp(new - old),
                "this is the exponent; the factor is its exponential": old - new,
                "this is the exponent with the wrong sign; the factor is an exponential": new - old,
                "this is base 2; the course's exponentials are base e": 2.0 ** (old - new),
                "this is base 10; the course's exponentials are base e": 10.0 ** (old - new),
                "the maximum changed, so what was summed must be multiplied by something": 1.0,
            } if old != new else {
                "the maximum did not grow, so nothing needs rescaling: the factor is 1": 0.0})
        first = factor(-np.inf, 2.0)
        if np.ndim(first) == 0 and first == 1:
            return ("right: 1 does no harm to an empty sum. (The formula itself gives e^{−∞} = 0 there:"
                    " no case of its own is needed.)")
        expect_close(first, 0.0, "factor(−∞, 2.0), at the first logit", mistakes={
            "nothing was summed yet, and e^{−∞} = 0; the sign is wrong": np.inf,
            "this is NaN, but −∞ − 2 is −∞, and e^{−∞} = 0: no case of its own is needed": np.nan})
    return "right. It is 1 unless the maximum grew, and never above 1: a rescale cannot overflow."


def _merge(a, b, left=lambda old, new: np.exp(old - new), right=lambda old, new: np.exp(old - new)):
    """Merge two states, with the factors of the two sides replaced where they are given."""
    m = max(a[0], b[0])
    shift = max(m, np.finfo(np.float64).min)
    return m, a[1] * left(a[0], shift) + b[1] * right(b[0], shift)


def _one(old, new):
    return 1.0


def _flipped(old, new):
    return np.exp(new - old)


@exercise("04.2", "Merge two halves of a row", difficulty=2, minutes=10,
          solution="merge_states", hints=(
    "The joint maximum is the larger of the two. Each ℓ was summed relative to its own maximum, so"
    " each needs its own factor; one of the two factors is always 1.",
    "Two empty parts: m = −∞, and −∞ − (−∞) is NaN. Where m is −∞, and nowhere else, put a finite"
    " number into the exponents. A floor such as max(m, 0) replaces every negative m, too.",
))
def check_merge(merge):
    """Check a function (a, b) -> (m, l) that merges two states, each a pair (m, l)."""
    x = np.array([1.0, 3.0, -2.0, 2.5, 0.5, 4.0, -1.0])
    small, large = state(x[:4]), state(x[4:])
    with np.errstate(all="ignore"):
        _expect_both_sides(merge, small, large)
        for a, b, what in ((small, large, "merge(a, b) with the larger maximum on the right"),
                           (large, small, "merge(a, b) with the larger maximum on the left"),
                           (small, small, "merge(a, a)"),
                           (state(x + 1000), state(x[:4] + 998), "merge of logits near 1000")):
            _expect_merge(merge(a, b), a, b, what)
        for a, b, what in ((small, EMPTY, "merge(a, empty)"), (EMPTY, small, "merge(empty, a)")):
            _expect_merge(merge(a, b), a, b, what + ", empty = (−∞, 0)")
        coarse = np.float32 in map(type, _pair(merge(small, large), "merge(a, b)"))
        lowest = -1e30 if coarse else -1e300                    # one that the answer can hold
        for a, b in (((-5.0, 1.0), (-3.0, 1.0)), (state(x - 1000), state(x[:4] - 1e5)),
                     ((lowest, 2.0), (lowest, 3.0))):
            _expect_low(merge, a, b)
        m, l = _pair(merge(EMPTY, EMPTY), "merge(empty, empty)")
        if np.isnan(m) or np.isnan(l):
            raise Wrong("merge(empty, empty): got NaN, because −∞ − (−∞) is NaN; two rows that saw"
                        " nothing make a row that saw nothing, (−∞, 0)")
        if np.isfinite(m) and l == 0:
            raise Wrong(f"merge(empty, empty): got m = {m:g}; use a finite number only inside the"
                        " exponents, the m that you return must stay −∞")
        expect_close((m, l), EMPTY, "merge(empty, empty), (m, l)")
        vanished = _loses_a_nan(merge)
        repaired = _meets_a_nan(merge)
    if vanished and repaired:
        raise Wrong("merge(empty, empty): you made a NaN and painted over it; a NaN logit would vanish"
                    " too. Put something finite into the exponents, and no NaN arises")
    if vanished:
        raise Wrong(f"{vanished}: the NaN vanished, and an error upstream with it. Python's"
                    " max(−∞, nan) is −∞: take np.maximum, not max, np.fmax or np.nansum, and ask for"
                    " m == −∞, not m > −∞: a NaN is neither")
    if repaired:
        return ("right. (A NaN arises on the way for two empty parts, and is replaced; with a finite"
                " shift there is none to replace.)")
    return "right. This one function folds elements, tiles, chunks of a cache, and GPUs in a ring."


def _meets_a_nan(merge) -> bool:
    """Tell whether two empty parts make a NaN on the way."""
    empty = tuple(map(np.float64, EMPTY))
    try:
        with np.errstate(invalid="raise"):
            merge(empty, empty)
    except FloatingPointError:
        return True
    return False


def _loses_a_nan(merge) -> str:
    """Return the first merge with a NaN in either state of which neither m nor l is NaN; "" if none."""
    nan = math.nan
    for a in ((1.0, nan), (nan, nan)):                 # a logit that is NaN makes both NaN
        for b in ((2.0, 1.0), (-2.0, 1.0), EMPTY):
            for pair in ((a, b), (b, a)):
                what = "merge({}, {})".format(*(f"({m:g}, {l:g})".replace("-inf", "−∞")
                                                for m, l in pair))
                if not np.isnan(_pair(merge(*pair), what)).any():
                    return what
    return ""


def _pair(got, what, pair="(m, l)"):
    """Return the two numbers of an answer; a float32 stays one, for `expect_close` to see."""
    try:
        first, second = (np.asarray(part)[()] for part in given(got))
        return tuple(n if isinstance(n, np.float32) else float(n) for n in (first, second))
    except (TypeError, ValueError):
        raise Wrong(f"{what}: expected a pair of numbers {pair}, got {got!r}") from None


def _expect_both_sides(merge, small, large):
    """Tell a merge that rescales one side only from one that rescales neither."""
    right = [_pair(merge(a, b), "merge(a, b)") for a, b in ((small, large), (large, small))]
    fine = [math.isclose(l, _merge(small, large)[1], rel_tol=1e-5) for _, l in right]
    if fine == [True, False] and math.isclose(right[1][1], small[1] + large[1], rel_tol=1e-5):
        raise Wrong("merge(a, b), l: only the left sum is rescaled; when the larger maximum is on"
                    " the left, the right sum must be")
    if fine == [False, True] and math.isclose(right[0][1], small[1] + large[1], rel_tol=1e-5):
        raise Wrong("merge(a, b), l: only the right sum is rescaled; when the larger maximum is on"
                    " the right, the left sum must be")


def _expect_merge(got, a, b, what):
    m, l = _pair(got, what)
    joint, right = _merge(a, b)
    if np.isclose(m, right) and np.isclose(l, joint) and not np.isclose(joint, right):
        raise Wrong(f"{what}: the two numbers are swapped; a state is (m, l)")
    expect_close(m, joint, f"{what}, m", mistakes={
        "the other part is lost; merging with an empty part changes nothing":
            -np.inf if -np.inf in (a[0], b[0]) else np.nan,
        "this is the maximum of one side only, and the other side's is larger": min(a[0], b[0]),
        "the maxima are added; the joint maximum is the larger one": a[0] + b[0]})
    if np.isnan(l):
        raise Wrong(f"{what}, l: expected {right:.6g}, got nan: an exponential overflowed alone, or"
                    " ∞ met 0; subtract the joint maximum inside each exponent")
    left, other = (part[1] * np.exp(part[0] - joint) for part in (a, b))
    expect_close(l, right, f"{what}, l", mistakes={
        "the sums are added without a rescale: they are relative to different maxima": a[1] + b[1],
        "the factors have the wrong sign: what was summed under a smaller maximum must shrink":
            _merge(a, b, _flipped, _flipped)[1],
        "each sum got the other's factor":
            a[1] * np.exp(b[0] - joint) + b[1] * np.exp(a[0] - joint),
        "the larger of the two sums is kept; add them": max(left, other),
        "the factors are added without the sums that they belong to":
            np.exp(a[0] - joint) + np.exp(b[0] - joint),
        "this is the logarithm of the sum; the state keeps the sum itself": np.log(right),
        "this sum is relative to 0; divide it by e^m, or better subtract m in the exponents":
            right * np.exp(joint),
    })


def _expect_low(merge, a, b):
    """Check a merge of two states whose maxima are below 0; its sum holds a term e⁰ = 1."""
    what = f"merge(({a[0]:g}, {a[1]:.4g}), ({b[0]:g}, {b[1]:.4g}))"
    _, l = _pair(merge(a, b), what)
    if l < 1:
        raise Wrong(f"{what}, l: expected {_merge(a, b)[1]:.4g}, got {l:.4g}: the m in your exponents"
                    " lies above both maxima. Use the joint maximum itself, and a stand-in only where"
                    " it is −∞")
    if a[0] == b[0] and a[0] < -1e20 and not np.isclose(l, a[1] + b[1]):
        raise Wrong(f"{what}, l: expected {a[1] + b[1]:g}, got {l:g}: beside such an m the logarithm of"
                    " a sum is rounded away. Subtract one maximum from the other, and multiply l")
    _expect_merge((max(a[0], b[0]), l), a, b, what)


@exercise("04.3", "Count the rescales, and expect them", difficulty=2, minutes=10,
          solution="count_and_expect", hints=(
    "A rescale happens where a logit is larger than everything before it. The first logit is larger"
    " than nothing: there is no sum to rescale yet.",
    "In random order, logit i is the largest of the first i with probability 1/i. Add that up from"
    " i = 2 to n.",
))
def check_rescales(count_and_expect):
    """Check a function x -> (rescales while folding x, rescales expected if x were shuffled)."""
    rows = {"a row that only grows": np.array([-2.0, 0.0, 1.0, 5.0]),
            "a row that only falls": np.array([4.0, 3.0, 1.0]),
            "a row that repeats its maximum": np.array([1.0, 3.0, 3.0, 2.0, 0.0, 4.0, 4.0]),
            "one logit": np.array([2.0]),
            "100 random logits": np.random.default_rng(4).standard_normal(100)}
    pair = "(rescales of x, rescales to expect)"
    with np.errstate(all="ignore"):
        for name, x in rows.items():
            counted, _ = _pair(count_and_expect(x.copy()), name, pair)
            excess = sum(1 / i for i in range(2, len(x) + 1))
            right = int(np.sum(np.diff(np.maximum.accumulate(x)) > 0))
            from_zero = int(np.sum(np.diff(np.maximum.accumulate([0.0, *x])) > 0))
            at_least = int(np.sum(x[1:] >= np.maximum.accumulate(x)[:-1]))
            mistakes = {"an equal maximum is counted too; its factor is e⁰ = 1": at_least,
                        "the first logit is counted too; before it there is nothing to rescale":
                            right + 1,
                        "the maximum starts at 0 here; start it at −∞, and do not count the first"
                        " logit": from_zero,
                        "this is n − 1, the most that a row can rescale; count only the logits that"
                        " exceed everything before": len(x) - 1,
                        "this is the place of the maximum; every new maximum on the way counts":
                            int(np.argmax(x)),
                        "the two numbers are swapped, first the count": excess,
                        "this counts steps at which the logit grows, not those at which it exceeds"
                        " everything before": int(np.sum(np.diff(x) > 0))}
            expect_close(counted, right, f"{name}, the first number", mistakes=mistakes)
        tied = "a row that repeats its maximum"
        for name, x in [*((f"a row of {n} different logits" if n > 1 else "one logit",
                           np.arange(n, dtype=np.float64)) for n in (1, 3, 6, 56)), (tied, rows[tied])]:
            n, distinct = len(x), len(set(x))
            _, expected = _pair(count_and_expect(x.copy()), name, pair)
            harmonic = sum(1 / i for i in range(1, n + 1))
            expect_close(expected, harmonic - 1, f"{name}, the second number", mistakes={
                "this is H_n, which counts the first logit; it never rescales": harmonic,
                "this is H_{n−1}: the sum stops one short, and still counts the first logit":
                    harmonic - 1 / n,
                "the sum of 1/i stops one short: it runs from 2 to n, with n": harmonic - 1 - 1 / n,
                "the sum of 1/i runs one too far: it ends at n": harmonic - 1 + 1 / (n + 1),
                "ln n is only the leading term; the sum of 1/i is needed": math.log(n),
                **{f"ln n + {gamma:g} only comes near H_n; the sum of 1/i is needed":
                   math.log(n) + gamma - 1 for gamma in (0.577, 0.5772, np.euler_gamma)},
                "the expectation is over all orders, not for the order that x came in": n - 1,
                **({"n is the length of x; equal logits count, too": sum(
                    1 / i for i in range(2, distinct + 1))} if distinct < n else {})})
    return "right. A row of a million random logits rescales about 13 times."


@exercise("04.4", "Prove associativity, then test it", difficulty=3, minutes=30,
          solution="trusts", hints=(
    "The laws alone are not enough: (max, +) obeys all of them and is not softmax. Also compare"
    " with the state of the concatenated row: state(x ‖ y) = merge(state(x), state(y)).",
    "Try empty parts, equal maxima, maxima 50 apart and logits near ±1000; compare with a relative"
    " tolerance near 1e-12, which forgives rounding and nothing else.",
))
def check_property_test(trusts):
    """Check a function merge -> True or False, by handing it right and broken merges."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, merge in RIGHT.items():
            if not _trusted(trusts, merge):
                raise Wrong(f"your test rejects a right merge: {name}")
        survivors = [name for name, merge in BROKEN.items() if _trusted(trusts, merge)]
    if survivors:
        more = f" ({len(survivors)} of {len(BROKEN)} broken merges survive)"
        raise Wrong(f"your test trusts a merge that {survivors[0]}{more}")
    return f"right. {len(RIGHT)} right merges pass and {len(BROKEN)} broken ones are caught."


def _trusted(trusts, merge) -> bool:
    try:
        answer = trusts(merge)
    except AssertionError:
        return False
    if answer is None:
        raise Wrong("your test returned None; return True for a merge that it trusts, else False")
    if not isinstance(answer, bool | np.bool_):
        raise Wrong(f"your test must return True or False, got {answer!r}")
    return bool(answer)


def _by_cases(a, b):
    if not a[1]:
        return b
    if not b[1]:
        return a
    if a[0] < b[0]:
        a, b = b, a
    return a[0], a[1] + b[1] * math.exp(b[0] - a[0])


def _base_two(a, b):
    m = max(a[0], b[0])
    shift = max(m, np.finfo(np.float64).min)
    return m, sum(l * np.exp2((old - shift) * np.log2(np.e)) for old, l in (a, b))


def _naive(a, b):
    total = a[1] * np.exp(a[0]) + b[1] * np.exp(b[0])
    m = max(a[0], b[0])
    return m, total / np.exp(max(m, np.finfo(np.float64).min)) if total else 0.0


def _empties_are_nan(a, b):
    m = max(a[0], b[0])
    return m, a[1] * np.exp(a[0] - np.float64(m)) + b[1] * np.exp(b[0] - np.float64(m))


def _drops_ties(a, b):
    return a if a[0] == b[0] else _by_cases(a, b)


def _larger_sum(a, b):
    m = max(a[0], b[0])
    shift = max(m, np.finfo(np.float64).min)
    return m, max(a[1] * np.exp(a[0] - shift), b[1] * np.exp(b[0] - shift))


def _clipped(a, b):
    factors = [lambda old, new: np.exp(max(old - new, -20.0))] * 2
    return _merge(a, b, *factors) if a[1] and b[1] else _by_cases(a, b)


def _swallows(a, b):
    return _merge(a, b) if a[1] and b[1] else EMPTY


def _floored(a, b):
    m = max(a[0], b[0])
    return m, sum(l * np.exp(old - max(m, 0.0)) for old, l in (a, b))


def _low_precision(a, b):
    m, l = _merge(a, b)
    return m, float(np.float32(l))


RIGHT = {
    "the library's formula": _merge,
    "the same by cases, which rescales only the smaller side": _by_cases,
    "the same in base 2, which differs in the last bits": _base_two,
}
BROKEN = {
    "forgets to rescale (it is (max, +), which obeys every law: laws alone cannot tell)":
        lambda a, b: _merge(a, b, _one, _one),
    "rescales only the left side": lambda a, b: _merge(a, b, right=_one),
    "rescales only the right side": lambda a, b: _merge(a, b, left=_one),
    "rescales with the wrong sign": lambda a, b: _merge(a, b, _flipped, _flipped),
    "makes NaN out of two empty parts": _empties_are_nan,
    "returns an empty state if either part is empty": _swallows,
    "loses one part when the two maxima are equal": _drops_ties,
    "keeps the larger of the two sums instead of adding (associative, commutative, and wrong)":
        _larger_sum,
    "overflows on logits beyond 709, because it leaves the safe exponentials": _naive,
    "rounds l to float32: your tolerance is too loose for float64": _low_precision,
    "clips the exponent at −20: try maxima that lie far apart, and a tight relative tolerance":
        _clipped,
    "lets the maximum start at 0, so that sums of negative logits vanish": _floored,
}
