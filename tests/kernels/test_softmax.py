"""The softmax kernels: right in the interpreter, with the crossings predicted; the recorded rates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashlib import data

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
CROSSINGS = {"3pass": [3, 1, 0, ""], "online": [2, 1, 0, ""], "fused": [1, 1, 0, ""]}
REFUSALS = {"a list": "x: expected a torch.Tensor, got list", "int": "got torch.int64",
            "float64": "got torch.float64", "bfloat16": "interpreter is wrong for torch.bfloat16",
            "no axis": "at least one axis", "impl": "impl: expected one of", "sparse": "dense tensor"}


@pytest.fixture(scope="module")
def interpreted():
    """What tests/kernels/softmax_cases.py found, in a process that set TRITON_INTERPRET first."""
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("softmax_cases.py"))],
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_shape_dtype_and_stride_is_right_to_rounding(interpreted):
    numbers = interpreted["numbers"]
    assert len(numbers) > 90
    assert {case: units for case, units in numbers.items() if not units < 4} == {}


def test_edges(interpreted):
    assert {case for case, holds in interpreted["edges"].items() if holds is not True} == set()


@pytest.mark.parametrize("impl", CROSSINGS)
def test_loads_and_stores_are_those_of_its_passes(interpreted, impl):
    assert interpreted["crossings"][impl] == CROSSINGS[impl]


def test_every_way_to_share_rows_touches_each_element_once(interpreted):
    shared = {k: v for k, v in interpreted["crossings"].items() if k.startswith("fused (")}
    assert len(shared) == 3
    assert all(found == [1, 1, 0, ""] for found in shared.values()), shared


@pytest.mark.parametrize("what", REFUSALS)
def test_refuses_before_any_launch(interpreted, what):
    assert REFUSALS[what] in interpreted["refusals"][what]


def test_a_cpu_tensor_without_the_interpreter_is_refused_with_the_remedy():
    code = ("import torch\nfrom flashlib.kernels.softmax import softmax\n"
            "try: softmax(torch.zeros(3))\nexcept NotImplementedError as e: print(e)")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**env, "PYTHONPATH": str(ROOT)})
    assert "set TRITON_INTERPRET=1" in done.stdout, done.stderr


def test_the_recorded_run_reaches_the_goal():
    recorded = data.measurements("softmax_h200")
    ceiling = recorded.number("ceiling_copy_bytes_per_s")
    shares = {(r["dtype"], r["rows"], r["cols"]): r["least_bytes_per_s"] / ceiling
              for r in recorded.where(impl="fused").rows}
    assert all(share >= 0.9 for (_, rows, cols), share in shares.items()
               if rows * cols == 2**28 and cols <= 2**14)
    for dtype in ("float16", "bfloat16", "float32"):        # an SM has 62 of these rows, or 248
        assert shares[dtype, 2**13, 2**15] > 0.88 and shares[dtype, 2**15, 2**15] >= 0.9


@pytest.mark.gpu
def test_on_a_gpu_every_kernel_is_right():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here; the interpreter covers the same kernels")
    from flashlib.course.bench import softmax_rates as bench

    bench.check(("3pass", "online", "fused"), bench.DTYPES, bench.CHECKED, "cuda")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_fused_rows_stay_in_registers(dtype):
    from flashlib import lens
    from flashlib.kernels import softmax as kernels

    size, requests = 4 if dtype == "fp32" else 2, []
    for N in (256, 2048, 8192, 16384, 32768):
        BLOCK_M, num_warps, _, stages = kernels.fused_config(N, size)
        requests.append(lens.request(
            kernels.softmax_fused_fwd_kernel, arch="sm_90", num_warps=num_warps, arguments={
                "X": f"*{dtype}", "Y": f"*{dtype}", "stride_xm": N, "stride_xn": 1, "stride_ym": N,
                "stride_yn": 1, "M": 16384, "N": N, "BLOCK_M": BLOCK_M, "BLOCK_N": N,
                "STAGES": stages}))
    for report in lens.compile_many(requests):
        assert report.fits and not report.spills, str(report)
