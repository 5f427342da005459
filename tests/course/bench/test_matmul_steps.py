"""The matmul's steps: what is predicted for each, and how the profiler's table is read."""

import shutil

import pytest

from flashlib.course.bench import matmul_steps as bench
from flashlib.course.bench import profiler
from flashlib.course.bench.profiler import METRICS


def table(names):
    """Return what ncu prints of some kernels: the n-th counts n of everything."""
    head = ["ID", "Kernel Name", *METRICS, *bench.LOADS]
    lines = [[n, name, *[n] * (len(head) - 2)] for n, name in enumerate(names)]
    units = [""] * len(head)
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in [head, units, *lines])


NAMES = ["void naive<1>(const __half *)", "void naive<0>(const __half *)", "void tiled<16>()",
         "void tiled<32>()", "nvjet_sm90_hsh_256x128"]


def test_every_step_keeps_its_own_counters():
    found = profiler.sorted_out(table(NAMES), bench.KERNELS, bench.COUNTERS, bench.LOADS)
    assert list(found) == list(bench.STEPS)
    assert [row["load_sectors"] for row in found.values()] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="expected 5 kernels in the cases' order"):
        profiler.sorted_out(table([NAMES[2], *NAMES[1:]]), bench.KERNELS, bench.COUNTERS, bench.LOADS)


def test_a_tile_of_edge_b_is_predicted_to_load_b_times_less():
    naive = bench.predicted("along_row", 256)
    assert naive == bench.predicted("along_column", 256) == 2 * 2 * 256**3
    assert bench.predicted("tiles_16", 256) * 16 == bench.predicted("tiles_32", 256) * 32 == naive
    assert bench.predicted("cublas", 256) is None


def test_without_its_compiler_it_says_so(monkeypatch):
    monkeypatch.setattr(bench.shutil, "which", lambda name: None)
    bench.compiled.cache_clear()
    with pytest.raises(RuntimeError, match="nvcc"):
        bench.compiled("90")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's compiler")
def test_the_source_compiles_and_an_unknown_step_is_refused():
    bench.compiled.cache_clear()
    assert bench.compiled("90").matmul(99, None, None, None, 64, None) == -1
