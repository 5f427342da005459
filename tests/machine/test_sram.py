"""SRAM and kernels: capacity to the byte, room that comes back, and a trace that tells it all."""

import csv
import io
import operator

import numpy as np
import pytest

from flashlib import Machine, SRAMOverflow, Traffic, flash_v2, standard_attention
from flashlib.errors import HBMReadError
from flashlib.machine.traffic import Moved
from tests.cases import normal, qkv


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def Q(machine):
    return machine.hbm(Q=np.arange(24.0).reshape(6, 4))


def test_capacity_is_enforced_and_the_error_names_the_tiles():
    machine = Machine(sram_bytes=1000, element_bytes=2, stats_bytes=8, accumulator_bytes=4)
    Q = machine.hbm(Q=np.zeros((50, 4)))
    with machine.kernel("mine") as sram:
        sram.load(Q)                                               # 400 B
        sram.tile("m", slice(0, 50), kind="stats")                 # 400 B
        with pytest.raises(SRAMOverflow) as caught:
            sram.tile("O", slice(0, 50), 3, kind="accumulator")    # 600 B
        error = caught.value
        assert error.tiles == [("Q", (50, 4), 400), ("m", (50,), 400), ("O", (50, 3), 600)]
        assert (error.needed_bytes, error.capacity_bytes) == (1400, 1000)
        for part in ("'mine'", "Q (50, 4): 400 B", "m (50,): 400 B", "O (50, 3): 600 B",
                     "need 1,400 B", "sram_bytes is 1,000 B", "400 B too many"):
            assert part in str(error)
        assert isinstance(error, ValueError)
        sram.tile("fits", 100)                                     # 200 B: exactly full
        with pytest.raises(SRAMOverflow):
            sram.tile("one more", 1)
    assert machine.traffic.sram_peak_bytes == 1000
    assert machine.peak_tiles == [("Q", (50, 4), 400), ("m", (50,), 400), ("fits", (100,), 200)]


def test_a_failed_allocation_leaves_everything_as_it_was():
    machine = Machine(sram_bytes=100)
    Q = machine.hbm(Q=np.zeros((40, 2)))
    with machine.kernel("k") as sram:
        tile = sram.load(Q[:10])                                   # 40 B
        state = machine.traffic, sram.used_bytes, len(machine.trace), list(sram.tiles)
        for attempt in (lambda: sram.load(Q), lambda: sram.tile("S", 10, 4),
                        lambda: sram.tile("S", 2, 2, kind="wrong"), lambda: sram.load(None)):
            with pytest.raises((ValueError, TypeError)):
                attempt()
            assert (machine.traffic, sram.used_bytes, len(machine.trace), list(sram.tiles)) == state
        with pytest.raises(HBMReadError, match=r"has no room"):
            tile @ tile.T                                          # what failed left no room behind
        sram.free(tile)
        assert sram.used_bytes == 0
        sram.load(Q[:25])                                          # 100 B: all of it is there again
    assert machine.sram is None


def test_scopes_free_in_order_and_on_errors(machine, Q):
    with machine.kernel("k") as sram:
        outer = sram.load(Q)
        with pytest.raises(ZeroDivisionError), sram.scope():
            inner = sram.load(Q)
            with sram.scope():
                sram.tile("S", 6, 6)
            assert sram.used_bytes == 96
            raise ZeroDivisionError
        assert (outer.live, inner.live, sram.used_bytes) == (True, False, 48)
    assert not outer.live


def test_a_kernel_that_failed_leaves_the_machine_usable(machine, Q):
    with pytest.raises(ZeroDivisionError), machine.kernel("bad") as sram:
        sram.load(Q)
        raise ZeroDivisionError
    with machine.kernel("good") as sram:
        assert sram.used_bytes == 0
        sram.load(Q)


