"""FlashAttention-3 forward for Hopper in Gluon: copies, matmuls and softmax at the same time.

Shah et al. 2024, arXiv:2407.08608. One producer warp asks the copy engine (TMA) for tiles; two or
three consumer warpgroups of 64 query rows each multiply them (WGMMA). Within a warpgroup the product
P·V of the last key tile runs under the softmax of this one, from one query tile to the next as well;
between warpgroups a turn is handed on, so that one multiplies while the other exponentiates. Taught in
notebook 12; v4's ideas (EMULATED, TAU) in notebook 14. With 8-bit operands: `gluon_fp8`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashlib.kernels.gluon_parts import (
    ROWS,
    allocate,
    finish,
    key_tiles,
    mma_layout,
    my_turn,
    next_slot,
    next_turn,
    nothing_seen,
    of_rows,
    producer,
    read_entry,
    rescale,
    softmax_step,
)

# From one loop to the next the compiler would take pairs of 16-bit numbers apart, and the loop would
# put them together again at every step.
KEEP_PAIRS = gl.constexpr("mov.b32 $0, $1;")


@gluon.jit
def as_operand(p, dtype: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Return P as the left operand of the second product; nothing moves between threads."""
    return gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, mma_layout(HEAD_DIM), 2))


@gluon.jit
def products(acc, p, q, shared, slot, phase, place, is_last,
             c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
             Q_SLOTS: gl.constexpr, PING_PONG: gl.constexpr, OVERLAP: gl.constexpr,
             UNDER_SOFTMAX: gl.constexpr):
    """Issue S = QKᵀ of a key tile and O += PV of the one before; return when S is there."""
    _q_smem, k_smem, v_smem, _o_smem, _q_full, q_empty, k_full, k_empty, v_full, _v_empty = shared
    k = k_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
    v = v_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
    mbarrier.wait(k_full.index(slot), phase)
    if PING_PONG:
        my_turn(slot, c)
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, mma_layout(BLOCK_N))
    qk = warpgroup_mma(q, k.permute([1, 0]), zero, use_acc=False, is_async=True)
    if not OVERLAP:
        qk = warpgroup_mma_wait(0, deps=[qk])
    mbarrier.wait(v_full.index(slot), phase)
    acc = warpgroup_mma(p, v, acc, is_async=True)
    if PING_PONG and (UNDER_SOFTMAX or not OVERLAP):
        next_turn(slot, c, CONSUMERS)
    if OVERLAP:
        qk = warpgroup_mma_wait(1, deps=[qk])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(k_empty.index(slot))
    if OVERLAP and not UNDER_SOFTMAX:
        if PING_PONG:
            next_turn(slot, c, CONSUMERS)
        acc = warpgroup_mma_wait(0, deps=[acc])
    if Q_SLOTS == 1:                                        # the next Q can come under the softmax
        mbarrier.arrive(q_empty.index(place), pred=is_last)
    return qk, acc


@gluon.jit
def attend(acc, m_i, l_i, p, q, shared, slot, phase, place, key, steps, row, N_Q, N_K, factor,
           c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, MASKED: gl.constexpr,
           IS_CAUSAL: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
           Q_SLOTS: gl.constexpr, PING_PONG: gl.constexpr, OVERLAP: gl.constexpr,
           UNDER_SOFTMAX: gl.constexpr, EMULATED: gl.constexpr, TAU: gl.constexpr):
    """Fold `steps` key tiles, downwards from `key`, into (acc, m, ℓ); p waits for its own V."""
    _q_smem, k_smem, _v_smem, _o_smem, _q_full, _q_empty, _k_full, _k_empty, _v_full, v_empty = shared
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N)
    for _ in range(steps):
        qk, acc = products(acc, p, q, shared, slot, phase, place, key == 0, c, BLOCK_N, HEAD_DIM,
                           CONSUMERS, Q_SLOTS, PING_PONG, OVERLAP, UNDER_SOFTMAX)
        col = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
        p, m_i, l_i, alpha = softmax_step(qk, factor, m_i, l_i, row, col, N_Q, N_K, MASKED, IS_CAUSAL,
                                          EMULATED, TAU, 0.0)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(slot))
        p = as_operand(p, k_smem.dtype, HEAD_DIM)
        acc = rescale(acc, alpha, TAU)
        slot, phase = next_slot(slot, phase, STAGES)
        key -= BLOCK_N
    return acc, m_i, l_i, p, slot, phase, key


@gluon.jit
def first_softmax(qk, factor, first, key, N_Q, N_K, BLOCK_N: gl.constexpr, MASKED: gl.constexpr,
                  IS_CAUSAL: gl.constexpr, EMULATED: gl.constexpr, TAU: gl.constexpr):
    """Return P, m and ℓ of a query tile's first key tile."""
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    col = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
    m_i, l_i = nothing_seen(qk, TAU)
    p, m_i, l_i, _ = softmax_step(qk, factor, m_i, l_i, row, col, N_Q, N_K, MASKED, IS_CAUSAL, EMULATED,
                                  TAU, 0.0)
    return p, m_i, l_i


