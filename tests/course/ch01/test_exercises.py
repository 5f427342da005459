"""The checks of chapter 01 accept the solution and name each seeded mistake."""

import math
from itertools import pairwise

import numpy as np
import pytest

from flashlib.course.ch01 import exercises as ch01
from flashlib.course.ch01 import solutions as right
from flashlib.models import transformer
from tests.course.exercises.examine import examine


def _tokens(D, F, e, ridge, *, flops=2, into=1, out=1, rounded=math.ceil, give_up=True):
    c = ridge * e
    bracket = flops * D * F - c * (into * D + out * F)
    return None if give_up and bracket <= 0 else rounded(c * D * F / bracket)


def _pick(key, choose=max):
    def answer(operators, seconds):
        a, b = choose(pairwise(operators), key=lambda pair: key(operators, seconds, *pair))
        return a.name, b.name
    return answer


def _fused(operators, a, b):
    return transformer.fuse(operators, [a.name, b.name])


def _saved(ops, s, a, b):
    return s(a) + s(b) - s(_fused(ops, a, b))


WRONG = [
    (ch01.check_longest_sequence, lambda r, h, e: r // (h * e), "root was needed"),
    (ch01.check_longest_sequence, lambda r, h, e: math.isqrt(r // h), "counts elements"),
    (ch01.check_longest_sequence, lambda r, h, e: math.isqrt(r // e), "an S of its own"),
    (ch01.check_longest_sequence, lambda r, h, e: math.ceil(math.sqrt(r / (h * e))), "rounded up"),
    (ch01.check_longest_sequence, lambda r, h, e: math.isqrt(r // (h * e) - 1), "off by one"),
    (ch01.check_longest_sequence, lambda r, h, e: math.isqrt(r // (2 * h * e)), "S alone"),
    (ch01.check_longest_sequence, lambda r, h, e: math.isqrt(8 * r // (h * e)), "those are bits"),
    (ch01.check_longest_sequence, lambda r, h, e: math.isqrt(r // h) // e, "bytes stand outside"),
    (ch01.check_longest_sequence, lambda r, h, e: math.isqrt(r // e) // h, "heads stand outside"),
    *((ch01.check_longest_sequence, answer, "whole number") for answer in (
        lambda r, h, e: math.sqrt(r / (h * e)), lambda r, h, e: np.array([50, 60]),
        lambda r, h, e: True, lambda r, h, e: math.inf, lambda r, h, e: "50")),
    (ch01.check_classify, lambda f, b, p, q: "compute" if f / p < b / q else "memory",
     "other way round"),
    (ch01.check_classify, lambda f, b, p, q: "memory" if f < b else "compute", "is not enough"),
    (ch01.check_classify, lambda f, b, p, q: "memory" if f / b < q / p else "compute", "inverse"),
    *((ch01.check_classify, lambda f, b, p, q, ridge=ridge: "memory" if f / b < ridge else "compute",
       "same ridge for every GPU") for ridge in (58, 100, 150, 160, 206)),
    (ch01.check_classify, lambda f, b, p, q: True, '"memory" or "compute"'),
    *((ch01.check_classify, lambda f, b, p, q, word=word: word, "whatever the numbers are")
      for word in ("compute", "memory", "arithmetic")),
    (ch01.check_tokens_to_compute, lambda *a: _tokens(*a, flops=1), "two FLOPs"),
    (ch01.check_tokens_to_compute, lambda D, F, e, r: _tokens(D, F, 1, r), "counts elements"),
    (ch01.check_tokens_to_compute, lambda D, F, e, r: _tokens(D, F, 2, r), "is an argument"),
    (ch01.check_tokens_to_compute, lambda D, F, e, r: _tokens(D, D, e, r), "may differ"),
    (ch01.check_tokens_to_compute, lambda *a: _tokens(*a, out=0), "T × F, moves too"),
    (ch01.check_tokens_to_compute, lambda *a: _tokens(*a, into=0), "T × D, moves too"),
    (ch01.check_tokens_to_compute, lambda *a: _tokens(*a, rounded=math.floor), "rounded down"),
    (ch01.check_tokens_to_compute, lambda *a: _tokens(*a, rounded=lambda T: math.floor(T) + 1),
     "comes out even"),
    (ch01.check_tokens_to_compute, lambda D, F, e, r: math.ceil(r * e / 2), "only the weights"),
    (ch01.check_tokens_to_compute, lambda *a: _tokens(*a, give_up=False), "return None"),
    *((ch01.check_tokens_to_compute, lambda *a, none=none: _tokens(*a) or none, "expected None, got")
      for none in (10**9, math.inf, np.inf, np.array(np.inf))),
    (ch01.check_tokens_to_compute, lambda *a: math.nan, "whole number"),
    (ch01.check_best_pair, _pick(lambda ops, s, a, b: s(a) + s(b)), "takes longest"),
    (ch01.check_best_pair, _pick(lambda ops, s, a, b: a.flops + b.flops), "most arithmetic"),
    (ch01.check_best_pair, _pick(lambda ops, s, a, b: a.hbm_bytes + b.hbm_bytes), "weights, for one"),
    (ch01.check_best_pair, _pick(lambda ops, s, a, b: a.hbm_bytes), "first of this pair"),
    (ch01.check_best_pair, _pick(lambda ops, s, a, b: b.hbm_bytes), "another pair"),
    (ch01.check_best_pair, _pick(lambda ops, s, a, b: s(_fused(ops, a, b)), min), "once fused"),
    (ch01.check_best_pair, _pick(_saved, min), "saves least"),
    (ch01.check_best_pair, _pick(lambda ops, s, a, b: a.hbm_bytes + b.hbm_bytes
                                 - _fused(ops, a, b).hbm_bytes), "saves most bytes"),
    (ch01.check_best_pair, lambda ops, s: ("norm 1", "softmax"), "are not neighbors"),
    (ch01.check_best_pair, lambda ops, s: ("softmax", "softmax"), "are not neighbors"),
    (ch01.check_best_pair, lambda ops, s: ("softmax", "dropout"), "two neighbors"),
    (ch01.check_best_pair, lambda ops, s: right.best_pair(ops, s)[::-1], "runs first"),
    (ch01.check_best_pair, lambda ops, s: (ops[8].name, ops[9].name), "another pair"),
]
PAIRS = [(ch01.check_longest_sequence, right.longest_sequence),
         (ch01.check_classify, right.classify),
         (ch01.check_tokens_to_compute, right.tokens_to_compute),
         (ch01.check_best_pair, right.best_pair)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


@pytest.mark.parametrize("form", [np.array, np.int64, float, lambda N: np.array([N])])
def test_a_whole_number_passes_in_every_form(form):
    assert ch01.check_longest_sequence(lambda *a: form(right.longest_sequence(*a)), strict=True)
    assert ch01.check_tokens_to_compute(
        lambda *a: None if (T := right.tokens_to_compute(*a)) is None else form(T), strict=True)


@pytest.mark.parametrize("word", ["compute", "arithmetic", "matmul", "compute-bound"])
def test_what_a_kernel_waits_for_may_be_said_in_the_words_of_the_chapter(word):
    assert ch01.check_classify(
        lambda *a: word if right.classify(*a) == "compute" else "memory", strict=True)


@pytest.mark.parametrize("form", [list, np.array])
def test_a_pair_passes_as_a_list_or_an_array(form):
    assert ch01.check_best_pair(lambda *a: form(right.best_pair(*a)), strict=True)


def test_the_operators_themselves_are_an_answer_too():
    def operators_instead_of_names(operators, seconds):
        return next(p for p in pairwise(operators) if p[1].name == "softmax")

    verdict = ch01.check_best_pair(operators_instead_of_names)
    assert verdict or "GPT-2 medium, exponentials" in verdict.message