def test_kernels_do_not_nest_and_end_with_their_sram(machine, Q):
    with machine.kernel("a") as old:
        tile = old.load(Q)
        with pytest.raises(RuntimeError, match=r"'b' starts inside another"), machine.kernel("b"):
            pass
        with pytest.raises(RuntimeError, match=r"reset inside a kernel"):
            machine.reset()
        old.load(Q)                                                # "a" still runs
    with pytest.raises(HBMReadError):
        tile + 1
    for where in ("outside", "in another kernel"):
        with pytest.raises(HBMReadError, match=r"kernel 'a' has ended"):
            old.load(Q)
        with pytest.raises(HBMReadError, match=r"kernel 'a' has ended"):
            old.tile("S", 2)
        if where == "outside":
            machine.kernel("b").__enter__()


def test_the_host_is_out_of_reach_inside_a_kernel(machine, Q):
    with machine.kernel("k"):
        with pytest.raises(HBMReadError, match=r"Q.to_host.. inside a kernel: use sram.load"):
            Q.to_host()
        with pytest.raises(HBMReadError, match=r"S: inside a kernel"):
            machine.hbm(S=np.ones(3))
    np.testing.assert_array_equal(Q.to_host(), np.arange(24.0).reshape(6, 4))


def test_another_machine_cannot_do_the_work(machine, Q):
    other, O = Machine(), machine.hbm_empty("O", (6, 4))
    X = other.hbm(X=np.ones((6, 4)))
    with other.kernel("elsewhere") as there, machine.kernel("here") as here:
        x, q = there.load(X), here.load(Q)
        for attempt in (lambda: there.load(Q), lambda: there.store(x, O), lambda: here.store(x, O),
                        lambda: q + x, lambda: operator.setitem(q, ..., x)):
            with pytest.raises(HBMReadError, match=r"another machine"):
                attempt()
        with pytest.raises(ValueError, match=r"not of this kernel"):
            here.free(x)
        assert x.live


def test_inputs_are_neither_overwritten_nor_aliased(machine):
    host = np.zeros((6, 4))
    Q = machine.hbm(Q=host)
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        with pytest.raises(ValueError, match=r"Q is an input, which no kernel may overwrite"):
            sram.store(tile, Q)
        tile[...] = 7.0
        assert not host.any() and host.flags.writeable
    copy = Q.to_host()
    copy[...] = 5
    assert not Q.to_host().any() and not host.any()


def test_what_was_never_stored_reads_as_nan(machine, Q):
    O = machine.hbm_empty("O", (6, 4))
    with machine.kernel("k") as sram:
        assert np.isnan(sram.peek(sram.tile("never written", 3, 2))).all()
        sram.store(sram.load(Q[:4]), O[:4])
    assert np.isnan(O.to_host()[4:]).all() and np.isfinite(O.to_host()[:4]).all()


def test_stores_need_the_same_shape(machine, Q):
    O = machine.hbm_empty("O", (6, 4))
    with machine.kernel("k") as sram:
        tile = sram.load(Q[:2])
        turned = machine.hbm_empty("O", (4, 2))            # as many elements, another shape
        for target in (O, O[:3], O[:2, :2], turned, machine.hbm_empty("O", (8,))):
            with pytest.raises(ValueError, match=r"value: expected .* as O, got \(2, 4\)"):
                sram.store(tile, target)
        assert machine.traffic.hbm_write_bytes == 0
        for method in (lambda x: sram.store(tile, x), sram.load):
            with pytest.raises(TypeError, match=r": expected an address in HBM"):
                method(np.zeros((2, 4)))


@pytest.mark.parametrize("name", ["sram_bytes", "element_bytes", "stats_bytes", "accumulator_bytes"])
@pytest.mark.parametrize("value, error", [(0, ValueError), (-1, ValueError), (2.0, TypeError),
                                          ("2", TypeError), (True, TypeError)])
def test_wrong_machines_are_refused(name, value, error):
    with pytest.raises(error, match=f"{name}: expected a whole number.*, got"):
        Machine(**{name: value})


