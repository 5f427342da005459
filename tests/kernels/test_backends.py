"""A backend that this machine cannot run says why and what to do; imports stay light."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import flashlib  # noqa: E402
from flashlib.kernels import backends, flash_attention  # noqa: E402
from flashlib.kernels.backends import DIRECTIONS, choose, named  # noqa: E402
from flashlib.kernels.problem import Problem  # noqa: E402

ROOT = Path(flashlib.__file__).parent.parent
CALL = """
import json, sys, torch
from flashlib.kernels import flash_attention
x = torch.ones(1, 1, 2, 4, dtype=getattr(torch, DTYPE))
try:
    flash_attention(x, x, x, impl="triton")
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
else:
    print(json.dumps(["", ""]))
"""


def python(code, **environment):
    """Run code in a fresh process and return the JSON that it prints."""
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, env=clean | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_the_interpreter_triton_refuses_cpu_tensors():
    pytest.importorskip("triton")
    kind, message = python(f"DTYPE = 'float32'\n{CALL}")
    assert kind == "NotImplementedError"
    assert message.startswith("impl: 'triton' on CPU tensors needs Triton's interpreter")
    assert "TRITON_INTERPRET=1" in message and "impl='reference'" in message


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_interpreter_refuses_other_dtypes(dtype):
    pytest.importorskip("triton")
    kind, message = python(f"DTYPE = {dtype!r}\n{CALL}", TRITON_INTERPRET="1")
    assert kind == "NotImplementedError"
    assert f"wrong for torch.{dtype}: expected float32 or float16" in message


GLUON = CALL.replace('"triton"', '"gluon"')


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("interpreter", [{}, {"TRITON_INTERPRET": "1"}], ids=["", "interpreter"])
def test_gluon_refuses_cpu_tensors(dtype, interpreter):
    """Whatever the dtype, and with the interpreter as well: Gluon has none."""
    pytest.importorskip("triton")
    kind, message = python(f"DTYPE = {dtype!r}\n{GLUON}", **interpreter)
    assert kind == "NotImplementedError"
    assert message.startswith("impl: 'gluon' expected tensors on a Hopper GPU, got cpu")
    assert "no interpreter" in message and message.endswith("use impl='reference'")


def test_without_triton_gluon_is_refused_with_a_remedy():
    kind, message = python(f"import sys; sys.modules['triton'] = None\nDTYPE = 'bfloat16'\n{GLUON}")
    assert kind == "NotImplementedError"
    assert message.startswith("impl: expected a backend of this machine, got 'gluon'")
    assert "Triton does not import" in message and "impl='reference'" in message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_auto_on_the_cpu_stays_the_reference(dtype):
    x = torch.ones(1, 1, 2, 64, dtype=getattr(torch, dtype))
    p = Problem.of(x, x, x)
    assert [choose(p, "auto", direction).name for direction in DIRECTIONS] == ["reference"] * 2
    assert torch.equal(flash_attention(x, x, x), flash_attention(x, x, x, impl="reference"))


def on_gpu(gpu, *capability, D=64, dtype=torch.bfloat16, type="cuda"):
    """Return the problem of tensors that lie, as far as plans go, on a GPU."""
    pytest.importorskip("triton.experimental.gluon")
    gpu(*capability, type=type)
    x = torch.zeros(1, 1, 16, D, dtype=dtype)
    return Problem.of(x, x, x, x, x)


@pytest.mark.parametrize("capability, options, takes", [
    ((9, 0), {}, "gluon"), ((9, 0), {"dtype": torch.float32}, "triton"), ((9, 0), {"D": 16}, "triton"),
    ((8, 0), {}, "triton"), ((10, 0), {}, "triton")])
def test_auto_on_a_gpu_takes_the_kernel_that_can_and_is_faster(gpu, monkeypatch, capability, options,
                                                               takes):
    p = on_gpu(gpu, *capability, **options)
    assert [choose(p, "auto", direction).name for direction in DIRECTIONS] == [takes, "triton"]
    x, asked = torch.zeros(1, 1, 16, p.D, dtype=p.dtype), []
    monkeypatch.setattr(type(named(takes)), "forward",
                        lambda self, *a: asked.append(self.name) or (x, x))
    for _ in range(2):                                      # known from before, too
        flash_attention(x, x, x)
    assert asked == [takes] * 2


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
    assert "Triton does not import (no triton)" in triton and "impl='reference'" in triton


@pytest.mark.parametrize("name", ["reference", "triton", "gluon"])
def test_each_backend_is_one(name):
    pytest.importorskip("triton.experimental.gluon")
    backend = named(name)
    assert isinstance(backend, backends.Backend) and backend.name == name
    assert isinstance(backend, backends.Planner) == (name != "reference")


def test_without_triton_it_is_refused_with_a_remedy():
    kind, message = python(f"import sys; sys.modules['triton'] = None\nDTYPE = 'float32'\n{CALL}")
    assert kind == "NotImplementedError"
    assert message.startswith("impl: expected a backend of this machine, got 'triton'")
    assert "Triton does not import" in message and "impl='reference'" in message


def test_an_old_triton_is_refused_with_its_version_and_the_reference_backend_runs():
    pytest.importorskip("triton")
    old = "import triton\ntriton.__version__ = '3.4.0'\nDTYPE = 'float32'\n"
    kind, message = python(old + CALL, TRITON_INTERPRET="1")
    assert kind == "NotImplementedError"
    assert "the kernels need Triton 3.5 or newer, got 3.4.0" in message
    assert "impl='reference'" in message
    assert python(old + CALL.replace('"triton"', '"auto"')) == ["", ""]


def test_without_triton_the_reference_backend_runs():
    assert python("""
