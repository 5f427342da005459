"""FlashAttention-3 forward for Hopper in Gluon: copies, matmuls and softmax at the same time.

Shah et al. 2024, arXiv:2407.08608. One producer warp asks the copy engine (TMA) for tiles; two or
three consumer warpgroups of 64 query rows each multiply them (WGMMA). Within a warpgroup the product
P·V of the last key tile runs under the softmax of this one, from one query tile to the next as well;
between warpgroups a turn is handed on, so that one multiplies while the other exponentiates. Taught in
notebook 12; with 8-bit operands (FP8) in notebook 13; v4's ideas (EMULATED, TAU) in notebook 14.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashlib.kernels.gluon_parts import (
    LN2,
    ROWS,
    key_tiles,
    load_tile,
    mma_layout,
    my_turn,
    next_slot,
    next_turn,
    read_entry,
    softmax_step,
    store_tile,
)

SCALED_ROWS = gl.constexpr(128)                             # of Q or K, in 8 bits, with one scale
# Four float32 become one register of four e4m3, beyond ±448 the nearest of these.
TO_E4M3 = gl.constexpr("""{ .reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
mov.b32 $0, {low, high}; }""")
# From one loop to the next the compiler would take pairs of 16-bit numbers apart, and the loop would
# put them together again at every step.
KEEP_PAIRS = gl.constexpr("mov.b32 $0, $1;")


@gluon.jit
def as_operand(p, dtype: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
               FP8: gl.constexpr):
    """Return P as the left operand of the second product; nothing moves between threads.

    In 8 bits the registers of an operand are laid out otherwise than those of a product. Of 16 columns,
    a thread (t: its place among four) has 2t, 2t + 1, 8 + 2t, 8 + 2t + 1 of S and needs 4t … 4t + 3 of
    P: so its four are called that, and the keys of V are permuted likewise (`fp8.permute_keys`).
    """
    if FP8:
        p = p.reshape([ROWS, BLOCK_N // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([ROWS, BLOCK_N])
        p = gl.convert_layout(p, gl.DotOperandLayout(0, mma_layout(HEAD_DIM, 4, 32), 4),
                              assert_trivial=True)
        p = gl.inline_asm_elementwise(TO_E4M3, "=r,r,r,r,r", [p], dtype=gl.float8e4nv, is_pure=True,
                                      pack=4)
    else:
        p = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, mma_layout(HEAD_DIM), 2))
    return p


@gluon.jit
def load_values(v_desc, b, h, key, barrier, tile, FP8: gl.constexpr):
    """Ask for a tile of V; in 8 bits V lies transposed, (D, N), because a product wants it so."""
    if FP8:
        load_tile(v_desc, [b, h, 0, key], barrier, tile)
    else:
        load_tile(v_desc, [b, h, key, 0], barrier, tile)


@gluon.jit
def values(v_smem, slot, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, FP8: gl.constexpr):
    """Return a tile of V as a (BLOCK_N, HEAD_DIM) operand."""
    if FP8:
        v = v_smem.index(slot).reshape([HEAD_DIM, BLOCK_N]).permute([1, 0])
    else:
        v = v_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
    return v


@gluon.jit
def key_factor(factor, K_SCALE, key, FP8: gl.constexpr):
    """Return the factor on the raw logits of a key tile; in 8 bits every 128 keys have a scale."""
    if FP8:
        factor = factor * gl.load(K_SCALE + key // SCALED_ROWS)
    return factor


@gluon.jit
def query_factor(factor, Q_SCALE, K_SCALE, b, h, first, H, GROUP, N_Q, N_K, FP8: gl.constexpr):
    """Return the factor on the raw logits of a query tile, and where the scales of its keys begin."""
    if FP8:
        blocks = gl.cdiv(N_Q, SCALED_ROWS)
        block = gl.minimum(first // SCALED_ROWS, blocks - 1)
        factor = factor * gl.load(Q_SCALE + (b * H + h) * blocks + block)
        K_SCALE += (b * (H // GROUP) + h // GROUP) * gl.cdiv(N_K, SCALED_ROWS)
    return factor, K_SCALE


@gluon.jit
def producer(q_desc, k_desc, v_desc, shared, sizes,
             BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr, CONSUMERS: gl.constexpr,
             STAGES: gl.constexpr, Q_SLOTS: gl.constexpr, FP8: gl.constexpr):
    """Ask for tiles as slots become free: each step brings a K, and the V of the K before it."""
    q_smem, k_smem, v_smem, _o_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty = shared
    order, _H, GROUP, N_Q, N_K = sizes
    nbytes: gl.constexpr = k_desc.block_type.nbytes
    slot, phase = 0, 1                                      # the first wait for a free slot passes
    last_b, last_h, last_key = 0, 0, 0
    count = gl.load(order)
    for nth in range(count):
        b, h, start = read_entry(order, nth)
        end, _ = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
        for c in gl.static_range(CONSUMERS):
            place = nth % Q_SLOTS * CONSUMERS + c
            mbarrier.wait(q_empty.index(place), (nth // Q_SLOTS & 1) ^ 1)
            mbarrier.expect(q_full.index(place), q_desc.block_type.nbytes)
            load_tile(q_desc, [b, h, start + c * ROWS, 0], q_full.index(place), q_smem.index(place))
        h = h // GROUP
        for step in range(end):
            key = (end - 1 - step) * BLOCK_N                # the last key tile comes first
            mbarrier.wait(k_empty.index(slot), phase)
            mbarrier.expect(k_full.index(slot), nbytes)
            load_tile(k_desc, [b, h, key, 0], k_full.index(slot), k_smem.index(slot))
            has_v = (nth > 0) | (step > 0)                 # before the first K there was none
            mbarrier.wait(v_empty.index(slot), phase)
            mbarrier.expect(v_full.index(slot), nbytes, pred=has_v)
            mbarrier.expect(v_full.index(slot), 0, pred=has_v == 0)
            if has_v:
                load_values(v_desc, last_b, last_h, last_key, v_full.index(slot), v_smem.index(slot),
                            FP8)
            last_b, last_h, last_key = b, h, key
            slot, phase = next_slot(slot, phase, STAGES)
    mbarrier.wait(k_empty.index(slot), phase)               # the last V of all, and no K
    mbarrier.expect(k_full.index(slot), 0)
    mbarrier.wait(v_empty.index(slot), phase)
    mbarrier.expect(v_full.index(slot), nbytes)
    load_values(v_desc, last_b, last_h, last_key, v_full.index(slot), v_smem.index(slot), FP8)


@gluon.jit
def products(acc, p, q, shared, slot, phase, place, is_last,
             c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
             Q_SLOTS: gl.constexpr, PING_PONG: gl.constexpr, OVERLAP: gl.constexpr, FP8: gl.constexpr):
    """Issue S = QKᵀ of a key tile and O += PV of the one before; return when S is there."""
    _q_smem, k_smem, v_smem, _o_smem, _q_full, q_empty, k_full, k_empty, v_full, _v_empty = shared
    k = k_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
    v = values(v_smem, slot, BLOCK_N, HEAD_DIM, FP8)
    mbarrier.wait(k_full.index(slot), phase)
    if PING_PONG:
        my_turn(slot, c)
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, mma_layout(BLOCK_N, 4, 32 if FP8 else 16))
    qk = warpgroup_mma(q, k.permute([1, 0]), zero, use_acc=False, is_async=True)
    if not OVERLAP:
        qk = warpgroup_mma_wait(0, deps=[qk])
    if FP8:                                                 # in 8 bits P is rounded here, under QKᵀ
        p = as_operand(p, k_smem.dtype, BLOCK_N, HEAD_DIM, FP8)
    mbarrier.wait(v_full.index(slot), phase)
    acc = warpgroup_mma(p, v, acc, is_async=True)
    if PING_PONG:
        next_turn(slot, c, CONSUMERS)
    if OVERLAP:
        qk = warpgroup_mma_wait(1, deps=[qk])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(k_empty.index(slot))
    if Q_SLOTS == 1:                                        # the next Q can come under the softmax
        mbarrier.arrive(q_empty.index(place), pred=is_last)
    return qk, acc


@gluon.jit
def attend(acc, m_i, l_i, p, q, shared, slot, phase, place, key, steps, row, N_Q, N_K, factor, K_SCALE,
           c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, MASKED: gl.constexpr,
           IS_CAUSAL: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
           Q_SLOTS: gl.constexpr, PING_PONG: gl.constexpr, OVERLAP: gl.constexpr, FP8: gl.constexpr,
           EMULATED: gl.constexpr, TAU: gl.constexpr):
    """Fold `steps` key tiles, downwards from `key`, into (acc, m, ℓ); p waits for its own V."""
    _q_smem, k_smem, _v_smem, _o_smem, _q_full, _q_empty, _k_full, _k_empty, _v_full, v_empty = shared
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N, 4, 32 if FP8 else 16)
    O_LAYOUT: gl.constexpr = mma_layout(HEAD_DIM, 4, 32 if FP8 else 16)
    for _ in range(steps):
        tile_factor = key_factor(factor, K_SCALE, key, FP8)
        qk, acc = products(acc, p, q, shared, slot, phase, place, key == 0, c, BLOCK_N, HEAD_DIM,
                           CONSUMERS, Q_SLOTS, PING_PONG, OVERLAP, FP8)
        col = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
        p_next, m_i, l_i, alpha = softmax_step(qk, tile_factor, m_i, l_i, row, col, N_Q, N_K, MASKED,
                                               IS_CAUSAL, EMULATED, TAU, 8.0 if FP8 else 0.0)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(slot))
        if FP8:                                             # noqa: SIM108, Gluon has no constexpr ternary
            p = p_next
        else:
            p = as_operand(p_next, k_smem.dtype, BLOCK_N, HEAD_DIM, FP8)
        if TAU == 0 or gl.min(alpha, 0) < 1.0:              # does any row need it?
            acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT)), 1)
        slot, phase = next_slot(slot, phase, STAGES)
        key -= BLOCK_N
    return acc, m_i, l_i, p, slot, phase, key


@gluon.jit
def first_softmax(qk, factor, first, key, N_Q, N_K, BLOCK_N: gl.constexpr, MASKED: gl.constexpr,
                  IS_CAUSAL: gl.constexpr, FP8: gl.constexpr, EMULATED: gl.constexpr,
                  TAU: gl.constexpr):
    """Return P, m and ℓ of a query tile's first key tile."""
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N, 4, 32 if FP8 else 16)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    col = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
    m_i = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    l_i = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    p, m_i, l_i, _ = softmax_step(qk, factor, m_i, l_i, row, col, N_Q, N_K, MASKED, IS_CAUSAL, EMULATED,
                                  TAU, 8.0 if FP8 else 0.0)
    return p, m_i, l_i


