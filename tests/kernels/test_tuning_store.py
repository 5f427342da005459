"""What tuning found: kept for exactly its case, asked for when a plan is made, carried by a file."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

from flashlib.kernels import plans  # noqa: E402
from flashlib.kernels.backends import gluon  # noqa: E402
from flashlib.kernels.backends import triton as triton_backend  # noqa: E402
from flashlib.kernels.configs import GluonConfig, TritonConfig, configs_for  # noqa: E402
from flashlib.kernels.problem import CAUSAL, FULL, Problem  # noqa: E402
from flashlib.kernels.tuning import store  # noqa: E402
from flashlib.masks import Window  # noqa: E402
from tests.kernels.once import run_once  # noqa: E402

FORWARD = TritonConfig(32, 16, 8, 2)
BACKWARD = configs_for((9, 0), 2, 64, True)._replace(dq=TritonConfig(64, 32, 4, 2))
APART = configs_for((9, 0), 2, 256, True)                   # dK and dV in a kernel each
GLUON = GluonConfig(64, 2, 4, PING_PONG=False, TAU=8.0)
Q, K = torch.zeros(2, 4, 32, 64, dtype=torch.bfloat16), torch.zeros(2, 2, 48, 64, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def this_machine(monkeypatch, nothing_kept):
    """This machine's only device is called "cpu"."""
    monkeypatch.setattr(store, "_here", lambda: {"cpu"})


def case(kernel, q=Q, k=K, causal=True, tma=True):
    return store.Case(kernel, "cpu", triton.__version__, str(q.dtype).removeprefix("torch."),
                      *q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3], causal, tma)


def kept(kernel, q=Q, k=K, causal=True, tma=True):
    return store._results.get(case(kernel, q, k, causal, tma))


def keep_all():
    store.keep(case("triton_forward"), FORWARD)
    store.keep(case("triton_backward", tma=(True, False)), BACKWARD)
    store.keep(case("triton_backward", causal=False, tma=(True, True)), APART)
    store.keep(case("gluon_forward"), GLUON)


def test_a_file_brings_back_what_was_kept(tmp_path):
    keep_all()
    before = dict(store._results)
    assert store.save_tuned(tmp_path / "tuned.json") == len(before) == 4
    store.forget_tuned()
    assert kept("triton_forward") is None
    assert store.load_tuned(str(tmp_path / "tuned.json")) == 4
    assert store._results == before
    for found, config in before.items():
        assert type(store._results[found]) is type(config)
    backward = next(c for c in before if c.kernel == "triton_backward")
    assert type(store._results[backward].dq) is TritonConfig


def test_a_file_adds_and_replaces_and_the_rest_stays(tmp_path):
    store.keep(case("triton_forward"), FORWARD)
    store.save_tuned(tmp_path / "tuned.json")
    store.keep(case("triton_forward"), FORWARD._replace(num_warps=4))
    store.keep(case("triton_forward", causal=False), FORWARD)
    assert store.load_tuned(tmp_path / "tuned.json") == 1
    assert kept("triton_forward") == FORWARD
    assert kept("triton_forward", causal=False) == FORWARD


def test_results_of_other_machines_are_counted_out_and_carried_on(tmp_path):
    keep_all()
    path = tmp_path / "tuned.json"
    store.save_tuned(path)
    found = json.loads(path.read_text())
    found["results"][0]["gpu"], found["results"][1]["triton"] = "NVIDIA H200", "3.0.0"
    path.write_text(json.dumps(found))
    store.forget_tuned()
    assert store.load_tuned(path) == 2
    assert kept("triton_forward") is None
    assert store.save_tuned(tmp_path / "again.json") == 4


def test_the_devices_of_this_machine_are_its_gpus_and_the_interpreter(monkeypatch):
    monkeypatch.undo()
    assert store._here() == ({"cpu"} if triton.knobs.runtime.interpret else set())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {i}")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert store._here() == {"GPU 0", "GPU 1", "cpu"}


