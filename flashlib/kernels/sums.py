"""The passes around the fused backward of `flashlib.kernels.gluon.backward_fused`, and their buffers.

Before it, −lse / scale and −delta of all rows, and locks; after it, dQ from its float32 sums. On CPU
tensors, where the Gluon kernels run in the interpreter, NumPy's and torch's own operations do both.
"""

import torch

from flashlib.kernels import plans
from flashlib.kernels.configs import FUSED_KEYS, WARPGROUP_ROWS
from flashlib.kernels.problem import Problem
from flashlib.kernels.triton.sums import flash_bwd_statistics_kernel, flash_bwd_sum_kernel

LINE = 256                                                  # numbers in a row of the sums
O, DO, DQ = 3, 4, 5                                         # places in a problem's layout
UNWRITTEN = torch.finfo(torch.float32).max


def tiles(p: Problem) -> int:
    """Return how many query tiles all heads have."""
    return p.B * p.H * -(-p.N_Q // WARPGROUP_ROWS)


def count(p: Problem) -> int:
    """Return how many sums dQ has: two where programs come round, see the kernel."""
    return 1 if p.causal or p.sides is not None else 2


def shape(head_dim: int) -> tuple[int, int]:
    """Return rows and columns of the parts in which a tile of dQ leaves."""
    return WARPGROUP_ROWS, head_dim if head_dim <= 64 else head_dim // 2


def buffers(p: Problem, head_dim: int) -> tuple[torch.Tensor, ...]:
    """Return −lse / scale, −delta, the locks and the sums, none of them written."""
    where, n = p.device.place, tiles(p)
    statistics = torch.empty((2, p.B * p.H, n // (p.B * p.H) * WARPGROUP_ROWS), dtype=torch.float32,
                             device=where)
    locks = torch.empty(1 + count(p) * n, dtype=torch.int32, device=where)
    sums = torch.empty((count(p) * n * WARPGROUP_ROWS * head_dim // LINE, LINE), dtype=torch.float32,
                       device=where)
    return statistics[0], statistics[1], locks, sums


def before(p: Problem) -> plans.Plan:
    """Return the plan of the pass before; beside sums to add to, O is delta."""
    return plans.Plan(
        flash_bwd_statistics_kernel,
        ("O", "DO", "LSE", "DLSE", "NEGATIVE_LSE", "NEGATIVE_DELTA", "LOCKS", "inverse_scale"),
        {"BLOCK_M": WARPGROUP_ROWS, "HEAD_DIM": p.head_dim, "SUMS": count(p)},
        lambda p: {"stride_o": None if p.into else p.layout[O].strides,
                   "stride_do": p.layout[DO].strides, "H": p.H, "N_Q": p.N_Q, "D": p.D},
        tiles, {"num_warps": 4})


def after(p: Problem, head_dim: int) -> plans.Plan:
    """Return the plan of the pass after."""
    parts = head_dim // shape(head_dim)[1]
    return plans.Plan(
        flash_bwd_sum_kernel, ("SUMS", "DQ", "scale"),
        {"BLOCK_M": WARPGROUP_ROWS, "BLOCK_N": FUSED_KEYS, "HEAD_DIM": head_dim, "IS_CAUSAL": p.causal,
         "INTO": p.into},
        lambda p: {"stride_dq": p.written_strides(DQ, 0), "H": p.H, "N_Q": p.N_Q, "N_K": p.N_K,
                   "D": p.D,
                   **dict(zip(("LEFT", "RIGHT"), p.sides or (None, None), strict=True))},
        lambda p: parts * tiles(p), {"num_warps": 4})


def before_on_cpu(o, do, lse, dlse, statistics, scale: float) -> None:
    """Do what the pass before does."""
    negative_lse, negative_delta, locks, sums = statistics
    N_Q = lse.shape[2]
    delta = o if o.ndim == 3 else (o.float() * do.float()).sum(-1) - (0.0 if dlse is None else dlse)
    for to, x in ((negative_lse, -lse.clamp(min=-1e30) / scale), (negative_delta, -delta)):
        to.zero_()
        to[:, :N_Q] = x.reshape(-1, N_Q)
    locks.zero_()
    sums.fill_(UNWRITTEN)


def after_on_cpu(sums, dq, p: Problem, head_dim: int, scale: float) -> None:
    """Do what the pass after does; where nobody wrote, the sums are `UNWRITTEN`, and dQ is 0."""
    rows, columns = shape(head_dim)
    x = sums.view(count(p), p.B * p.H, -1, head_dim // columns, columns // 8, rows // 16, 8, 4, 2, 2)
    untouched = (x == UNWRITTEN).flatten(3).all(-1)
    x = torch.where(untouched[:, :, :, *[None] * 7], 0.0, x).sum(0)
    x = x.permute(0, 1, 4, 7, 5, 2, 3, 6, 8)                # head, tile, rows …, part, columns …
    x = x.reshape(p.B * p.H, -1, rows, head_dim)
    if head_dim == 64:
        x = x.mT
    x = x.reshape(p.B, p.H, -1, head_dim)[:, :, :p.N_Q, :p.D] * scale
    dq.copy_(dq + x if p.into else x)
