"""Import a name when it is first asked for, and not before.

Where a package is missing that a name needs, the error says which of the course's extras brings it.
"""

import importlib
import sys
import types
from collections.abc import Mapping

EXTRAS = {"torch": "torch", "triton": "triton", "matplotlib": "plots", "transformers": "transformers"}
OPTIONAL = {"transformers"}                                 # what set-up does not bring


def load(module: str, name: str):
    """Import the module that holds `name`; where a package is missing, say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        where = " (Linux only)" if package == "triton" else ""
        setup = "" if package in OPTIONAL else "run `make setup` or "
        raise ModuleNotFoundError(
            f"{name} needs {package}{where}, which is not installed: in the course's folder {setup}"
            f'pip install ".[{EXTRAS[package]}]"; elsewhere pip install {package}',
            name=error.name) from None


def attach(package: str, homes: Mapping[str, str], modules: Mapping[str, str] | None = None):
    """Return the `__getattr__` and `__dir__` of a package that imports its names on demand.

    Args:
        package: its `__name__`.
        homes: where each name lives, as a module inside the package.
        modules: names that stand for whole modules inside the package.
    """
    front, modules = sys.modules[package], modules or {}

    class Front(types.ModuleType):
        """Keeps a name reachable whose submodule is called the same: importing would hide it."""

        def __setattr__(self, name, value):
            if not (name in homes and isinstance(value, types.ModuleType)):
                super().__setattr__(name, value)

    front.__class__ = Front

    def __getattr__(name: str):
        if name in homes:
            value = getattr(load(f"{package}.{homes[name]}", name), name)
        elif name in modules:
            value = load(f"{package}.{modules[name]}", name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        vars(front)[name] = value
        return value

    def __dir__():
        return sorted({*front.__all__, *(name for name in vars(front) if name.startswith("__"))})

    return __getattr__, __dir__
