"""The rows of small operations: what is counted, and which of the two times is which."""

import sys
import types

import pytest

from flashlib.course.bench import launch_overhead as bench


@pytest.mark.parametrize(("impl", "flops"), [("sum_graph", 64**2), ("matmul_eager", 2 * 64**3)])
def test_a_row_has_the_median_of_its_rounds(impl, flops):
    row = bench.row_of(impl, 64, [(3e-6, 2e-6), (1e-6, 5e-7), (2e-6, 1e-6)])
    assert (row["seconds"], row["seconds_low"], row["seconds_high"]) == (2e-6, 1e-6, 3e-6)
    assert row["cpu_seconds"] == 1e-6 and row["flops"] == flops
    assert row["least_bytes_per_s"] == pytest.approx(3 * 64 * 64 * 2 / 2e-6)


def test_the_host_is_free_before_the_gpu_is_done(monkeypatch):
    now = [0.0]

    def passes(seconds):
        now[0] += seconds

    waits = iter([0.0, 3.0])
    gpu = types.SimpleNamespace(synchronize=lambda: passes(next(waits)))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=gpu))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    assert bench.times_of(lambda: passes(1.0), 2) == (2.0, 0.5)
