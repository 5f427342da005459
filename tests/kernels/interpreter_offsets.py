"""Where the kernels store beyond 2³¹ elements, in the interpreter: addresses are noted, not followed.

Prints JSON: tensor → how many lanes went elsewhere than they should. Usage: python -m
tests.kernels.interpreter_offsets
"""

from __future__ import annotations

import json
import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from flashlib.course.notebook.interpreter_trace import watch

ROWS, D, H, N_Q = 16, 16, 4, 2**28                          # rows of a tile; one head has 2³² elements
HEAD = 9                                                    # counted over the batch: rows from 9 · 2²⁸
TILES = N_Q // ROWS


def stores(x, kernel, program, *args):
    """Run one program of a kernel that reads x, and return the addresses of its stores in order."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.create_get_program_id = lambda axis: interpreter.TensorHandle(
        np.array([program], np.int32), tl.int32)
    try:
        with watch(x=x) as seen:
            kernel[(1,)](*args)
    finally:
        del builder.create_get_program_id
    return [x.data_ptr() + 4 * touch.lanes for touch in seen.of("x", "store")]


def misplaced():
    """Return tensor → lanes that are not where row-major order puts the last tile of a head."""
    from flashlib.kernels.triton.backward import flash_bwd_delta_kernel
    from flashlib.kernels.triton.forward import flash_fwd_kernel

    x, o, lse = (torch.zeros(ROWS, D) for _ in range(3))
    whole, none = (H * N_Q * D, N_Q * D, D, 1), (0, 0, 0, 0)
    rows = HEAD * N_Q + (TILES - 1) * ROWS + np.arange(ROWS, dtype=np.int64)
    expected = {"O": o.data_ptr() + 4 * (rows[:, None] * D + np.arange(D)),
                "LSE": lse.data_ptr() + 4 * rows}
    program = HEAD * TILES + TILES - 1
    found = stores(x, flash_fwd_kernel, program, x, x, x, o, lse, None, None, 1.0, None, None, None,
                   none, none, none, whole, (H, 1, N_Q, ROWS, D), None, None, (ROWS, ROWS, D), False,
                   True, False, False, (0, 0), False)
    got = dict(zip(("LSE", "O"), found, strict=True))
    (got["DELTA"],) = stores(x, flash_bwd_delta_kernel, program, x, x, None, lse, none, none,
                             H, N_Q, D, ROWS, D)
    expected["DELTA"] = expected["LSE"]
    return {name: int(np.count_nonzero(got[name] != expected[name])) for name in expected}


if __name__ == "__main__":
    print(json.dumps(misplaced()))
