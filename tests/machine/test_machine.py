"""The machine's honesty: what is not loaded cannot be read, and what is not declared has no room."""

import math
import operator

import numpy as np
import pytest

from flashlib import Machine, Traffic
from flashlib.errors import HBMReadError
from flashlib.machine.thread_block import ThreadBlock


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def Q(machine):
    return machine.hbm(Q=np.arange(24.0).reshape(6, 4))


READS = {
    "np.asarray": np.asarray,
    "np.array": np.array,
    "np.copy": np.copy,
    "np.sum": np.sum,
    "np.max": np.max,
    "np.einsum": lambda a: np.einsum("ij->i", a),
    "np.dot": lambda a: np.dot(a, a),
    "np.matmul": lambda a: np.matmul(a, a),
    "np.exp": np.exp,
    "np.add.reduce": np.add.reduce,
    "np.add.at": lambda a: np.add.at(np.zeros(6), [0], a),
    "np.where": lambda a: np.where(True, a, 0),
    "np.concatenate": lambda a: np.concatenate([a, a]),
    "np.transpose": np.transpose,
    "np.frompyfunc": lambda a: np.frompyfunc(float, 1, 1)(a),
    "np.copyto": lambda a: np.copyto(np.zeros((6, 4)), a),
    "np.full": lambda a: np.full((6, 4), a),
    "np.vdot": lambda a: np.vdot(a, a),
    "np.linalg.norm": np.linalg.norm,
    "np.array_equal": lambda a: np.array_equal(a, a),
    "np.vectorize": lambda a: np.vectorize(float)(a),
    "np.fromiter": lambda a: np.fromiter(a, float),
    "ndarray +": lambda a: np.zeros((6, 4)) + a,
    "ndarray @": lambda a: np.zeros((2, 6)) @ a,
    "ndarray +=": lambda a: operator.iadd(np.zeros((6, 4)), a),
    "ndarray[...] =": lambda a: operator.setitem(np.zeros((6, 4)), ..., a),
    "float": float,
    "int": int,
    "complex": complex,
    "math.exp": math.exp,
    "memoryview": memoryview,
    "bytes": bytes,
    "list of floats": lambda a: [float(x) for row in a for x in row],
    "format": lambda a: format(a, ".3f"),
}
HBM_ONLY = {
    "+": lambda a: a + 1, "r-": lambda a: 1 - a, "@": lambda a: a @ a, "-": operator.neg,
    "==": lambda a: a == 0, "<": lambda a: a < 0, "+=": lambda a: operator.iadd(a, 1),
    "**": lambda a: a**2, "abs": abs, "list": list, "max": max, "in": lambda a: 1.0 in a,
    "unpack": lambda a: [*a], "sum": sum, "bool": bool, "not": operator.not_,
}


@pytest.mark.parametrize("read", [pytest.param(f, id=n) for n, f in (READS | HBM_ONLY).items()])
def test_hbm_cannot_be_read_except_by_a_load(machine, Q, read):
    with machine.kernel("thief"):
        for address in (Q, Q[1:3], Q[:, :1]):
            with pytest.raises(TypeError):
                read(address)
    assert machine.traffic == Traffic()


@pytest.mark.parametrize("index", [0, -1, (0, 0), (slice(2), 1), [0, 1], np.array([0]), slice(0, 6, 2),
                                   slice(None, None, -1), None, "K", np.ones(6, bool)], ids=str)
def test_hbm_is_addressed_by_ranges_only(Q, index):
    with pytest.raises(TypeError, match=r"Q: address a range of HBM by slices"):
        Q[index]


def test_no_memory_takes_a_masked_array(machine):
    """Its mask would be lost without a word."""
    for place in (machine.hbm, ThreadBlock().shared):
        with pytest.raises(TypeError, match=r"^X: expected a plain NumPy array, got MaskedArray"):
            place(X=np.ma.masked_less(np.ones((2, 2)), 0))


def test_an_address_knows_where_it_lies_and_reads_nothing(machine, Q):
    assert (Q.shape, Q[2:5, 1:3].shape, Q[2:5][1:].regions) == ((6, 4), (3, 2), ((3, 5), (0, 4)))
    assert Q[4:99].shape == (2, 4) and Q[5:3].shape == (0, 4)
    assert "0.0" not in repr(Q) and machine.traffic == Traffic()


@pytest.mark.parametrize("read", [pytest.param(f, id=n) for n, f in READS.items()
                                  if n not in ("np.matmul", "np.exp", "np.where")])
def test_a_tile_does_not_turn_into_an_array_behind_the_counter(machine, Q, read):
    with machine.kernel("thief") as sram:
        tile = sram.load(Q)
        counted = machine.traffic
        with pytest.raises((TypeError, ValueError)):
            read(tile)
        assert machine.traffic in (counted, counted + Traffic(vector_flops=24))


