"""The kernels that fold into a state, on Hopper: the Gluon forward spills nothing in its own tiles."""

import itertools

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

import flashlib.lens as lens
from tests.lens.toolchain import WORKERS

MASKS = ({}, {"causal": True}, {"Nk": 4100}, {"window": (300, 0)})


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(128,), pytest.param((32, 64, 256), marks=pytest.mark.matrix)])
def test_the_gluon_forward_into_a_state_spills_nothing(heads):
    cases = [lens.request("flash_fwd_hopper_kernel", arch="H100", head_dim=d, into=True, **mask)
             for d, mask in itertools.product(heads, MASKS)
             if d < 256 or "window" not in mask]
    for case, report in zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True):
        assert report.spill_store_bytes == 0 and report.fits, str(case)


@pytest.mark.slow
def test_the_triton_kernels_into_a_state_spill_nothing_at_64():
    cases = [lens.request(name, arch="H100", head_dim=64, causal=True, into=True)
             for name in ("flash_fwd_kernel", "flash_bwd_dkdv_kernel", "flash_bwd_dq_kernel")]
    for case, report in zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True):
        assert report.spill_store_bytes == 0, str(case)
