"""The lens on single kernels: attributes, tables, side by side, errors, kernels of the reader's own."""

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import flashlib.lens as lens
from flashlib.lens.targets import ARCHS
from tests.lens.toolchain import WORKERS, needs_triton

pytestmark = needs_triton


@pytest.fixture(scope="module")
def forward():
    """Return the forward kernel for Hopper, causal, with tiles whose two products differ in shape."""
    return lens.compile("flash_fwd_kernel", arch="H100", head_dim=128, causal=True, BLOCK_M=64,
                        BLOCK_N=64, num_warps=4, num_stages=2)


def test_the_report_holds_every_stage(forward):
    assert "tt.dot" in forward.ttir and "ttng.warp_group_dot" in forward.ttgir
    assert ".entry flash_fwd_kernel" in forward.ptx and ".target sm_90a" in forward.ptx
    assert "HGMMA.64x64x16.F32.BF16" in forward.sass and "// forward.py:" in forward.sass
    assert forward.cubin.startswith(b"\x7fELF")
    assert "/*0000*/" in forward.sass and forward.instructions["HGMMA"] > 8


def test_the_report_counts(forward):
    assert 32 < forward.registers <= 255 and not forward.spills
    assert forward.num_warps == forward.warps == 4 and forward.num_stages == 2
    # Q once and two stages of K and V, 64 × 128 elements of 2 bytes each, and a few barriers
    assert 5 * 64 * 128 * 2 <= forward.shared_bytes < 6 * 64 * 128 * 2
    found = forward.matrix_instructions
    # two loops, masked and not: QKᵀ takes d/16 steps and PV BLOCK_N/16
    assert found["wgmma.mma_async m64n64k16 f32.bf16.bf16"] == 2 * 128 // 16
    assert found["wgmma.mma_async m64n128k16 f32.bf16.bf16"] == 2 * 64 // 16
    assert found["HGMMA.64x64x16.F32.BF16"] == 16 and found["HGMMA.64x128x16.F32.BF16"] == 8
    assert forward.loads_by_width["UTMALDG 4D"] >= 5
    assert forward.stores_by_width["STG 128"] > 0


def test_the_report_prints_as_one_table(forward):
    text = str(forward)
    assert text.splitlines()[0].startswith("flash_fwd_kernel sm_90 bfloat16 d=128 causal 64×64")
    for words in ("registers per thread", "spills per thread", "16 × HGMMA.64x64", "programs per SM"):
        assert words in text
    assert "<table>" in forward._repr_html_() and len(text.splitlines()) < 14


def test_side_by_side_follows_a_line_through_all_stages(forward):
    both = forward.side_by_side("tl.dot(")
    first, second = both.rows
    for row, shape in ((first, "64x64x16"), (second, "64x128x16")):
        assert "tl.dot(" in row.source
        assert any("tt.dot" in text for text in row.ttir)
        assert any("warp_group_dot" in text for text in row.ttgir)
        assert any("wgmma.mma_async" in text for text in row.ptx)
        assert {t.split()[0] for t in row.sass if "HGMMA" in t} == {f"HGMMA.{shape}.F32.BF16"}
    page = both._repr_html_()
    assert "×16" in str(both) and "<pre " in page
    assert page.count("<th ") == page.count(">SASS<") == 2
    assert all(len(line) <= 104 for line in str(both).splitlines() if line.startswith(" "))


def test_side_by_side_knows_helpers_and_ranges(forward):
    whole = forward.side_by_side()
    assert whole.file == "forward.py" and len(whole.rows) > 20
    lines = [row.line for row in whole.rows]
    assert lines == sorted(lines)
    some = forward.side_by_side((lines[3], lines[5]))
    assert [row.line for row in some.rows] == lines[3:6]
    loads = forward.side_by_side("X.load(", file="tiles.py").rows
    assert any("tt.descriptor_load" in t for t in loads[0].ttir)
    assert any("UTMALDG" in t for t in loads[0].sass)
    for bad, error in (("no such text", ValueError), (1.5, TypeError), ((1, 2, 3), TypeError)):
        with pytest.raises(error, match="lines: expected"):
            forward.side_by_side(bad)
    with pytest.raises(ValueError, match=r"file: expected one of .*tiles\.py"):
        forward.side_by_side(file="other.py")


