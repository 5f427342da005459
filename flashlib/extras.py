"""What the package's extras bring, and the sentence for a machine that lacks it."""

from __future__ import annotations

import importlib

EXTRAS = {"torch": "torch", "triton": "triton", "matplotlib": "plots"}


def load(module: str, name: str):
    """Import the module that holds `name`; where a package is missing, say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        where = " (Linux only)" if package == "triton" else ""
        raise ModuleNotFoundError(
            f"{name} needs {package}{where}, which is not installed: in the course's folder run `make"
            f' setup` or pip install ".[{EXTRAS[package]}]"; elsewhere pip install {package}',
            name=error.name) from None
