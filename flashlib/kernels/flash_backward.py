"""FlashAttention-2 backward in Triton: delta first, then dK and dV by key tile, dQ by query tile.

Dao 2023, arXiv:2307.08691, Algorithm 2, with dQ in a pass of its own: no atomics, so that gradients
are the same bits in every run. Taught in notebook 10; the NumPy page is
`flashlib.algorithms.flash_backward` with order="q".
"""

import triton
import triton.language as tl

from flashlib.kernels.tiles import load_rows, store_rows, visible

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def flash_bwd_delta_kernel(O, DO, DLSE, DELTA,
                           stride_ob, stride_oh, stride_om, stride_od,
                           stride_gb, stride_gh, stride_gm, stride_gd,
                           H, N_Q, D, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr,
                           HAS_DLSE: tl.constexpr):
    """Write delta = rowsum(dO ∘ O) − dlse, (B, H, N_Q) float32, one program a query tile."""
    tiles_per_head = tl.cdiv(N_Q, BLOCK_M)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    bh = pid // tiles_per_head
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    o = load_rows(O, bh // H, bh % H, tile * BLOCK_M, stride_ob, stride_oh, stride_om, stride_od,
                  N_Q, D, BLOCK_M, HEAD_DIM, False, False)
    do = load_rows(DO, bh // H, bh % H, tile * BLOCK_M, stride_gb, stride_gh, stride_gm, stride_gd,
                   N_Q, D, BLOCK_M, HEAD_DIM, False, False)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    at = bh.to(tl.int64) * N_Q + row
    if HAS_DLSE:
        delta -= tl.load(DLSE + at, mask=row < N_Q, other=0.0)
    tl.store(DELTA + at, delta, mask=row < N_Q)


