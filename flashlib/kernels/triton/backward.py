"""FlashAttention-2 backward in Triton: delta first, then dK and dV by key tile, dQ by query tile.

Dao 2023, arXiv:2307.08691, Algorithm 2, with dQ in a pass of its own: no atomics, so that gradients
are the same bits in every run. Taught in notebook 10; the NumPy page is
`flashlib.algorithms.flash_backward` with order="q".
"""

import triton
import triton.language as tl

from flashlib import exp2
from flashlib.kernels.aggregates import fields
from flashlib.kernels.triton.scores import logits_of, scored
from flashlib.kernels.triton.tiles import (
    Options,
    in_sequence,
    key_range,
    load_rows,
    query_range,
    rows_of,
    store_rows,
    tiles_of,
    visible,
)

LOG2E = tl.constexpr(exp2.LOG2E)


@triton.jit
def flash_bwd_delta_kernel(O, DO, DLSE, DELTA, stride_o, stride_do, H, N_Q, D,
                           BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Write delta = rowsum(dO ∘ O) − dlse, (B, H, N_Q) float32, one program a query tile.

    DLSE is None where nothing flows into the lse.
    """
    tiles_per_head = tl.cdiv(N_Q, BLOCK_M)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    bh = pid // tiles_per_head
    start = tile * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    b = bh // H
    h = bh % H
    o = load_rows((O, stride_o, b, h, None), start, N_Q, D, BLOCK_M, HEAD_DIM, False, False)
    do = load_rows((DO, stride_do, b, h, None), start, N_Q, D, BLOCK_M, HEAD_DIM, False, False)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    at = bh.to(tl.int64) * N_Q + row
    if DLSE is not None:
        delta -= tl.load(DLSE + at, mask=row < N_Q, other=0.0)
    tl.store(DELTA + at, delta, mask=row < N_Q)


@fields("DK DV")
class Wanted:
    """Which gradients a kernel writes, known when it is compiled."""


@triton.jit
def _fold_queries(sums, k, v, rows, lo, hi, col, logits, sizes, window, MASKED: tl.constexpr, want,
                  o):
    """Add what the queries lo … hi of one head give to (dk, dv); P and dS are held transposed.

    `rows` are that head of Q and of dO, as `load_rows` takes it, and pointers to its lse and delta.
    """
    dk, dv = sums
    queries, dos, LSE, DELTA = rows
    _H, _GROUP, N_Q, N_K, D = sizes
    WHOLE: tl.constexpr = o.EVEN_D and not MASKED
    # LLVM would compute k and v's addresses for wgmma before the loop: 64 registers at 256.
    NO_LICM: tl.constexpr = o.USE_TMA and o.HEAD_DIM == 256
    for start in tl.range(lo, hi, o.BLOCK_M, disable_licm=NO_LICM):
        row = start + tl.arange(0, o.BLOCK_M)
        q = load_rows(queries, start, N_Q, D, o.BLOCK_M, o.HEAD_DIM, WHOLE, o.USE_TMA)
        if MASKED:
            lse = tl.load(LSE + row, mask=row < N_Q, other=0.0)
            delta = tl.load(DELTA + row, mask=row < N_Q, other=0.0)
        else:
            lse = tl.load(LSE + row)
            delta = tl.load(DELTA + row)
        lse_log2 = tl.maximum(lse, -1.0e30) * LOG2E
        qk_t = tl.dot(k, q.T, input_precision=o.PRECISION)  # (BLOCK_N, BLOCK_M)
        qk_t, factor, t = scored(qk_t, row[None, :], col[:, None], logits, N_Q, N_K)
        p_t = tl.exp2(qk_t * factor - lse_log2[None, :])
        if MASKED:
            seen = visible(row[None, :], col[:, None], N_Q, N_K, window, o.IS_CAUSAL)
            p_t = tl.where(seen, p_t, 0.0)
        do = load_rows(dos, start, N_Q, D, o.BLOCK_M, o.HEAD_DIM, WHOLE, o.USE_TMA)
        if want.DV:
            dv = tl.dot(p_t.to(do.dtype), do, dv, input_precision=o.PRECISION)
        if want.DK:
            dp_t = tl.dot(v, do.T, input_precision=o.PRECISION)
            ds_t = p_t * (dp_t - delta[None, :])
            if len(logits[1]) > 0:                          # a softcap
                ds_t = ds_t * (1.0 - t * t)
            if MASKED:
                ds_t = tl.where(seen, ds_t, 0.0)
            dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision=o.PRECISION)
    return dk, dv


@triton.jit
def flash_bwd_dkdv_kernel(Q, K, V, DO, LSE, DELTA, DK, DV, CU_Q, CU_K, scale, scale_log2,
                          softcap_log2, ALIBI,
                          stride_q, stride_k, stride_v, stride_do, stride_dk, stride_dv, sizes,
                          window, sequences,
                          BLOCKS: tl.constexpr, FLAGS: tl.constexpr):
    """Write dK and dV of one key tile; the query heads that share it are walked one after another.

    Arguments as in `flash_fwd_kernel`; Q and DO are descriptors with USE_TMA, K and V are pointers.
    FLAGS: (IS_CAUSAL, EVEN_D, RAGGED, USE_TMA, ALIBI_DIMS, INTO). INTO: add to what dK and dV, float32,
    hold. RAGGED says that BLOCK_M does not divide
    N_Q or BLOCK_N not N_K. DK or DV is None where it is not
    wanted.
    """
    BLOCK_M: tl.constexpr = BLOCKS[0]
    BLOCK_N: tl.constexpr = BLOCKS[1]
    HEAD_DIM: tl.constexpr = BLOCKS[2]
    IS_CAUSAL: tl.constexpr = FLAGS[0]
    EVEN_D: tl.constexpr = FLAGS[1]
    RAGGED: tl.constexpr = FLAGS[2]
    USE_TMA: tl.constexpr = FLAGS[3]
    ALIBI_DIMS: tl.constexpr = FLAGS[4]
    PRECISION: tl.constexpr = "ieee" if K.dtype.element_ty == tl.float32 else "tf32"
    o = Options(BLOCK_M, BLOCK_N, HEAD_DIM, IS_CAUSAL, EVEN_D, USE_TMA, PRECISION)
    want = Wanted(DK is not None, DV is not None)
    H, GROUP, N_Q, N_K, D = sizes
    tiles_per_head = tiles_of(N_K, sequences, BLOCK_N)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    b = pid // tiles_per_head // (H // GROUP)
    hk = pid // tiles_per_head % (H // GROUP)
    rows_per_head, begin_q, begin_k = N_Q, None, None
    if sequences is not None:                               # from here on all is of one sequence
        i, tile = in_sequence(tile, CU_K, sequences, BLOCK_N)
        begin_q, N_Q = rows_of(i, CU_Q, sequences, N_Q, False)
        begin_k, N_K = rows_of(i, CU_K, sequences, N_K, True)
        if tile * BLOCK_N >= N_K:
            return
        LSE += begin_q
        DELTA += begin_q
        sizes = (H, GROUP, N_Q, N_K, D)
    start = tile * BLOCK_N
    col = start + tl.arange(0, BLOCK_N)
    k = load_rows((K, stride_k, b, hk, begin_k), start, N_K, D, BLOCK_N, HEAD_DIM, False, False)
    v = load_rows((V, stride_v, b, hk, begin_k), start, N_K, D, BLOCK_N, HEAD_DIM, False, False)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)

    begin, whole, cut, end = query_range(tile, N_Q, N_K, window, RAGGED, o)
    for member in range(GROUP):
        h = hk * GROUP + member
        head = (b.to(tl.int64) * H + h) * rows_per_head
        queries, dos = (Q, stride_q, b, h, begin_q), (DO, stride_do, b, h, begin_q)
        rows = queries, dos, LSE + head, DELTA + head
        logits = logits_of(scale_log2, softcap_log2, ALIBI, b, h, H, ALIBI_DIMS)
        if IS_CAUSAL or RAGGED or window is not None:
            dk, dv = _fold_queries((dk, dv), k, v, rows, begin, whole, col, logits, sizes, window,
                                   True, want, o)
        dk, dv = _fold_queries((dk, dv), k, v, rows, whole, cut, col, logits, sizes, window,
                               False, want, o)
        if RAGGED or window is not None:
            dk, dv = _fold_queries((dk, dv), k, v, rows, cut, end, col, logits, sizes, window,
                                   True, want, o)
    if want.DK:
        store_rows(dk * scale, (DK, stride_dk, b, hk, begin_k), start, N_K, D, BLOCK_N, HEAD_DIM,
                   FLAGS[5])
    if want.DV:
        store_rows(dv, (DV, stride_dv, b, hk, begin_k), start, N_K, D, BLOCK_N, HEAD_DIM, FLAGS[5])


@triton.jit
def _fold_keys(dq, q, do, statistics, keys, values, lo, hi, row, logits, sizes, window,
               MASKED: tl.constexpr, o):
    """Add what the keys lo … hi give to dq; `statistics` are the rows' lse (base 2) and delta."""
    lse_log2, delta = statistics
    _H, _GROUP, N_Q, N_K, D = sizes
    WHOLE: tl.constexpr = o.EVEN_D and not MASKED
    # LLVM would compute q and do's addresses for wgmma before the loop: 64 registers at 256.
    NO_LICM: tl.constexpr = o.USE_TMA and o.HEAD_DIM == 256
    for start in tl.range(lo, hi, o.BLOCK_N, disable_licm=NO_LICM):
        k = load_rows(keys, start, N_K, D, o.BLOCK_N, o.HEAD_DIM, WHOLE, o.USE_TMA)
        # Rows beyond the last value may hold anything: their ds is masked.
        v = load_rows(values, start, N_K, D, o.BLOCK_N, o.HEAD_DIM, WHOLE or o.USE_TMA, o.USE_TMA)
        qk = tl.dot(q, k.T, input_precision=o.PRECISION)
        dp = tl.dot(do, v.T, input_precision=o.PRECISION)
        qk, factor, t = scored(qk, row[:, None], start + tl.arange(0, o.BLOCK_N)[None, :], logits, N_Q,
                               N_K)
        p = tl.exp2(qk * factor - lse_log2[:, None])
        ds = p * (dp - delta[:, None])
        if len(logits[1]) > 0:                              # a softcap
            ds = ds * (1.0 - t * t)
        if MASKED:
            col = start + tl.arange(0, o.BLOCK_N)
            seen = visible(row[:, None], col[None, :], N_Q, N_K, window, o.IS_CAUSAL)
            ds = tl.where(seen, ds, 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=o.PRECISION)
    return dq


@triton.jit
def flash_bwd_dq_kernel(Q, K, V, DO, LSE, DELTA, DQ, CU_Q, CU_K, scale, scale_log2, softcap_log2, ALIBI,
                        stride_q, stride_k, stride_v, stride_do, stride_dq, sizes, window, sequences,
                        BLOCKS: tl.constexpr, FLAGS: tl.constexpr):
    """Write dQ of one query tile; arguments as in `flash_bwd_dkdv_kernel`, but K and V as forward."""
    BLOCK_M: tl.constexpr = BLOCKS[0]
    BLOCK_N: tl.constexpr = BLOCKS[1]
    HEAD_DIM: tl.constexpr = BLOCKS[2]
    IS_CAUSAL: tl.constexpr = FLAGS[0]
    EVEN_D: tl.constexpr = FLAGS[1]
    RAGGED: tl.constexpr = FLAGS[2]
    USE_TMA: tl.constexpr = FLAGS[3]
    ALIBI_DIMS: tl.constexpr = FLAGS[4]
    PRECISION: tl.constexpr = "ieee" if Q.dtype.element_ty == tl.float32 else "tf32"
    o = Options(BLOCK_M, BLOCK_N, HEAD_DIM, IS_CAUSAL, EVEN_D, USE_TMA, PRECISION)
    H, GROUP, N_Q, N_K, D = sizes
    tiles_per_head = tiles_of(N_Q, sequences, BLOCK_M)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    if IS_CAUSAL:
        tile = tiles_per_head - 1 - tile                    # the longest rows first
    bh = pid // tiles_per_head
    b = bh // H
    h = bh % H
    rows_per_head, begin_q, begin_k = N_Q, None, None
    if sequences is not None:                               # from here on all is of one sequence
        i, tile = in_sequence(tile, CU_Q, sequences, BLOCK_M)
        begin_q, N_Q = rows_of(i, CU_Q, sequences, N_Q, True)
        begin_k, N_K = rows_of(i, CU_K, sequences, N_K, False)
        if tile * BLOCK_M >= N_Q:
            return
        LSE += begin_q
        DELTA += begin_q
        sizes = (H, GROUP, N_Q, N_K, D)
    start = tile * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    q = load_rows((Q, stride_q, b, h, begin_q), start, N_Q, D, BLOCK_M, HEAD_DIM, False, False)
    do = load_rows((DO, stride_do, b, h, begin_q), start, N_Q, D, BLOCK_M, HEAD_DIM, False, False)
    at = bh.to(tl.int64) * rows_per_head + row
    lse_log2 = tl.maximum(tl.load(LSE + at, mask=row < N_Q, other=0.0), -1.0e30) * LOG2E
    delta = tl.load(DELTA + at, mask=row < N_Q, other=0.0)
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    begin, whole, cut, end = key_range(tile, N_Q, N_K, window, o)
    keys, values = (K, stride_k, b, h // GROUP, begin_k), (V, stride_v, b, h // GROUP, begin_k)
    logits = logits_of(scale_log2, softcap_log2, ALIBI, b, h, H, ALIBI_DIMS)
    if window is not None:
        dq = _fold_keys(dq, q, do, (lse_log2, delta), keys, values, begin, whole, row, logits,
                        sizes, window, True, o)
    dq = _fold_keys(dq, q, do, (lse_log2, delta), keys, values, whole, cut, row, logits, sizes,
                    window, False, o)
    if IS_CAUSAL or RAGGED or window is not None:           # the tiles that a mask cuts through
        dq = _fold_keys(dq, q, do, (lse_log2, delta), keys, values, cut, end, row, logits, sizes,
                        window, True, o)
    store_rows(dq * scale, (DQ, stride_dq, b, h, begin_q), start, N_Q, D, BLOCK_M, HEAD_DIM, FLAGS[5])
