"""FlashAttention-2 forward in Triton: one program a query tile, keys and values walk past it.

Dao 2023, arXiv:2307.08691, Algorithm 1. Taught in notebook 10; the NumPy page that it follows line by
line is `flashlib.algorithms.flash_v2`.
"""

import triton
import triton.language as tl

from flashlib.kernels.tiles import load_rows, store_rows, visible

LN2 = tl.constexpr(0.6931471805599453)
# Stands for −∞ in a running maximum: finite, so that its difference to itself is 0 and not NaN.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _attend(acc, l_i, m_i, q, K, V, b, h, lo, hi, row, scale_log2,
            stride_kb, stride_kh, stride_kn, stride_kd, stride_vb, stride_vh, stride_vn, stride_vd,
            N_Q, N_K, D, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, IS_CAUSAL: tl.constexpr,
            MASKED: tl.constexpr, EVEN_D: tl.constexpr, USE_TMA: tl.constexpr,
            PRECISION: tl.constexpr):
    """Fold the keys lo … hi into (acc, l_i, m_i); MASKED tiles look at every pair, others at none."""
    WHOLE: tl.constexpr = EVEN_D and not MASKED
    # Asking for V before the softmax gained 3 to 7 % at 128 and 256 on an H200, and lost at 32.
    EARLY_V: tl.constexpr = HEAD_DIM >= 128
    for start in tl.range(lo, hi, BLOCK_N):
        k = load_rows(K, b, h, start, stride_kb, stride_kh, stride_kn, stride_kd, N_K, D,
                      BLOCK_N, HEAD_DIM, WHOLE, USE_TMA)
        qk = tl.dot(q, k.T, input_precision=PRECISION)      # (BLOCK_M, BLOCK_N), not scaled yet
        if EARLY_V:
            v = load_rows(V, b, h, start, stride_vb, stride_vh, stride_vn, stride_vd, N_K, D,
                          BLOCK_N, HEAD_DIM, WHOLE, USE_TMA)
        if MASKED:
            col = start + tl.arange(0, BLOCK_N)
            seen = visible(row[:, None], col[None, :], N_Q, N_K, IS_CAUSAL)
            # A NaN in a forbidden key ends here; LOWEST · scale must not overflow.
            qk = tl.where(seen, qk, -1.0e28)
        m_new = tl.maximum(m_i, tl.max(qk, 1) * scale_log2)
        p = tl.exp2(qk * scale_log2 - m_new[:, None])
        if MASKED:
            p = tl.where(seen, p, 0.0)
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        if not EARLY_V:
            v = load_rows(V, b, h, start, stride_vb, stride_vh, stride_vn, stride_vd, N_K, D,
                          BLOCK_N, HEAD_DIM, WHOLE, USE_TMA)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def flash_fwd_kernel(Q, K, V, O, LSE, scale_log2,
                     stride_qb, stride_qh, stride_qm, stride_qd,
                     stride_kb, stride_kh, stride_kn, stride_kd,
                     stride_vb, stride_vh, stride_vn, stride_vd,
                     stride_ob, stride_oh, stride_om, stride_od,
                     H, GROUP, N_Q, N_K, D,
                     BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
                     IS_CAUSAL: tl.constexpr, EVEN_D: tl.constexpr, RAGGED: tl.constexpr,
                     USE_TMA: tl.constexpr, PRECISION: tl.constexpr):
    """Write O and the natural-log LSE of one query tile.

    Args:
        Q, K, V: pointers to (B, H, N, D) tensors, or with USE_TMA their descriptors; O a pointer.
        LSE: pointer to (B, H, N_Q), contiguous float32.
        scale_log2: the non-negative factor on the logits, times log2(e): exponentials are base 2.
        stride_*: in elements, batch, head, row, column.
        H: query heads.  GROUP: query heads per key head.  N_Q, N_K, D: sizes.
        BLOCK_M, BLOCK_N: rows of a query and of a key tile.  HEAD_DIM: D rounded up to a power of 2.
        IS_CAUSAL: row i sees keys j ≤ i + N_K − N_Q.  EVEN_D: D = HEAD_DIM.
        RAGGED: BLOCK_N does not divide N_K.  PRECISION: "ieee" for float32, or tensor cores use TF32.
    """
    tiles_per_head = tl.cdiv(N_Q, BLOCK_M)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    if IS_CAUSAL:
        tile = tiles_per_head - 1 - tile                    # the longest rows first
    b = pid // tiles_per_head // H
    h = pid // tiles_per_head % H
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)

    q = load_rows(Q, b, h, tile * BLOCK_M, stride_qb, stride_qh, stride_qm, stride_qd, N_Q, D,
                  BLOCK_M, HEAD_DIM, False, USE_TMA)
    m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    end = N_K                                               # keys that some row of the tile sees
    whole = N_K // BLOCK_N * BLOCK_N                        # keys in tiles that need no mask
    if IS_CAUSAL:
        first_row_sees = tl.maximum(tile * BLOCK_M + 1 + N_K - N_Q, 0)
        end = tl.minimum(N_K, tl.maximum((tile + 1) * BLOCK_M + N_K - N_Q, 0))
        whole = tl.minimum(whole, first_row_sees // BLOCK_N * BLOCK_N)
    if IS_CAUSAL or RAGGED:                                 # the tiles that a mask cuts through
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, K, V, b, h // GROUP, whole, end, row, scale_log2,
                                stride_kb, stride_kh, stride_kn, stride_kd,
                                stride_vb, stride_vh, stride_vn, stride_vd, N_Q, N_K, D,
                                BLOCK_N, HEAD_DIM, IS_CAUSAL, True, EVEN_D, USE_TMA, PRECISION)
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, K, V, b, h // GROUP, 0, whole, row, scale_log2,
                            stride_kb, stride_kh, stride_kn, stride_kd,
                            stride_vb, stride_vh, stride_vn, stride_vd, N_Q, N_K, D,
                            BLOCK_N, HEAD_DIM, IS_CAUSAL, False, EVEN_D, USE_TMA, PRECISION)

    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]     # one late division; an empty row is 0
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(tl.where(l_i == 0.0, 1.0, l_i))) * LN2)
    tl.store(LSE + (pid // tiles_per_head).to(tl.int64) * N_Q + row, lse, mask=row < N_Q)
    if O.dtype.element_ty == tl.float16:                    # a rounded P may lift O past 65,504
        acc = tl.where(tl.abs(acc) < 65600.0, tl.clamp(acc, -65504.0, 65504.0), acc)
    store_rows(O, acc, b, h, tile * BLOCK_M, stride_ob, stride_oh, stride_om, stride_od, N_Q, D,
               BLOCK_M, HEAD_DIM)
