"""What `flashlib.parallel.run(2, "flashlib.parallel.demo:compare")` runs on every rank."""

from __future__ import annotations

import torch
import torch.distributed as dist

from flashlib.kernels.attention import flash_attention
from flashlib.parallel.groups import count_links
from flashlib.parallel.layouts import shard
from flashlib.parallel.ring import ring_attention
from flashlib.parallel.rivals import gather_attention, ulysses_attention

OPERATIONS = {"ring": ring_attention, "gather": gather_attention, "ulysses": ulysses_attention}


def compare(N: int = 512, H: int = 8, Hk: int = 4, D: int = 16, causal: bool = True,
            layout: str = "zigzag", operation: str = "ring") -> dict[str, float]:
    """Attention over the ranks against one device, forward and backward: float64, on GPUs float32.

    Returns:
        The largest error of this rank's rows of O and of its dQ, dK and dV, and the bytes that it sent
        in the forward and in the backward pass.
    """
    gpu, generator = dist.get_backend() == "nccl", torch.Generator().manual_seed(0)
    device, dtype = ("cuda", torch.float32) if gpu else ("cpu", torch.float64)
    whole = [torch.randn(1, heads, N, D, generator=generator).to(device, dtype)
             for heads in (H, Hk, Hk, H)]
    layout = "contiguous" if operation == "ulysses" else layout
    q, k, v, do = (shard(x, layout=layout) for x in whole)
    mine = [x.requires_grad_() for x in (q, k, v)]
    options = {} if operation == "ulysses" else {"layout": layout}
    with count_links() as forward:
        o = OPERATIONS[operation](*mine, causal=causal, **options)
    with count_links() as backward:
        gradients = torch.autograd.grad(o, mine, do)

    one = [x.requires_grad_() for x in whole[:3]]
    O = flash_attention(*one, causal=causal)
    expected = [shard(x, layout=layout) for x in (O, *torch.autograd.grad(O, one, whole[3]))]
    errors = [(a - b).abs().max().item() for a, b in zip((o, *gradients), expected, strict=True)]
    found = {"error of O": errors[0], "error of dQ, dK, dV": max(errors[1:]),
             "bytes sent forward": sum(forward.bytes.values()),
             "bytes sent backward": sum(backward.bytes.values())}
    if dist.get_rank() == 0:
        print(f"{operation}, {dist.get_world_size()} ranks, {N} tokens, largest error of rank 0:"
              f" {max(errors):.1e}")
    return found