def test_wrong_arrays_and_kinds_are_refused(machine):
    with pytest.raises(TypeError, match=r"mask: expected an array of floats, got dtype bool"):
        machine.hbm(mask=np.ones(3, bool))
    with pytest.raises(TypeError, match=r"ids: .* got dtype int64"):
        machine.hbm(ids=np.arange(3))
    for make in (lambda: machine.hbm(kind="fp8", x=np.ones(3)),
                 lambda: machine.hbm_empty("x", (3,), kind="fp8")):
        with pytest.raises(ValueError, match=r"kind: expected one of .* got 'fp8'"):
            make()
    with pytest.raises(TypeError, match=r"machine: expected a flashlib.Machine or None, got 5"):
        Machine.or_unbounded(5)
    assert isinstance(machine.hbm(x=[1.0, 2.0]).shape, tuple) and machine.hbm() == []


def test_runs_on_one_machine_add_up(machine):
    Q, K, V = qkv(0, 9, 11, 4)
    alone = []
    for algorithm, blocks in ((flash_v2, {"Br": 4, "Bc": 3}), (standard_attention, {})):
        single = Machine()
        algorithm(Q, K, V, machine=single, **blocks)
        alone.append(single.traffic)
        algorithm(Q, K, V, machine=machine, **blocks)
    assert machine.traffic == sum(alone) == alone[1] + alone[0]
    assert machine.traffic.sram_peak_bytes == max(t.sram_peak_bytes for t in alone)
    machine.reset()
    assert machine.traffic == Traffic() and not len(machine.trace) and machine.peak_tiles == []


def test_the_trace_tells_the_traffic(machine):
    Q, K, V = normal(0, (9, 4), (11, 4), (11, 4))
    flash_v2(Q, K, V, Br=4, Bc=3, causal=True, machine=machine)
    standard_attention(Q, K, V, Br=4, Bc=3, machine=machine)
    by_tensor, held, peak = {}, 0, 0
    for event in machine.trace:
        read, write = by_tensor.get(event.tensor, (0, 0))
        if event.op in ("load", "store"):
            by_tensor[event.tensor] = (read + event.bytes * (event.op == "load"),
                                       write + event.bytes * (event.op == "store"))
        held += {"tile": 1, "free": -1}.get(event.op, 0) * event.bytes
        peak = max(peak, held)
        assert event.sram_bytes == held
    assert held == 0 and peak == machine.traffic.sram_peak_bytes
    assert by_tensor == machine.traffic.by_tensor
    assert machine.trace.hbm_bytes() == {n: m.total_bytes for n, m in by_tensor_moved(by_tensor)}
    moved = 0
    for n, event in enumerate(machine.trace):              # the first n events, and not one more
        assert sum(machine.trace.hbm_bytes(upto=n).values()) == moved
        moved += event.bytes * (event.op in ("load", "store"))
    assert sum(machine.trace.hbm_bytes(upto=len(machine.trace)).values()) == moved
    quiet = Machine(record=False)
    flash_v2(Q, K, V, Br=4, Bc=3, causal=True, machine=quiet)
    assert len(quiet.trace) == 0 and quiet.traffic.hbm_bytes > 0


def by_tensor_moved(by_tensor):
    return [(name, Moved(*moved)) for name, moved in by_tensor.items()]


def test_the_tiles_of_s_carry_query_rows_and_key_columns(machine):
    Q, K, V = qkv(0, 5, 7, 2)
    flash_v2(Q, K, V, Br=2, Bc=4, machine=machine)
    visits = [machine.trace[n] for n in machine.trace.visits("S")]
    assert [(e.rows, e.cols) for e in visits] == [
        (rows, cols) for rows in ((0, 2), (2, 4), (4, 5)) for cols in ((0, 4), (4, 7))]


def test_a_trace_survives_csv(machine, tmp_path):
    Q, K, V = qkv(0, 5, 7, 2)
    standard_attention(Q, K, V, Br=2, Bc=4, machine=machine)       # its kernels carry Kᵀ in a name
    text = machine.trace.to_csv(tmp_path / "trace.csv")
    assert (tmp_path / "trace.csv").read_bytes() == text.encode("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    events = [(r["kernel"], r["op"], r["tensor"], (int(r["row_start"]), int(r["row_stop"])),
               (int(r["col_start"]), int(r["col_stop"])), int(r["bytes"]), int(r["sram_bytes"]),
               bool(int(r["atomic"])))
              for r in rows]
    assert events == list(machine.trace)
