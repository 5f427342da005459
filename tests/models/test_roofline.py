"""The roofline, on cases small enough to work out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from flashlib.hardware import ALL, GPU, get
from flashlib.machine.traffic import Traffic
from flashlib.models import roofline

# In one second: 1e12 bytes, 1e14 matmul FLOPs, 1e13 vector FLOPs or 1e12 exponentials.
TOY = GPU.custom("toy", sram_bytes=1024, hbm_bytes_per_s=1e12, matmul_flops_per_s=1e14,
                 vector_flops_per_s=1e13, exps_per_s=1e12)


def cost(read=0, write=0, matmul=0, vector=0, exps=0):
    return SimpleNamespace(hbm_read_bytes=read, hbm_write_bytes=write, matmul_flops=matmul,
                           vector_flops=vector, exps=exps)


@pytest.mark.parametrize("traffic, seconds, bound", [
    (cost(read=3e12, write=1e12, matmul=1e14), 4.0, "memory"),
    (cost(read=1e12, matmul=2e14), 2.0, "matmul"),
    (cost(read=1e12, matmul=2e14, vector=3e13), 3.0, "vector"),
    (cost(read=1e12, matmul=2e14, vector=3e13, exps=5e12), 5.0, "exp"),
    (cost(), 0.0, "nothing")])
def test_the_longest_part_is_the_time(traffic, seconds, bound):
    result = roofline.time_s(traffic, TOY)
    assert result.time_s == pytest.approx(seconds)
    assert result.bound == bound


def test_every_part_is_work_over_rate():
    result = roofline.time_s(cost(3e12, 1e12, 2e14, 1e13, 2e12), TOY)
    assert result.parts == pytest.approx({"memory": 4.0, "matmul": 2.0, "vector": 1.0, "exp": 2.0})
    assert result == roofline.RooflineTime(4.0, 2.0, 1.0, 2.0)


def test_a_softmax_on_an_h100_waits_for_memory_and_attention_for_matmul():
    N, d = 4096, 128
    softmax = Traffic.of({"x": (2 * N * N, 0), "y": (0, 2 * N * N)}, vector_flops=4 * N * N,
                         exps=N * N)
    assert roofline.time_s(softmax, "H100").bound == "memory"
    fused = Traffic.of({"QKV": (6 * N * d, 0), "O": (0, 2 * N * d)}, 4 * N * N * d, exps=N * N)
    result = roofline.time_s(fused, "H100")
    assert result.bound == "matmul"
    assert result.exp_s / result.matmul_s == pytest.approx(0.5, rel=0.01)


def test_an_unknown_rate_is_left_out_and_shows_as_none():
    bare = TOY.with_(vector_flops_per_s=None, exps_per_s=None)
    result = roofline.time_s(cost(read=1e12, exps=1e15), bare)
    assert (result.vector_s, result.exp_s) == (None, None)
    assert (result.time_s, result.bound) == (1.0, "memory")


def test_the_ridge_is_where_both_roofs_meet():
    assert roofline.ridge(TOY) == pytest.approx(100)
    assert roofline.ridge("A100") == pytest.approx(312e12 / 2.039e12)
    assert roofline.attainable_flops_per_s(100, TOY) == pytest.approx(1e14)


@pytest.mark.parametrize("gpu", ALL, ids=lambda gpu: gpu.name)
def test_below_the_ridge_bandwidth_rules_and_above_it_matmul(gpu):
    ridge = roofline.ridge(gpu, "float16")
    peak = float(gpu.matmul_flops_per_s["float16"])
    x = np.array([0, ridge / 2, ridge, 2 * ridge, np.inf])
    roof = roofline.attainable_flops_per_s(x, gpu, "float16")
    np.testing.assert_allclose(roof, np.array([0, 0.5, 1, 1, 1]) * peak)


def test_the_roof_of_a_number_is_a_number():
    assert isinstance(roofline.attainable_flops_per_s(2, TOY), float)
    assert roofline.attainable_flops_per_s(2, TOY) == pytest.approx(2e12)


@pytest.mark.parametrize("call, error, match", [
    (lambda: roofline.ridge("V100"), ValueError,
     r"dtype: .*'V100'.*\(float16, float32\), got 'bfloat16'"),
    (lambda: roofline.ridge("A100", np.float16), TypeError, "dtype: expected a name"),
    (lambda: roofline.ridge("H300"), ValueError, "name: expected one of V100"),
    (lambda: roofline.ridge(GPU("no GPU")), ValueError, "none at all"),
    (lambda: roofline.time_s(cost(), get("A100").with_(hbm_bytes_per_s=None)), ValueError,
     "gpu: expected a sheet with hbm_bytes_per_s, got 'A100'"),
    (lambda: roofline.attainable_flops_per_s(-1, TOY), ValueError, "intensity: .* got -1"),
    (lambda: roofline.attainable_flops_per_s([1, np.nan], TOY), ValueError, "intensity"),
    (lambda: roofline.attainable_flops_per_s("high", TOY), TypeError, "intensity: .* got 'high'"),
    (lambda: roofline.attainable_flops_per_s(True, TOY), TypeError, "intensity: expected numbers"),
    (lambda: roofline.time_s(3, TOY), TypeError, "traffic: expected a number in .hbm_read_bytes"),
    (lambda: roofline.time_s(cost(exps=-1), TOY), ValueError, "traffic.exps: .*at least 0, got -1"),
    (lambda: roofline.time_s(cost(read=np.inf), TOY), ValueError, "traffic.hbm_read_bytes"),
    (lambda: roofline.time_s(cost(matmul="many"), TOY), TypeError, "traffic: .*matmul_flops")])
def test_wrong_inputs_are_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
