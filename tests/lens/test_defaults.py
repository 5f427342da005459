"""Every configuration that `flash_attention` takes by itself, compiled: what must hold without a GPU.

Compiled in one go for a generation: half a minute on two cores the first time, and seconds from
Triton's cache. `make test` compiles heads of 128 columns for Hopper, `make test-lens` the
others, and the other generations.
"""

import functools
import itertools
import re

import pytest

import flashlib.lens as lens
from flashlib import hardware
from flashlib.lens.assembly import matrix_in_ptx
from flashlib.lens.targets import ARCHS
from tests.lens.toolchain import WORKERS, needs_triton

pytest.importorskip("torch")                                # of which backends are made

pytestmark = [needs_triton, pytest.mark.slow]

HEADS, OTHERS = (128,), (16, 32, 64, 256)
EACH = (pytest.param("sm_80", HEADS + OTHERS, marks=pytest.mark.matrix), ("sm_90", HEADS),
        pytest.param("sm_100", HEADS + OTHERS, marks=pytest.mark.matrix))
GENERATIONS = (*EACH, pytest.param("sm_90", OTHERS, marks=pytest.mark.matrix))
FAMILY_IN_SASS = {"mma": "HMMA", "wgmma": "HGMMA", "tcgen05": "UTCHMMA"}

# Here Triton 3.7.1 (not 3.6) makes ptxas serialize the wgmmas, C7515.
HOPPER_SERIALIZED = {("flash_bwd_dkdv_kernel", 16, False)}
SUMS = ("flash_bwd_delta_kernel", "flash_bwd_statistics_kernel", "flash_bwd_sum_kernel")
every_default = pytest.mark.parametrize("arch, heads", GENERATIONS)


@functools.cache
def compiled(arch, heads):
    """Return (case, report) for all defaults of a generation, and on Hopper Triton's as well.

    Calls whose tensors the copy engine cannot read, or impl="triton", run it there.
    """
    dtype = "bfloat16"
    cases = lens.defaults(arch, dtype, head_dims=heads)
    if arch == "sm_90":
        have = {(case.kernel, case.given["head_dim"], case.given.get("causal")) for case in cases}
        cases += [lens.request("flash_fwd_kernel", arch=arch, dtype=dtype, head_dim=d, causal=causal)
                  for d in heads for causal in (False, True)
                  if ("flash_fwd_kernel", d, causal) not in have]
        cases += [lens.request(name, arch=arch, dtype=dtype, head_dim=256, causal=causal, **one)
                  for causal in (False, True) for name, one in (
                      ("flash_bwd_dq_kernel", {}), ("flash_bwd_dkdv_kernel", {"want_dv": False}),
                      ("flash_bwd_dkdv_kernel", {"want_dk": False}))
                  if 256 in heads and ("flash_bwd_dq_kernel", 256, causal) not in have]
        cases += [lens.request(name, arch=arch, dtype=dtype, head_dim=d, causal=causal)
                  for name in ("flash_bwd_dkdv_kernel", "flash_bwd_dq_kernel")
                  for d in heads if d in (32, 64, 128)
                  for causal in (False, True) if (name, d, causal) not in have]
    return list(zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True))


def spills(pairs):
    """Return a table of what spills, one kernel a line."""
    return [f"{case}: {r.registers} registers, {r.spill_store_bytes} B stored, {r.spill_load_bytes} B"
            " loaded" for case, r in pairs if r.spills]


def part(case):
    """Return the name of a kernel, with what it writes where that is one of two."""
    one = [name[-2:] for name in ("want_dk", "want_dv") if case.given.get(name) is False]
    other = {"dk": "dv", "dv": "dk"}
    return case.kernel if not one else f"{case.kernel}[{other[one[0]]}]"


@every_default
def test_defaults_use_the_matrix_instructions_of_their_generation(arch, heads):
    for case, report in compiled(arch, heads):
        if case.kernel in SUMS:                             # nothing to multiply
            assert report.matrix_family is None
            continue
        family = ARCHS[arch].matrix
        assert report.matrix_family == family, str(case)
        found = matrix_in_ptx(report.ptx)
        assert all(name.startswith(f"{family}.") and "f16" in name for name in found), str(case)


@pytest.mark.parametrize("arch, heads", EACH)
def test_the_machine_code_has_them_too(arch, heads):
    for case, report in compiled(arch, heads):
        if case.given["head_dim"] == 128 and case.kernel not in SUMS:
            name = FAMILY_IN_SASS[ARCHS[arch].matrix]
            assert any(found.startswith(name) for found in report.matrix_instructions), str(case)


@every_default
def test_no_16_bit_default_spills(arch, heads):
    """But for the fused backward, which may outside of its loops: see `test_gluon_backward`."""
    held = [pair for pair in compiled(arch, heads)
            if pair[0].kernel != "flash_bwd_fused_hopper_kernel"]
    assert not (table := spills(held)), "\n".join(table)


@every_default
def test_every_default_fits_its_generation(arch, heads):
    for case, report in compiled(arch, heads):
        assert report.fits, f"{case}: {report.shared_bytes} of {report.shared_limit_bytes} B"
        assert report.registers <= 255
        assert report.occupancy().programs >= 1
        for gpu in ARCHS[arch].gpus:
            assert report.shared_bytes <= hardware.get(gpu).sram_bytes


