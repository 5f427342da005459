"""Exercises of chapter 03: overflow, the shift, log-sum-exp, and what three passes move."""

from __future__ import annotations

from functools import partial

import numpy as np

from flashlib import numerics
from flashlib.course.exercises.core import Wrong, exercise, expect_close, hint, solution

__all__ = ["check_logsumexp", "check_softmax", "check_three_pass_bytes", "check_threshold", "hint",
           "solution"]


@exercise("03.1", "Find the wall", difficulty=1, minutes=3, solution="threshold", hints=(
    "Solve eˣ = largest for x. The logarithm that undoes eˣ has base e.",
    "fl.numerics.facts(dtype).largest is the largest finite number, as a float64.",
))
def check_threshold(answer):
    in_the_format = True
    for dtype in ("float32", "float16", "float64", "bfloat16"):
        facts = numerics.facts(dtype)
        got = _asked(answer, dtype)
        if _number(got) == facts.exp_overflow:
            continue                          # the last value of the format below the logarithm
        in_the_format = False
        exact = np.log(facts.largest)
        rounded_up = float(numerics.round_to(exact, dtype))
        expect_close(got, exact, f"threshold({dtype!r})", rtol=1e-12, mistakes={
            "that is the logarithm to base 2; eˣ is undone by the natural one, np.log":
                np.log2(facts.largest),
            "that is the logarithm to base 10; eˣ is undone by the natural one, np.log":
                np.log10(facts.largest),
            "that is the logarithm of epsilon, the spacing of numbers near 1; the range ends at"
            " the largest finite number": np.log(facts.epsilon),
            "that is minus the logarithm of epsilon, the spacing of numbers near 1; the range ends"
            " at the largest finite number": -np.log(facts.epsilon),
            "that is where eˣ becomes too small, not too large: you took the smallest number":
                np.log(facts.smallest_normal),
            "that is the largest number itself; the question is which x has an eˣ of that size":
                facts.largest,
            f"the logarithm was taken in {dtype} and rounded up, past the threshold: eˣ of your"
            " answer is ∞ in that format. Take the logarithm in float64": rounded_up,
        })
    if in_the_format:
        return ("right: the last value of each format that survives. (The wall itself lies between it"
                " and the next, at np.log(fl.numerics.facts(dtype).largest).)")
    return ("right: one logarithm. (In the format itself the threshold is the last value below it,"
            " fl.numerics.facts(dtype).exp_overflow.)")


def _asked(answer, dtype):
    """Call the answer; NumPy's own complaint about bfloat16 would not say where to look."""
    try:
        return answer(dtype)
    except TypeError as error:
        if "bfloat16" not in str(error):
            raise
        raise Wrong("threshold('bfloat16'): NumPy knows no bfloat16; the largest number of each of the"
                    " four formats is fl.numerics.facts(dtype).largest") from None


def _number(got) -> float:
    """Return the plain float of an answer, whose own `==` says nothing; NaN for what is no number."""
    try:
        return np.nan if isinstance(got, str | bytes) or np.ndim(got) else float(got)
    except (TypeError, ValueError):
        return np.nan


@exercise("03.2", "A safe softmax of every row", difficulty=1, minutes=10,
          solution="softmax_rows", hints=(
    "Three lines, one for each pass: the maximum of the row, the exponentials, the division.",
    "Keep the dimension, x.max(axis=1, keepdims=True), so that (rows, n) − (rows, 1) works.",
))
def check_softmax(answer):
    plain = np.array([[0.0, 1.0, 2.0, -1.0], [0.5, 0.5, -2.0, 3.0], [1.0, -1.0, 0.0, 0.0]])
    m, e = plain.max(axis=1, keepdims=True), np.exp(plain)
    l, shifted = e.sum(axis=1, keepdims=True), np.exp(plain - m)
    expect_close(_called(answer, plain), e / l, "softmax of small logits", mistakes={
        "the sum runs down the columns; every row is a softmax of its own (axis=1)":
            e / e.sum(axis=0),
        "the sum runs down the columns, of what the rows' maxima shifted; every row is a softmax of"
        " its own (axis=1)": shifted / shifted.sum(axis=0),
        "the sum runs over the whole matrix; every row is a softmax of its own (axis=1)":
            e / e.sum(),
        "the sum runs over the whole matrix, of what the rows' maxima shifted; every row is a"
        " softmax of its own (axis=1)": shifted / shifted.sum(),
        "nothing was divided: the weights of a row must sum to 1": shifted,
        "nothing was divided, nor shifted: the weights of a row must sum to 1": e,
        "you divided by the largest exponential; divide by the sum of the row": e / np.exp(m),
        "the maxima run down the columns; every row has its own (axis=1)":
            (columns := np.exp(plain - plain.max(axis=0))) / columns.sum(axis=1, keepdims=True),
        "the shift came after the exponential, e^x − m; it belongs in the exponent, e^(x − m)":
            (e - m) / (e - m).sum(axis=1, keepdims=True),
        "the shift came after the exponential, e^x − m, and only in the numerator; it belongs in"
        " the exponent, e^(x − m)": (e - m) / l,
        "the sum was taken before the shift and the numerator after it; shift both": shifted / l,
        "the sign of the exponent is turned, e^(m − x): the largest logit got the smallest weight":
            np.exp(-plain) / np.exp(-plain).sum(axis=1, keepdims=True),
        **{f"{small:g} was added to the sum, and every weight came out too small; the largest term is"
           " 1, so the sum needs no protection": shifted / (shifted.sum(axis=1, keepdims=True) + small)
           for small in (1e-5, 1e-6, 1e-7, 1e-8)},
    })
    for rows, mistake in _HARD_ROWS:
        _survives(answer, np.array(rows), mistake)
    _survives(answer, np.array([[90.0, 3.0], [-110.0, -120.0]], dtype=np.float32),
              "float32 holds eˣ only from x = −103 to 88: the shift must be the maximum itself, not"
              " a number somewhere near it")
    if not _keeps_nan(answer):
        raise Wrong("a logit that was NaN, an error made further up, became plain weights:"
                    " np.nan_to_num, or whatever else paints over NaN, hides it. The right shift leaves"
                    " nothing to paint")
    return "right, and finite for every row that has a finite logit."


