"""The pass before a backward: delta = rowsum(dO ∘ O) − dlse, a Triton kernel that backends share."""

import torch

from flashlib.kernels import plans
from flashlib.kernels.problem import Problem
from flashlib.kernels.triton.backward import flash_bwd_delta_kernel

ROWS = 64                                                   # of a program
O, DO = 3, 4                                                # places in a problem's layout


def plan(p: Problem) -> plans.Plan:
    """Return the plan of the pass; call its launch with O, dO, dlse or None, and delta."""
    return plans.Plan(
        flash_bwd_delta_kernel, ("O", "DO", "DLSE", "DELTA"),
        {"BLOCK_M": ROWS, "HEAD_DIM": p.head_dim},
        lambda p: {"stride_o": p.layout[O].strides, "stride_do": p.layout[DO].strides, "H": p.H,
                   "N_Q": p.N_Q, "D": p.D},
        lambda p: -(-p.N_Q // ROWS) * p.B * p.H, {"num_warps": 4})


def statistics(x: torch.Tensor) -> torch.Tensor:
    """Return a (B, H, N_Q) tensor as kernels read it: contiguous, and aligned like a new one."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
