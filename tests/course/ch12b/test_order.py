"""The simulated order is the kernel's own, and the schedules add up."""

import itertools
from types import SimpleNamespace

import pytest

from flashlib.course.ch12b import order as orders


@pytest.mark.parametrize("causal", [False, True])
def test_walk_and_turns_are_the_kernels(causal):
    """Of every key tile, from `walk_of` and `turn_of` themselves, run by the interpreter."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    gl = pytest.importorskip("triton.experimental.gluon").language
    from flashlib.interpreter.run import Translator
    from flashlib.interpreter.tasks import Program
    from flashlib.interpreter.values import Tensor
    from flashlib.kernels.gluon import backward_fused
    from flashlib.kernels.gluon.meanings import meaning_of

    def whole(n, kind=gl.int32):
        return Tensor(np.int64(n), kind)

    translate = Translator(Program("late", (0, 1)), meaning_of)
    walk_of, turn_of, seat_of = (translate.function(getattr(backward_fused, name).fn)
                                 for name in ("walk_of", "turn_of", "seat_of"))
    o = SimpleNamespace(BLOCK_M=64, BLOCK_N=128, IS_CAUSAL=causal, RAGGED=False)
    for tiles in (1, 2, 3, 8, 32):
        sizes = SimpleNamespace(N_Q=whole(128 * tiles), N_K=whole(128 * tiles), window=None)
        for tile in range(tiles):
            begin, end, start, _ = map(int, walk_of(whole(tile), whole(tiles), sizes, o))
            theirs = []
            for j in range(end - begin):
                around = start + j >= end
                m = start + j - (end - begin) * around
                turns = [int(turn_of(whole(m), whole(tile), whole(tiles), whole(end),
                                     Tensor(around, gl.int1),
                                     (whole(0), whole(tiles), whole(rising)), sizes, o))
                         for rising in range(1 + causal)]
                assert turns[1:] == [tile] * causal         # as `simulate` has it in heads that rise
                theirs.append((m, turns[0], around))
            assert theirs == [tuple(v) for v in orders.apart(tile, tiles, causal)]
        for beside, rising in ((1, 0), (3, 0), (2, 4 * causal)):
            seats = [seat_of(*map(whole, (n, 5, tiles, beside, rising, 1)), o)
                     for n in range(5 * tiles)]
            assert [(int(head), int(tile)) for head, tile, _ in seats] == list(
                orders.numbers(tiles, 5, beside, rising))
            assert all(bool(int(wave[2])) == (int(head) >= 5 - rising) for head, _, wave in seats)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sms", [1, 3, 8, 100])
@pytest.mark.parametrize("order", ["apart", "together", "unordered"])
def test_a_safe_order_ends_on_any_number_of_sms(order, sms, causal):
    tiles, heads = 6, 5
    s = orders.simulate(order, tiles=tiles, heads=heads, sms=sms, hand=0.7, causal=causal)
    assert not s.stuck
    pairs = sum(2 * tiles - 2 * j if causal else 2 * tiles for j in range(tiles))
    assert len(s.steps) == heads * pairs and 0 <= s.idle < 1
    places = {(x.head, x.tile, x.visit.m) for x in s.steps}
    assert len(places) == len(s.steps)
    for sm in range(sms):                                   # one thing at a time, in order
        mine = sorted((x.start, x.stop) for x in s.steps if x.sm == sm)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(mine))
    turns = {}
    for x in s.steps:
        at = x.head, x.visit.m, x.visit.second
        turns.setdefault(at, []).append((x.adds, x.added, x.visit.turn))
    if order != "unordered":
        for adds in turns.values():                         # one after the other, in the turns' order
            adds.sort()
            assert [turn for _, _, turn in adds] == list(range(len(adds)))
            assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(adds))


def test_what_the_chapter_says_of_eight_programs():
    """Together the last one waits (T − 1) hand-overs; apart nobody does, up to two steps."""
    for hand in (0, 0.5, 1, 2):
        together = orders.simulate("together", tiles=8, sms=8, hand=hand)
        assert together.length == 16 + (7 * hand if hand >= 0 else 0) + hand
        apart = orders.simulate("apart", tiles=8, sms=8, hand=hand)
        assert apart.length == orders.simulate("unordered", tiles=8, sms=8, hand=hand).length
        assert apart.length == 16 + hand
    assert orders.simulate("apart", tiles=8, sms=8, hand=2.5).length > 16 + 2.5


@pytest.mark.parametrize("order", ["one_ring", "first_key_first"])
def test_an_unsafe_order_hangs_where_an_sm_is_missing(order):
    assert not orders.simulate(order, tiles=8, sms=8).stuck
    found = orders.simulate(order, tiles=8, sms=7)
    assert len(found.stuck) == 7


def test_heads_that_rise_shorten_the_tail():
    options = {"tiles": 16, "heads": 20, "sms": 33, "causal": True, "hand": 0.5}
    risen = orders.simulate("apart", rising=5, **options)
    assert not risen.stuck and risen.idle < orders.simulate("apart", **options).idle
    for sms in (1, 2, 7):
        assert not orders.simulate("apart", **options | {"sms": sms, "rising": 20}).stuck
