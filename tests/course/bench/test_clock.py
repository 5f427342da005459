"""Five measured factors whose product is the recorded rate, and metrics that are asked for before."""

import math

import pytest

from flashlib.course.bench import clock as bench
from flashlib.course.bench import profiler
from tests.course.bench.test_counters import table

TENSOR = "sm__pipe_tensor_cycles_active"


def counted(tensor=1_000_000.5):
    """Return what ncu prints: the n-th kernel is busy for 1,900,000 + n cycles of two million."""
    head = f'"ID","Kernel Name","{bench.ELAPSED}","{bench.ACTIVE}","{TENSOR}.avg"'
    lines = [f'"{n}","flash_fwd_kernel","2,000,000","1,900,00{n % 10}","{tensor}"'
             for n in range(len(bench.CASES))]
    return "\n".join([head, ",,,,", *lines])


def test_the_factors_multiply_to_the_rate():
    found = bench.parse(counted(), TENSOR)
    assert list(found) == bench.CASES
    case = bench.CASES[1]
    taken = {"sm_clock_hz": 1.5e9, "cycles": 2_100_000, "seconds": 2_100_000 / 1.5e9}
    row = bench.row_of(case, taken, found[case])
    factors = (132, row["sm_clock_hz"], row["active_cycles"] / row["kernel_cycles"],
               row["tensor_cycles"] / row["active_cycles"], row["flops"] / 132 / row["tensor_cycles"],
               row["kernel_cycles"] / row["cycles"])
    assert math.prod(factors) == pytest.approx(1e12 * row["tflops_per_s"])
    assert row["active_cycles"] == 1_900_001 and row["impl"] == "synchronous"


def test_a_counter_that_counts_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        bench.parse(counted(tensor=0), TENSOR)
    with pytest.raises(ValueError, match="kernels in the cases' order, got 1"):
        bench.parse(table(["flash_fwd_kernel", "fill_kernel"]), TENSOR)


def test_only_metrics_that_this_ncu_has_are_asked_for(monkeypatch):
    listed = f"Device NVIDIA H200 (GH100)\n{TENSOR}   Counter  cycle\ndram__bytes_read  Counter  byte\n"

    class Done:
        stdout, stderr = listed, ""

    monkeypatch.setattr(profiler.shutil, "which", lambda name: name)
    monkeypatch.setattr(profiler.subprocess, "run", lambda *command, **options: Done)
    assert profiler.known(bench.TENSOR) == [TENSOR]
    Done.stdout = "no device"
    with pytest.raises(profiler.NoCounters, match="lists no metrics"):
        profiler.known(bench.TENSOR)
