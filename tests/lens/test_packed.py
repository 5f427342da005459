"""The kernels of packed sequences on Hopper: the copy engine feeds them, registers hold their state."""

import itertools

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import flashlib.lens as lens
from tests.lens.toolchain import WORKERS

KERNELS = ("flash_fwd_kernel", "flash_bwd_dkdv_kernel", "flash_bwd_dq_kernel")
FEW_BYTES = 16                                              # of dK and dV at 128, once a tile


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", [128, 64])
def test_they_keep_their_state_in_registers_and_copy_by_descriptor(head_dim):
    cases = {case: lens.request(case[0], arch="H100", dtype="bfloat16", head_dim=case[1],
                                causal=case[2], sequences=16)
             for case in itertools.product(KERNELS, (head_dim,), (False, True))}
    reports = lens.compile_many(list(cases.values()), workers=WORKERS)
    for (name, d, causal), report in zip(cases, reports, strict=True):
        allowed = FEW_BYTES if (name, d) == ("flash_bwd_dkdv_kernel", 128) else 0
        assert report.spill_store_bytes <= allowed, (name, d, causal)
        assert "cp.async.bulk.tensor" in report.ptx, (name, d, causal)
