"""Exercises of chapter 17: Amdahl turned round, what memory holds, causality that was lost."""

import math
import numbers

import numpy as np

from flashlib.course.ch17 import race
from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution

__all__ = ["check_at_once", "check_first_leak", "check_length", "check_longest", "hint", "solution"]

_LENGTHS = ((768, 2, 1.5), (4096, 3, 1.2), (1280, 1.5, 1.25), (768, 2, 2), (1280, 1.5, 3))
_ROOMS = ((12, 12, 768, 2, 140 * 10**9), (4, 4, 128, 4, 10**9), (32, 32, 4096, 2, 60 * 10**9))
_WRITERS = ((135e6, 30, 3, 64, 2048, 2, 4.8e12, 60000), (70e9, 80, 8, 128, 32768, 2, 3.3e12, 200),
            (7e9, 3, 32, 128, 8192, 4, 4.8e12, 4000), (85e6, 12, 12, 64, 65536, 2, 4.8e12, 2500))


@exercise("17.1", "From which length on does it pay?", difficulty=1, minutes=10, solution="length",
          hints=("Call attention's time over the matrices' x. What is the layer's old time over its"
                 " new one?",
                 "Solve (1 + x) / (1 + x / faster) = wanted for x, and x = N / (12·C) for N. However"
                 " long the text, a layer gains less than its attention."))
def check_length(length):
    """Accept `length(C, faster, wanted) -> N` from which on a layer is `wanted` times as fast."""
    got, (C, faster, wanted) = [length(*case) for case in _LENGTHS], np.array(_LENGTHS[:3]).T
    over, part = (wanted - 1) / (1 - wanted / faster), race.part_behind(wanted, faster)
    expect_close(given(got)[:3], 12 * C * over, "N", atol=1, mistakes={
        "that is attention over the matrices: which N makes it so?": over,
        "that is attention's share of the time: which N makes it so?": part,
        "attention's share of the time is not its time over the matrices'": 12 * C * part,
        "that is without a causal mask: a query sees N / 2 keys": 6 * C * over,
        "attention gets faster, but still takes time": 12 * C * (wanted - 1)})
    expect_close(got[3:], [math.inf] * 2, "a layer gains less than its attention; 2× of 2×, 3× of 1.5×")
    return "GPT-2 small's layer gains a half from 18,432 tokens on, if rates are equal."


def _longest(room, square, linear):
    """Return the largest N with square·N² + linear·N ≤ room, all whole numbers."""
    if not square:
        return room // linear
    return (math.isqrt(linear**2 + 4 * square * room) - linear) // (2 * square)


@exercise("17.2", "How long a text fits?", difficulty=2, minutes=15, solution="longest",
          hints=("First the bytes that a layer keeps. Standard: Q, K, V, and P of every head. Ours: Q,"
                 " K, V, O, and lse, a float32 a row and head.",
                 "Ours is so many bytes a token: divide, and round down. Standard's N solves"
                 " a·N² + b·N = room: N = (√(b² + 4·a·room) − b) / (2·a)."))
def check_longest(longest):
    """Accept `longest(L, H, C, element_bytes, room) -> (standard, ours)`, the longest N that fit."""
    def fits(square, linear):
        return [_longest(case[-1], square(*case[:-1]), linear(*case[:-1])) for case in _ROOMS]

    standard = fits(lambda L, H, C, e: L * H * e, lambda L, H, C, e: 3 * L * C * e)
    ours = fits(lambda *_: 0, lambda L, H, C, e: L * (4 * C * e + 4 * H))
    got = np.array([parts(longest(*case), "(standard, ours)", right=right)
                    for case, right in zip(_ROOMS, zip(standard, ours, strict=True), strict=True)])
    expect_close(got[:, 0], standard, "standard", atol=0, rtol=0, mistakes={
        name: fits(square, linear) for name, square, linear in (
            ("every head has a P of its own",
             lambda L, H, C, e: L * e, lambda L, H, C, e: 3 * L * C * e),
            ("S is not kept: the softmax's derivative needs P alone",
             lambda L, H, C, e: 2 * L * H * e, lambda L, H, C, e: 3 * L * C * e),
            ("Q, K and V are kept, too", lambda L, H, C, e: L * H * e, lambda *_: 0),
            ("every layer keeps its own", lambda L, H, C, e: H * e, lambda L, H, C, e: 3 * C * e),
            ("C are the columns of all heads together",
             lambda L, H, C, e: L * H * e, lambda L, H, C, e: 3 * L * H * C * e))})
    expect_close(got[:, 1], ours, "ours", atol=0, rtol=0, mistakes={
        name: fits(lambda *_: 0, linear) for name, linear in (
            ("lse is missing: without it P cannot be computed again", lambda L, H, C, e: 4 * L * C * e),
            ("lse is float32 whatever the inputs are", lambda L, H, C, e: L * (4 * C * e + e * H)),
            ("every head has an lse of its own", lambda L, H, C, e: L * (4 * C * e + 4)),
            ("O is missing: delta, the row sums of dO∘O, needs it",
             lambda L, H, C, e: L * (3 * C * e + 4 * H)),
            ("every layer keeps its own", lambda L, H, C, e: 4 * C * e + 4 * H),
            ("C are the columns of all heads together", lambda L, H, C, e: 4 * L * H * (C * e + 1)))})
    return "with four times the memory ours has four times the length, and standard twice."


