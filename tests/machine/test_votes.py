"""Votes, conversions and parts of tiles: what v4 asked of the machine, and what stays forbidden."""

import numpy as np
import pytest

from flashlib import Machine, Traffic
from flashlib.errors import HBMReadError


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def Q(machine):
    return machine.hbm(Q=np.arange(24.0).reshape(6, 4))


def test_a_vote_branches_counts_and_is_traced(machine, Q):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        counted, used = machine.traffic, sram.used_bytes
        assert sram.vote("large", slice(2, 8), tile > 20) is True
        assert sram.vote("large", slice(2, 8), tile > 99) is False
        assert sram.vote("other", slice(0, 6), tile[:, 0] > 0) is True
        assert machine.traffic == counted + Traffic(vector_flops=2 * 24 * 2 + 2 * 6)
    assert machine.trace.votes("large") == [((2, 8), 3), ((2, 8), 0)]
    assert machine.trace.votes("other") == [((0, 6), 5)] and machine.trace.votes("none") == []
    votes = [event for event in machine.trace if event.op == "vote"]
    assert [(e.kernel, e.bytes, e.sram_bytes) for e in votes] == [("k", 0, used)] * 3
    assert machine.trace.hbm_bytes() == {"Q": 48}


def test_a_vote_without_a_record_still_counts():
    machine = Machine(record=False)
    Q = machine.hbm(Q=np.ones((3, 2)))
    with machine.kernel("k") as sram:
        assert sram.vote("any", slice(0, 3), sram.load(Q) > 0)
    assert machine.traffic.vector_flops == 12 and len(machine.trace) == 0


@pytest.mark.parametrize("condition", [True, np.ones(3, bool), None, "yes"], ids=str)
def test_only_tiles_of_booleans_vote(machine, Q, condition):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        for wrong in (condition, tile):
            with pytest.raises(TypeError, match=r"condition: expected a tile of booleans"):
                sram.vote("any", slice(0, 6), wrong)
    assert machine.trace.votes("any") == []


def test_conversions_count_and_views_are_free(machine, Q):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        whole = (tile + 0.5).astype(np.int64)
        assert machine.traffic.vector_flops == 2 * 24 and whole.dtype == np.int64
        np.testing.assert_array_equal(sram.peek(whole), np.arange(24).reshape(6, 4))
        bits = tile.view(np.int64)
        assert machine.traffic.vector_flops == 2 * 24
        np.testing.assert_array_equal(sram.peek(bits.view(np.float64)), sram.peek(tile))
        np.testing.assert_array_equal(sram.peek(bits + (whole << 52)).view(np.float64)[0, 1:3],
                                      [2.0, 8.0])                  # 1·2¹, 2·2²
        with pytest.raises(TypeError, match=r"dtype: expected a type of 8 bytes, got"):
            tile.view(np.int32)
        sram.free(tile)
        for use in (lambda: tile.astype(np.float32), lambda: bits.view(np.float64)):
            with pytest.raises(HBMReadError, match=r"freed"):
                use()


def test_part_of_a_tile_is_computed_in_the_room_of_that_tile(machine, Q):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        part = np.exp(tile[:, 1:3]) + tile[:, 1:3]
        assert part.shape == (6, 2) and machine.traffic.exps == 12
        tile[:, 1:3] = part
        for larger in (lambda: tile[:, None, :2] * tile[None, :, :2], lambda: tile[:3] @ tile[3:].T,
                       lambda: tile[:, :1] * tile[:1, :2]):
            with pytest.raises(HBMReadError, match=r"has no room"):
                larger()
        sram.free(tile)
        with pytest.raises(HBMReadError, match=r"Q was freed"):
            part + 1