_BELOW = ("your shift is below the maximum, so the largest exponent is still positive. Only the"
          " maximum of the row makes it 0")
_HARD_ROWS = (
    ([[1000.0, 1001.0, 999.0]],
     "e^1000 overflows: subtract the maximum of the row before the exponential"),
    ([[-1000.0, -1001.0, -999.0]],
     "every exponential underflowed and 0/0 is left: the shift lies above every logit. Subtract the"
     " largest of them: not the largest absolute value, nor a maximum that started from 0"),
    ([[0.0, 0.0, 0.0, 2000.0]], _BELOW),
    ([[2000.0, 0.0, 0.0, 0.0]], _BELOW),
    ([[0.0, 2000.0, 0.0, 0.0]], _BELOW),
    ([[-1e5, -1e5 - 1]],
     "every exponential underflowed and 0/0 is left: the shift is above the maximum. A floor under"
     " it, such as max(m, −500), is above the maximum of a low row"),
    ([[1000.0, 999.0], [-1000.0, -1001.0]],
     "one maximum for the whole matrix shifts the lower row so far down that its sum is 0:"
     " every row needs its own (axis=1)"),
    ([[3.0, -np.inf, 1.0]],
     "a masked logit of −∞ spoiled its row: its weight is 0 and the others sum to 1"),
)


def _keeps_nan(answer):
    try:
        got = _called(answer, np.array([[1.0, np.nan, 2.0], [0.0, 1.0, 2.0]]))
    except ValueError:                        # as Fraction refuses NaN, which hides nothing either
        return True
    return np.isnan(np.asarray(got, float)[0]).all()


def _called(answer, x):
    given = x.copy()
    try:
        with np.errstate(all="ignore"):
            got = answer(given)
    except ValueError as error:
        if "broadcast" not in str(error):
            raise
        raise Wrong("(rows, n) − (rows,) does not work: keep the dimension of a maximum or sum, as in"
                    " x.max(axis=1, keepdims=True), or add one by m[:, None]") from None
    if not np.array_equal(given, x, equal_nan=True):
        raise Wrong("the function changed its input: x - m makes a new array, x -= m does not")
    return got


def _survives(answer, x, mistake):
    """Raise `Wrong` unless the softmax of x comes out right; `mistake` says why it may be lost."""
    exact = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    exact = exact.astype(x.dtype)
    got = _called(answer, x)
    what = f"softmax of {x.tolist()}" + ", float32" * (x.dtype == np.float32)
    array = np.asarray(got)
    if array.dtype != object and array.shape == x.shape and not np.isfinite(array).all():
        raise Wrong(f"{what}: expected {exact.round(3).tolist()}, got {array.tolist()}: {mistake}")
    expect_close(got, exact, what, rtol=1e-9 if x.dtype == np.float64 else 1e-5)


