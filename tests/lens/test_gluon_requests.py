"""What may be asked of the Gluon kernels, what the report holds, and what a launch compiles."""

import os
import subprocess
import sys
import textwrap

import pytest

import flashlib.lens as lens
from tests.lens.gluon_cases import FP8, HOPPER, PIPELINED, compile_one
from tests.lens.toolchain import needs_triton

pytest.importorskip("torch")                                # the tables stand beside the launch
pytest.importorskip("triton.experimental.gluon")

pytestmark = [needs_triton, pytest.mark.slow]


def test_the_report_holds_every_stage_and_source_lines():
    report = compile_one()
    assert "ttng.warp_group_dot" in report.ttir and "ttng.warp_group_dot" in report.ttgir
    assert f".entry {HOPPER}" in report.ptx and "HGMMA.64x128x16.F32.BF16" in report.sass
    rows = report.side_by_side("warpgroup_mma(a, b, total[0]", file="columns.py").rows
    assert len(rows) == 1 and all(any(word in text for text in getattr(rows[0], stage))
                                  for stage, word in (("ttir", "warp_group_dot"), ("sass", "HGMMA"),
                                                      ("ttgir", "warp_group_dot"), ("ptx", "wgmma")))
    softmax = report.side_by_side("exp2(x)", file="softmax.py").rows
    assert any("MUFU.EX2" in text for row in softmax for text in row.sass)
    assert str(report).startswith(f"{HOPPER} sm_90 bfloat16 d=128 128×128, 2 consumers, 2 stages")


@pytest.mark.parametrize("choices, words", [
    (dict(arch="A100"), r"impl: 'gluon' expected a Hopper GPU .*got compute capability 8\.0"),
    (dict(arch="B200"), r"impl: 'gluon' expected a Hopper GPU .*got compute capability 10\.0"),
    (dict(dtype="float32"), "impl: 'gluon' expected float16 or bfloat16, got torch.float32"),
    (dict(kernel=FP8, dtype="bfloat16"), "dtype, head_dim: FP8 attention expected float8_e4m3"),
    (dict(head_dim=8), "impl: 'gluon' expected a head dimension D of at least 16, got 8"),
    (dict(head_dim=60), "impl: 'gluon' expected q, k and v as the copy engine reads them"),
    (dict(kernel=FP8, head_dim=32), "dtype, head_dim: FP8 attention expected .* 64, 128 or 256, got"),
    (dict(CONSUMERS=4), "CONSUMERS: expected an integer from 2 to 3, got 4"),
    (dict(EMULATED=3), "EMULATED: expected an integer from 0 to 2, got 3"),
    (dict(O_PARTS=4), "O_PARTS: expected a power of 2 from 1 to 2, got 4"),
    (dict(kernel=PIPELINED, CONSUMERS=3), "CONSUMERS: expected 2 without SPECIALIZED, got 3"),
    (dict(STAGES=0), "STAGES: expected an integer from 1 to 16, got 0"),
    (dict(OVERLAP=1), "OVERLAP: expected True or False, got 1"),
    (dict(TAU=-1.0), r"TAU: expected a number from 0 to 8, got -1\.0"),
    (dict(kernel=FP8, OVERLAP=False), "OVERLAP: flash_fwd_fp8_kernel has no such choice"),
    (dict(BLOCK_M=128), "BLOCK_M: flash_fwd_hopper_kernel has no such choice"),
    (dict(kernel=PIPELINED, dtype="float8_e4m3"), "impl: 'gluon' expected float16 or bfloat16, got"),
])
def test_what_the_kernels_cannot_do_is_named(choices, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        lens.request(**{"kernel": HOPPER, "arch": "H200"} | choices)


@pytest.mark.parametrize("options", ["causal=False", *(
    pytest.param(options, marks=pytest.mark.matrix) for options in (
        "causal=True, fp8", "causal=False, few", "causal=True, few",
        "causal=False, few, SPECIALIZED=False"))])
def test_the_lens_compiles_what_a_launch_would(options, tmp_path):
    """A launch on tensors, through a stub driver, gives the same PTX as the lens by example."""
    causal, pipelined, fp8 = (word in options for word in ("causal=True", "SPECIALIZED", "fp8"))
    N = 1024 if "few" in options else 4096                  # at d = 128 the table has two entries
    script = textwrap.dedent(f"""
        import sys
        import torch, triton
        from triton.backends.compiler import GPUTarget
        from flashlib.kernels import problem
        from flashlib.kernels.backends import gluon
        from flashlib.kernels.plans import Launch

        class Driver:
            utils = type("Utils", (), {{"get_device_properties": lambda self, device: {{}}}})()
            get_current_target = lambda self: GPUTarget("cuda", 90, 32)
            get_current_device = lambda self: 0
            get_current_stream = lambda self, device=None: 0
            get_active_torch_device = lambda self: torch.device("cpu")

        triton.runtime.driver.set_active(Driver())
        device = problem.Device("cuda", 0, (9, 0), 132, "stub")
        problem.device_of = lambda _: device
        problem.Device.place = torch.device("cpu")
        window = problem.CAUSAL if {causal} else problem.FULL
        x = torch.empty(1, 16, {N}, 128, dtype=torch.bfloat16)
        lse = torch.empty(1, 16, {N})
        if {fp8}:
            x, scales = x.to(torch.float8_e4m3fn), [lse] * 3
            v = x.transpose(2, 3).contiguous()
            p = problem.Problem.of(x, x, v, window=window)
            plan = gluon.FP8.plan(p, "forward", gluon.FP8.config(p, "forward"))["forward"]
            o = torch.empty(x.shape, dtype=torch.bfloat16)
            tensors = x, x, v, o
        else:
            p = problem.Problem.of(x, x, x, window=window)
            config = gluon.BACKEND.config(p, "forward")._replace(SPECIALIZED={not pipelined})
            plan = gluon.BACKEND.plan(p, "forward", config)["forward"]
            tensors, scales = [x] * 4, []
        no_sink = [None] * ("SINK" in plan.tensors)
        arguments = Launch(plan, p).bound(*tensors, lse, *scales, 0.1, *no_sink)
        kernel = plan.kernel.warmup(*arguments, grid=(1,), **plan.options)
        sys.stdout.write(kernel.asm["ptx"])
        """)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernel = FP8 if fp8 else PIPELINED if pipelined else HOPPER
    assert done.stdout == compile_one(kernel, causal=causal, Nk=N).ptx
