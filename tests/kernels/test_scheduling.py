"""Who computes which query tile: counted against the masks, and dealt out without loss."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib.kernels.tile_order import START_UP, deal, order_tiles, tile_lengths
from flashlib.masks import mask_of, tiles

SIZES = st.integers(1, 70)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def load(hand, lengths):
    """Return how long a program needs, in key tiles, by the model of `deal`."""
    return sum(lengths[tile % len(lengths)] + START_UP for tile in hand)


@given(SIZES, SIZES, st.integers(1, 24), st.integers(1, 24), st.booleans())
def test_a_tile_visits_the_key_tiles_that_its_mask_shows(N_Q, N_K, tile_m, block_n, causal):
    mask = mask_of(causal, N_Q, N_K)
    expected = [max(1, sum(not mask.skips(rows, keys) for keys in tiles(N_K, block_n)))
                for rows in tiles(N_Q, tile_m)]
    assert tile_lengths(N_Q, N_K, tile_m, block_n, causal) == expected


@pytest.mark.parametrize("arguments, expected", [
    ((256, 256, 128, 64, True), [2, 4]), ((256, 256, 128, 64, False), [4, 4]),
    ((129, 256, 128, 64, True), [4, 4]), ((256, 100, 128, 64, True), [1, 2]),   # rows 0…155 see nothing
    ((1, 1, 128, 128, True), [1]),
])
def test_lengths_by_hand(arguments, expected):
    assert tile_lengths(*arguments) == expected


@given(st.integers(1, 9), LENGTHS, st.integers(1, 12))
def test_the_order_holds_every_tile_once_and_keeps_groups_of_heads_together(heads, lengths, at_once):
    order, count = order_tiles(heads, lengths, at_once), len(lengths)
    assert sorted(order) == list(range(heads * count))
    groups = [tile // count // at_once for tile in order]
    assert groups == sorted(groups)                         # one group after the other
    for _, group in itertools.groupby(order, key=lambda tile: tile // count // at_once):
        found = [(lengths[tile % count], tile // count) for tile in group]
        assert [length for length, _ in found] == sorted((x for x, _ in found), reverse=True)
        for _, alike in itertools.groupby(found, key=lambda pair: pair[0]):
            of_head = [head for _, head in alike]
            assert of_head == sorted(of_head)               # of equal tiles those of one head together


def test_the_order_by_hand():
    assert order_tiles(3, [1, 2], 2) == [1, 3, 0, 2, 5, 4]  # heads 0 and 1 hold tiles 0, 1 and 2, 3
    assert order_tiles(3, [1, 2], 9) == [1, 3, 5, 0, 2, 4]


@given(st.integers(1, 9), LENGTHS, st.integers(1, 12), st.integers(1, 20))
def test_dealing_loses_nothing_and_evens_out(heads, lengths, at_once, programs):
    order = order_tiles(heads, lengths, at_once)
    hands = deal(order, lengths, programs)
    assert len(hands) == programs
    assert sorted(itertools.chain(*hands)) == sorted(order)
    loads = [load(hand, lengths) for hand in hands]
    assert max(loads) - min(loads) <= max(lengths) + START_UP
    place = {tile: i for i, tile in enumerate(order)}
    assert all([place[tile] for tile in hand] == sorted(place[tile] for tile in hand) for hand in hands)


@given(LENGTHS, st.integers(1, 8))
def test_no_program_idles_while_tiles_are_left(lengths, programs):
    hands = deal(order_tiles(2, lengths, 2), lengths, min(programs, 2 * len(lengths)))
    assert all(hands)


@given(st.integers(1, 9), LENGTHS, st.integers(1, 12), st.integers(1, 20))
def test_the_same_shapes_are_dealt_the_same_way(heads, lengths, at_once, programs):
    first, second = (deal(order_tiles(heads, list(lengths), at_once), list(lengths), programs)
                     for _ in range(2))
    assert first == second


def test_longest_first_beats_the_order_of_the_rows():
    """Causal attention of 4,096 rows by 128: one program's share of 132 is close to the mean."""
    lengths = tile_lengths(4096, 4096, 128, 128, True)
    hands = deal(order_tiles(16, lengths, 16), lengths, 132)
    naive = [list(range(16 * len(lengths)))[i::132] for i in range(132)]

    def excess(hands):
        loads = [load(hand, lengths) for hand in hands]
        return max(loads) / (sum(loads) / len(loads))

    assert excess(hands) < 1.06 < 1.25 < excess(naive)
