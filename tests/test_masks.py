"""Masks against a brute-force matrix of booleans: who sees whom, and what that makes of a tile."""

import itertools

import numpy as np
import pytest

from flashlib.masks import CausalMask, FullMask, mask_of, tile_class, tiles

LENGTHS = list(itertools.product((1, 2, 5, 8), (0, 1, 3, 5, 8, 11)))


def matrix(causal, Nq, Nk):
    """Return who sees whom by the definition: the last query sees the last key, one less a row up."""
    sees = np.ones((Nq, Nk), bool)
    if causal:
        for back in range(1, Nq + 1):
            sees[Nq - back, max(0, Nk - back + 1):] = False
    return sees


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("Nq, Nk", LENGTHS)
def test_every_tile_agrees_with_the_matrix(causal, Nq, Nk):
    mask, sees = mask_of(causal, Nq, Nk), matrix(causal, Nq, Nk)
    for rows, keys in itertools.product(
            (slice(a, b) for a in range(Nq) for b in range(a + 1, Nq + 1)),
            (slice(a, b) for a in range(Nk) for b in range(a + 1, Nk + 1))):
        part = sees[rows, keys]
        expected = "full" if part.all() else "partial" if part.any() else "skip"
        assert tile_class(mask, rows, keys) == expected
        assert mask.skips(rows, keys) == (not part.any())
        if part.any():
            visible = mask.visible(rows, keys)
            assert (visible is None) == part.all()
            np.testing.assert_array_equal(True if visible is None else visible, part)


@pytest.mark.parametrize("Nq, Nk", LENGTHS)
def test_seen_counts_the_leading_keys(Nq, Nk):
    mask, sees = CausalMask(Nq, Nk), matrix(True, Nq, Nk)
    assert [mask.seen(i) for i in range(Nq)] == sees.sum(axis=1).tolist()
    assert FullMask().seen(0) is None


def test_alignment_is_bottom_right():
    np.testing.assert_array_equal(CausalMask(2, 4).visible(slice(0, 2), slice(0, 4)),
                                  [[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(CausalMask(4, 2).visible(slice(0, 4), slice(0, 2)),
                                  [[0, 0], [0, 0], [1, 0], [1, 1]])


@pytest.mark.parametrize("N", [0, 1, 5, 6, 64, 97])
@pytest.mark.parametrize("B", [1, 2, 5, 6, 32, 1000])
def test_tiles_cover_everything_once_in_order(N, B):
    cut = tiles(N, B)
    assert [i for t in cut for i in range(N)[t]] == list(range(N))
    assert len(cut) == -(-N // B) and all(t.stop - t.start == B for t in cut[:-1])
    assert all(0 <= t.start < t.stop <= N for t in cut)


@pytest.mark.parametrize("N, B, error, message", [
    (5, 0, ValueError, "B: expected .* got 0"), (5, -1, ValueError, "B: expected .* got -1"),
    (-1, 2, ValueError, "N: expected .* got -1"), (5.0, 2, TypeError, "N: expected .* got 5.0"),
    (5, 2.0, TypeError, "B: expected .* got 2.0"), (5, True, TypeError, "B: expected .* got True"),
])
def test_wrong_lengths_are_refused(N, B, error, message):
    with pytest.raises(error, match=message):
        tiles(N, B)
