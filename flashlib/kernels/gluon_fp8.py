"""FlashAttention with e4m3 operands for Hopper in Gluon, in which QKᵀ runs one key tile ahead.

Shah et al. 2024, arXiv:2407.08608, section 3.3. Producer, consumers and turns are those of
`gluon_hopper`. In 8 bits the products are so short that it pays to have the next logits at hand when a
softmax ends: a warpgroup holds two tiles of S, which only fit because P has a byte an element. Taught
in notebook 13.
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
    producer,
    read_entry,
    softmax_step,
)

DEPTH = gl.constexpr(32)                                    # what one instruction sums over
SCALED_ROWS = gl.constexpr(128)                             # of Q or K with one scale
OFFSET = gl.constexpr(8.0)                                  # P is at most 2**8: e4m3 ends at 448
# Four float32 become one register of four e4m3, beyond ±448 the nearest of these.
TO_E4M3 = gl.constexpr("""{ .reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
mov.b32 $0, {low, high}; }""")


@gluon.jit
def as_operand(p, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Return P as the left operand of the second product; nothing moves between threads.

    In 8 bits the registers of an operand are laid out otherwise than those of a product. Of 16 columns,
    a thread (t: its place among four) has 2t, 2t + 1, 8 + 2t, 8 + 2t + 1 of S and needs 4t … 4t + 3 of
    P: so its four are called that, and the keys of V are permuted likewise (`fp8.permute_keys`).
    """
    p = p.reshape([ROWS, BLOCK_N // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([ROWS, BLOCK_N])
    p = gl.convert_layout(p, gl.DotOperandLayout(0, mma_layout(HEAD_DIM, 4, DEPTH), 4),
                          assert_trivial=True)
    return gl.inline_asm_elementwise(TO_E4M3, "=r,r,r,r,r", [p], dtype=gl.float8e4nv, is_pure=True,
                                     pack=4)


@gluon.jit
def ask_scores(place, shared, slot, phase, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Issue S = QKᵀ of a key tile."""
    q_smem, k_smem, _v_smem, _o_smem, _q_full, _q_empty, k_full, _k_empty, _v_full, _v_empty = shared
    q = q_smem.index(place).reshape([ROWS, HEAD_DIM])
    k = k_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
    mbarrier.wait(k_full.index(slot), phase)
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, mma_layout(BLOCK_N, 4, DEPTH))
    return warpgroup_mma(q, k.permute([1, 0]), zero, use_acc=False, is_async=True)


@gluon.jit
def attend(acc, m_i, l_i, qk, shared, slot, phase, nth, after, key, next_key, steps, row, N_Q, N_K,
           factor, K_SCALE,
           c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, MASKED: gl.constexpr,
           IS_CAUSAL: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
           Q_SLOTS: gl.constexpr, PING_PONG: gl.constexpr):
    """Fold `steps` key tiles, downwards from `key`, into (acc, m, ℓ); qk holds the first one's logits.

    Query tile `after` follows on number `nth`, with its first key tile at row `next_key`.
    """
    _q_smem, _k_smem, v_smem, _o_smem, q_full, q_empty, _k_full, k_empty, v_full, v_empty = shared
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N, 4, DEPTH)
    O_LAYOUT: gl.constexpr = mma_layout(HEAD_DIM, 4, DEPTH)
    for _ in range(steps):
        tile_factor = factor * gl.load(K_SCALE + key // SCALED_ROWS)
        ahead = gl.where(key == 0, next_key, key - BLOCK_N)
        tile = gl.where(key == 0, after, nth)
        place = tile % Q_SLOTS * CONSUMERS + c
        if PING_PONG:
            my_turn(slot, c)
        mbarrier.wait(q_full.index(place), tile // Q_SLOTS & 1)
        qk_ahead = ask_scores(place, shared, slot, phase, BLOCK_N, HEAD_DIM)
        if PING_PONG:
            next_turn(slot, c, CONSUMERS)
        col = key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
        p, m_i, l_i, alpha = softmax_step(qk, tile_factor, m_i, l_i, row, col, N_Q, N_K, MASKED,
                                          IS_CAUSAL, 0, 0.0, OFFSET)
        p = as_operand(p, BLOCK_N, HEAD_DIM)
        acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT)), 1)
        v = v_smem.index(slot).reshape([HEAD_DIM, BLOCK_N]).permute([1, 0])
        mbarrier.wait(v_full.index(slot), phase)
        acc = warpgroup_mma(p, v, acc, is_async=True)
        qk, acc = warpgroup_mma_wait(0, deps=[qk_ahead, acc])
        mbarrier.arrive(k_empty.index(slot))
        mbarrier.arrive(v_empty.index(slot))
        mbarrier.arrive(q_empty.index(place), pred=ahead == 0)
        slot, phase = next_slot(slot, phase, STAGES)
        key -= BLOCK_N
    return acc, m_i, l_i, qk, slot, phase, key


@gluon.jit
def consumer(o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes,
             c: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, IS_CAUSAL: gl.constexpr,
             RAGGED: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
             Q_SLOTS: gl.constexpr, O_PARTS: gl.constexpr, PING_PONG: gl.constexpr):
    """Multiply and exponentiate: 64 query rows of each tile are warpgroup c's."""
    _q_smem, _k_smem, _v_smem, o_smem, q_full, q_empty, _k_full, k_empty, v_full, v_empty = shared
    order, H, GROUP, N_Q, N_K = sizes
    MASKED: gl.constexpr = IS_CAUSAL or RAGGED
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N, 4, DEPTH)
    O_LAYOUT: gl.constexpr = mma_layout(HEAD_DIM, 4, DEPTH)
    slot, phase = 0, 0
    count = gl.load(order)

    # The very first product has no softmax beside it.
    _, _, start = read_entry(order, 0)
    end, _ = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
    mbarrier.wait(q_full.index(c), 0)
    if PING_PONG and c == CONSUMERS - 1:                    # warpgroup 0 has the first turn
        next_turn(slot, c, CONSUMERS)
    qk = ask_scores(c, shared, slot, phase, BLOCK_N, HEAD_DIM)
    qk = warpgroup_mma_wait(0, deps=[qk])
    mbarrier.wait(v_full.index(slot), phase)                # an empty one
    mbarrier.arrive(k_empty.index(slot))
    mbarrier.arrive(v_empty.index(slot))
    mbarrier.arrive(q_empty.index(c), pred=end == 1)
    slot, phase = next_slot(slot, phase, STAGES)
    for nth in range(count):
        b, h, start = read_entry(order, nth)
        end, masked = key_tiles(start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
        key, first = (end - 1) * BLOCK_N, start + c * ROWS
        row = first + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        key_head = b * (H // GROUP) + h // GROUP
        blocks = gl.cdiv(N_Q, SCALED_ROWS)
        block = gl.minimum(first // SCALED_ROWS, blocks - 1)
        factor = scale_log2 * gl.load(Q_SCALE + (b * H + h) * blocks + block)
        k_scale = K_SCALE + key_head * gl.cdiv(N_K, SCALED_ROWS)
        # The last step asks for the next query tile's first logits. After the last tile there is none:
        # its Q and K are whatever lies there, and nobody reads the result.
        _, _, next_start = read_entry(order, nth + 1)
        next_end, _ = key_tiles(next_start, N_Q, N_K, CONSUMERS * ROWS, BLOCK_N, IS_CAUSAL)
        next_key, after = (next_end - 1) * BLOCK_N, gl.minimum(nth + 1, count - 1)
        acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, O_LAYOUT)
        m_i = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        l_i = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
        cut = gl.minimum(masked, end)
        if MASKED:                                          # the tiles that a mask cuts through
            acc, m_i, l_i, qk, slot, phase, key = attend(
                acc, m_i, l_i, qk, shared, slot, phase, nth, after, key, next_key, cut, row, N_Q, N_K,
                factor, k_scale, c, BLOCK_N, HEAD_DIM, True, IS_CAUSAL, CONSUMERS, STAGES, Q_SLOTS,
                PING_PONG)
        acc, m_i, l_i, qk, slot, phase, key = attend(
            acc, m_i, l_i, qk, shared, slot, phase, nth, after, key, next_key, end - cut, row, N_Q, N_K,
            factor, k_scale, c, BLOCK_N, HEAD_DIM, False, IS_CAUSAL, CONSUMERS, STAGES, Q_SLOTS,
            PING_PONG)
        b, h, start = read_entry(order, nth)                # anew: so nothing waits in a register
        key_head = b * (H // GROUP) + h // GROUP
        column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, O_LAYOUT))
        acc = acc * gl.expand_dims(gl.load(V_SCALE + key_head * HEAD_DIM + column), 0)
        finish(acc, m_i, l_i, o_desc, LSE, o_smem.index(c + gl.minimum(b, 0)), b, h, start + c * ROWS,
               H, N_Q, HEAD_DIM, O_PARTS, OFFSET)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["ENTRIES", "H", "GROUP", "N_Q", "N_K"])
def flash_fwd_fp8_kernel(q_desc, k_desc, v_desc, o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2,
                         ORDER, ENTRIES, H, GROUP, N_Q, N_K,
                         BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, IS_CAUSAL: gl.constexpr,
                         RAGGED: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
                         Q_SLOTS: gl.constexpr, O_PARTS: gl.constexpr, PING_PONG: gl.constexpr,
                         REGISTERS: gl.constexpr):
    """Write O and the natural-log LSE of this program's share of all query tiles.

    Args:
        q_desc, k_desc, o_desc: descriptors of (B, H, N, D) tensors.
        v_desc: of (B, H, D, N): a product wants it transposed; its keys are permuted.
        Q_SCALE, K_SCALE, V_SCALE: float32 pointers: a scale for each head and 128 rows of Q and of K,
            and for each head and column of V.
        HEAD_DIM: D, 64, 128 or 256.
        PING_PONG: warpgroups take turns to ask for logits.
        All others: as in `flash_fwd_hopper_kernel`.
    """
    shared = allocate(q_desc, k_desc, v_desc, o_desc, CONSUMERS, STAGES, Q_SLOTS)
    sizes = (ORDER + gl.program_id(0) * ENTRIES * 4, H, GROUP, N_Q, N_K)
    # Spelled out: a constant that goes through a variable comes out as a tensor.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 0, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG)),
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 1, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG)),
            (producer, (q_desc, k_desc, v_desc, shared, sizes, BLOCK_N, IS_CAUSAL, CONSUMERS, STAGES,
                        Q_SLOTS, True)),
        ], [4, 1], [REGISTERS, 40])
    else:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 0, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG)),
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 1, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG)),
            (consumer, (o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2, shared, sizes, 2, BLOCK_N,
                        HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, O_PARTS, PING_PONG)),
            (producer, (q_desc, k_desc, v_desc, shared, sizes, BLOCK_N, IS_CAUSAL, CONSUMERS, STAGES,
                        Q_SLOTS, True)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])
