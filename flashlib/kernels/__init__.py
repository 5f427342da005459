"""The GPU: attention as Triton and Gluon kernels behind one differentiable torch function.

`flash_attention` needs torch; Triton is imported when a backend first needs it. Kernels never import
`flashlib.algorithms`.
"""

import importlib
from typing import TYPE_CHECKING

from flashlib.lazy import attach

if TYPE_CHECKING:                  # for completion and types; at run time each comes when asked for
    from flashlib.kernels.attention import flash_attention as flash_attention
    from flashlib.kernels.cache import KVCache as KVCache
    from flashlib.kernels.cache import PagedKV as PagedKV
    from flashlib.kernels.decode import flash_decode as flash_decode
    from flashlib.kernels.folding import fold as fold
    from flashlib.kernels.fp8 import flash_attention_fp8 as flash_attention_fp8
    from flashlib.kernels.merging import merge as merge
    from flashlib.kernels.packed import flash_attention_varlen as flash_attention_varlen
    from flashlib.kernels.tuning.search import tune as tune
    from flashlib.kernels.tuning.store import forget_tuned as forget_tuned
    from flashlib.kernels.tuning.store import load_tuned as load_tuned
    from flashlib.kernels.tuning.store import save_tuned as save_tuned

_HOMES = {"flash_attention": "attention", "flash_attention_fp8": "fp8", "flash_decode": "decode",
          "flash_attention_varlen": "packed", "KVCache": "cache", "PagedKV": "cache",
          "fold": "folding", "merge": "merging", "tune": "tuning.search", "save_tuned": "tuning.store",
          "load_tuned": "tuning.store", "forget_tuned": "tuning.store"}

__all__ = [*_HOMES, "why_not"]


def why_not() -> str | None:
    """Return None where kernels run, on a GPU or in Triton's interpreter, else the reason and a remedy.

    The interpreter has to be chosen before Triton is imported: `os.environ["TRITON_INTERPRET"] = "1"`.
    """
    for module, name in (("torch", "PyTorch"), ("triton", "Triton")):
        try:
            importlib.import_module(module)
        except ImportError:
            return (f"{name} is not installed here, so no kernel runs: flashlib.doctor() names the"
                    " remedy.")
    import torch
    from triton import knobs

    if knobs.runtime.interpret or torch.cuda.is_available():
        return None
    return ("There is no GPU here, and Triton's interpreter is off: set TRITON_INTERPRET=1 before"
            " Python starts.")


__getattr__, __dir__ = attach(__name__, _HOMES)
