"""FlashAttention-3 forward for Hopper in Gluon: copies, matmuls and softmax at the same time.

Shah et al. 2024, arXiv:2407.08608. One producer warp asks the copy engine (TMA) for tiles; two or
three consumer warpgroups of 64 query rows each multiply them (WGMMA). Within a warpgroup the product
P·V of the last key tile runs under the softmax of this one, from one query tile to the next as well;
between warpgroups a turn is handed on, so that one multiplies while the other exponentiates. Taught in
notebook 12; v4's ideas (EMULATED, TAU) in notebook 14. With 8-bit operands: `forward_fp8`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from flashlib.kernels.gluon.columns import add_product, by_transposed, no_sum, wait_for
from flashlib.kernels.gluon.parts import (
    ROWS,
    Options,
    Work,
    allocate,
    ask_state,
    finish,
    finish_into,
    in_pieces,
    key_tiles,
    mma_layout,
    my_turn,
    next_slot,
    next_turn,
    producer,
    read_entry,
    registers_of,
)
from flashlib.kernels.gluon.softmax import (
    nothing_seen,
    of_rows,
    rescale,
    rescale_seldom,
    softmax_step,
    stale_softmax_step,
    visible,
)

# From one loop to the next the compiler would take pairs of 16-bit numbers apart, and the loop would
# put them together again at every step.
KEEP_PAIRS = gl.constexpr("mov.b32 $0, $1;")


@gluon.jit
def as_operand(p, dtype: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Return P as the left operand of the second product; nothing moves between threads."""
    return gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, mma_layout(HEAD_DIM), 2))


@gluon.jit
def keep_pairs(p):
    """Return P; between two loops it stays in pairs."""
    return gl.inline_asm_elementwise(KEEP_PAIRS, "=r,r", [p], dtype=p.dtype, is_pure=True, pack=2)


@gluon.jit
def products(acc, p, q, shared, slot, phase, place, is_last, c: gl.constexpr, o):
    """Issue S = QKᵀ of a key tile and O += PV of the one before; return when S is there."""
    k = shared.k.index(slot).reshape([o.BLOCK_N, o.HEAD_DIM])
    v = shared.v.index(slot).reshape([o.BLOCK_N, o.HEAD_DIM])
    mbarrier.wait(shared.k_full.index(slot), phase)
    if o.PING_PONG:
        my_turn(slot, c)
    zero = gl.zeros([ROWS, o.BLOCK_N], gl.float32, mma_layout(o.BLOCK_N))
    qk = by_transposed(q, k, zero, False, o.COLUMNS)
    if not o.OVERLAP:
        qk = warpgroup_mma_wait(0, deps=[qk])
    mbarrier.wait(shared.v_full.index(slot), phase)
    acc = add_product(acc, p, v, o)
    if o.PING_PONG and (o.UNDER_SOFTMAX or not o.OVERLAP):
        next_turn(slot, c, o.CONSUMERS)
    if o.OVERLAP:
        qk = warpgroup_mma_wait(len(acc), deps=[qk])
    else:
        acc = wait_for(acc, o)
    mbarrier.arrive(shared.k_empty.index(slot))
    if o.OVERLAP and not o.UNDER_SOFTMAX:
        if o.PING_PONG:
            next_turn(slot, c, o.CONSUMERS)
        acc = wait_for(acc, o)
    if o.Q_SLOTS == 1:                                      # the next Q can come under the softmax
        mbarrier.arrive(shared.q_empty.index(place), pred=is_last)
    return qk, acc


@gluon.jit
def exponentiate(qk, factor, m_i, l_i, row, key, work, MASKED: gl.constexpr, o):
    """Return P of the logits of a key tile, m and ℓ with this tile, and what O has to be scaled by."""
    if MASKED:
        col = key + gl.arange(0, o.BLOCK_N, gl.SliceLayout(0, mma_layout(o.BLOCK_N)))
        qk = visible(qk, row, col, work.N_Q, work.N_K, work.window, o.IS_CAUSAL,
                     o.RAGGED)
    if o.TAU == 0:
        p, m_i, l_i, alpha = softmax_step(qk, factor, m_i, l_i, MASKED, o.EMULATED, 0.0)
    else:
        p, m_i, l_i, alpha = stale_softmax_step(qk, factor, m_i, l_i, MASKED, o.EMULATED, o.TAU)
    return p, m_i, l_i, alpha