@gluon.jit
def finish(acc, m_i, l_i, o_desc, LSE, V_SCALE, o_tile, b, h, first, H, GROUP, N_Q,
           BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, O_PARTS: gl.constexpr, FP8: gl.constexpr):
    """Divide by ℓ and write O, through shared memory and the copy engine, and the natural-log LSE."""
    O_LAYOUT: gl.constexpr = mma_layout(HEAD_DIM, 4, 32 if FP8 else 16)
    WIDTH: gl.constexpr = HEAD_DIM // O_PARTS
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, mma_layout(BLOCK_N, 4, 32 if FP8 else 16)))
    l_safe = gl.where(l_i == 0.0, 1.0, l_i)                 # a row that saw nothing: O = 0, lse = −∞
    log_l = gl.log2(l_safe)
    lse = gl.where(l_i == 0.0, float("-inf"), (m_i - (8.0 if FP8 else 0.0) + log_l) * LN2)
    gl.store(LSE + (b * H + h).to(gl.int64) * N_Q + row, lse, mask=row < N_Q)
    acc = acc * gl.expand_dims(gl.convert_layout(gl.exp2(-log_l), gl.SliceLayout(1, O_LAYOUT)), 1)
    if FP8:
        column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, O_LAYOUT))
        key_head = b * (H // GROUP) + h // GROUP
        acc = acc * gl.expand_dims(gl.load(V_SCALE + key_head * HEAD_DIM + column), 0)
    if o_desc.dtype == gl.float16:                          # a rounded P may lift O past 65,504
        acc = gl.where(gl.abs(acc) < 65600.0, gl.maximum(gl.minimum(acc, 65504.0), -65504.0), acc)
    o = acc.to(o_desc.dtype)
    tma.store_wait(0)                                       # what lay there before has left
    if O_PARTS == 1:
        o_tile.reshape([ROWS, HEAD_DIM]).store(o)
        fence_async_shared()
        store_tile(o_desc, [b, h, first, 0], o_tile)
    else:                                                   # half of the columns at a time
        left, right = o.reshape([ROWS, 2, WIDTH]).permute([0, 2, 1]).split()
        o_tile.reshape([ROWS, WIDTH]).store(left)
        fence_async_shared()
        store_tile(o_desc, [b, h, first, 0], o_tile)
        tma.store_wait(0)
        o_tile.reshape([ROWS, WIDTH]).store(right)
        fence_async_shared()
        store_tile(o_desc, [b, h, first, WIDTH], o_tile)


@gluon.jit
def consumer(o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes,
             c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, IS_CAUSAL: gl.constexpr,
             RAGGED: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
             Q_SLOTS: gl.constexpr, O_PARTS: gl.constexpr, PING_PONG: gl.constexpr,
             OVERLAP: gl.constexpr, FP8: gl.constexpr, EMULATED: gl.constexpr, TAU: gl.constexpr):
    """Multiply and exponentiate: 64 query rows of each tile are warpgroup c's."""
    q_smem, k_smem, _v_smem, o_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty = shared
    order, H, GROUP, N_Q, N_K = sizes
    MASKED: gl.constexpr = IS_CAUSAL or RAGGED
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N, 4, 32 if FP8 else 16)
    O_LAYOUT: gl.constexpr = mma_layout(HEAD_DIM, 4, 32 if FP8 else 16)
    slot, phase = 0, 0
    count = gl.load(order)

    # The first tile's first product has no other beside it.
    b, h, start = read_entry(order, 0)
    end, _ = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
    first, key = start + c * ROWS, (end - 1) * BLOCK_N
    factor, k_scale = query_factor(scale_log2, Q_SCALE, K_SCALE, b, h, first, H, GROUP, N_Q, N_K, FP8)
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
    p_first, m_i, l_i = first_softmax(qk, key_factor(factor, k_scale, key, FP8), first, key, N_Q, N_K,
                                      BLOCK_N, MASKED, IS_CAUSAL, FP8, EMULATED, TAU)
    for nth in range(count):
        # Triton 3.6 loses `masked` if it is carried from one query tile to the next.
        end, masked = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
        first, key = start + c * ROWS, (end - 2) * BLOCK_N
        row = first + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        place = nth % Q_SLOTS * CONSUMERS + c
        q = q_smem.index(place).reshape([ROWS, HEAD_DIM])
        acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, O_LAYOUT)
        p = p_first
        if not FP8:
            p = as_operand(p, k_smem.dtype, BLOCK_N, HEAD_DIM, FP8)
        cut = gl.minimum(gl.maximum(masked - 1, 0), end - 1)
        if MASKED:                                          # the tiles that a mask cuts through
            acc, m_i, l_i, p, slot, phase, key = attend(
                acc, m_i, l_i, p, q, shared, slot, phase, place, key, cut, row, N_Q, N_K, factor,
                k_scale, c, BLOCK_N, HEAD_DIM, True, IS_CAUSAL, CONSUMERS, STAGES, Q_SLOTS, PING_PONG,
                OVERLAP, FP8, EMULATED, TAU)
            if not FP8:
                p = gl.inline_asm_elementwise(KEEP_PAIRS, "=r,r", [p], dtype=k_smem.dtype, is_pure=True,
                                              pack=2)
        acc, m_i, l_i, p, slot, phase, key = attend(
            acc, m_i, l_i, p, q, shared, slot, phase, place, key, end - 1 - cut, row, N_Q, N_K, factor,
            k_scale, c, BLOCK_N, HEAD_DIM, False, IS_CAUSAL, CONSUMERS, STAGES, Q_SLOTS, PING_PONG,
            OVERLAP, FP8, EMULATED, TAU)
        if Q_SLOTS > 1:
            mbarrier.arrive(q_empty.index(place))

        # The last product of this tile runs beside the first of the next. After the last tile there
        # is none: its K and Q are whatever lies there, and nobody reads the result.
        m_last, l_last = m_i, l_i
        b, h, start = read_entry(order, nth + 1)
        next_end, _ = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
        next_first, key = start + c * ROWS, (next_end - 1) * BLOCK_N
        factor, k_scale = query_factor(scale_log2, Q_SCALE, K_SCALE, b, h, next_first, H, GROUP, N_Q,
                                       N_K, FP8)
        place = (nth + 1) % Q_SLOTS * CONSUMERS + c
        if nth + 1 < count:
            mbarrier.wait(q_full.index(place), (nth + 1) // Q_SLOTS & 1)
        next_q = q_smem.index(place).reshape([ROWS, HEAD_DIM])
        qk, acc = products(acc, p, next_q, shared, slot, phase, place, key == 0, c, BLOCK_N, HEAD_DIM,
                           CONSUMERS, Q_SLOTS, PING_PONG, OVERLAP, FP8)
        p_first, m_i, l_i = first_softmax(qk, key_factor(factor, k_scale, key, FP8), next_first, key,
                                          N_Q, N_K, BLOCK_N, MASKED, IS_CAUSAL, FP8, EMULATED, TAU)
        b, h, first = read_entry(order, nth)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(slot))
        slot, phase = next_slot(slot, phase, STAGES)
        # c + min(b, 0) is c, but not known to be: so no address waits in a register for the next tile.
        finish(acc, m_last, l_last, o_desc, LSE, V_SCALE, o_smem.index(c + gl.minimum(b, 0)), b, h,
               first + c * ROWS, H, GROUP, N_Q, BLOCK_N, HEAD_DIM, O_PARTS, FP8)
    tma.store_wait(0)