def test_a_tile_has_no_truth_value(machine, Q):
    with machine.kernel("k") as sram:
        tile = sram.load(Q[:1, :1])
        with pytest.raises(HBMReadError, match=r"no truth value"):
            if tile > 0:
                pass


@pytest.mark.parametrize("operand", [np.ones((6, 4)), np.ones(4), np.array(1.0), [1.0] * 4, "x",
                                     np.ones((6, 4), int), np.ma.ones((6, 4)), None, 1j], ids=str)
def test_an_operand_that_was_never_loaded_is_refused(machine, Q, operand):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        attempts = [lambda: tile + operand, lambda: operand * tile, lambda: np.maximum(tile, operand),
                    lambda: np.where(True, tile, operand), lambda: operator.iadd(tile, operand),
                    lambda: operator.setitem(tile, ..., operand),
                    lambda: sram.tile("x", 6, 4, fill=operand),
                    lambda: sram.store(operand, machine.hbm_empty("O", (6, 4)))]
        for attempt in attempts:
            with pytest.raises(TypeError):
                attempt()
        np.testing.assert_array_equal(sram.peek(tile), np.arange(24.0).reshape(6, 4))


def test_an_address_in_hbm_is_no_operand_either(machine, Q):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        for attempt in (lambda: tile + Q, lambda: Q + tile, lambda: tile @ Q, lambda: np.add(Q, tile),
                        lambda: operator.setitem(tile, ..., Q), lambda: sram.store(Q, Q),
                        lambda: np.add(tile, 1, out=Q)):
            with pytest.raises(TypeError):
                attempt()


def test_numbers_and_masks_are_operands(machine, Q):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        for number in (2, 2.0, np.float32(2), np.int64(2), True, np.tril(np.ones((6, 4), bool))):
            sram.peek(tile * number)
        assert machine.traffic.vector_flops == 6 * 24


def test_freed_tiles_and_their_views_cannot_be_used(machine, Q):
    with machine.kernel("k") as sram:
        room = sram.tile("room", 4, 6)
        tile = sram.load(Q)
        views = [tile, tile.T, tile[1:3], tile[:, None], tile.T[0], tile[...]]
        sram.free(tile)
        for view in views:
            for use in (lambda v=view: v + 1, lambda v=view: v.sum(axis=0), lambda v=view: v.T,
                        lambda v=view: v[0], lambda v=view: room.dot(v), lambda v=view: sram.peek(v),
                        lambda v=view: operator.setitem(room, ..., v)):
                with pytest.raises(HBMReadError, match=r"Q was freed"):
                    use()
        with pytest.raises(HBMReadError, match=r"freed"):
            tile[...] = 0
        with pytest.raises(ValueError, match=r"freed already"):
            sram.free(tile)


def test_values_cannot_be_hoarded_past_their_room(machine):
    """A lazy author keeps every K tile as a value, to load K once: the room's end is theirs too."""
    K = machine.hbm(K=np.ones((12, 3)))
    hoard = []
    with machine.kernel("lazy") as sram:
        for j in range(0, 12, 4):
            with sram.scope():
                hoard.append(sram.load(K[j:j + 4]) * 1)
        sram.tile("room again", 4, 3)
        for value in hoard:
            with pytest.raises(HBMReadError, match=r"shape \(4, 3\) was freed"):
                value + 1
    with machine.kernel("one number") as sram:
        number = sram.load(K[:1, :1]) + 1
        assert sram.peek(number) == 2
    with machine.kernel("next"), pytest.raises(HBMReadError, match=r"freed"):
        number + 1


def test_a_product_of_parts_has_no_room_where_its_operands_have(machine, Q):
    """A square part of a tile is its tile's; the product of two is a new matrix, and needs a room."""
    with machine.kernel("k") as sram:
        tile = sram.load(Q[:4])
        part = tile[:2, :2]
        assert (part * 2).shape == (2, 2)                  # elementwise it may stand where it stood
        with pytest.raises(HBMReadError, match=r"shape \(2, 2\) has no room"):
            part @ part
        sram.tile("product", 2, 2)
        assert (part @ part).shape == (2, 2)


def test_a_value_without_declared_room_is_refused(machine, Q):
    with machine.kernel("k") as sram:
        Qi = sram.load(Q)
        for too_large in (lambda: Qi @ Qi.T, lambda: Qi[:, None] * Qi[None], lambda: Qi.sum(axis=1),
                          lambda: Qi.max(axis=0)):
            with pytest.raises(HBMReadError, match=r"has no room: declare a tile of that shape"):
                too_large()
        with sram.scope():
            sram.tile("S", 6, 6)
            assert (Qi @ Qi.T).shape == (6, 6)
        with pytest.raises(HBMReadError, match=r"shape \(6, 6\) has no room"):
            Qi @ Qi.T


