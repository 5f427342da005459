"""The kernels on a GPU: accuracy over the grid, every promise, and what only a GPU can show.

The checks are those of `run_gpu.py`, which runs them without pytest. They run once, shared among
processes because compiling takes most of the time, and each is reported as a test of its own.
"""

import functools

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.gpu_checks import ALONE, Where  # noqa: E402
from tests.kernels.run_gpu import most_processes, run_all, tasks  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow,
              pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@functools.cache
def outcomes(impl):
    return {o.task: o for o in run_all(Where(impl, "cuda"), processes=most_processes())}


@pytest.mark.parametrize("impl, task", [(impl, task) for impl in ("triton", "auto") for task in (
    *tasks(impl), "grid float16", "grid bfloat16", *(f"alone {name}" for name in ALONE))])
def test_gpu(impl, task):
    outcome = outcomes(impl)[task]
    assert not outcome.failures, "\n".join(outcome.failures)
