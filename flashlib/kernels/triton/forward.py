"""FlashAttention-2 forward in Triton: one program a query tile, keys and values walk past it.

Dao 2023, arXiv:2307.08691, Algorithm 1. Taught in notebook 10; the NumPy page that it follows line by
line is `flashlib.algorithms.flash_v2`.
"""

import triton
import triton.language as tl

from flashlib import exp2
from flashlib.kernels.triton.scores import logits_of, of_head, scored, with_sink
from flashlib.kernels.triton.tiles import (
    Options,
    in_sequence,
    key_range,
    load_rows,
    rows_of,
    store_rows,
    tiles_of,
    visible,
)

LN2, LOG2E = tl.constexpr(exp2.LN2), tl.constexpr(exp2.LOG2E)
# Stands for −∞ in a running maximum: finite, so that its difference to itself is 0 and not NaN.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _attend(acc, l_i, m_i, q, keys, values, lo, hi, row, logits, sizes, window,
            MASKED: tl.constexpr, o):
    """Fold the keys lo … hi into (acc, l_i, m_i); MASKED tiles look at every pair, others at none.

    `keys` and `values` are one head each, as `load_rows` takes it; `logits` as in `scored`.
    """
    _H, _GROUP, N_Q, N_K, D = sizes
    WHOLE: tl.constexpr = o.EVEN_D and not MASKED
    EARLY_V: tl.constexpr = o.HEAD_DIM >= 128               # wide heads ask for V before the softmax
    for start in tl.range(lo, hi, o.BLOCK_N):
        # Rows beyond the last key may hold anything: their logits are masked.
        k = load_rows(keys, start, N_K, D, o.BLOCK_N, o.HEAD_DIM, WHOLE or o.USE_TMA, o.USE_TMA)
        qk = tl.dot(q, k.T, input_precision=o.PRECISION)    # (BLOCK_M, BLOCK_N), not scaled yet
        if EARLY_V:
            v = load_rows(values, start, N_K, D, o.BLOCK_N, o.HEAD_DIM, WHOLE, o.USE_TMA)
        col = start + tl.arange(0, o.BLOCK_N)
        qk, factor, _ = scored(qk, row[:, None], col[None, :], logits, N_Q, N_K)
        if MASKED:
            seen = visible(row[:, None], col[None, :], N_Q, N_K, window, o.IS_CAUSAL)
            # A NaN in a forbidden key ends here: −1e28 is below every score. Times a large scale it is
            # −∞, which does no harm, because m_i is finite.
            qk = tl.where(seen, qk, -1.0e28)
        m_new = tl.maximum(m_i, tl.max(qk, 1) * factor)
        p = tl.exp2(qk * factor - m_new[:, None])
        if MASKED:
            p = tl.where(seen, p, 0.0)
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        if not EARLY_V:
            v = load_rows(values, start, N_K, D, o.BLOCK_N, o.HEAD_DIM, WHOLE, o.USE_TMA)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=o.PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def _with_state(acc, l_i, m_i, head, LSE, start, N, D, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Return (acc, l, m, lse): the state in O and LSE is one more key of each row, whose value is O.

    lse is what the rows had before. The state comes in at the end: sums that began with it would make
    each P a small number, and float16 has few of those.
    """
    row = start + tl.arange(0, BLOCK_M)
    before = tl.load(LSE + row, mask=row < N, other=float("-inf"))
    m_new = tl.maximum(m_i, before * LOG2E)                 # finite, because m_i is
    keep = tl.exp2(m_i - m_new)
    weight = tl.exp2(before * LOG2E - m_new)
    held = load_rows(head, start, N, D, BLOCK_M, HEAD_DIM, False, False)
    held = tl.where((weight > 0.0)[:, None], held, 0.0)     # an empty state, whatever its O holds
    acc = acc * keep[:, None] + held * weight[:, None]
    tl.debug_barrier()                                      # all threads have read what one overwrites
    return acc, tl.fma(l_i, keep, weight), m_new, before


@triton.jit
def flash_fwd_kernel(Q, K, V, O, LSE, CU_Q, CU_K, scale_log2, softcap_log2, ALIBI, SINK, stride_q,
                     stride_k, stride_v, stride_o, sizes, window, sequences,
                     BLOCKS: tl.constexpr, IS_CAUSAL: tl.constexpr, EVEN_D: tl.constexpr,
                     RAGGED: tl.constexpr, USE_TMA: tl.constexpr,
                     DIMS: tl.constexpr, INTO: tl.constexpr):
    """Write O and the natural-log LSE of one query tile.

    Args:
        Q, K, V: pointers to (B, H, N, D) tensors, or with USE_TMA their descriptors; O a pointer.
        LSE: pointer to (B, H, N_Q), contiguous float32.  INTO: O, float32, and LSE hold a state, into
            which these keys are folded.
        CU_Q, CU_K: None, or pointers to where packed sequences begin, and behind them the end of the
            last, int32: then B is 1, and each sequence is attended to by itself.
        scale_log2: the non-negative factor on the logits, times log2(e): exponentials are base 2.
        softcap_log2: None or the softcap, times log2(e).
        ALIBI, SINK: None or pointers to float32, (H,) or, where DIMS has a 2 for them, (B, H): slopes,
            and logits of sinks, natural log.
        stride_q, …: four each, in elements: from one batch entry, head, row, column to the next.
        sizes: (H, GROUP, N_Q, N_K, D): query heads, query heads per key head, lengths, columns.
        sequences: None, or how many are packed.
        window: None, or (left, right): row i sees keys i + N_K − N_Q − left … i + N_K − N_Q + right.
        BLOCKS: (BLOCK_M, BLOCK_N, HEAD_DIM): rows of a query and of a key tile, and D rounded up to a
            power of 2.
        IS_CAUSAL: row i sees keys 0 … i + N_K − N_Q; a window says what it sees without.
        EVEN_D: D = HEAD_DIM.  RAGGED: BLOCK_N does not divide N_K.
    """
    BLOCK_M: tl.constexpr = BLOCKS[0]
    BLOCK_N: tl.constexpr = BLOCKS[1]
    HEAD_DIM: tl.constexpr = BLOCKS[2]
    EXACT: tl.constexpr = False if USE_TMA else Q.dtype.element_ty == tl.float32
    PRECISION: tl.constexpr = "ieee" if EXACT else "tf32"
    o = Options(BLOCK_M, BLOCK_N, HEAD_DIM, IS_CAUSAL, EVEN_D, USE_TMA, PRECISION)
    H, GROUP, N_Q, N_K, D = sizes
    tiles_per_head = tiles_of(N_Q, sequences, BLOCK_M)
    pid = tl.program_id(0)
    tile = pid % tiles_per_head
    if IS_CAUSAL:
        tile = tiles_per_head - 1 - tile                    # the longest rows first
    b = pid // tiles_per_head // H
    h = pid // tiles_per_head % H
    rows_per_head, begin_q, begin_k = N_Q, None, None
    if sequences is not None:                               # from here on all is of one sequence
        i, tile = in_sequence(tile, CU_Q, sequences, BLOCK_M)
        begin_q, N_Q = rows_of(i, CU_Q, sequences, N_Q, True)
        begin_k, N_K = rows_of(i, CU_K, sequences, N_K, False)
        if tile * BLOCK_M >= N_Q:
            return
        LSE += begin_q
        sizes = (H, GROUP, N_Q, N_K, D)
    start = tile * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)

    q = load_rows((Q, stride_q, b, h, begin_q), start, N_Q, D, BLOCK_M, HEAD_DIM, USE_TMA, USE_TMA)
    m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    begin, whole, cut, end = key_range(tile, N_Q, N_K, window, o)
    keys, values = (K, stride_k, b, h // GROUP, begin_k), (V, stride_v, b, h // GROUP, begin_k)
    logits = logits_of(scale_log2, softcap_log2, ALIBI, b, h, H, DIMS[0])
    if IS_CAUSAL or RAGGED or window is not None:           # the tiles that a mask cuts through
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, keys, values, cut, end, row, logits, sizes,
                                window, True, o)
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, keys, values, whole, cut, row, logits, sizes,
                            window, False, o)
    if window is not None:
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, keys, values, begin, whole, row, logits, sizes,
                                window, True, o)

    if SINK is not None:
        m_i, l_i, keep = with_sink(m_i, l_i, of_head(SINK, b, h, H, DIMS[1]))
        acc = acc * keep[:, None]
    head = (pid // tiles_per_head).to(tl.int64) * rows_per_head
    if INTO:
        seen = l_i > 0.0
        acc, l_i, m_i, before = _with_state(acc, l_i, m_i, (O, stride_o, b, h, begin_q), LSE + head,
                                            start, N_Q, D, BLOCK_M, HEAD_DIM)
    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]     # one late division; an empty row is 0
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(tl.where(l_i == 0.0, 1.0, l_i))) * LN2)
    if INTO:
        lse = tl.where(seen, lse, before)                   # to the bit, where no key was seen
    tl.store(LSE + head + row, lse, mask=row < N_Q)
    if O.dtype.element_ty == tl.float16:                    # a rounded P may lift O past 65,504
        acc = tl.where(tl.abs(acc) < 65600.0, tl.clamp(acc, -65504.0, 65504.0), acc)
    store_rows(acc, (O, stride_o, b, h, begin_q), start, N_Q, D, BLOCK_M, HEAD_DIM)
