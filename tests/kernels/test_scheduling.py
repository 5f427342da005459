"""Who computes which query tile: counted against the masks, and assigned without loss."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib.kernels import scheduling
from flashlib.kernels.scheduling import HALVES_TO_START, assign, order_tiles, tile_lengths
from flashlib.masks import Window, mask_of, tiles

START_UP = HALVES_TO_START / 2

SIZES = st.integers(1, 70)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def load(hand, lengths):
    """Return how long a program needs, in key tiles, by the model of `assign`."""
    return sum(lengths[tile % len(lengths)] + START_UP for tile in hand)


def deal(order, lengths, programs):
    """Return the tiles of each program."""
    owner = assign(np.array(order), np.array(lengths), programs)
    return [np.array(order)[owner == program].tolist() for program in range(programs)]


WINDOWS = st.builds(Window, *[st.none() | st.integers(0, 40)] * 2)


@given(SIZES, SIZES, st.integers(1, 24), st.integers(1, 24), WINDOWS)
def test_a_tile_visits_the_key_tiles_that_its_mask_shows(N_Q, N_K, tile_m, block_n, window):
    mask = mask_of(False, N_Q, N_K, (window.left, window.right))
    expected = [max(1, sum(not mask.skips(rows, keys) for keys in tiles(N_K, block_n)))
                for rows in tiles(N_Q, tile_m)]
    assert tile_lengths(window, N_Q, N_K, tile_m, block_n).tolist() == expected


@pytest.mark.parametrize("arguments, expected", [
    ((256, 256, 128, 64, True), [2, 4]), ((256, 256, 128, 64, False), [4, 4]),
    ((129, 256, 128, 64, True), [4, 4]), ((256, 100, 128, 64, True), [1, 2]),   # rows 0…155 see nothing
    ((1, 1, 128, 128, True), [1]),
])
def test_lengths_by_hand(arguments, expected):
    *sizes, causal = arguments
    window = Window(None, 0) if causal else Window()
    assert tile_lengths(window, *sizes).tolist() == expected


@given(st.integers(1, 9), LENGTHS, st.integers(1, 12))
def test_the_order_holds_every_tile_once_and_keeps_groups_of_heads_together(heads, lengths, parts):
    order, count = order_tiles(heads, lengths, parts).tolist(), len(lengths)
    assert sorted(order) == list(range(heads * count))
    groups = [tile // count * parts // heads for tile in order]
    assert groups == sorted(groups)                         # one group after the other
    sizes = [groups.count(group) // count for group in set(groups)]
    assert len(sizes) == min(parts, heads) and max(sizes) - min(sizes) <= 1
    for _, group in itertools.groupby(order, key=lambda tile: tile // count * parts // heads):
        found = [(lengths[tile % count], tile // count) for tile in group]
        assert [length for length, _ in found] == sorted((x for x, _ in found), reverse=True)
        for _, alike in itertools.groupby(found, key=lambda pair: pair[0]):
            of_head = [head for _, head in alike]
            assert of_head == sorted(of_head)               # of equal tiles those of one head together


def test_the_order_by_hand():
    # heads 0 and 1 hold tiles 0, 1 and 2, 3
    assert order_tiles(3, [1, 2], 2).tolist() == [1, 3, 0, 2, 5, 4]
    assert order_tiles(3, [1, 2], 1).tolist() == [1, 3, 5, 0, 2, 4]
    assert order_tiles(6, [1], 2, 2).tolist() == [0, 1, 2, 3, 4, 5]
    assert order_tiles(6, [1, 2], 2, 2).tolist() == [1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 8, 10]


@given(st.integers(1, 9), LENGTHS, st.integers(1, 12), st.integers(1, 20))
def test_assigning_loses_nothing_and_evens_out(heads, lengths, at_once, programs):
    order = order_tiles(heads, lengths, at_once).tolist()
    hands = deal(order, lengths, programs)
    assert len(hands) == programs
    assert sorted(itertools.chain(*hands)) == sorted(order)
    loads = [load(hand, lengths) for hand in hands]
    assert max(loads) - min(loads) <= max(lengths) + START_UP
    place = {tile: i for i, tile in enumerate(order)}
    assert all([place[tile] for tile in hand] == sorted(place[tile] for tile in hand) for hand in hands)


@given(LENGTHS, st.integers(1, 8))
def test_no_program_idles_while_tiles_are_left(lengths, programs):
    hands = deal(order_tiles(2, lengths, 1), lengths, min(programs, 2 * len(lengths)))
    assert all(hands)


@given(st.integers(1, 9), LENGTHS, st.integers(1, 12), st.integers(1, 20))
def test_the_same_shapes_are_assigned_the_same_way(heads, lengths, at_once, programs):
    first, second = (deal(order_tiles(heads, list(lengths), at_once), list(lengths), programs)
                     for _ in range(2))
    assert first == second


def test_longest_first_beats_the_order_of_the_rows():
    """Causal attention of 4,096 rows by 128: one program's share of 132 is close to the mean."""
    lengths = tile_lengths(Window(None, 0), 4096, 4096, 128, 128)
    hands = deal(order_tiles(16, lengths, 1), lengths, 132)
    naive = [list(range(16 * len(lengths)))[i::132] for i in range(132)]

    def excess(hands):
        loads = [load(hand, lengths) for hand in hands]
        return max(loads) / (sum(loads) / len(loads))

    assert excess(hands) < 1.06 < 1.25 < excess(naive)


