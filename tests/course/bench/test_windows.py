"""The benchmark of windows: its steps at toy sizes, what it counts, and that it times nothing wrong."""

import pytest

from flashlib.course.bench import harness, windows
from flashlib.course.notebook.data import read_measurement
from flashlib.masks import Window

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    windows.main(["--dry-run", "--out", str(folder), "--name", "toy", "--rounds", "2"])
    return read_measurement(folder / "windows_toy.csv")


def test_a_dry_run_has_a_row_for_every_mode_and_window_and_for_none(dry):
    cases = [(row["mode"], row["window_left"]) for row in dry.rows]
    assert sorted(cases, key=str) == sorted(((mode, left) for mode in windows.MODES
                                             for left in (*windows.DRY_LEFTS, None)), key=str)
    assert (dry.column("seconds") > 0).all() and (dry.column("rounds") == 2).all()
    assert (dry.column("relative_error") < windows.TOLERANCE).all()
    assert set(dry.column("causal")) == {1}


def test_tiles_and_flops_are_those_of_the_mask(dry):
    B, H, N, d = windows.DRY
    for row in dry.rows:
        left = N if row["window_left"] is None else row["window_left"]
        seen = [(max(0, i - left), i) for i in range(N)]
        pairs = sum(i - first + 1 for first, i in seen)
        assert row["flops"] == 4 * B * H * d * pairs * (2.5 if row["mode"] == "backward" else 1)
        assert (row["BLOCK_M"], row["BLOCK_N"]) == (128, 128)
        visited = {(i // 128, j // 128) for first, i in seen for j in range(first, i + 1)}
        assert row["key_tiles"] == B * H * len(visited)


@pytest.mark.parametrize(("impl", "mode"), [("auto", "forward"), ("auto", "backward"),
                                            ("triton", "forward"), ("triton", "backward")])
def test_the_tile_is_that_of_the_kernel_that_would_run(impl, mode):
    pytest.importorskip("triton.experimental.gluon")
    from flashlib.kernels.backends import choose
    from flashlib.kernels.problem import Device, Problem

    p = Problem.example(B=1, H=16, N_Q=16384, N_K=16384, D=128, dtype=torch.bfloat16,
                        device=Device("cuda", None, (9, 0), 132, "NVIDIA H200"), window=Window(127, 0))
    backend = choose(p, impl, mode)
    config = backend.config(p, mode)
    plans = backend.plan(p, mode, config)
    if "fused" in plans:
        blocks = plans["fused"].blocks
        assert windows.tile_of(impl, mode, p) == (blocks["q_desc"][2], 2 * blocks["k_desc"][2])
        return
    plan = plans["forward"] if mode == "forward" else plans.get("dkdv") or plans["dk"]
    rows = plan.constants["BLOCK_M"] if backend.name == "triton" else 64 * config.CONSUMERS
    assert windows.tile_of(impl, mode, p) == (rows, plan.constants["BLOCK_N"])


def test_the_recorded_windows_are_one_tile_and_its_doublings():
    assert windows.LEFTS == [127, 255, 511, 1023, 2047, 4095, 8191]


@pytest.mark.parametrize("wrong", [Window(62, 0), Window(64, 0), Window(63, 1), Window(None, 0)],
                         ids=str)
def test_a_window_that_is_a_key_off_is_noticed_forward_and_backward(wrong):
    tensors = harness.inputs((1, 2, 300, 32), "cpu", "bfloat16")

    def under(window):
        first, stop = (torch.as_tensor(x)[:, None] for x in window.keys_of(range(300), 300, 300))
        seen = (torch.arange(300) >= first) & (torch.arange(300) < stop)
        return lambda q, k, v, causal: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen)

    assert max(windows.check(under(Window(63, 0)), tensors, Window(63, 0)).values()) < windows.TOLERANCE
    assert min(windows.check(under(wrong), tensors, Window(63, 0)).values()) > windows.TOLERANCE


def test_what_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(windows, "attention", lambda impl, window: harness.plain)
    with pytest.raises(RuntimeError, match=r"auto is wrong at .*left=15"):
        windows.measure((1, 1, 64, 16), [15], ["auto"], "cpu", 1)


def test_without_a_gpu_it_ends_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU; --dry-run"):
        windows.main([])
