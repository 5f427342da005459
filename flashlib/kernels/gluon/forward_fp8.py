"""FlashAttention with e4m3 operands for Hopper in Gluon, in which QKᵀ runs one key tile ahead.

Shah et al. 2024, arXiv:2407.08608, section 3.3. Producer, consumers and turns are those of
`forward`. In 8 bits the products are so short that it pays to have the next logits at hand when a
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

from flashlib.kernels.gluon.parts import (
    ROWS,
    Options,
    Work,
    allocate,
    finish,
    key_tiles,
    mma_layout,
    my_turn,
    next_slot,
    next_turn,
    producer,
    read_entry,
    registers_of,
)
from flashlib.kernels.gluon.softmax import rescale, softmax_step, visible

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
def ask_scores(place, shared, slot, phase, o):
    """Issue S = QKᵀ of a key tile."""
    q = shared.q.index(place).reshape([ROWS, o.HEAD_DIM])
    k = shared.k.index(slot).reshape([o.BLOCK_N, o.HEAD_DIM])
    mbarrier.wait(shared.k_full.index(slot), phase)
    zero = gl.zeros([ROWS, o.BLOCK_N], gl.float32, mma_layout(o.BLOCK_N, 4, DEPTH))
    return warpgroup_mma(q, k.permute([1, 0]), zero, use_acc=False, is_async=True)


@gluon.jit
def attend(state, shared, ring, nth, upcoming, keys, steps, row, work, factors, c: gl.constexpr,
           MASKED: gl.constexpr, o):
    """Fold `steps` key tiles into (acc, m, ℓ); qk holds the first one's logits.

    `keys` are the rows of K at which the first of these tiles begins, and the last of all. `upcoming`
    says what follows on query tile number `nth`: the row of the next one's first key tile, its number,
    and the row of its last. `factors` are the factor on the logits but for K's scale, and those scales.
    """
    acc, m_i, l_i, qk = state
    slot, phase = ring
    key, last = keys
    next_key, after, next_last = upcoming
    factor, K_SCALE = factors
    S_LAYOUT: gl.constexpr = mma_layout(o.BLOCK_N, 4, DEPTH)
    for _ in range(steps):
        tile_factor = factor * gl.load(K_SCALE + key // SCALED_ROWS)
        ahead = gl.where(key == last, next_key, key - o.BLOCK_N)
        tile = gl.where(key == last, after, nth)
        place = tile % o.Q_SLOTS * o.CONSUMERS + c
        if o.PING_PONG:
            my_turn(slot, c)
        mbarrier.wait(shared.q_full.index(place), tile // o.Q_SLOTS & 1)
        qk_ahead = ask_scores(place, shared, slot, phase, o)
        if o.PING_PONG:
            next_turn(slot, c, o.CONSUMERS)
        if MASKED:
            col = key + gl.arange(0, o.BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
            qk = visible(qk, row, col, work.N_Q, work.N_K, work.window, o.IS_CAUSAL,
                         o.RAGGED)
        p, m_i, l_i, alpha = softmax_step(qk, tile_factor, m_i, l_i, MASKED, 0, OFFSET)
        p = as_operand(p, o.BLOCK_N, o.HEAD_DIM)
        acc = rescale(acc, alpha)
        v = shared.v.index(slot).reshape([o.HEAD_DIM, o.BLOCK_N]).permute([1, 0])
        mbarrier.wait(shared.v_full.index(slot), phase)
        acc = warpgroup_mma(p, v, acc, is_async=True)
        qk, acc = warpgroup_mma_wait(0, deps=[qk_ahead, acc])
        mbarrier.arrive(shared.k_empty.index(slot))
        mbarrier.arrive(shared.v_empty.index(slot))
        last_ahead = gl.where(key == last, next_last, last)
        mbarrier.arrive(shared.q_empty.index(place), pred=ahead == last_ahead)
        slot, phase = next_slot(slot, phase, o.STAGES)
        key -= o.BLOCK_N
    return acc, m_i, l_i, qk, slot, phase, key


@gluon.jit
def consumer(o_desc, LSE, scales, scale_log2, shared, work, c: gl.constexpr, o):
    """Multiply and exponentiate: 64 query rows of each tile are warpgroup c's."""
    Q_SCALE, K_SCALE, V_SCALE = scales
    MASKED: gl.constexpr = o.IS_CAUSAL or o.RAGGED or work.window is not None
    TILE_M: gl.constexpr = o.CONSUMERS * ROWS
    S_LAYOUT: gl.constexpr = mma_layout(o.BLOCK_N, 4, DEPTH)
    O_LAYOUT: gl.constexpr = mma_layout(o.HEAD_DIM, 4, DEPTH)
    slot, phase = 0, 0
    count = gl.load(work.order)

    # The very first product has no softmax beside it.
    _, _, start = read_entry(work.order, 0)
    begin, _, _, end = key_tiles(start, work.N_Q, work.N_K, work.window, TILE_M, o.BLOCK_N,
                                 o.IS_CAUSAL)
    mbarrier.wait(shared.q_full.index(c), 0)
    if o.PING_PONG and c == o.CONSUMERS - 1:                # warpgroup 0 has the first turn
        next_turn(slot, c, o.CONSUMERS)
    qk = ask_scores(c, shared, slot, phase, o)
    qk = warpgroup_mma_wait(0, deps=[qk])
    mbarrier.wait(shared.v_full.index(slot), phase)         # no V comes with the first K
    mbarrier.arrive(shared.k_empty.index(slot))
    mbarrier.arrive(shared.v_empty.index(slot))
    mbarrier.arrive(shared.q_empty.index(c), pred=end - begin == 1)
    slot, phase = next_slot(slot, phase, o.STAGES)
    for nth in range(count):
        b, h, start = read_entry(work.order, nth)
        begin, whole, cut, end = key_tiles(start, work.N_Q, work.N_K, work.window, TILE_M, o.BLOCK_N,
                                           o.IS_CAUSAL)
        key, first = (end - 1) * o.BLOCK_N, start + c * ROWS
        row = first + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        key_head = b * (work.H // work.GROUP) + h // work.GROUP
        blocks = gl.cdiv(work.N_Q, SCALED_ROWS)
        block = gl.minimum(first // SCALED_ROWS, blocks - 1)
        factor = scale_log2 * gl.load(Q_SCALE + (b * work.H + h) * blocks + block)
        factors = factor, K_SCALE + key_head * gl.cdiv(work.N_K, SCALED_ROWS)
        # The last step asks for the next query tile's first logits. After the last tile there is none:
        # its Q and K are whatever lies there, and nobody reads the result.
        _, _, next_start = read_entry(work.order, nth + 1)
        next_begin, _, _, next_end = key_tiles(next_start, work.N_Q, work.N_K, work.window, TILE_M,
                                               o.BLOCK_N, o.IS_CAUSAL)
        upcoming = (next_end - 1) * o.BLOCK_N, gl.minimum(nth + 1, count - 1), next_begin * o.BLOCK_N
        acc = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, O_LAYOUT)
        m_i = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        l_i = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
        steps = end - begin
        cut_right = gl.minimum(end - cut, steps)
        cut_left = 0
        if work.window is not None:
            cut_left = gl.minimum(whole - begin, steps - cut_right)
        if MASKED:                                          # the tiles that a mask cuts through
            acc, m_i, l_i, qk, slot, phase, key = attend(
                (acc, m_i, l_i, qk), shared, (slot, phase), nth, upcoming, (key, begin * o.BLOCK_N),
                cut_right, row, work, factors, c, True, o)
        acc, m_i, l_i, qk, slot, phase, key = attend(
            (acc, m_i, l_i, qk), shared, (slot, phase), nth, upcoming, (key, begin * o.BLOCK_N),
            steps - cut_right - cut_left, row, work, factors, c, False, o)
        if work.window is not None:                         # those that its left side cuts through
            acc, m_i, l_i, qk, slot, phase, key = attend(
                (acc, m_i, l_i, qk), shared, (slot, phase), nth, upcoming, (key, begin * o.BLOCK_N),
                cut_left, row, work, factors, c, True, o)
        b, h, start = read_entry(work.order, nth)           # anew: so nothing waits in a register
        key_head = b * (work.H // work.GROUP) + h // work.GROUP
        column = gl.arange(0, o.HEAD_DIM, gl.SliceLayout(0, O_LAYOUT))
        acc = acc * gl.expand_dims(gl.load(V_SCALE + key_head * o.HEAD_DIM + column), 0)
        finish((acc,), m_i, l_i, o_desc, LSE, shared.o.index(c + gl.minimum(b, 0)),
               (b, h, start + c * ROWS), work, OFFSET, o)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["ENTRIES", "H", "GROUP", "N_Q", "N_K", "LEFT", "RIGHT"])
def flash_fwd_fp8_kernel(q_desc, k_desc, v_desc, o_desc, LSE, Q_SCALE, K_SCALE, V_SCALE, scale_log2,
                         ORDER, ENTRIES, H, GROUP, N_Q, N_K, LEFT, RIGHT,
                         BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
                         CONSUMERS: gl.constexpr, STAGES: gl.constexpr, Q_SLOTS: gl.constexpr,
                         PING_PONG: gl.constexpr):
    """Write O and the natural-log LSE of this program's share of all query tiles.

    Args:
        q_desc, k_desc, o_desc: descriptors of (B, H, N, D) tensors.
        v_desc: of (B, H, D, N): a product wants it transposed; its keys are permuted.
        Q_SCALE, K_SCALE, V_SCALE: float32 pointers: a scale for each head and 128 rows of Q and of K,
            and for each head and column of V.
        PING_PONG: warpgroups take turns to ask for logits.
        All others: as in `flash_fwd_hopper_kernel`.
    """
    HEAD_DIM: gl.constexpr = q_desc.block_type.shape[3]     # D: 64, 128 or 256
    REGISTERS: gl.constexpr = registers_of(CONSUMERS, HEAD_DIM)
    o = Options(BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED, CONSUMERS, STAGES, Q_SLOTS, 1, PING_PONG,
                True, True, 0, 0.0, HEAD_DIM)
    shared = allocate(q_desc, k_desc, v_desc, o_desc, o)
    window = None if LEFT is None else (LEFT, RIGHT)
    work = Work(ORDER + gl.program_id(0) * ENTRIES * 4, H, GROUP, N_Q, N_K, window, None)
    scales = Q_SCALE, K_SCALE, V_SCALE
    # Spelled out: a constant that goes through a variable comes out as a tensor.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, scales, scale_log2, shared, work, 0, o)),
            (consumer, (o_desc, LSE, scales, scale_log2, shared, work, 1, o)),
            (producer, (q_desc, k_desc, v_desc, shared, work, True, o)),
        ], [4, 1], [REGISTERS, 40])
    else:
        gl.warp_specialize([
            (consumer, (o_desc, LSE, scales, scale_log2, shared, work, 0, o)),
            (consumer, (o_desc, LSE, scales, scale_log2, shared, work, 1, o)),
            (consumer, (o_desc, LSE, scales, scale_log2, shared, work, 2, o)),
            (producer, (q_desc, k_desc, v_desc, shared, work, True, o)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])