@given(st.integers(1, 9), LENGTHS, st.integers(1, 12), st.integers(1, 20))
def test_the_assignment_is_that_of_list_scheduling(heads, lengths, at_once, programs):
    """One number for time and program orders as the pair does, also where programs are free at once."""
    order = order_tiles(heads, lengths, at_once).tolist()
    free, owners = [(0.0, program) for program in range(programs)], []
    for tile in order:
        time, program = heapq.heappop(free)
        owners.append(program)
        heapq.heappush(free, (time + lengths[tile % len(lengths)] + START_UP, program))
    assert assign(np.array(order), np.array(lengths), programs).tolist() == owners


def table_of(B, H, N_Q, N_K, causal, programs, group=1):
    window = Window(None, 0) if causal else Window()
    return scheduling.order_table(*scheduling.shape_of_order(
        window, B, H, group, N_Q, N_K, 128, 128, 64, programs))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 700), st.integers(1, 700), st.booleans(),
       st.none() | st.integers(1, 9))
def test_the_table_gives_each_tile_to_one_program(B, H, N_Q, N_K, causal, programs):
    table, found = table_of(B, H, N_Q, N_K, causal, programs), []
    tiles_of_all = B * H * -(-N_Q // 128)
    assert table.dtype == np.int32 and table.flags.c_contiguous and table.shape[2] == 4
    assert table.shape[0] == min(programs or tiles_of_all, tiles_of_all)
    for (count, *_), *hand in table.tolist():
        # the kernel reads one entry behind its last tile's, which must be a tile that exists
        assert 1 <= count < len(hand) and not any(map(any, hand[count:]))
        found += hand[:count]
    assert sorted(found) == [[b, h, row, 0] for b in range(B) for h in range(H)
                             for row in range(0, N_Q, 128)]


@pytest.mark.parametrize("N_Q", [1, 100])
def test_a_sequence_that_grows_by_a_key_keeps_its_table(N_Q):
    """A decode step has one tile a head, all as long: who comes when says nothing of how long."""
    tables = {id(table_of(2, 8, N_Q, N_K, causal, 4)) for N_K in range(2000, 2050)
              for causal in (False, True)}
    assert len(tables) == 1


@pytest.mark.parametrize(("B", "H", "group", "N", "D", "tile_m"), [
    (4, 8, 1, 4096, 192, 128), (4, 16, 1, 3001, 128, 192), (2, 40, 1, 5000, 128, 192),
    (1, 13, 1, 16384, 128, 192), (2, 32, 4, 4096, 128, 192), (1, 40, 4, 4096, 128, 192)])
def test_the_last_heads_fill_the_sms(B, H, group, N, D, tile_m):
    """Groups of heads are alike: a last one of one or two heads had up to a fifth of the time."""
    table = scheduling.order_table(*scheduling.shape_of_order(
        Window(None, 0), B, H, group, N, N, 2 * D, tile_m, 64, 132))
    lengths = tile_lengths(Window(None, 0), N, N, tile_m, 64)
    loads = [load([row // tile_m for _, _, row, _ in hand[:count]], lengths)
             for (count, *_), *hand in table.tolist()]
    assert max(loads) < 1.04 * sum(loads) / len(loads)


@pytest.mark.parametrize(("N", "group", "groups"), [
    (256, 1, 8), (512, 4, 8), (1024, 1, 8), (4096, 1, 4), (16384, 1, 4)])
def test_heads_of_few_tiles_go_side_by_side_in_small_groups(N, group, groups):
    """Two tiles for each program, so that Q and O stay in L2 as K and V do."""
    B, H = 2**18 // (16 * N) or 1, 16
    made = scheduling.shape_of_order(Window(None, 0), B, H, group, N, N, 256, 128, 128, 132)
    assert made[4:6] == (groups, group)


def test_many_tiles_are_handed_out_in_turn(monkeypatch):
    monkeypatch.setattr(scheduling, "MANY_TILES", 10)
    scheduling.order_table.cache_clear()
    table = table_of(2, 4, 300, 256, True, 4)
    scheduling.order_table.cache_clear()
    hands = [hand[:count] for (count, *_), *hand in table.tolist()]
    assert sorted(itertools.chain(*hands)) == [[b, h, row, 0] for b in range(2) for h in range(4)
                                               for row in (0, 128, 256)]
    assert {len(hand) for hand in hands} == {6}