def entry(change):
    """Return what makes a change to the first entry of a file, or with a number another's."""
    number, changes = change if isinstance(change, tuple) else (0, change)

    def spoil(found):
        target = found["results"][number]
        for name, value in changes.items():
            *inner, last = name.split(".")
            place = target
            for step in inner:
                place = place[step]
            if value is ...:
                del place[last]
            else:
                place[last] = value
    return spoil


ENTRIES = {                        # the entry and its change, words of the message
    "no kernel": ({"kernel": ...}, "entry 0: expected the fields kernel, gpu"),
    "a field more": ({"extra": 1}, "entry 0: expected the fields"),
    "kernel of a number": ({"kernel": 7}, "entry 0: kernel: expected a text, got 7"),
    "window of one": ({"window": [1]}, r"entry 0: window: expected null or two .* got \[1\]"),
    "window below 0": ({"window": [-1, 0]}, r"entry 0: window: .* got \[-1, 0\]"),
    "gpu": ({"gpu": 9}, "entry 0: gpu: expected a text, got 9"),
    "triton": ({"triton": None}, "entry 0: triton: expected a text, got None"),
    "dtype": ({"dtype": "float64"}, "entry 0: dtype: expected one of .*, got 'float64'"),
    "B": ({"B": 0}, "entry 0: B: expected an integer of at least 1, got 0"),
    "N_q": ({"N_q": 2.0}, "entry 0: N_q: expected an integer of at least 1, got 2.0"),
    "D": ({"D": True}, "entry 0: D: expected an integer of at least 1, got True"),
    "causal": ({"causal": 1}, "entry 0: causal: expected true or false, got 1"),
    "tma": ({"tma": [True, True]}, r"entry 0: tma: expected true or false, got \[True, True\]"),
    "tma of a backward": ((1, {"tma": True}), "entry 1: tma: expected a list of two.* got True"),
    "tma of three": ((1, {"tma": [True] * 3}), "entry 1: tma: expected a list of two"),
    "tma of numbers": ((1, {"tma": [1, 0]}), "entry 1: tma: expected a list of two"),
    "tma of gluon": ((3, {"tma": False}), "entry 3: tma: expected true, got False"),
    "a list": ({"config": [64, 64, 4, 2]}, "entry 0: config: expected the fields BLOCK_M, BLOCK_N"),
    "no warps": ({"config.num_warps": ...}, "entry 0: config: expected the fields"),
    "a switch more": ({"config.TAU": 8.0}, "entry 0: config: expected the fields"),
    "48 rows": ({"config.BLOCK_M": 48}, r"entry 0: config.BLOCK_M: expected a power of 2 .*, got 48"),
    "no rows": ({"config.BLOCK_N": 0}, r"entry 0: config.BLOCK_N: expected a power of 2 .*, got 0"),
    "negative": ({"config.BLOCK_N": -64}, "entry 0: config.BLOCK_N: .* got -64"),
    "rows in float": ({"config.BLOCK_M": 64.0}, "entry 0: config.BLOCK_M: .* got 64.0"),
    "rows a flag": ({"config.num_warps": True}, "entry 0: config.num_warps: .* got True"),
    "too many": ({"config.BLOCK_M": 2**20}, "entry 0: config.BLOCK_M: .* got 1048576"),
    "no stages": ({"config.num_stages": 0}, "entry 0: config.num_stages: .* from 1 to .*, got 0"),
    "no dq": ((1, {"config.dq": None}), "entry 1: config: expected forward, dq, and .*, got dkdv, for"),
    "all three": ((1, {"config.dk": {n: 8 for n in TritonConfig._fields}}),
                  "entry 1: config: .* got dk, "),
    "dk alone": ((2, {"config.dv": None}), "entry 2: config: expected forward, dq, and dkdv or both"),
    "a part's rows": ((1, {"config.dq.BLOCK_M": 3}), "entry 1: dq.BLOCK_M: expected a power of 2"),
    "a part a list": ((2, {"config.dk": [1]}), r"entry 2: dk: expected the fields .*, got \[1\]"),
    "rows none": ((1, {"config": None}), "entry 1: config: expected the fields forward, dkdv"),
    "gluon's fields": ((3, {"config.TAU": ...}), "entry 3: config: expected the fields BLOCK_N, CONS"),
    "turns": ((3, {"config.PING_PONG": 1}), "entry 3: config.PING_PONG: expected True or False, got 1"),
    "tau": ((3, {"config.TAU": float("nan")}), "entry 3: config.TAU: expected a number .* got nan"),
    "tau 16": ((3, {"config.TAU": 16}), "entry 3: config.TAU: expected a number from 0 to 8, got 16"),
    "tau a flag": ((3, {"config.TAU": True}), "entry 3: config.TAU: .* got True"),
    "one consumer": ((3, {"config.CONSUMERS": 1}), "entry 3: config.CONSUMERS: .* from 2 to 3, got 1"),
    "three and no producer": ((3, {"config.SPECIALIZED": False, "config.CONSUMERS": 3}),
                              "entry 3: config.CONSUMERS: expected 2 without SPECIALIZED, got 3"),
    "a thousand slots": ((3, {"config.STAGES": 1024}), "entry 3: config.STAGES: .* got 1024"),
    "too many emulated": ((3, {"config.EMULATED": 3}), "entry 3: config.EMULATED: .* got 3"),
    "a row": ((0, {"config.BLOCK_M": 1}), "entry 0: config.BLOCK_M: expected a power of 2 from 8"),
    "emulated": ((3, {"config.EMULATED": -1}), "entry 3: config.EMULATED: .* from 0 to .*, got -1"),
}
FILES = {                          # what becomes of the file's text, words of the message
    "empty": (lambda found: "", "expected a file of save_tuned, got"),
    "no JSON": (lambda found: "{", "expected a file of save_tuned, got"),
    "a list": (lambda found: json.dumps(found["results"]), "expected a file of save_tuned, with"),
    "no format": (lambda found: json.dumps({"results": []}), "expected a file of save_tuned, with"),
    "results a dict": (lambda found: json.dumps(found | {"results": {}}), "and a list 'results'"),
    "format 2": (lambda found: json.dumps(found | {"format": 2}), "expected format 1, got 2 in"),
    "format true": (lambda found: json.dumps(found | {"format": True}), "expected format 1, got True"),
    "nested without end": (lambda found: "[" * 100_000, "expected a file of save_tuned, got"),
    "an entry a number": (lambda found: json.dumps(found | {"results": [*found["results"], 5]}),
                          "entry 4: expected the fields .*, got 5"),
}


