"""What all attention kernels share: how rows of one head come into a tile, and which pairs count."""

import triton
import triton.language as tl


@triton.jit
def load_rows(X, b, h, start, stride_b, stride_h, stride_n, stride_d, N, D,
              ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, WHOLE: tl.constexpr,
              USE_TMA: tl.constexpr):
    """Return rows start … start + ROWS of head (b, h) as a (ROWS, HEAD_DIM) tile, zeros outside.

    X is a pointer, or with USE_TMA a descriptor of the (B, H, N, D) tensor. WHOLE promises that no
    row or column of the tile lies outside. Offsets are 64 bits wide, so a tensor may exceed 2³¹.
    """
    # One return: Triton compiles what stands behind a return inside an `if`, constexpr or not.
    if USE_TMA:
        tile = X.load([b, h, start, 0]).reshape([ROWS, HEAD_DIM])
    else:
        n = start + tl.arange(0, ROWS)
        d = tl.arange(0, HEAD_DIM)
        head = X + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h
        pointers = head + n.to(tl.int64)[:, None] * stride_n + d.to(tl.int64)[None, :] * stride_d
        if WHOLE:
            tile = tl.load(pointers)
        else:
            tile = tl.load(pointers, mask=(n < N)[:, None] & (d < D)[None, :], other=0.0)
    return tile


@triton.jit
def store_rows(X, tile, b, h, start, stride_b, stride_h, stride_n, stride_d, N, D,
               ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Write a (ROWS, HEAD_DIM) tile to rows start … of head (b, h), clipped to N rows and D columns."""
    n = start + tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM)
    head = X + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h
    pointers = head + n.to(tl.int64)[:, None] * stride_n + d.to(tl.int64)[None, :] * stride_d
    inside = (n < N)[:, None] & (d < D)[None, :]
    tl.store(pointers, tile.to(X.dtype.element_ty), mask=inside)


@triton.jit
def visible(row, col, N_Q, N_K, IS_CAUSAL: tl.constexpr):
    """Return which pairs exist and may see each other; row and col broadcast against each other."""
    seen = (row < N_Q) & (col < N_K)
    if IS_CAUSAL:
        seen = seen & (col <= row + (N_K - N_Q))            # aligned bottom right
    return seen
