"""A block with warps counts to the byte, lets no warp see another's registers, and finds races."""

import random

import numpy as np
import pytest

import flashlib as fl
from flashlib.algorithms import warp_partition
from flashlib.machine.thread_block import BlockCost, RegisterSpill, ThreadBlock, WarpRace, WarpReadError
from flashlib.models import warp_traffic as closed_form
from tests.cases import qkv

PROGRAMS = ("split_k", "split_q")
SHAPES = [(8, 16, 4, 8, 4), (16, 256, 8, None, 4), (7, 13, 3, 5, 4), (3, 5, 2, 5, 4),
          (1, 1, 1, 1, 8), (5, 9, 2, 4, 1), (32, 48, 16, 16, 3)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("Br", "Nk", "d", "Bc", "warps"), SHAPES)
def test_both_partitions_give_attention(program, Br, Nk, d, Bc, warps):
    Q, K, V = qkv(8, Br, Nk, d)
    for scale in (None, 3.0):
        O, lse = getattr(warp_partition, program)(Q, K, V, Bc=Bc, scale=scale,
                                                  block=ThreadBlock(warps))
        want_O, want_lse = fl.standard_attention(Q, K, V, scale=scale)
        np.testing.assert_allclose(O, want_O, rtol=0, atol=1e-13)
        np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_count_is_the_closed_form_for_every_shape(program):
    rng = random.Random(8)
    for _ in range(300):
        Br, Nk, d, warps = (rng.randint(1, n) for n in (20, 30, 6, 9))
        Bc = rng.choice([None, rng.randint(1, 30)])
        sizes = [rng.randint(1, 8) for _ in range(3)]
        block = ThreadBlock(warps, None, *sizes)
        getattr(warp_partition, program)(*qkv(0, Br, Nk, d), Bc=Bc, block=block)
        names = ("element_bytes", "stats_bytes", "accumulator_bytes")
        assert block.cost == getattr(closed_form, program)(
            Br=Br, Nk=Nk, d=d, Bc=Bc, warps=warps, **dict(zip(names, sizes, strict=True)))


def test_split_q_exchanges_nothing_and_waits_for_nobody():
    block = ThreadBlock(4)
    warp_partition.split_q(*qkv(0, 16, 64, 8), Bc=16, block=block)
    assert (block.cost.barriers, block.cost.exchanged_bytes, block.cost.shared_write_bytes) == (0,) * 3
    assert set(block.cost.by_tensor) == {"Q", "K", "V"}


def test_split_k_waits_twice_for_every_tile():
    block = ThreadBlock(4)
    warp_partition.split_k(*qkv(0, 16, 64, 8), Bc=16, block=block)
    assert block.cost.barriers == 2 * 4
    assert block.cost.exchanged_bytes > block.cost.shared_bytes / 2


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_no_barrier_of_split_k_can_be_left_out(number, monkeypatch):
    """Each of the four barriers of two steps is needed: without it the block finds a race."""
    calls, barrier = [], ThreadBlock.barrier
    monkeypatch.setattr(ThreadBlock, "barrier", lambda block: calls.append(1) or (
        len(calls) != number and barrier(block)))
    with pytest.raises(WarpRace, match="since the last barrier"):
        warp_partition.split_k(*qkv(0, 8, 16, 4), Bc=8, block=ThreadBlock(4))


def two_warps():
    block = ThreadBlock(2)
    K = block.shared(K=np.arange(12.0).reshape(6, 2))
    room = block.buffer("x", (2, 2))
    for warp in block.each:
        warp.tile("T", 2, 2)
    return block, K, room, *block.each


def test_what_was_not_loaded_cannot_be_read():
    _, K, _, a, b = two_warps()
    with pytest.raises(WarpReadError, match=r"warp\.load\(K"):
        _ = K @ K.T
    with pytest.raises(WarpReadError, match=r"warp\.load\(K"):
        np.asarray(K)
    mine = a.load(K[:2])
    with pytest.raises(WarpReadError, match="warp 1 cannot see the registers of warp 0"):
        _ = b.load(K[2:4]) + mine
    with pytest.raises(WarpReadError, match="never loaded"):
        _ = mine + np.ones((2, 2))
    with pytest.raises(WarpReadError, match="peek"):
        np.asarray(mine)
    np.testing.assert_array_equal(a.block.peek(mine), [[0, 1], [2, 3]])