@exercise("03.3", "A log-sum-exp that survives an empty row", difficulty=2, minutes=15,
          solution="logsumexp_rows", hints=(
    "ln Σ e^x = m + ln Σ e^(x − m) for every finite m. Which m do you take if the maximum is −∞?",
    "np.maximum(x.max(axis=1), np.finfo(x.dtype).min) is finite, and changes no other row.",
    "ln 0 = −∞ is the right answer there; np.errstate(divide='ignore') keeps NumPy quiet.",
))
def check_logsumexp(answer):
    plain = np.array([[0.0, 1.0, 2.0, -1.0], [3.0, 3.0, 3.0, 3.0], [-1.0, 0.5, 4.0, 1.0]])
    m, l = plain.max(axis=1), np.exp(plain).sum(axis=1)
    got = _called(answer, plain)
    lowest = -1e30 if np.asarray(got).dtype == np.float32 else -1e300   # one that the answer can hold
    expect_close(got, np.log(l), "lse of small logits", mistakes={
        "that is ln Σ e^(x − m): add m back": np.log(l) - m,
        "m was subtracted once more instead of added back": np.log(l) - 2 * m,
        "that is the sum; take its logarithm": l,
        "that is the maximum alone; ln of the sum is missing": m,
        "that is a base-2 logarithm: lse is natural everywhere in this course": np.log2(l),
        "m is natural and the logarithm of the sum is base 2: take np.log of the sum":
            m + np.log2(l / np.exp(m)),
        "m and the logarithm of the sum were multiplied: a product turns into a sum, m + ln ℓ":
            m * np.log(l / np.exp(m)),
    })
    high = np.array([[1000.0, 1000.0, -np.inf], [-1000.0, -1000.0, -1000.0]])
    expected = np.array([1000 + np.log(2.0), -1000 + np.log(3.0)])
    got = _called(answer, high)
    expect_close(got, expected, "lse of [[1000, 1000, −∞], [−1000, −1000, −1000]]", mistakes={
        "e^1000 overflowed and e^−1000 underflowed: shift by the maximum first":
            np.array([np.inf, -np.inf]),
        "the lower row underflowed, so its sum is 0: its shift must be its own maximum, not one for the"
        " whole matrix, nor one that started from 0":
            np.array([expected[0], -np.inf]),
        "a row counts as empty only if all of it is −∞, not as soon as one logit is":
            np.array([-np.inf, expected[1]]),
        "one −∞ spoiled its row: a masked logit adds e^−∞ = 0": np.array([np.nan, expected[1]]),
    })
    _low_rows(answer, np.array([[-1e4, -1e4], [-1e5, -1e5], [lowest, lowest]]))
    _low_rows(answer, np.array([[-1e4, -1e4], [-1e38, -1e38]], dtype=np.float32))
    empty = np.array([[0.0, 0.0], [-np.inf, -np.inf]])
    got = _called(answer, empty)
    lowest, tiny = np.finfo(np.float64).min, np.finfo(np.float64).tiny
    expect_close(got, np.array([np.log(2.0), -np.inf]), "lse of [[0, 0], [−∞, −∞]]", mistakes={
        "−∞ − (−∞) is NaN: shift the empty row by something finite":
            np.array([np.log(2.0), np.nan]),
        "the empty row gave 0, which is the lse of a single logit 0; the logarithm of an empty sum"
        " is −∞": np.array([np.log(2.0), 0.0]),
        "the empty row gave the finite number that you shifted by; the logarithm of an empty sum"
        " is −∞": np.array([np.log(2.0), lowest]),
        "the empty row gave ln of a tiny number: clip the sum where you divide by it, not where"
        " you take its logarithm": np.array([np.log(2.0), np.log(tiny)]),
    })
    return _on_the_way(answer, empty)


def _low_rows(answer, x):
    """Raise `Wrong` unless rows of two equal, low logits come out right; a stand-in may be too high."""
    expected = x[:, 0] + np.log(x.dtype.type(2))
    what = f"lse of {x.tolist()}" + ", float32" * (x.dtype == np.float32)
    got = np.asarray(_called(answer, x))
    if got.shape == expected.shape and np.isneginf(got).any():
        raise Wrong(f"{what}: expected {expected.tolist()}, got {got.tolist()}: a number that stands in"
                    " for −∞ must not lie above any finite logit; −500 or −50,000 hides the rows below"
                    " it. The lowest number of the dtype, np.finfo(x.dtype).min, does not")
    expect_close(got, expected, what, rtol=1e-9 if x.dtype == np.float64 else 1e-5)


