"""The checks of chapter 10 accept the solution and name each seeded mistake."""

import math
import sys
import types
from fractions import Fraction

import numpy as np
import pytest

from flashlib.course.ch10 import exercises as ch10
from flashlib.course.ch10 import solutions as right
from tests.course.exercises.examine import examine

LN2 = np.log(2)


def _fold(acc, l, m, qk, v, c, *, top=None, p_of=None, alpha_of=np.exp2, keep=True, after=None,
          total=None):
    new = np.maximum(m, qk.max(axis=1) * c if top is None else top(qk, c))
    alpha = alpha_of(m - new)
    p = np.exp2(qk * c - new[:, None]) if p_of is None else p_of(qk, c, new[:, None])
    out = (acc * alpha[:, None] if keep else acc) + p @ v
    l = l * alpha + p.sum(axis=1) if total is None else total(l, alpha, p)
    return (out if after is None else after(out, l, alpha)), l, new


def _stages(tile, BM, BN, Nq, Nk, *, shift=None, first=1, cap=True, down=True, row=None):
    shift = Nk - Nq if shift is None else shift
    sees = max(tile * BM + first + shift, 0) if row is None else max((tile + 1) * BM + shift, 0)
    end = max((tile + 1) * BM + shift, 0)
    end = min(Nk, end) if cap else end
    sees = min(Nk, sees)
    return sees // BN * BN if down else sees, end


def _first(tile, BM, BN, Nq, Nk):
    return min(Nk, max(tile * BM + 1 + Nk - Nq, 0))


def _with_the_old_m(acc, l, m, qk, v, c):
    p, (_, _, new) = np.exp2(qk * c - m[:, None]), right.fold_scaled(acc, l, m, qk, v, c)
    alpha = np.exp2(m - new)
    return acc * alpha[:, None] + p @ v, l * alpha + p.sum(axis=1), new


def _in_place(acc, l, m, qk, v, c):
    new = np.maximum(m, np.max(qk, axis=1) * c)
    qk *= c
    qk -= new[:, None]
    p, alpha = np.power(2.0, qk), 2.0 ** (m - new)
    acc *= alpha[:, None]
    acc += np.einsum("ij,jk->ik", p, v)
    return acc, l * alpha + np.sum(p, axis=1), new


def _by_cases(b, h, i, j, s, G):
    """Count heads off one by one, as one who thinks of single numbers."""
    head = 0
    while h >= G:
        h, head = h - G, head + 1
    return int(b * s[0] + head * s[1]) + int(np.dot((i, j), s[2:]))


