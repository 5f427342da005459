"""FlashAttention from softmax to silicon: the tested implementations behind the course's notebooks.

The front door imports NumPy only; everything else arrives when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashlib.kernels.attention import flash_attention as flash_attention

__version__ = "0.1.0"

_HOMES = {
    "Machine": "machine",
    "SRAMOverflow": "machine",
    "Traffic": "traffic",
    "naive_softmax": "algorithms.softmax",
    "safe_softmax": "algorithms.softmax",
    "online_softmax": "algorithms.softmax",
    "SoftmaxState": "algorithms.state",
    "standard_attention": "algorithms.standard",
    "multi_pass_attention": "algorithms.multi_pass",
    "one_pass_attention": "algorithms.one_pass",
    "flash_v1": "algorithms.flash_v1",
    "flash_v2": "algorithms.flash_v2",
    "flash_v3": "algorithms.flash_v3",
    "flash_v4": "algorithms.flash_v4",
    "flash_backward": "algorithms.flash_backward",
    "standard_training_forward": "algorithms.standard_backward",
    "standard_backward": "algorithms.standard_backward",
    "naive_matmul": "algorithms.matmul",
    "tiled_matmul": "algorithms.matmul",
    "largest_blocks": "models.blocks",
    "paper_blocks": "models.blocks",
    "flash_attention": "kernels.attention",
    "doctor": "checkup",
}
_MODULES = ("data", "exercises", "hardware", "kernels", "lens", "masks", "models", "numerics", "plots",
            "quant", "widgets")

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str):
    if name in _HOMES:
        from flashlib.extras import load

        value = getattr(load(f"flashlib.{_HOMES[name]}", name), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"flashlib.{name}")
    raise AttributeError(f"module 'flashlib' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