def test_a_value_needs_registers_of_its_shape():
    _, K, _, a, _ = two_warps()
    with pytest.raises(WarpReadError, match=r"shape \(3, 3\) has no registers"):
        _ = a.load(K[:3]) @ a.load(K[3:]).T
    tile = a.tile("S", 3, 3)
    tile[...] = a.load(K[:3]) @ a.load(K[3:]).T
    a.free(tile)
    with pytest.raises(ValueError, match="freed already"):
        a.free(tile)


def test_a_race_is_found_whoever_comes_first():
    block, _, room, a, b = two_warps()
    a.store(a.load(two := block.shared(y=np.ones((2, 2)))) * 2.0, room)
    with pytest.raises(WarpRace, match="warp 1 reads x where warp 0 wrote"):
        b.load(room)
    with pytest.raises(WarpRace, match="warp 1 writes x where warp 0 wrote"):
        b.store(b.load(two), room)
    a.load(room)                                           # a warp may read what it wrote itself
    block.barrier()
    b.load(room)
    with pytest.raises(WarpRace, match="warp 0 writes x where warp 1 read"):
        a.store(a.load(two), room)
    a.load(room)
    with pytest.raises(WarpRace, match="warp 1 writes x where several warps read"):
        b.store(b.load(two), room)
    block.barrier()
    b.store(b.load(two), room)


def test_other_places_are_no_race():
    block, _, room, a, b = two_warps()
    y = block.shared(y=np.ones((1, 2)))
    for warp in (a, b):
        warp.tile("row", 1, 2)
    a.store(a.load(y), room[0:1])
    b.store(b.load(y), room[1:2])
    with pytest.raises(WarpRace):
        a.load(room[1:2])


def test_inputs_are_read_only_and_shapes_must_match():
    block, K, room, a, _ = two_warps()
    with pytest.raises(ValueError, match="no warp may overwrite"):
        a.store(a.load(K[:2]), K[:2])
    with pytest.raises(ValueError, match=r"expected shape \(2, 2\)"):
        a.store(a.load(K[:3]), room)
    with pytest.raises(WarpReadError, match="this block's shared memory"):
        ThreadBlock(1).each[0].load(K)
    with pytest.raises(TypeError, match="slices and whole numbers"):
        K[[0, 1]]
    with pytest.raises(ValueError, match="kind: expected one of"):
        block.buffer("z", (1,), kind="float")


def test_registers_are_finite():
    """At d = 128 the accumulators of split-K spill where those of split-Q have room."""
    Q, K, V = qkv(0, 128, 64, 128)
    warp_partition.split_q(Q, K, V, block=ThreadBlock(4, ThreadBlock.REGISTERS))
    with pytest.raises(RegisterSpill, match=r"O partial \(128, 128\): 65,536 B"):
        warp_partition.split_k(Q, K, V, block=ThreadBlock(4, ThreadBlock.REGISTERS))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_register_short_spills(program):
    Q, K, V = qkv(0, 8, 16, 4)
    need = getattr(closed_form, program)(Br=8, Nk=16, d=4, warps=2).register_peak_bytes
    run = getattr(warp_partition, program)
    run(Q, K, V, block=ThreadBlock(2, need))
    with pytest.raises(RegisterSpill, match="would spill"):
        run(Q, K, V, block=ThreadBlock(2, need - 1))


@pytest.mark.parametrize("program", PROGRAMS)
def test_refusals_name_the_argument(program):
    Q, K, V = qkv(0, 4, 8, 2)
    run = getattr(warp_partition, program)
    with pytest.raises(TypeError, match="block: expected a ThreadBlock"):
        run(Q, K, V, block=4)
    with pytest.raises(ValueError, match="Bc: expected a whole number"):
        run(Q, K, V, Bc=0)
    with pytest.raises(ValueError, match="at least one query"):
        run(Q[:0], K, V)
    with pytest.raises(ValueError, match="warps: expected a whole number"):
        ThreadBlock(0)
    with pytest.raises(ValueError, match="Br: expected a whole number"):
        getattr(closed_form, program)(Br=0, Nk=1, d=1)


def test_a_cost_adds_up():
    cost = BlockCost.of({"Q": (3, 0), "O partial": (4, 5), "K": (0, 0)}, ("O partial",), 2)
    assert (cost.shared_read_bytes, cost.shared_write_bytes, cost.shared_bytes) == (7, 5, 12)
    assert cost.exchanged_bytes == 9 and set(cost.by_tensor) == {"Q", "O partial"}