@gluon.jit
def consumer(o_desc, LSE, scale_log2, shared, sizes,
             c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, IS_CAUSAL: gl.constexpr,
             RAGGED: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
             Q_SLOTS: gl.constexpr, O_PARTS: gl.constexpr, PING_PONG: gl.constexpr,
             OVERLAP: gl.constexpr, UNDER_SOFTMAX: gl.constexpr, EMULATED: gl.constexpr,
             TAU: gl.constexpr):
    """Multiply and exponentiate: 64 query rows of each tile are warpgroup c's."""
    q_smem, k_smem, _v_smem, o_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty = shared
    order, H, _GROUP, N_Q, N_K = sizes
    MASKED: gl.constexpr = IS_CAUSAL or RAGGED
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N)
    O_LAYOUT: gl.constexpr = mma_layout(HEAD_DIM)
    slot, phase = 0, 0
    count = gl.load(order)

    # The first tile's first product has no other beside it.
    _, _, start = read_entry(order, 0)
    end, _ = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
    key = (end - 1) * BLOCK_N
    mbarrier.wait(q_full.index(c), 0)
    mbarrier.wait(k_full.index(slot), phase)
    k = k_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
    qk = warpgroup_mma(q_smem.index(c).reshape([ROWS, HEAD_DIM]), k.permute([1, 0]),
                       gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT), use_acc=False, is_async=True)
    qk = warpgroup_mma_wait(0, deps=[qk])
    mbarrier.wait(v_full.index(slot), phase)                # an empty one
    mbarrier.arrive(k_empty.index(slot))
    mbarrier.arrive(v_empty.index(slot))
    if Q_SLOTS == 1:
        mbarrier.arrive(q_empty.index(c), pred=key == 0)
    if PING_PONG and c == CONSUMERS - 1:                    # warpgroup 0 has the first turn
        next_turn(slot, c, CONSUMERS)
    slot, phase = next_slot(slot, phase, STAGES)
    p_first, m_i, l_i = first_softmax(qk, scale_log2, start + c * ROWS, key, N_Q, N_K, BLOCK_N, MASKED,
                                      IS_CAUSAL, EMULATED, TAU)
    for nth in range(count):
        # Triton 3.6 loses `masked` if it is carried from one query tile to the next.
        end, masked = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
        key = (end - 2) * BLOCK_N
        row = start + c * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        place = nth % Q_SLOTS * CONSUMERS + c
        q = q_smem.index(place).reshape([ROWS, HEAD_DIM])
        acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, O_LAYOUT)
        p = as_operand(p_first, k_smem.dtype, HEAD_DIM)
        cut = gl.minimum(gl.maximum(masked - 1, 0), end - 1)
        if MASKED:                                          # the tiles that a mask cuts through
            acc, m_i, l_i, p, slot, phase, key = attend(
                acc, m_i, l_i, p, q, shared, slot, phase, place, key, cut, row, N_Q, N_K, scale_log2, c,
                BLOCK_N, HEAD_DIM, True, IS_CAUSAL, CONSUMERS, STAGES, Q_SLOTS, PING_PONG, OVERLAP,
                UNDER_SOFTMAX, EMULATED, TAU)
            p = gl.inline_asm_elementwise(KEEP_PAIRS, "=r,r", [p], dtype=k_smem.dtype, is_pure=True,
                                          pack=2)
        acc, m_i, l_i, p, slot, phase, key = attend(
            acc, m_i, l_i, p, q, shared, slot, phase, place, key, end - 1 - cut, row, N_Q, N_K,
            scale_log2, c, BLOCK_N, HEAD_DIM, False, IS_CAUSAL, CONSUMERS, STAGES, Q_SLOTS, PING_PONG,
            OVERLAP, UNDER_SOFTMAX, EMULATED, TAU)
        if Q_SLOTS > 1:
            mbarrier.arrive(q_empty.index(place))

        # The last product of this tile runs beside the first of the next. After the last tile there
        # is none: its K and Q are whatever lies there, and nobody reads the result.
        m_last, l_last = m_i, l_i
        _, _, start = read_entry(order, nth + 1)
        next_end, _ = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
        key = (next_end - 1) * BLOCK_N
        place = (nth + 1) % Q_SLOTS * CONSUMERS + c
        if nth + 1 < count:
            mbarrier.wait(q_full.index(place), (nth + 1) // Q_SLOTS & 1)
        next_q = q_smem.index(place).reshape([ROWS, HEAD_DIM])
        qk, acc = products(acc, p, next_q, shared, slot, phase, place, key == 0, c, BLOCK_N, HEAD_DIM,
                           CONSUMERS, Q_SLOTS, PING_PONG, OVERLAP, UNDER_SOFTMAX)
        p_first, m_i, l_i = first_softmax(qk, scale_log2, start + c * ROWS, key, N_Q, N_K, BLOCK_N,
                                          MASKED, IS_CAUSAL, EMULATED, TAU)
        b, h, first = read_entry(order, nth)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(slot))
        slot, phase = next_slot(slot, phase, STAGES)
        m_last, l_last = of_rows(m_last, l_last, TAU)
        # c + min(b, 0) is c, but not known to be: so no address waits in a register for the next tile.
        finish(acc, m_last, l_last, o_desc, LSE, o_smem.index(c + gl.minimum(b, 0)), b, h,
               first + c * ROWS, H, N_Q, HEAD_DIM, O_PARTS, 0.0)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["ENTRIES", "H", "GROUP", "N_Q", "N_K"])
