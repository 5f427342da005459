"""Which key tiles a query tile visits in the Gluon kernels: plain numbers, against the masks."""

import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton.experimental.gluon")

from flashlib.kernels.gluon import backward_dkdv, backward_parts, parts
from flashlib.masks import Window, mask_of, tiles, visits

SIDES = st.none() | st.integers(0, 80)
SIZES = st.integers(1, 70)


def key_tiles(*arguments):
    """Run the device function on plain numbers."""
    plain = types.SimpleNamespace(cdiv=lambda n, d: -(-n // d), minimum=min, maximum=max)
    return types.FunctionType(parts.key_tiles.fn.__code__, {"gl": plain})(*arguments)


def require_tiles(found, mask, rows, block):
    """Raise AssertionError unless a query tile visits what it sees, and masks what a mask cuts."""
    begin, whole, cut, end = found
    visited = mask.key_tiles(rows, block)
    every = tiles(mask.Nk, block)
    assert every[begin:end] == (visited or every[:1])       # where no row sees a key: one tile
    steps = end - begin                                     # as `consumer` shares them out
    cut_right = min(max(end - cut, 0), steps)
    cut_left = min(max(whole - begin, 0), steps - cut_right)
    for keys in every[begin + cut_left:end - cut_right]:
        assert mask.visible(rows, keys) is None and keys.stop - keys.start == block
    for keys in (*every[begin:begin + cut_left], *every[end - cut_right:end]):
        assert not visited or mask.visible(rows, keys) is not None or keys.stop - keys.start < block


@given(SIZES, SIZES, st.integers(1, 24), st.integers(1, 24), SIDES, SIDES)
def test_a_window_visits_its_key_tiles_and_masks_what_it_cuts(N_Q, N_K, tile_m, block, left, right):
    mask, far = mask_of(False, N_Q, N_K, (left, right)), N_Q + N_K
    sides = tuple(far if side is None else min(side, far) for side in (left, right))
    lengths = visits(Window(left, right), N_Q, N_K, tile_m, block)
    for rows, length in zip(tiles(N_Q, tile_m), lengths, strict=True):
        found = key_tiles(rows.start, N_Q, N_K, sides, tile_m, block, False)
        require_tiles(found, mask, rows, block)
        assert found[3] - found[0] == max(1, length)        # what the order of tiles goes by


@given(SIZES, SIZES, st.integers(1, 24), st.integers(1, 24), st.booleans())
def test_causal_and_full_visit_their_key_tiles(N_Q, N_K, tile_m, block, causal):
    mask = mask_of(causal, N_Q, N_K)
    for rows in tiles(N_Q, tile_m):
        found = key_tiles(rows.start, N_Q, N_K, None, tile_m, block, causal)
        require_tiles(found, mask, rows, block)
        assert found[:2] == (0, 0)


def query_tiles(start, N_Q, N_K, window, block_m, block_n, causal):
    """Run the device function on plain numbers."""
    plain = types.SimpleNamespace(cdiv=lambda n, d: -(-n // d), minimum=min, maximum=max)
    sizes = types.SimpleNamespace(N_Q=N_Q, N_K=N_K, window=window)
    o = types.SimpleNamespace(BLOCK_M=block_m, BLOCK_N=block_n, IS_CAUSAL=causal)
    code = backward_dkdv.query_tiles.fn.__code__
    return types.FunctionType(code, {"gl": plain})(start, sizes, o)


@given(SIZES, SIZES, st.integers(1, 24), st.integers(1, 24), SIDES, SIDES, st.booleans())
def test_a_key_tile_is_visited_by_the_query_tiles_that_see_it(N_Q, N_K, block_m, block_n, left, right,
                                                              causal):
    mask = mask_of(True, N_Q, N_K) if causal else mask_of(False, N_Q, N_K, (left, right))
    far = N_Q + N_K
    window = None if causal or (left, right) == (None, None) else tuple(
        far if side is None else min(side, far) for side in (left, right))
    for keys in tiles(N_K, block_n):
        begin, end = query_tiles(keys.start, N_Q, N_K, window, block_m, block_n, causal)
        every = tiles(N_Q, block_m)
        seen = [keys in mask.key_tiles(rows, block_n) for rows in every]
        assert [begin <= i < end for i in range(len(every))] == seen


def place_of(pid, heads, count, together, last_first):
    """Run the device function on plain numbers."""
    plain = types.SimpleNamespace(minimum=min)
    code = backward_parts.place_of.fn.__code__
    return types.FunctionType(code, {"gl": plain})(pid, heads, count, together, last_first)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.booleans())
def test_every_tile_of_every_head_has_a_program_and_the_longest_begin(heads, count, together, last):
    places = [place_of(pid, heads, count, together, last) for pid in range(heads * count)]
    assert sorted(places) == [(h, t) for h in range(heads) for t in range(count)]
    for h in range(heads):
        mine = [t for head, t in places if head == h]
        assert mine == sorted(mine, reverse=last)
    assert {h for h, _ in places[:min(together, heads) * count]} == set(range(min(together, heads)))
