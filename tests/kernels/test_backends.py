"""A backend that this machine cannot run says why and what to do; imports stay light."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

torch = pytest.importorskip("torch")

import flashlib  # noqa: E402
from flashlib.kernels import attention, backends, configs, flash_attention  # noqa: E402
from flashlib.kernels.backends import DIRECTIONS, choose, named  # noqa: E402
from flashlib.kernels.problem import Problem  # noqa: E402

ROOT = Path(flashlib.__file__).parent.parent
HALVES = ("bfloat16", "float16")
DTYPES = (*HALVES, "float32", "float64")
# Every backend is asked for every dtype, in one process for what the process was before.
CALLS = f"""
import json, sys, torch
before = set(sys.modules)
from flashlib.kernels import flash_attention
said = {{}}
for impl in ("auto", "triton", "gluon"):
    for dtype in {DTYPES}:
        x = torch.ones(1, 1, 2, 4, dtype=getattr(torch, dtype))
        try:
            flash_attention(x, x, x, impl=impl)
        except Exception as error:
            said[impl + " " + dtype] = [type(error).__name__, str(error)]
        else:
            said[impl + " " + dtype] = ["", ""]
    said["loaded by " + impl] = sorted(set(sys.modules) - before)
x = torch.ones(1, 1, 2, 4, requires_grad=True)
flash_attention(x, x, x).sum().backward()
said["gradient"] = x.grad.shape
print(json.dumps(said))
"""
WITHOUT_TRITON = "import sys; sys.modules['triton'] = None\n"
OLD_TRITON = "import triton\ntriton.__version__ = '3.4.0'\n"


def python(code, **environment):
    """Run code in a fresh process and return the JSON that it prints."""
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, env=clean | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@functools.cache
def calls(before="", interpreter=False):
    return python(before + CALLS, **({"TRITON_INTERPRET": "1"} if interpreter else {}))


def said(impl, dtype, before="", interpreter=False):
    """Return the error, as kind and message, of a call on CPU tensors; empty if there was none."""
    return calls(before, interpreter)[f"{impl} {dtype}"]


def test_without_the_interpreter_triton_refuses_cpu_tensors():
    pytest.importorskip("triton")
    kind, message = said("triton", "float32")
    assert kind == "NotImplementedError"
    assert message.startswith("impl: 'triton' on CPU tensors needs Triton's interpreter")
    assert "TRITON_INTERPRET=1" in message and "impl='reference'" in message


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_interpreter_refuses_other_dtypes(dtype):
    pytest.importorskip("triton")
    kind, message = said("triton", dtype, interpreter=True)
    assert kind == "NotImplementedError"
    assert f"wrong for torch.{dtype}: expected float32 or float16" in message


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_the_interpreter_gluon_refuses_cpu_tensors(dtype):
    pytest.importorskip("triton")
    kind, message = said("gluon", dtype)
    assert kind == "NotImplementedError"
    assert message.startswith("impl: 'gluon' on CPU tensors needs the interpreter")
    assert "TRITON_INTERPRET=1" in message and message.endswith("use impl='reference'")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gluon_interpreter_refuses_what_the_kernels_do(dtype):
    pytest.importorskip("triton")
    kind, message = said("gluon", dtype, interpreter=True)
    assert kind == "NotImplementedError"
    expected = "a head dimension D of at least 16, got 4" if dtype in HALVES else (
        f"float16 or bfloat16, got torch.{dtype}")
    assert message == f"impl: 'gluon' expected {expected}; use impl='auto'"


@pytest.mark.parametrize("impl", ["gluon", "triton"])
def test_without_triton_its_kernels_are_refused_with_a_remedy(impl):
    kind, message = said(impl, "float16", WITHOUT_TRITON)
    assert kind == "NotImplementedError"
    assert message.startswith(f"impl: expected a backend of this machine, got '{impl}'")
    assert "which does not import: " in message
    assert "impl='reference', or a Linux machine with Triton" in message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_auto_on_the_cpu_stays_the_reference(dtype):
    x = torch.ones(1, 1, 2, 64, dtype=getattr(torch, dtype))
    p = Problem.of(x, x, x)
    assert [choose(p, "auto", direction).name for direction in DIRECTIONS] == ["reference"] * 2
    assert torch.equal(flash_attention(x, x, x), flash_attention(x, x, x, impl="reference"))


def on_gpu(gpu, *capability, N=300, D=64, dtype=torch.bfloat16, type="cuda"):
    """Return the problem of tensors that lie, as far as plans go, on a GPU."""
    pytest.importorskip("triton.experimental.gluon")
    gpu(*capability, type=type)
    x = torch.zeros(1, 1, N, D, dtype=dtype)
    return Problem.of(x, x, x, x, x)


@pytest.mark.parametrize("N, D, takes", [
    (256, 64, "triton"), (257, 64, "gluon"), (64, 128, "triton"), (65, 128, "gluon")])
def test_a_backward_of_few_keys_is_tritons(gpu, N, D, takes):
    p = on_gpu(gpu, 9, 0, N=N, D=D)
    assert [choose(p, "auto", direction).name for direction in DIRECTIONS] == ["gluon", takes]


@pytest.mark.parametrize("capability, options, takes", [
    ((9, 0), {}, "gluon"), ((9, 0), {"dtype": torch.float32}, "triton"), ((9, 0), {"D": 16}, "triton"),
    ((8, 0), {}, "triton"), ((10, 0), {}, "triton")])
def test_auto_on_a_gpu_takes_the_kernel_that_can_and_is_faster(gpu, monkeypatch, capability, options,
                                                               takes):
    p = on_gpu(gpu, *capability, **options)
    assert [choose(p, "auto", direction).name for direction in DIRECTIONS] == [takes] * 2
    x, asked = torch.zeros(1, 1, p.N_Q, p.D, dtype=p.dtype), []
    monkeypatch.setattr(type(named(takes)), "forward",
                        lambda self, *a, **_: asked.append(self.name) or (x, x))
    for _ in range(2):                                      # known from before, too
        flash_attention(x, x, x)
    assert asked == [takes] * 2


@pytest.mark.parametrize("H, N_Q, N_K, takes", [
    (1, 1, 512, "decode"), (1, 64, 512, "decode"), (1, 65, 512, "triton"), (1, 1, 511, "triton"),
    (4, 16, 4096, "decode"), (4, 17, 4096, "triton")])
@pytest.mark.parametrize("B", [1, 64])
def test_auto_decodes_few_rows_on_many_keys_whatever_the_batch(gpu, B, H, N_Q, N_K, takes):
    pytest.importorskip("triton")
    gpu(8, 0)
    q, k = torch.zeros(B, H, N_Q, 16), torch.zeros(B, 1, N_K, 16)
    p = Problem.of(q, k, k)
    assert [choose(p, "auto", direction).name for direction in DIRECTIONS] == [takes, "triton"]


def test_while_the_interpreter_is_on_gluon_refuses_and_auto_takes_triton(gpu, monkeypatch):
    import triton

    p = on_gpu(gpu, 9, 0)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert choose(p, "auto", "forward").name == "triton"
    with pytest.raises(NotImplementedError, match="expected Triton's interpreter to be off"):
        choose(p, "gluon", "forward")


def without(monkeypatch, *missing):
    real = backends.named

    def find(name):
        if name in missing:
            raise ImportError(f"no {name}")
        return real(name)

    monkeypatch.setattr(backends, "named", find)


def test_without_gluon_a_hopper_gpu_runs_what_triton_has(gpu, monkeypatch):
    p = on_gpu(gpu, 9, 0)
    without(monkeypatch, "gluon")
    assert choose(p, "auto", "forward").name == "triton"


def test_when_none_can_each_ones_reason_is_listed(gpu, monkeypatch):
    p = on_gpu(gpu, 8, 0)
    without(monkeypatch, "triton")
    with pytest.raises(NotImplementedError) as refused:
        choose(p, "auto", "forward")
    gluon, triton = str(refused.value).split("; impl: ")
    assert "expected a Hopper GPU (compute capability 9.0), got compute capability 8.0" in gluon
    assert "which does not import: no triton. Use impl='reference'" in triton
    assert "Linux" not in triton                            # that is no remedy for another reason


def test_a_backend_stands_in_each_list_of_them():
    folder = Path(backends.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == configs.BACKENDS.keys()
    assert get_args(attention.Impl) == attention.IMPLS == ("auto", *configs.BACKENDS)


@pytest.mark.parametrize("name", ["reference", "triton", "gluon", "decode"])
def test_each_backend_is_one(name):
    pytest.importorskip("triton.experimental.gluon")
    backend = named(name)
    assert isinstance(backend, backends.Backend) and backend.name == name
    assert isinstance(backend, backends.Planner) == (name != "reference")


def test_an_old_triton_is_refused_with_its_version():
    pytest.importorskip("triton")
    kind, message = said("triton", "float32", OLD_TRITON, interpreter=True)
    assert kind == "NotImplementedError"
    assert "the kernels need Triton 3.5 or newer, got 3.4.0" in message
    assert "impl='reference'" in message


@pytest.mark.parametrize("before, interpreter", [
    (WITHOUT_TRITON, False), (OLD_TRITON, True), ("", False)], ids=["none", "old", "new"])
def test_with_any_triton_the_reference_backend_runs(before, interpreter):
    if before != WITHOUT_TRITON:
        pytest.importorskip("triton")
    assert all(said("auto", dtype, before, interpreter) == ["", ""] for dtype in DTYPES)
    assert calls(before, interpreter)["gradient"] == [1, 1, 2, 4]


ASK = """
import sys; sys.modules[MISSING] = None
import json, flashlib as fl
def kernels(): from flashlib.kernels import flash_attention
said = []
for ask in ASKED:
    try: ask()
    except ImportError as error: said.append(str(error))
