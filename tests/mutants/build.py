"""Build the algorithms from their sources, one line of which may be changed."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import flashlib

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


def source_of(module):
    """Return the source text of one of `MODULES`."""
    return (SOURCE / f"{MODULES[module]}.py").read_text(encoding="utf-8")


def patcher(paths):
    """Return `patched(module, edits)`: the source with every (old, new) applied, each exactly once.

    `paths` says where the modules are: name → path in the package, without .py.
    """
    def patched(module, edits=()):
        text = (SOURCE / f"{paths[module]}.py").read_text(encoding="utf-8")
        for old, new in edits:
            if text.count(old) != 1:
                raise LookupError(f"{module}: expected exactly one {old!r}, found {text.count(old)}")
            text = text.replace(old, new)
        return text
    return patched


patched = patcher(MODULES)


def build(module=None, edits=(), *, names=FORWARD):
    """Return a namespace with all public functions of `names`, of which `module` carries the edits."""
    built, masks = SimpleNamespace(), None
    for name in names:
        path = MODULES[name]
        text = patched(name, edits) if name == module else source_of(name)
        fresh = types.ModuleType(f"mutant_{name}")
        sys.modules[fresh.__name__] = fresh            # dataclasses look their module up
        try:
            exec(compile(text, f"<{name}, patched>", "exec"), fresh.__dict__)
        finally:
            del sys.modules[fresh.__name__]
        if name == "masks":
            masks = fresh
        for shared in FROM_MASKS:
            if masks is not fresh and shared in fresh.__dict__:
                setattr(fresh, shared, getattr(masks, shared))
        original = importlib.import_module(f"flashlib.{path.replace('/', '.')}")
        for public, value in fresh.__dict__.items():
            if getattr(value, "__module__", None) == fresh.__name__ and public in vars(original):
                setattr(built, public, value)
    return built


def rebuilt(paths, patched, module=None, edits=()):
    """Return name → module, each made anew from its source, with the edits in `module`.

    They still import the originals: whoever asks puts the new ones in their places.
    """
    made = {}
    for name in paths:
        made[name] = fresh = types.ModuleType(f"mutant_{name}")
        sys.modules[fresh.__name__] = fresh                 # dataclasses look their module up
        try:
            code = patched(name, edits if name == module else ())
            exec(compile(code, f"<{name}, patched>", "exec"), fresh.__dict__)
        finally:
            del sys.modules[fresh.__name__]
    return made
