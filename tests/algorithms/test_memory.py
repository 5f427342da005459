"""At tiles far smaller than N the process's memory shows that nothing N×N is made."""

import tracemalloc

import numpy as np
import pytest

import flashlib as fl
from tests.cases import normal

N, D, B = 2048, 16, 128             # 256 tiles: every step under tracemalloc takes its time
MATRIX_BYTES = 8 * N * N


def peak_bytes(run):
    """Return the largest memory that NumPy and Python held while `run` ran, beyond what was there."""
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        return tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("algorithm", [fl.flash_v1, fl.flash_v2, fl.flash_v3, fl.flash_v4],
                         ids=lambda f: f.__name__)
def test_a_tiled_algorithm_makes_nothing_of_size_n_by_n(algorithm, causal):
    Q, K, V = normal(0, (N, D), (N, D), (N, D))
    peak = peak_bytes(lambda: algorithm(Q, K, V, Br=B, Bc=B, causal=causal))
    held = 8 * (2 * N * D + 6 * N) + 8 * (6 * B * D + 6 * B * B)     # O twice, statistics; a few tiles
    assert peak < 2 * held and peak < MATRIX_BYTES / 15


def test_its_memory_grows_with_n_and_not_with_its_square():
    def peak(n):
        Q, K, V = normal(0, (n, D), (n, D), (n, D))
        return peak_bytes(lambda: fl.flash_v2(Q, K, V, Br=32, Bc=32))
    assert peak(640) < 2.1 * peak(320)


@pytest.mark.parametrize("blocks", [{}, {"Br": 64, "Bc": 64}], ids=["ideal", "tiled"])
def test_standard_attention_does_make_n_by_n(blocks):
    n = 512
    Q, K, V = normal(0, (n, D), (n, D), (n, D))
    assert peak_bytes(lambda: fl.standard_attention(Q, K, V, **blocks)) > 2 * 8 * n * n


def test_streamed_attention_holds_a_row_at_most():
    n = 20
    Q, K, V = normal(0, (n, 2048), (n, 2048), (n, 2048))
    for algorithm in (fl.multi_pass_attention, fl.one_pass_attention):
        assert peak_bytes(lambda f=algorithm: f(Q, K, V)) < 3 * Q.nbytes
    x = np.zeros((1, 1000))
    assert peak_bytes(lambda: fl.online_softmax(x)) < 4 * x.nbytes
