"""Exercises of chapter 16: a zigzag, a step, a link that hides, a plan of blocks, gradients home."""

import inspect
import numbers

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution
from flashlib.errors import Deadlock
from flashlib.machine.ranks import Links

__all__ = ["check_backward", "check_block", "check_hides_from", "check_ring_step", "check_zigzag",
           "hint", "solution"]


def _zigzag(rank, P, N):
    c, last = N // (2 * P), 2 * P - 1 - rank
    return [*range(rank * c, (rank + 1) * c), *range(last * c, (last + 1) * c)]


def _whole_numbers(got, what):
    """Return a row of indices as a list of int, or say what is wrong with it."""
    row = given(got)
    if isinstance(row, slice | numbers.Number | str) or not hasattr(row, "__iter__"):
        raise Wrong(f"{what}: expected a list or an array of positions, got {row!r}")
    row = [x for part in list(row) for x in np.ravel(part)]
    if any(float(x) != int(x) for x in row):
        raise Wrong(f"{what}: positions are whole numbers, got {list(row)!r}")
    return [int(x) for x in row]


@exercise("16.1", "Share out a sequence in a zigzag", difficulty=1, minutes=10, solution="zigzag",
          hints=("Cut the sequence into 2P chunks. Which two make an early and a late one for each GPU,"
                 " so that all sums are the same?",
                 "Chunk `rank` and chunk 2P − 1 − rank, each of N / 2P positions, in this order."))