@gluon.jit
def rescaled(acc, alpha, o):
    """Return O, in its pieces, times alpha."""
    if o.TAU == 0 and in_pieces(o):
        acc = rescale(acc[0], alpha), rescale(acc[1], alpha)
    elif o.TAU == 0:
        acc = (rescale(acc[0], alpha),)
    elif in_pieces(o):
        acc = rescale_seldom(acc[0], alpha), rescale_seldom(acc[1], alpha)
    else:
        acc = (rescale_seldom(acc[0], alpha),)
    return acc


@gluon.jit
def attend(state, q, shared, ring, place, keys, steps, row, work, factor, c: gl.constexpr,
           MASKED: gl.constexpr, o):
    """Fold `steps` key tiles into (acc, m, ℓ, p), where p waits for its own V.

    `keys` are the rows of K at which the first of these tiles begins, and the last of all.
    """
    acc, m_i, l_i, p = state
    slot, phase = ring
    key, last = keys
    for _ in range(steps):
        qk, acc = products(acc, p, q, shared, slot, phase, place, key == last, c, o)
        p, m_i, l_i, alpha = exponentiate(qk, factor, m_i, l_i, row, key, work, MASKED, o)
        acc = wait_for(acc, o)
        mbarrier.arrive(shared.v_empty.index(slot))
        p = as_operand(p, shared.k.dtype, o.HEAD_DIM)
        acc = rescaled(acc, alpha, o)
        slot, phase = next_slot(slot, phase, o.STAGES)
        key -= o.BLOCK_N
    return acc, m_i, l_i, p, slot, phase, key


@gluon.jit
def first_softmax(qk, factor, first, key, work, MASKED: gl.constexpr, o):
    """Return P, m and ℓ of a query tile's first key tile."""
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, mma_layout(o.BLOCK_N)))
    m_i, l_i = nothing_seen(qk, o.TAU)
    p, m_i, l_i, _ = exponentiate(qk, factor, m_i, l_i, row, key, work, MASKED, o)
    return p, m_i, l_i