def test_occupancy_is_of_the_right_generation(forward):
    shared = forward.occupancy("H200")
    assert shared.programs == min(shared.by_limit.values()) >= 1
    assert shared.limited_by in shared.by_limit and shared.fraction == shared.warps / 64
    assert f"{shared.programs} programs per SM, {shared.warps} of 64 warps" in str(shared)
    with pytest.raises(ValueError, match=r"gpu: expected a GPU of generation sm_90 .*got 'A100'"):
        forward.occupancy("A100")


def test_too_much_shared_memory_is_flagged_and_not_hidden():
    big = lens.compile("flash_fwd_kernel", arch="RTX 4090", head_dim=128, BLOCK_M=128, BLOCK_N=128,
                       num_warps=8, num_stages=3)
    assert not big.fits and big.shared_bytes > big.shared_limit_bytes == 99 * 1024
    assert "B too many" in str(big)
    assert big.occupancy().programs == 0 and big.occupancy().limited_by == "shared memory"


@pytest.mark.parametrize("choices, words", [
    (dict(kernel="flash"), "kernel: expected one of flash_fwd_kernel"),
    (dict(arch="sm_55"), "arch: expected sm_75, sm_80"),
    (dict(arch="V100"), "whose generation the lens does not know"),
    (dict(block=3), "block: flash_fwd_kernel has no such choice; expected one of dtype"),
    (dict(dtype="float64"), "dtype: expected one of float16, bfloat16, float32, .* got 'float64'"),
    (dict(dtype="float8_e4m3"), "dtype: expected 'float16', 'bfloat16' or 'float32', got"),
    (dict(arch="T4"), "sm_75 has no bfloat16"),
    (dict(BLOCK_M=48), "BLOCK_M: expected a power of 2 from 8 to 256, got 48"),
    (dict(num_warps=0), "num_warps: expected a power of 2 from 1 to 32, got 0"),
    (dict(heads=6, kv_heads=4), "kv_heads, head_dim: expected a divisor"),
    (dict(kernel="flash_bwd_dkdv_kernel", want_dk=False, want_dv=False), "at least one True"),
    (dict(arguments={"x": 1}, kernel="softmax"), "expected 'module:name' or a kernel"),
])
def test_what_the_lens_does_not_know_it_names(choices, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        lens.compile(**{"kernel": "flash_fwd_kernel", **choices})


def test_the_compilers_own_reason_is_given():
    with pytest.raises(lens.CompileError) as caught:
        lens.compile("flashlib.kernels.triton.backward:flash_bwd_delta_kernel",
                     arguments={"O": "*bf16"})
    assert "missing ['DO'" in str(caught.value)
    assert "Traceback" in caught.value.full_text
    good, bad = lens.compile_many([lens.request("flash_bwd_delta_kernel"), lens.request(
        "flashlib.kernels.triton.tiles:nothing", arguments={})], errors="return")
    assert good.registers and "no attribute 'nothing'" in str(bad)


def test_missing_triton_says_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotImplementedError, match=r"needs Triton.*pip install triton"):
        lens.compile("flash_fwd_kernel")


def test_the_second_time_it_is_remembered(forward):
    again = lens.compile("flash_fwd_kernel", arch="sm_90", head_dim=128, causal=True, BLOCK_M=64,
                         BLOCK_N=64, num_warps=4, num_stages=2)
    assert again is forward


@pytest.mark.parametrize("kernel", [k for k in lens.kernels() if k.startswith("softmax")])
def test_softmax_kernels_are_known(kernel):
    pytest.importorskip("torch")                            # their module needs it
    report = lens.compile(kernel, arch="A100", N=4096)
    loads = {"fused": 1, "online": 2, "3pass": 3}[kernel.split("_")[1]]
    assert report.ttir.count("tt.load") == loads and report.matrix_family is None
    assert report.loads_by_width["LDG 128"] > 0


