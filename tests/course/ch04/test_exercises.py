"""The checks of notebook 04 accept the solutions and name the seeded mistakes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import flashlib as fl
from flashlib.course.ch04 import exercises as ex
from flashlib.course.ch04 import solutions
from flashlib.course.exercises import core
from tests.course.exercises.examine import examine, stub

EMPTY = (-np.inf, 0.0)
NOTEBOOK = Path(fl.__file__).parent.parent / "notebooks" / "04_run_softmax_online.ipynb"


CHECKS = {
    "04.1": (ex.check_factor, solutions.rescale_factor),
    "04.2": (ex.check_merge, solutions.merge_states),
    "04.3": (ex.check_rescales, solutions.count_and_expect),
    "04.4": (ex.check_property_test, solutions.trusts),
}


def joint(a, b):
    m = max(a[0], b[0])
    return m, (0.0 if m == -np.inf else m)


def merge_without_rescale(a, b):
    return joint(a, b)[0], a[1] + b[1]


def merge_left_only(a, b):
    m, shift = joint(a, b)
    return m, a[1] * math.exp(a[0] - shift) + b[1]


def merge_right_only(a, b):
    m, shift = joint(a, b)
    return m, a[1] + b[1] * math.exp(b[0] - shift)


def merge_wrong_sign(a, b):
    m, shift = joint(a, b)
    return m, a[1] * np.exp(shift - a[0]) + b[1] * np.exp(shift - b[0])


def merge_swapped_factors(a, b):
    m, shift = joint(a, b)
    return m, a[1] * np.exp(b[0] - shift) + b[1] * np.exp(a[0] - shift)


def merge_nan_for_two_empties(a, b):
    m = np.maximum(a[0], b[0])
    return m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)


def merge_from_the_lowest(a, b):
    m = max(a[0], b[0], np.finfo(np.float64).min)
    return m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)


def merge_with_floor(floor):
    def merge(a, b):
        m = max(a[0], b[0])
        shift = max(m, floor)
        return m, a[1] * np.exp(a[0] - shift) + b[1] * np.exp(b[0] - shift)
    return merge


def merge_painted(a, b):
    m, l = merge_nan_for_two_empties(a, b)
    return (m, 0.0) if np.isnan(l) else (m, l)


def merge_nan_to_num(a, b):
    m, l = merge_nan_for_two_empties(a, b)
    return m, np.nan_to_num(l)


def merge_replaced(a, b):
    m, l = merge_nan_for_two_empties(a, b)
    return m, 0.0 if m == -np.inf else l


def merge_drops_nan(a, b):
    m = np.fmax(a[0], b[0])
    shift = 0.0 if m == -np.inf else m
    return m, np.nansum([a[1] * np.exp(a[0] - shift), b[1] * np.exp(b[0] - shift)])


def merge_if_greater(a, b):
    m = np.maximum(a[0], b[0])
    return (m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)) if m > -np.inf else EMPTY


def merge_three_ways(a, b):
    """Merge by cases; of a state that is NaN all through, every case keeps the NaN."""
    if a[0] > b[0]:
        return a[0], a[1] + b[1] * np.exp(b[0] - a[0])
    return (a[0], a[1] + b[1]) if a[0] == b[0] else (b[0], b[1] + a[1] * np.exp(a[0] - b[0]))


def in_float32(answer):
    def rounded(*given):
        return tuple(np.float32(part) for part in answer(*given))
    return rounded


def merge_all_in_float32(a, b):
    """Merge what came as float32, where −1e300 is −∞."""
    return in_float32(solutions.merge_states)(np.float32(a), np.float32(b))


def merge_left_maximum(a, b):
    return a[0], a[1] + b[1] * np.exp(b[0] - a[0])


def merge_added_maxima(a, b):
    return a[0] + b[0], a[1] + b[1]


def merge_then(change):
    """Merge rightly, then change the answer (m, l) of the states a and b."""
    return lambda a, b: change(*solutions.merge_states(a, b), a, b)


def shares(a, b, m):
    return [l * np.exp(old - m) for old, l in (a, b)]


def merge_in_logarithms(a, b):
    m, shift = joint(a, b)
    return m, sum(math.exp(math.log(l) + old - shift) for old, l in (a, b) if l)


def merge_loses_beside_empty(a, b):
    return EMPTY if -np.inf in (a[0], b[0]) else solutions.merge_states(a, b)


def merge_unsafe(a, b):
    m, shift = joint(a, b)
    return m, (a[1] * np.exp(a[0]) + b[1] * np.exp(b[0])) / np.exp(shift)


def sorts_in_place(x):
    x.sort()
    return records(x), excess(len(x))


def merge_of_the_text(a, b):
    m = np.maximum(a[0], b[0])
    if m == -np.inf:
        return EMPTY
    return m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)


def records(x):
    return int(np.sum(np.diff(np.maximum.accumulate(x)) > 0))


def excess(n):
    return sum(1 / i for i in range(2, n + 1))


MISTAKES = {
    "factor-sign": (ex.check_factor, lambda old, new: math.exp(new - old), "sign is wrong"),
    "factor-no-exp": (ex.check_factor, lambda old, new: old - new, "its exponential"),
    "factor-no-exp-sign": (ex.check_factor, lambda old, new: new - old, "wrong sign"),
    "factor-base-2": (ex.check_factor, lambda old, new: 2 ** (old - new), "base 2"),
    "factor-base-10": (ex.check_factor, lambda old, new: 10 ** (old - new), "base 10"),
    "factor-first-nan": (ex.check_factor,
                         lambda old, new: math.nan if old == -np.inf else math.exp(old - new),
                         "this is NaN"),
    "factor-one": (ex.check_factor, lambda old, new: 1.0, "must be multiplied"),
    "factor-unsafe": (ex.check_factor, lambda old, new: np.exp(old) / np.exp(new),
                      "each exponential overflows alone"),
    "factor-unsafe-math": (ex.check_factor, lambda old, new: math.exp(old) / math.exp(new),
                           "each exponential overflows alone"),
    "merge-no-rescale": (ex.check_merge, merge_without_rescale, "without a rescale"),
    "merge-left-only": (ex.check_merge, merge_left_only, "only the left sum"),
    "merge-right-only": (ex.check_merge, merge_right_only, "only the right sum"),
    "merge-sign": (ex.check_merge, merge_wrong_sign, "wrong sign"),
    "merge-swapped": (ex.check_merge, merge_swapped_factors, "other's factor"),
    "merge-empties": (ex.check_merge, merge_nan_for_two_empties, "−∞ − (−∞) is NaN"),
    "merge-lowest": (ex.check_merge, merge_from_the_lowest, "must stay −∞"),
    "merge-zero": (ex.check_merge, lambda a, b: (joint(a, b)[1], solutions.merge_states(a, b)[1]),
                   "must stay −∞"),
    **{f"merge-floor{floor:g}": (ex.check_merge, merge_with_floor(floor), "lies above both maxima")
       for floor in (0.0, -1.0, -500.0, -1e4, float(np.finfo(np.float32).min))},
    "merge-painted": (ex.check_merge, merge_painted, "painted over"),
    "merge-nan-to-num": (ex.check_merge, merge_nan_to_num, "painted over"),
    "merge-drops-nan": (ex.check_merge, merge_drops_nan, "np.fmax"),
    "merge-if-greater": (ex.check_merge, merge_if_greater, "m > −∞"),
    "merge-left-only-float32": (ex.check_merge, in_float32(merge_left_only), "only the left sum"),
    "merge-floor-float32": (ex.check_merge, in_float32(merge_with_floor(-1e4)), "lies above both"),
    "merge-left-maximum": (ex.check_merge, merge_left_maximum, "maximum of one side only"),
    "merge-added": (ex.check_merge, merge_added_maxima, "maxima are added"),
    "merge-swapped-pair": (ex.check_merge, merge_then(lambda m, l, a, b: (l, m)), "are swapped"),
    "merge-larger-sum": (ex.check_merge, merge_then(lambda m, l, a, b: (m, max(shares(a, b, m)))),
                         "add them"),
    "merge-no-sums": (ex.check_merge, merge_then(
        lambda m, l, a, b: (m, np.exp(a[0] - m) + np.exp(b[0] - m))), "without the sums"),
    "merge-log": (ex.check_merge, merge_then(lambda m, l, a, b: (m, np.log(l))), "logarithm of"),
    "merge-from-0": (ex.check_merge, merge_then(lambda m, l, a, b: (m, l * np.exp(m))),
                     "relative to 0"),
    "merge-unsafe": (ex.check_merge, merge_unsafe, "overflowed alone"),
    "merge-logarithms": (ex.check_merge, merge_in_logarithms, "is rounded away"),
    "merge-loses": (ex.check_merge, merge_loses_beside_empty, "other part is lost"),
    "merge-no-pair": (ex.check_merge, lambda a, b: 3.0, "expected a pair"),
    "rescales-no-pair": (ex.check_rescales, lambda x: records(x), "(rescales of x, rescales to"),
    "rescales-first": (ex.check_rescales, lambda x: (records(x) + 1, excess(len(x))),
                       "first logit is counted"),
    "rescales-ties": (ex.check_rescales,
                      lambda x: (int(np.sum(x[1:] >= np.maximum.accumulate(x)[:-1])),
                                 excess(len(x))), "equal maximum"),
    "rescales-growth": (ex.check_rescales,
                        lambda x: (int(np.sum(np.diff(x) > 0)), excess(len(x))),
                        "exceeds everything before"),
    "rescales-from-0": (ex.check_rescales, lambda x: (records([0.0, *x]), excess(len(x))),
                        "starts at 0 here"),
    "rescales-most": (ex.check_rescales, lambda x: (len(x) - 1, excess(len(x))), "the most that"),
    "rescales-sorts": (ex.check_rescales, sorts_in_place, "the most that"),
    "rescales-place": (ex.check_rescales, lambda x: (int(np.argmax(x)), excess(len(x))),
                       "place of the maximum"),
    "rescales-swapped": (ex.check_rescales, lambda x: (excess(len(x)), records(x)), "are swapped"),
    "rescales-one-short": (ex.check_rescales, lambda x: (records(x), excess(len(x) - 1)),
                           "from 2 to n"),
    "rescales-one-far": (ex.check_rescales, lambda x: (records(x), excess(len(x) + 1)),
                         "one too far"),
    "rescales-harmonic": (ex.check_rescales, lambda x: (records(x), excess(len(x)) + 1),
                          "counts the first logit"),
    "rescales-short": (ex.check_rescales, lambda x: (records(x), excess(len(x) - 1) + (len(x) > 1)),
                       "one short"),
    "rescales-log": (ex.check_rescales,
                     lambda x: (records(x), math.log(len(x))), "leading term"),
    **{f"rescales-log-and-{gamma:g}": (
        ex.check_rescales, lambda x, gamma=gamma: (records(x), math.log(len(x)) + gamma - 1),
        "only comes near H_n") for gamma in (0.577, 0.5772, np.euler_gamma)},
    "rescales-distinct": (ex.check_rescales, lambda x: (records(x), excess(len(set(x)))),
                          "equal logits count, too"),
    "rescales-first-float32": (ex.check_rescales,
                               in_float32(lambda x: (records(x), excess(len(x)) + 1)),
                               "counts the first logit"),
    "rescales-this-order": (ex.check_rescales, lambda x: (records(x), records(x)),
                            "over all orders"),
}

# A property test that returns None is told what to return: see WEAK_TESTS.
TestAnswers = examine(right=CHECKS.values(), wrong=MISTAKES.values(), unanswered=(stub, None, ...))


def test_praises_only_what_happened():
    assert "arises on the way" in ex.check_merge(merge_replaced).message
    verdict = ex.check_factor(lambda old, new: 1.0 if old == -np.inf else math.exp(old - new))
    assert verdict and "no case of its own is needed" in verdict.message
    assert "This one function folds" in ex.check_merge(merge_of_the_text).message
    assert "This one function folds" in ex.check_merge(solutions.merge_states).message


@pytest.mark.parametrize(("check", "answer"), [
    (ex.check_merge, in_float32(solutions.merge_states)), (ex.check_merge, merge_all_in_float32),
    (ex.check_rescales, in_float32(solutions.count_and_expect))])
def test_a_float32_answer_passes_with_a_word_about_it(check, answer):
    verdict = check(answer)
    assert verdict and "Your answer is float32" in verdict.message, verdict.message


def test_a_merge_by_cases_passes():
    assert ex.check_merge(merge_three_ways)


def test_the_message_about_a_single_logit_reads():
    verdict = ex.check_rescales(lambda x: (records(x), excess(len(x)) + (len(x) == 1) * 7))
    assert "one logit, the second number: expected 0, got 7" in verdict.message


def test_a_solution_is_named_like_its_stub():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
    for name, (check, _) in CHECKS.items():
        assert f"def {core.REGISTRY[name].solution}(" in code
        assert f"exercises.{check.__name__}({core.REGISTRY[name].solution})" in code


def close(a, b, rtol=1e-12):
    return np.allclose(a, b, rtol=rtol, atol=0)


def laws_only(merge):
    a, b, c = (1.0, 2.0), (3.0, 1.5), (-2.0, 4.0)
    return bool(close(merge(a, b), merge(b, a)) and close(merge(a, EMPTY), a)
                and close(merge(merge(a, b), c), merge(a, merge(b, c)))
                and close(merge(EMPTY, EMPTY), EMPTY))


def truth_on(spread, offset, rtol=1e-12, empties=True):
    def trusts(merge):
        rng = np.random.default_rng(0)
        for _ in range(30):
            x, y = (spread * rng.standard_normal(n) + offset for n in (4, 3))
            pairs = [(x, y), (x, x[::-1])] + ([(x, []), ([], []), ([], y)] if empties else [])
            for u, v in pairs:
                if not close(merge(ex.state(u), ex.state(v)),
                             ex.state(np.concatenate([u, v])), rtol):
                    return False
        return True
    return trusts


WEAK_TESTS = {
    "trusts-all": (lambda merge: True, "forgets to rescale"),
    "trusts-none": (lambda merge: False, "rejects a right merge"),
    "laws-only": (laws_only, "forgets to rescale"),
    "no-empties": (truth_on(30, 1000, empties=False), "two empty parts"),
    "small-logits": (truth_on(30, 0), "overflows"),
    "narrow-logits": (truth_on(1, 1000), "clips the exponent"),
    "never-negative": (truth_on(30, 1000), "start at 0"),
    "loose": (truth_on(30, 1000, rtol=1e-6), "float32"),
    "to-the-bit": (truth_on(1, 0, rtol=0), "rejects a right merge"),
    "no-return": (lambda merge: None, "returned None"),
    "returns-a-number": (lambda merge: 1.0, "True or False"),
}


@pytest.mark.parametrize("weak", WEAK_TESTS)
def test_a_weak_property_test_learns_what_escapes_it(weak):
    trusts, diagnosis = WEAK_TESTS[weak]
    verdict = ex.check_property_test(trusts)
    assert not verdict
    assert diagnosis in verdict.message


def test_a_property_test_may_assert_instead_of_returning_false():
    def trusts(merge):
        assert solutions.trusts(merge)
        return True

    assert ex.check_property_test(trusts)


def test_every_broken_merge_is_broken_and_every_right_one_is_right():
    with np.errstate(all="ignore"):
        assert all(solutions.trusts(merge) for merge in ex.RIGHT.values())
        assert not any(solutions.trusts(merge) for merge in ex.BROKEN.values())


def test_forgetting_to_rescale_obeys_every_law():
    assert laws_only(ex.BROKEN[next(iter(ex.BROKEN))])


def test_state_of_a_row():
    assert ex.state([]) == EMPTY
    assert ex.state([-np.inf, -np.inf]) == EMPTY
    assert ex.state([2.0, 2.0, -np.inf]) == (2.0, 2.0)
