"""Decoding in Triton: few queries, many keys. Programs share the keys out, a second kernel merges.

Flash-Decoding (Dao et al. 2023). The queries of all heads that share a key head are rows of one tile,
row position · GROUP + head, so that K and V are read once for all of them.

Keys are cut into units of a fixed number; a fixed number of units makes a run. The units of a run are
folded in their order, in a program that has a whole run, or in the merge if every unit had a program of
its own; runs are folded in the merge. Both do the same arithmetic, so that a batch may decide which of
them fills the GPU, and the bits of a sequence depend on nothing but itself. The NumPy page that this
follows is `flashlib.algorithms.flash_decode`.
"""

import triton
import triton.language as tl

from flashlib import exp2
from flashlib.kernels.triton.scores import logits_of, of_head, scored, with_sink
from flashlib.kernels.triton.tiles import visible

LN2 = tl.constexpr(exp2.LN2)
LOWEST = tl.constexpr(-1.0e30)                              # stands for −∞ in a running maximum


@triton.jit
def length_of(LENGTHS, b, N_K):
    """Return how many keys of a sequence count: never more than there are."""
    length = N_K
    if LENGTHS is not None:
        length = tl.minimum(tl.maximum(tl.load(LENGTHS + b), 0), N_K)
    return length


@triton.jit
def keys_seen(first, last, length, N_Q, window, IS_CAUSAL: tl.constexpr):
    """Return (begin, end) of the keys that the queries first … last see, the last on the last key."""
    begin = 0
    end = length
    if IS_CAUSAL:
        end = tl.minimum(end, tl.maximum(last + 1 + length - N_Q, 0))
    if window is not None:
        left, right = window
        begin = tl.maximum(first + length - N_Q - left, 0)
        end = tl.minimum(end, tl.maximum(last + 1 + length - N_Q + right, 0))
    return begin, end