@every_default
def test_wgmma_is_serialized_only_where_that_is_listed(arch, heads):
    """C7512 and its kin cost speed without a word; ptxas says them only when asked."""
    warned = {(part(case), case.given["head_dim"], case.given.get("causal", False)): report.warnings
              for case, report in compiled(arch, heads) if "serialized" in str(report.warnings)}
    assert not {key: words for key, words in warned.items()
                if arch != "sm_90" or key not in HOPPER_SERIALIZED}


@pytest.mark.parametrize("arch, heads", GENERATIONS[1:])
def test_tiles_that_are_walked_come_by_bulk_copies(arch, heads):
    for case, report in compiled(arch, heads):
        if case.kernel not in SUMS:
            assert "cp.async.bulk.tensor.4d" in report.ptx, str(case)
            if case.given["head_dim"] == 128:
                assert report.loads_by_width["UTMALDG 4D"], str(case)


@pytest.mark.matrix
def test_before_hopper_tiles_come_by_asynchronous_copies():
    for case, report in compiled("sm_80", HEADS + OTHERS):
        if case.kernel != "flash_bwd_delta_kernel" and case.call.num_stages > 1:
            assert "cp.async.cg.shared.global" in report.ptx, str(case)
            if case.given["head_dim"] == 128:
                assert report.loads_by_width["LDGSTS 128"], str(case)


@pytest.mark.matrix
@pytest.mark.parametrize("gpu, dtype", [
    ("RTX 4090", "bfloat16"), ("T4", "float16"), ("T4", "float32")])
def test_small_gpus_hold_the_largest_heads(gpu, dtype):
    """A T4 gives a program 64 KiB and an RTX 4090 99: at d=256 every tile counts."""
    cases = [case for case in lens.defaults(gpu, dtype, head_dims=(256,)) if "causal" in case.given
             and not case.given["causal"]]
    reports = lens.compile_many(cases, workers=WORKERS)
    assert len(reports) >= 3
    for case, report in zip(cases, reports, strict=True):
        assert report.shared_bytes <= hardware.get(gpu).sram_bytes, str(case)
        assert report.matrix_family == ("mma" if gpu == "RTX 4090" else None), str(case)
    if table := spills(zip(cases, reports, strict=True)):
        print("\n".join([f"{gpu}, {dtype}:", *table]))
        assert gpu == "T4", "a 16-bit default spills"


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes_compile_and_fit_and_their_spills_are_listed(dtype):
    """float16 is bfloat16's twin in the table and may not spill either; float32 uses no TF32."""
    cases = [case for case in lens.defaults("sm_80", dtype, head_dims=(128,))
             if case.kernel != "flash_bwd_delta_kernel"]
    pairs = list(zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True))
    assert all(report.fits for _, report in pairs)
    if table := spills(pairs):
        print("\n".join([f"sm_80, {dtype}:", *table]))
    if dtype == "float16":
        assert not spills(pairs)
    else:
        assert not any(report.matrix_instructions for _, report in pairs), "float32 became TF32"


@pytest.mark.parametrize("arch", ["A100", "H100", "B200", "T4"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_defaults_are_what_choose_takes_and_its_plans_would_launch(arch, dtype, monkeypatch):
    """Tensors on a GPU that is not there, by way of the same plans: what a call hands to a kernel."""
    import torch

    from flashlib.kernels import problem
    from flashlib.kernels.backends import DIRECTIONS, choose
    from flashlib.kernels.plans import Launch
    from flashlib.lens.targets import arch_of

    device = problem.Device("cuda", 0, arch_of(arch).capability, 132, "stub")
    monkeypatch.setattr(problem, "device_of", lambda _: device)
    monkeypatch.setattr(problem.Device, "place", torch.device("cpu"))
    problem.forget()
    told, head_dims = {}, (8, 16, 64, 128, 256)
    for case in lens.defaults(arch, dtype, head_dims=head_dims):
        key = case.kernel, case.given["head_dim"], case.given.get("causal")
        told.setdefault(key, []).append(case)
    for D, causal, direction in itertools.product(head_dims, (False, True), DIRECTIONS):
        x = torch.empty(1, 16, 4096, D, dtype=getattr(torch, dtype))
        p = problem.Problem.of(x, x, x, x, x, window=problem.CAUSAL if causal else problem.FULL)
        backend = choose(p, "auto", direction)
        for part, plan in backend.plan(p, direction, backend.config(p, direction)).items():
            kernel = plan.kernel.fn.__name__
            cases = told[kernel, D, None if part == "delta" else causal]
            launch = Launch(plan, p)
            expected = {name: value for name, value in launch.arguments.items() if name != "ORDER"}
            assert any(expected.items() <= case.call.arguments.items()
                       and {name: f"[{', '.join(map(str, block))}]" for name, block in
                            plan.blocks.items()} == {name: re.search(r"\[.*\]", value)[0]
                                                     for name, value in case.call.arguments.items()
                                                     if str(value).startswith("tensordesc")}
                       and plan.options.items() <= case.job["options"].items()
                       for case in cases), (kernel, D, causal)
    problem.forget()
    names = {kernel for kernel, _, _ in told}
    assert ("flash_fwd_hopper_kernel" in names) == (arch == "H100" and dtype == "float16")
