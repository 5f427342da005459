"""The decoding kernels, compiled for GPUs that are not here: they fit, and loads run ahead.

`make test` compiles 128 columns for Hopper, `make test-lens` the others, and other generations.
"""

import functools
import itertools

import pytest

import flashlib.lens as lens
from flashlib import hardware
from flashlib.lens.targets import ARCHS
from tests.lens.toolchain import WORKERS, needs_triton

pytest.importorskip("torch")

pytestmark = [needs_triton, pytest.mark.slow]

OTHERS = [arch for arch in ARCHS if arch != "sm_90"]
HEADS = (64, 128, 256)
HOPPER = (("sm_90", (128,)), pytest.param("sm_90", (64, 256), marks=pytest.mark.matrix))
GENERATIONS = (*HOPPER, *(pytest.param(arch, HEADS, marks=pytest.mark.matrix) for arch in OTHERS))
SHAPES = ((4, 1), (4, 8), (4, 16))                          # key heads of 16, queries: 4, 32, 64 rows


def request(part, arch, **choices):
    return lens.request(f"flash_decode_{part}_kernel", arch=arch, heads=16, **choices)


@functools.cache
def compiled(arch, heads):
    """Return (case, report): tiles of all heights at these dimensions, runs and units, and merges.

    Runs need what units need, and registers to fold them: elsewhere than on Hopper they stand for both.
    """
    dtype = "float16" if ARCHS[arch].number < 80 else "bfloat16"
    cases = [request("fwd", arch, dtype=dtype, head_dim=d, kv_heads=kv_heads, Nq=Nq, causal=Nq > 1,
                     lengths=True, units=units)
             for d, (kv_heads, Nq), units in itertools.product(
                 heads, SHAPES, (1, 2) if arch == "sm_90" else (2,))]
    cases += [request("fwd", arch, dtype=dtype, head_dim=128, kv_heads=4, Nq=1, lengths=True, page=page)
              for d in heads if d == 128 for page in (16, 64)]
    cases += [request("fwd", arch, dtype="float32", head_dim=d, kv_heads=4, Nq=1, units=2)
              for d in heads if d >= 128]
    cases += [request("merge", arch, dtype=dtype, head_dim=d, kv_heads=4, Nq=1, lengths=True,
                      units=units) for d, units in ((128, 1), (256, 8)) if d in heads]
    return list(zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True))


@pytest.mark.parametrize("arch, heads", GENERATIONS)
def test_every_one_fits_its_generation(arch, heads):
    for case, report in compiled(arch, heads):
        assert report.fits and report.occupancy().programs >= 1, str(case)
        for gpu in ARCHS[arch].gpus:
            assert report.shared_bytes <= hardware.get(gpu).sram_bytes, str(case)


@pytest.mark.parametrize("arch, heads", GENERATIONS)
def test_no_16_bit_kernel_spills(arch, heads):
    spills = [f"{case}: {report.spill_store_bytes} B" for case, report in compiled(arch, heads)
              if report.spills and case.given["dtype"] != "float32"]
    assert not spills, "\n".join(spills)


@pytest.mark.parametrize("arch, heads", HOPPER)
def test_on_hopper_keys_and_values_are_copied_ahead_also_from_pages(arch, heads):
    """Bytes in flight fill the memory's pipe: of pages, too, whose look-up takes stages of its own."""
    for case, report in compiled(arch, heads):
        if "fwd" in case.kernel and case.given["dtype"] != "float32" and case.given["head_dim"] >= 128:
            assert report.loads_by_width["LDGSTS 128"] >= 32, str(case)
            assert report.shared_bytes * report.occupancy().programs >= 120_000, str(case)


RUNS = {(1, 2): (8, 4), (1, 3): (8, 3), (8, 3): (4, 4)}    # queries, stages → units, programs of an SM


@pytest.mark.parametrize("head_dim, kinds, pages", [
    (128, [(1, 2), (1, 3)], (16, 64)),
    pytest.param(128, [(1, 2), (1, 3)], (32, 128, 256), marks=pytest.mark.matrix),
    pytest.param(64, [*RUNS], (16, 32, 64, 128, 256), marks=pytest.mark.matrix)])
def test_on_hopper_pages_cost_no_wave(head_dim, kinds, pages):
    """Four programs share an SM with pages, too, or three with more memory: 512 runs are one wave."""
    cases = [request("fwd", "sm_90", head_dim=head_dim, kv_heads=4, Nq=Nq, lengths=True, page=page,
                     units=RUNS[Nq, stages][0], num_stages=stages)
             for page in pages for Nq, stages in kinds]
    for case, report in zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True):
        assert not report.spills, f"{case}: {report.spill_store_bytes} B"
        expected = RUNS[case.given["Nq"], case.given["num_stages"]][1]
        assert report.occupancy().programs == expected, str(case)


@pytest.mark.matrix
@pytest.mark.parametrize("Nq, stages", [(2, 2), (2, 3), (8, 3)])
def test_on_hopper_a_mask_on_pages_spills_next_to_nothing(Nq, stages):
    """A few words that no iteration writes: what is the same for all keys is kept elsewhere."""
    cases = [request("fwd", "sm_90", head_dim=head_dim, kv_heads=4, Nq=Nq, lengths=True, page=page,
                     units=4 if Nq == 8 else 8, num_stages=stages, causal=True)
             for head_dim in ((64, 128) if Nq == 2 else (64,)) for page in (16, 64, 128)]
    for case, report in zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True):
        assert report.occupancy().programs >= (3 if (Nq, stages) == (2, 3) else 4), str(case)
        assert report.spill_store_bytes <= 28, f"{case}: {report.spill_store_bytes} B"


@pytest.mark.parametrize("arch, heads", HOPPER)
def test_on_hopper_dependents_are_launched_early_and_wait(arch, heads):
    for case, report in compiled(arch, heads):
        assert "griddepcontrol.wait" in report.ptx, str(case)
        assert "griddepcontrol.launch_dependents" in report.ptx, str(case)


@pytest.mark.matrix
def test_before_hopper_nothing_depends():
    assert all("griddepcontrol" not in report.ptx for _, report in compiled("sm_80", HEADS))
