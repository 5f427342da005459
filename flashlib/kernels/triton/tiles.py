"""What the Triton kernels share: rows of one head as a tile, and which pairs of rows and keys count.

A mask is one run of keys for each row, from a first key to a last, and neither lies further left than
that of the row above. So the first and the last row of a tile tell for all of its rows.
"""

import triton
import triton.language as tl

from flashlib.kernels.aggregates import fields


@fields("BLOCK_M BLOCK_N HEAD_DIM IS_CAUSAL EVEN_D USE_TMA PRECISION")
class Options:
    """What is fixed when an attention kernel is compiled."""


@triton.jit
def tiles_of(N, sequences, ROWS: tl.constexpr):
    """Return how many tiles of ROWS rows a head of N rows has; `sequences` is None, or how many."""
    return tl.cdiv(N, ROWS) if sequences is None else N // ROWS + sequences + 1


@triton.jit
def in_sequence(tile, CU, sequences, ROWS: tl.constexpr):
    """Return (i, tile): the packed sequence of a tile of a head, and which of its own tiles that is.

    Sequence i begins at tile CU[i] // ROWS + i, which leaves room for its own ⌈rows / ROWS⌉ and for one
    more at most; what lies behind the last is sequence number `sequences`. So the number of tiles
    follows from that of rows, no length is needed to launch, and i is found by bisection.
    """
    low = tile * 0
    high = low + sequences
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(CU + middle) // ROWS + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low, tl.maximum(tile - tl.load(CU + low) // ROWS - low, 0)


@triton.jit
def rows_of(i, CU, sequences, N, BEHIND: tl.constexpr):
    """Return (first, count) of the rows of packed sequence i, of N in all, whatever CU holds.

    Number `sequences` has what lies behind the last, if BEHIND, else nothing.
    """
    first = tl.minimum(tl.maximum(tl.load(CU + i), 0), N)
    stop = tl.minimum(tl.load(CU + tl.minimum(i + 1, sequences)), N)
    if BEHIND:
        stop = tl.where(i == sequences, N, stop)
    return first, tl.maximum(stop - first, 0)


@triton.jit
def load_rows(head, start, N, D, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, WHOLE: tl.constexpr,
              USE_TMA: tl.constexpr):
    """Return rows start … start + ROWS of a head as a (ROWS, HEAD_DIM) tile, zeros outside.

    `head` is (X, strides, b, h, first): X is a pointer, or with USE_TMA a descriptor of the
    (B, H, N, D) tensor; `first` is None, or where a packed sequence begins. WHOLE promises that no row
    or column of the tile lies outside, or with USE_TMA that what is read there does no harm. Offsets
    are 64 bits wide, so a tensor may exceed 2³¹ elements.
    """
    X, stride, b, h, first = head
    # One return: Triton compiles what stands behind a return inside an `if`, constexpr or not.
    if USE_TMA:
        if first is None:
            tile = X.load([b, h, start, 0]).reshape([ROWS, HEAD_DIM])
        else:
            tile = X.load([b, h, first + start, 0]).reshape([ROWS, HEAD_DIM])
            if not WHOLE:                                   # rows of the next sequence
                n = start + tl.arange(0, ROWS)
                tile = tl.where((n < N)[:, None], tile, 0.0)
    else:
        n = start + tl.arange(0, ROWS)
        d = tl.arange(0, HEAD_DIM)
        X += b.to(tl.int64) * stride[0] + h.to(tl.int64) * stride[1]
        if first is not None:
            X += first.to(tl.int64) * stride[2]
        pointers = X + n.to(tl.int64)[:, None] * stride[2] + d.to(tl.int64)[None, :] * stride[3]
        if WHOLE:
            tile = tl.load(pointers)
        else:
            tile = tl.load(pointers, mask=(n < N)[:, None] & (d < D)[None, :], other=0.0)
    return tile


@triton.jit
def store_rows(tile, head, start, N, D, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
               INTO: tl.constexpr = False):
    """Write a (ROWS, HEAD_DIM) tile to rows start … of a head, clipped to N rows and D columns.

    With INTO add it to what is there.
    """
    X, stride, b, h, first_row = head
    n = start + tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM)
    first = X + b.to(tl.int64) * stride[0] + h.to(tl.int64) * stride[1]
    if first_row is not None:
        first += first_row.to(tl.int64) * stride[2]
    pointers = first + n.to(tl.int64)[:, None] * stride[2] + d.to(tl.int64)[None, :] * stride[3]
    inside = (n < N)[:, None] & (d < D)[None, :]
    if INTO:
        tile += tl.load(pointers, mask=inside, other=0.0)
        tl.debug_barrier()                                  # all threads have read what one overwrites
    tl.store(pointers, tile.to(X.dtype.element_ty), mask=inside)


