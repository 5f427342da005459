"""Run the checks of `fold_cases` in both interpreters, and print JSON: name → failure or "".

A process of its own, because TRITON_INTERPRET must be set before Triton is imported.
"""

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from tests.kernels.fold_cases import CHECKS
from tests.kernels.interpreter_cases import outcome
from tests.quick_interpreter import quicken


def everything():
    """Yield (name, outcome)."""
    for impl, dtypes in (("triton", (torch.float32, torch.float16)),
                         ("gluon", (torch.float16, torch.bfloat16))):
        for name, check in CHECKS.items():
            for dtype in dtypes:
                yield f"{impl} {name} {str(dtype).split('.')[1]}", outcome(check, impl, dtype)


if __name__ == "__main__":
    torch.set_num_threads(1)
    quicken()
    print(json.dumps(dict(everything())))