def _on_the_way(answer, empty):
    """Tell a right result that was repaired after a NaN from one that never met a NaN."""
    broken = _called(answer, np.array([[0.0, np.nan], [1.0, 2.0]]))
    vanishes = not np.isnan(np.asarray(broken)[0])
    try:
        with np.errstate(all="ignore", invalid="raise"):
            answer(empty.copy())
    except FloatingPointError:
        if vanishes:
            raise Wrong("lse of [[0, 0], [−∞, −∞]]: you made a NaN and painted over it; a NaN logit"
                        " would vanish too. Shift the empty row by something finite, and no NaN"
                        " arises") from None
        return ("right: −∞ for a row that sees nothing. (A NaN arises on the way and is replaced;"
                " with a finite shift there is none to replace.)")
    if vanishes:
        raise Wrong("lse of [[0, NaN], [1, 2]]: the NaN vanished, and an error upstream with it. Do"
                    " not replace NaN afterwards, and ask for m == −∞ where you ask for m > −∞: a"
                    " NaN is neither")
    return "right: −∞ for a row that sees nothing, and a NaN among the logits stays visible."


@exercise("03.4", "The bytes of three-pass attention", difficulty=2, minutes=15,
          solution="three_pass_bytes", hints=(
    "Count one query block first: which tiles does each of the three kernels load and store?",
    "Q moves 3·N·d elements in all, K moves 3·N·d for every query block. What about V, O, m and l?",
    "There are ⌈N/Br⌉ query blocks; in Python -(-N // Br).",
))
def check_three_pass_bytes(answer):
    for N, d, Br, e, s in ((80, 24, 16, 2, 4), (100, 32, 22, 2, 4), (70, 8, 12, 4, 8)):
        got = answer(N, d, Br, e, s)
        Tr, count = -(-N // Br), partial(_three_pass, N, d, Br, e, s)
        expect_close(got, count(), f"three_pass_bytes({N}, {d}, {Br},"
                     f" element_bytes={e}, stats_bytes={s})", rtol=1e-12, mistakes={
            "those are elements, not bytes": _three_pass(N, d, Br, 1, 1),
            "that is standard attention, which stores S and P; three passes store neither":
                e * (4 * N * N + 4 * N * d),
            "Q is missing: every pass loads its query block anew": count(q=0),
            "Q moves in all three passes, not in one": count(q=1),
            "that is two passes over Q and K (chapter 05 gets there); this one makes three":
                count(q=2, k=2),
            "every query block is short of one N·d: K moves in all three passes, V in the last":
                count(k=2),
            "K moves in all three passes of a block, not in one": count(k=1),
            "V is needed in the last pass only": count(v=3),
            "O is missing: the last pass stores it": count(o=0),
            "the statistics are missing: m and l cross from kernel to kernel through HBM":
                count(stats=0),
            "of the statistics only the stores are there: pass 2 reads m, pass 3 reads m and l":
                count(stats=2),
            "of the statistics only the loads are there: pass 1 writes m, pass 2 writes l":
                count(stats=3),
            "4 transfers of N statistics are one short: m is written once and read twice, l"
            " written once and read once, 5 in all": count(stats=4),
            "6 transfers of N statistics are one too many: pass 2 makes l and stores it, and only pass"
            " 3 reads it, 5 in all": count(stats=6),
            "the last query block is ragged: m and l have N rows, so 5·N statistics, not 5·Br·Tr":
                count(stats=5 * Br * Tr / N),
            "the statistics do not grow with the number of query blocks: a block moves only its own"
            " Br rows, 5·N in all": count(stats=5 * Tr),
            "the statistics move at stats_bytes, not at element_bytes": _three_pass(N, d, Br, e, e),
            "element_bytes and stats_bytes are arguments; 2 and 4 are only what they are when nobody"
            " says otherwise": _three_pass(N, d, Br, 2, 4),
            "that is one query block alone; the question is about all N queries":
                count(blocks=1, queries=Br),
            "the last query block is ragged: Q, O and the statistics have N rows in all, not Tr·Br":
                count(queries=Tr * Br),
            "every query block stores its own Br rows of O, N·d elements in all": count(o=Tr),
            "every query block loads its own Br rows of Q, N·d elements in each pass": count(q=3 * Tr),
            "K and V are counted once; every query block reads them anew": count(blocks=1),
            "the last, ragged query block reads K and V too: round N/Br up": count(blocks=N // Br),
            "there is no fraction of a query block: round N/Br up": count(blocks=N / Br),
            "K is counted once for all query blocks; each of them reads it anew, in each of its passes":
                count(k=3 / Tr),
            "V is counted once for all query blocks; each of them reads it anew": count(v=1 / Tr),
        })
    return "right, to the byte: 4·N·d·(1 + Tr) elements and 5·N statistics."


def _three_pass(N, d, Br, e, s, *, q=3, k=3, v=1, o=1, stats=5, blocks=None, queries=None):
    """Count what three-pass attention moves, or, with other numbers, what a mistake would say."""
    blocks = -(-N // Br) if blocks is None else blocks
    queries = N if queries is None else queries
    return e * d * (queries * (q + o) + N * blocks * (k + v)) + s * stats * queries
