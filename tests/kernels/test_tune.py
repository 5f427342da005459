"""What `tune` asks of its arguments, which configurations it tries, and what it keeps."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

from flashlib.kernels import configs, plans  # noqa: E402
from flashlib.kernels.backends import choose, gluon  # noqa: E402
from flashlib.kernels.backends import triton as triton_backend  # noqa: E402
from flashlib.kernels.configs import TritonConfig, configs_for, padded  # noqa: E402
from flashlib.kernels.problem import CAUSAL, FULL, Problem  # noqa: E402
from flashlib.kernels.tuning import search as tuning  # noqa: E402
from flashlib.kernels.tuning import store  # noqa: E402
from flashlib.masks import Window  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_kept")


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
                configs.GLUON_TILES[max(32, padded(D))]) - {first[:4]}
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
