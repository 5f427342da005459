"""The Gluon backward of wide heads, compiled for Hopper: what must hold without a GPU."""

import functools
import re

import pytest

import flashlib.lens as lens
from tests.lens.toolchain import WORKERS, needs_triton

pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

pytestmark = [needs_triton, pytest.mark.slow]

KERNELS = ("flash_bwd_dkdv_hopper_kernel", "flash_bwd_dq_hopper_kernel")
CALLS = ({}, {"causal": True}, {"window": (256, 0)}, {"window": (64, 64), "kv_heads": 4},
         {"Nq": 4000, "Nk": 4001}, {"head_dim": 192, "causal": True})


@functools.cache
def compiled(dtype):
    """Return (case, report) of both kernels in each call."""
    cases = [lens.request(name, arch="sm_90", **{"head_dim": 256, "dtype": dtype, **call})
             for name in KERNELS for call in CALLS]
    return list(zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True))


DTYPES = pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.matrix)])


@DTYPES
def test_nothing_spills_and_ptxas_warns_of_nothing(dtype):
    for case, report in compiled(dtype):
        assert not report.spills, f"{case}: {report.spill_store_bytes} B"
        assert not report.warnings, f"{case}: {report.warnings}"


@DTYPES
def test_it_fits_and_no_sum_is_atomic(dtype):
    for case, report in compiled(dtype):
        assert report.fits, f"{case}: {report.shared_bytes} of {report.shared_limit_bytes} B"
        assert report.matrix_family == "wgmma", str(case)
        assert not re.search(r"\b(atom|red)\.(global|async|release|relaxed)", report.ptx), str(case)
        assert "cp.async.bulk.tensor.4d.global" in report.ptx, str(case)     # gradients leave by copies


def test_one_binary_serves_all_heads_and_lengths():
    for name in KERNELS:
        sizes = ({"heads": 16}, {"heads": 7, "kv_heads": 1, "Nq": 640, "Nk": 1280})
        one, other = (lens.compile(name, arch="sm_90", head_dim=256, **given).ptx for given in sizes)
        assert one == other


@pytest.mark.parametrize("choices, words", [
    ({"head_dim": 128}, "head dimension D of 129 or more"), ({"head_dim": 250}, "the copy engine"),
    ({"head_dim": 256, "dtype": "float32"}, "float16 or bfloat16")])
def test_what_the_kernels_cannot_do_is_named(choices, words):
    with pytest.raises(ValueError, match=words):
        lens.request(KERNELS[0], arch="sm_90", **choices)
