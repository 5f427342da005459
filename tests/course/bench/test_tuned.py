"""What the measurement of tuning writes of a search, and which configurations it compiles before."""

import pytest

from flashlib.course.bench import tuned
from flashlib.course.notebook.data import measurements
from flashlib.kernels.configs import TritonConfig, TritonConfigs
from tests.kernels.conftest import gpu, hopper, nothing_kept  # noqa: F401, the fixtures

TABLE, BEST, WRONG = TritonConfig(64, 64, 4, 2), TritonConfig(128, 64, 8, 3), TritonConfig(64, 32, 4, 2)
ROWS = TritonConfigs(TABLE, None, TABLE, BEST, TABLE)
CASE = (1, 8, 4, 333, 1000, 80, True)


def trials():
    from flashlib.kernels.tuning.search import Trial

    return [Trial("triton_forward", BEST, 1.0, "kept"), Trial("triton_forward", TABLE, 1.5, "table"),
            Trial("triton_forward", WRONG, None, "wrong"), Trial("triton_backward", ROWS, 4.0, "table"),
            Trial("triton_backward", ROWS._replace(dq=BEST), 3.99, "")]


def test_a_row_for_each_kernel_names_the_tables_entry_and_the_best():
    pytest.importorskip("triton")
    forward, backward = tuned.rows_of(CASE, "triton", trials(), 7.0)
    assert tuple(forward) == measurements("tuned_h200").columns
    assert forward == {
        "impl": "triton", "mode": "forward", "causal": 1, "B": 1, "H": 8, "H_k": 4, "N_q": 333,
        "N_k": 1000, "d": 80, "kernel": "triton_forward",
        "table": "BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2",
        "table_seconds": 1.5e-3,
        "best": "BLOCK_M=128 BLOCK_N=64 num_warps=8 num_stages=3", "best_seconds": 1e-3,
        "speedup": 1.5, "timed": 2, "refused": 1, "search_seconds": 7.0}
    assert backward["best"] == backward["table"]
    assert backward["best_seconds"] == backward["table_seconds"] == 4e-3
    assert backward["speedup"] == 1.0 and (backward["timed"], backward["refused"]) == (2, 0)
    assert backward["table"].split("; ")[0] == "dk BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2"
    assert [part.split()[0] for part in backward["table"].split("; ")] == ["dk", "dv", "dq"]


def test_all_that_a_search_runs_is_compiled_before(hopper, monkeypatch):  # noqa: F811
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    from flashlib.kernels.backends import gluon, triton
    from flashlib.kernels.problem import CAUSAL
    from flashlib.kernels.tuning import search

    x = torch.zeros(1, 2, 333, 64, dtype=torch.bfloat16)
    monkeypatch.setattr(tuned, "inputs", lambda case: [x] * 3)
    made = tuned.jobs(CASE)
    assert len(set(made)) == len(made) and {job[0] for job in made} == {CASE}
    ran = []

    def forward(self, q, k, v, p, scale, config=None):
        ran.append(config)
        return q, q[..., 0].float()

    def backward(self, q, k, v, o, lse, do, dlse, p, scale, config=None):
        ran.append(config)
        return q, q, q

    for backend in (triton.BACKEND, gluon.BACKEND):
        monkeypatch.setattr(type(backend), "forward", forward)
        monkeypatch.setattr(type(backend), "backward", backward)
    for impl in ("triton", "auto"):
        search.tune_kernels(x, x, x, CAUSAL, 1.0, impl, impl == "triton", lambda call: 1.0)
    assert {config for _, _, config in made} == set(ran) - {None}


def test_without_a_gpu_it_ends_in_one_sentence(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        tuned.main([])
