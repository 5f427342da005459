"""Without transformers the package works, and its door says what is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


def python(code):
    """Run code in a fresh interpreter and return what it prints, as JSON."""
    done = subprocess.run([sys.executable, "-c", f"import json, sys\n{code}"], cwd=ROOT,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_door_names_the_extra_that_brings_transformers():
    said = python("""
sys.modules["transformers"] = None
import flashlib as fl
try: fl.integrations.transformers.register()
except ModuleNotFoundError as error: print(json.dumps(str(error)))
""")
    assert "register() needs transformers, which is not installed" in said
    assert 'pip install ".[transformers]"' in said and "make setup" not in said


def test_transformers_is_imported_by_register_only():
    loaded = python("""
import flashlib as fl
fl.integrations.transformers.attend, fl.integrations.torch.register, fl.kernels.flash_attention
print(json.dumps(sorted(sys.modules)))
""")
    assert "flashlib.integrations.transformers" in loaded and "transformers" not in loaded
