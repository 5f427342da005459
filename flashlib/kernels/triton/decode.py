"""Decoding in Triton: few queries, many keys. Programs share the keys out, a second kernel merges.

Flash-Decoding (Dao et al. 2023). The queries of all heads that share a key head are rows of one tile,
row position · GROUP + head, so that K and V are read once for all of them. Keys are cut into splits
of a fixed number: so what a sequence gets depends on no other, bit by bit. The NumPy page that it follows
is `flashlib.algorithms.flash_decode`.
"""

import triton
import triton.language as tl

from flashlib import exp2
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
def places_of(n, there, b, hk, stride_k, stride_v, TABLE, N_K, PAGE: tl.constexpr):
    """Return where the keys n of a head and their values begin, in elements.

    With pages the table says on which one a key lies; what stands there behind the end is not read.
    """
    if PAGE:
        page = tl.load(TABLE + b.to(tl.int64) * (N_K // PAGE) + n // PAGE, mask=there, other=0)
        entry, row = page.to(tl.int64), n % PAGE
        keys = entry * stride_k[0] + row.to(tl.int64) * stride_k[2]
        values = entry * stride_v[0] + row.to(tl.int64) * stride_v[2]
    else:
        keys = b.to(tl.int64) * stride_k[0] + n.to(tl.int64) * stride_k[2]
        values = b.to(tl.int64) * stride_v[0] + n.to(tl.int64) * stride_v[2]
    head = hk.to(tl.int64)
    return keys + head * stride_k[1], values + head * stride_v[1]


@triton.jit
def load_at(X, at, stride, there, D, HEAD_DIM: tl.constexpr, EVEN_D: tl.constexpr):
    """Return the rows that begin at these elements as a tile, zeros where they are not `there`."""
    d = tl.arange(0, HEAD_DIM)
    pointers = X + at[:, None] + d.to(tl.int64)[None, :] * stride
    if EVEN_D:
        tile = tl.load(pointers, mask=there[:, None], other=0.0)
    else:
        tile = tl.load(pointers, mask=there[:, None] & (d < D)[None, :], other=0.0)
    return tile


@triton.jit
def store_at(tile, X, row, there, D, HEAD_DIM: tl.constexpr):
    """Write rows of D contiguous columns; a rounded P may have lifted float16 past its largest."""
    d = tl.arange(0, HEAD_DIM)
    if X.dtype.element_ty == tl.float16:
        tile = tl.where(tl.abs(tile) < 65600.0, tl.clamp(tile, -65504.0, 65504.0), tile)
    tl.store(X + row.to(tl.int64)[:, None] * D + d[None, :], tile.to(X.dtype.element_ty),
             mask=there[:, None] & (d < D)[None, :])


@triton.jit
def flash_decode_fwd_kernel(Q, K, V, O, LSE, LENGTHS, TABLE, scale_log2, stride_q, stride_k, stride_v,
                            sizes, window, SPLITS, KEYS, WHOLE: tl.constexpr, BLOCK_M: tl.constexpr,
                            BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
                            IS_CAUSAL: tl.constexpr, EVEN_D: tl.constexpr, PDL: tl.constexpr):
    """Attend to the keys of one split: write O and the base-2 LSE of what a tile of rows sees there.

    Args:
        Q: pointer to (B, H, N_Q, D).  K, V: to (B, H_K, N_K, D), or with PAGE to (pages, H_K, PAGE, D).
        O: pointer to (B · H_K, SPLITS, N_Q · GROUP, D) float32; LSE without the D. If WHOLE, there is
            one split, and O (B, H, N_Q, D) in its own dtype and the natural-log LSE are the result.
            Where a tile sees no key of a split, nothing is written.
        LENGTHS: None or pointer to (B,) int32: how many keys of a sequence count.
        TABLE: None or pointer to (B, N_K / PAGE) int32: the page of each run of PAGE keys.
        scale_log2: the non-negative factor on the logits, times log2(e): exponentials are base 2.
        stride_q, …: four each, in elements: from one batch entry (or page), head, row, column to the
            next.
        sizes: (H_K, GROUP, N_Q, N_K, D): key heads, query heads per key head, lengths, columns.
        window: None or (left, right), from the key that a row lies on; the last lies on the last.
        SPLITS, KEYS: how many splits there is room for, and the keys of one, a multiple of BLOCK_N.
        BLOCK_M, BLOCK_N: rows of a tile, and keys.
        PDL: let the next kernel be launched before this one has ended.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    PRECISION: tl.constexpr = "ieee" if K.dtype.element_ty == tl.float32 else "tf32"
    H_K, GROUP, N_Q, N_K, D = sizes
    tiles = tl.cdiv(N_Q * GROUP, BLOCK_M)
    pid = tl.program_id(0)
    tile, split, head = pid % tiles, pid // tiles % SPLITS, pid // tiles // SPLITS
    b, hk = head // H_K, head % H_K
    r = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row, member = r // GROUP, r % GROUP                     # the query, and which head of the group
    real = row < N_Q
    length = length_of(LENGTHS, b, N_K)
    last_row = tl.minimum(((tile + 1) * BLOCK_M - 1) // GROUP, N_Q - 1)
    begin, end = keys_seen(tile * BLOCK_M // GROUP, last_row, length, N_Q, window, IS_CAUSAL)
    lo = tl.maximum(split * KEYS, begin // BLOCK_N * BLOCK_N)
    hi = tl.minimum(split * KEYS + KEYS, end)

    h = hk * GROUP + member
    at = b.to(tl.int64) * stride_q[0] + h.to(tl.int64) * stride_q[1] + row.to(tl.int64) * stride_q[2]
    if not WHOLE:
        real = real & (lo < hi)                             # who sees nothing here reads and writes nothing
    q = load_at(Q, at, stride_q[3], real, D, HEAD_DIM, EVEN_D)
    m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in tl.range(lo, hi, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        there = n < hi                                      # no key behind the end is read
        keys, values = places_of(n, there, b, hk, stride_k, stride_v, TABLE, N_K, PAGE)
        k = load_at(K, keys, stride_k[3], there, D, HEAD_DIM, EVEN_D)
        qk = tl.dot(q, k.T, input_precision=PRECISION)      # (BLOCK_M, BLOCK_N), not scaled yet
        v = load_at(V, values, stride_v[3], there, D, HEAD_DIM, EVEN_D)
        seen = there[None, :] & visible(row[:, None], n[None, :], N_Q, length, window, IS_CAUSAL)
        qk = tl.where(seen, qk, -1.0e28)                    # a NaN in a forbidden key ends here
        m_new = tl.maximum(m_i, tl.max(qk, 1) * scale_log2)
        p = tl.where(seen, tl.exp2(qk * scale_log2 - m_new[:, None]), 0.0)
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new

    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    lse = tl.where(l_i == 0.0, float("-inf"), m_i + tl.log2(tl.where(l_i == 0.0, 1.0, l_i)))
    if WHOLE:
        to = (b.to(tl.int64) * H_K * GROUP + h) * N_Q + row
        lse = lse * LN2
    else:
        to = (head.to(tl.int64) * SPLITS + split) * (N_Q * GROUP) + r
    tl.store(LSE + to, lse, mask=real)
    store_at(acc, O, to, real, D, HEAD_DIM)


@triton.jit
def flash_decode_merge_kernel(PARTS, PART_LSE, O, LSE, LENGTHS, sizes, window, SPLITS, KEYS,
                              BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, IS_CAUSAL: tl.constexpr,
                              PDL: tl.constexpr):
    """Merge what the splits wrote of one row, in their order: write BLOCK_D columns of O, and the LSE.

    Args:
        PARTS, PART_LSE: O and LSE of `flash_decode_fwd_kernel`.
        O: pointer to (B, H, N_Q, D), contiguous.  LSE: pointer to (B, H, N_Q) float32, natural log.
        LENGTHS, sizes, window, SPLITS, KEYS, IS_CAUSAL: as there. A split of which the row sees nothing is
            not read.
        BLOCK_S: splits that are added up at a time.
        PDL: this program may have started before the parts are written.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
    H_K, GROUP, N_Q, N_K, D = sizes
    columns = tl.cdiv(D, BLOCK_D)
    pid = tl.program_id(0)
    at, part = pid // columns, pid % columns                # at: which row of O
    row, h = at % N_Q, at // N_Q
    b = h // (H_K * GROUP)
    begin, end = keys_seen(row, row, length_of(LENGTHS, b, N_K), N_Q, window, IS_CAUSAL)
    first = begin // KEYS
    last = tl.where(begin < end, tl.cdiv(end, KEYS), first)
    # Splits of a head lie N_Q · GROUP rows apart, and heads SPLITS times that.
    apart = N_Q * GROUP
    start = (h // GROUP).to(tl.int64) * SPLITS * apart + row * GROUP + h % GROUP
    s = tl.arange(0, BLOCK_S)
    d = part * BLOCK_D + tl.arange(0, BLOCK_D)
    m_i = tl.full([BLOCK_S], LOWEST, tl.float32)            # every BLOCK_S-th split in a lane of its own
    l_i = tl.zeros([BLOCK_S], tl.float32)
    acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for split in range(first, last, BLOCK_S):
        there = split + s < last
        place = start + (split + s).to(tl.int64) * apart
        lse = tl.load(PART_LSE + place, mask=there, other=float("-inf"))
        o = tl.load(PARTS + place[:, None] * D + d[None, :], mask=there[:, None] & (d < D)[None, :],
                    other=0.0)
        m_new = tl.maximum(m_i, lse)
        alpha, weight = tl.exp2(m_i - m_new), tl.exp2(lse - m_new)
        l_i = l_i * alpha + weight
        acc = acc * alpha[:, None] + o * weight[:, None]
        m_i = m_new
    top = tl.max(m_i, 0)
    lane = tl.exp2(m_i - top)
    total = tl.sum(l_i * lane, 0)
    empty = total == 0.0
    out = tl.sum(acc * lane[:, None], 0) / tl.where(empty, 1.0, total)
    if O.dtype.element_ty == tl.float16:
        out = tl.where(tl.abs(out) < 65600.0, tl.clamp(out, -65504.0, 65504.0), out)
    tl.store(O + at.to(tl.int64) * D + d, out.to(O.dtype.element_ty), mask=d < D)
    lse = tl.where(empty, float("-inf"), (top + tl.log2(tl.where(empty, 1.0, total))) * LN2)
    tl.store(LSE + at, lse, mask=part == 0)