@gluon.jit
def flash_fwd_hopper_kernel(q_desc, k_desc, v_desc, o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2,
                            ORDER, ENTRIES, H, GROUP, N_Q, N_K,
                            BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, IS_CAUSAL: gl.constexpr,
                            RAGGED: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
                            Q_SLOTS: gl.constexpr, O_PARTS: gl.constexpr, PING_PONG: gl.constexpr,
                            OVERLAP: gl.constexpr, FP8: gl.constexpr, EMULATED: gl.constexpr,
                            TAU: gl.constexpr, REGISTERS: gl.constexpr):
    """Write O and the natural-log LSE of this program's share of all query tiles.

    Args:
        q_desc, k_desc, v_desc, o_desc: descriptors of (B, H, N, D) tensors; with FP8, V is
            (B, H, D, N) and its keys are permuted.
        LSE: pointer to (B, H, N_Q), contiguous float32.
        Q_SCALE, K_SCALE, V_SCALE: with FP8, float32 pointers: a scale for each head and 128 rows of Q
            and of K, and for each head and column of V.
        scale_log2: the positive factor on the logits, times log2(e): exponentials are base 2.
        ORDER: int32 (programs, ENTRIES, 4): how many query tiles a program computes; then the batch,
            head and first row of each; one more entry.
        H: query heads.  GROUP: query heads per key head.  N_Q, N_K: lengths.
        BLOCK_N: rows of a key tile.  HEAD_DIM: D rounded up to a power of 2, at least 32.
        RAGGED: BLOCK_N does not divide N_K.  CONSUMERS: warpgroups of 64 query rows, 2 or 3.
        STAGES, Q_SLOTS: tiles of K and V, and of Q, in flight.  O_PARTS: in how many parts O leaves.
        PING_PONG: warpgroups take turns to multiply.  OVERLAP: PV is asked for before QKᵀ is there, and
            runs under the next softmax; without, a turn also ends later.
        EMULATED: exponentials, of four, that the FMA units compute.  TAU: rescale only when the maximum
            has grown by more, in powers of 2.  REGISTERS: of a consumer's thread.
    """
    dtype: gl.constexpr = q_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, [Q_SLOTS * CONSUMERS, 1, 1, ROWS, HEAD_DIM],
                                       q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    if FP8:
        v_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, HEAD_DIM, BLOCK_N], v_desc.layout)
    else:
        v_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout)
    o_smem = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, 1, 1, ROWS, HEAD_DIM // O_PARTS],
                                       o_desc.layout)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [Q_SLOTS * CONSUMERS, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_SLOTS * CONSUMERS, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for i in gl.static_range(Q_SLOTS * CONSUMERS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(k_full.index(s), count=1)
        mbarrier.init(k_empty.index(s), count=CONSUMERS)
        mbarrier.init(v_full.index(s), count=1)
        mbarrier.init(v_empty.index(s), count=CONSUMERS)
    fence_async_shared()

    shared = (q_smem, k_smem, v_smem, o_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    sizes = (ORDER + gl.program_id(0) * ENTRIES * 4, H, GROUP, N_Q, N_K)
    # Spelled out: a constant that goes through a variable comes out as a tensor.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 0, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG,
                        OVERLAP, FP8, EMULATED, TAU)),
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 1, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG,
                        OVERLAP, FP8, EMULATED, TAU)),
            (producer, (q_desc, k_desc, v_desc, shared, sizes, BLOCK_N, IS_CAUSAL, CONSUMERS, STAGES,
                        Q_SLOTS, FP8)),
        ], [4, 1], [REGISTERS, 40])
    else:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 0, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG,
                        OVERLAP, FP8, EMULATED, TAU)),
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 1, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG,
                        OVERLAP, FP8, EMULATED, TAU)),
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 2, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG,
                        OVERLAP, FP8, EMULATED, TAU)),
            (producer, (q_desc, k_desc, v_desc, shared, sizes, BLOCK_N, IS_CAUSAL, CONSUMERS, STAGES,
                        Q_SLOTS, FP8)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])