def check_zigzag(zigzag):
    """Accept `zigzag(rank, P, N) -> positions`, rising; ValueError if 2P does not divide N."""
    for P, N in ((2, 8), (1, 6), (4, 32), (3, 12), (4, 8)):
        for rank in range(P):
            what = f"rank {rank} of P = {P}, N = {N}"
            got, right = _whole_numbers(zigzag(rank, P, N), what), _zigzag(rank, P, N)
            if got == right:
                continue
            if sorted(got) == right:
                raise Wrong(f"{what}: the right positions, but they have to rise, as {right}: a GPU's"
                            " own block is masked by place")
            if got and max(got) >= N:
                raise Wrong(f"{what}: position {max(got)} is past the end; the last one is {N - 1}")
            if len(got) != N // P:
                raise Wrong(f"{what}: {len(got)} positions, and each GPU has N / P = {N // P}")
            if got == list(range(rank * N // P, (rank + 1) * N // P)):
                raise Wrong(f"{what}: this is the contiguous layout; the second half has to come from"
                            " the end of the sequence")
            if got == list(range(rank, N, P)):
                raise Wrong(f"{what}: this is the striped layout, every P-th position")
            half = N // (2 * P)
            if got[:half] == right[:half] and got[half] - right[half] in (-1, 1, half, -half):
                raise Wrong(f"{what}: the second chunk begins at {got[half]}, off by"
                            f" {abs(got[half] - right[half])}: chunks are counted from 0, so the last"
                            " is 2P − 1")
            raise Wrong(f"{what}: expected {right}, got {got}")
    for P, N in ((2, 6), (4, 12)):
        try:
            zigzag(0, P, N)
        except ValueError:
            continue
        except AssertionError:
            raise Wrong("an assert vanishes under python -O: raise a ValueError") from None
        raise Wrong(f"P = {P}, N = {N}: {N} tokens do not make {2 * P} equal chunks, and nothing was"
                    " said: raise a ValueError")
    return "the first GPU has the first words and the last ones."


def _seen(Q, K, V):
    """Return (m, l, o) of all keys."""
    S = Q @ K.T / np.sqrt(Q.shape[1])
    m = S.max(axis=1)
    P = np.exp(S - m[:, None])
    return m, P.sum(axis=1), P @ V


@exercise("16.2", "Take in the keys that arrive", difficulty=2, minutes=15, solution="ring_step",
          hints=("First the logits, scaled by 1/√d, and the new maximum of each row: of what was there"
                 " and of what came.",
                 "What was there was measured from the old m: multiply l and o by exp(m − new m). o is"
                 " divided once, after the last step, and not here."))
def check_ring_step(ring_step):
    """Accept `ring_step(state, Q, K, V) -> (m, l, o)`, o not divided yet."""
    rng = np.random.default_rng(16)
    for what, P, logits in (("a ring of 2", 2, 1.0), ("a ring of 4", 4, 1.0),
                            ("logits of hundreds", 3, 60.0)):
        Q, n, d = rng.normal(size=(3, 8)) * logits, 5, 8
        shards = rng.normal(size=(P, 2, n, d))
        shards = shards[np.argsort([(Q @ kv[0].T).max() for kv in shards])]     # the maximum comes last
        state = np.full(3, -np.inf), np.zeros(3), np.zeros((3, d))
        for step, (K, V) in enumerate(shards):
            kept = tuple(x.copy() for x in state)
            with np.errstate(all="ignore"):
                got = parts(ring_step(kept, Q, K, V), "(m, l, o)", f"{what}, step {step}: ")
            m, l, o = (np.asarray(x, float) for x in got)
            K_all, V_all = (np.concatenate(x) for x in zip(*shards[:step + 1], strict=True))
            _judge_step(f"{what}, step {step}", (m, l, o), _seen(Q, K_all, V_all), state, (Q, K, V))
            state = m, l, o
    return "all ranks can run this line, in any order of arrival."


def _judge_step(what, got, right, before, new):
    """Raise `Wrong` unless a state is right, with a word on how it came about."""
    (m, l, o), part = got, _seen(*new)
    first = not before[1].any()
    if o.shape != right[2].shape or l.shape != right[1].shape or m.shape != right[0].shape:
        raise Wrong(f"{what}: expected m and l of shape {right[1].shape} and o of {right[2].shape}, got"
                    f" {m.shape}, {l.shape}, {o.shape}")
    if any(np.isnan(x).any() for x in got):
        raise Wrong(f"{what}: NaN. Before the first step m is −∞: exp(−∞ − (−∞)), or −∞ times 0, or exp"
                    " of a large logit that no maximum was taken from")
    if np.allclose(o, right[2]) and np.allclose(l, right[1]) and np.allclose(m, right[0]):
        return
    Q, K, V = new
    if first and np.allclose(m, (Q @ K.T).max(axis=1)):
        raise Wrong(f"{what}: the logits are not divided by √d")
    if np.allclose(o, right[2] / right[1][:, None]):
        raise Wrong(f"{what}: o is divided by l already: what arrives next could not be added to that")
    if not first and np.allclose(l, part[1]) and np.allclose(o, part[2]):
        raise Wrong(f"{what}: this is the state of the new keys alone; what was seen before is lost")
    if not first and np.allclose(o, (before[2] + part[2]) / 2):
        raise Wrong(f"{what}: o is the mean of both: each shard weighs as much as its exponentials")
    S = Q @ K.T / np.sqrt(Q.shape[1]) - right[0][:, None]
    if np.allclose(o, before[2] + np.exp(S) @ V) or np.allclose(l, before[1] + np.exp(S).sum(axis=1)):
        raise Wrong(f"{what}: the old l or o is added as it was: it was measured from the old maximum,"
                    " and has to be multiplied by exp(old m − new m)")
    if np.allclose(o, before[2] + part[2]):
        raise Wrong(f"{what}: o is the plain sum of states that were measured from different maxima")
    for name, found, wanted in (("m", m, right[0]), ("l", l, right[1]), ("o", o, right[2])):
        expect_close(found, wanted, f"{what}: {name}", rtol=1e-8, atol=1e-10)


@exercise("16.3", "Hide the link of the backward pass", difficulty=2, minutes=10,
          solution="hides_from",
          hints=("Forward, half of n × n pairs take 4·d FLOPs each, for H heads. Here 2.5 times that."
                 " How many bytes go over the link?",
                 "2·n·H_k·d numbers of keys and values in 2 bytes, as many of their gradients in 4. Set"
                 " both times equal and solve for n."))
def check_hides_from(hides_from):
    """Accept `hides_from(F, W, H, H_k) -> tokens`: FLOP/s, bytes/s, heads and key heads."""
    cases = ((440e12, 376e9, 32, 8), (440e12, 50e9, 32, 8), (440e12, 50e9, 32, 32), (1e15, 1e11, 64, 4))
    for F, W, H, H_k in cases:
        what = f"F = {F:.3g} FLOP/s, W = {W:.3g} B/s, H = {H}, H_k = {H_k}"
        got = given(hides_from(F, W, H, H_k))
        if isinstance(got, bool) or not isinstance(got, numbers.Real):
            raise Wrong(f"{what}: expected a number of tokens, got {got!r}")
        got, right = float(got), 2.4 * H_k / H * F / W
        if abs(got - right) <= max(1.0, 1e-6 * right):              # rounded to whole tokens, up or not
            continue
        mistakes = {
            right / 2.4 * 2: "this is the forward pass",
            right / 2: "a causal zigzag step has half of the n × n pairs, so it takes twice the tokens",
            right * 2: "twice too many: Q·Kᵀ and P·V are 4·d FLOPs a pair, not 2·d",
            right * 2.5: "the backward pass has 2.5 times the work",
            right / 3: "dK and dV go over the link, too",
            right / 1.5: "dK and dV are in float32, 4 bytes a number",
            right * 4 / 3: "only dK and dV are in 4 bytes a number; K and V are in 2",
            right * 8: "eight times: W is in bytes a second, not in bits",
            right / 8: "an eighth: W is in bytes a second, not in bits",
            2.4 * F / W: "this is right for as many key heads as heads; only the H_k key heads travel",
            2.4 * H / H_k * F / W: "H and H_k have changed places: few key heads, a light message",
            128 * right: "d cancels: work and message both grow with it",
            right / 128: "d cancels: work and message both grow with it"}
        for wrong, why in mistakes.items():
            if np.isclose(got, wrong, rtol=1e-3):
                raise Wrong(f"{what}: {why}")
        raise Wrong(f"{what}: expected a step of {right:,.0f} tokens to take as long as its message,"
                    f" got {got:,.0f}")
    return "its message is three times as heavy, its work 2.5 times: hardly later than forward."


def _indices(x, n, what):
    """Return the places that a slice or a list of them means."""
    if isinstance(x, slice):
        return list(range(n))[x]
    found = _whole_numbers(x, what)
    if any(not -n <= at < n for at in found):
        raise Wrong(f"{what}: places in a shard are 0 to {n - 1}, got {found}")
    if len({at % n for at in found}) < len(found):
        raise Wrong(f"{what}: {found} names a place twice, so that pairs would meet twice")
    return [at % n for at in found]


@exercise("16.4", "Plan one call for each shard that arrives", difficulty=3, minutes=20,
          solution="block",
          hints=("In a zigzag a shard's first half lies before the middle of the sequence and its"
                 " second half behind it. Draw two GPUs and eight words.",
                 "An earlier source: all rows see its first half, and nobody its second. A later one:"
                 " only the second half of rows sees anything, and sees all. The own one is causal."))
def check_block(block):
    """Accept `block(rank, source, n) -> (rows, keys, causal)`, places in a shard of n tokens."""
    for P, n in ((2, 4), (1, 4), (4, 2), (4, 6), (3, 4)):
        at = [_zigzag(rank, P, P * n) for rank in range(P)]
        for rank in range(P):
            for source in range(P):
                what = f"P = {P}, n = {n}, rank {rank}, source {source}"
                rows, keys, causal = parts(block(rank, source, n), "(rows, keys, causal)", f"{what}: ")
                if not isinstance(causal, bool | np.bool_):
                    raise Wrong(f"{what}: the third part is True or False, got {causal!r}")
                rows, keys = (_indices(x, n, what) for x in (rows, keys))
                seen = np.zeros((n, n), bool)
                seen[np.ix_(rows, keys)] = np.tri(len(rows), len(keys), len(keys) - len(rows),
                                                  dtype=bool) if causal else True
                _judge_block(what, seen, at[rank], at[source], rank, source, causal)
    return "each pair below the diagonal once, in P² calls, each with half of n × n pairs or so."


def _judge_block(what, seen, queries, keys, rank, source, causal):
    """Raise `Wrong` with the first pair that is missed or lies in the future."""
    for i, q in enumerate(queries):
        for j, k in enumerate(keys):
            if seen[i, j] == (k <= q):
                continue
            pair = f"the query at position {q} and the key at position {k}"
            if causal and rank != source:
                why = " Positions of two shards lie apart: between them no causal mask fits."
            elif seen[i, j]:
                why = (" The own block needs its mask." if rank == source else
                       " A later source is seen by the second half of rows only." if source > rank else
                       " Nobody sees the second half of an earlier source.")
            else:
                why = ""
            if seen[i, j]:
                raise Wrong(f"{what}: {pair} meet, and the key lies in the future.{why}")
            raise Wrong(f"{what}: {pair} never meet, and should.{why}")


@exercise("16.5", "Bring the gradients home", difficulty=3, minutes=25, solution="backward",
          hints=("Let dK, dV follow their keys: add your share to what comes from the rank before, and"
                 " send the sum on. Which step has nothing to add to?",
                 "After the last step you hold the sum of the keys that you have then, those of the"
                 " rank behind you in the ring. How many hops is it from there to their owner?"))
def check_backward(backward):
    """Accept `backward(rank, P, kv, gradients)`, a generator that returns dKV of its own keys."""
    rng = np.random.default_rng(16)
    for P in (2, 4, 3):
        own = rng.normal(size=(P, 2, 6, 4))
        links = Links()
        programs = [given(backward(rank, P, own[rank].copy(), lambda kv, rank=rank: 2.0**rank * kv))
                    for rank in range(P)]
        if not all(map(inspect.isgenerator, programs)):
            raise Wrong("expected a generator: ask for messages by `yield put(…)` and `yield get(…)`")
        try:
            results = links.run(programs)
        except Deadlock as error:
            raise Wrong(f"P = {P}: {error}") from None
        for rank, got in enumerate(results):
            _judge_home(f"P = {P}, rank {rank}", given(got), own, rank)
    return "every rank has added its share, and every sum has found its owner."


def _judge_home(what, got, own, rank):
    """Read from dKV whose shares are in it, and of whose keys: shares are powers of two."""
    P = len(own)
    try:
        found = np.asarray(got, float)
    except (TypeError, ValueError):
        raise Wrong(f"{what}: expected an array of dK and dV, got {type(got).__name__}") from None
    if found.shape != own[rank].shape:
        raise Wrong(f"{what}: expected shape {own[rank].shape}, got {found.shape}")
    shares, *_ = np.linalg.lstsq(own.reshape(P, -1).T, found.ravel(), rcond=None)
    off = np.abs(shares @ own.reshape(P, -1) - found.ravel()).max()
    if off > 1e-5:
        raise Wrong(f"{what}: this is no sum of shares (off by {off:.1g}). Is it summed in 16 bits, or"
                    " is something added to that is no gradient?")
    shares = np.round(shares).astype(int)
    others = [source for source in range(P) if source != rank and shares[source]]
    if len(others) == 1 and shares[others[0]] == 2**P - 1 and not shares[rank]:
        raise Wrong(f"{what}: a whole sum, but of the keys of rank {others[0]}: one hop is missing at"
                    " the end")
    if others:
        raise Wrong(f"{what}: shares of the keys of rank {others[0]} are in it. A sum has to stay with"
                    " its keys: did you work on keys that had moved on, or on your own in every step?")
    if shares[rank] == 2**P - 1:
        return
    missing = [r for r in range(P) if not shares[rank] >> r & 1] if 0 <= shares[rank] < 2**P else []
    if missing:
        raise Wrong(f"{what}: the share of rank {missing[0]} is missing from dK and dV")
    raise Wrong(f"{what}: a share is in it more than once, or keys of the step before were used: the"
                f" shares add up to {shares[rank]} where {2**P - 1} are all of them once")
