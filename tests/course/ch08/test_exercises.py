"""The checks of chapter 08 accept the solution and name each seeded mistake."""

from fractions import Fraction

import numpy as np
import pytest

from flashlib.course.ch08 import exercises as ch08
from flashlib.course.ch08 import solutions as right
from tests.course.exercises.examine import examine


def _ceil(a, b):
    return -(-a // b)


def _update(O, m, l, S, V, *, own=False, rescale=lambda a: a, late=lambda O, l: O):
    m_new = np.maximum(m, S.max(axis=1))
    alpha = np.exp(m - m_new)
    P = np.exp(S - (S.max(axis=1) if own else m_new)[:, None])
    l_new = alpha * l + (np.exp(S - m_new[:, None]) if own else P).sum(axis=1)
    return late(rescale(alpha)[:, None] * O + P @ V, l_new), m_new, l_new


def _v1_update(O, m, l, S, V):
    m_tile = S.max(axis=1)
    m_new, own = np.maximum(m, m_tile), np.exp(S - m_tile[:, None])
    old, new = np.exp(m - m_new), np.exp(m_tile - m_new)
    l_new = old * l + new * own.sum(axis=1)
    O = ((l * old)[:, None] * O + new[:, None] * (own @ V)) / l_new[:, None]
    return O, m_new, l_new


def _in_own_units(O, m, l, S, V):
    """Compute the tile in units of its own maximum and convert it, which is right and costs more."""
    m_tile = S.max(axis=1)
    m_new, own = np.maximum(m, m_tile), np.exp(S - m_tile[:, None])
    old, new = np.exp(m - m_new), np.exp(m_tile - m_new)
    return old[:, None] * O + new[:, None] * (own @ V), m_new, old * l + new * own.sum(axis=1)


def _by_rows(O, m, l, S, V):
    """Update one row after the other, with Python's numbers, and return a list."""
    O, m, l = O.copy(), m.copy(), l.copy()
    for i, row in enumerate(S):
        top = max(m[i], *row)
        kept = np.exp(m[i] - top)
        weights = [np.exp(s - top) for s in row]
        O[i] = kept * O[i] + sum(w * v for w, v in zip(weights, V, strict=True))
        m[i], l[i] = top, kept * l[i] + sum(weights)
    return [O, m, l]


def _of_classes(change):
    return lambda N, Br, Bc: change(*right.count_classes(N, Br, Bc), -(-N // Br))


def _by_tile(N, Br, Bc):
    """Look at the corners of every tile; return a row of an array."""
    found = np.zeros(3, dtype=int)
    for i in range(0, N, Br):
        for j in range(0, N, Bc):
            found[0 if min(j + Bc, N) - 1 <= i else 2 if j > min(i + Br, N) - 1 else 1] += 1
    return found


def _as_if_whole(N, Br, Bc):
    """Take every key tile for Bc wide, the last one too."""
    kinds = [0 if j + Bc - 1 <= i else 2 if j > min(i + Br, N) - 1 else 1
             for i in range(0, N, Br) for j in range(0, N, Bc)]
    return tuple(kinds.count(kind) for kind in range(3))


def _exchange(bytes_of, barriers=2):
    return lambda Br, d, W, s, a: (barriers, bytes_of(Br, d, W, s, a))


def _no_narrow_tile(N, Br, Bc):
    """The rule of the hint for every row tile, the last one of a single row included."""
    lasts = [(start, min(start + Br, N) - 1) for start in range(0, N, Br)]
    full = sum((first + 1) // Bc for first, _ in lasts)
    visited = sum(_ceil(last + 1, Bc) for _, last in lasts)
    return full, visited - full, len(lasts) * _ceil(N, Bc) - visited


def _of_mask(hide, N, Br, Bc):
    """Cut the whole mask into tiles and look into each."""
    seen = hide(np.ones((N, N), dtype=bool))
    found = [seen[i:i + Br, j:j + Bc] for i in range(0, N, Br) for j in range(0, N, Bc)]
    full, skipped = sum(tile.all() for tile in found), sum(not tile.any() for tile in found)
    return full, len(found) - full - skipped, skipped


def _of_rows(N, Br, Bc, *, full=lambda a, Bc: (a + 1) // Bc, last=lambda a, Br, N: min(a + Br, N) - 1):
    starts = range(0, N, Br)
    whole = sum(_ceil(N, Bc) if a + 1 == N else full(a, Bc) for a in starts)
    visited = sum(last(a, Br, N) // Bc + 1 for a in starts)
    return whole, visited - whole, len(starts) * _ceil(N, Bc) - visited


def _with_tile(O, m, l, S, V, *, mass=lambda a, l, P, raw: a * l + P, weights=lambda S, m, P: P):
    """v2's update with another l, or with other weights on V."""
    m_new = np.maximum(m, S.max(axis=1))
    alpha, P = np.exp(m - m_new), np.exp(S - m_new[:, None])
    l_new = mass(alpha, l, P.sum(axis=1), np.exp(S).sum(axis=1))
    return alpha[:, None] * O + weights(S, m[:, None], P) @ V, m_new, l_new


def _of_one_maximum(O, m, l, S, V):
    O, m_new, l = right.update(O, m, l, S, V)
    most = np.full_like(m_new, m_new.max())
    return np.exp(m_new - most)[:, None] * O, most, np.exp(m_new - most) * l


def _in_powers_of_2(O, m, l, S, V):
    m_new = np.maximum(m, S.max(axis=1))
    alpha, P = np.exp2(m - m_new), np.exp2(S - m_new[:, None])
    return alpha[:, None] * O + P @ V, m_new, alpha * l + P.sum(axis=1)


WRONG = [
    (ch08.check_count_waves, lambda B, H, N, Br, sms: _ceil(B * H * N, Br * sms), "one ceiling"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: B * H * _ceil(N, Br) // sms, "round up"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: _ceil(B * H, sms), "one per row tile"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: _ceil(B * H * (N // Br), sms), "ragged"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: B * H * _ceil(N, Br), "the programs"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: B * H * _ceil(N, Br) / sms, "begun or not"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: B * H * _ceil(N, Br) // sms + 1,
     "one wave too many"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: B * H * _ceil(_ceil(N, Br), sms),
     "head by head"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: B * _ceil(H * _ceil(N, Br), sms),
     "sequence by sequence"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: _ceil(H * _ceil(N, Br), sms), "every sequence"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: _ceil(B * _ceil(N, Br), sms), "every head has"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: _ceil(B * H * N, sms), "Br rows, not one"),
    (ch08.check_count_waves, lambda B, H, N, Br, sms: _ceil(B * H * _ceil(N, Br)**2, sms),
     "a whole row of tiles"),
    (ch08.check_update, lambda *a: _update(*a, late=lambda O, l: O / l[:, None]), "divided by l"),
    (ch08.check_update, lambda *a: _update(*a, rescale=np.ones_like), "was not rescaled"),
    (ch08.check_update, lambda *a: _update(*a, rescale=lambda x: 1 / x), "wrong sign"),
    (ch08.check_update, lambda *a: _update(*a, own=True), "its own maximum"),
    (ch08.check_update, lambda O, m, l, S, V: (O, m, l), "did not move"),
    (ch08.check_update, lambda O, m, l, S, V: (O, S.max(axis=1), l), "tile alone"),
    (ch08.check_update, lambda O, m, l, S, V: (
        (np.exp(m - np.maximum(m, S.max(axis=1))) * l)[:, None] * O
        + np.exp(S - np.maximum(m, S.max(axis=1))[:, None]) @ V, *_update(O, m, l, S, V)[1:]),
     "v1's update"),
    (ch08.check_update, _v1_update, "keep O unfinished"),
    (ch08.check_update, _of_one_maximum, "a maximum of its own"),
    (ch08.check_update, lambda *a: (lambda O, m, l: (O, m + np.log(l), l))(*right.update(*a)),
     "this is lse"),
    (ch08.check_update, lambda *a: _with_tile(*a, mass=lambda a, l, P, raw: P), "the old l is lost"),
    (ch08.check_update, lambda *a: _with_tile(*a, mass=lambda a, l, P, raw: a * (l + P)),
     "the tile was rescaled"),
    (ch08.check_update, lambda *a: _with_tile(*a, mass=lambda a, l, P, raw: a * l + raw),
     "no maximum was subtracted"),
    (ch08.check_update, lambda *a: _with_tile(*a, mass=lambda a, l, P, raw: l + raw),
     "neither the past nor the tile"),
    (ch08.check_update, lambda *a: _with_tile(*a, weights=lambda S, m, P: np.exp(S - m)),
     "against the old maximum"),
    (ch08.check_update, lambda *a: _with_tile(*a, weights=lambda S, m, P: np.exp(S)),
     "no maximum was subtracted"),
    (ch08.check_update, lambda *a: _with_tile(*a, weights=lambda S, m, P: P / P.sum(1)[:, None]),
     "divided by their sum"),
    (ch08.check_update, lambda *a: _with_tile(*a, mass=lambda a, l, P, raw: a * l + P.sum()),
     "over the whole tile"),
    (ch08.check_update, _in_powers_of_2, "powers of 2"),
    (ch08.check_count_classes, lambda *a: _of_rows(*a, last=lambda a, Br, N: min(a + Br, N) - 2),
     "cut, not skipped"),
    (ch08.check_split_k_exchange, lambda Br, d, W, s, a: right.split_k_exchange(Br, d, W, a, s),
     "are swapped"),
    (ch08.check_split_k_exchange, lambda Br, d, W, s, a: right.split_k_exchange(Br, d, 4, s, a),
     "only the example"),
    (ch08.check_count_classes, _of_classes(lambda f, p, s, T: (s, p, f)), "swapped"),
    (ch08.check_count_classes, _of_classes(lambda f, p, s, T: (p, f, s)), "in the order (partial"),
    (ch08.check_count_classes, _of_classes(lambda f, p, s, T: (f, s, p)), "in the order (full, s"),
    (ch08.check_count_classes, lambda N, Br, Bc: right.count_classes(N, Bc, Br), "not the future"),
    (ch08.check_count_classes, lambda *a: _of_mask(np.triu, *a), "past, not the future"),
    (ch08.check_count_classes, lambda *a: _of_mask(lambda M: np.tril(M, -1), *a), "row i sees key i"),
    (ch08.check_count_classes, lambda *a: _of_rows(*a, full=lambda a, Bc: a // Bc), "itself included"),
    (ch08.check_count_classes, lambda *a: _of_rows(*a, last=lambda a, Br, N: a),
     "does not see it, not the first"),
    (ch08.check_count_classes, lambda *a: _of_rows(*a, last=lambda a, Br, N: a + Br - 1),
     "ends at row N"),
    (ch08.check_count_classes, _of_classes(lambda f, p, s, T: (f + p, 0, s)), "cuts is visited"),
    (ch08.check_count_classes, _of_classes(lambda f, p, s, T: (f, 0, s + p)), "were skipped"),
    (ch08.check_count_classes, _of_classes(lambda f, p, s, T: (f + p - T, T, s)),
     "only if Br = Bc"),
    (ch08.check_count_classes, _of_classes(lambda f, p, s, T: (f, p, s + 1)), "must add up"),
    (ch08.check_update, lambda *a: (lambda O, m, l: (m, l, O))(*right.update(*a)), "in the order"),
    (ch08.check_count_classes, _as_if_whole, "sees the last tile whole"),
    (ch08.check_count_classes, _no_narrow_tile, "sees the last tile whole"),
    (ch08.check_split_k_exchange, _exchange(lambda *a: right.split_k_exchange(*a)[1], 1),
     "cannot do both"),
    (ch08.check_split_k_exchange, _exchange(lambda *a: right.split_k_exchange(*a)[1], 3),
     "no third barrier"),
    (ch08.check_split_k_exchange, _exchange(lambda Br, d, W, s, a: 2 * W * Br * d * a),
     "sums and maxima"),
    (ch08.check_split_k_exchange,
     _exchange(lambda Br, d, W, s, a: 2 * W * Br * (d * a + 2 * s)), "every warp needs every maximum"),
    (ch08.check_split_k_exchange,
     _exchange(lambda Br, d, W, s, a: W * Br * (d * a + 2 * s)), "only what is written"),
    (ch08.check_split_k_exchange,
     _exchange(lambda Br, d, W, s, a: W * Br * (2 * d + 3 + W)), "elements, not bytes"),
    (ch08.check_split_k_exchange,
     _exchange(lambda Br, d, W, s, a: 2 * Br * d * a + (3 + W) * W * Br * s), "not a share of it"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: Br * ((2 * W - 1) * (d * a + s) + W * W * s)), "its own part back"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: Br * (2 * W * (d * a + s) + W * W * s)), "its own maximum back"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: Br * ((2 * W - 1) * (d * a + s) + (W + W * W) * s)), "its own included"),
    (ch08.check_split_k_exchange, lambda *a: right.split_k_exchange(*a)[::-1], "in the order (bytes"),
    (ch08.check_split_k_exchange, lambda Br, d, W, s, a: (W, right.split_k_exchange(Br, d, W, s, a)[1]),
     "two warps as with eight"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: W * Br * (d * a + s + W * s)), "only what is read"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: W * Br * (2 * d * a + 2 * (1 + W) * s)), "ℓ is summed by one warp"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: W * (1 + W) * Br * (d * a + 2 * s)), "ℓ and O are summed by one warp"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: W * Br * (2 * d * a + 2 * a + (1 + W) * s)), "partial sums are stat"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: W * Br * s * (2 * d + 3 + W)), "the partial outputs are acc"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: W * Br * a * (2 * d + 3 + W)), "maxima and sums are stat"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: Br * (2 * d * a + (3 + W) * s)), "there are W of them"),
    (ch08.check_split_k_exchange, _exchange(
        lambda Br, d, W, s, a: W * Br * (2 * d + 3 + W)), "elements, not bytes"),
]
PAIRS = [(ch08.check_count_waves, right.count_waves), (ch08.check_update, right.update),
         (ch08.check_count_classes, right.count_classes),
         (ch08.check_split_k_exchange, right.split_k_exchange)]
OTHER = [(ch08.check_count_waves, lambda *a: np.int64(right.count_waves(*a))),
         (ch08.check_update, _by_rows),
         (ch08.check_update, _in_own_units),
         (ch08.check_update, lambda *a: tuple(part.tolist() for part in right.update(*a))),
         (ch08.check_count_classes, _by_tile),
         (ch08.check_split_k_exchange, lambda *a: np.array(right.split_k_exchange(*a)))]

OTHER += [(ch08.check_count_waves, lambda B, H, N, Br, sms: np.ceil(B * H * np.ceil(N / Br) / sms)),
          (ch08.check_count_waves, lambda *a: Fraction(right.count_waves(*a))),
          (ch08.check_count_classes, lambda *a: _of_mask(np.tril, *a)),
          (ch08.check_split_k_exchange, lambda *a: list(map(float, right.split_k_exchange(*a))))]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


def test_the_praise_of_an_update_says_only_what_its_result_shows():
    for update in (right.update, _in_own_units):
        assert "multiplication" not in ch08.check_update(update).message


@pytest.mark.parametrize(("check", "answer"), OTHER)
def test_another_right_form_passes(check, answer):
    assert check(answer, strict=True)