@pytest.mark.parametrize("wrong", [*FILES, *(f"entry: {name}" for name in ENTRIES)])
def test_of_a_bad_file_nothing_is_taken(wrong, tmp_path):
    path = tmp_path / "tuned.json"
    keep_all()
    store.save_tuned(path)
    store.forget_tuned()
    store.keep(case("triton_forward", k=Q), FORWARD)
    before, found = dict(store._results), json.loads(path.read_text())
    if wrong in FILES:
        make, words = FILES[wrong]
        text = make(found)
    else:
        change, words = ENTRIES[wrong.removeprefix("entry: ")]
        entry(change)(found)
        text = json.dumps(found)
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"(?s)^path: .*{words}") as error:
        store.load_tuned(path)
    assert str(path) in str(error.value)
    assert store._results == before


def test_a_kernel_that_is_not_known_is_said_and_left_and_an_older_file_knows_no_window(tmp_path):
    path = tmp_path / "tuned.json"
    keep_all()
    store.save_tuned(path)
    before, found = dict(store._results), json.loads(path.read_text())
    for result in found["results"]:
        del result["window"]
    found["results"].insert(1, found["results"][0] | {"kernel": "cuda_forward", "tma": 7, "config": 8})
    path.write_text(json.dumps(found))
    store.forget_tuned()
    with pytest.warns(UserWarning, match="entry 1: no kernel is called 'cuda_forward'"):
        assert store.load_tuned(path) == len(before)
    assert store._results == before