import sys; sys.modules["triton"] = None
import json, torch
from flashlib import flash_attention
x = torch.ones(1, 1, 2, 4, requires_grad=True)
flash_attention(x, x, x).sum().backward()
print(json.dumps(x.grad.shape))
""") == [1, 1, 2, 4]


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
    ("matplotlib", "lambda: fl.plots.roofline, lambda: fl.widgets.block_lab", "plots",
     ["roofline", "block_lab"])])
def test_what_is_missing_is_named_with_the_extra_that_brings_it(missing, asked, extra, names):
    said = python(f"MISSING = {missing!r}\n{ASK.replace('ASKED', f'({asked})')}")
    assert len(said) == len(names)
    for sentence, name in zip(said, names, strict=True):
        assert sentence.startswith(f"{name} needs {missing}, which is not installed")
        assert f'pip install ".[{extra}]"' in sentence and "make setup" in sentence


def test_the_extras_that_errors_name_exist():
    import tomllib

    from flashlib.extras import EXTRAS

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    offered = project["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(line.startswith(package) for line in offered[extra]), (package, extra)


def test_an_error_inside_the_package_is_not_taken_for_a_missing_extra():
    from flashlib.extras import load

    with pytest.raises(ModuleNotFoundError, match=r"No module named 'flashlib\.nothing'"):
        load("flashlib.nothing", "nothing")


def test_the_kernels_complete_to_what_they_offer():
    import flashlib.kernels

    assert dir(flashlib.kernels) == sorted(flashlib.kernels.__all__)
    assert "flash_attention" in dir(flashlib.kernels)


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
    loaded = python("""
import json, sys, torch
before = set(sys.modules)
from flashlib.kernels import flash_attention
x = torch.ones(1, 1, 2, 4)
flash_attention(x, x, x)
print(json.dumps(sorted(set(sys.modules) - before)))
""")
    assert "flashlib.kernels.backends.reference" in loaded
    assert "flashlib.kernels.plans" not in loaded
    assert not [name for name in loaded if name.split(".")[0] == "triton"]


def test_the_front_door_offers_the_op():
    assert flashlib.flash_attention is flash_attention


def test_kernels_never_import_algorithms():
    for path in (ROOT / "flashlib" / "kernels").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import flashlib.algorithms" not in text and "from flashlib.algorithms" not in text


@pytest.mark.parametrize("capability, allowed", [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_bfloat16_needs_sm_80(gpu, capability, allowed):
    p = on_gpu(gpu, *capability)
    if allowed:
        assert choose(p, "reference", "forward")
    else:
        with pytest.raises(NotImplementedError, match=r"^q: bfloat16 needs .* 8\.0 .* got 7\.5"):
            choose(p, "reference", "forward")
    assert choose(on_gpu(gpu, *capability, dtype=torch.float16), "reference", "forward")
