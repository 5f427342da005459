"""FlashAttention in both loop orders, in Triton, in the same tiles and with the same arithmetic.

For comparison only: `flashlib.course.bench.loop_order` times them and counts their bytes. In v1's order
(Dao et al. 2022, arXiv:2205.14135, Algorithm 1; the NumPy page is `flashlib.flash_v1`) key tiles are
outside, and O, m and ℓ cross memory once for every key tile. In v2's (Dao 2023, arXiv:2307.08691) row
tiles are outside, and O, m and ℓ stay in registers.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl


@triton.jit
def place_of(heads, N, rows, LONGEST_FIRST: tl.constexpr):
    """Return the first row of this program's head, counted over all heads, and its own first row there.

    A head is cut into parts of `rows` rows. The parts of a head follow one another; or else the last
    parts of all heads come first, which see most keys under a causal mask.
    """
    pid, parts = tl.program_id(0), tl.cdiv(N, rows)
    if LONGEST_FIRST:
        head, part = pid % heads, parts - 1 - pid // heads
    else:
        head, part = pid // parts, pid % parts
    return head.to(tl.int64) * N, part * rows


@triton.jit
def weights(q, k, m, i, j, scale_log2, IS_CAUSAL: tl.constexpr):
    """Return (P, the new maximum, what the old sums are worth) of the tile at row i and key j."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    if IS_CAUSAL:
        row, col = i + tl.arange(0, q.shape[0]), j + tl.arange(0, k.shape[0])
        s = tl.where(col[None, :] <= row[:, None], s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1))                     # finite: key 0 comes first
    return tl.exp2(s - m_new[:, None]), m_new, tl.exp2(m - m_new)


