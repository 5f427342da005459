"""Masks against a brute-force matrix of booleans: who sees whom, and what that makes of a tile."""

import itertools

import numpy as np
import pytest

from flashlib.masks import Mask, Window, mask_of, tile_class, tiles, visits, window_of

LENGTHS = [(1, 0), (1, 1), (1, 7), (2, 3), (5, 0), (5, 1), (5, 5), (5, 9), (7, 2), (7, 7), (8, 5)]
WINDOWS = [None, (None, 0), (0, None), (0, 0), (2, 0), (0, 3), (1, 2), (3, 1), (7, 7), (None, 2),
           (2, None), (100, 100), (10**30, 0)]


def matrix(causal, Nq, Nk, window=None):
    """Return who sees whom by the definition: the last query lies on the last key."""
    left, right = window or (None, None)
    sees = np.ones((Nq, Nk), bool)
    for i, j in np.ndindex(Nq, Nk):
        behind = (Nk - 1 - j) - (Nq - 1 - i)               # how many keys j lies behind i's own
        if causal:
            sees[i, j] &= behind >= 0
        if left is not None:
            sees[i, j] &= behind <= left
        if right is not None:
            sees[i, j] &= -behind <= right
    return sees


def every_tile(Nq, Nk):
    return itertools.product((slice(a, b) for a in range(Nq) for b in range(a + 1, Nq + 1)),
                             (slice(a, b) for a in range(Nk) for b in range(a + 1, Nk + 1)))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_every_tile_agrees_with_the_matrix(causal, window):
    for Nq, Nk in LENGTHS:
        mask, sees = mask_of(causal, Nq, Nk, window), matrix(causal, Nq, Nk, window)
        for rows, keys in every_tile(Nq, Nk):
            part = sees[rows, keys]
            expected = "full" if part.all() else "partial" if part.any() else "skip"
            assert tile_class(mask, rows, keys) == expected
            assert mask.skips(rows, keys) == (not part.any())
            if part.any():
                visible = mask.visible(rows, keys)
                assert (visible is None) == part.all()
                np.testing.assert_array_equal(True if visible is None else visible, part)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_ranges_of_keys_and_of_rows_agree_with_the_matrix(window):
    """A tile of queries and a tile of keys each get the range they visit, and the range seen whole."""
    for Nq, Nk in LENGTHS:
        mask, sees = mask_of(False, Nq, Nk, window), matrix(False, Nq, Nk, window)
        for i in range(Nq):
            first, stop = mask.keys_of(i)
            assert np.flatnonzero(sees[i]).tolist() == list(range(first, stop))
        for rows in (slice(a, b) for a in range(Nq) for b in range(a + 1, Nq + 1)):
            assert_range(mask.key_range(rows), sees[rows])
        for keys in (slice(a, b) for a in range(Nk) for b in range(a + 1, Nk + 1)):
            assert_range(mask.row_range(keys), sees[:, keys].T)


def assert_range(found, part):
    """Hold (lo, whole_lo, whole_hi, hi) against a part of the matrix, (tile, range)."""
    lo, whole_lo, whole_hi, hi = found
    assert list(range(lo, hi)) == np.flatnonzero(part.any(axis=0)).tolist()
    assert list(range(whole_lo, whole_hi)) == np.flatnonzero(part.all(axis=0)).tolist()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("Br, Bc", [(1, 1), (2, 3), (3, 2), (4, 4), (16, 1), (1, 16)])
def test_visited_tiles_are_those_that_are_not_skipped(window, Br, Bc):
    for Nq, Nk in LENGTHS:
        mask, rows, keys = mask_of(False, Nq, Nk, window), tiles(Nq, Br), tiles(Nk, Bc)
        for r in rows:
            assert mask.key_tiles(r, Bc) == [k for k in keys if not mask.skips(r, k)]
        for k in keys:
            assert mask.row_tiles(k, Br) == [r for r in rows if not mask.skips(r, k)]
        assert visits(window_of(False, window), Nq, Nk, Br, Bc).tolist() == [
            len(mask.key_tiles(r, Bc)) for r in rows]


def test_the_description_serves_other_masks():
    """Two packed documents of 3 and 2 tokens, causal each: also one run of keys a row."""
    mask = Mask(np.array([0, 0, 0, 3, 3]), np.array([1, 2, 3, 4, 5]), 5)
    sees = np.tril(np.ones((5, 5), bool))
    sees[3:, :3] = False
    for rows, keys in every_tile(5, 5):
        part = sees[rows, keys]
        assert tile_class(mask, rows, keys) == (
            "full" if part.all() else "partial" if part.any() else "skip")
    assert mask.key_tiles(slice(3, 5), 3) == [slice(3, 5)]
    assert mask.row_tiles(slice(0, 3), 3) == [slice(0, 3)]


def test_a_mask_of_no_rows_has_nothing_to_mask():
    nobody = mask_of(True, 0, 4)
    assert nobody.visible(slice(0, 0), slice(0, 4)) is None
    assert nobody.skips(slice(0, 0), slice(0, 4)) and nobody.row_range(slice(0, 4)) == (0, 0, 0, 0)


def test_alignment_is_bottom_right():
    np.testing.assert_array_equal(mask_of(True, 2, 4).visible(slice(0, 2), slice(0, 4)),
                                  [[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(mask_of(True, 4, 2).visible(slice(0, 4), slice(0, 2)),
                                  [[0, 0], [0, 0], [1, 0], [1, 1]])
    np.testing.assert_array_equal(mask_of(False, 3, 5, (1, 0)).visible(slice(0, 3), slice(0, 5)),
                                  [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]])


def test_a_window_is_a_value():
    assert Window() == window_of(False) == Window(None, None)
    assert Window(None, 0) == window_of(True) == window_of(False, (None, 0))
    assert window_of(True, (3, 5)) == window_of(True, (3, None)) == window_of(True, [3, 0])
    assert window_of(True, (3, 5)) == Window(3, 0) == window_of(False, Window(3, 0))
    assert hash(Window(np.int64(3), 0)) == hash(Window(3, 0)) and type(Window(np.int64(3)).left) is int
    with pytest.raises(AttributeError):
        Window().left = 1
    assert Window(1, 0).keys_of(2, Nq=4, Nk=5) == (2, 4)


@pytest.mark.parametrize("window, error, message", [
    ((-1, 0), ValueError, "for left a whole number from 0 or None, got -1"),
    ((0, -3), ValueError, "for right a whole number from 0 or None, got -3"),
    ((1.0, 0), TypeError, "for left .* got 1.0"), ((0, "1"), TypeError, "for right .* got '1'"),
    ((True, 0), TypeError, "for left .* got True"), ((0, False), TypeError, "for right .* got False"),
    ((float("nan"), 0), TypeError, "for left .* got nan"),
    (3, TypeError, r"None or \(left, right\), .* got 3"), ((3,), TypeError, "None or .* got \\(3,\\)"),
    ((1, 2, 3), TypeError, "None or .* got"), ("ab", TypeError, "None or .* got 'ab'"),
    ({1, 2}, TypeError, "None or .* got {1, 2}"),
])
def test_wrong_windows_are_refused(window, error, message):
    for call in (lambda: window_of(False, window), lambda: mask_of(True, 4, 4, window)):
        with pytest.raises(error, match=f"^window: expected {message}"):
            call()


@pytest.mark.parametrize("causal", ["x", 1, None])
def test_causal_is_a_flag(causal):
    with pytest.raises(TypeError, match=f"^causal: expected True or False, got {causal!r}"):
        mask_of(causal, 4, 4)


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
