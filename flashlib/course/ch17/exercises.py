"""Exercises of chapter 17: Amdahl, kept bytes, tokens a second, causality that was lost."""

import numbers

import numpy as np

from flashlib.course.ch17 import race
from flashlib.course.exercises.core import Wrong, exercise, given, hint, parts, solution

__all__ = ["check_first_leak", "check_gain", "check_kept", "check_tokens_per_s", "hint", "solution"]

_GAINS = ((2048, 1280, 2), (65536, 768, 2), (1024, 4096, 3), (16384, 768, 1.5))
_KEPT = ((1, 12, 65536, 768, 2), (8, 4, 128, 128, 4), (4, 16, 4096, 2048, 2))
_SPEEDS = ((135e6, 30, 3, 64, 2048, 2, 4.8e12), (70e9, 80, 8, 128, 32768, 2, 3.3e12),
           (85e6, 12, 12, 64, 65536, 2, 4.8e12))


def _near(got, value):
    return abs(got - value) <= 1e-6 * abs(value)


def _number(got, what):
    got = given(got)
    got = got[()] if isinstance(got, np.ndarray) and not got.ndim else got
    if not isinstance(got, numbers.Real) or isinstance(got, bool) or not np.isfinite(float(got)):
        raise Wrong(f"{what}: expected a number, got {got!r}")
    return float(got)


@exercise("17.1", "What does twice the rate buy?", difficulty=1, minutes=10, solution="gain",
          hints=("What share of a layer's time is attention, if both run at the same rate? Which part"
                 " of the time stays as it was?",
                 "over = N / (12·C) is attention's time over the matrices'. The time was 1 + over and"
                 " is 1 + over / faster."))
def check_gain(gain):
    """Accept `gain(N, C, faster) -> ratio` of the layer's times, both at the same FLOP/s at first."""
    for N, C, faster in _GAINS:
        what = f"N={N:,}, C={C:,}, attention {faster}× as fast"
        value, over = race.speedup(race.share(N, C), faster), race.attention_over_dense(N, C)
        got = _number(gain(N, C, faster), what)
        if _near(got, value):
            continue
        if _near(got, faster):
            raise Wrong(f"{what}: {got:.3g} is attention's gain; the matrices are as slow as before")
        if _near(got, over / (1 + over)):
            raise Wrong(f"{what}: {got:.3g} is attention's share; what does the layer gain?")
        if _near(got, 1 / value):
            raise Wrong(f"{what}: {got:.3g} is the new time over the old one; a gain is old over new")
        if _near(got, 1 / (1 - over + over / faster)):
            raise Wrong(f"{what}: N / (12·C) is attention over the matrices, not over both: the share"
                        " is over / (1 + over)")
        if _near(got, race.speedup(race.share(2 * N, C), faster)):
            raise Wrong(f"{what}: {got:.4g} is without a causal mask: a query sees N / 2 keys")
        raise Wrong(f"{what}: got {got:.4g}, expected {value:.4g}")
    return "1.78 times at 65,536 tokens, 6 % at 2,048."


@exercise("17.2", "What does backward find kept?", difficulty=2, minutes=15, solution="kept",
          hints=("Backward needs Q, K and V in any case. What else does the softmax's derivative need?",
                 "Standard: P of every head and sequence. Ours: O, and lse in float32."
                 " Q, K, V and O have B·N·C elements each."))
def check_kept(kept):
    """Accept `kept(B, H, N, C, element_bytes) -> (standard, ours)` in bytes, one layer's attention."""
    for case in _KEPT:
        B, H, N, C, element_bytes = case
        what = f"B={B}, H={H}, N={N:,}, C={C:,}, {element_bytes} bytes an element"
        lse, of_one = 4 * B * H * N, B * N * C * element_bytes            # of one tensor
        scores = race.saved_bytes(N, B, H, element_bytes, mask_bytes=0)
        values = 3 * of_one + scores, 4 * of_one + lse
        got = [_number(x, what)
               for x in parts(kept(*case), "(standard, ours)", f"{what}: ", right=values)]
        for name, found, value in zip(("standard", "ours"), got, values, strict=True):
            if _near(found, value):
                continue
            said = f"{what}: {name}: {found:,.0f} bytes."
            P = B * H * N * N * element_bytes
            if _near(found, value + (H - 1) * (value - (scores if name == "standard" else lse))):
                raise Wrong(f"{said} C are the columns of all heads together, not of one")
            if name == "standard" and _near(found, value - P + P / H):
                raise Wrong(f"{said} Every one of the {H} heads has a P of its own")
            if name == "standard" and _near(found, value + P):
                raise Wrong(f"{said} S is not kept: the softmax's derivative needs P alone")
            if name == "standard" and _near(found, value - P):
                raise Wrong(f"{said} Where is P?")
            if name == "ours" and _near(found, value - lse):
                raise Wrong(f"{said} lse is missing: without it P cannot be computed again")
            if name == "ours" and _near(found, value - lse + element_bytes * B * H * N):
                raise Wrong(f"{said} lse is float32 whatever the inputs are: 4 bytes a row and head")
            if name == "ours" and _near(found, value - B * N * C * element_bytes):
                raise Wrong(f"{said} O is missing: delta, the row sums of dO∘O, needs it")
            raise Wrong(f"{said} Expected {value:,.0f}")
    return "one grows with N², one with N: that is why chapter 07 computes P twice."


@exercise("17.3", "How fast can it write?", difficulty=1, minutes=10, solution="tokens_per_s",
          hints=("Which bytes does every new token read?",
                 "All weights, and 2 · L · H_k · d numbers for each of N keys before it."))
def check_tokens_per_s(tokens_per_s):
    """Accept `tokens_per_s(weights, L, H_k, d, N, element_bytes, bytes_per_s)`, one sequence."""
    for case in _SPEEDS:
        weights, L, H_k, d, N, element_bytes, rate = case
        what = f"{weights:.3g} weights, {L} layers, {H_k} key heads of {d}, {N:,} keys"
        got = _number(tokens_per_s(*case), what)
        value = race.tokens_per_s(weights * element_bytes, 2 * L * H_k * d * N * element_bytes, rate)
        if _near(got, value) or (got == int(got) and abs(got - value) < 1):      # whole tokens
            continue
        cache = 2 * L * H_k * d * N
        for other, mistake in ((weights, "the cache of keys and values is read as well"),
                               (cache, "the weights are read as well, all of them for each token"),
                               (weights + cache / 2, "K and V are two caches"),
                               (weights + cache / L, "every one of the layers has a cache of its own"),
                               ((weights + cache) / element_bytes, "an element is element_bytes"),
                               (weights / element_bytes + cache, "weights is a count, not bytes")):
            if _near(got, rate / (element_bytes * other)):
                raise Wrong(f"{what}: {got:,.0f} tokens/s: {mistake}")
        if _near(got, 1 / value):
            raise Wrong(f"{what}: {got:.3g} are seconds of a token, not tokens of a second")
        raise Wrong(f"{what}: got {got:,.4g} tokens/s, expected {value:,.4g}")
    return "an upper limit: nobody reads faster than the memory."


class _Model:
    """A model of numbers in which rows `since` … `until` − 1 see `ahead` places from i + `after` on."""

    def __init__(self, ahead=0, since=0, weight=1.0, until=None, after=1):
        self.ahead, self.since, self.weight, self.until = ahead, since, weight, until
        self.after = after

    def __call__(self, tokens):
        x = np.asarray(tokens, float)
        out = np.cumsum(x * (1 + np.arange(len(x))))
        for i in range(self.since, self.until or len(x)):
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
