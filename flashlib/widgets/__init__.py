"""Widgets: sliders over the tested code, each with a static picture for readers without a kernel.

Every widget function returns a `base.Lab`. `LIVE` holds those that exist; `sweep()` sets every
control of each to every option and raises if a picture fails, which is how a test runs a notebook's
widgets.
"""

from __future__ import annotations

import sys
import types

from flashlib.extras import load

_HOMES = {
    "LIVE": "base", "sweep": "base", "Lab": "base",
    "play": "player",
    "softmax_steps": "softmax_steps",
    "block_lab": "block_lab",
    "occupancy_lab": "occupancy_lab",
    "roofline_lab": "roofline_lab",
    "matmul_lab": "matmul_lab", "matmul_player": "matmul_lab",
    "fp8_lab": "fp8_lab",
    "schedule_lab": "schedule_lab",
    "exp2_lab": "exp2_lab",
    "tile_lab": "tile_lab",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(load(f"{__name__}.{_HOMES[name]}", name), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flashlib.widgets' has no attribute {name!r}")


def __dir__():
    return __all__


class _Front(types.ModuleType):
    """Keeps a function reachable whose submodule has the same name: importing would hide it."""

    def __setattr__(self, name, value):
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front
