"""Packages that open slowly: a name is imported when it is first asked for, and not before."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping


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
            value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{modules[name]}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        vars(front)[name] = value
        return value

    def __dir__():
        return sorted({*vars(front), *homes, *modules})

    return __getattr__, __dir__
