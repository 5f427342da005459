"""The Gluon backwards, compiled for Hopper: what must hold without a GPU."""

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


FUSED = "flash_bwd_fused_hopper_kernel"
# Bytes that spill where a mask and 128 columns meet, none of them where tiles are multiplied.
SPILLS = {32: 0, 64: 0, 128: 48}


# Those with most in their loops, and the others.
FUSED_CALLS = {"ragged": (*CALLS[3:5], {"causal": True, "Nk": 4001}, {"kv_heads": 4, "into": True}),
               "whole": CALLS[:3]}


@functools.cache
def fused(dtype, calls, widths):
    """Return (case, report) of the fused kernel at these widths in each of these calls."""
    cases = [lens.request(FUSED, arch="sm_90", **{"head_dim": d, "dtype": dtype, **call})
             for d in widths for call in FUSED_CALLS[calls]]
    return list(zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True))


def multiplying(sass):
    """Return the innermost loops of machine code that hold a product.

    A branch without a condition is no loop: it comes back from the slow way of a wait.
    """
    code, labels, found = [], {}, []
    for text in sass.splitlines():
        if label := re.match(r"(\.L\w+):", text):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", text):
            code.append(instruction[1])
            back = re.match(r"@.*BRA.*?(\.L\w+)", code[-1])
            if back and labels.get(back[1], len(code)) < len(code) - 100:
                found.append(range(labels[back[1]], len(code)))
    inner = [r for r in found
             if not any(r.start <= o.start and o.stop <= r.stop for o in found if o != r)]
    return [part for r in inner if "HGMMA" in (part := "\n".join(code[i] for i in r))]


DTYPES = pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.matrix)])


FUSED_CASES = pytest.mark.parametrize("dtype, calls, widths", [
    ("bfloat16", "ragged", (128,)), *(pytest.param(*case, marks=pytest.mark.matrix) for case in (
        ("bfloat16", "ragged", (32, 64)), ("bfloat16", "whole", tuple(SPILLS)),
        ("float16", "ragged", tuple(SPILLS))))])


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


@FUSED_CASES
def test_the_fused_kernel_fits_and_spills_where_no_tile_is_multiplied(dtype, calls, widths):
    for case, report in fused(dtype, calls, widths):
        most = SPILLS[case.given["head_dim"]]
        assert report.spill_store_bytes <= most, f"{case}: {report.spill_store_bytes} B"
        assert not report.warnings, f"{case}: {report.warnings}"
        assert report.fits and report.matrix_family == "wgmma", str(case)
        loops = multiplying(report.sass)
        assert len(loops) >= 2, f"{case}: each warpgroup of keys has a loop"
        assert not any(re.search("STL|LDL", loop) for loop in loops), str(case)


@FUSED_CASES
def test_its_sums_leave_by_ordered_adds_of_the_copy_engine(dtype, calls, widths):
    for case, report in fused(dtype, calls, widths):
        assert "cp.reduce.async.bulk.tensor.2d.global" in report.ptx, str(case)
        assert "ld.acquire.gpu.global.b32" in report.ptx, str(case)
        atomics = re.findall(r"\b(?:atom|red)\.[\w.]*global[\w.]*", report.ptx)
        kinds = {name.partition(".")[0] for name in atomics}
        assert kinds == {"atom", "red"} and not re.search("f32|f16", " ".join(atomics)), str(case)


def test_one_binary_serves_all_heads_and_lengths():
    for name in KERNELS:
        sizes = ({"heads": 16}, {"heads": 7, "kv_heads": 1, "Nq": 640, "Nk": 1280})
        one, other = (lens.compile(name, arch="sm_90", head_dim=256, **given).ptx for given in sizes)
        assert one == other


@pytest.mark.parametrize("choices, words", [
    ({"head_dim": 128}, "the kernels at 128 are of before, fused, after, got one of dkdv"),
    ({"head_dim": 250}, "the copy engine"),
    ({"head_dim": 256, "dtype": "float32"}, "float16 or bfloat16")])
def test_what_the_kernels_cannot_do_is_named(choices, words):
    with pytest.raises(ValueError, match=words):
        lens.request(KERNELS[0], arch="sm_90", **choices)
