"""The GPU: attention as Triton and Gluon kernels behind one differentiable torch function.

`flash_attention` needs torch; Triton is imported when a backend first needs it. Kernels never import
`flashlib.algorithms`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from flashlib.extras import load

if TYPE_CHECKING:                  # for completion and types; at run time each comes when asked for
    from flashlib.kernels.attention import flash_attention as flash_attention
    from flashlib.kernels.fp8 import flash_attention_fp8 as flash_attention_fp8
    from flashlib.kernels.tuned import forget_tuned as forget_tuned
    from flashlib.kernels.tuned import load_tuned as load_tuned
    from flashlib.kernels.tuned import save_tuned as save_tuned
    from flashlib.kernels.tuning import tune as tune

_HOMES = {"flash_attention": "attention", "flash_attention_fp8": "fp8", "tune": "tuning",
          "save_tuned": "tuned", "load_tuned": "tuned", "forget_tuned": "tuned"}

__all__ = [*_HOMES, "available"]


def available() -> tuple[bool, str]:
    """Tell whether kernels run here, on a GPU or in Triton's interpreter, and say how or why not.

    The interpreter has to be chosen before Triton is imported: `os.environ["TRITON_INTERPRET"] = "1"`.
    """
    for module, name in (("torch", "PyTorch"), ("triton", "Triton")):
        try:
            importlib.import_module(module)
        except ImportError:
            return False, (f"{name} is not installed here, so no kernel runs: flashlib.doctor() names"
                           " the remedy.")
    import torch
    from triton import knobs

    if knobs.runtime.interpret:
        return True, "Kernels run in Triton's interpreter, on the CPU: right, and slow."
    if torch.cuda.is_available():
        return True, f"Kernels run on {torch.cuda.get_device_name()}."
    return False, ("There is no GPU here, and Triton's interpreter is off: set TRITON_INTERPRET=1"
                   " before Python starts.")


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(load(f"{__name__}.{_HOMES[name]}", name), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__