@triton.jit
def _fold_queries(dk, dv, k, v, Q, DO, lse_head, delta_head, b, h, lo, hi, col, scale_log2,
                  stride_qb, stride_qh, stride_qm, stride_qd,
                  stride_gb, stride_gh, stride_gm, stride_gd,
                  N_Q, N_K, D, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr,
                  IS_CAUSAL: tl.constexpr, MASKED: tl.constexpr, EVEN_D: tl.constexpr,
                  USE_TMA: tl.constexpr, PRECISION: tl.constexpr, WANT_DK: tl.constexpr,
                  WANT_DV: tl.constexpr):
    """Add what the queries lo … hi of one head give to dk and dv; P and dS are held transposed."""
    WHOLE: tl.constexpr = EVEN_D and not MASKED
    # LLVM would compute k and v's addresses for wgmma before the loop: 64 registers at 256.
    NO_LICM: tl.constexpr = USE_TMA and HEAD_DIM == 256
    for start in tl.range(lo, hi, BLOCK_M, disable_licm=NO_LICM):
        row = start + tl.arange(0, BLOCK_M)
        q = load_rows(Q, b, h, start, stride_qb, stride_qh, stride_qm, stride_qd, N_Q, D,
                      BLOCK_M, HEAD_DIM, WHOLE, USE_TMA)
        if MASKED:
            lse = tl.load(lse_head + row, mask=row < N_Q, other=0.0)
            delta = tl.load(delta_head + row, mask=row < N_Q, other=0.0)
        else:
            lse = tl.load(lse_head + row)
            delta = tl.load(delta_head + row)
        lse_log2 = tl.maximum(lse, -1.0e30) * LOG2E
        qk_t = tl.dot(k, q.T, input_precision=PRECISION)    # (BLOCK_N, BLOCK_M)
        p_t = tl.exp2(qk_t * scale_log2 - lse_log2[None, :])
        if MASKED:
            seen = visible(row[None, :], col[:, None], N_Q, N_K, IS_CAUSAL)
            p_t = tl.where(seen, p_t, 0.0)
        do = load_rows(DO, b, h, start, stride_gb, stride_gh, stride_gm, stride_gd, N_Q, D,
                       BLOCK_M, HEAD_DIM, WHOLE, USE_TMA)
        if WANT_DV:
            dv = tl.dot(p_t.to(do.dtype), do, dv, input_precision=PRECISION)
        if WANT_DK:
            dp_t = tl.dot(v, do.T, input_precision=PRECISION)
            ds_t = p_t * (dp_t - delta[None, :])
            if MASKED:
                ds_t = tl.where(seen, ds_t, 0.0)
            dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def flash_bwd_dkdv_kernel(Q, K, V, DO, LSE, DELTA, DK, DV, scale, scale_log2,
                          stride_qb, stride_qh, stride_qm, stride_qd,
                          stride_kb, stride_kh, stride_kn, stride_kd,
                          stride_vb, stride_vh, stride_vn, stride_vd,
                          stride_gb, stride_gh, stride_gm, stride_gd,
                          stride_dkb, stride_dkh, stride_dkn, stride_dkd,
                          stride_dvb, stride_dvh, stride_dvn, stride_dvd,
                          H, GROUP, N_Q, N_K, D,
                          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
                          IS_CAUSAL: tl.constexpr, EVEN_D: tl.constexpr, RAGGED: tl.constexpr,
                          USE_TMA: tl.constexpr, PRECISION: tl.constexpr, WANT_DK: tl.constexpr,
                          WANT_DV: tl.constexpr):
    """Write dK and dV of one key tile; the query heads that share it are walked one after another.

    Arguments as in `flash_fwd_kernel`; Q and DO are descriptors with USE_TMA, K and V are pointers.
    RAGGED says that BLOCK_M does not divide N_Q or BLOCK_N not N_K.
    """
    tiles_per_head = tl.cdiv(N_K, BLOCK_N)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    b = pid // tiles_per_head // (H // GROUP)
    hk = pid // tiles_per_head % (H // GROUP)
    col = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    k = load_rows(K, b, hk, tile * BLOCK_N, stride_kb, stride_kh, stride_kn, stride_kd, N_K, D,
                  BLOCK_N, HEAD_DIM, False, False)
    v = load_rows(V, b, hk, tile * BLOCK_N, stride_vb, stride_vh, stride_vn, stride_vd, N_K, D,
                  BLOCK_N, HEAD_DIM, False, False)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)

    # Queries first … cut meet a mask, cut … last none, last … N_Q the ragged end.
    first = 0
    cut = 0
    last = N_Q // BLOCK_M * BLOCK_M
    if IS_CAUSAL:
        shift = N_K - N_Q
        first = tl.minimum(tl.maximum(tile * BLOCK_N - shift, 0) // BLOCK_M * BLOCK_M, last)
        cut = tl.cdiv(tl.maximum((tile + 1) * BLOCK_N - 1 - shift, 0), BLOCK_M) * BLOCK_M
    if RAGGED:                                              # noqa: SIM102, the outer one compiles
        if (tile + 1) * BLOCK_N > N_K:
            cut = last
    cut = tl.minimum(tl.maximum(cut, first), last)
    for member in range(GROUP):
        h = hk * GROUP + member
        head = (b.to(tl.int64) * H + h) * N_Q
        if IS_CAUSAL or RAGGED:
            dk, dv = _fold_queries(dk, dv, k, v, Q, DO, LSE + head, DELTA + head, b, h, first, cut,
                                   col, scale_log2, stride_qb, stride_qh, stride_qm, stride_qd,
                                   stride_gb, stride_gh, stride_gm, stride_gd, N_Q, N_K, D,
                                   BLOCK_M, HEAD_DIM, IS_CAUSAL, True, EVEN_D, USE_TMA, PRECISION,
                                   WANT_DK, WANT_DV)
        dk, dv = _fold_queries(dk, dv, k, v, Q, DO, LSE + head, DELTA + head, b, h, cut, last,
                               col, scale_log2, stride_qb, stride_qh, stride_qm, stride_qd,
                               stride_gb, stride_gh, stride_gm, stride_gd, N_Q, N_K, D,
                               BLOCK_M, HEAD_DIM, IS_CAUSAL, False, EVEN_D, USE_TMA, PRECISION,
                               WANT_DK, WANT_DV)
        if RAGGED:
            dk, dv = _fold_queries(dk, dv, k, v, Q, DO, LSE + head, DELTA + head, b, h, last, N_Q,
                                   col, scale_log2, stride_qb, stride_qh, stride_qm, stride_qd,
                                   stride_gb, stride_gh, stride_gm, stride_gd, N_Q, N_K, D,
                                   BLOCK_M, HEAD_DIM, IS_CAUSAL, True, EVEN_D, USE_TMA, PRECISION,
                                   WANT_DK, WANT_DV)
    if WANT_DK:
        store_rows(DK, dk * scale, b, hk, tile * BLOCK_N, stride_dkb, stride_dkh, stride_dkn,
                   stride_dkd, N_K, D, BLOCK_N, HEAD_DIM)
    if WANT_DV:
        store_rows(DV, dv, b, hk, tile * BLOCK_N, stride_dvb, stride_dvh, stride_dvn, stride_dvd,
                   N_K, D, BLOCK_N, HEAD_DIM)


@triton.jit
def _fold_keys(dq, q, do, lse_log2, delta, K, V, b, h, lo, hi, row, scale_log2,
               stride_kb, stride_kh, stride_kn, stride_kd, stride_vb, stride_vh, stride_vn, stride_vd,
               N_Q, N_K, D, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
               IS_CAUSAL: tl.constexpr, MASKED: tl.constexpr, EVEN_D: tl.constexpr,
               USE_TMA: tl.constexpr, PRECISION: tl.constexpr):
    """Add what the keys lo … hi give to dq."""
    WHOLE: tl.constexpr = EVEN_D and not MASKED
    # LLVM would compute q and do's addresses for wgmma before the loop: 64 registers at 256.
    NO_LICM: tl.constexpr = USE_TMA and HEAD_DIM == 256
    for start in tl.range(lo, hi, BLOCK_N, disable_licm=NO_LICM):
        k = load_rows(K, b, h, start, stride_kb, stride_kh, stride_kn, stride_kd, N_K, D,
                      BLOCK_N, HEAD_DIM, WHOLE, USE_TMA)
        v = load_rows(V, b, h, start, stride_vb, stride_vh, stride_vn, stride_vd, N_K, D,
                      BLOCK_N, HEAD_DIM, WHOLE, USE_TMA)
        qk = tl.dot(q, k.T, input_precision=PRECISION)
        dp = tl.dot(do, v.T, input_precision=PRECISION)
        p = tl.exp2(qk * scale_log2 - lse_log2[:, None])
        ds = p * (dp - delta[:, None])
        if MASKED:
            col = start + tl.arange(0, BLOCK_N)
            ds = tl.where(visible(row[:, None], col[None, :], N_Q, N_K, IS_CAUSAL), ds, 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit
def flash_bwd_dq_kernel(Q, K, V, DO, LSE, DELTA, DQ, scale, scale_log2,
                        stride_qb, stride_qh, stride_qm, stride_qd,
                        stride_kb, stride_kh, stride_kn, stride_kd,
                        stride_vb, stride_vh, stride_vn, stride_vd,
                        stride_gb, stride_gh, stride_gm, stride_gd,
                        stride_dqb, stride_dqh, stride_dqm, stride_dqd,
                        H, GROUP, N_Q, N_K, D,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
                        IS_CAUSAL: tl.constexpr, EVEN_D: tl.constexpr, RAGGED: tl.constexpr,
                        USE_TMA: tl.constexpr, PRECISION: tl.constexpr):
    """Write dQ of one query tile; arguments as in `flash_fwd_kernel`, K and V as there."""
    tiles_per_head = tl.cdiv(N_Q, BLOCK_M)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    if IS_CAUSAL:
        tile = tiles_per_head - 1 - tile                    # the longest rows first
    bh = pid // tiles_per_head
    b = bh // H
    h = bh % H
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    q = load_rows(Q, b, h, tile * BLOCK_M, stride_qb, stride_qh, stride_qm, stride_qd, N_Q, D,
                  BLOCK_M, HEAD_DIM, False, False)
    do = load_rows(DO, b, h, tile * BLOCK_M, stride_gb, stride_gh, stride_gm, stride_gd, N_Q, D,
                   BLOCK_M, HEAD_DIM, False, False)
    at = bh.to(tl.int64) * N_Q + row
    lse_log2 = tl.maximum(tl.load(LSE + at, mask=row < N_Q, other=0.0), -1.0e30) * LOG2E
    delta = tl.load(DELTA + at, mask=row < N_Q, other=0.0)
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    end = N_K
    whole = N_K // BLOCK_N * BLOCK_N
    if IS_CAUSAL:
        first_row_sees = tl.maximum(tile * BLOCK_M + 1 + N_K - N_Q, 0)
        end = tl.minimum(N_K, tl.maximum((tile + 1) * BLOCK_M + N_K - N_Q, 0))
        whole = tl.minimum(whole, first_row_sees // BLOCK_N * BLOCK_N)
    dq = _fold_keys(dq, q, do, lse_log2, delta, K, V, b, h // GROUP, 0, whole, row, scale_log2,
                    stride_kb, stride_kh, stride_kn, stride_kd,
                    stride_vb, stride_vh, stride_vn, stride_vd,
                    N_Q, N_K, D, BLOCK_N, HEAD_DIM, IS_CAUSAL, False, EVEN_D, USE_TMA, PRECISION)
    if IS_CAUSAL or RAGGED:
        dq = _fold_keys(dq, q, do, lse_log2, delta, K, V, b, h // GROUP, whole, end, row, scale_log2,
                        stride_kb, stride_kh, stride_kn, stride_kd,
                        stride_vb, stride_vh, stride_vn, stride_vd,
                        N_Q, N_K, D, BLOCK_N, HEAD_DIM, IS_CAUSAL, True, EVEN_D, USE_TMA, PRECISION)
    store_rows(DQ, dq * scale, b, h, tile * BLOCK_M, stride_dqb, stride_dqh, stride_dqm, stride_dqd,
               N_Q, D, BLOCK_M, HEAD_DIM)