WRONG = [
    (ch10.check_lse, lambda m, l: m + np.log2(l), "base 2"),
    (ch10.check_lse, lambda m, l: m + np.log(l), "bring m to natural units"),
    (ch10.check_lse, lambda m, l: m * LN2 + np.log2(l), "only m was converted"),
    (ch10.check_lse, lambda m, l: (m + np.log2(l)) / LN2, "wrong way round"),
    (ch10.check_lse, lambda m, l: m + np.log2(l) * LN2, "bring m to natural units"),
    (ch10.check_lse, lambda m, l: (m + np.log(l)) * LN2, "it needs log2"),
    (ch10.check_lse, lambda m, l: np.log(2**m * l), "2^m overflowed"),
    (ch10.check_lse, lambda m, l: [math.log(2.0**float(a) * b) for a, b in zip(m, l, strict=True)],
     "2^m overflowed"),
    (ch10.check_lse, lambda m, l: m * np.log2(l) * LN2, "added, not multiplied"),
    (ch10.check_lse, lambda m, l: (m - np.log2(l)) * LN2, "not subtracted"),
    (ch10.check_lse, lambda m, l: np.log2(l) * LN2, "m is missing"),
    (ch10.check_lse, lambda m, l: m * LN2, "the sum is missing"),
    (ch10.check_lse, lambda m, l: (m + l) * LN2, "take its log2 first"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + i * s[2] + j * s[3],
     "neighbors share key head"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h % G * s[1] + i * s[2] + j * s[3],
     "h % 1 is 0"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h // G * s[1] + i * s[3] + j * s[2],
     "rows and columns changed places"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h // G * s[1] + j * s[3],
     "row is missing"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h // G * s[1] + i * s[2],
     "column is missing"),
    (ch10.check_address, lambda b, h, i, j, s, G: (b * s[0] + h * s[1]) // G + i * s[2] + j * s[3],
     "belongs to h alone"),
    (ch10.check_address, lambda b, h, i, j, s, G: b // G * s[0] + h // G * s[1] + i * s[2] + j * s[3],
     "not batches"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] - (-h // G) * s[1] + i * s[2] + j * s[3],
     "key heads for four query heads at (0, 1, 0, 0)"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h * G * s[1] + i * s[2] + j * s[3],
     "the other way round"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h / G * s[1] + i * s[2] + j * s[3],
     "divide with //"),
    (ch10.check_address, lambda b, h, i, j, s, G: ((b * (4 // G) + h // G) * 5 + i) * 3 + j,
     "contiguous tensor only"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h * s[1] + i * s[2] + j * s[3],
     "query head was used"),
    (ch10.check_address, lambda b, h, i, j, s, G:
     b * s[0] + (h % G if G > 1 else h) * s[1] + i * s[2] + j * s[3], "h // GROUP"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h // G * s[1] + i * s[2] + j,
     "column's stride"),
    (ch10.check_address, lambda b, h, i, j, s, G: h // G * s[1] + i * s[2] + j * s[3],
     "batch is missing"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[0] + h // G * s[2] + i * s[1] + j * s[3],
     "changed places"),
    (ch10.check_stages, lambda *a: _stages(*a, shift=0), "top left"),
    (ch10.check_stages, lambda *a: (_stages(*a)[0], a[4]), "nothing was skipped"),
    (ch10.check_stages, lambda *a: _stages(*a, row="last"), "first row of the tile decides"),
    (ch10.check_stages, lambda *a: _stages(*a, down=False), "whole tiles of BLOCK_N"),
    (ch10.check_stages, lambda *a: _stages(*a, cap=False), "beyond the last key"),
    (ch10.check_stages, lambda *a: _stages(*a, first=0), "its own key"),
    (ch10.check_stages, lambda *a: (_stages(*a)[0] // a[2], _stages(*a)[1]), "count keys"),
    (ch10.check_stages, lambda *a: _stages(*a)[0], "expected a tuple (cut, end)"),
    (ch10.check_stages, lambda *a: (_stages(*a)[0], -(-_stages(*a)[1] // a[2]) * a[2]),
     "how many keys the last row sees"),
    (ch10.check_stages, lambda *a: _stages(*a)[::-1], "got (end, cut)"),
    (ch10.check_stages, lambda *a: tuple(-(-x // a[2]) for x in _stages(*a)),
     "end of tile 0, 16 × 8, 32 queries, 72 keys: these are tiles"),
    (ch10.check_stages, lambda *a: _stages(*a, shift=a[3] - a[4]), "the wrong way round?"),
    (ch10.check_stages, lambda *a: (_first(*a) // a[1] * a[1], _stages(*a)[1]), "tiles of queries"),
    (ch10.check_stages, lambda *a: (-(-_first(*a) // a[2]) * a[2], _stages(*a)[1]), "rounded up"),
    (ch10.check_stages, lambda *a: (a[4] if _first(*a) == a[4] else _stages(*a)[0], _stages(*a)[1]),
     "cut of tile 2, 16 × 16, 33 queries, 47 keys"),
    (ch10.check_stages, lambda *a: (0, *_stages(*a)), "got a tuple of 3"),
    (ch10.check_stages, lambda *a: (0, _stages(*a)[1]), "everything is masked"),
    (ch10.check_address, lambda b, h, i, j, s, G: None if b else 0, "is a `return` missing"),
    (ch10.check_fold, lambda *a: _fold(*a, top=lambda qk, c: qk.max() * c),
     "each row has its own (axis=1)"),
    (ch10.check_fold, _with_the_old_m, "p took the old m"),
    (ch10.check_fold, lambda *a: _fold(*a, alpha_of=lambda x: np.exp2(-x)), "upside down"),
    (ch10.check_fold, lambda *a: right.fold_scaled(*a)[::-1], "in the order (m, l, acc)"),
    (ch10.check_fold, lambda *a: tuple(right.fold_scaled(*a)[n] for n in (1, 2, 0)),
     "in the order (l, m, acc)"),
    (ch10.check_fold, lambda *a: tuple(right.fold_scaled(*a)[n] for n in (0, 2, 1)),
     "in the order (acc, m, l)"),
    (ch10.check_fold, lambda *a: (*right.fold_scaled(*a)[:2], a[2]), "old m was returned"),
    (ch10.check_fold, lambda *a: _fold(*a, total=lambda l, alpha, p: p.sum(axis=1)), "l began before"),
    (ch10.check_fold, lambda *a: _fold(*a, total=lambda l, alpha, p: alpha * (l + p.sum(axis=1))),
     "only the past"),
    (ch10.check_fold, lambda *a: _fold(*a, total=lambda l, alpha, p: alpha * l + p.sum()), "its own"),
    (ch10.check_fold, lambda *a: _fold(*a, p_of=lambda qk, c, m: np.exp2(qk * c / LN2 - m)), "twice"),
    (ch10.check_fold, lambda acc, *a: _fold(0 * acc, *a), "acc began before"),
    (ch10.check_fold, lambda *a: _fold(*a, top=lambda qk, c: qk.max(axis=1)), "raw logits"),
    (ch10.check_fold, lambda *a: _fold(*a, top=lambda qk, c: qk.max(axis=1) * c * LN2),
     "inside scale_log2 already"),
    (ch10.check_fold, lambda *a: _fold(*a, p_of=lambda qk, c, m: np.exp(qk * c - m)),
     "both are powers of 2"),
    (ch10.check_fold, lambda *a: _fold(*a, p_of=lambda qk, c, m: np.exp(qk * c - m),
                                       alpha_of=np.exp), "counts twice"),
    (ch10.check_fold, lambda *a: _fold(*a, alpha_of=np.exp), "alpha is e^"),
    (ch10.check_fold, lambda *a: _fold(*a, p_of=lambda qk, c, m: np.exp2((qk - m) * c)),
     "scaled again"),
    (ch10.check_fold, lambda *a: _fold(*a, top=lambda qk, c: (qk * c).max(axis=1)),
     "multiplied 2 times, and once is enough"),
    (ch10.check_fold, lambda *a: _fold(*a, p_of=lambda qk, c, m: np.exp((qk * c - m) * LN2)),
     "multiplied 2 times"),
    (ch10.check_fold, lambda *a: _fold(*a, p_of=lambda qk, c, m: np.exp(qk * (c * LN2) - m * LN2)),
     "right, but e^x was used"),
    (ch10.check_fold, lambda *a: _fold(*a, alpha_of=lambda x: np.exp(x * LN2)), "e^x was used"),
    (ch10.check_address, lambda b, h, i, j, s, G: b * s[1] + h // G * s[0] + i * s[2] + j * s[3],
     "batch and head changed places"),
    (ch10.check_fold, lambda *a: _fold(*a, keep=False), "acc was not rescaled"),
    (ch10.check_fold, lambda *a: _fold(*a, after=lambda o, l, alpha: o / l[:, None]), "comes once"),
]
PAIRS = [(ch10.check_lse, right.natural_lse), (ch10.check_address, right.address),
         (ch10.check_stages, right.stages), (ch10.check_fold, right.fold_scaled)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), [
    (ch10.check_address, _by_cases),
    (ch10.check_address, lambda b, h, i, j, s, G: np.dot((b, math.floor(h / G), i, j), s)),
    (ch10.check_address, lambda b, h, i, j, s, G: int(b * s[0] + h // G * s[1] + i * s[2] + j * s[3])),
    (ch10.check_lse, lambda m, l: m * LN2 + np.log(l)),
    (ch10.check_lse, lambda m, l: [(a + math.log2(b)) / math.log2(math.e)
                                   for a, b in zip(map(float, m), l, strict=True)]),
    (ch10.check_address, lambda *a: Fraction(right.address(*a))),
    (ch10.check_stages, lambda *a: tuple(map(Fraction, right.stages(*a)))),
    (ch10.check_stages, lambda *a: (_first(*a) // a[2] * a[2],
                                    sum(j <= max((a[0] + 1) * a[1] - 1, 0) + a[4] - a[3]
                                        for j in range(a[4])))),
    (ch10.check_stages, lambda *a: list(right.stages(*a))),
    (ch10.check_stages, lambda *a: np.array(right.stages(*a))),
    (ch10.check_fold, lambda acc, l, m, qk, v, c: _fold(
        acc, l, m, qk * c, v, 1, top=lambda x, _: x.max(axis=1), p_of=lambda x, _, m: np.exp2(x - m))),
    (ch10.check_fold, _in_place),
    (ch10.check_fold, lambda *a: list(right.fold_scaled(*a)))])
def test_other_right_forms_pass(check, answer):
    assert check(answer, strict=True)


def test_a_multiplication_that_stands_apart_is_not_called_a_multiply_add():
    message = ch10.check_fold(lambda acc, l, m, qk, v, c: _fold(
        acc, l, m, qk * c, v, 1, top=lambda x, _: x.max(axis=1), p_of=lambda x, _, m: np.exp2(x - m)),
        strict=True).message
    assert "one multiplication and one exp2 a logit" in message and "qk · c − m_new" in message


@pytest.mark.parametrize(("module", "name"), [("torch", "PyTorch"), ("triton", "Triton")])
def test_why_not_says_what_is_missing(module, name, monkeypatch):
    from flashlib import kernels

    if module == "triton":
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setitem(sys.modules, module, None)
    assert f"{name} is not installed" in kernels.why_not()
