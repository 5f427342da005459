"""Planted bugs in the schedule simulator and its programs: each is caught by the check named for it."""

from flashlib.models import schedule as sim
from flashlib.models import schedule_programs as original
from tests.mutants.build import patcher, rebuilt
from tests.mutants.catalogue import Mutant
from tests.mutants.runner import examine

PATHS = {"engine": "models/schedule", "sm": "models/schedule_sm",
         "programs": "models/schedule_programs"}
source = patcher(PATHS)


def build(module=None, edits=()):
    """Return schedule_of, made anew from the sources, with the edits in `module`."""
    made = rebuilt(PATHS, source, module, edits)
    made["programs"].simulate = made["engine"].simulate
    for shared in ("Sm", "Ring", "rates", "slot_and_parity"):
        setattr(made["programs"], shared, getattr(made["sm"], shared))
    return made["programs"]


def no_hazard(programs):
    """Every program runs, with one slot and with two."""
    for name in ("multistage_overlap", "specialized", "pingpong", "overlap", "pingpong_overlap"):
        for d, stages, rows in ((64, 1, 128), (128, 2, 128), (192, 1, 64), (192, 2, 64)):
            try:
                programs.schedule_of(name, d=d, tiles=9, stages=stages, rows=rows)
            except sim.ScheduleError as error:
                raise AssertionError(f"{name}: {error}") from error


def hazards_are_seen(programs):
    """A tile is copied into a slot that a matmul still reads."""
    copy, again = (sim.Op("K", j, {"tensor": 10}, writes={"slot": f"K {j}"}) for j in (0, 1))
    use = sim.Op("QK", 0, {"tensor": 10}, reads={"slot": "K 0"})
    roles = (sim.Role("reader", lambda: iter((sim.run(copy), sim.arrive("free"), sim.run(use)))),
             sim.Role("writer", lambda: iter((sim.wait("free", 0), sim.run(again)))))
    try:
        programs.simulate(sim.Program("two", roles, {"free": 1}, {"tensor": "shared"}, 1))
    except sim.Hazard as error:
        assert "overwrites slot while QK 0 of reader still uses it" in str(error)
        return
    raise AssertionError("a slot was overwritten while in use, and nobody noticed")


def turns_are_kept(programs):
    """Both matmuls of a turn, then both of the other's: the second warpgroup never slips between."""
    s = programs.schedule_of("pingpong", d=128, tiles=8)
    for one in s.of(role="warpgroup 0"):
        for two in s.of(role="warpgroup 1"):
            if one.unit == two.unit == "tensor":
                assert one.end <= two.start + 1e-6 or two.end <= one.start + 1e-6, (one, two)


def conserves(programs):
    s, totals = (make(tiles=9, rescales=0.5) for make in (programs.schedule_of, TOTALS))
    for unit, work in s.busy.items():
        assert abs(work - totals[unit]) < 1e-6 * work, unit


def parts_are_equal(programs):
    """Two warpgroups that ask for the same at the same time are done at the same time, in twice it."""
    s = programs.schedule_of("specialized", tiles=4)
    one, two = (s.of(role=f"warpgroup {w}", what="QK", tile=2)[0] for w in (0, 1))
    assert one.end == two.end
    assert abs(one.end - one.start - 2 * one.op.work["tensor"]) < 1e-6


def lands_late(programs):
    s = programs.schedule_of("overlap", tiles=4)
    assert all(e.done - e.end >= e.op.latency - 1e-6 for e in s.events)


TOTALS = original.totals
CHECKS = {f.__name__: f for f in (no_hazard, hazards_are_seen, turns_are_kept, conserves,
                                  parts_are_equal, lands_late)}


def _bug(name, module, old, new, caught_by):
    return Mutant(name, module, ((old, new),), caught_by)


MUTANTS = [
    _bug("K is released before its matmul is complete", "programs",
         "yield run(sm.qk(w, j))\nyield sm.k.release(j)\n",
         "yield sm.k.release(j)\nyield run(sm.qk(w, j))\n", "no_hazard"),
    _bug("overlap takes P·V for finished", "programs",
         "yield finish(pv)\nyield sm.v.release(j - 1)\nyield run(sm.pack",
         "yield sm.v.release(j - 1)\nyield run(sm.pack", "no_hazard"),
    _bug("overlap issues P·V before its V has come", "programs",
         "yield sm.k.full(j)\nyield sm.v.full(j - 1)\n", "yield sm.k.full(j)\n",
         "no_hazard"),
    _bug("ping-pong skips its barrier", "programs", "yield sync(mine)\nif not first:",
         "if not first:", "turns_are_kept"),
    _bug("ping-pong hands its turn on before it multiplies", "programs",
         "yield sync(mine)\nif not first:",
         "yield sync(mine)\nyield arrive(next_one)\nif not first:",
         "turns_are_kept"),
    _bug("multistage requests into the slot that is still read", "programs",
         "yield from request(j + sm.stages - 1)\nqk, pv",
         "yield from request(j + sm.stages)\nqk, pv", "no_hazard"),
    _bug("the parity flips with every tile", "sm", "slot, lap % 2", "slot, index % 2", "no_hazard"),
    _bug("a matmul counts one FLOP per multiply-add", "sm", "flops = 2 * self.rows",
         "flops = self.rows", "conserves"),
    _bug("every tile rescales, whatever the share", "sm",
         "return j > 0 and math.floor(j * self.rescales) > math.floor((j - 1) * self.rescales)",
         "return j > 0", "conserves"),
    _bug("a barrier opens at its first arrival", "engine", "if self.arrived == self.count:",
         "if self.arrived:", "no_hazard"),
    _bug("nobody looks whether a place is in use", "engine", "if users:",
         "if users and self.now < 0:", "hazards_are_seen"),
    _bug("a result is there as soon as the work is done", "engine",
         "(self.now + flight.op.latency,", "(self.now,", "lands_late"),
    Mutant("a shared unit serves everybody at its full rate", "engine",
           (("f.left[unit] * len(served) for", "f.left[unit] for"),
            ("-= step / len(served)", "-= step")), "parts_are_equal"),
]

TestMutants = examine(MUTANTS, CHECKS, build, at_least=13, patched=source)