def test_a_kernel_from_a_cell_compiles_under_the_interpreter(tmp_path):
    """A notebook sets TRITON_INTERPRET and defines kernels in `__main__`; ours must be found, too."""
    cell = tmp_path / "cell.py"
    cell.write_text(textwrap.dedent("""
        import triton
        import triton.language as tl
        import flashlib.lens as lens

        TWO = tl.constexpr(2.0)

        @triton.jit
        def double(x):
            return x * TWO

        @triton.jit
        def double_kernel(X, Y, N, BLOCK: tl.constexpr):
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(Y + i, double(tl.load(X + i, mask=i < N)), mask=i < N)

        example = {"X": "*fp32", "Y": "*fp32", "N": 4096, "BLOCK": 1024}
        report = lens.compile(double_kernel, arch="A100", arguments=example, num_warps=4)
        assert report.loads_by_width == {"LDG 128": 2}, report.loads_by_width
        assert lens.compile(double_kernel, arch="A100", num_warps=4,
                            arguments=example | {"N": 4095}).loads_by_width == {"LDG 32": 8}
        print(report.side_by_side("double(tl.load"))
        from flashlib.kernels.triton.backward import flash_bwd_delta_kernel
        print(lens.compile(flash_bwd_delta_kernel, arch="sm_80").registers)
        """), encoding="utf-8")
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(cell)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tt.load" in done.stdout and "LDG.E.128" in done.stdout


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", [1, 8, 15, 16, 40])
def test_the_lens_takes_the_dtype_that_a_launch_computes_in(dtype, head_dim, monkeypatch):
    """Heads narrower than 16 are computed in float32, whatever their own dtype."""
    torch = pytest.importorskip("torch")
    from flashlib.kernels import plans
    from flashlib.kernels.backends.triton import BACKEND
    from flashlib.kernels.problem import Problem

    class Launched(Exception):
        pass

    def stop(backend, p, *options):
        raise Launched(str(p.dtype).removeprefix("torch."))

    monkeypatch.setattr(plans, "launches_for", stop)
    x = torch.zeros(1, 1, 4, head_dim, dtype=getattr(torch, dtype))
    p = Problem.of(x, x, x, x, x)
    passes = {"flash_fwd_kernel": lambda: BACKEND.forward(x, x, x, p, 1.0)}
    for kernel in ("flash_bwd_delta_kernel", "flash_bwd_dkdv_kernel", "flash_bwd_dq_kernel"):
        passes[kernel] = lambda: BACKEND.backward(x, x, x, x, x[..., 0].float(), x, None, p, 1.0)
    for kernel, start in passes.items():
        with pytest.raises(Launched) as launched:
            start()
        call = lens.request(kernel, arch="H100", dtype=dtype, head_dim=head_dim).call
        kind = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}[str(launched.value)]
        tensors = [call.arguments[name] for name in ("Q", "K", "V", "O", "DO", "DQ", "DK", "DV")
                   if name in call.arguments]
        assert len(tensors) >= 2 and all(kind in tensor for tensor in tensors), kernel
        assert str(launched.value) in call.label
        assert (f"(for {dtype})" in call.label) == (str(launched.value) != dtype)
        assert not (kind == "fp32" and call.arguments.get("USE_TMA"))


def test_a_narrow_head_is_compiled_without_tensor_cores():
    narrow, wide = lens.compile_many([lens.request("flash_fwd_kernel", arch="H100", dtype="bfloat16",
                                                   head_dim=d) for d in (8, 16)])
    assert narrow.matrix_family is None and "bf16" not in narrow.ttir
    assert narrow.ttir.count("tt.dot ") == 2 and "tf32" not in narrow.ttir
    assert wide.matrix_family == "wgmma" and "bf16" in wide.ttir
    assert "float32 (for bfloat16) d=8" in str(narrow)


@pytest.mark.matrix
def test_each_generation_emits_the_family_that_its_target_names():
    """A T4 has tensor cores, and Triton emits no instruction for them."""
    assert ARCHS["sm_75"].matrix is None
    cases = [lens.request("flash_fwd_kernel", arch=name, dtype="float16", head_dim=64)
             for name in ARCHS]
    for case, report in zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True):
        assert report.matrix_family == report.arch.matrix, str(case)
        in_sass = [name for name in report.matrix_instructions if "MMA" in name]
        assert bool(in_sass) == (report.arch.matrix is not None), str(case)