def test_a_window_has_a_result_of_its_own(hopper, tmp_path):
    """Bounds that lie beyond all keys are no bounds: so the same result serves them."""
    backend, windows = triton_backend.BACKEND, (FULL, Window(8, 0), Window(8, 1), Window(9, 0))
    problems = [Problem.of(Q, K, K, window=w) for w in windows]
    store.keep(store.case_of(backend, problems[1], "forward"), FORWARD)
    store.save_tuned(tmp_path / "tuned.json")
    store.forget_tuned()
    assert store.load_tuned(tmp_path / "tuned.json") == 1
    found = [store.result_for(backend, p, "forward") for p in problems]
    assert found == [None, FORWARD, None, None]
    assert backend.config(problems[1], "forward") == FORWARD
    far = [Problem.of(Q, K, K, window=Window(far, 0)) for far in (10**3, 10**4)]
    assert store.case_of(backend, far[0], "forward") == store.case_of(backend, far[1], "forward")


def test_a_file_that_is_not_there_is_pythons_own_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        store.load_tuned(tmp_path / "none.json")


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


OTHERS = {                         # kernel, q, k, causal, tma: one differs from what is kept
    "kernel": ("gluon_forward", Q, K, True, True),
    "dtype": ("triton_forward", Q.half(), K.half(), True, True),
    "B": ("triton_forward", zeros(1, 4, 32, 64), zeros(1, 2, 48, 64), True, True),
    "H": ("triton_forward", zeros(2, 2, 32, 64), K, True, True),
    "H_k": ("triton_forward", Q, zeros(2, 4, 48, 64), True, True),
    "N_q": ("triton_forward", zeros(2, 4, 33, 64), K, True, True),
    "N_k": ("triton_forward", Q, zeros(2, 2, 47, 64), True, True),
    "D": ("triton_forward", zeros(2, 4, 32, 56), zeros(2, 2, 48, 56), True, True),
    "causal": ("triton_forward", Q, K, False, True),
    "tma": ("triton_forward", Q, K, True, False),
}


@pytest.mark.parametrize("part", OTHERS)
def test_a_result_holds_for_its_case_alone(part):
    store.keep(case("triton_forward"), FORWARD)
    assert kept("triton_forward") == FORWARD
    assert kept(*OTHERS[part]) is None


@pytest.mark.parametrize("part", ["gpu", "triton"])
def test_a_result_holds_for_its_machine_alone(part, hopper, monkeypatch):
    p = Problem.of(Q, K, K, window=CAUSAL)
    store.keep(case("triton_forward"), FORWARD)
    assert store.result_for(triton_backend.BACKEND, p, "forward") == FORWARD
    if part == "gpu":
        p = replace(p, device=p.device._replace(name="another"))
    else:
        monkeypatch.setattr(triton, "__version__", "9.9.9")
    assert store.result_for(triton_backend.BACKEND, p, "forward") is None


def launched(backend, *tensors, direction="forward", causal=True, config=None, more=()):
    """Return by part the configuration that a backend launches with."""
    p = Problem.of(*tensors, window=CAUSAL if causal else FULL)
    found = plans.launches_for(backend, p, direction, config, *more)
    return {part: TritonConfig(*(launch.plan.constants[n] for n in ("BLOCK_M", "BLOCK_N")),
                               **launch.plan.options) for part, launch in found.items()
            if part != "delta"}


