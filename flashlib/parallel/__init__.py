"""Attention over several GPUs, each of which holds its part of the sequence.

    torchrun --nproc-per-node 4 train.py        # and in it, on every rank:

    q, k, v = (shard(x, layout="zigzag") for x in (q, k, v))        # (B, H, N, D) → (B, H, N/P, D)
    o = ring_attention(q, k, v, causal=True, layout="zigzag")       # (B, H, N/P, D)

`ring_attention` needs O(N/P) memory and any number of heads; `gather_attention` and
`ulysses_attention` are its rivals, and `tree_decode` is for a few queries. All are exact, equal one
device to rounding, give the same bits in every run for fixed P, and run on gloo (CPU) and NCCL. On
four H200s a causal ring of 65,536 tokens ran forward at 94 % of four times one GPU, as recorded in
assets/measurements/ring_h200_x4.csv.

Nothing is patched, unlike with torch's `context_parallel`: call them in place of attention, on every
rank. What goes by position follows the layout: `shard` position ids, and labels after they were moved
by one token. Causal is about the whole sequence; "zigzag" is torch's head-and-tail order.

Where ranks disagree, each raises the same ValueError before anything is sent. A rank that is lost or
calls something else ends in a RuntimeError on the others within the group's time limit: on NCCL it is
ten minutes and ends the process, so pass `timeout=` to `init_process_group`. `run` starts processes on
this machine, from a notebook too. Taught in notebook 16.
"""

from typing import TYPE_CHECKING

from flashlib.lazy import attach

if TYPE_CHECKING:
    from flashlib.parallel.groups import count_links as count_links
    from flashlib.parallel.launch import run as run
    from flashlib.parallel.layouts import block as block
    from flashlib.parallel.layouts import positions as positions
    from flashlib.parallel.layouts import shard as shard
    from flashlib.parallel.layouts import unshard as unshard
    from flashlib.parallel.ring import ring_attention as ring_attention
    from flashlib.parallel.rivals import gather_attention as gather_attention
    from flashlib.parallel.rivals import tree_decode as tree_decode
    from flashlib.parallel.rivals import ulysses_attention as ulysses_attention

_HOMES = {"ring_attention": "ring", "gather_attention": "rivals", "ulysses_attention": "rivals",
          "tree_decode": "rivals", "positions": "layouts", "shard": "layouts", "unshard": "layouts",
          "block": "layouts", "run": "launch", "count_links": "groups"}

__all__ = [*_HOMES]
__getattr__, __dir__ = attach(__name__, _HOMES)