@exercise("17.3", "How many must write at once?", difficulty=2, minutes=12, solution="at_once",
          hints=("B sequences write a token each. Which bytes are read once, and which B times?",
                 "B · bytes_per_s ≥ wanted · (the weights' bytes + B · a cache's bytes). Solve for B,"
                 " and round up. What if no B is enough?"))
def check_at_once(at_once):
    """Accept `at_once(weights, L, H_k, d, N, element_bytes, bytes_per_s, wanted) -> B` or infinity."""
    def least(read=lambda weights, cache, e, L: (weights * e, cache * e), up=math.ceil):
        found = []
        for weights, L, H_k, d, N, e, rate, wanted in _WRITERS:
            shared, own = read(weights, 2 * L * H_k * d * N, e, L)
            left = rate - wanted * own
            found.append(up(wanted * shared / left) if left > 0 else math.inf)
        return found

    expect_close([at_once(*case) for case in _WRITERS], least(), "B", mistakes={
        "every sequence reads a cache of its own": least(lambda w, c, e, L: ((w + c) * e, 0)),
        "caches are read as well": least(lambda w, c, e, L: (w * e, 0)),
        "K and V are two caches": least(lambda w, c, e, L: (w * e, c * e / 2)),
        "every layer has a cache of its own": least(lambda w, c, e, L: (w * e, c * e / L)),
        "weights is a count, not bytes": least(lambda w, c, e, L: (w, c * e)),
        "a number in a cache has element_bytes": least(lambda w, c, e, L: (w * e, c)),
        "B is whole, and enough: round up": least(up=math.floor),
        "B is a whole number: round up": least(up=float),
        "no B is enough if the caches alone need more than bytes_per_s: return math.inf": [
            math.ceil(wanted * w * e / (rate - wanted * 2 * L * H_k * d * N * e))
            for w, L, H_k, d, N, e, rate, wanted in _WRITERS]})
    return "they share the weights, but no cache: with long texts, more sequences hardly help."


class _Model:
    """A model of numbers in which rows `since` … `until` − 1 see `ahead` places from i + `after` on."""

    def __init__(self, ahead=0, since=0, weight=1.0, until=None, after=1):
        self.ahead, self.since, self.weight, self.until = ahead, since, weight, until
        self.after = after

    def __call__(self, tokens):
        x = np.asarray(tokens, float)
        out = np.cumsum(x * (1 + np.arange(len(x))))
        for i in range(self.since, min(len(x), self.until or len(x))):      # a prefix is a text, too
            out[i] += self.weight * x[i + self.after:i + self.after + self.ahead].sum()
        return np.stack((out, -out), 1)


@exercise("17.4", "Find the lost causality", difficulty=2, minutes=15, solution="first_leak",
          hints=("The logits of row i may depend on tokens 0 … i. How can you see that they depend on"
                 " another, with nothing but calls?",
                 "Change the token at one place and compare all rows before it. The last place shows a"
                 " model that sees everything, but a window of one needs every place to be tried."))
def check_first_leak(first_leak):
    """Accept `first_leak(model, tokens) -> (row, place)` of a row that sees a later token, or None."""
    tokens = np.array([3, 1, 4, 1, 5, 0, 2, 6])
    cases = (("a causal model", _Model(), False), ("every row sees all", _Model(ahead=8), True),
             ("a row sees the next token", _Model(ahead=1), True),
             ("only the last rows see ahead, faintly", _Model(1, 5, 1e-3), True),
             ("a single row in the middle", _Model(2, 4, until=5), True),
             ("one row sees one place further on", _Model(1, 2, until=3, after=3), True))
    seen = False                                            # whether one leak was found
    for what, model, leaks in cases:
        kept = tokens.copy()
        got = first_leak(model, kept)
        if not np.array_equal(kept, tokens):
            raise Wrong(f"{what}: your function changed the reader's tokens: copy them first")
        if not leaks:
            if got is not None and got is not False:
                raise Wrong(f"{what}: got {got!r}, expected None. The changed row itself, and those"
                            " behind it, may change")
            continue
        if got is None and seen:
            at = model.since + model.after
            raise Wrong(f"{what}: got None, but row {model.since} changes with place {at}, which holds"
                        f" token {tokens[at]}. Try every place, with another token than it holds, and"
                        " compare all rows before it, exactly")
        got, seen = given(got), True
        if got is True or isinstance(got, numbers.Real):
            raise Wrong(f"{what}: expected (row, place), got {got!r}")
        row, place = (int(x) for x in parts(got, "(row, place)", f"{what}: "))
        if row >= place:
            raise Wrong(f"{what}: row {row} may see place {place}: a leak leads to a later place")
        other = tokens.copy()
        other[place] += 1
        if not np.any(model(other)[row] != model(tokens)[row]):
            raise Wrong(f"{what}: row {row} does not change with place {place}")
    return "a call for each place finds what a falling loss hides."
