"""Exercises of chapter 15: parts for a GPU, an empty part, a page that is gone, a tree of merges."""

import itertools
import numbers

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution

__all__ = ["check_dangling", "check_fold", "check_keys_of_part", "check_merge", "hint", "solution"]

TILE = 64                                                   # keys of a tile
# Sequences, key heads, keys, SMs: an A100, an RTX 4090, a T4, an H200, a B200.
_CASES = ((1, 8, 32768, 108), (2, 4, 10000, 128), (1, 8, 4096, 40), (8, 8, 8192, 132),
          (64, 8, 2048, 132), (3, 8, 20000, 148))


def _keys(B, H_k, N_k, sms, *, at_least=False):
    """Return the keys of a part; `at_least` where parts fill all SMs and some wait."""
    programs = B * H_k
    many = -(-sms // programs) if at_least else max(1, sms // programs)
    return TILE * -(-N_k // (TILE * many))


@exercise("15.1", "Choose parts for a GPU that you do not own", difficulty=1, minutes=10,
          solution="keys_of_part",
          hints=("How many programs are there with one part? How many parts may there be, so that all"
                 " programs have an SM of their own?",
                 "parts = max(1, sms // (B · H_k)). Then N_k / parts, rounded up to a multiple of 64."))
def check_keys_of_part(keys_of_part):
    """Accept `keys_of_part(B, H_k, N_k, sms) -> keys`, a multiple of 64."""
    for case in _CASES:
        B, H_k, N_k, sms = case
        got, right = given(keys_of_part(*case)), _keys(*case)
        what = f"B={B}, H_k={H_k}, N_k={N_k:,}, {sms} SMs"
        whole = isinstance(got, numbers.Real) and not isinstance(got, bool) and got == int(got)
        if not whole or got <= 0:
            raise Wrong(f"{what}: expected a positive whole number of keys, got {got!r}")
        got = int(got)
        if got == right:
            continue
        if got == max(1, sms // (B * H_k)):
            raise Wrong(f"{what}: {got} is the number of parts; the question is for the keys of one")
        if got % TILE:
            raise Wrong(f"{what}: {got:,} keys are no multiple of {TILE}, a tile: round up")
        if got == _keys(*case, at_least=True):
            raise Wrong(f"{what}: {B * H_k * -(-N_k // got)} programs on {sms} SMs: some wait for a"
                        " second turn. Round the number of parts down")
        if got == _keys(1, H_k, N_k, sms):
            raise Wrong(f"{what}: right for one sequence; each of the {B} has programs of its own")
        if got == _keys(B, 4 * H_k, N_k, sms):
            raise Wrong(f"{what}: a program serves a whole group of query heads: count key heads")
        if got == _keys(B, 1, N_k, sms):
            raise Wrong(f"{what}: each of the {H_k} key heads has programs of its own")
        programs = B * H_k * -(-N_k // got)
        if programs > sms and B * H_k <= sms:
            raise Wrong(f"{what}: parts of {got:,} keys make {programs} programs, more than SMs. Was"
                        " the quotient rounded down? N_k / parts has to be rounded up")
        raise Wrong(f"{what}: parts of {got:,} keys make {programs} programs; parts of {right:,} would"
                    f" make {B * H_k * -(-N_k // right)}, each still with an SM of its own")
    return "an SM each, and hardly any without. Whether that is the fastest is another question."


def _state(x, v):
    """Return (m, l, o) of some logits and values."""
    x, v = np.asarray(x, float), np.asarray(v, float)
    if not x.size:
        return -np.inf, 0.0, np.zeros(v.shape[1])
    p = np.exp(x - x.max())
    return float(x.max()), float(p.sum()), p @ v


@exercise("15.2", "Merge, also with a part that saw nothing", difficulty=1, minutes=10,
          solution="merge",
          hints=("The new maximum is the larger of both. What has each sum to be multiplied by, so that"
                 " it is measured from there?",
                 "exp(−∞ − m) is 0 for any finite m, so one empty part needs nothing special. Two need"
                 " it: −∞ − (−∞) is NaN."))
def check_merge(merge):
    """Accept `merge(a, b) -> (m, l, o)`, o not divided yet."""
    rng = np.random.default_rng(15)
    x, v = rng.normal(size=9) * 4, rng.normal(size=(9, 3))
    empty = _state([], np.zeros((0, 3)))
    rising = np.sort(x)
    cases = {"two parts": (x[:5], x[5:]), "the larger maximum second": (rising[:5], rising[5:]),
             "logits of 2,000": (x[:5] + 2000, x[5:] - 2000)}
    for what, (a, b) in cases.items():
        _held(merge, what, _state(a, v[:5]), _state(b, v[5:]), _state(np.append(a, b), v))
    one = _state(x, v)
    _held(merge, "an empty part first", empty, one, one)
    _held(merge, "an empty part second", one, empty, one)
    _held(merge, "two empty parts", empty, empty, empty)
    m, l, o = one
    with np.errstate(all="ignore"):
        kept = parts(merge((m, l, o * [1, np.nan, 1]), one), "(m, l, o)", "a part with a NaN")[2]
    if not np.isnan(np.asarray(kept, float)[1]):
        raise Wrong("a part whose o has a NaN, an error made further up: it vanished. np.nan_to_num"
                    " hides it; where both parts saw nothing, let no NaN arise")
    return "who saw nothing changes nothing."


def _held(merge, what, a, b, right):
    """Raise `Wrong` unless `merge` gives this state, with a word on how."""
    with np.errstate(all="ignore"):
        m, l, o = parts(merge(a, b), "(m, l, o)", what)
    o = np.asarray(o, float)
    if o.shape != right[2].shape:
        raise Wrong(f"{what}: o has shape {o.shape}, expected {right[2].shape}")
    if any(np.isnan(x).any() for x in (np.asarray(m, float), np.asarray(l, float), o)):
        why = {"two empty parts": "Where both saw nothing, −∞ − (−∞) is NaN",
               "logits of 2,000": "exp(m) overflows: subtract the larger m first"}
        raise Wrong(f"{what}: NaN. {why.get(what, '−∞ times 0, or −∞ − (−∞)?')}")
    top = max(a[0], b[0])
    with np.errstate(all="ignore"):
        scale = np.exp(a[0] - top), np.exp(b[0] - top)
    if np.allclose(o, right[2]) and np.allclose(l, right[1]) and np.isclose(m, right[0]):
        return
    if a[1] and b[1] and np.allclose(o, (a[2] / a[1] + b[2] / b[1]) / 2):
        raise Wrong(f"{what}: o is the mean of both results: each part weighs as much as it holds")
    if right[1] and np.allclose(o, right[2] / right[1]):
        raise Wrong(f"{what}: o is divided by l already: a third part could not be merged with that")
    if np.isclose(l, a[1] + b[1]) and not np.isclose(l, right[1]):
        raise Wrong(f"{what}: l is the plain sum: both were measured from different maxima")
    if not np.allclose(o, right[2]) and np.allclose(o, a[2] + b[2]):
        raise Wrong(f"{what}: o is the plain sum: both were measured from different maxima")
    if np.allclose(o, scale[1] * a[2] + scale[0] * b[2]):
        raise Wrong(f"{what}: the factors are swapped: a is multiplied by exp(m_a − m)")
    expect_close(m, right[0], f"{what}: m", atol=1e-12)
    expect_close(l, right[1], f"{what}: l", atol=1e-12)
    expect_close(o, right[2], f"{what}: o", atol=1e-12)


@exercise("15.3", "Find the page that is gone", difficulty=2, minutes=10, solution="dangling",
          hints=("Which entries of a row does the kernel follow? It stops at the length.",
                 "The first ⌈length / page⌉ entries. The last may be filled in part, and counts."))
def check_dangling(dangling):
    """Accept `dangling(table, lengths, page, free) -> pairs (b, j)`."""
    cases = (
        ([[4, 1, 0], [2, 3, 9]], [40, 17], 16, {0, 9, 7}),          # 3 and 2 entries are followed
        ([[5, 6, 7], [5, 6, 8]], [33, 48], 16, {6, 8}),
        ([[0, 1], [2, 3], [2, 0]], [32, 0, 16], 16, {2, 3}),
        ([[3, 2, 1, 0]], [5], 2, {1, 0}),
        ([[1, 2], [3, 0]], [32, 32], 16, set()))
    for table, lengths, page, free in cases:
        what = f"table {table}, lengths {lengths}, page {page}, free {sorted(free)}"
        got = given(dangling([list(row) for row in table], list(lengths), page, set(free)))
        if isinstance(got, bool | numbers.Real | dict):
            raise Wrong(f"{what}: expected pairs (b, j), got {got!r}")
        pairs = [parts(pair, "(b, j)") for pair in got]
        found = {tuple(map(int, pair)) for pair in pairs}
        right = {(b, j) for b, n in enumerate(lengths) for j in range(-(-n // page))
                 if table[b][j] in free}
        if found == right:
            continue
        behind = {(b, j) for b, row in enumerate(table) for j, at in enumerate(row)
                  if at in free} - right
        whole = {(b, j) for b, j in right if j < lengths[b] // page}
        if found == {(b, table[b][j]) for b, j in right}:
            raise Wrong(f"{what}: j is the place in the row, not the page that stands there")
        if found == {(b, j * page) for b, j in right}:
            raise Wrong(f"{what}: j counts the entries of a row, 0, 1, 2 …, not keys")
        if found == {(j, b) for b, j in right}:
            raise Wrong(f"{what}: (b, j) is sequence, then place: yours are the other way round")
        if found & behind:
            b, j = sorted(found & behind)[0]
            raise Wrong(f"{what}: entry {j} of sequence {b} stands behind its {lengths[b]} keys: nobody"
                        " follows it, so it may hold anything")
        if found == whole:
            b, j = sorted(right - whole)[0]
            raise Wrong(f"{what}: ({b}, {j}) is missing: a page that is filled in part is read, too")
        if sorted(found) != sorted(found & right):
            raise Wrong(f"{what}: {sorted(found - right)[0]} points at a page that somebody holds")
        raise Wrong(f"{what}: {sorted(right - found)[0]} is missing; did you look at every sequence?")
    return "each would read what the next owner writes there."


def _units(count, seed):
    """Return float32 states of units, (m, l, o)."""
    rng = np.random.default_rng(seed)
    return [(np.float32(rng.normal()), np.float32(rng.uniform(1, 9)),
             rng.normal(size=64).astype(np.float32)) for _ in range(count)]


def _merge32(a, b):
    m = np.maximum(a[0], b[0])
    alpha, beta = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, alpha * a[1] + beta * b[1], alpha * a[2] + beta * b[2]


def _bits(state):
    return b"".join(np.asarray(x, np.float32).tobytes() for x in state)


@exercise("15.4", "Merge so that any split has the same bits", difficulty=3, minutes=20,
          solution="fold",
          hints=("A program with two units can only merge neighbors. So whoever has one unit each must"
                 " merge the same neighbors first.",
                 "Pairs of neighbors, then pairs of pairs: a tree. Where the number is odd, the last"
                 " one waits for the next round."))
def check_fold(fold):
    """Accept `fold(states, merge) -> state`: of a program's units, and in the merge."""
    for count in (8, 2, 1, 16, 11, 13):
        units, results = _units(count, count), {}
        right = units[0]
        for state in units[1:]:
            right = _merge32(right, state)
        for each in (1, 2, 4, 8):
            calls = itertools.count()

            def counted(a, b, calls=calls):
                next(calls)
                return _merge32(a, b)

            programs = [parts(fold(units[i:i + each], counted), "(m, l, o)")
                        for i in range(0, count, each)]
            found = parts(fold(programs, counted), "(m, l, o)")
            what = f"{count} units, {each} a program"
            if not np.allclose(found[2], right[2], rtol=1e-3, atol=1e-4) or not np.isclose(
                    float(found[1]), float(right[1]), rtol=1e-4):
                raise Wrong(f"{what}: this is not the merge of all units, or one is in it twice")
            if next(calls) > count - 1:
                raise Wrong(f"{what}: {count} states need {count - 1} merges; here are more")
            results[each] = _bits(found)
        for each in (2, 4, 8):
            if results[each] != results[1]:
                raise Wrong(_unlike(fold, units, count, each))
    return "a program may take 1, 2, 4 or 8 units, as the batch likes: no bit changes."


def _unlike(fold, units, count, each) -> str:
    """Say which bits differ, and after what order that looks."""
    left = units[0]
    for state in units[1:]:
        left = _merge32(left, state)
    what = f"{count} units: with {each} a program the result has other bits than with 1"
    if _bits(fold(list(units), _merge32)) == _bits(left):
        return (f"{what}. You merge from the first to the last: ((0·1)·2)·3. A program that has 2 and 3"
                " makes 2·3, which is nowhere in there")
    if count & (count - 1):
        return (f"{what}. With 2, 4, 8 and 16 units it is right: a program begins at a multiple of its"
                " size, so cut there, and let what is left over wait")
    return f"{what}. A program has neighbors; who merges others first cannot come to the same sum"
