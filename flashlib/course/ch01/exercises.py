"""Exercises of chapter 01: where S stops fitting, which roof an operator hits, and what to fuse."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from flashlib import hardware
from flashlib.course.exercises.core import Wrong, exercise, given, hint, solution
from flashlib.models import roofline, transformer

__all__ = ["check_best_pair", "check_classify", "check_longest_sequence", "check_tokens_to_compute",
           "hint", "solution"]


@exercise("01.1", "The sequence length where S stops fitting", difficulty=1, minutes=4,
          solution="longest_sequence", hints=(
    "One head's S has N · N elements, and all heads have one each. How many elements are there room"
    " for?",
    "math.isqrt(x) is the largest whole number whose square is at most x."))
def check_longest_sequence(longest_sequence):
    """Accept `longest_sequence(room_bytes, heads, element_bytes)`, the largest N whose S fits."""
    a100, t4 = hardware.get("A100"), hardware.get("T4")
    cases = [(int(a100.hbm_bytes), 16, 2, "16 heads in the HBM of an A100"),
             (int(t4.sram_bytes), 1, 4, "one head in the SRAM of a T4"),
             (8 * 9, 1, 2, "one head, 72 bytes"), (8 * 9 - 1, 1, 2, "one head, 71 bytes"),
             (2 * 3 * 49, 3, 2, "three heads, 294 bytes")]
    wrong = {
        "S has N² elements: you divided where the root was needed":
            lambda r, h, e: r // (h * e),
        "this counts elements, not bytes: an element takes element_bytes":
            lambda r, h, e: math.isqrt(r // h),
        "every head has an S of its own": lambda r, h, e: math.isqrt(r // e),
        "that is room for S and P; the question is about S alone":
            lambda r, h, e: math.isqrt(r // (2 * h * e)),
        "those are bits: the room is in bytes, and an element takes element_bytes of them":
            lambda r, h, e: math.isqrt(8 * r // (h * e)),
        "the element's bytes stand outside the root: N² elements take them, not N":
            lambda r, h, e: math.isqrt(r // h) // e,
        "the heads stand outside the root: each has N² elements, so divide before you take it":
            lambda r, h, e: math.isqrt(r // e) // h,
        "rounded up: this S is just too large": lambda r, h, e: math.ceil(math.sqrt(r / (h * e))),
        "off by one: an S that fills the room exactly still fits":
            lambda r, h, e: math.isqrt(max(r // (h * e) - 1, 0)),
    }
    got = [_whole(longest_sequence(*case[:3]), case[3]) for case in cases]
    right = [math.isqrt(r // (h * e)) for r, h, e, _ in cases]
    _compare(got, right, wrong, [case[:3] for case in cases], [case[3] for case in cases])
    return (f"one head's S fills the SRAM of an A100 at N = {math.isqrt(int(a100.sram_bytes) // 2)},"
            f" 16 heads fill its HBM at {right[0]:,}.")


@exercise("01.2", "Which roof does it hit?", difficulty=1, minutes=4, solution="classify", hints=(
    "Each of the two takes some time. Which is longer?",
    "Compare flops / flops_per_s with hbm_bytes / bytes_per_s."))
def check_classify(classify):
    """Accept `classify(flops, hbm_bytes, flops_per_s, bytes_per_s)` -> "memory" or "compute"."""
    cases = []
    for name in ("T4", "A100", "B200"):
        gpu = hardware.get(name)
        rates = float(gpu.matmul_flops_per_s["float16"]), float(gpu.hbm_bytes_per_s)
        for op in transformer.layer(transformer.GPT2_MEDIUM, 1024, 8):
            cases.append(((op.flops, op.hbm_bytes, *rates), f"{op.name} on {name}"))
        for times, where in ((1.05, "just beyond"), (0.95, "just before"), (1e-6, "far before")):
            cases.append(((1e12, 1e12 / (times * rates[0] / rates[1]), *rates),
                          f"{where} the ridge on {name}"))
    wrong = {
        "the other way round: a kernel waits for what takes longer":
            lambda f, b, p, q: "memory" if f / p > b / q else "compute",
        "more FLOPs than bytes is not enough: how many FLOPs could the GPU do per byte?":
            lambda f, b, p, q: "memory" if f < b else "compute",
        "the ridge is FLOP/s over B/s, and you took its inverse":
            lambda f, b, p, q: "memory" if f / b < q / p else "compute",
    }
    answers = given([classify(*case) for case, _ in cases])
    got = [_WORDS.get(str(answer)) for answer in answers]
    for g, answer, (_, where) in zip(got, answers, cases, strict=True):
        if g is None:
            raise Wrong(f'{where}: expected "memory" or "compute", got {answer!r}')
    if len(set(got)) == 1:
        raise Wrong(f'you answer "{got[0]}" whatever the numbers are: which of two times is longer?')
    right = ["memory" if f / p < b / q else "compute" for (f, b, p, q), _ in cases]
    _name_mistake(got, right, wrong, [case for case, _ in cases])
    intensity = {g: [f / b for ((f, b, _, _), _), x in zip(cases, got, strict=True) if x == g]
                 for g in ("memory", "compute")}
    if all(intensity.values()) and max(intensity["memory"]) < min(intensity["compute"]):
        raise Wrong("one and the same ridge for every GPU: it is flops_per_s / bytes_per_s, and a T4,"
                    " an A100 and a B200 have three different ones")
    _compare(got, right, wrong, [case for case, _ in cases], [where for _, where in cases])
    return "and the ridge, flops_per_s / bytes_per_s, is where both take equally long."


@exercise("01.3", "How many tokens until a projection computes?", difficulty=2, minutes=12,
          solution="tokens_to_compute", hints=(
    "T tokens times a D × F matrix: 2·T·D·F FLOPs. Which three matrices move, and how many elements"
    " has each?",
    "Write 2TDF ≥ ridge · element_bytes · (TD + DF + TF) and collect the terms with T.",
    "T · (2DF − c(D + F)) ≥ c·D·F with c = ridge · element_bytes: what if the bracket is not"
    " positive?"))
def check_tokens_to_compute(tokens_to_compute):
    """Accept `tokens_to_compute(D, F, element_bytes, ridge)` -> the least T with I ≥ ridge, or None."""
    cases = [(4096, 14336, 2, 206.125), (1024, 4096, 2, 153.0), (4096, 4096, 1, 412.0),
             (8, 8, 2, 1.5), (64, 64, 2, 153.0), (16, 16, 2, 8.0), (64, 64, 2, 16.0)]

    def need(D, F, e, ridge, *, weights=1, out=1, into=1, flops=2, rounded=math.ceil):
        c = ridge * e
        bracket = flops * D * F - c * (into * D + out * F)
        return None if bracket <= 0 else rounded(weights * c * D * F / bracket)

    wrong = {
        "a multiply and an add are two FLOPs: 2·T·D·F":
            lambda *a: need(*a, flops=1),
        "this counts elements: an element takes element_bytes": lambda D, F, e, r: need(D, F, 1, r),
        "element_bytes is an argument: 2 is only the most common": lambda D, F, e, r: need(D, F, 2, r),
        "the matrix is D × F, and the two may differ": lambda D, F, e, r: need(D, D, e, r),
        "the output, T × F, moves too": lambda *a: need(*a, out=0),
        "the input, T × D, moves too": lambda *a: need(*a, into=0),
        "one too many where the division comes out even: that T has the intensity of the ridge already":
            lambda *a: need(*a, rounded=lambda T: math.floor(T) + 1),
        "rounded down: with this many tokens it still waits for memory":
            lambda *a: need(*a, rounded=math.floor),
        "only the weights are counted: good for few tokens, but T × D and T × F move too":
            lambda D, F, e, r: math.ceil(r * e / 2),
    }
    got = []
    for case in cases:
        try:
            answer = tokens_to_compute(*case)
            endless = answer is None or np.array_equal(answer, math.inf)
        except ZeroDivisionError:
            raise Wrong(f"D, F, element_bytes, ridge = {case}: the intensity only approaches the ridge"
                        " here, and no T reaches it: return None before you divide") from None
        got.append(answer if endless else _whole(answer, f"D, F, element_bytes, ridge = {case}"))
    if all(g is None for g in got):
        given(None)
    right = [need(*case) for case in cases]
    places = [f"D, F, element_bytes, ridge = {case}" for case in cases]
    _name_mistake(got, right, wrong, cases)
    for g, r, place in zip(got, right, places, strict=True):
        if r is None and g is not None:
            raise Wrong(f"{place}: however many tokens, this projection waits for memory: expected"
                        f" None, got {g:,}")
    _compare(got, right, wrong, cases, places)
    return ("a server that generates one token at a time for one user stands at T = 1: that is why it"
            " waits, and why it wants many users.")


@exercise("01.4", "Which pair gains most from fusion?", difficulty=2, minutes=12,
          solution="best_pair", hints=(
    "For every pair of neighbors: the seconds of both, less those of transformer.fuse(operators,"
    " [a.name, b.name]).",
    "max(pairs, key=...) over itertools.pairwise(operators)."))
def check_best_pair(best_pair):
    """Accept `best_pair(operators, seconds)` -> the names of the neighbors that save most time."""
    S, slow = transformer, hardware.get("H200").with_(exps_per_s=4e11)
    cases = [(S.layer(S.GPT2_MEDIUM, 1024, 64), "H200", "GPT-2 medium, N = 1,024"),
             (S.layer(S.LLAMA_3_8B, 8192), "A100", "Llama 3 8B, N = 8,192"),
             (S.layer(S.LLAMA_3_8B, 1024), "H200", "Llama 3 8B, N = 1,024"),
             (S.layer(S.GPT2_MEDIUM, 1024, 64), slow, "GPT-2 medium, exponentials ten times slower"),
             (S.layer(S.GPT2_MEDIUM, 32, 2048), "H200", "GPT-2 medium, N = 32")]
    answers, rivals = [], {mistake: [] for mistake in _RIVALS}
    for operators, gpu, where in cases:
        def seconds(op, gpu=gpu):
            return roofline.time_s(op, gpu, "float16").time_s

        pairs = {(a.name, b.name): (a, b) for a, b in pairwise(operators)}
        answer = given(best_pair(list(operators), seconds))
        two = isinstance(answer, tuple | list) or np.shape(answer) == (2,)
        names = [getattr(a, "name", a) for a in answer] if two else []
        if tuple(names[::-1]) in pairs:
            raise Wrong(f"{where}: the first of the two runs first: {(names[1], names[0])}, not"
                        f" {tuple(names)}")
        if tuple(names) not in pairs:
            if len(names) == 2 and set(names) <= {op.name for op in operators}:
                raise Wrong(f"{where}: {names[0]} and {names[1]} are not neighbors: nothing passes from"
                            " one to the other")
            raise Wrong(f"{where}: expected the names of two neighbors, such as"
                        f" {next(iter(pairs))}, got {answer!r}")
        alone = {key: sum(map(seconds, pair)) for key, pair in pairs.items()}
        fused = {key: S.fuse(operators, key) for key in pairs}
        saved = {key: alone[key] - seconds(fused[key]) for key in pairs}
        costs = {"alone": alone, "saved": saved,
                 "flops": {key: sum(op.flops for op in pair) for key, pair in pairs.items()},
                 "bytes": {key: sum(op.hbm_bytes for op in pair) for key, pair in pairs.items()},
                 "first": {key: first.hbm_bytes for key, (first, _) in pairs.items()}}
        costs["passed"] = {key: costs["bytes"][key] - fused[key].hbm_bytes for key in pairs}
        answers.append((tuple(names), saved, where))
        for mistake, (choose, cost) in _RIVALS.items():
            rivals[mistake].append(choose(costs[cost], key=costs[cost].get) == tuple(names))
    for names, saved, where in answers:
        right = max(saved, key=saved.get)
        if math.isclose(saved[names], saved[right], rel_tol=1e-6):
            continue
        for mistake, same in rivals.items():
            if all(same):
                raise Wrong(mistake)
        raise Wrong(f"{where}: {names[0]} + {names[1]} saves {1e6 * saved[names]:,.0f} µs, but"
                    f" another pair, {right[0]} + …, saves {1e6 * saved[right]:,.0f} µs")
    names, saved, _ = answers[-1]
    softmax = max(s for pair, s in saved.items() if "softmax" in pair)
    return ("softmax with either of its neighbors: S and P are worth the same. At N = 32, where S is"
            f" small, it is {names[0]} + {names[1]}: {1e6 * saved[names]:,.0f} µs against softmax's"
            f" {1e6 * softmax:,.0f}. Fusing all three is what the course is about.")


# Both answers of 01.2, also in the words of the chapter's `bound`, of the library's and of the text.
_WORDS = {"memory": "memory", "memory-bound": "memory",
          **dict.fromkeys(("compute", "compute-bound", "arithmetic", "matmul"), "compute")}

# What a pair that nobody should choose is chosen by: the largest or smallest of these costs.
_RIVALS = {
    "this pair takes longest, fused or not: ask what fusing saves": (max, "alone"),
    "this pair does most arithmetic, and fusing saves none of it": (max, "flops"),
    "this pair moves most bytes, but fusing saves only what passes from one to the other: weights, for"
    " one, move all the same": (max, "bytes"),
    "the first of this pair moves most bytes, but fusing saves only what it hands to the second":
        (max, "first"),
    "this pair saves most bytes, but bytes that hide behind exponentials cost no time: ask `seconds`":
        (max, "passed"),
    "this pair is fastest once fused, and of all pairs it saves least: ask which saves most":
        (min, "saved"),
}


def _whole(value, where) -> int:
    array = np.asarray(given(value))
    if array.size != 1 or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise Wrong(f"{where}: expected a whole number, got {value!r}")
    if (number := array.item()) != int(number):
        raise Wrong(f"{where}: expected a whole number, got {value!r}")
    return int(number)


def _name_mistake(got, right, wrong, cases) -> None:
    """Raise `Wrong` if the answers are not right, and all are those of a known mistake."""
    for mistake, guess in wrong.items() if got != right else ():
        if got == [guess(*case) for case in cases]:
            raise Wrong(mistake)


def _compare(got, right, wrong, cases, places) -> None:
    """Raise `Wrong` with the name of the mistake, or else at the first difference."""
    _name_mistake(got, right, wrong, cases)
    for g, r, place in zip(got, right, places, strict=True):
        if g != r:
            raise Wrong(f"{place}: expected {r!r}, got {g!r}")