print(json.dumps(said))
"""


@pytest.mark.parametrize("missing, asked, extra, names", [
    ("torch", "lambda: fl.flash_attention, kernels, lambda: fl.kernels.tune", "torch",
     ["flash_attention", "flash_attention", "tune"]),
    ("matplotlib", "lambda: fl.plots.roofline, lambda: fl.widgets.play", "plots",
     ["roofline", "play"])])
def test_what_is_missing_is_named_with_the_extra_that_brings_it(missing, asked, extra, names):
    said = python(f"MISSING = {missing!r}\n{ASK.replace('ASKED', f'({asked})')}")
    assert len(said) == len(names)
    for sentence, name in zip(said, names, strict=True):
        assert sentence.startswith(f"{name} needs {missing}, which is not installed")
        assert f'pip install ".[{extra}]"' in sentence and "make setup" in sentence


def test_the_extras_that_errors_name_exist():
    import tomllib

    from flashlib.lazy import EXTRAS

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    offered = project["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(line.startswith(package) for line in offered[extra]), (package, extra)


def test_an_error_inside_the_package_is_not_taken_for_a_missing_extra():
    from flashlib.lazy import load

    with pytest.raises(ModuleNotFoundError, match=r"No module named 'flashlib\.nothing'"):
        load("flashlib.nothing", "nothing")


def test_the_kernels_complete_to_what_they_offer():
    import flashlib.kernels

    offered = [name for name in dir(flashlib.kernels) if not name.startswith("__")]
    assert offered == sorted(flashlib.kernels.__all__) and "flash_attention" in offered


def test_types_are_offered():
    import typing

    assert (ROOT / "flashlib" / "py.typed").exists()
    from flashlib.kernels import flash_attention_fp8

    for op in (flash_attention, flash_attention_fp8):
        plain, with_lse = typing.get_overloads(op)
        assert typing.get_type_hints(plain)["return"] is torch.Tensor
        assert typing.get_type_hints(with_lse)["return"] == tuple[torch.Tensor, torch.Tensor]
        assert typing.get_type_hints(plain)["q"] is torch.Tensor


def test_importing_the_packages_loads_neither_torch_nor_triton():
    loaded = python("import json, sys, flashlib, flashlib.kernels;"
                    " print(json.dumps(sorted(sys.modules)))")
    assert not {"torch", "triton"} & set(loaded)


def test_the_cpu_needs_no_triton():
    """The op and its reference backend load torch, and never Triton on their own."""
    loaded = calls()["loaded by auto"]
    assert "flashlib.kernels.backends.reference" in loaded and "flashlib.kernels.plans" not in loaded
    assert not [name for name in loaded if name.split(".")[0] == "triton"]


def test_the_front_door_offers_the_op():
    assert flashlib.flash_attention is flash_attention


@pytest.mark.parametrize("capability, allowed", [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_bfloat16_needs_sm_80(gpu, capability, allowed):
    p = on_gpu(gpu, *capability)
    if allowed:
        assert choose(p, "reference", "forward")
    else:
        with pytest.raises(NotImplementedError, match=r"^q: bfloat16 needs .* 8\.0 .* got 7\.5"):
            choose(p, "reference", "forward")
    assert choose(on_gpu(gpu, *capability, dtype=torch.float16), "reference", "forward")