@triton.jit
def flash_fwd_v1_order_kernel(Q, K, V, O, M, L, scale_log2, heads, N, rows, BLOCK_M: tl.constexpr,
                              BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, IS_CAUSAL: tl.constexpr,
                              LONGEST_FIRST: tl.constexpr, STAGES: tl.constexpr, LATE: tl.constexpr):
    """Fold a head's key tiles, one after the other, into `rows` of its rows of O.

    Args:
        Q, K, V, O: pointers to contiguous (heads, N, HEAD_DIM).  M, L: to (heads, N) float32, the
            maximum (base 2) and the sum of every row so far. O, M, L begin as 0, −∞, 0.
        scale_log2: the factor on the logits, times log2(e).  N: rows, a multiple of both blocks.
        rows: of a program, a divisor of N and a multiple of BLOCK_M; N as in Algorithm 1.
        LATE: whether O is divided by ℓ once, with the last key tile, and not at every visit.
    """
    head, first = place_of(heads, N, rows, LONGEST_FIRST)
    d = tl.arange(0, HEAD_DIM)[None, :]
    end = first + rows if IS_CAUSAL else N
    for j in tl.range(0, end, BLOCK_N, num_stages=1):
        col = (head + j + tl.arange(0, BLOCK_N))[:, None] * HEAD_DIM + d
        k, v = tl.load(K + col), tl.load(V + col)
        begin = tl.maximum(first, j // BLOCK_M * BLOCK_M) if IS_CAUSAL else first
        for i in tl.range(begin, first + rows, BLOCK_M, num_stages=STAGES):
            row = head + i + tl.arange(0, BLOCK_M)
            tile = row[:, None] * HEAD_DIM + d
            q, o, m, l = tl.load(Q + tile), tl.load(O + tile), tl.load(M + row), tl.load(L + row)
            p, m_new, kept = weights(q, k, m, i, j, scale_log2, IS_CAUSAL)
            l_kept = l * kept
            l_new = l_kept + tl.sum(p, 1)
            if LATE:
                last = j + BLOCK_N >= (i + BLOCK_M if IS_CAUSAL else N)
                share = tl.where(last, 1.0 / l_new, 1.0)
            else:
                kept, share = l_kept, 1.0 / l_new           # of what the row has summed
            o = tl.dot(p.to(v.dtype), v, o.to(tl.float32) * kept[:, None], input_precision="ieee")
            tl.store(O + tile, (o * share[:, None]).to(O.dtype.element_ty))
            tl.store(M + row, m_new)
            tl.store(L + row, l_new)
        tl.debug_barrier()                                  # the next key tile reads what stands there


@triton.jit
def flash_fwd_v2_order_kernel(Q, K, V, O, M, L, scale_log2, heads, N, rows, BLOCK_M: tl.constexpr,
                              BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, IS_CAUSAL: tl.constexpr,
                              LONGEST_FIRST: tl.constexpr, STAGES: tl.constexpr, LATE: tl.constexpr):
    """Write `rows` of a head's rows of O, one tile after the other; each meets all key tiles at once.

    Arguments as in v1's order; O, M and L need no beginning. LATE is True.
    """
    head, first = place_of(heads, N, rows, LONGEST_FIRST)
    d = tl.arange(0, HEAD_DIM)[None, :]
    for i in tl.range(first, first + rows, BLOCK_M, num_stages=1):
        row = head + i + tl.arange(0, BLOCK_M)
        tile = row[:, None] * HEAD_DIM + d
        q, o = tl.load(Q + tile), tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
        m, l = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
        end = i + BLOCK_M if IS_CAUSAL else N
        for j in tl.range(0, end, BLOCK_N, num_stages=STAGES):
            col = (head + j + tl.arange(0, BLOCK_N))[:, None] * HEAD_DIM + d
            k, v = tl.load(K + col), tl.load(V + col)
            p, m, kept = weights(q, k, m, i, j, scale_log2, IS_CAUSAL)
            l = l * kept + tl.sum(p, 1)
            o = tl.dot(p.to(v.dtype), v, o * kept[:, None], input_precision="ieee")
        tl.store(O + tile, (o / l[:, None]).to(O.dtype.element_ty))
        tl.store(M + row, m)
        tl.store(L + row, l)


def launcher(order, q, k, v, *, rows=None, o_dtype=None, causal=False, late=None, longest_first=False,
             BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=1):
    """Return a function of no arguments that runs one loop order, and the O that it fills.

    In v1's order O, m and ℓ are made ready here, once: a second run folds all keys in again, in the
    same time and with the same average.

    Args:
        order: "v1" or "v2".  q, k, v: contiguous (B, H, N, D), N a multiple of the blocks.
        rows: of a program, a divisor of N and a multiple of BLOCK_M; None for all N.
        o_dtype: of O, None for that of q.
        late: in v1's order, whether to divide by ℓ once; v2's always does.
        longest_first: launch the last rows of all heads first, and not head by head.
    """
    B, H, N, D = q.shape
    rows = N if rows is None else rows
    if N % BLOCK_M or N % BLOCK_N:
        raise ValueError(f"q: expected N to be a multiple of {BLOCK_M} and {BLOCK_N}, got {N}")
    if N % rows or rows % BLOCK_M:
        raise ValueError(f"rows: expected a divisor of {N} and a multiple of {BLOCK_M}, got {rows}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.shape != q.shape or not x.is_contiguous():
            raise ValueError(f"{name}: expected contiguous {tuple(q.shape)}, got {tuple(x.shape)} with"
                             f" strides {x.stride()}")
    kernel = {"v1": flash_fwd_v1_order_kernel, "v2": flash_fwd_v2_order_kernel}[order]
    o = torch.full(q.shape, 0.0 if order == "v1" else math.nan, dtype=o_dtype or q.dtype,
                   device=q.device)
    l = torch.zeros((B, H, N), dtype=torch.float32, device=q.device)
    m = torch.full_like(l, -math.inf)
    scale_log2 = D**-0.5 * math.log2(math.e)
    return lambda: kernel[(B * H * (N // rows),)](
        q, k, v, o, m, l, scale_log2, B * H, N, rows, BLOCK_M, BLOCK_N, D, causal, longest_first,
        num_stages, order == "v2" or bool(late), num_warps=num_warps, num_stages=1), o