@pytest.mark.parametrize("index", [np.zeros(50, int), [0, 1], np.ones((6, 4), bool), (0, [1])],
                         ids=["gather", "list", "mask", "mixed"])
def test_tiles_take_plain_slices_so_that_no_gather_makes_room(machine, Q, index):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        with pytest.raises(TypeError, match=r"index: a tile takes slices"):
            tile[index]
        with pytest.raises(TypeError, match=r"np.where"):
            tile[index] = 0.0


def test_arithmetic_counts_itself(machine, Q):
    with machine.kernel("k") as sram:
        a, s, r = sram.load(Q), sram.tile("S", 6, 6, fill=1), sram.tile("r", 6)
        steps = [
            (lambda: a @ a.T, "matmul_flops", 2 * 6 * 6 * 4),
            (lambda: s.dot(a), "matmul_flops", 2 * 6 * 4 * 6),
            (lambda: s.dot(a, where=np.eye(6, dtype=bool)), "matmul_flops", 2 * 6 * 4 * 6),
            (lambda: np.exp(a), "exps", 24), (lambda: np.exp2(a), "exps", 24),
            (lambda: np.expm1(a), "exps", 24), (lambda: np.e ** a, "exps", 24),
            (lambda: np.float_power(2, a), "exps", 24), (lambda: np.logaddexp(a, 0), "exps", 24),
            (lambda: a * a, "vector_flops", 24), (lambda: a**2, "vector_flops", 24),
            (lambda: -a, "vector_flops", 24), (lambda: np.log(s), "vector_flops", 36),
            (lambda: np.where(a > 0, a, 0), "vector_flops", 48),
            (lambda: a.max(axis=1), "vector_flops", 24),
            (lambda: s.sum(axis=1), "vector_flops", 36),
            (lambda: a + r[:, None], "vector_flops", 24),
            (lambda: operator.iadd(a, 1), "vector_flops", 24),
            (lambda: np.add(a, 1, out=a), "vector_flops", 24),
            (lambda: a.T[None], "vector_flops", 0),
            (lambda: operator.setitem(a, ..., 0), "vector_flops", 0),
        ]
        for number, (step, counter, amount) in enumerate(steps):
            before = machine.traffic
            step()
            expected = before + Traffic(**{counter: amount})
            assert machine.traffic == expected, (number, counter)


@pytest.mark.parametrize("call", [
    lambda a: np.vecdot(a, a), lambda a: np.add.reduce(a), lambda a: np.add.accumulate(a),
    lambda a: np.multiply.outer(a, a), lambda a: np.exp(a, where=np.ones((6, 4), bool)),
    lambda a: np.linalg.inv(a), lambda a: np.einsum("ij,ij->", a, a), lambda a: np.tensordot(a, a),
    lambda a: np.where(a), lambda a: np.mean(a), lambda a: a.mean()],
    ids=["vecdot", "reduce", "accumulate", "outer", "where", "inv", "einsum", "tensordot", "nonzero",
         "mean", "method"])
def test_functions_that_could_not_count_themselves_are_refused(machine, Q, call):
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        before = machine.traffic
        with pytest.raises((TypeError, AttributeError)):
            call(tile)
        assert machine.traffic == before


def test_in_place_arithmetic_on_a_host_array_is_refused(machine, Q):
    host = np.zeros((6, 4))
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        for attempt in (lambda: np.add(tile, 1, out=host), lambda: operator.iadd(host, tile)):
            with pytest.raises(TypeError):
                attempt()
    assert not host.any()


@pytest.mark.parametrize("bad", [np.ones((6, 6)), np.ones((2, 6), bool), np.ones(6, bool)])
def test_dot_takes_a_boolean_mask_of_its_own_shape(machine, Q, bad):
    with machine.kernel("k") as sram:
        S, V = sram.tile("S", 6, 6, fill=0.0), sram.load(Q)
        with pytest.raises(ValueError, match=r"where: expected booleans of shape \(6, 6\)"):
            S.dot(V, where=bad)


def test_dot_with_a_mask_keeps_forbidden_values_out(machine):
    P, V = np.array([[0.5, 0.0], [0.5, 0.5]]), np.array([[2.0, 4.0], [np.nan, np.inf]])
    P, V = machine.hbm(P=P, V=V)
    with machine.kernel("k") as sram:
        P, V = sram.load(P), sram.load(V)
        masked = sram.peek(P.dot(V, where=np.tril(np.ones((2, 2), bool))))
        np.testing.assert_array_equal(masked, [[1, 2], [np.nan, np.inf]])
        assert np.isnan(sram.peek(P.dot(V))).any(axis=1).all()
