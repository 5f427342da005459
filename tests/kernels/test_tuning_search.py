"""The search, with made-up kernels and a made-up clock, and when two results are alike."""

import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.compiler.errors import CompilationError  # noqa: E402
from triton.runtime.errors import OutOfResources, PTXASError  # noqa: E402

from flashlib.kernels.tuning.search import MARGIN, alike, search  # noqa: E402


class Machine:
    """Configurations are letters; each takes its time, some fail, some give another result."""

    def __init__(self, times, *, fails=None, wrong=""):
        self.times, self.fails, self.wrong = times, fails or {}, wrong
        self.timed, self.alive, self.most_alive = [], [], 0

    def run(self, config):
        if config in self.fails:
            raise self.fails[config]
        result = Result("off" if config in self.wrong else "right")
        self.alive = [x for x in self.alive if x() is not None] + [weakref.ref(result)]
        self.most_alive = max(self.most_alive, len(self.alive))
        return result

    def clock(self, call):
        config = call.args[0]
        call()
        self.timed.append(config)
        taken = self.times[config]
        return taken if isinstance(taken, float) else taken[self.timed.count(config) - 1]

    def search(self):
        return search(list(self.times), self.run, lambda x, y: x.value == y.value, self.clock)


class Result:
    """Something that a weak reference can watch."""

    def __init__(self, value):
        self.value = value


def test_the_fastest_wins():
    found = Machine({"t": 1.0, "a": 0.9, "b": 0.5, "c": 0.7}).search()
    assert found.best == "b" and found.finals == {"t": 1.0, "a": 0.9, "b": 0.5, "c": 0.7}
    assert found.firsts == found.finals and found.refused == {}


@pytest.mark.parametrize("times, best", [(1 - MARGIN / 2, "t"), (1.0, "t"), (1.001, "t"), (2.0, "t"),
                                         (1 - MARGIN * 0.99, "t"), (1 - MARGIN * 1.01, "a")])
def test_within_the_margin_the_table_stays(times, best):
    assert Machine({"t": 1.0, "a": times}).search().best == best


def test_the_table_alone_is_the_best():
    found = Machine({"t": 1.0}).search()
    assert found.best == "t" and found.finals == {"t": 1.0}


def test_a_wrong_candidate_is_never_timed_and_never_the_best():
    machine = Machine({"t": 1.0, "a": 0.1, "b": 0.8}, wrong="a")
    found = machine.search()
    assert found.best == "b" and found.refused == {"a": "wrong"}
    assert "a" not in machine.timed and "a" not in found.firsts and "a" not in found.finals


COMPILERS = {                      # what Triton raises of a configuration, the note
    "shared memory": (OutOfResources(300_000, 232_448, "shared memory"), "shared memory"),
    "threads": (OutOfResources(2048, 1024, "threads"), "threads"),
    "ptxas": (PTXASError("`ptxas` failed with error code 255\n`ptxas` stderr:\nmore"),
              "`ptxas` failed with error code 255"),
    "compilation": (CompilationError("x = 1", None, "no such tile\nmore"), "no such tile"),
    "compilation without words": (CompilationError(None, None), "<source unavailable>"),
    "pass": (RuntimeError("PassManager::run failed"), "PassManager::run failed"),
}


@pytest.mark.parametrize("kind", COMPILERS)
def test_what_the_compiler_refuses_gets_a_note(kind):
    error, note = COMPILERS[kind]
    found = Machine({"t": 1.0, "a": 0.1, "b": 0.8}, fails={"a": error}).search()
    assert found.best == "b" and found.refused == {"a": note} and list(found.firsts) == ["t", "b"]


@pytest.mark.parametrize("error", [
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    torch.OutOfMemoryError("CUDA out of memory"), ValueError("a bug"), KeyError("a bug"),
    AssertionError("a bug")], ids=repr)
def test_any_other_error_is_raised(error):
    with pytest.raises(type(error)) as raised:
        Machine({"t": 1.0, "a": 0.1}, fails={"a": error}).search()
    assert raised.value is error


