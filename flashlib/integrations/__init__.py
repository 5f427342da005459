"""Doors by which other people's code uses the op: Hugging Face's transformers, and torch's own SDPA.

`flashlib.integrations.transformers.register()` and `flashlib.integrations.torch.register()`. Nothing
here is imported before it is asked for, and transformers only by its `register`.
"""

from flashlib.lazy import attach

_MODULES = {"torch": "torch", "transformers": "transformers"}

__all__ = [*_MODULES]
__getattr__, __dir__ = attach(__name__, {}, _MODULES)
