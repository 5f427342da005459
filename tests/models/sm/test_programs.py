"""The schedule simulator: by hand, against its bounds, in conservation, and in what it refuses.

By hand. A copy works for 10 cycles and lands 5 later; a matmul works for 20 and reads what landed.

One slot, three tiles: the copy of tile 0 works 0–10 and lands at 15; its matmul takes 15–35; only then
is the slot free: copy 35–45, landing 50, matmul 50–70; copy 70–80, landing 85, matmul 85–105. So a tile
takes 35 cycles, 10 + 5 + 20, and the whole 105.

Two slots: copies 0–10 and 10–20 land at 15 and 25; matmuls 15–35 and 35–55. Slot 0 is free at 35, so
tile 2 is copied 35–45 and lands at 50, before it is wanted: matmul 55–75. Now a tile takes 20.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib.models.sm import programs
from flashlib.models.sm import simulator as sim
from tests.cases import PROPERTY

SPECIALIZED = ("specialized", "pingpong", "overlap", "pingpong_overlap")


def role(name, *requests, **more):
    return sim.Role(name, lambda: iter(requests), registers=24, **more)


def program(*roles, barriers=None, units=None, tiles=1, **more):
    units = units or {"copy": "fifo", "tensor": "shared"}
    return sim.Program("by hand", roles, barriers or {}, units, tiles, **more)


def ring_program(slots, tiles=3, *, place=programs.slot_and_parity):
    """The hand-solved case: a copy per tile into a ring, and a matmul that reads it."""
    ring = programs.Ring("K", slots, place)

    def producer():
        for j in range(tiles):
            yield ring.empty(j)
            yield sim.issue(sim.Op("K", j, {"copy": 10}, 5, writes={ring.slot(j): f"K {j}"},
                                   arrives=ring.arrival(j)))

    def consumer():
        for j in range(tiles):
            yield ring.full(j)
            yield sim.run(sim.Op("PV", j, {"tensor": 20}, reads={ring.slot(j): f"K {j}"}))
            yield ring.release(j)

    barriers = {f"K {kind}[{s}]": 1 for kind in ("full", "empty") for s in range(slots)}
    return program(sim.Role("producer", producer, registers=24),
                   sim.Role("consumer", consumer, registers=24), barriers=barriers, tiles=tiles)


def waits(s):
    """Cycles by role and reason: an operation's name, a barrier's, or "done" after the end."""
    spent = {role.name: {} for role in s.program.roles}
    for stop in s.stops:
        by_reason = spent[stop.role]
        by_reason[stop.reason] = by_reason.get(stop.reason, 0.0) + stop.end - stop.start
    return spent


def critical_path(s):
    """The longest chain of operations of which each needs the data of the one before."""
    made, longest = {}, 0.0
    for event in sorted(s.events, key=lambda e: e.start):
        before = max((made[item] for item in event.op.reads.items() if item in made), default=0.0)
        after = before + max(event.op.work.values()) + event.op.latency
        made |= dict.fromkeys(event.op.writes.items(), after)
        longest = max(longest, after)
    return longest


def times(s, what):
    return [(e.start, e.end, e.done) for e in s.of(what=what)]


def test_one_slot_by_hand():
    s = sim.simulate(ring_program(1))
    assert times(s, "K") == [(0, 10, 15), (35, 45, 50), (70, 80, 85)]
    assert times(s, "PV") == [(15, 35, 35), (50, 70, 70), (85, 105, 105)]
    assert (s.cycles, s.cycles_per_tile, critical_path(s)) == (105, 35, 35)
    assert waits(s) == {"producer": {"K empty": 70, "done": 35}, "consumer": {"K full": 45, "PV": 60}}


def test_two_slots_by_hand():
    s = sim.simulate(ring_program(2))
    assert times(s, "K") == [(0, 10, 15), (10, 20, 25), (35, 45, 50)]
    assert times(s, "PV") == [(15, 35, 35), (35, 55, 55), (55, 75, 75)]
    assert (s.cycles, s.cycles_per_tile) == (75, 20)
    assert s.utilization == {"copy": 30 / 75, "tensor": 60 / 75}


@PROPERTY
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_a_shared_unit_serves_equal_parts(works):
    """While k are left, each gets 1/k: the i-th shortest is done at Σ min(w, wᵢ)."""
    s = sim.simulate(program(*(role(f"r{i}", sim.run(sim.Op("x", i, {"tensor": w})))
                               for i, w in enumerate(works))))
    done = {e.tile: e.done for e in s.events}
    for i, own in enumerate(works):
        assert done[i] == pytest.approx(sum(min(w, own) for w in works))


@PROPERTY
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_a_fifo_unit_serves_in_the_order_of_issue(works):
    s = sim.simulate(program(*(role(f"r{i}", sim.run(sim.Op("x", i, {"copy": w})))
                               for i, w in enumerate(works))))
    assert [e.done for e in s.events] == pytest.approx(list(itertools.accumulate(works)))


UNIT_WORK = st.tuples(st.sampled_from(("copy", "tensor")), st.integers(1, 9), st.integers(0, 4))
STEPS = st.lists(st.one_of(st.tuples(st.just("run"), UNIT_WORK), st.tuples(st.just("issue"), UNIT_WORK),
                           st.just(("finish", None))), max_size=6)


def requests_of(steps, syncs):
    """Turn steps into requests: `finish` waits for the oldest operation that is open."""
    opened, made = [], []
    for n, (kind, work) in enumerate(steps):
        if kind == "finish":
            made += [sim.finish(opened.pop(0))] if opened else []
            continue
        op = sim.Op("x", n, {work[0]: work[1]}, work[2])
        opened += [op] if kind == "issue" else []
        made.append(sim.issue(op) if kind == "issue" else sim.run(op))
    for n in range(syncs):
        made.insert((n + 1) * len(made) // (syncs + 1), sim.sync("all"))
    return made


def clock_by_clock(programs_):
    """Return {op: done} of FIFO units, one cycle at a time: an oracle that shares no code.

    At a tie the first role goes on as long as it can, then the next.
    """
    position, done, left, queues = [0] * len(programs_), {}, {}, {"copy": [], "tensor": []}
    arrived, generation, held = 0, 0, [None] * len(programs_)

    def may_go_on(r, now):
        if held[r] is None:
            return True
        kind, what = held[r]
        return done.get(what, now + 1) <= now if kind == "op" else what < generation

    for now in range(10_000):
        stuck = False
        while not stuck:
            stuck = True
            for r, requests in enumerate(programs_):
                while position[r] < len(requests) and may_go_on(r, now):
                    stuck, held[r] = False, None
                    request = requests[position[r]]
                    position[r] += 1
                    if request.kind == "sync":
                        held[r], arrived = ("sync", generation), arrived + 1
                        if arrived == len(programs_):
                            arrived, generation = 0, generation + 1
                        continue
                    if request.kind in ("run", "issue"):
                        [(unit, work)] = request.target.work.items()
                        left[request.target] = work
                        queues[unit].append(request.target)
                    if request.kind in ("run", "finish"):
                        held[r] = ("op", request.target)
        if not any(queues.values()) and max(done.values(), default=0) <= now:
            return done
        for queue in queues.values():
            if queue:
                left[queue[0]] -= 1
                if left[queue[0]] == 0:
                    op = queue.pop(0)
                    done[op] = now + 1 + op.latency
    raise AssertionError("the oracle does not end")


@PROPERTY
@given(st.lists(STEPS, min_size=1, max_size=3), st.integers(0, 2))
def test_fifo_units_agree_with_a_clock(lists, syncs):
    made = [requests_of(steps, syncs) for steps in lists]
    roles = [role(f"r{i}", *requests) for i, requests in enumerate(made)]
    s = sim.simulate(program(*roles, barriers={"all": len(roles)},
                             units={"copy": "fifo", "tensor": "fifo"}))
    expected = clock_by_clock(made)
    assert {e.op: e.done for e in s.events} == pytest.approx(expected)


def test_an_operation_holds_its_unit_until_all_its_work_is_done():
    first = sim.Op("x", 0, {"tensor": 10, "copy": 30})
    second = sim.Op("x", 1, {"tensor": 10})
    s = sim.simulate(program(role("r", sim.issue(first), sim.issue(second))))
    assert [(e.start, e.end) for e in s.events] == [(0, 30), (30, 40)]


def test_sync_waits_for_the_last_and_arrive_does_not_wait():
    ten, forty = (sim.run(sim.Op("x", i, {"tensor": w})) for i, w in enumerate((10, 30)))
    s = sim.simulate(program(role("a", ten, sim.sync("b")), role("c", forty, sim.sync("b")),
                             barriers={"b": 2}))
    assert waits(s)["a"] == {"x": 20, "b": 20} and waits(s)["c"] == {"x": 40}
    s = sim.simulate(program(role("a", ten, sim.arrive("b")), role("c", forty, sim.sync("b")),
                             barriers={"b": 2}))
    assert "b" not in waits(s)["a"]


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


def test_a_turn_passes_before_the_latency_and_the_next_reader_waits_for_it():
    first, second = sim.Op("x", 0, {"tensor": 10}, 5, passes=("go",)), sim.Op("x", 1, {"tensor": 10})
    s = sim.simulate(program(role("a", sim.run(first)), role("b", sim.wait("go", 0), sim.run(second)),
                             barriers={"go": 1}))
    assert [(e.start, e.end, e.done) for e in s.events] == [(0, 10, 15), (10, 20, 20)]


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


def test_a_deadlock_names_the_role_and_the_barrier():
    def greedy():
        for _ in range(2):
            yield sim.wait("K full[0]", 0)
            yield sim.sync("turn")

    stuck = program(sim.Role("consumer", greedy, registers=24), role("other", sim.arrive("K full[0]")),
                    barriers={"K full[0]": 1, "turn": 2})
    with pytest.raises(sim.Deadlock, match=r"consumer waits for ever at barrier 'turn' \(1 of 2 arr"):
        sim.simulate(stuck)


@pytest.mark.parametrize(("place", "message"), [
    (lambda i, n: (i % n, 1), "PV 0 of consumer expects K 0 in K slot 0, which holds nothing"),
    (lambda i, n: (i % n, 0), "K 2 of producer overwrites K slot 0 while PV 0 of consumer still uses"),
    (lambda i, n: (0, i % 2), None)], ids=["always 1", "never flips", "one slot is enough"])
def test_a_wrong_parity_is_a_hazard_and_a_shorter_ring_is_only_slower(place, message):
    if message is None:
        assert sim.simulate(ring_program(2, place=place)).cycles == sim.simulate(ring_program(1)).cycles
        return
    with pytest.raises(sim.Hazard, match=message):
        sim.simulate(ring_program(2, place=place))


def _op(what, work=10, **more):
    return sim.Op(what, 0, {"tensor": work}, **more)


def test_hazards_are_named():
    write = {"writes": {"slot": "K 0"}}
    read = {"reads": {"slot": "K 0"}}
    first, second = _op("copy", **write), _op("use", **read)
    both = {"units": {"tensor": "shared"}}
    with pytest.raises(sim.Hazard, match="use 0 of b reads slot while copy 0 of a still writes it"):
        sim.simulate(program(role("a", sim.run(first)), role("b", sim.run(second)), **both))
    with pytest.raises(sim.Hazard, match="use 0 of b expects K 0 in slot, which holds nothing"):
        sim.simulate(program(role("b", sim.run(_op("use", **read))), **both))
    copy, use, again = _op("copy", **write), _op("use", **read), _op("copy", **write)
    with pytest.raises(sim.Hazard, match="copy 0 of b overwrites slot while use 0 of a still uses it"):
        sim.simulate(program(role("a", sim.run(copy), sim.arrive("x"), sim.run(use)),
                             role("b", sim.wait("x", 0), sim.run(again)), barriers={"x": 1}, **both))


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_an_operation_takes_a_time_that_can_be(wrong):
    with pytest.raises(ValueError, match="latency of x: expected a"):
        _op("x", latency=wrong)
    with pytest.raises(ValueError, match="work of x on tensor: expected a"):
        _op("x", work=wrong)


def test_the_critical_path_counts_an_operation_until_all_its_work_is_done():
    """5 cycles on the tensor cores and 9 in shared memory are 9, and the next one waits for them."""
    first = sim.Op("QK", 0, {"tensor": 5, "copy": 9}, writes={"S": "S 0"})
    second = sim.Op("PV", 0, {"tensor": 4}, 2, reads={"S": "S 0"})
    both = {"units": {"tensor": "fifo", "copy": "fifo"}}
    s = sim.simulate(program(role("a", sim.run(first), sim.run(second)), **both))
    assert critical_path(s) == 9 + 4 + 2 == s.cycles


def test_programs_that_are_no_programs_are_refused():
    def forever():
        while True:
            yield sim.arrive("x")

    with pytest.raises(sim.ScheduleError, match="a makes requests for ever"):
        sim.simulate(program(sim.Role("a", forever, registers=24), barriers={"x": 1}))
    with pytest.raises(TypeError, match="a: expected its program to yield a request"):
        sim.simulate(program(role("a", 3)))
    with pytest.raises(ValueError, match="barrier: expected one of"):
        sim.simulate(program(role("a", sim.arrive("y"))))
    with pytest.raises(ValueError, match="work: expected units out of"):
        sim.simulate(program(role("a", sim.run(sim.Op("x", 0, {"gpu": 1})))))
    op = _op("x")
    with pytest.raises(sim.ScheduleError, match="issues x 0 twice"):
        sim.simulate(program(role("a", sim.issue(op), sim.issue(op))))
    with pytest.raises(sim.ScheduleError, match="which nobody has issued"):
        sim.simulate(program(role("a", sim.finish(op))))
