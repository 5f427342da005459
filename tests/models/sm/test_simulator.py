"""The schedule simulator: by hand, against a clock, and in what it refuses.

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
from tests.models.sm.made_programs import critical_path, program, role, waits


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


def test_a_turn_passes_before_the_latency_and_the_next_reader_waits_for_it():
    first, second = sim.Op("x", 0, {"tensor": 10}, 5, passes=("go",)), sim.Op("x", 1, {"tensor": 10})
    s = sim.simulate(program(role("a", sim.run(first)), role("b", sim.wait("go", 0), sim.run(second)),
                             barriers={"go": 1}))
    assert [(e.start, e.end, e.done) for e in s.events] == [(0, 10, 15), (10, 20, 20)]


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