@triton.jit
def page_of(n, there, b, TABLE, N_K, PAGE: tl.constexpr):
    """Return the page on which a key lies, or each of many; what stands behind the end is not read."""
    return tl.load(TABLE + b.to(tl.int64) * (N_K // PAGE) + n // PAGE, mask=there, other=0)


@triton.jit
def places_of(page, start, n, there, b, hk, stride_k, stride_v, TABLE, N_K, PAGE: tl.constexpr,
              BLOCK_N: tl.constexpr):
    """Return where the keys n, from start on, of a head and their values begin, in elements.

    With pages, `page` is the one on which all of them lie, if their number divides a page's. What rows
    share is added up apart from what all tiles do: a thread needs fewer registers.
    """
    head = hk.to(tl.int64)
    if PAGE:
        row, first = tl.arange(0, BLOCK_N), tl.full([], start % PAGE, tl.int64)
        if PAGE % BLOCK_N:
            page, first = page_of(n, there, b, TABLE, N_K, PAGE), 0
            row = (n.to(tl.uint32) if BLOCK_N % PAGE else row) % PAGE
        entry, row = page.to(tl.int64), row.to(tl.int64)
        keys = row * stride_k[2] + (entry * stride_k[0] + head * stride_k[1] + first * stride_k[2])
        values = row * stride_v[2] + (entry * stride_v[0] + head * stride_v[1] + first * stride_v[2])
    else:
        keys = b.to(tl.int64) * stride_k[0] + n.to(tl.int64) * stride_k[2] + head * stride_k[1]
        values = b.to(tl.int64) * stride_v[0] + n.to(tl.int64) * stride_v[2] + head * stride_v[1]
    return keys, values


@triton.jit
def load_at(X, at, stride, there, D, HEAD_DIM: tl.constexpr, EVEN_D: tl.constexpr):
    """Return the rows that begin at these elements as a tile, zeros where they are not `there`."""
    d = tl.arange(0, HEAD_DIM)
    pointers = X + at[:, None] + d.to(tl.int64)[None, :] * stride
    mask = there[:, None] if EVEN_D else there[:, None] & (d < D)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def fold(m_a, l_a, acc_a, m_b, l_b, acc_b):
    """Return the merge of two softmax states, in arithmetic that no compiler contracts otherwise.

    What saw no key changes nothing, not even by a NaN among its values.
    """
    some = l_b != 0.0
    m = tl.where(some, tl.maximum(m_a, m_b), m_a)
    a, b = tl.exp2(m_a - m), tl.exp2(m_b - m)
    wide_a = tl.broadcast_to(a[:, None], acc_a.shape)
    l = tl.where(some, tl.fma(l_a, a, l_b * b), l_a)
    acc = tl.where(some[:, None], tl.fma(acc_a, wide_a, acc_b * b[:, None]), acc_a)
    return m, l, acc


@triton.jit
def divided(acc, l, O):
    """Return O as it is stored; a rounded P may have lifted float16 past its largest."""
    empty = l == 0.0
    out = tl.where(empty, 0.0, acc / tl.where(empty, 1.0, l))
    if O.dtype.element_ty == tl.float16:
        out = tl.where(tl.abs(out) < 65600.0, tl.clamp(out, -65504.0, 65504.0), out)
    return out.to(O.dtype.element_ty)


@triton.jit
def natural(m, l):
    """Return the natural-log LSE of base-2 statistics; −∞ where nothing was seen."""
    empty = l == 0.0
    return tl.where(empty, float("-inf"), (m + tl.log2(tl.where(empty, 1.0, l))) * LN2)


@triton.jit
def flash_decode_fwd_kernel(Q, K, V, O, LSE, LENGTHS, TABLE, scale_log2, softcap_log2, ALIBI, SINK,
                            stride_q, stride_k, stride_v, sizes, window, PARTS, KEYS,
                            UNITS: tl.constexpr, WHOLE: tl.constexpr, BLOCKS: tl.constexpr,
                            PAGE: tl.constexpr, PDL: tl.constexpr, FLAGS: tl.constexpr):
    """Attend to the keys of one part: write the state of a tile of rows there, O not divided yet.

    Args:
        Q: pointer to (B, H, N_Q, D).  K, V: to (B, H_K, N_K, D), or with PAGE to (pages, H_K, PAGE, D).
        O: pointer to (B · H_K, PARTS, N_Q · GROUP, D) float32.  LSE: to m and l of the same rows,
            (…, 2) float32, base 2. If WHOLE, there is one part, and O (B, H, N_Q, D) in its own dtype
            and the natural-log LSE are the result. Where a tile sees no key of a part, nothing is
            written.
        LENGTHS: None or pointer to (B,) int32: how many keys of a sequence count.
        TABLE: None or pointer to (B, N_K / PAGE) int32: the page of each run of PAGE keys.
        scale_log2: the non-negative factor on the logits, times log2(e): exponentials are base 2.
        softcap_log2, ALIBI, SINK, …_DIMS: as in `flash_fwd_kernel`; the sink counts if WHOLE alone.
        stride_q, …: four each, in elements: from one batch entry (or page), head, row, column to the
            next.
        sizes: (H_K, GROUP, N_Q, N_K, D): key heads, query heads per key head, lengths, columns.
        window: None or (left, right), from the key that a row lies on; the last lies on the last.
        PARTS: how many parts there is room for.  KEYS: of a unit, a multiple of BLOCK_N.
        UNITS: of a part: one, or those of a run.
        BLOCKS: (BLOCK_M, BLOCK_N, HEAD_DIM): rows of a tile, keys, and D rounded up to a power of 2.
        FLAGS: (IS_CAUSAL, EVEN_D, ALIBI_DIMS, SINK_DIMS).
        PDL: begin before the kernel before has ended, and let the next one do so.
    """
    BLOCK_M: tl.constexpr = BLOCKS[0]
    BLOCK_N: tl.constexpr = BLOCKS[1]
    HEAD_DIM: tl.constexpr = BLOCKS[2]
    IS_CAUSAL: tl.constexpr = FLAGS[0]
    EVEN_D: tl.constexpr = FLAGS[1]
    ALIBI_DIMS: tl.constexpr = FLAGS[2]
    SINK_DIMS: tl.constexpr = FLAGS[3]
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    PRECISION: tl.constexpr = "ieee" if K.dtype.element_ty == tl.float32 else "tf32"
    H_K, GROUP, N_Q, N_K, D = sizes
    tiles = tl.cdiv(N_Q * GROUP, BLOCK_M)
    pid = tl.program_id(0)
    tile, part, head = pid % tiles, pid // tiles % PARTS, pid // tiles // PARTS
    b, hk = head // H_K, head % H_K
    r = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row, member = r // GROUP, r % GROUP                     # the query, and which head of the group
    length = length_of(LENGTHS, b, N_K)
    last_row = tl.minimum(((tile + 1) * BLOCK_M - 1) // GROUP, N_Q - 1)
    begin, end = keys_seen(tile * BLOCK_M // GROUP, last_row, length, N_Q, window, IS_CAUSAL)
    lo = tl.maximum(part * KEYS * UNITS, begin // BLOCK_N * BLOCK_N)
    hi = tl.minimum((part + 1) * KEYS * UNITS, end)
    real = row < N_Q
    if not WHOLE:
        real = real & (lo < hi)                             # who sees nothing reads and writes nothing

    h = hk * GROUP + member
    at = b.to(tl.int64) * stride_q[0] + h.to(tl.int64) * stride_q[1] + row.to(tl.int64) * stride_q[2]
    q = load_at(Q, at, stride_q[3], real, D, HEAD_DIM, EVEN_D)
    m_0 = tl.full([BLOCK_M], LOWEST, tl.float32)
    l_0 = tl.zeros([BLOCK_M], tl.float32)
    acc_0 = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    m_i, l_i, acc, m_run, l_run, acc_run = m_0, l_0, acc_0, m_0, l_0, acc_0
    logits = logits_of(scale_log2, softcap_log2, ALIBI, b, h[:, None], H_K * GROUP, ALIBI_DIMS)
    ONE_PAGE: tl.constexpr = PAGE > 0 and PAGE % BLOCK_N == 0
    page = page_of(lo, lo < hi, b, TABLE, N_K, PAGE) if ONE_PAGE else 0
    for start in tl.range(lo, hi, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        there = n < hi                                      # no key behind the end is read
        keys, values = places_of(page, start, n, there, b, hk, stride_k, stride_v, TABLE, N_K, PAGE,
                                 BLOCK_N)
        if ONE_PAGE:                                        # looked up while this tile is read
            page = page_of(start + BLOCK_N, start + BLOCK_N < hi, b, TABLE, N_K, PAGE)
        read = tl.arange(0, BLOCK_N) < hi - start if PAGE else there     # the same, in fewer registers
        k = load_at(K, keys, stride_k[3], read, D, HEAD_DIM, EVEN_D)
        qk = tl.dot(q, k.T, input_precision=PRECISION)      # (BLOCK_M, BLOCK_N), not scaled yet
        v = load_at(V, values, stride_v[3], read, D, HEAD_DIM, EVEN_D)
        qk, factor, _ = scored(qk, row[:, None], n[None, :], logits, N_Q, length)
        seen = there[None, :] & visible(row[:, None], n[None, :], N_Q, length, window, IS_CAUSAL)
        qk = tl.where(seen, qk, -1.0e28)                    # a NaN in a forbidden key ends here
        m_new = tl.maximum(m_i, tl.max(qk, 1) * factor)
        p = tl.where(seen, tl.exp2(qk * factor - m_new[:, None]), 0.0)
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new
        if UNITS > 1:                                       # noqa: SIM102, the outer one compiles
            if (start + BLOCK_N) % KEYS == 0:               # a unit is complete
                m_run, l_run, acc_run = fold(m_run, l_run, acc_run, m_i, l_i, acc)
                m_i, l_i, acc = m_0, l_0, acc_0

    if UNITS > 1:
        m_i, l_i, acc = fold(m_run, l_run, acc_run, m_i, l_i, acc)
    d = tl.arange(0, HEAD_DIM)
    if WHOLE:
        if SINK is not None:
            m_i, l_i, keep = with_sink(m_i, l_i, of_head(SINK, b, h, H_K * GROUP, SINK_DIMS))
            acc = acc * keep[:, None]
        to = (b.to(tl.int64) * H_K * GROUP + h) * N_Q + row
        tl.store(LSE + to, natural(m_i, l_i), mask=real)
        acc = divided(acc, l_i[:, None], O)
    else:
        to = (head.to(tl.int64) * PARTS + part) * (N_Q * GROUP) + r
        tl.store(LSE + to * 2, m_i, mask=real)
        tl.store(LSE + to * 2 + 1, l_i, mask=real)
    tl.store(O + to[:, None] * D + d[None, :], acc, mask=real[:, None] & (d < D)[None, :])


@triton.jit
def halves(x):
    """Return the first and the second half of a tile's rows."""
    if len(x.shape) == 1:
        by_half = x.reshape(2, x.shape[0] // 2).permute(1, 0)
    else:
        by_half = x.reshape(2, x.shape[0] // 2, x.shape[1]).permute(1, 2, 0)
    return by_half.split()


@triton.jit
def flash_decode_merge_kernel(ACC, STATISTICS, O, LSE, LENGTHS, SINK, sizes, window, PARTS, KEYS,
                              UNITS: tl.constexpr, FOLDED: tl.constexpr, LANES: tl.constexpr,
                              AHEAD: tl.constexpr, BLOCK_D: tl.constexpr, IS_CAUSAL: tl.constexpr,
                              PDL: tl.constexpr, SINK_DIMS: tl.constexpr):
    """Merge what the parts left of one row: write BLOCK_D columns of O, and the LSE.

    Run r goes to lane r mod LANES; a lane folds its runs in their order, and then lanes are folded, the
    first half with the second, until one is left. Everything is done column by column, so that BLOCK_D,
    AHEAD and warps change no bit.

    Args:
        ACC, STATISTICS: O and LSE of `flash_decode_fwd_kernel`.
        O: pointer to (B, H, N_Q, D), contiguous.  LSE: pointer to (B, H, N_Q) float32, natural log.
        LENGTHS, SINK, sizes, window, PARTS, KEYS, IS_CAUSAL, PDL: as there. The sink counts here, once
            and last, as it would in a program that had all keys. A part of which the row sees
            nothing is not read.
        UNITS: of a run.  FOLDED: units of a part, 1 or UNITS.  LANES: a power of 2.
        AHEAD: how many runs of a lane are read before the first is folded.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    H_K, GROUP, N_Q, N_K, D = sizes
    columns = tl.cdiv(D, BLOCK_D)
    pid = tl.program_id(0)
    at, column = pid // columns, pid % columns              # at: which row of O
    row, h = at % N_Q, at // N_Q
    b = h // (H_K * GROUP)
    begin, end = keys_seen(row, row, length_of(LENGTHS, b, N_K), N_Q, window, IS_CAUSAL)
    # Parts of a head lie N_Q · GROUP rows apart, and heads PARTS times that.
    apart = N_Q * GROUP
    first_row = (h // GROUP).to(tl.int64) * PARTS * apart + row * GROUP + h % GROUP
    d = column * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    OF_RUN: tl.constexpr = UNITS // FOLDED                  # parts of a run
    RUN = KEYS * UNITS
    m_0 = tl.full([LANES], LOWEST, tl.float32)
    l_0 = tl.zeros([LANES], tl.float32)
    acc_0 = tl.zeros([LANES, BLOCK_D], tl.float32)
    m_i, l_i, acc = m_0, l_0, acc_0
    for run in range(begin // RUN // LANES * LANES, tl.cdiv(end, RUN), LANES * AHEAD):
        found = ()                                          # all of these are under way at once
        for n in tl.static_range(AHEAD * OF_RUN):
            part = (run + n // OF_RUN * LANES + tl.arange(0, LANES)) * OF_RUN + n % OF_RUN
            there = (part * KEYS * FOLDED < end) & ((part + 1) * KEYS * FOLDED > begin)
            place = first_row + part.to(tl.int64) * apart
            m = tl.load(STATISTICS + place * 2, mask=there, other=LOWEST)
            l = tl.load(STATISTICS + place * 2 + 1, mask=there, other=0.0)
            x = tl.load(ACC + place[:, None] * D + d, mask=there[:, None] & (d < D), other=0.0)
            found += ((m, l, x),)
        for ahead in tl.static_range(AHEAD):
            state = found[ahead * OF_RUN]
            if OF_RUN > 1:                                  # as a program that has them all
                state = m_0, l_0, acc_0
                for unit in tl.static_range(OF_RUN):
                    state = fold(*state, *found[ahead * OF_RUN + unit])
            m_i, l_i, acc = fold(m_i, l_i, acc, *state)
    for _ in tl.static_range(LANES.bit_length() - 1):
        m_a, m_b = halves(m_i)
        l_a, l_b = halves(l_i)
        acc_a, acc_b = halves(acc)
        m_i, l_i, acc = fold(m_a, l_a, acc_a, m_b, l_b, acc_b)
    if SINK is not None:
        m_i, l_i, keep = with_sink(m_i, l_i, of_head(SINK, b, h % (H_K * GROUP), H_K * GROUP,
                                                     SINK_DIMS))
        acc *= keep[:, None]
    out = divided(acc, l_i[:, None], O)
    tl.store(O + at.to(tl.int64) * D + d, out, mask=d < D)
    tl.store(LSE + at + tl.arange(0, 1), natural(m_i, l_i), mask=column == 0)