@triton.jit
def visible(row, col, N_Q, N_K, window, IS_CAUSAL: tl.constexpr):
    """Return which pairs exist and may see each other; row and col broadcast against each other."""
    seen = (row < N_Q) & (col < N_K)
    if IS_CAUSAL:
        seen = seen & (col <= row + (N_K - N_Q))            # aligned bottom right
    if window is not None:
        left, right = window
        on = row + (N_K - N_Q)                              # the key that a row lies on
        seen = seen & (col >= on - left) & (col <= on + right)
    return seen


@triton.jit
def key_range(tile, N_Q, N_K, window, o):
    """Return (begin, whole, cut, end): a query tile sees keys begin … end, all rows whole … cut.

    The first three lie between two key tiles: so begin … whole and cut … end are the tiles that a mask
    cuts through. Where a tile is cut from both sides, whole is beyond cut, and nothing lies between.
    """
    begin = 0
    whole = 0
    end = N_K
    cut = N_K // o.BLOCK_N * o.BLOCK_N
    if o.IS_CAUSAL:
        first_row_sees = tl.maximum(tile * o.BLOCK_M + 1 + N_K - N_Q, 0)
        end = tl.minimum(N_K, tl.maximum((tile + 1) * o.BLOCK_M + N_K - N_Q, 0))
        cut = tl.minimum(cut, first_row_sees // o.BLOCK_N * o.BLOCK_N)
    if window is not None:
        left, right = window
        first = tile * o.BLOCK_M + N_K - N_Q                # the keys that the first row lies on,
        last = tl.minimum((tile + 1) * o.BLOCK_M, N_Q) - 1 + N_K - N_Q      # and the last
        begin = tl.maximum(first - left, 0) // o.BLOCK_N * o.BLOCK_N
        whole = tl.cdiv(tl.maximum(last - left, 0), o.BLOCK_N) * o.BLOCK_N
        end = tl.minimum(N_K, tl.maximum(last + 1 + right, 0))
        cut = tl.minimum(cut, tl.maximum(first + 1 + right, 0) // o.BLOCK_N * o.BLOCK_N)
        cut = tl.maximum(cut, whole)
    return begin, whole, cut, end


@triton.jit
def query_range(tile, N_Q, N_K, window, RAGGED: tl.constexpr, o):
    """Return (begin, whole, cut, end): queries begin … end see a key tile, whole … cut all of it.

    The first three lie between two query tiles: so begin … whole and cut … end are the tiles that a
    mask, or the end of queries or keys, cuts through.
    """
    begin = 0
    whole = 0
    cut = N_Q // o.BLOCK_M * o.BLOCK_M
    end = N_Q
    if o.IS_CAUSAL:
        shift = N_K - N_Q
        begin = tl.minimum(tl.maximum(tile * o.BLOCK_N - shift, 0) // o.BLOCK_M * o.BLOCK_M, cut)
        whole = tl.cdiv(tl.maximum((tile + 1) * o.BLOCK_N - 1 - shift, 0), o.BLOCK_M) * o.BLOCK_M
    if window is not None:
        left, right = window
        first = tile * o.BLOCK_N - N_K + N_Q                # the rows that lie on the first key,
        last = tl.minimum((tile + 1) * o.BLOCK_N, N_K) - 1 - N_K + N_Q      # and on the last
        begin = tl.maximum(first - right, 0) // o.BLOCK_M * o.BLOCK_M
        whole = tl.cdiv(tl.maximum(last - right, 0), o.BLOCK_M) * o.BLOCK_M
        end = tl.minimum(N_Q, tl.maximum(last + 1 + left, 0))
        cut = tl.minimum(cut, tl.maximum(first + 1 + left, 0) // o.BLOCK_M * o.BLOCK_M)
        cut = tl.maximum(cut, begin)
    if RAGGED:                                              # noqa: SIM102, the outer one compiles
        if (tile + 1) * o.BLOCK_N > N_K:
            whole = cut
    return begin, tl.minimum(tl.maximum(whole, begin), cut), cut, end
