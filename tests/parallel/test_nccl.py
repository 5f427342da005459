"""The same over NCCL, where a machine has several GPUs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flashlib import parallel  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow,
              pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")]


@pytest.mark.parametrize("operation", ["ring", "gather", "ulysses"])
@pytest.mark.parametrize("P", [2, 4])
def test_gpus_equal_one(P, operation):
    if torch.cuda.device_count() < P:
        pytest.skip(f"needs {P} NVIDIA GPUs")
    for of in parallel.run(P, "flashlib.parallel.demo:compare", 2048, 8, 4, 64, True, "zigzag",
                           operation, backend="nccl"):
        assert max(of["error of O"], of["error of dQ, dK, dV"]) < 1e-3