def test_explicit_before_kept_before_the_table_forward():
    q, k = Q.float(), K.float()
    table = configs_for(None, 4, 64, True).forward
    other = TritonConfig(16, 16, 4, 1)

    def forward(**options):
        return launched(triton_backend.BACKEND, q, k, k, **options)["forward"]

    assert forward() == table
    store.keep(case("triton_forward", q, k, tma=False), FORWARD)
    assert forward() == FORWARD
    assert forward(config=other) == other
    assert forward(causal=False) == table
    store.keep(case("triton_forward", q, k, tma=False), None)
    assert forward() == table


def test_explicit_before_kept_before_the_table_backward(hopper):
    k, table = K.expand(2, 2, 48, 64), configs_for((9, 0), 2, 64, True)
    small = TritonConfig(16, 16, 8, 1)
    other = table._replace(dq=small, dkdv=small)

    def backward(config=None, do=Q):
        return launched(triton_backend.BACKEND, Q, k, k, Q, do, direction="backward", config=config)

    def parts(configs):
        return {name: c for name, c in configs._asdict().items() if c and name != "forward"}

    kept = APART._replace(dq=TritonConfig(64, 32, 2, 4))
    assert backward() == parts(table)
    store.keep(case("triton_backward", k=k, tma=(True, True)), kept)
    assert backward() == parts(kept) != parts(table)
    assert backward(other) == parts(other) != parts(kept)
    # a gradient that the copy engine cannot read makes another kernel: nothing was found for that
    assert backward(do=torch.zeros(1, dtype=Q.dtype).expand(Q.shape)) == parts(table)


def test_explicit_before_kept_before_the_table_gluon(hopper):
    table, other = gluon.BACKEND.table(Problem.of(Q, K, K, window=CAUSAL), "forward"), GLUON._replace(
        STAGES=3)

    def stages(config=None, causal=True):
        p = Problem.of(Q, K, K, window=CAUSAL if causal else FULL)
        plan = plans.launches_for(gluon.BACKEND, p, "forward", config)["forward"].plan
        return plan.constants["BLOCK_N"], plan.constants["STAGES"], plan.constants["PING_PONG"]

    before = stages()
    store.keep(case("gluon_forward"), GLUON)
    assert [before, stages(), stages(other)] == [(c.BLOCK_N, c.STAGES, c.PING_PONG)
                                                 for c in (table, GLUON, other)]
    assert stages(causal=False) == before != stages()


@pytest.mark.parametrize("change", ["keep", "load"])
def test_later_calls_find_the_result(change, tmp_path):
    q, k = Q.float(), K.float()
    mine = case("triton_forward", q, k, tma=False)
    store.keep(mine, FORWARD)
    store.save_tuned(tmp_path / "tuned.json")
    store.forget_tuned()
    table = configs_for(None, 4, 64, True).forward

    def plan():
        return launched(triton_backend.BACKEND, q, k, k)["forward"]

    assert plan() == table
    if change == "keep":
        store.keep(mine, FORWARD)
    else:
        store.load_tuned(tmp_path / "tuned.json")
    assert plan() == FORWARD
    store.forget_tuned()
    assert plan() == table


def test_a_result_is_looked_up_once_for_many_calls(monkeypatch):
    asked = []
    monkeypatch.setattr(store, "result_for", lambda *case: asked.append(case))
    for _ in range(3):
        launched(triton_backend.BACKEND, Q, K, K)
    assert len(asked) == 1


def test_dropping_what_is_not_there_leaves_launches_alone():
    p = Problem.of(Q, K, K)
    store.keep(case("triton_forward"), None)
    assert Problem.of(Q, K, K) is p


def test_a_file_that_was_there_stays_whole_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "tuned.json"
    keep_all()
    store.save_tuned(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        store.save_tuned(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["the trials", "what was kept", "the plan", "forward", "gradients",
                                  "narrow", "forgotten"])
def test_the_interpreter_runs_what_was_tuned(what):
    outcomes = run_once("-m", "tests.kernels.tuned_cases")
    assert outcomes.get(what, outcomes.get("error", "did not run")) == ""
