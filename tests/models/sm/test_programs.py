"""The programs of the versions: conservation, bounds, what each step gains, and what is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib.models.sm import programs
from flashlib.models.sm import simulator as sim
from tests.cases import PROPERTY
from tests.models.sm.made_programs import critical_path, waits

OPTIONS = st.fixed_dictionaries({
    "d": st.sampled_from((64, 96, 128)), "keys": st.sampled_from((64, 80, 128)),
    "stages": st.integers(1, 2), "tiles": st.integers(1, 9),
    "dtype": st.sampled_from(("bfloat16", "float8")), "copy_from": st.sampled_from(("L2", "HBM")),
    "emulate": st.sampled_from((0.0, 0.25, 1.0)), "rescales": st.sampled_from((0.0, 0.3, 1.0))})


def simulated(name, options, arbitration):
    if name == "v4":
        return programs.schedule_of(name, **options), programs.totals(v4=True, **options)
    return (programs.schedule_of(name, arbitration=arbitration, gpu="H100", **options),
            programs.totals(gpu="H100", **options))


@pytest.mark.parametrize("name", programs.NAMES)
@PROPERTY
@given(OPTIONS, st.sampled_from(("shared", "fifo")))
def test_work_is_conserved_and_time_lies_between_its_bounds(name, options, arbitration):
    s, totals = simulated(name, options, arbitration)
    assert s.busy == pytest.approx(totals)
    latencies = sum(e.op.latency for e in s.events)
    assert max(critical_path(s), *totals.values()) <= s.cycles * (1 + 1e-9)
    assert s.cycles <= (sum(totals.values()) + latencies) * (1 + 1e-9)
    assert all(0 <= share <= 1 + 1e-9 for share in s.utilization.values())


@pytest.mark.parametrize("name", programs.NAMES)
@PROPERTY
@given(OPTIONS, st.sampled_from(("shared", "fifo")))
def test_every_role_accounts_for_all_of_its_time(name, options, arbitration):
    s, _ = simulated(name, options, arbitration)
    for each, reasons in waits(s).items():
        assert sum(reasons.values()) == pytest.approx(s.cycles), each
    for e in s.events:
        assert 0 <= e.issued <= e.start <= e.end <= e.done <= s.cycles
        assert e.end - e.start >= max(e.op.work.values()) * (1 - 1e-9)
    copies = sorted(s.of(what="K") + s.of(what="V"), key=lambda e: e.start)
    assert all(a.end <= b.start + 1e-6 for a, b in itertools.pairwise(copies))


@pytest.mark.parametrize("name", programs.NAMES)
def test_every_tile_is_computed_once_by_every_warpgroup(name):
    s = programs.schedule_of(name, tiles=7)
    many = 2
    assert sorted(e.tile for e in s.of(what="QK")) == sorted(list(range(7)) * many)
    parts = 2 if name == "v4" else 1                   # P·V begins when three quarters of P are there
    assert sorted(e.tile for e in s.of(what="PV")) == sorted(list(range(7)) * many * parts)
    assert len(s.of(what="O")) == many and len(s.of(what="K")) == len(s.of(what="V")) == 7


def test_v4_begins_pv_with_three_quarters_of_p():
    s = programs.schedule_of("v4", tiles=6)
    packed = {item: e.end for e in s.of(what="pack") for item in e.op.writes.items()}
    begun = {item: e.start for e in s.of(what="PV") for item in e.op.reads.items() if item in packed}
    assert len(begun) == len(packed) == 24 and all(begun[item] >= packed[item] for item in packed)
    assert {e.op.work["alu"] for e in s.of(what="pack")} == {96.0, 32.0}
    ahead = [begun[f"most of P of {w}", f"P {j}"] < packed[f"S of {w}", f"P {j}"]
             for w in range(2) for j in range(6)]
    assert sum(ahead) > 6


def test_it_is_deterministic():
    one, two = (programs.schedule_of("pingpong_overlap", d=64, tiles=9) for _ in range(2))
    assert [(e.role, str(e.op), e.start, e.end) for e in one.events] == [
        (e.role, str(e.op), e.start, e.end) for e in two.events]
    assert waits(one) == waits(two)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("name", [n for n in programs.NAMES if n != "synchronous"])
def test_more_stages_never_slow_a_program_down(name, d):
    cycles = [programs.schedule_of(name, d=d, keys=64, stages=n, tiles=12).cycles for n in (1, 2, 3)]
    assert cycles[0] >= cycles[1] * (1 - 1e-9) >= cycles[2] * (1 - 1e-9) ** 2


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_each_step_of_v3_is_at_least_as_fast_as_the_one_before(gpu):
    for d in (64, 128):
        cycles = [programs.schedule_of(n, gpu=gpu, d=d, tiles=32).cycles_per_tile
                  for n in ("synchronous", "multistage", "pingpong", "pingpong_overlap")]
        assert cycles == sorted(cycles, reverse=True)


def test_turns_make_the_arbitration_of_the_tensor_cores_irrelevant():
    for name in ("pingpong", "pingpong_overlap"):
        shared, fifo = (programs.schedule_of(name, arbitration=a).cycles_per_tile
                        for a in ("shared", "fifo"))
        assert shared == pytest.approx(fifo)
    shared, fifo = (programs.schedule_of("specialized", arbitration=a).cycles
                    for a in ("shared", "fifo"))
    assert shared > fifo


def test_in_ping_pong_one_warpgroup_multiplies_while_the_other_exponentiates():
    s = programs.schedule_of("pingpong", tiles=8)
    for e in s.of(role="warpgroup 0", what="QK") + s.of(role="warpgroup 0", what="PV"):
        for other in s.of(role="warpgroup 1", what="QK") + s.of(role="warpgroup 1", what="PV"):
            assert e.end <= other.start + 1e-6 or other.end <= e.start + 1e-6
    [exp] = s.of(role="warpgroup 0", what="exp", tile=4)
    [other] = s.of(role="warpgroup 1", what="QK", tile=4)
    assert exp.start < other.end and other.start < exp.end


@pytest.mark.parametrize("name", ["overlap", "pingpong_overlap", "multistage_overlap"])
def test_overlap_runs_a_product_under_the_next_tiles_exponentials(name):
    s = programs.schedule_of(name, tiles=8)
    exp, pv = (s.of(role="warpgroup 0", what=w, tile=t)[0] for w, t in (("exp", 5), ("PV", 4)))
    assert exp.start < pv.end and pv.start < exp.end


def test_overlap_forgives_the_latency_that_turns_alone_do_not():
    def lost(name):
        quick, slow = (programs.schedule_of(name, tiles=24, matmul_latency=n).cycles_per_tile
                       for n in (0, 200))
        return slow / quick - 1
    assert lost("pingpong_overlap") < 0.001 < 0.04 < lost("pingpong")


@pytest.mark.parametrize(("gpu", "dtype", "flops", "exps"), [
    ("H100", "bfloat16", 4096, 16), ("H200", "float8", 8192, 16), ("B200", "bfloat16", 8192, 16),
    ("B200", "float8", 16384, 16)])
def test_rates_come_from_the_sheets(gpu, dtype, flops, exps):
    r = programs.rates(gpu, dtype)
    assert (r.matmul_flops, r.exps) == (flops, exps)
    assert programs.rates("H200", copy_from="HBM").copy_bytes == pytest.approx(
        4.8e12 / 132 / 1.83e9)


def test_registers_are_those_of_fa3s_tiles():
    """FA3 takes 128 × 176 at d = 128 with 240 registers; wider tiles would not fit."""
    sim.check_fit(programs.build(d=128, keys=176, stages=1))
    assert programs.consumer_registers(128, 128) == {"O": 64, "S": 64, "P": 32, "other": 32}
    with pytest.raises(sim.DoesNotFit, match=r"warpgroup 0 needs 264 a thread \(O 64, S 112, P 56"):
        programs.schedule_of(d=128, keys=224, stages=1)


@pytest.mark.parametrize(("options", "message"), [
    ({"registers": (40, 240)}, r"128·40 \+ 128·240 \+ 128·240 = 66,560, an SM has 65,536"),
    ({"stages": 4}, "shared memory: pingpong_overlap asks for 294,912 B, an SM has 232,448 B"),
    ({"name": "v4", "d": 256}, "shared memory|tensor memory"),
    ({"name": "v4", "keys": 64, "d": 200}, "tensor memory: v4 asks for 528 columns"),
    ({"name": "multistage", "rows": 192, "keys": 128}, "needs 192 a thread .* and has 168"),
])
def test_what_does_not_fit_is_refused_with_the_sum(options, message):
    options = {"stages": 1} | options
    with pytest.raises(sim.DoesNotFit, match=message):
        programs.schedule_of(**options)


def test_what_setmaxnreg_is_for():
    """Three consumers of 64 rows need more than an equal share: the producer gives its own."""
    options = {"d": 64, "rows": 192, "keys": 128, "stages": 1}
    needs = sum(programs.consumer_registers(64, 128).values())
    equal = 64 * 1024 // (4 * 128)
    assert equal < needs <= programs.REGISTER_SPLIT[3][1]
    sim.check_fit(programs.build("pingpong", **options))
    with pytest.raises(sim.DoesNotFit):
        sim.check_fit(programs.build("pingpong", registers=(equal, equal), **options))


@pytest.mark.parametrize(("options", "message"), [
    ({"name": "fast"}, "name: expected one of"), ({"rows": 100}, "rows: expected 64 or 128 or 192"),
    ({"name": "v4", "rows": 128}, "rows: expected 256"), ({"tiles": 0}, "tiles: expected"),
    ({"matmul_latency": float("nan")}, "matmul_latency: expected a finite number, got nan"),
    ({"matmul_latency": -1}, "matmul_latency: expected a number of at least 0, got -1"),
    ({"emulated_slots": -3.0}, "emulated_slots: expected a number of at least 0, got -3.0"),
    ({"stages": 0}, "stages: expected"), ({"emulate": 1.5}, "emulate: expected a number from 0 to 1"),
    ({"rescales": -1}, "rescales: expected a number from 0 to 1"),
    ({"arbitration": "lottery"}, "arbitration: "),
    ({"registers": (24, 239)}, "registers: expected multiples of 8"),
    ({"dtype": "float64"}, "dtype: expected one of"), ({"copy_from": "disk"}, "copy_from: expected"),
    ({"name": "v4", "gpu": "H200"}, "gpu: expected one with tensor memory"),
    ({"gpu": "V100", "dtype": "bfloat16"}, "gpu: expected a sheet"),
])
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        programs.schedule_of(**options)
