"""The checks of chapter 17 accept the solution and name each seeded mistake."""

import numpy as np
import pytest

from flashlib.course.ch17 import exercises as ch17
from flashlib.course.ch17 import solutions as right
from tests.course.exercises.examine import examine


def over(N, C):
    return N / (12 * C)


def less(which, by):
    def kept(B, H, N, C, e):
        found = list(right.kept(B, H, N, C, e))
        found[which] -= by(B, H, N, C, e)
        return found
    return kept


def P(B, H, N, C, e):
    return B * H * N * N * e


def speed(read):
    return lambda w, L, H_k, d, N, e, rate: rate / (e * read(w, 2 * L * H_k * d * N, L, e))


def at_the_end(model, tokens):
    """Look at the last place only: a row that sees but the next token leaks there, too."""
    other = np.array(tokens)
    other[-1] += 1
    moved = np.any(model(other)[:-1] != model(tokens)[:-1], axis=-1)
    return (int(np.argmax(moved)), len(tokens) - 1) if moved.any() else None


def at_the_front(model, tokens):
    """Look at the first row only."""
    for place in range(1, len(tokens)):
        other = np.array(tokens)
        other[place] += 1
        if np.any(model(other)[0] != model(tokens)[0]):
            return 0, place
    return None


def in_place(model, tokens):
    before = model(tokens).copy()
    tokens[-1] += 1
    return (0, 7) if np.any(model(tokens)[:-1] != before[:-1]) else None


def the_row_before(model, tokens):
    """Change every place, but look at the row before it only."""
    for place in range(1, len(tokens)):
        other = np.array(tokens)
        other[place] += 1
        if np.any(model(other)[place - 1] != model(tokens)[place - 1]):
            return place - 1, place
    return at_the_end(model, tokens) or at_the_front(model, tokens)


def emptied(model, tokens):
    """Set every place to 0, which changes nothing where a 0 stands."""
    for place in range(1, len(tokens)):
        other = np.array(tokens)
        other[place] = 0
        moved = np.any(model(other)[:place] != model(tokens)[:place], axis=-1)
        if moved.any():
            return int(np.argmax(moved)), place
    return None


def itself(model, tokens):
    return (len(tokens) - 1, len(tokens) - 1)


WRONG = [
    (ch17.check_gain, lambda N, C, f: f, "the matrices are as slow as before"),
    (ch17.check_gain, lambda N, C, f: over(N, C) / (1 + over(N, C)), "attention's share"),
    (ch17.check_gain, lambda N, C, f: 1 / right.gain(N, C, f), "old over new"),
    (ch17.check_gain, lambda N, C, f: 1 / (1 - over(N, C) + over(N, C) / f), "not over both"),
    (ch17.check_gain, lambda N, C, f: right.gain(2 * N, C, f), "without a causal mask"),
    (ch17.check_gain, lambda N, C, f: 7.0, "expected"),
    (ch17.check_gain, lambda N, C, f: "twice", "expected a number"),
    (ch17.check_kept, less(0, lambda B, H, N, C, e: P(B, H, N, C, e) * (1 - 1 / H)), "a P of its own"),
    (ch17.check_kept, less(0, lambda *x: -P(*x)), "S is not kept"),
    (ch17.check_kept, less(0, P), "Where is P?"),
    (ch17.check_kept, less(1, lambda B, H, N, C, e: 4 * B * H * N), "lse is missing"),
    (ch17.check_kept, less(1, lambda B, H, N, C, e: (4 - e) * B * H * N), "whatever the inputs are"),
    (ch17.check_kept, less(1, lambda B, H, N, C, e: B * N * C * e), "O is missing"),
    (ch17.check_kept, lambda *x: right.kept(*x)[::-1], "in the order (ours, standard)"),
    (ch17.check_kept, lambda *x: (7, 7), "Expected"),
    (ch17.check_kept, lambda B, H, N, C, e: (3 * B * H * N * C * e + P(B, H, N, C, e),
                                             right.kept(B, H, N, C, e)[1]), "all heads together"),
    (ch17.check_kept, lambda B, H, N, C, e: (right.kept(B, H, N, C, e)[0],
                                             4 * B * H * N * (C * e + 1)), "all heads together"),
    (ch17.check_tokens_per_s, speed(lambda w, c, L, e: w), "the cache of keys and values"),
    (ch17.check_tokens_per_s, speed(lambda w, c, L, e: c), "the weights are read as well"),
    (ch17.check_tokens_per_s, speed(lambda w, c, L, e: w + c / 2), "K and V are two"),
    (ch17.check_tokens_per_s, speed(lambda w, c, L, e: w + c / L), "a cache of its own"),
    (ch17.check_tokens_per_s, speed(lambda w, c, L, e: (w + c) / e), "an element is element_bytes"),
    (ch17.check_tokens_per_s, speed(lambda w, c, L, e: w / e + c), "a count, not bytes"),
    (ch17.check_kept, lambda *x: {}, "an element: expected a tuple"),
    (ch17.check_tokens_per_s, lambda *x: 1 / right.tokens_per_s(*x), "seconds of a token"),
    (ch17.check_tokens_per_s, lambda *x: 5, "expected"),
    (ch17.check_first_leak, lambda model, tokens: (0, 7), "expected None"),
    (ch17.check_first_leak, itself, "expected None"),
    (ch17.check_first_leak, at_the_front, "Try every place"),
    (ch17.check_first_leak, at_the_end, "a single row in the middle: got None"),
    (ch17.check_first_leak, the_row_before, "row 2 changes with place 5, which holds token 0"),
    (ch17.check_first_leak, emptied, "with another token than it holds"),
    (ch17.check_first_leak, in_place, "copy them first"),
    (ch17.check_first_leak, lambda m, t: right.first_leak(m, t) and True, "expected (row, place)"),
    (ch17.check_first_leak, lambda m, t: right.first_leak(m, t) and (5, 2), "leads to a later place"),
    (ch17.check_first_leak, lambda m, t: right.first_leak(m, t) and (0, 7), "does not change"),
]
CHECKS = [(ch17.check_gain, right.gain), (ch17.check_kept, right.kept),
          (ch17.check_tokens_per_s, right.tokens_per_s), (ch17.check_first_leak, right.first_leak)]
FORMS = [
    (ch17.check_gain, lambda *x: np.float32(right.gain(*x)).astype(float) * 0 + right.gain(*x)),
    (ch17.check_gain, lambda N, C, f: 1 / (1 - over(N, C) / (1 + over(N, C)) * (1 - 1 / f))),
    (ch17.check_gain, lambda *x: np.array(right.gain(*x))),
    (ch17.check_kept, lambda *x: list(right.kept(*x))),
    (ch17.check_kept, lambda *x: np.array(right.kept(*x), float)),
    (ch17.check_tokens_per_s, lambda *x: np.float64(right.tokens_per_s(*x))),
    (ch17.check_tokens_per_s, lambda *x: int(right.tokens_per_s(*x))),
    (ch17.check_tokens_per_s, lambda *x: round(right.tokens_per_s(*x))),
    (ch17.check_first_leak, lambda m, t: (found := right.first_leak(m, t)) and list(found)),
]

TestAnswers = examine(right=CHECKS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), FORMS)
def test_other_forms_of_the_right_answer_pass(check, answer):
    assert check(answer, strict=True)
