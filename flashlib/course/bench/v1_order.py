"""FlashAttention in the loop order of its first version, in Triton: key tiles outside, queries inside.

Dao et al. 2022, arXiv:2205.14135, Algorithm 1; the NumPy page is `flashlib.flash_v1`. For comparison
only: O, m and ℓ cross memory once for every key tile. What that moves is counted by
`flashlib.course.bench.counters`.
"""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def flash_fwd_v1_order_kernel(Q, K, V, O, M, L, scale_log2, N,
                              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Fold one head's key tiles, one after the other, into all of its rows of O.

    Args:
        Q, K, V, O: pointers to contiguous (heads, N, HEAD_DIM).  M, L: to (heads, N) float32, the
            maximum (base 2) and the sum of every row so far. O, M, L begin as 0, −∞, 0.
        scale_log2: the factor on the logits, times log2(e).  N: rows, a multiple of both blocks.
    """
    head = tl.program_id(0).to(tl.int64) * N
    d = tl.arange(0, HEAD_DIM)[None, :]
    for j in tl.range(0, N, BLOCK_N, num_stages=1):
        col = (head + j + tl.arange(0, BLOCK_N))[:, None] * HEAD_DIM + d
        k, v = tl.load(K + col), tl.load(V + col)
        for i in tl.range(0, N, BLOCK_M, num_stages=1):
            row = head + i + tl.arange(0, BLOCK_M)
            tile = row[:, None] * HEAD_DIM + d
            q, o, m, l = tl.load(Q + tile), tl.load(O + tile), tl.load(M + row), tl.load(L + row)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
            m_new = tl.maximum(m, tl.max(s, 1))
            p = tl.exp2(s - m_new[:, None])
            kept = l * tl.exp2(m - m_new)                   # of what the row has summed
            l_new = kept + tl.sum(p, 1)
            o = o.to(tl.float32) * kept[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            tl.store(O + tile, (o / l_new[:, None]).to(O.dtype.element_ty))
            tl.store(M + row, m_new)
            tl.store(L + row, l_new)
            tl.debug_barrier()                              # the next key tile reads what stands there


def forward(q, k, v, *, BLOCK_M=64, BLOCK_N=64, num_warps=4):
    """Return O of contiguous (B, H, N, D) tensors, N a multiple of the blocks, without a mask."""
    B, H, N, D = q.shape
    if N % BLOCK_M or N % BLOCK_N:
        raise ValueError(f"q: expected N to be a multiple of {BLOCK_M} and {BLOCK_N}, got {N}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.shape != q.shape or not x.is_contiguous():
            raise ValueError(f"{name}: expected contiguous {tuple(q.shape)}, got {tuple(x.shape)} with"
                             f" strides {x.stride()}")
    o = torch.zeros_like(q)
    l = torch.zeros((B, H, N), dtype=torch.float32, device=q.device)
    m = torch.full_like(l, -math.inf)
    scale_log2 = D**-0.5 * math.log2(math.e)
    flash_fwd_v1_order_kernel[(B * H,)](q, k, v, o, m, l, scale_log2, N, BLOCK_M, BLOCK_N, D,
                                        num_warps=num_warps)
    return o
