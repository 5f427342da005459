"""Chapter 03's checks accept the solutions and name the mistake in each seeded bug."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import flashlib as fl
from flashlib.course.ch03 import exercises as ex
from flashlib.course.ch03 import solutions
from flashlib.course.exercises.core import REGISTRY
from flashlib.masks import tiles
from flashlib.numerics import facts
from tests.course.exercises.examine import examine

NOTEBOOK = Path(fl.__file__).parent.parent / "notebooks" / "03_keep_softmax_safe.ipynb"
CHECKS = {
    "03.1": (ex.check_threshold, solutions.threshold),
    "03.2": (ex.check_softmax, solutions.softmax_rows),
    "03.3": (ex.check_logsumexp, solutions.logsumexp_rows),
    "03.4": (ex.check_three_pass_bytes, solutions.three_pass_bytes),
}


def row_softmax(shift=lambda x: x.max(axis=1, keepdims=True), axis=1):
    def answer(x):
        e = np.exp(x - shift(x))
        return e / e.sum(axis=axis, keepdims=True)
    return answer


def overwrites(x):
    x -= x.max(axis=1, keepdims=True)
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


def lse_with(shift, back=lambda m, l: m + np.log(l)):
    def answer(x):
        m = shift(x)
        return back(m, np.exp(x - m[:, None]).sum(axis=1))
    return answer


def row_max(x):
    return x.max(axis=1)


def finite_max(x):
    return np.maximum(row_max(x), np.finfo(x.dtype).min)


def floored_at(lowest):
    return lse_with(lambda x: np.maximum(row_max(x), x.dtype.type(lowest)))


def zero_if_empty(x):
    return np.where(np.isneginf(row_max(x)), 0.0, solutions.logsumexp_rows(x))


def empty_if_any_masked(x):
    return np.where(np.isneginf(x).any(axis=1), -np.inf, solutions.logsumexp_rows(x))


def byte_count(q=3, k=3, v=1, o=1, stats=5, Tr=lambda N, Br: -(-N // Br), size=lambda e, s: (e, s)):
    def answer(N, d, Br, element_bytes=2, stats_bytes=4):
        e, s = size(element_bytes, stats_bytes)
        return e * N * d * (q + o + Tr(N, Br) * (k + v)) + s * stats * N
    return answer


def branches_on_greater(x):
    m = np.where(row_max(x) > -np.inf, row_max(x), 0.0)
    return np.where(row_max(x) > -np.inf, m + np.log(np.exp(x - m[:, None]).sum(axis=1)), -np.inf)


def painted_in_silence(x):
    with np.errstate(all="ignore"):
        return np.nan_to_num(lse_with(row_max)(x), nan=-np.inf, neginf=-np.inf)


BUGS = {
    "03.1": {
        "log2": (lambda t: np.log2(facts(t).largest), "base 2"),
        "log10": (lambda t: np.log10(facts(t).largest), "base 10"),
        "epsilon": (lambda t: np.log(facts(t).epsilon), "epsilon"),
        "minus-epsilon": (lambda t: -np.log(facts(t).epsilon), "minus the logarithm of epsilon"),
        "smallest": (lambda t: np.log(facts(t).smallest_normal), "too small"),
        "no-logarithm": (lambda t: facts(t).largest, "largest number itself"),
        "in-its-own-dtype": (lambda t: np.log(np.finfo(t).max), "float32 and rounded up"),
        "numpy-knows-no-bfloat16": (lambda t: np.log(float(np.finfo(t).max)), "knows no bfloat16"),
        "one-element-array": (lambda t: np.array([np.log(facts(t).largest)]), "expected shape ()"),
        "always-float32": (lambda t: np.log(facts("float32").largest), "'float16')"),
    },
    "03.2": {
        "axis-0": (row_softmax(axis=0), "runs down the columns"),
        "maxima-of-columns": (row_softmax(lambda x: x.max(axis=0)), "maxima run down the columns"),
        "no-keepdims": (row_softmax(lambda x: x.max(axis=1)), "keep the dimension"),
        "no-keepdims-sum": (lambda x: np.exp(x - x.max(axis=1, keepdims=True)) / np.exp(x).sum(axis=1),
                            "keep the dimension"),
        "another-error": (lambda x: x.reshape(7, -1), "your code raised ValueError"),
        "whole-matrix-sum": (lambda x: np.exp(x) / np.exp(x).sum(), "over the whole matrix"),
        "unnormalized": (lambda x: np.exp(x - x.max(axis=1, keepdims=True)), "nothing was divided"),
        "divides-by-max": (lambda x: np.exp(x) / np.exp(x.max(axis=1, keepdims=True)),
                           "nothing was divided"),
        "shift-after-exp": (lambda x: (np.exp(x) - x.max(axis=1, keepdims=True))
                            / (np.exp(x) - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True),
                            "came after the exponential"),
        "numerator-shifted-after": (lambda x: (np.exp(x) - x.max(axis=1, keepdims=True))
                                    / np.exp(x).sum(axis=1, keepdims=True),
                                    "only in the numerator"),
        "sum-before-shift": (lambda x: np.exp(x - x.max(axis=1, keepdims=True))
                             / np.exp(x).sum(axis=1, keepdims=True), "before the shift"),
        "sign": (row_softmax(lambda x: 2 * x), "sign of the exponent"),
        "no-shift": (row_softmax(lambda x: 0.0), "e^1000 overflows"),
        "absolute-max": (row_softmax(lambda x: np.abs(x).max(axis=1, keepdims=True)),
                         "largest absolute value"),
        "maximum-from-0": (row_softmax(lambda x: np.maximum(x.max(axis=1, keepdims=True), 0)),
                           "started from 0"),
        "mean": (row_softmax(lambda x: x.mean(axis=1, keepdims=True)), "below the maximum"),
        "median": (row_softmax(lambda x: np.median(x, axis=1, keepdims=True)), "below the maximum"),
        "midrange": (row_softmax(lambda x: (x.max(axis=1, keepdims=True)
                                            + x.min(axis=1, keepdims=True)) / 2),
                     "below the maximum"),
        "minimum": (row_softmax(lambda x: x.min(axis=1, keepdims=True)), "below the maximum"),
        "first": (row_softmax(lambda x: x[:, :1]), "below the maximum"),
        "last": (row_softmax(lambda x: x[:, -1:]), "below the maximum"),
        "second": (row_softmax(lambda x: np.sort(x, axis=1)[:, -2:-1]), "below the maximum"),
        "first-or-last": (row_softmax(lambda x: np.maximum(x[:, :1], x[:, -1:])),
                          "below the maximum"),
        "floor": (row_softmax(lambda x: np.maximum(x.max(axis=1, keepdims=True), -500)),
                  "above the maximum"),
        "above": (row_softmax(lambda x: x.max(axis=1, keepdims=True) + np.float32(300)),
                  "float32 holds"),
        "below": (row_softmax(lambda x: x.max(axis=1, keepdims=True) - np.float32(300)),
                  "float32 holds"),
        "matrix-max": (row_softmax(lambda x: x.max()), "every row needs its own"),
        "masked-key": (row_softmax(lambda x: x.max(axis=1, keepdims=True)
                                   + 0 * x.min(axis=1, keepdims=True)), "masked logit"),
        "protected-sum": (lambda x: solutions.softmax_rows(x) / (1 + 1e-6 / np.exp(
            x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)), "needs no protection"),
        "in-place": (overwrites, "changed its input"),
        "nan-to-num": (lambda x: np.nan_to_num(solutions.softmax_rows(x)), "paints over NaN"),
        "nan-to-num-first": (lambda x: solutions.softmax_rows(np.nan_to_num(x, neginf=-np.inf)),
                             "paints over NaN"),
        "one-dimensional": (lambda x: solutions.softmax_rows(x)[0], "expected shape"),
    },
    "03.3": {
        "no-shift": (lambda x: np.log(np.exp(x).sum(axis=1)), "e^1000 overflowed"),
        "forgets-m": (lse_with(finite_max, lambda m, l: np.log(l)), "add m back"),
        "subtracts-m": (lse_with(finite_max, lambda m, l: np.log(l) - m), "subtracted once more"),
        "no-logarithm": (lse_with(finite_max, lambda m, l: l * np.exp(m)), "take its logarithm"),
        "maximum-alone": (finite_max, "maximum alone"),
        "base-2": (lse_with(finite_max, lambda m, l: (m + np.log(l)) / np.log(2)), "base-2"),
        "half-base-2": (lse_with(finite_max, lambda m, l: m + np.log2(l)), "np.log of the sum"),
        "product": (lse_with(finite_max, lambda m, l: m * np.log(l)), "were multiplied"),
        "nan": (lse_with(row_max), "is NaN"),
        "no-keepdims": (lambda x: row_max(x) + np.log(np.exp(x - row_max(x)).sum(axis=1)),
                        "keep the dimension"),
        "zero": (zero_if_empty, "gave 0"),
        "nan-to-num": (lambda x: np.nan_to_num(lse_with(row_max)(x)), "gave 0"),
        "lowest": (lse_with(finite_max, lambda m, l: m + np.log(np.maximum(l, 1e-300))),
                   "finite number that you shifted by"),
        "tiny": (lambda x: np.log(np.maximum(
            np.exp(solutions.logsumexp_rows(x)), np.finfo(x.dtype).tiny)) if abs(x).min() < 1
            else solutions.logsumexp_rows(x), "ln of a tiny number"),
        "matrix-max": (lse_with(lambda x: np.full(len(x), x.max())), "one for the whole matrix"),
        "maximum-from-0": (floored_at(0), "started from 0"),
        "painted": (lambda x: np.where(np.isnan(lse_with(row_max)(x)), -np.inf,
                                       lse_with(row_max)(x)), "painted over"),
        "nan-to-minus-infinity": (lambda x: np.nan_to_num(lse_with(row_max)(x), nan=-np.inf,
                                                          neginf=-np.inf), "painted over"),
        "greater": (branches_on_greater, "the NaN vanished"),
        "painted-in-silence": (painted_in_silence, "the NaN vanished"),
        **{f"floor{floor:g}": (floored_at(floor), "must not lie above any finite logit")
           for floor in (-500, -1e4, -5e4, -1e30, np.finfo(np.float32).min)},
        "floor-by-dtype": (lse_with(lambda x: np.maximum(
            row_max(x), x.dtype.type(-1e30) if x.dtype == np.float32 else np.finfo(x.dtype).min)),
            "float32: expected"),
        "floor-float32": (lambda x: floored_at(-5e4)(x.astype(np.float32)),
                          "must not lie above any finite logit"),
        "any-masked": (empty_if_any_masked, "as soon as one logit"),
        "masked-key": (lambda x: solutions.logsumexp_rows(x) + 0 * x.sum(axis=1),
                       "masked logit adds"),
    },
    "03.4": {
        "elements": (byte_count(size=lambda e, s: (1, 1)), "elements, not bytes"),
        "standard": (lambda N, d, Br, element_bytes=2, stats_bytes=4:
                     element_bytes * (4 * N * N + 4 * N * d), "that is standard attention"),
        "forgot-Q": (byte_count(q=0), "Q is missing"),
        "Q-once": (byte_count(q=1), "Q moves in all three"),
        "two-passes": (byte_count(q=2, k=2), "two passes over Q and K"),
        "K-twice": (byte_count(k=2), "short of one N·d"),
        "K-once": (byte_count(k=1), "not in one"),
        "V-thrice": (byte_count(v=3), "V is needed in the last pass only"),
        "forgot-V": (byte_count(v=0), "short of one N·d"),
        "forgot-O": (byte_count(o=0), "O is missing"),
        "forgot-statistics": (byte_count(stats=0), "the statistics are missing"),
        "stores-alone": (byte_count(stats=2), "only the stores"),
        "loads-alone": (byte_count(stats=3), "only the loads"),
        "four-statistics": (byte_count(stats=4), "one short"),
        "six-statistics": (byte_count(stats=6), "one too many"),
        "statistics-by-blocks": (lambda N, d, Br, element_bytes=2, stats_bytes=4: byte_count(
            stats=5 * -(-N // Br))(N, d, Br, element_bytes, stats_bytes), "do not grow"),
        "statistics-of-full-blocks": (lambda N, d, Br, element_bytes=2, stats_bytes=4: byte_count(
            stats=0)(N, d, Br, element_bytes) + stats_bytes * 5 * Br * -(-N // Br), "not 5·Br·Tr"),
        "statistics-as-elements": (byte_count(size=lambda e, s: (e, e)), "at stats_bytes"),
        "one-block": (byte_count(Tr=lambda N, Br: 1), "every query block reads them anew"),
        "floor": (byte_count(Tr=lambda N, Br: N // Br), "ragged query block"),
        "fraction": (byte_count(Tr=lambda N, Br: N / Br), "no fraction"),
        "fixed-sizes": (byte_count(size=lambda e, s: (2, 4)), "are arguments"),
        "first-block-alone": (lambda N, d, Br, element_bytes=2, stats_bytes=4:
                              element_bytes * 4 * d * (Br + N) + stats_bytes * 5 * Br, "block alone"),
        "full-blocks": (lambda N, d, Br, element_bytes=2, stats_bytes=4: -(-N // Br) * (
            element_bytes * 4 * d * (Br + N) + stats_bytes * 5 * Br), "not Tr·Br"),
        "K-stays": (lambda N, d, Br, element_bytes=2, stats_bytes=4: element_bytes * N * d * (
            4 + 3 + -(-N // Br)) + stats_bytes * 5 * N, "K is counted once for all"),
        "V-stays": (lambda N, d, Br, element_bytes=2, stats_bytes=4: element_bytes * N * d * (
            4 + 1 + 3 * -(-N // Br)) + stats_bytes * 5 * N, "V is counted once for all"),
        "O-by-blocks": (lambda N, d, Br, element_bytes=2, stats_bytes=4: element_bytes * N * d * (
            3 + 5 * -(-N // Br)) + stats_bytes * 5 * N, "own Br rows of O"),
        "Q-by-blocks": (lambda N, d, Br, element_bytes=2, stats_bytes=4: element_bytes * N * d * (
            1 + 7 * -(-N // Br)) + stats_bytes * 5 * N, "own Br rows of Q"),
    },
}

TestAnswers = examine(
    right=CHECKS.values(),
    wrong=[(CHECKS[name][0], *bug) for name, bugs in BUGS.items() for bug in bugs.values()])


def test_the_largest_value_below_the_threshold_is_accepted_too():
    verdict = ex.check_threshold(lambda t: facts(t).exp_overflow)
    assert verdict and "that survives" in verdict.message
    assert "one logarithm" in ex.check_threshold(solutions.threshold).message


def test_a_number_that_equals_everything_is_only_its_value():
    class Yes(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__

    assert not ex.check_threshold(lambda t: Yes(1))
    assert ex.check_threshold(lambda t: Yes(facts(t).exp_overflow))
    assert ex.check_threshold(lambda t: np.array(facts(t).exp_overflow))
    assert ex.check_threshold(lambda t: Fraction(facts(t).exp_overflow))
    assert not ex.check_threshold(lambda t: str(facts(t).exp_overflow))


def test_a_softmax_of_fractions_passes():
    def exactly(x):
        e = [[Fraction(float(v)) for v in row] for row in np.exp(x - x.max(axis=1, keepdims=True))]
        return [[v / sum(row) for v in row] for row in e]

    assert ex.check_softmax(exactly)


def test_the_byte_sizes_may_have_other_names():
    assert ex.check_three_pass_bytes(lambda N, d, Br, e=2, s=4: byte_count()(N, d, Br, e, s))


def test_praises_only_what_happened():
    def replaced(x):
        return np.where(np.isneginf(row_max(x)), -np.inf, lse_with(row_max)(x))

    for answer, praise in ((solutions.logsumexp_rows, "stays visible"),
                           (replaced, "arises on the way")):
        verdict = ex.check_logsumexp(answer)
        assert verdict and praise in verdict.message


def test_a_float32_answer_may_be_as_coarse_as_float32():
    assert ex.check_softmax(lambda x: solutions.softmax_rows(x.astype(np.float64)).astype(x.dtype))


def test_a_word_about_float32_only_where_the_logits_were_finer():
    for check, answer in ((ex.check_softmax, solutions.softmax_rows),
                          (ex.check_logsumexp, solutions.logsumexp_rows)):
        assert "float32" not in check(answer).message
        verdict = check(lambda x, answer=answer: answer(x).astype(np.float32))
        assert verdict and "Your answer is float32" in verdict.message, verdict.message


def test_a_log_sum_exp_of_logits_rounded_to_float32_passes():
    assert ex.check_logsumexp(lambda x: solutions.logsumexp_rows(x.astype(np.float32)))


def test_the_claim_of_exercise_4_holds():
    for N, d, Br in ((56, 32, 28), (56, 32, 56), (64, 16, 17), (100, 30, 33), (100, 50, 50)):
        Tr = -(-N // Br)
        three = solutions.three_pass_bytes(N, d, Br, element_bytes=1, stats_bytes=0)
        assert (4 * N * N + 4 * N * d > three) == (d * Tr < N)
        if N % Br == 0:
            assert (d * Tr < N) == (Br > d)


def test_a_solution_is_named_like_its_stub():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
    for name, (check, _) in CHECKS.items():
        assert f"def {REGISTRY[name].solution}(" in code
        assert f"exercises.{check.__name__}({REGISTRY[name].solution})" in code


def test_solutions_agree_with_the_library():
    x = np.random.default_rng(0).normal(size=(5, 7)) * 300
    x[1, 2:] = -np.inf
    np.testing.assert_allclose(solutions.softmax_rows(x), fl.safe_softmax(x), rtol=1e-12)
    _, lse = fl.standard_attention(x[2:3], np.eye(7), np.eye(7), scale=1.0)
    np.testing.assert_allclose(solutions.logsumexp_rows(x[2:3]), lse)


def counted_three_pass(N, d, Br, Bc, machine):
    """Move what three-pass attention moves, kernel by kernel, and let the machine count."""
    Q, K, V = machine.hbm(Q=np.ones((N, d)), K=np.ones((N, d)), V=np.ones((N, d)))
    m, l = (machine.hbm_empty(name, (N,), kind="stats") for name in "ml")
    O = machine.hbm_empty("O", (N, d))
    passes = {"1": ([K], [], m), "2": ([K], [m], l), "3": ([K, V], [m, l], O)}
    for rows in tiles(N, Br):
        for name, (streamed, statistics, result) in passes.items():
            with machine.kernel(name) as sram:
                sram.load(Q[rows])
                for vector in statistics:
                    sram.load(vector[rows])
                for keys in tiles(N, Bc):
                    with sram.scope():
                        for matrix in streamed:
                            sram.load(matrix[keys])
                shape = [rows, d] if result is O else [rows]
                sram.store(sram.tile("out", *shape, fill=0.0), result[rows])


@pytest.mark.parametrize(("N", "d", "Br", "Bc"), [(64, 16, 16, 8), (56, 32, 24, 13), (7, 3, 9, 2),
                                                  (1, 1, 1, 1)])
def test_three_pass_bytes_equal_the_machines_count(N, d, Br, Bc):
    machine = fl.Machine(element_bytes=2, stats_bytes=4)
    counted_three_pass(N, d, Br, Bc, machine)
    assert machine.traffic.hbm_bytes == solutions.three_pass_bytes(N, d, Br)
