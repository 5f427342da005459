"""The passes around the fused backward, in Triton: the rows' statistics before, the sums of dQ after.

The kernel between them is `flashlib.kernels.gluon.backward_fused`.
"""

import triton
import triton.language as tl

from flashlib.kernels.triton.tiles import load_rows


@triton.jit
def flash_bwd_statistics_kernel(O, DO, LSE, DLSE, NEGATIVE_LSE, NEGATIVE_DELTA, LOCKS, inverse_scale,
                                stride_o, stride_do, H, N_Q, D, BLOCK_M: tl.constexpr,
                                HEAD_DIM: tl.constexpr, SUMS: tl.constexpr):
    """Write −lse / scale and −delta, (B · H, N_Q rounded up) float32, and set the locks to 0.

    delta = rowsum(dO ∘ O) − dlse; DLSE is None where nothing flows into the lse. Where `stride_o` is
    None, O is that delta, (B, H, N_Q) and contiguous. Rows beyond N_Q are 0;
    where a row sees nothing its lse counts as a number that is finite. LOCKS: a counter, and a lock for
    each tile of each of SUMS sums.
    """
    tiles_per_head = tl.cdiv(N_Q, BLOCK_M)
    pid = tl.program_id(0)
    start = pid % tiles_per_head * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    bh = pid // tiles_per_head
    b, h = bh // H, bh % H
    there = row < N_Q
    at = bh.to(tl.int64) * N_Q + row
    if stride_o is None:
        delta = tl.load(O + at, mask=there, other=0.0)
    else:
        o = load_rows((O, stride_o, b, h, None), start, N_Q, D, BLOCK_M, HEAD_DIM, False, False)
        do = load_rows((DO, stride_do, b, h, None), start, N_Q, D, BLOCK_M, HEAD_DIM, False, False)
        delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    lse = tl.maximum(tl.load(LSE + at, mask=there, other=0.0), -1.0e30)
    if DLSE is not None:
        delta -= tl.load(DLSE + at, mask=there, other=0.0)
    padded = pid.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(NEGATIVE_LSE + padded, -lse * inverse_scale)
    tl.store(NEGATIVE_DELTA + padded, -delta)
    for i in tl.static_range(SUMS):
        tl.store(LOCKS + 1 + i * tl.num_programs(0) + pid, 0)
    if pid == 0:
        tl.store(LOCKS, 0)


@triton.jit
def _unit(SUMS, at, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a part of a tile, (ROWS, COLUMNS), from the order in which a warpgroup held it."""
    x = tl.load(SUMS + at.to(tl.int64) * (ROWS * COLUMNS) + tl.arange(0, ROWS * COLUMNS))
    x = x.reshape(COLUMNS // 8, ROWS // 16, 8, 4, 2, 2)
    return x.permute(1, 4, 2, 0, 3, 5).reshape(ROWS, COLUMNS)


@triton.jit
def flash_bwd_sum_kernel(SUMS, DQ, scale, stride_dq, H, N_Q, N_K, D, LEFT, RIGHT,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
                         IS_CAUSAL: tl.constexpr, INTO: tl.constexpr):
    """Write dQ, (B, H, N_Q, D), from the float32 sums of the fused backward; INTO: add to it.

    LEFT, RIGHT: None, or the sides of the window. Nobody has written a sum to which no key tile adds.
    """
    PARTS: tl.constexpr = 2 if HEAD_DIM > 64 else 1
    WIDTH: tl.constexpr = HEAD_DIM // PARTS
    tiles, all_keys = tl.cdiv(N_Q, BLOCK_M), tl.cdiv(N_K, BLOCK_N)
    pid = tl.program_id(0)
    at, part = pid // PARTS, pid % PARTS
    m, head = at % tiles, at // tiles
    has_first, has_second = True, False
    if IS_CAUSAL or LEFT is not None:                       # the last key tile that sees these rows
        right = 0 if LEFT is None else RIGHT
        last = m * BLOCK_M + BLOCK_M - 1 + N_K - N_Q + right
        has_first = last >= 0
        if LEFT is not None:
            last_key = tl.minimum(last // BLOCK_N * BLOCK_N + BLOCK_N, N_K) - 1
            has_first = has_first & (m * BLOCK_M + N_K - N_Q - LEFT <= last_key)
    else:                                                   # those that start after it come round to it
        has_second = m < tl.minimum(2 * (all_keys - 1), (all_keys - 1) * tiles // all_keys)
    x = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    if has_first:
        x = _unit(SUMS, pid, PARTS, BLOCK_M, WIDTH)
    if has_second:
        x += _unit(SUMS, pid + tl.num_programs(0), PARTS, BLOCK_M, WIDTH)
    if HEAD_DIM == 64:
        x = x.trans(1, 0)                                   # its transpose was computed
    row = m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = part * WIDTH + tl.arange(0, WIDTH)
    to = DQ + (head // H).to(tl.int64) * stride_dq[0] + (head % H).to(tl.int64) * stride_dq[1]
    to += row[:, None].to(tl.int64) * stride_dq[2] + column[None, :] * stride_dq[3]
    there = (row < N_Q)[:, None] & (column < D)[None, :]
    x *= scale
    if INTO:
        x += tl.load(to, mask=there, other=0.0)
    tl.store(to, x.to(DQ.dtype.element_ty), mask=there)
