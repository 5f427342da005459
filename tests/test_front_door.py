"""`import flashlib`: a dozen names, NumPy only, everything else when it is first asked for."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import flashlib as fl
from tests.cases import FUNCTIONS

ROOT = Path(fl.__file__).parent.parent
HEAVY = ("matplotlib", "torch", "triton", "ipywidgets", "IPython", "pandas", "scipy", "tqdm",
         "hypothesis")


def python(code):
    """Run code in a fresh interpreter and return what it prints, as JSON."""
    done = subprocess.run([sys.executable, "-c", f"import json, sys\n{code}"], cwd=ROOT,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_flashlib_loads_nothing_but_itself():
    loaded = python("import flashlib; print(json.dumps(sorted(sys.modules)))")
    assert not [name for name in HEAVY if name in loaded]
    assert [name for name in loaded if name.startswith("flashlib")] == ["flashlib", "flashlib.lazy"]


def test_every_algorithm_runs_on_numpy_alone():
    """In an interpreter in which nothing else can be imported."""
    code = f"""
for name in {HEAVY}:
    sys.modules[name] = None
import numpy as np, flashlib as fl
from flashlib.models import blocks, roofline, traffic
x = np.ones((3, 2))
fl.flash_v1(x, x, x, Br=2, Bc=2), fl.flash_v2(x, x, x, Br=2, Bc=2, machine=fl.Machine())
fl.flash_v3(x, x, x, Br=2, Bc=2)
fl.flash_v4(x, x, x, Br=2, Bc=2, exp2_degree=3, emulated_share=0.5, tau=8)
fl.standard_attention(x, x, x), fl.multi_pass_attention(x, x, x), fl.one_pass_attention(x, x, x)
fl.naive_softmax(x), fl.safe_softmax(x), fl.online_softmax(x), fl.SoftmaxState.identity(2, 2)
fl.naive_matmul(x, x.T), fl.tiled_matmul(x, x.T, Bm=1, Bn=1, Bk=1)
fl.largest_blocks(10_000, 64), fl.paper_blocks(10_000, 64)
print(json.dumps(sorted(name for name in sys.modules if name.split('.')[0] in {HEAVY}
                        and sys.modules[name] is not None)))
"""
    assert python(code) == []


@pytest.mark.parametrize("name", fl.__all__)
def test_every_name_of_the_front_door_opens_and_stays_the_same(name):
    """Asked for twice: a submodule that is imported must not take the place of its function."""
    if name in fl._MODULES and name in ("plots", "widgets"):
        pytest.importorskip("matplotlib" if name == "plots" else "ipywidgets")
    if name == "flash_attention":
        pytest.importorskip("torch")
    first = getattr(fl, name)
    assert first is getattr(fl, name)
    if name in fl._HOMES:
        assert callable(first) and first.__name__ == name
        assert first is getattr(importlib.import_module(f"flashlib.{fl._HOMES[name]}"), name)


def test_no_module_shadows_a_name_of_the_front_door():
    """Import every home first: Python then sets flashlib.<module>, which must not be a function."""
    code = """
import flashlib, importlib.util
homes = {name: home for name, home in flashlib._HOMES.items()
         if not home.startswith("kernels") or importlib.util.find_spec("torch")}
for home in set(homes.values()):
    importlib.import_module(f"flashlib.{home}")
print(json.dumps([name for name in homes if not callable(getattr(flashlib, name))]))
"""
    assert python(code) == []


def test_models_open_when_they_are_asked_for():
    loaded = python("import flashlib; flashlib.models.traffic.flash_v2;"
                    " print(json.dumps([sorted(sys.modules), dir(flashlib.models)]))")
    assert "flashlib.models.traffic" in loaded[0] and "flashlib.models.predict" not in loaded[0]
    assert {"traffic", "roofline", "predict", "sm"} <= set(loaded[1])
    with pytest.raises(AttributeError, match=r"module 'flashlib.models' has no attribute 'magic'"):
        _ = fl.models.magic


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'flashlib' has no attribute 'flash_v9'"):
        _ = fl.flash_v9
    assert not hasattr(fl, "_private")


def test_dir_lists_everything_without_loading_it():
    listed = python("import flashlib; names = dir(flashlib);"
                    " print(json.dumps([names, sorted(sys.modules)]))")
    assert set(fl.__all__) <= set(listed[0])
    assert "flashlib.machine" not in listed[1]


def test_the_lens_opens_without_loading_a_compiler():
    loaded = python("import flashlib; flashlib.lens.ARCHS; flashlib.lens.kernels();"
                    " print(json.dumps(sorted(sys.modules)))")
    assert "flashlib.lens" in loaded and not [name for name in HEAVY if name in loaded]


def test_every_algorithm_stands_at_the_front_door():
    """Whoever writes a file of flashlib/algorithms is told where else its function must be entered."""
    steps = {"unfused_matmuls", "fused_matmuls", "split_k", "split_q"}     # one chapter's comparison
    missing = {name: f.__module__ for name, f in FUNCTIONS.items()
               if name not in fl._HOMES and name not in steps}
    assert not missing, f"add to _HOMES in flashlib/__init__.py: {missing}"


def test_the_contract_is_offered():
    contract = {"Machine", "SRAMOverflow", "Traffic", "naive_softmax", "safe_softmax", "doctor",
                "online_softmax", "SoftmaxState", "standard_attention", "multi_pass_attention",
                "one_pass_attention", "flash_v1", "flash_v2", "naive_matmul", "tiled_matmul",
                "largest_blocks"}
    assert contract <= set(fl.__all__) and len(set(fl.__all__)) == len(fl.__all__)
    assert fl.__version__.count(".") == 2
