"""What the benchmarks share: a machine asked for, errors, the order of a race, a process elsewhere."""

import itertools
import subprocess
import sys
from collections import Counter

import pytest

from flashlib.course.bench import harness
from flashlib.masks import Window

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dry_run, device", [(True, "cpu"), (False, "cuda"), (None, "cuda")])
def test_the_device_is_what_was_asked_for(monkeypatch, dry_run, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert harness.device_for(dry_run) == device


def test_without_a_gpu_only_a_dry_run_goes_on(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert harness.device_for(True) == "cpu"
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU; --dry-run tries"):
        harness.device_for(False)
    with pytest.raises(SystemExit, match=r"needs an NVIDIA GPU\.$"):
        harness.device_for()


def test_without_torch_even_a_dry_run_ends(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="needs torch"):
        harness.device_for(True)


@pytest.mark.parametrize("capability, found", [((9, 0), True), ((8, 0), False), ((10, 0), False)])
def test_hopper_is_capability_nine(monkeypatch, capsys, capability, found):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert harness.is_hopper() is found
    assert ("needs a Hopper GPU" in capsys.readouterr().out) is not found


def test_nobody_always_runs_after_the_same_one():
    names = ["a", "b", "c", "d"]
    orders = [harness.back_and_forth(names, turn) for turn in range(200)]
    assert all(sorted(order) == names for order in orders)
    assert all(orders[i] == orders[i + 1][::-1] for i in range(0, 200, 2))
    after = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(after) == 12 and min(after.values()) > 25    # 600 pairs, 50 each on average
    assert orders == [harness.back_and_forth(names, turn) for turn in range(200)]


def test_a_nan_is_the_worst_error_of_all():
    x = torch.ones(3)
    assert harness.relative([x, x], [x, 2 * x]) == pytest.approx(0.5)
    assert harness.relative([x, torch.nan * x], [x, x]) == float("inf")


@pytest.mark.parametrize("window", [Window(), Window(right=0), Window(5, 0), Window(3, 2)], ids=str)
def test_some_rows_of_the_oracle_are_those_of_attention_with_its_gradients(window):
    q, k, v, dO = harness.inputs((1, 2, 24, 8), "cpu", "float32")
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    rows = torch.tensor([0, 3, 17, 23])
    first, stop = (torch.as_tensor(x)[:, None] for x in window.keys_of(range(24), 24, 24))
    seen = (torch.arange(24) >= first) & (torch.arange(24) < stop)
    whole = torch.nn.functional.scaled_dot_product_attention(
        *(x[0, 0].double() for x in (q, k, v)), attn_mask=seen)[rows]
    some = harness.exact_rows(q, k, v, rows, window)
    torch.testing.assert_close(some, whole)
    given = dO[0, 0, rows].double()
    for got, right in zip(torch.autograd.grad(some, (q, k, v), given),
                          torch.autograd.grad(whole, (q, k, v), given), strict=True):
        torch.testing.assert_close(got, right)


def test_the_oracle_of_a_head_is_plain_attention_with_its_gradients():
    tensors = harness.inputs((2, 2, 16, 8), "cpu", "float64")
    whole = harness.results(harness.plain, tensors, True)
    for got, right in zip(harness.exact(*tensors, True), whole, strict=True):
        torch.testing.assert_close(got, right[:1, :1])
    assert len(harness.exact(*tensors[:3], None, True)) == 1


def test_a_race_times_every_call_in_every_round():
    ran = []
    times = harness.race({name: lambda name=name: ran.append(name) for name in "abc"}, "cpu", 4)
    assert {name: len(runs) for name, runs in times.items()} == dict.fromkeys("abc", 4)
    assert ran == [name for turn in range(4) for name in harness.back_and_forth("abc", turn)]


def test_a_spread_holds_median_extremes_and_rates():
    assert harness.spread([2.0, 1.0, 4.0], 8e12) == {
        "seconds": 2.0, "seconds_low": 1.0, "seconds_high": 4.0, "rounds": 3, "flops": 8 * 10**12,
        "tflops_per_s": 4.0}


@pytest.mark.parametrize(("code", "stderr", "said"), [
    (0, "", ""), (1, "Traceback\nRuntimeError: out of memory", "failed: RuntimeError: out of memory"),
    (1, "", "failed: no reason given")])
def test_the_other_process_has_no_interpreter(code, stderr, said, monkeypatch, capsys):
    asked = {}

    def run(command, **options):
        asked.update(options, command=command)
        return subprocess.CompletedProcess(command, code, "ours 300", stderr)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(harness.subprocess, "run", run)
    assert harness.elsewhere("some.module", "--quick", 3) == (None if code else "ours 300")
    assert said in capsys.readouterr().out
    assert "TRITON_INTERPRET" not in asked["env"]
    assert asked["command"] == [sys.executable, "-m", "some.module", "--quick", "3"]


def test_the_clock_of_a_gpu_gives_median_quantiles_and_repeats_in_seconds(monkeypatch):
    testing = pytest.importorskip("triton.testing")
    asked = {}

    def do_bench(call, **options):
        asked.update(options)
        call()
        return [5.0, 1.0, 2.0, 4.0, 3.0, 6.0, 9.0, 8.0, 7.0, 10.0]     # milliseconds

    ran = []
    monkeypatch.setattr(testing, "do_bench", do_bench)
    timed = harness.clock_for("cuda", 70)(lambda: ran.append(1))
    assert timed == pytest.approx((5.5e-3, 3e-3, 8e-3, 10)) and ran == [1]
    assert asked == {"warmup": 40, "rep": 70, "return_mode": "all"}


def test_ceilings_are_numbers_with_their_sizes_beside_them():
    found = harness.ceilings("cpu", 10)
    assert found["ceiling_matmul_rows"] == 256 and found["ceiling_copy_bytes"] == 2**12
    assert float(found["ceiling_matmul_flops_per_s"]) > 0 < float(found["ceiling_copy_bytes_per_s"])
