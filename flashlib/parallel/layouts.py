"""Who holds which tokens: shards of tensors, and the positions that belong to them.

Whatever goes by position has to follow the layout: rotary angles, masks of the loss, and labels, which
are moved by one token before they are shared out and not after. Taught in notebook 16.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from flashlib.algorithms.layouts import LAYOUTS, block, check_layout, positions
from flashlib.parallel.groups import Ranks

__all__ = ["LAYOUTS", "block", "check_layout", "positions", "shard", "unshard"]


def shard(x: torch.Tensor, *, group=None, layout: str = "zigzag", dim: int = 2) -> torch.Tensor:
    """Return this rank's part of a whole sequence that every rank holds, a copy.

    Args:
        x: whole, tokens along `dim`; as many for zigzag as 2·P divides, else P.
        group: ProcessGroup, 1-D DeviceMesh, or None for all processes.
        layout: "contiguous", "zigzag" or "stripe", as in `ring_attention`.

    Also for labels and position ids: `shard(torch.arange(N), dim=0)` are the positions of this rank.
    """
    ranks = Ranks.of(group)
    at = torch.from_numpy(positions(layout, ranks.rank, ranks.P, x.shape[dim]))
    return x.index_select(dim, at.to(x.device))


def unshard(x: torch.Tensor, *, group=None, layout: str = "zigzag", dim: int = 2) -> torch.Tensor:
    """Return the whole sequence, on every rank, from the part that each holds; without a gradient."""
    ranks = Ranks.of(group)
    x = x.detach().contiguous()
    parts = [torch.empty_like(x) for _ in range(ranks.P)]
    if ranks.P > 1:
        dist.all_gather(parts, x, group=ranks.group)
    else:
        parts = [x]
    return torch.cat(parts, dim).index_select(dim, home(layout, ranks.P, x.shape[dim], x.device))


def home(layout: str, P: int, n: int, device) -> torch.Tensor:
    """Return where each token of the sequence lies in the shards of all ranks, one behind the other."""
    at = [torch.from_numpy(positions(layout, rank, P, P * n)) for rank in range(P)]
    return torch.cat(at).argsort().to(device)