@pytest.mark.parametrize("error", [e for e, _ in COMPILERS.values()], ids=list(COMPILERS))
def test_if_the_tables_entry_fails_the_error_is_raised(error):
    with pytest.raises(type(error)):
        Machine({"t": 1.0, "a": 0.1}, fails={"t": error}).search()


def test_only_the_best_four_and_the_table_are_timed_in_rounds_there_and_back():
    times = {"t": 9.0} | {name: 1.0 + i / 10 for i, name in enumerate("abcdefg")}
    machine = Machine(times)
    found = machine.search()
    assert machine.timed[:8] == list("tabcdefg")
    there = ["t", *"abcd"]
    assert machine.timed[8:] == [*there, *there[::-1], *there, *there[::-1], *there]
    assert list(found.finals) == there and list(found.firsts) == list("tabcdefg")


def test_the_median_of_the_rounds_counts_and_not_the_first_look():
    a, b = [0.1, 2.0, 0.2, 2.0, 2.0, 0.2], [0.99, 0.5, 9.0, 0.5, 0.5, 9.0]
    found = Machine({"t": 1.0, "a": a, "b": b}).search()
    assert found.best == "b" and found.finals == {"t": 1.0, "a": 2.0, "b": 0.5}


def test_the_table_has_to_be_beaten_in_the_rounds():
    found = Machine({"t": [2.0, *[1.0] * 5], "a": 1.5}).search()
    assert found.best == "t"


def test_a_candidate_that_is_named_twice_is_tried_once():
    machine = Machine({"t": 1.0, "a": 0.5})
    found = search(["t", "a", "t", "a"], machine.run, lambda x, y: True, machine.clock)
    assert found.best == "a" and len(machine.timed) == 2 * 6


def test_two_results_are_alive_at_once_at_most():
    machine = Machine({name: 1.0 for name in "tabcdefg"}, wrong="ce")
    machine.search()
    assert machine.most_alive == 2


def result(dtype=torch.bfloat16, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, 64, 16, generator=rng).to(dtype), torch.randn(1, 2, 64, generator=rng)]


@pytest.mark.parametrize("dtype, factor", [(torch.bfloat16, 8 * 2.0**-7), (torch.float16, 8 * 2.0**-10),
                                           (torch.float32, 1e-5)], ids=str)
def test_alike_allows_the_rounding_of_the_dtype_and_no_more(dtype, factor):
    o, lse = result(dtype)
    o = o.fill_(1.0)                                        # so that its own rounding is known
    assert alike((o, lse), (o, lse))
    assert alike((o * (1 + 0.5 * factor), lse), (o, lse))
    assert not alike((o * (1 + 2 * factor), lse), (o, lse))
    assert alike((o, lse + 5e-4), (o, lse)) and not alike((o, lse + 2e-3), (o, lse))
    one = lse.clone()
    one[0, 1, 5] += 2e-3                                    # no mean may hide it
    assert not alike((o, one), (o, lse))


def test_alike_looks_at_every_tensor():
    got = (*result(torch.float32)[:1], *result(torch.float32, 1)[:1], *result(torch.float32, 2)[:1])
    for i in range(3):
        spoilt = [x.clone() for x in got]
        spoilt[i][0, 1, 7] = 0.0
        assert not alike(spoilt, got)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 7.0], ids=str)
@pytest.mark.parametrize("which", [0, 1])
def test_alike_wants_what_is_not_finite_at_the_same_places(which, value):
    plain, spoilt = result(), result()
    spoilt[which][0, 1, 3] = value
    if value != 7.0:
        assert alike(spoilt, [x.clone() for x in spoilt])
    assert not alike(spoilt, plain) and not alike(plain, spoilt)
    for other in (float("nan"), float("inf"), -float("inf"), 7.0):
        changed = [x.clone() for x in spoilt]
        changed[which][0, 1, 3] = other
        same = other == value or (other != other and value != value)
        assert alike(changed, spoilt) == same


def test_a_result_of_zeros_is_like_zeros_alone():
    o = torch.zeros(1, 1, 4, 8)
    assert alike((o,), (o,)) and not alike((o + 1e-30,), (o,))
