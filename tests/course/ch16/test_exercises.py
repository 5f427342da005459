"""The checks of chapter 16 accept the solution and name each seeded mistake."""

import inspect
import itertools

import numpy as np
import pytest

from flashlib.course.ch16 import exercises as ch16
from flashlib.course.ch16 import solutions as right
from flashlib.machine.ranks import get, put
from tests.course.exercises.examine import examine
from tests.mutants.edits import edited


def contiguous(rank, P, N):
    return np.arange(rank * N // P, (rank + 1) * N // P)


def cut(N, P):
    if N % (2 * P):
        raise ValueError
    return N // (2 * P)


def off_by_one(rank, P, N):
    c, last = cut(N, P), 2 * P - rank
    return [*range(rank * c, (rank + 1) * c), *range(last * c, (last + 1) * c)]


def early(rank, P, N):
    c, last = cut(N, P), 2 * P - 2 - rank
    return [*range(rank * c, (rank + 1) * c), *range(last * c, (last + 1) * c)]


def falling(rank, P, N):
    c = cut(N, P)
    return [*range(rank * c, (rank + 1) * c), *range(N - 1 - rank * c, N - 1 - (rank + 1) * c, -1)]


def front_only(rank, P, N):
    return right.zigzag(rank, P, N)[:N // (2 * P)]


def silent(rank, P, N):
    c, last = N // (2 * P), 2 * P - 1 - rank
    return [*range(rank * c, (rank + 1) * c), *range(last * c, (last + 1) * c)]


def reshaped(rank, P, N):
    cut(N, P)
    chunks = np.arange(N).reshape(2 * P, -1)
    return chunks[[rank, 2 * P - 1 - rank]]


def step(state, Q, K, V, *, scaled=True, fold=None):
    """A step that can be wrong in one place."""
    m, l, o = state
    S = Q @ K.T / (np.sqrt(Q.shape[1]) if scaled else 1)
    new = np.maximum(m, S.max(axis=1))
    P, old = np.exp(S - new[:, None]), np.exp(m - new)
    return new, *(fold(l, o, old, P, V) if fold else (old * l + P.sum(1), old[:, None] * o + P @ V))


def no_rescale(state, *kv):
    return step(state, *kv, fold=lambda l, o, old, P, V: (l + P.sum(1), o + P @ V))


def only_l(state, *kv):
    return step(state, *kv, fold=lambda l, o, old, P, V: (old * l + P.sum(1), o + P @ V))


def divided(state, *kv):
    m, l, o = right.ring_step(state, *kv)
    return m, l, o / l[:, None]


def forgetful(state, Q, K, V):
    nothing = np.full(len(Q), -np.inf), np.zeros(len(Q)), np.zeros_like(state[2])
    return right.ring_step(nothing, Q, K, V)


def mean(state, Q, K, V):
    m, l, o = forgetful(state, Q, K, V)
    if not state[1].any():
        return m, l, o
    return np.maximum(m, state[0]), l + state[1], (o + state[2]) / 2


def nans(state, Q, K, V):
    m, l, o = right.ring_step(state, Q, K, V)
    return (m, l * np.exp(state[0] - state[0]), o)


def loops(state, Q, K, V):
    """The same, key by key, with Python numbers."""
    m, l, o = (np.array(x) for x in state)
    for i, q in enumerate(Q):
        for k, v in zip(K, V, strict=True):
            x = q @ k / len(q) ** 0.5
            new = max(m[i], x)
            old = np.exp(m[i] - new)
            l[i], o[i], m[i] = old * l[i] + np.exp(x - new), old * o[i] + np.exp(x - new) * v, new
    return m, l, o


def all_masked(rank, source, n):
    return slice(0, n), slice(0, n), True


def own_open(rank, source, n):
    rows, keys, _ = right.block(rank, source, n)
    return rows, keys, False


def swapped(rank, source, n):
    return right.block(source, rank, n)


def all_rows(rank, source, n):
    rows, keys, causal = right.block(rank, source, n)
    return (slice(0, n), keys, causal) if source > rank else (rows, keys, causal)


def half_missed(rank, source, n):
    rows, keys, causal = right.block(rank, source, n)
    return (rows, slice(0, n // 2), causal) if source > rank else (rows, keys, causal)


def twice(rank, source, n):
    rows, keys, causal = right.block(rank, source, n)
    return [*range(n)[rows], range(n)[rows][-1]], keys, causal


def listed(rank, source, n):
    rows, keys, causal = right.block(rank, source, n)
    return np.arange(n)[rows], list(range(n)[keys]), np.bool_(causal)


def open_ended(rank, source, n):
    if rank == source:
        return slice(None), slice(None), True
    if source < rank:
        return slice(None), slice(n // 2), False
    return slice(n // 2, None), slice(None), False


def short():
    """The solution without the last hop."""
    names = dict(vars(right))
    exec(edited(inspect.getsource(right.backward), (
        ('yield put(after, "dKV", dkv)\nreturn (yield get(before, "dKV"))', "return dkv"),)), names)
    return names["backward"]


def stale(rank, P, kv, gradients):
    """The keys of step 0 in every step."""
    after, before, dkv = (rank + 1) % P, (rank - 1) % P, gradients(kv)
    for _ in range(P - 1):
        yield put(after, "dKV", dkv)
        dkv = gradients(kv) + (yield get(before, "dKV"))
    if P > 1:
        yield put(after, "dKV", dkv)
        dkv = yield get(before, "dKV")
    return dkv


def alone(rank, P, kv, gradients):
    return gradients(kv)
    yield


def not_added(rank, P, kv, gradients):
    after, before = (rank + 1) % P, (rank - 1) % P
    for n in range(P):
        dkv = gradients(kv)
        if n + 1 < P:
            yield put(after, "KV", kv)
            kv = yield get(before, "KV")
    if P > 1:
        yield put(after, "dKV", dkv)
        dkv = yield get(before, "dKV")
    return dkv


def receives_first(rank, P, kv, gradients):
    dkv = gradients(kv)
    if P > 1:
        other = yield get((rank - 1) % P, "KV")
        yield put((rank + 1) % P, "KV", other)
    return dkv


def doubled(rank, P, kv, gradients):
    return 2 * (yield from right.backward(rank, P, kv, gradients))


def coarse(rank, P, kv, gradients):
    return (yield from right.backward(rank, P, kv, gradients)).astype(np.float16)


def to_itself(rank, P, kv, gradients):
    yield put((rank + 1) % (P + 1), "KV", kv)
    return gradients(kv)


def gathered(rank, P, kv, gradients):
    """Right as well: all send all their keys to all, and every owner gets P gradients."""
    others = [r for r in range(P) if r != rank]
    for r in others:
        yield put(r, "KV", kv)
    total = gradients(kv)
    for r in others:
        theirs = yield get(r, "KV")
        yield put(r, "dKV", gradients(theirs))
    for r in others:
        total = total + (yield get(r, "dKV"))
    return total


def packed(rank, P, kv, gradients):
    """Right as well: keys and gradients in one message; sums in float32."""
    after, before = (rank + 1) % P, (rank - 1) % P
    both = np.stack([kv, np.zeros_like(kv)]).astype(np.float32)
    for _ in range(P):
        both = np.stack([both[0], both[1] + gradients(both[0])])
        yield put(after, "both", both)
        both = yield get(before, "both")
    return both[1]


def to_the_letter(rank, P, kv, gradients):
    """Right as well: dK and dV make P hops, each behind its keys, the other way around the ring."""
    after, before, total = (rank - 1) % P, (rank + 1) % P, 0
    for step in range(P):
        total = total + gradients(kv)
        yield put(after, "dKV", total)
        total = yield get(before, "dKV")
        if step + 1 < P:
            yield put(after, "KV", kv)
            kv = yield get(before, "KV")
    return total


def paired(rank, P, kv, gradients):
    """Right as well: keys and their gradients as a pair."""
    total = np.zeros_like(kv)
    for _ in range(P):
        yield put((rank + 1) % P, "pair", (kv, total + gradients(kv)))
        kv, total = yield get((rank - 1) % P, "pair")
    return total


def no_generator(rank, P, kv, gradients):
    return gradients(kv)


WRONG = [
    (ch16.check_zigzag, contiguous, "the contiguous layout"),
    (ch16.check_zigzag, lambda rank, P, N: np.arange(rank, N, P), "the striped layout"),
    (ch16.check_zigzag, off_by_one, "past the end"),
    (ch16.check_zigzag, early, "chunks are counted from 0"),
    (ch16.check_zigzag, falling, "have to rise"),
    (ch16.check_zigzag, front_only, "each GPU has N / P"),
    (ch16.check_zigzag, silent, "raise a ValueError"),
    (ch16.check_zigzag, lambda rank, P, N: 3, "expected a list or an array"),
    (ch16.check_zigzag, lambda rank, P, N: [0.5] * (N // P), "whole numbers"),
    (ch16.check_ring_step, no_rescale, "measured from the old maximum"),
    (ch16.check_ring_step, only_l, "measured from the old maximum"),
    (ch16.check_ring_step, divided, "divided by l already"),
    (ch16.check_ring_step, forgetful, "what was seen before is lost"),
    (ch16.check_ring_step, mean, "the mean of both"),
    (ch16.check_ring_step, nans, "NaN"),
    (ch16.check_ring_step, lambda *x: step(*x, scaled=False), "not divided by √d"),
    (ch16.check_ring_step, lambda *x: right.ring_step(*x)[:2], "expected a tuple (m, l, o)"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 2 * H_k / H * F / W, "the forward pass"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 1.2 * H_k / H * F / W, "half of the n × n pairs"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 4.8 * H_k / H * F / W, "not 2·d"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 6 * H_k / H * F / W, "2.5 times the work"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 0.8 * H_k / H * F / W, "go over the link, too"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 1.6 * H_k / H * F / W, "in float32"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 3.2 * H_k / H * F / W, "K and V are in 2"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 19.2 * H_k / H * F / W, "not in bits"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 0.3 * H_k / H * F / W, "not in bits"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 2.4 * F / W, "only the H_k key heads"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 2.4 * H / H_k * F / W, "changed places"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 2.4 * 128 * H_k / H * F / W, "d cancels"),
    (ch16.check_hides_from, lambda F, W, H, H_k: 5 * H_k / H * F / W, "to take as long as its message"),
    (ch16.check_hides_from, lambda *x: "many", "expected a number"),
    (ch16.check_block, all_masked, "no causal mask fits"),
    (ch16.check_block, own_open, "needs its mask"),
    (ch16.check_block, swapped, "lies in the future"),
    (ch16.check_block, all_rows, "second half of rows only"),
    (ch16.check_block, half_missed, "never meet"),
    (ch16.check_block, twice, "names a place twice"),
    (ch16.check_block, lambda *x: right.block(*x)[:2], "expected a tuple (rows, keys, causal)"),
    (ch16.check_block, lambda *x: (*right.block(*x)[:2], "yes"), "True or False"),
    (ch16.check_backward, short(), "one hop is missing"),
    (ch16.check_backward, stale, "stay with its keys"),
    (ch16.check_backward, alone, "the share of rank"),
    (ch16.check_backward, not_added, "the share of rank"),
    (ch16.check_backward, receives_first, "waits to get KV"),
    (ch16.check_backward, doubled, "more than once"),
    (ch16.check_backward, coarse, "16 bits"),
    (ch16.check_backward, no_generator, "expected a generator"),
]
CHECKS = [(ch16.check_zigzag, right.zigzag), (ch16.check_ring_step, right.ring_step),
          (ch16.check_hides_from, right.hides_from), (ch16.check_block, right.block),
          (ch16.check_backward, right.backward)]
FORMS = [
    (ch16.check_zigzag, lambda *x: right.zigzag(*x).tolist()),
    (ch16.check_zigzag, lambda *x: tuple(map(float, right.zigzag(*x)))),
    (ch16.check_zigzag, reshaped),
    (ch16.check_zigzag, lambda *x: itertools.chain(right.zigzag(*x).tolist())),
    (ch16.check_ring_step, loops),
    (ch16.check_ring_step, lambda *x: list(right.ring_step(*x))),
    (ch16.check_hides_from, lambda *x: np.float32(right.hides_from(*x))),
    (ch16.check_hides_from, lambda *x: int(np.ceil(right.hides_from(*x)))),
    (ch16.check_block, listed),
    (ch16.check_block, open_ended),
    (ch16.check_backward, gathered),
    (ch16.check_backward, packed),
    (ch16.check_backward, to_the_letter),
    (ch16.check_backward, paired),
    (ch16.check_backward, lambda *x: right.backward(*x)),
]

TestAnswers = examine(right=CHECKS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), FORMS)
def test_other_forms_of_the_right_answer_pass(check, answer):
    assert check(answer, strict=True)


def test_an_address_that_is_none_is_said_in_the_ring_s_own_words():
    assert "expected a peer" in ch16.check_backward(to_itself).message


def test_the_solutions_are_the_library_s():
    from flashlib.algorithms import layouts
    from flashlib.models import ring

    for P in (1, 2, 4):
        for rank in range(P):
            expected = layouts.positions("zigzag", rank, P, 8 * P)
            assert np.array_equal(right.zigzag(rank, P, 8 * P), expected)
            for source in range(P):
                assert right.block(rank, source, 8) == layouts.block("zigzag", rank, source, 8, True)
    assert right.hides_from(7e14, 4e11, 32, 8) == pytest.approx(
        ring.hides_from(7e14, 4e11, 32, 8, backward=True))
