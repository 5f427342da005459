"""The search, with made-up kernels and a made-up clock, and what `tune` asks of its arguments."""

import weakref

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

from triton.compiler.errors import CompilationError  # noqa: E402
from triton.runtime.errors import OutOfResources, PTXASError  # noqa: E402

from flashlib.kernels import configs, plans  # noqa: E402
from flashlib.kernels.backends import choose, gluon  # noqa: E402
from flashlib.kernels.backends import triton as triton_backend  # noqa: E402
from flashlib.kernels.configs import TritonConfig, configs_for, padded  # noqa: E402
from flashlib.kernels.problem import CAUSAL, FULL, Problem  # noqa: E402
from flashlib.kernels.tuning import search as tuning  # noqa: E402
from flashlib.kernels.tuning import store  # noqa: E402
from flashlib.kernels.tuning.search import MARGIN, alike, search  # noqa: E402
from flashlib.masks import Window  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_kept")


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


def half(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


LONG = half(1, 2, 4096, 64)


def candidates(backend, q, k, causal, direction="forward"):
    p = Problem.of(q, k, k, q, q, window=CAUSAL if causal else FULL)
    return backend.BACKEND.table(p, direction), backend.BACKEND.candidates(p, direction)


@pytest.mark.parametrize("D", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_threads_can_hold_what_is_tried(gpu, D, causal, capability, dtype):
    gpu(*capability)
    x, table = half(1, 1, 300, D, dtype=dtype), configs_for(capability, dtype.itemsize, D, causal)
    first, others = candidates(triton_backend, x, x, causal)
    assert first == table.forward and list(others) == [""]
    assert len(set(others[""])) == len(others[""]) and 4 <= len(others[""]) <= 40
    whole, by_part = candidates(triton_backend, x, x, causal, "backward")
    assert whole == table and list(by_part) == [*(["dkdv"] if table.dkdv else ["dk", "dv"]), "dq"]
    small, head_dim = dtype == torch.float32 or capability < (8, 0), padded(D)
    for part, tried in (others | by_part).items():
        assert tried
        for c in tried:
            own, walked = (c.BLOCK_N, c.BLOCK_M) if part[:2] in ("dk", "dv") else c[:2]
            width = 2 * head_dim if part == "dkdv" else head_dim
            assert own * (width + walked) / (32 * c.num_warps) <= (64 if small else 256)
            assert not small or max(c[:2]) <= 64


def test_tiles_for_few_rows_are_small():
    few = half(1, 2, 1, 64)

    def tried(q, k):
        return candidates(triton_backend, q, k, False)[1][""]

    assert {c.BLOCK_M for c in tried(few, LONG)} == {16}
    assert {c.BLOCK_M for c in tried(LONG, LONG)} == {64, 128}
    assert {c.BLOCK_N for c in tried(LONG, few)} == {32}
    assert triton_backend._fitting((16, 32, 64), 16) == [16]
    assert triton_backend._fitting((16, 32, 64), 17) == [16, 32]


def test_the_gluon_kernel_is_tried_with_its_switches_and_other_tiles(hopper):
    for D in (16, 32, 64, 80, 128, 256):
        for causal in (False, True):
            x = half(1, 1, 4096, D)
            first, others = candidates(gluon, x, x, causal)
            others = others[""]
            assert first == configs.gluon_config_for(D, causal, 4096)
            own = [c for c in (first, *others) if c[:4] == first[:4]]
            assert {(c.PING_PONG, c.UNDER_SOFTMAX, c.TAU) for c in own} == {
                (a, b, tau) for a in (True, False) for b in (True, False) for tau in (0.0, 8.0)}
            assert {c[:4] for c in others} - {first[:4]} == set(
                gluon.TILES[max(32, padded(D))]) - {first[:4]}
            for c in others:
                assert c.CONSUMERS in configs.REGISTERS and c.SPECIALIZED
                assert c.O_PARTS == first.O_PARTS


def ones(*shape, dtype=torch.float32, **options):
    return torch.ones(*shape, dtype=dtype, **options)


GOOD = ones(2, 4, 5, 16)
WRONG = {                          # what changes, the error, its message
    "a list": ({"q": [[1.0]]}, TypeError, "q: expected a torch.Tensor, got list"),
    "D of k": ({"k": ones(2, 4, 5, 7)}, ValueError, "k: expected head dimension 16 as in q, got 7"),
    "causal": ({"causal": 1}, TypeError, "causal: expected True or False, got 1"),
    "impl": ({"impl": "cuda"}, ValueError, r"impl: expected one of \('auto', .*\), got 'cuda'"),
    "reference": ({"impl": "reference"}, ValueError,
                  "impl: tune expected 'auto', 'triton' or 'gluon', got 'reference'"),
    "float64": ({n: GOOD.double() for n in "qkv"}, NotImplementedError,
                "q: tune expected float16, bfloat16 or float32, got torch.float64"),
    "no queries": ({"q": ones(2, 4, 0, 16)}, ValueError,
                   r"q, k: tune expected at least one row each, got shapes \(2, 4, 0, 16\) and"),
    "no keys": ({n: ones(2, 4, 0, 16) for n in "kv"}, ValueError,
                r"q, k: tune expected at least one row .* and \(2, 4, 0, 16\)"),
    "no batch": ({n: ones(0, 4, 5, 16) for n in "qkv"}, ValueError, "q, k: tune expected at least one"),
    "the CPU": ({}, NotImplementedError, "q: tune expected tensors on a GPU, got cpu"),
    "gluon on the CPU": ({"impl": "gluon"}, NotImplementedError, "q: tune expected .* GPU, got cpu"),
    "a device without memory": ({n: GOOD.to("meta") for n in "qkv"}, NotImplementedError,
                                "q: tune expected tensors on a GPU, got meta"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("interpreter", [False, True])
def test_wrong_arguments_are_refused_before_any_launch(wrong, interpreter, monkeypatch):
    changes, error, message = WRONG[wrong]
    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpreter)
    monkeypatch.setattr(tuning, "tune_kernels", lambda *a: pytest.fail("it came to a search"))
    with pytest.raises(error, match=f"^{message}"):
        tuning.tune(**{"q": GOOD, "k": GOOD, "v": GOOD} | changes)


def test_the_interpreter_on_a_gpu_is_refused(monkeypatch):
    class OnGPU(torch.Tensor):
        device = torch.device("cuda", 0)

    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(NotImplementedError, match=r"^q: tune expected Triton's interpreter to be off"):
        tuning._check_tunable(GOOD.as_subclass(OnGPU), GOOD, "auto")


@pytest.mark.parametrize("impl, x, name", [
    ("auto", LONG, "gluon"), ("gluon", LONG, "gluon"), ("triton", LONG, "triton"),
    ("auto", LONG.float(), "triton"), ("auto", half(1, 1, 8, 16), "triton"),
    ("gluon", half(1, 1, 8, 16), "gluon"), ("auto", half(1, 1, 64, 64).transpose(2, 3), "triton")])
def test_the_kernel_that_would_run_is_tuned(hopper, monkeypatch, impl, x, name):
    asked = []
    monkeypatch.setattr(tuning, "search", lambda rows, call, *a: asked.append(call.args[0].name)
                        or tuning.Search(rows[0], {}, {}, {}))
    tuning.tune_kernels(x, x, x, FULL, 1.0, impl, False, None)
    assert asked == [name]


def test_without_a_hopper_gpu_auto_is_triton(gpu):
    gpu(8, 0)
    p = Problem.of(LONG, LONG, LONG)
    assert choose(p, "auto", "forward").name == "triton"
    with pytest.raises(NotImplementedError, match=r"^impl: 'gluon' expected a Hopper GPU .*'auto'$"):
        tuning.tune_kernels(LONG, LONG, LONG, FULL, 1.0, "gluon", False, None)


@pytest.mark.parametrize("grad, enabled, backward", [("", True, False), ("q", True, True),
                                                     ("v", True, True), ("k", False, False)])
def test_the_backward_is_tuned_if_a_gradient_is_wanted(monkeypatch, grad, enabled, backward):
    seen = []
    monkeypatch.setattr(tuning, "_check_tunable", lambda *a: None)
    monkeypatch.setattr(tuning, "tune_kernels", lambda *a: seen.append(a))
    tensors = {n: GOOD.clone().requires_grad_(n in grad) for n in "qkv"}
    with torch.set_grad_enabled(enabled):
        tuning.tune(**tensors, causal=True, window=(3, 9))
    (q, k, v, window, scale, impl, wanted, clock), = seen
    assert wanted is backward and window == Window(3, 0) and scale == 0.25 and impl == "auto"
    assert not (q.requires_grad or k.requires_grad or v.requires_grad)
    assert clock is tuning._milliseconds and q.data_ptr() == tensors["q"].data_ptr()


def fake_kernels(monkeypatch):
    """Let forwards return zeros on the CPU, and note the configuration of each call."""
    called = []
    for backend in (triton_backend.BACKEND, gluon.BACKEND):
        def run(self, q, k, v, p, scale, config=None):
            called.append((self.name, config))
            return torch.zeros_like(q), torch.zeros(q.shape[:3])

        monkeypatch.setattr(type(backend), "forward", run)
    return called


@pytest.mark.parametrize("name", ["gluon", "triton"])
def test_the_winner_is_kept_for_its_kernel_and_dropped_when_the_table_wins(hopper, monkeypatch, name):
    called, backend = fake_kernels(monkeypatch), {"gluon": gluon, "triton": triton_backend}[name]
    x = half(1, 2, 256, 64)
    table, others = candidates(backend, x, x, True)
    tried = [*dict.fromkeys([table, *others[""]])]
    p = Problem.of(x, x, x, window=CAUSAL)

    def tune(best):
        clock = {config: 1.0 + i for i, config in enumerate(tried)} | {best: 0.5}
        return tuning.tune_kernels(x, x, x, CAUSAL, 1.0, name, False, lambda call: clock[call.args[1]])

    for best in (tried[-1], tried[3]):
        trials = tune(best)
        assert store.result_for(backend.BACKEND, p, "forward") == best
        assert [t.note for t in trials[:2]] == ["kept", "table"] and trials[0].config == best
        assert len(trials) == len(tried) and {t.kernel for t in trials} == {f"{name}_forward"}
        assert {t.note for t in trials[2:]} == {""}
        assert [t.milliseconds for t in trials] == sorted(t.milliseconds for t in trials)
    trials = tune(tried[0])
    assert store.result_for(backend.BACKEND, p, "forward") is None and not store._results
    assert trials[0].note == "table" and not [t for t in trials if t.note == "kept"]
    assert {called_name for called_name, _ in called} == {name}


def test_a_search_leaves_the_launches_of_calls_alone(hopper, monkeypatch):
    x, made = half(1, 2, 256, 64), []
    p = Problem.of(x, x, x, window=CAUSAL)

    def forward(self, q, k, v, p, scale, config):
        made.append(plans.launches_for(self, p, "forward", config))
        return torch.zeros_like(q), torch.zeros(q.shape[:3])

    old = plans.launches_for(triton_backend.BACKEND, p, "forward")
    monkeypatch.setattr(triton_backend.Triton, "forward", forward)
    monkeypatch.setattr(plans._plans, "most", 2)
    before = list(plans._plans._entries)
    tuning.tune_kernels(x, x, x, CAUSAL, 1.0, "triton", False, lambda call: 1.0)
    assert len(made) > 10 and list(plans._plans._entries) == before
    assert plans.launches_for(triton_backend.BACKEND, Problem.of(x, x, x, window=CAUSAL),
                              "forward") is old and len(p.made) == 1


def test_what_was_not_timed_comes_last_with_the_reason():
    table, best = TritonConfig(64, 64, 4, 2), TritonConfig(64, 64, 8, 2)
    late, wrong = TritonConfig(16, 16, 4, 2), TritonConfig(32, 32, 4, 2)
    found = tuning.Search(best, {table: 2.0, best: 1.0}, {table: 2.5, best: 1.5, late: 0.9},
                          {wrong: "wrong"})
    case = store.case_of(triton_backend.BACKEND, Problem.of(LONG, LONG, LONG), "forward")
    trials = tuning._keep(case, table, found)
    assert [t[1:] for t in trials] == [(best, 1.0, "kept"), (table, 2.0, "table"), (late, 0.9, ""),
                                       (wrong, None, "wrong")]
