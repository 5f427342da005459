"""Build modules anew from their sources, one of which may be changed."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import flashlib
from tests.mutants.edits import edited

SOURCE = Path(flashlib.__file__).parent
MODULES = {                        # fresh copies are made in this order
    "masks": "masks",
    "softmax": "algorithms/softmax",
    "state": "algorithms/state",
    "standard": "algorithms/standard",
    "multi_pass": "algorithms/multi_pass",
    "one_pass": "algorithms/one_pass",
    "flash_v1": "algorithms/flash_v1",
    "flash_v2": "algorithms/flash_v2",
    "matmul": "algorithms/matmul",
    "flash_backward": "algorithms/flash_backward",
}
BACKWARD = ("masks", "flash_backward")
FORWARD = tuple(name for name in MODULES if name != "flash_backward")
FROM_MASKS = ("mask_of", "tiles")


def patcher(paths):
    """Return `patched(module, edits)`: the canonical source with every (old, new) applied, each once.

    `paths` says where the modules are: name → path in the package, without .py.
    """
    def patched(module, edits=()):
        source = (SOURCE / f"{paths[module]}.py").read_text(encoding="utf-8")
        return edited(source, tuple(edits), name=module)
    return patched


patched = patcher(MODULES)


def fresh(name, text):
    """Return a new module of that source."""
    module = types.ModuleType(f"mutant_{name}")
    sys.modules[module.__name__] = module              # dataclasses look their module up
    try:
        exec(compile(text, f"<{name}, patched>", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def rebuilt(paths, patched, module=None, edits=()):
    """Return name → module, each made anew from its source, with the edits in `module`.

    They still import the originals: whoever asks puts the new ones in their places.
    """
    return {name: fresh(name, patched(name, edits if name == module else ())) for name in paths}


def build(module=None, edits=(), *, names=FORWARD):
    """Return a namespace with all public functions of `names`, of which `module` carries the edits."""
    built, made = SimpleNamespace(), rebuilt(names, patched, module, edits)
    for name, new in made.items():
        for shared in FROM_MASKS:
            if name != "masks" and shared in vars(new):
                setattr(new, shared, getattr(made["masks"], shared))
        original = importlib.import_module(f"flashlib.{MODULES[name].replace('/', '.')}")
        for public, value in vars(new).items():
            if getattr(value, "__module__", None) == new.__name__ and public in vars(original):
                setattr(built, public, value)
    return built
