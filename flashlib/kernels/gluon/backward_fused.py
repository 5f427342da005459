"""FlashAttention backward for Hopper in Gluon, up to 128 columns: five products in one kernel.

A program has a key tile of 128 rows and meets every query tile that sees it. Two warpgroups have 64
keys each; all their products are transposed, keys along the rows. dK and dV stay in registers. dQ
gathers over programs, in float32 sums to which the copy engine adds. At 128 columns the two warpgroups
make half of dQ's columns each, at 32 and 64 a third warpgroup makes all of dQ.

The sums are the same bits in every run, because each query tile has a lock that lets its programs add
in one order: of a head the last key tile first. Programs take their numbers from a counter when they
start, last key tiles first, and so wait only for programs that have started before them: whatever else
runs on the GPU, the lowest number that has not ended waits for nobody. Without a mask a program starts
at a query tile of its own and comes round, so that no two meet at one tile; what it adds after it has
come round goes to a second sum, or programs would wait for one another in a circle. Under a causal mask
a head's last key tile has the least to do: its programs follow one another closely without a wait, but
the longest would end the kernel. So the last heads rise: they begin with their first key tile, and wait
a little. Or all heads go in waves of as many programs as there are SMs. Those of the first start
together, each two query tiles after the one before: the last key tile adds first. The first one ends
last: so the next wave rises, and all end together without a wait.
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

from flashlib.kernels.gluon.backward_parts import SAME, Options, Sizes, place_of, query_tiles
from flashlib.kernels.gluon.columns import add_product, by_transposed, no_sum, put, wait_for
from flashlib.kernels.gluon.fused_parts import (
    BEGIN,
    GIVE,
    TAKE,
    UNLESS_0,
    add_to,
    allocate_fused,
    apart,
    half_of_dq,
    hand_on,
    held,
    keep_seen,
    parts_of,
    reduce_tile,
    registers_of,
)
from flashlib.kernels.gluon.parts import (
    ROWS,
    load_tile,
    meet,
    mma_layout,
    my_turn,
    next_slot,
    store_tile,
)


@gluon.jit
def first_of(tile, tiles, end):
    """Return the query tile at which key tile `tile` starts without a mask: each its own, two apart."""
    return gl.minimum(2 * tile, tile * end // tiles)


@gluon.jit
def walk_of(tile, tiles, sizes, o):
    """Return (begin, end, start, cut) of a key tile, counted in query tiles.

    The program visits begin … end, from `start` and, when it has come to the end, from `begin`. A mask
    cuts the first `cut` tiles that it visits.
    """
    begin, end = query_tiles(tile * o.BLOCK_N, sizes, o)
    end = gl.maximum(end, begin)
    start, cut = begin, 0
    if sizes.window is not None:
        cut = end - begin
    elif o.IS_CAUSAL:
        last = tile * o.BLOCK_N + o.BLOCK_N - 1 - (sizes.N_K - sizes.N_Q)
        cut = gl.minimum(gl.cdiv(gl.maximum(last, 0), o.BLOCK_M), end) - begin
        cut = gl.maximum(cut, 0)
    else:
        start = first_of(tile, tiles, end)
    if o.RAGGED:
        cut = gl.where(tile == tiles - 1, end - begin, cut)
    return begin, end, start, cut


@gluon.jit
def seat_of(number, heads, tiles, TOGETHER, IN_WAVES, WAVE, o):
    """Return (head, tile, wave) of a program by its number; see the top of this file.

    wave: (start, stop, rising), which key tiles add between others, and whether the first adds first.
    """
    start, stop, rising = 0, tiles, 0
    others = heads - IN_WAVES
    if number < others * tiles:
        head, tile = place_of(number, others, tiles, TOGETHER, True)
    else:
        beside = gl.where(others > 0, IN_WAVES, TOGETHER)
        head, place = place_of(number - others * tiles, IN_WAVES, tiles, beside, False)
        start = place // WAVE * WAVE
        stop = gl.minimum(start + WAVE, tiles)
        rising = gl.where(WAVE > 1, (head // beside * gl.cdiv(tiles, WAVE) + start // WAVE) & 1, 1)
        tile = gl.where(rising > 0, place, start + stop - 1 - place)
        head += others
    return head, tile, (start, stop, rising)


@gluon.jit
def turn_of(m, tile, tiles, end, around, wave, sizes, o):
    """Return how many programs add to a sum of query tile m before that of key tile `tile`."""
    right = 0
    if sizes.window is not None:
        right = sizes.window[1]
    if o.IS_CAUSAL or sizes.window is not None:
        last_row = m * o.BLOCK_M + o.BLOCK_M - 1 + sizes.N_K - sizes.N_Q
        first = gl.minimum((last_row + right) // o.BLOCK_N, tiles - 1)
    else:
        started = gl.minimum(gl.maximum(m // 2, ((m + 1) * tiles - 1) // end), tiles - 1)
        first = gl.where(around, tiles - 1, started)
    turn = first - tile
    if o.IS_CAUSAL:
        start, stop, rising = wave
        turn = gl.where(rising > 0, tile, start + gl.minimum(first, stop - 1) - tile)
    return turn


@gluon.jit
def step(sums, operands, tiles, bars, at, m, first_key, scale_log2, sizes, w: gl.constexpr,
         MASKED: gl.constexpr, o):
    """Add what a query tile gives to dK and dV, and see to its dQ.

    `at`: the slot of the ring, its phase, and the number of the step.
    """
    dk, dv = sums
    k, v = operands
    slot, phase, i = at
    buf, turn = i & 1, i >> 1 & 1
    S_LAYOUT: gl.constexpr = mma_layout(ROWS)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, mma_layout(o.HEAD_DIM), 2)
    BY_ROW: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    dtype: gl.constexpr = tiles.k.dtype
    if not apart(o):                                        # addresses that wait in no register
        here = gl.inline_asm_elementwise(SAME, "=r,r", [slot * 0 + w], dtype=gl.int32, is_pure=False,
                                         pack=1)
        k = tiles.k.index(here).reshape([ROWS, o.HEAD_DIM])
        v = tiles.v.index(here).reshape([ROWS, o.HEAD_DIM])
    q = tiles.q.index(slot).reshape([ROWS, o.HEAD_DIM])
    do = tiles.do.index(slot).reshape([ROWS, o.HEAD_DIM])
    mbarrier.wait(bars.full.index(slot), phase)
    lse = tiles.lse.index(slot).reshape([ROWS]).load(BY_ROW)                # −lse / scale
    delta = tiles.delta.index(slot).reshape([ROWS]).load(BY_ROW)            # −delta
    zero = gl.zeros([ROWS, ROWS], gl.float32, S_LAYOUT)
    s, dp = gl.inline_asm_elementwise(
        BEGIN, "=&r,=r,r,r", [zero + gl.expand_dims(lse, 0), zero + gl.expand_dims(delta, 0)],
        dtype=(gl.float32, gl.float32), is_pure=False, pack=1)
    s = by_transposed(k, q, s, True, o.COLUMNS)
    dp = by_transposed(v, do, dp, True, o.COLUMNS)
    s = warpgroup_mma_wait(1 if o.COLUMNS == o.HEAD_DIM else 2, deps=[s])
    p = gl.exp2(s * scale_log2)
    if MASKED:
        row = gl.expand_dims(m * ROWS + gl.arange(0, ROWS, BY_ROW), 0)
        key = gl.expand_dims(first_key + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT)), 1)
        p = keep_seen(p, row, key, sizes, o)
    p_operand = gl.convert_layout(p.to(dtype), OPERAND)
    if apart(o):
        dv = add_product(dv, p_operand, do, o)
        dp = warpgroup_mma_wait(1, deps=[dp])
    else:
        dp = warpgroup_mma_wait(0, deps=[dp])
    ds = p * dp
    if MASKED:                                              # a dP that nobody may see can be NaN
        ds = gl.inline_asm_elementwise(UNLESS_0, "=r,r,r", [ds, p], dtype=gl.float32, is_pure=True,
                                       pack=1)
    ds = ds.to(dtype)
    if apart(o):
        mbarrier.wait(bars.ds_empty.index(buf * 2 + w), turn ^ 1)
    tiles.ds.index(buf * 2 + w).store(ds)
    if not apart(o):
        dv = add_product(dv, p_operand, do, o)
    fence_async_shared()
    if apart(o):
        mbarrier.arrive(bars.ds_full.index(buf * 2 + w))
        dk = add_product(dk, ds, q, o)
        dk, dv = wait_for(dk, o), wait_for(dv, o)
    else:
        buf = my_turn(buf, 0)                               # the two warpgroups meet
        dq = half_of_dq(tiles, buf, w, o)
        dk = add_product(dk, ds, q, o)
        dq = warpgroup_mma_wait(len(dk), deps=[dq])
        hand_on(dq, tiles, bars, buf * 2 + w, turn)
        dk, dv = wait_for(dk, o), wait_for(dv, o)
    mbarrier.arrive(bars.empty.index(slot))
    return dk, dv


@gluon.jit
def by_keys(dk_desc, dv_desc, tiles, bars, place, walk, scale, scale_log2, sizes, INTO,
            w: gl.constexpr, o):
    """Compute dK and dV of 64 keys: those of warpgroup w."""
    MASKED: gl.constexpr = o.IS_CAUSAL or o.RAGGED or sizes.window is not None
    b, hk, tile = place
    begin, end, start, cut = walk
    first_key = tile * o.BLOCK_N + w * ROWS
    dk, dv = no_sum(o), no_sum(o)
    mbarrier.wait(bars.fixed_full.index(0), 0)
    k = tiles.k.index(w).reshape([ROWS, o.HEAD_DIM])
    v = tiles.v.index(w).reshape([ROWS, o.HEAD_DIM])
    if held(o, MASKED):
        operands = (k.load(gl.DotOperandLayout(0, mma_layout(ROWS), 2)),
                    v.load(gl.DotOperandLayout(0, mma_layout(ROWS), 2)))
    else:
        operands = k, v
    slot, phase, i = 0, 0, 0
    for _member in range(sizes.GROUP):
        m = start
        if MASKED:
            for _ in range(cut):
                dk, dv = step((dk, dv), operands, tiles, bars, (slot, phase, i), m, first_key,
                              scale_log2, sizes, w, True, o)
                slot, phase = next_slot(slot, phase, o.STAGES)
                i += 1
                m = gl.where(m + 1 == end, begin, m + 1)
        for _ in range(cut, end - begin):
            dk, dv = step((dk, dv), operands, tiles, bars, (slot, phase, i), m, first_key, scale_log2,
                          sizes, w, False, o)
            slot, phase = next_slot(slot, phase, o.STAGES)
            i += 1
    if INTO is not None:
        add_to(dk_desc, dk[0] * scale, place, first_key, INTO, sizes)
        add_to(dv_desc, dv[0], place, first_key, INTO, sizes)
    else:
        if apart(o):                                        # K has been read for dQ, too
            mbarrier.wait(bars.fixed_empty.index(0), 0)
        else:
            my_turn(i, 0)
        put(dk, scale, k, o)
        put(dv, 1.0, v, o)
        fence_async_shared()
        store_tile(dk_desc, [b, hk, first_key, 0], tiles.k.index(w))
        store_tile(dv_desc, [b, hk, first_key, 0], tiles.v.index(w))
        tma.store_wait(0)


@gluon.jit
def by_queries(tiles, bars, walk, sizes, o):
    """Compute dQ of every query tile: at 64 columns its transpose, with Kᵀ in registers."""
    K_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, mma_layout(ROWS), 2)
    begin, end, _start, _cut = walk
    mbarrier.wait(bars.fixed_full.index(0), 0)
    if o.HEAD_DIM == 64:
        k_0 = tiles.k.index(0).reshape([ROWS, o.HEAD_DIM]).permute([1, 0]).load(K_LAYOUT)
        k_1 = tiles.k.index(1).reshape([ROWS, o.HEAD_DIM]).permute([1, 0]).load(K_LAYOUT)
        mbarrier.arrive(bars.fixed_empty.index(0))
    for i in range((end - begin) * sizes.GROUP):
        buf, phase = i & 1, i >> 1 & 1
        dq = gl.zeros([ROWS, o.HEAD_DIM], gl.float32, mma_layout(o.HEAD_DIM))
        for part in gl.static_range(2):
            ds = tiles.ds.index(buf * 2 + part)
            mbarrier.wait(bars.ds_full.index(buf * 2 + part), phase)
            if o.HEAD_DIM == 64:
                dq = warpgroup_mma(k_0 if part == 0 else k_1, ds, dq, use_acc=part > 0, is_async=True)
            else:
                k = tiles.k.index(part).reshape([ROWS, o.HEAD_DIM])
                dq = warpgroup_mma(ds.permute([1, 0]), k, dq, use_acc=part > 0, is_async=True)
        dq = warpgroup_mma_wait(0, deps=[dq])
        mbarrier.arrive(bars.ds_empty.index(buf * 2))
        mbarrier.arrive(bars.ds_empty.index(buf * 2 + 1))
        hand_on(dq, tiles, bars, buf, phase)
    if o.HEAD_DIM != 64:
        mbarrier.arrive(bars.fixed_empty.index(0))


@gluon.jit
def add(sum_desc, LOCKS, tiles, bars, place, walk, heads, wave, sizes, w: gl.constexpr, o):
    """Add every second tile of dQ to its sum, each in its turn; one warp.

    The first to add to a sum stores, so that nobody fills it with zeros.
    """
    PARTS: gl.constexpr = parts_of(o)
    HEIGHT: gl.constexpr = sum_desc.block_type.shape[0]
    b, hk, tile = place
    all_keys, all_queries = gl.cdiv(sizes.N_K, o.BLOCK_N), gl.cdiv(sizes.N_Q, o.BLOCK_M)
    begin, end, start, _cut = walk
    steps, phase = end - begin, 0
    for member in range(sizes.GROUP):
        head = b * sizes.H + hk * sizes.GROUP + member
        for j in range((w + member * steps) & 1, steps, 2):
            m = start + j
            around = m >= end
            m = gl.where(around, m - steps, m)
            turn = turn_of(m, tile, all_keys, end, around, wave, sizes, o)
            at = (around.to(gl.int32) * heads + head) * all_queries + m
            lock = LOCKS + 1 + at
            if turn > 0:
                gl.inline_asm_elementwise(TAKE, "=r,l,r", [lock, turn], dtype=gl.int32,
                                          is_pure=False, pack=1)
            for part in gl.static_range(PARTS):
                mbarrier.wait(bars.dq_full.index(w * PARTS + part), phase)
                row = (at * PARTS + part) * HEIGHT
                if turn > 0:
                    reduce_tile(sum_desc, [row, 0], tiles.dq.index(w * PARTS + part))
                else:
                    store_tile(sum_desc, [row, 0], tiles.dq.index(w * PARTS + part))
            for part in gl.static_range(PARTS):
                tma.store_wait(PARTS - 1 - part)
                mbarrier.arrive(bars.dq_empty.index(w * PARTS + part))
            gl.inline_asm_elementwise(GIVE, "=r,l", [lock], dtype=gl.int32, is_pure=False, pack=1)
            phase ^= 1


@gluon.jit
def ask(q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, tiles, bars, place, walk, sizes, o):
    """Ask for a key tile, and for the tiles of Q and dO that see it, as slots become free."""
    b, hk, tile = place
    begin, end, start, _cut = walk
    mbarrier.expect(bars.fixed_full.index(0), 4 * k_desc.block_type.nbytes)
    for w in gl.static_range(2):
        key = tile * o.BLOCK_N + w * ROWS
        load_tile(k_desc, [b, hk, key, 0], bars.fixed_full.index(0), tiles.k.index(w))
        load_tile(v_desc, [b, hk, key, 0], bars.fixed_full.index(0), tiles.v.index(w))
    slot, phase = 0, 1                                      # the first wait for a free slot passes
    for member in range(sizes.GROUP):
        h = hk * sizes.GROUP + member
        m = start
        for _ in range(begin, end):
            full = bars.full.index(slot)
            mbarrier.wait(bars.empty.index(slot), phase)
            mbarrier.expect(full, 2 * (q_desc.block_type.nbytes + lse_desc.block_type.nbytes))
            load_tile(q_desc, [b, h, m * ROWS, 0], full, tiles.q.index(slot))
            load_tile(lse_desc, [b * sizes.H + h, m * ROWS], full, tiles.lse.index(slot))
            load_tile(do_desc, [b, h, m * ROWS, 0], full, tiles.do.index(slot))
            load_tile(delta_desc, [b * sizes.H + h, m * ROWS], full, tiles.delta.index(slot))
            slot, phase = next_slot(slot, phase, o.STAGES)
            m = gl.where(m + 1 == end, begin, m + 1)


@gluon.jit(do_not_specialize=["H", "GROUP", "N_Q", "N_K", "LEFT", "RIGHT", "TOGETHER",
                               "IN_WAVES", "WAVE"])
def flash_bwd_fused_hopper_kernel(q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dk_desc,
                                  dv_desc, sum_desc, LOCKS, scale, scale_log2, H, GROUP, N_Q, N_K,
                                  LEFT, RIGHT, TOGETHER, IN_WAVES, WAVE, INTO, IS_CAUSAL: gl.constexpr,
                                  RAGGED: gl.constexpr, TILES: gl.constexpr):
    """Write dK and dV of one key tile of 128 rows, and add to the sums of dQ.

    Args:
        q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc: descriptors of (B, H, N, D) tensors.
        lse_desc, delta_desc: descriptors of −lse / scale and of −delta, (B · H, N_Q rounded up to 64).
        sum_desc: descriptor of the float32 sums (n, 256), each tile as `flat` leaves it.
        LOCKS: pointer to int32s, all 0: the counter, and one for each tile of the sums.
        scale: the factor on the logits.  scale_log2: times log2(e).
        H: query heads.  GROUP: query heads per key head.  N_Q, N_K: lengths.
        LEFT, RIGHT: None, or row i sees keys i + N_K − N_Q − LEFT … i + N_K − N_Q + RIGHT.
        TOGETHER: key heads whose tiles are computed side by side.
        IN_WAVES: with a causal mask, how many last heads go in waves: all, or those side by side.
        WAVE: how many key tiles of a head go in a wave; if 1, every wave rises.
        INTO: None, or dk_desc and dv_desc are pointers to float32 sums to which a program adds, and
            this is the strides of batch, head and row of either, and D.
        RAGGED: 128 does not divide N_K.  TILES: how many of Q and of dO are in flight, and COLUMNS, of
            which S and dP are sums.

    Rows beyond N_Q need no mask: their Q, dO and statistics come as zeros.
    """
    HEAD_DIM: gl.constexpr = q_desc.block_type.shape[3]     # D rounded up to a power of 2
    o = Options(ROWS, 2 * ROWS, HEAD_DIM, IS_CAUSAL, RAGGED, TILES[0], 2, TILES[1])
    window = None if LEFT is None else (LEFT, RIGHT)
    sizes = Sizes(H, GROUP, N_Q, N_K, window)
    tiles, bars = allocate_fused(k_desc, q_desc, lse_desc, sum_desc, o)
    key_tiles = gl.cdiv(N_K, o.BLOCK_N)
    key_heads = gl.num_programs(0) // key_tiles
    number = gl.atomic_add(LOCKS, 1)
    meet()                                                  # all have read it where it was handed on
    head, tile, wave = seat_of(number, key_heads, key_tiles, TOGETHER, IN_WAVES, WAVE, o)
    place = head // (H // GROUP), head % (H // GROUP), tile
    walk = walk_of(tile, key_tiles, sizes, o)
    heads = key_heads * GROUP
    if apart(o):
        gl.warp_specialize([
            (by_keys, (dk_desc, dv_desc, tiles, bars, place, walk, scale, scale_log2, sizes, INTO,
                       0, o)),
            (by_keys, (dk_desc, dv_desc, tiles, bars, place, walk, scale, scale_log2, sizes, INTO,
                       1, o)),
            (by_queries, (tiles, bars, walk, sizes, o)),
            (ask, (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, tiles, bars, place, walk,
                   sizes, o)),
            (add, (sum_desc, LOCKS, tiles, bars, place, walk, heads, wave, sizes, 0, o)),
            (add, (sum_desc, LOCKS, tiles, bars, place, walk, heads, wave, sizes, 1, o)),
        ], [4, 4, 1, 1, 1], registers_of(o))
    else:
        gl.warp_specialize([
            (by_keys, (dk_desc, dv_desc, tiles, bars, place, walk, scale, scale_log2, sizes, INTO,
                       0, o)),
            (by_keys, (dk_desc, dv_desc, tiles, bars, place, walk, scale, scale_log2, sizes, INTO,
                       1, o)),
            (ask, (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, tiles, bars, place, walk,
                   sizes, o)),
            (add, (sum_desc, LOCKS, tiles, bars, place, walk, heads, wave, sizes, 0, o)),
            (add, (sum_desc, LOCKS, tiles, bars, place, walk, heads, wave, sizes, 1, o)),
        ], [4, 1, 1, 1], registers_of(o))