def test_the_lens_compiles_what_a_launch_would(forward, tmp_path):
    """The builder imitates Triton's launcher: a launch through a stub driver gives the same PTX."""
    pytest.importorskip("torch")
    script = textwrap.dedent("""
        import sys
        import torch, triton
        from triton.backends.compiler import GPUTarget
        from triton.tools.tensor_descriptor import TensorDescriptor
        from flashlib.kernels.triton.forward import flash_fwd_kernel

        class Driver:
            utils = type("Utils", (), {"get_device_properties": lambda self, device: {}})()
            get_current_target = lambda self: GPUTarget("cuda", 90, 32)
            get_current_device = lambda self: 0
            get_current_stream = lambda self, device=None: 0
            get_active_torch_device = lambda self: torch.device("cpu")

        triton.runtime.driver.set_active(Driver())
        x = torch.empty(1, 16, 4096, 128, dtype=torch.bfloat16)
        tile = TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, 64, 128])
        kernel = flash_fwd_kernel.warmup(
            tile, tile, tile, x, torch.float32, None, None, 0.1, None, None, None,
            *[x.stride()] * 4, (16, 1, 4096, 4096, 128), None, None, (64, 64, 128), True, True, False,
            True, (0, 0), False, num_warps=4, num_stages=2, grid=(1,))
        import flashlib.lens as lens
        print(lens.inspect(kernel).registers)
        sys.stdout.write(kernel.asm["ptx"])
        """)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path)}
    # from a file: Triton reads the source of what it compiles
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    registers, _, ptx = done.stdout.partition("\n")
    assert int(registers) == forward.registers
    assert ptx == forward.ptx


KERNEL = "import triton\n\n\n@triton.jit\ndef kernel(): pass\n"


def test_a_kernel_that_has_moved_in_its_file_is_compiled_anew(tmp_path):
    """Its text is the same, and Triton's cache would name the lines where it was."""
    from flashlib.lens.compiler import _cache_folder

    page = tmp_path / "kernels" / "language" / "page.py"
    page.parent.mkdir(parents=True)
    page.write_text(KERNEL)
    kernels, given = tmp_path / "kernels", {"TRITON_CACHE_DIR": str(tmp_path)}
    before = _cache_folder(kernels, given)
    assert before == _cache_folder(kernels, given)
    page.write_text("\n" + page.read_text())
    after = _cache_folder(kernels, given)
    assert before != after and before.parent == after.parent == tmp_path
    page.rename(page.with_stem("sheet"))
    renamed = _cache_folder(kernels, given)
    kernels.rename(tmp_path / "elsewhere")
    moved = _cache_folder(tmp_path / "elsewhere", given)
    assert len({before, after, renamed, moved}) == 4
    assert _cache_folder(kernels, {"TRITON_HOME": "/home"}).parent == Path("/home/.triton/cache")
    assert _cache_folder(kernels, {}).parent == Path.home() / ".triton" / "cache"


def test_an_edit_of_a_host_file_keeps_what_is_compiled(tmp_path):
    """On a copy of the package's kernels: a line more on top of every file, one file at a time."""
    from flashlib import kernels
    from flashlib.lens.compiler import _cache_folder

    shutil.copytree(Path(kernels.__file__).parent, tmp_path / "kernels")
    given = {"TRITON_CACHE_DIR": str(tmp_path)}
    device, host = set(), set()
    for path in (tmp_path / "kernels").rglob("*.py"):
        before, source = _cache_folder(tmp_path / "kernels", given), path.read_text(encoding="utf-8")
        path.write_text("# a line more\n" + source, encoding="utf-8")
        moved = _cache_folder(tmp_path / "kernels", given) != before
        (device if moved else host).add(path.stem)
        marks = [ast.unparse(mark) for node in ast.walk(ast.parse(source))
                 for mark in getattr(node, "decorator_list", ())]
        assert moved == any("jit" in mark or "constexpr_function" in mark for mark in marks), path.name
    assert device >= {"forward", "backward", "tiles", "parts", "softmax", "aggregates"}
    assert host >= {"__init__", "attention", "plans", "problem", "configs"}