def flash_fwd_hopper_kernel(q_desc, k_desc, v_desc, o_desc, LSE, scale_log2, ORDER, ENTRIES, H, GROUP,
                            N_Q, N_K, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
                            IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr, CONSUMERS: gl.constexpr,
                            STAGES: gl.constexpr, Q_SLOTS: gl.constexpr, O_PARTS: gl.constexpr,
                            PING_PONG: gl.constexpr, OVERLAP: gl.constexpr,
                            UNDER_SOFTMAX: gl.constexpr, EMULATED: gl.constexpr, TAU: gl.constexpr,
                            REGISTERS: gl.constexpr):
    """Write O and the natural-log LSE of this program's share of all query tiles.

    Args:
        q_desc, k_desc, v_desc, o_desc: descriptors of (B, H, N, D) tensors.
        LSE: pointer to (B, H, N_Q), contiguous float32.
        scale_log2: the positive factor on the logits, times log2(e): exponentials are base 2.
        ORDER: int32 (programs, ENTRIES, 4): how many query tiles a program computes; then the batch,
            head and first row of each; one more entry.
        H: query heads.  GROUP: query heads per key head.  N_Q, N_K: lengths.
        BLOCK_N: rows of a key tile.  HEAD_DIM: D rounded up to a power of 2, at least 32.
        RAGGED: BLOCK_N does not divide N_K.  CONSUMERS: warpgroups of 64 query rows, 2 or 3.
        STAGES, Q_SLOTS: tiles of K and V, and of Q, in flight.  O_PARTS: in how many parts O leaves.
        PING_PONG: warpgroups take turns to multiply.  OVERLAP: PV is asked for before QKᵀ is there.
        UNDER_SOFTMAX: PV then runs on under the next softmax, and a turn ends when PV has been asked
            for; without, the softmax waits for PV, and a turn ends when QKᵀ is there.
        EMULATED: exponentials, of four, that the FMA units compute.  TAU: rescale only when the maximum
            has grown by more, in powers of 2; then each thread of a row keeps its part of ℓ.
        REGISTERS: of a consumer's thread.
    """
    shared = allocate(q_desc, k_desc, v_desc, o_desc, CONSUMERS, STAGES, Q_SLOTS)
    sizes = (ORDER + gl.program_id(0) * ENTRIES * 4, H, GROUP, N_Q, N_K)
    # Spelled out: a constant that goes through a variable comes out as a tensor.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, scale_log2, shared, sizes, 0, BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED,
                        CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG, OVERLAP, UNDER_SOFTMAX,
                        EMULATED, TAU)),
            (consumer, (o_desc, LSE, scale_log2, shared, sizes, 1, BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED,
                        CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG, OVERLAP, UNDER_SOFTMAX,
                        EMULATED, TAU)),
            (producer, (q_desc, k_desc, v_desc, shared, sizes, BLOCK_N, IS_CAUSAL, CONSUMERS, STAGES,
                        Q_SLOTS, False)),
        ], [4, 1], [REGISTERS, 40])
    else:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, scale_log2, shared, sizes, 0, BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED,
                        CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG, OVERLAP, UNDER_SOFTMAX,
                        EMULATED, TAU)),
            (consumer, (o_desc, LSE, scale_log2, shared, sizes, 1, BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED,
                        CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG, OVERLAP, UNDER_SOFTMAX,
                        EMULATED, TAU)),
            (consumer, (o_desc, LSE, scale_log2, shared, sizes, 2, BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED,
                        CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG, OVERLAP, UNDER_SOFTMAX,
                        EMULATED, TAU)),
            (producer, (q_desc, k_desc, v_desc, shared, sizes, BLOCK_N, IS_CAUSAL, CONSUMERS, STAGES,
                        Q_SLOTS, False)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])