@gluon.jit
def consumer(o_desc, LSE, scale_log2, shared, work, c: gl.constexpr, o):
    """Multiply and exponentiate: 64 query rows of each tile are warpgroup c's."""
    MASKED: gl.constexpr = o.IS_CAUSAL or o.RAGGED or work.window is not None
    TILE_M: gl.constexpr = o.CONSUMERS * ROWS
    S_LAYOUT: gl.constexpr = mma_layout(o.BLOCK_N)
    slot, phase = 0, 0
    count = gl.load(work.order)

    # The first tile's first product has no other beside it.
    _, _, start = read_entry(work.order, 0)
    begin, _, _, end = key_tiles(start, work.N_Q, work.N_K, work.window, TILE_M, o.BLOCK_N,
                                 o.IS_CAUSAL)
    key = (end - 1) * o.BLOCK_N
    mbarrier.wait(shared.q_full.index(c), 0)
    mbarrier.wait(shared.k_full.index(slot), phase)
    k = shared.k.index(slot).reshape([o.BLOCK_N, o.HEAD_DIM])
    qk = by_transposed(shared.q.index(c).reshape([ROWS, o.HEAD_DIM]), k,
                       gl.zeros([ROWS, o.BLOCK_N], gl.float32, S_LAYOUT), False, o.COLUMNS)
    qk = warpgroup_mma_wait(0, deps=[qk])
    mbarrier.wait(shared.v_full.index(slot), phase)         # no V comes with the first K
    mbarrier.arrive(shared.k_empty.index(slot))
    mbarrier.arrive(shared.v_empty.index(slot))
    if o.Q_SLOTS == 1:
        mbarrier.arrive(shared.q_empty.index(c), pred=key == begin * o.BLOCK_N)
    if o.PING_PONG and c == o.CONSUMERS - 1:                # warpgroup 0 has the first turn
        next_turn(slot, c, o.CONSUMERS)
    slot, phase = next_slot(slot, phase, o.STAGES)
    p_first, m_i, l_i = first_softmax(qk, scale_log2, start + c * ROWS, key, work, MASKED, o)
    for nth in range(count):
        # Triton 3.6 loses `cut` if it is carried from one query tile to the next.
        begin, whole, cut, end = key_tiles(start, work.N_Q, work.N_K, work.window, TILE_M, o.BLOCK_N,
                                           o.IS_CAUSAL)
        key, last = (end - 2) * o.BLOCK_N, begin * o.BLOCK_N
        row = start + c * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        place = nth % o.Q_SLOTS * o.CONSUMERS + c
        q = shared.q.index(place).reshape([ROWS, o.HEAD_DIM])
        acc = no_sum(o)
        p = as_operand(p_first, shared.k.dtype, o.HEAD_DIM)
        steps = end - begin - 1                             # the last key tile was the first softmax's
        cut_left = 0
        if work.window is not None:                         # these come last: their loop alone sees it
            cut_left, last = gl.minimum(gl.maximum(whole - begin, 1), steps), -1
        cut_right = gl.minimum(gl.maximum(end - cut - 1, 0), steps - cut_left)
        if MASKED:                                          # the tiles that a mask cuts through
            acc, m_i, l_i, p, slot, phase, key = attend(
                (acc, m_i, l_i, p), q, shared, (slot, phase), place, (key, last), cut_right, row, work,
                scale_log2, c, True, o)
            p = keep_pairs(p)
        acc, m_i, l_i, p, slot, phase, key = attend(
            (acc, m_i, l_i, p), q, shared, (slot, phase), place, (key, last),
            steps - cut_right - cut_left, row, work, scale_log2, c, False, o)
        if work.window is not None:                         # those that its left side cuts through
            p = keep_pairs(p)
            _, _, start = read_entry(work.order, nth)       # anew: so no row waits in a register
            begin, _, _, _ = key_tiles(start, work.N_Q, work.N_K, work.window, TILE_M, o.BLOCK_N,
                                       o.IS_CAUSAL)
            row = start + c * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
            acc, m_i, l_i, p, slot, phase, key = attend(
                (acc, m_i, l_i, p), q, shared, (slot, phase), place, (key, begin * o.BLOCK_N),
                key // o.BLOCK_N + 1 - begin, row, work, scale_log2, c, True, o)
        if o.Q_SLOTS > 1:
            mbarrier.arrive(shared.q_empty.index(place))

        # The last product of this tile runs beside the first of the next. After the last tile there
        # is none: its K and Q are whatever lies there, and nobody reads the result.
        m_last, l_last = m_i, l_i
        if o_desc.dtype == gl.float32:                      # it comes under the last product
            b, h, first = read_entry(work.order, nth)
            ask_state(o_desc, shared, (b, h, first + c * ROWS), c, 0, o)
        _, _, start = read_entry(work.order, nth + 1)
        next_begin, _, _, next_end = key_tiles(start, work.N_Q, work.N_K, work.window, TILE_M,
                                               o.BLOCK_N, o.IS_CAUSAL)
        key = (next_end - 1) * o.BLOCK_N
        is_last = key == next_begin * o.BLOCK_N
        place = (nth + 1) % o.Q_SLOTS * o.CONSUMERS + c
        if nth + 1 < count:
            mbarrier.wait(shared.q_full.index(place), (nth + 1) // o.Q_SLOTS & 1)
        next_q = shared.q.index(place).reshape([ROWS, o.HEAD_DIM])
        qk, acc = products(acc, p, next_q, shared, slot, phase, place, is_last, c, o)
        p_first, m_i, l_i = first_softmax(qk, scale_log2, start + c * ROWS, key, work, MASKED, o)
        b, h, first = read_entry(work.order, nth)
        acc = wait_for(acc, o)
        mbarrier.arrive(shared.v_empty.index(slot))
        slot, phase = next_slot(slot, phase, o.STAGES)
        if o.TAU > 0:
            m_last, l_last = of_rows(m_last, l_last)
        # c + min(b, 0) is c, but not known to be: so no address waits in a register for the next tile.
        if o_desc.dtype == gl.float32:
            finish_into(acc, m_last, l_last, o_desc, LSE, shared, (b, h, first + c * ROWS), work,
                        c + gl.minimum(b, 0), o)
        else:
            finish(acc, m_last, l_last, o_desc, LSE, shared.o.index(c + gl.minimum(b, 0)),
                   (b, h, first + c * ROWS), work, 0.0, o)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["ENTRIES", "H", "GROUP", "N_Q", "N_K", "LEFT", "RIGHT"])
def flash_fwd_hopper_kernel(q_desc, k_desc, v_desc, o_desc, LSE, scale_log2, SINK, ORDER, ENTRIES, H,
                            GROUP, N_Q, N_K, LEFT, RIGHT,
                            BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
                            CONSUMERS: gl.constexpr, STAGES: gl.constexpr, Q_SLOTS: gl.constexpr,
                            PING_PONG: gl.constexpr, PRODUCTS: gl.constexpr,
                            EMULATED: gl.constexpr, TAU: gl.constexpr):
    """Write O and the natural-log LSE of this program's share of all query tiles.

    Args:
        q_desc, k_desc, v_desc, o_desc: descriptors of (B, H, N, D) tensors. A float32 O is, with LSE, a
            state into which these keys are folded.
        LSE: pointer to (B, H, N_Q), contiguous float32.
        scale_log2: the positive factor on the logits, times log2(e): exponentials are base 2.
        SINK: None or pointer to the logits of sinks, (H,) float32, natural log.
        ORDER: int32 (programs, ENTRIES, 4): how many query tiles a program computes; then the batch,
            head and first row of each; one more entry.
        H: query heads.  GROUP: query heads per key head.  N_Q, N_K: lengths. All these and the next
            are no tuple: Triton would specialise its members. One binary serves all heads and lengths.
        LEFT, RIGHT: None, or row i sees keys i + N_K − N_Q − LEFT … i + N_K − N_Q + RIGHT.
        BLOCK_N: rows of a key tile.
        RAGGED: BLOCK_N does not divide N_K.  CONSUMERS: warpgroups of 64 query rows, 2 or 3.
        STAGES, Q_SLOTS: tiles of K and V, and of Q, in flight.
        PING_PONG: warpgroups take turns to multiply.
        PRODUCTS: (OVERLAP, UNDER_SOFTMAX, COLUMNS). OVERLAP: PV is asked for before QKᵀ is there.
            UNDER_SOFTMAX: PV then runs on under the next softmax, and a turn ends when PV has been
            asked for; without, the softmax waits for PV, and a turn ends when QKᵀ is there. COLUMNS:
            over which logits are summed; the rest, up to HEAD_DIM, is padding.
        EMULATED: exponentials, of four, that the FMA units compute.  TAU: rescale only when the maximum
            has grown by more, in powers of 2; then each thread of a row keeps its part of ℓ.
    """
    HEAD_DIM: gl.constexpr = q_desc.block_type.shape[3]     # D rounded up to a power of 2, at least 32
    O_PARTS: gl.constexpr = HEAD_DIM // o_desc.block_type.shape[3]          # in which O leaves
    REGISTERS: gl.constexpr = registers_of(CONSUMERS, HEAD_DIM)
    o = Options(BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG,
                PRODUCTS[0], PRODUCTS[1], EMULATED, TAU, PRODUCTS[2])
    shared = allocate(q_desc, k_desc, v_desc, o_desc, o)
    window = None if LEFT is None else (LEFT, RIGHT)
    work = Work(ORDER + gl.program_id(0) * ENTRIES * 4, H, GROUP, N_Q, N_K, window, SINK)
    # Spelled out: a constant that goes through a variable comes out as a tensor.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, scale_log2, shared, work, 0, o)),
            (consumer, (o_desc, LSE, scale_log2, shared, work, 1, o)),
            (producer, (q_desc, k_desc, v_desc, shared, work, False, o)),
        ], [4, 1], [REGISTERS, 40])
    else:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, scale_log2, shared, work, 0, o)),
            (consumer, (o_desc, LSE, scale_log2, shared, work, 1, o)),
            (consumer, (o_desc, LSE, scale_log2, shared, work, 2, o)),
            (producer, (q_desc, k_desc, v_desc, shared, work, False, o)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])
