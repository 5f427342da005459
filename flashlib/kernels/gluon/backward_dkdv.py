"""FlashAttention backward for Hopper in Gluon, for wide heads: dK and dV by key tile, dQ by query tile.

Two kernels and seven products, as Triton's, and no atomics, so that gradients are the same bits in
every run. Five products in one kernel need dK, dV and dQ at once, for which an SM has no room at
d = 256. By key tile one warpgroup computes S, P and dV, hands P on, and the other computes dP, dS and
dK: so each holds one accumulator. All products of a key tile are transposed: its keys are rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from flashlib.kernels.aggregates import fields
from flashlib.kernels.gluon.backward_parts import (
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    Options,
    Sizes,
    allocate,
    keep,
    lse_of,
    of_rows,
    place_of,
    query_tiles,
)
from flashlib.kernels.gluon.columns import add_product, by_transposed, no_sum, put, wait_for
from flashlib.kernels.gluon.parts import ROWS, barriers, load_tile, mma_layout, next_slot, store_tile


@fields("p full empty")
class Handed:
    """One tile of P in shared memory, from the warpgroup of dV to that of dK, and its barriers."""


@gluon.jit
def allocate_handed(dtype: gl.constexpr, o):
    """Return `Handed`."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, o.BLOCK_M], dtype)
    handed = Handed(gl.allocate_shared_memory(dtype, [1, ROWS, o.BLOCK_M], layout), barriers(1),
                    barriers(1))
    mbarrier.init(handed.full.index(0), count=1)
    mbarrier.init(handed.empty.index(0), count=1)
    fence_async_shared()
    return handed


@gluon.jit
def fold_values(state, shared, handed, place, LSE, scale_log2, sizes, MASKED: gl.constexpr, o):
    """Add what the queries of a head give to dV, and hand each P on."""
    dv, slot, phase, turn = state
    S_LAYOUT: gl.constexpr = mma_layout(o.BLOCK_M)
    k = shared.fixed_1.index(0).reshape([ROWS, o.HEAD_DIM])
    key = gl.expand_dims(place[2] + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT)), 1)
    begin, end = query_tiles(place[2], sizes, o)
    for tile in range(begin, end):
        q = shared.ring_1.index(slot).reshape([o.BLOCK_M, o.HEAD_DIM])
        do = shared.ring_2.index(slot).reshape([o.BLOCK_M, o.HEAD_DIM])
        row = tile * o.BLOCK_M + gl.arange(0, o.BLOCK_M, gl.SliceLayout(0, S_LAYOUT))
        lse_log2 = lse_of(LSE, row, sizes.N_Q)
        mbarrier.wait(shared.full_1.index(slot), phase)
        zero = gl.zeros([ROWS, o.BLOCK_M], gl.float32, S_LAYOUT)
        s = by_transposed(k, q, zero, False, o.COLUMNS)
        s = warpgroup_mma_wait(0, deps=[s])
        p = gl.exp2(s * scale_log2 - gl.expand_dims(lse_log2, 0))
        if MASKED:
            p = keep(p, gl.expand_dims(row, 0), key, sizes, o)
        p = p.to(handed.p.dtype)
        mbarrier.wait(shared.full_2.index(slot), phase)
        dv = add_product(dv, p, do, o)
        mbarrier.wait(handed.empty.index(0), turn ^ 1)
        handed.p.index(0).store(p)
        mbarrier.arrive(handed.full.index(0))
        dv = wait_for(dv, o)
        mbarrier.arrive(shared.empty_1.index(slot))
        mbarrier.arrive(shared.empty_2.index(slot))
        slot, phase = next_slot(slot, phase, o.STAGES)
        turn ^= 1
    return dv, slot, phase, turn


@gluon.jit
def fold_keys(state, shared, handed, place, DELTA, scale_log2, sizes, MASKED: gl.constexpr, o):
    """Add what the queries of a head give to dK / scale."""
    dk, slot, phase, turn = state
    S_LAYOUT: gl.constexpr = mma_layout(o.BLOCK_M)
    v = shared.fixed_2.index(0).reshape([ROWS, o.HEAD_DIM])
    key = gl.expand_dims(place[2] + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT)), 1)
    begin, end = query_tiles(place[2], sizes, o)
    for tile in range(begin, end):
        q = shared.ring_1.index(slot).reshape([o.BLOCK_M, o.HEAD_DIM])
        do = shared.ring_2.index(slot).reshape([o.BLOCK_M, o.HEAD_DIM])
        row = tile * o.BLOCK_M + gl.arange(0, o.BLOCK_M, gl.SliceLayout(0, S_LAYOUT))
        delta = of_rows(DELTA, row, sizes.N_Q)
        mbarrier.wait(shared.full_2.index(slot), phase)
        zero = gl.zeros([ROWS, o.BLOCK_M], gl.float32, S_LAYOUT)
        dp = by_transposed(v, do, zero, False, o.COLUMNS)
        dp = warpgroup_mma_wait(0, deps=[dp])
        dp = dp - gl.expand_dims(delta, 0)
        if MASKED:
            dp = keep(dp, gl.expand_dims(row, 0), key, sizes, o)
        mbarrier.wait(handed.full.index(0), turn)
        p = handed.p.index(0).load(S_LAYOUT)
        mbarrier.arrive(handed.empty.index(0))
        ds = (p.to(gl.float32) * dp).to(handed.p.dtype)
        mbarrier.wait(shared.full_1.index(slot), phase)
        dk = wait_for(add_product(dk, ds, q, o), o)
        mbarrier.arrive(shared.empty_1.index(slot))
        mbarrier.arrive(shared.empty_2.index(slot))
        slot, phase = next_slot(slot, phase, o.STAGES)
        turn ^= 1
    return dk, slot, phase, turn


@gluon.jit
def by_key(X, out_desc, factor, scale_log2, shared, handed, place, sizes, IS_VALUE: gl.constexpr, o):
    """Compute dV of a key tile, where X is the lse, or dK, where it is delta: one warpgroup."""
    MASKED: gl.constexpr = o.IS_CAUSAL or sizes.window is not None
    b, hk, start = place
    state = no_sum(o), 0, 0, 0
    mbarrier.wait(shared.fixed_full.index(0), 0)
    for member in range(sizes.GROUP):
        x = X + (b * sizes.H + hk * sizes.GROUP + member).to(gl.int64) * sizes.N_Q
        if IS_VALUE:
            state = fold_values(state, shared, handed, place, x, scale_log2, sizes, MASKED, o)
        else:
            state = fold_keys(state, shared, handed, place, x, scale_log2, sizes, MASKED, o)
    # Only the warpgroup of dV reads K, and only that of dK reads V.
    tile = shared.fixed_1.index(0) if IS_VALUE else shared.fixed_2.index(0)
    put(state[0], factor, tile.reshape([ROWS, o.HEAD_DIM]), o)
    fence_async_shared()
    store_tile(out_desc, [b, hk, start, 0], tile)
    tma.store_wait(0)


@gluon.jit
def ask_by_key(q_desc, k_desc, v_desc, do_desc, shared, place, sizes, o):
    """Ask for a key tile, and for the tiles of Q and dO that see it, as slots become free."""
    b, hk, start = place
    mbarrier.expect(shared.fixed_full.index(0), 2 * k_desc.block_type.nbytes)
    load_tile(k_desc, [b, hk, start, 0], shared.fixed_full.index(0), shared.fixed_1.index(0))
    load_tile(v_desc, [b, hk, start, 0], shared.fixed_full.index(0), shared.fixed_2.index(0))
    slot, phase = 0, 1                                      # the first wait for a free slot passes
    begin, end = query_tiles(start, sizes, o)
    for member in range(sizes.GROUP):
        h = hk * sizes.GROUP + member
        for tile in range(begin, end):
            row = tile * o.BLOCK_M
            mbarrier.wait(shared.empty_1.index(slot), phase)
            mbarrier.expect(shared.full_1.index(slot), q_desc.block_type.nbytes)
            load_tile(q_desc, [b, h, row, 0], shared.full_1.index(slot), shared.ring_1.index(slot))
            mbarrier.wait(shared.empty_2.index(slot), phase)
            mbarrier.expect(shared.full_2.index(slot), do_desc.block_type.nbytes)
            load_tile(do_desc, [b, h, row, 0], shared.full_2.index(slot), shared.ring_2.index(slot))
            slot, phase = next_slot(slot, phase, o.STAGES)


@gluon.jit(do_not_specialize=["H", "GROUP", "N_Q", "N_K", "LEFT", "RIGHT", "TOGETHER"])
def flash_bwd_dkdv_hopper_kernel(q_desc, k_desc, v_desc, do_desc, LSE, DELTA, dk_desc, dv_desc, scale,
                                 scale_log2, H, GROUP, N_Q, N_K, LEFT, RIGHT, TOGETHER,
                                 BLOCK_M: gl.constexpr, IS_CAUSAL: gl.constexpr,
                                 STAGES: gl.constexpr, COLUMNS: gl.constexpr):
    """Write dK and dV of one key tile of 64 rows.

    Args:
        q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc: descriptors of (B, H, N, D) tensors.
        LSE, DELTA: pointers to (B, H, N_Q), contiguous float32: the natural-log lse, and
            rowsum(dO ∘ O) − dlse.
        scale: the factor on the logits.  scale_log2: times log2(e).
        H: query heads.  GROUP: query heads per key head.  N_Q, N_K: lengths.
        LEFT, RIGHT: None, or row i sees keys i + N_K − N_Q − LEFT … i + N_K − N_Q + RIGHT.
        TOGETHER: heads whose tiles are computed side by side, so that they find each other's in L2.
        BLOCK_M: rows of a query tile.  STAGES: tiles of Q and of dO in flight.
        COLUMNS: as in `flash_fwd_hopper_kernel`.

    Rows beyond N_Q need no mask: their Q and dO come as zeros. Nor do keys beyond N_K: nobody writes
    their rows of dK and dV.
    """
    HEAD_DIM: gl.constexpr = q_desc.block_type.shape[3]     # D rounded up to a power of 2
    o = Options(BLOCK_M, ROWS, HEAD_DIM, IS_CAUSAL, False, STAGES, STAGES, COLUMNS)
    shared = allocate(k_desc, q_desc, 1, o)
    handed = allocate_handed(q_desc.dtype, o)
    window = None if LEFT is None else (LEFT, RIGHT)
    sizes = Sizes(H, GROUP, N_Q, N_K, window)
    tiles = gl.cdiv(N_K, ROWS)
    head, tile = place_of(gl.program_id(0), gl.num_programs(0) // tiles, tiles, TOGETHER, False)
    place = head // (H // GROUP), head % (H // GROUP), tile * ROWS
    gl.warp_specialize([
        (by_key, (LSE, dv_desc, 1.0, scale_log2, shared, handed, place, sizes, True, o)),
        (by_key, (DELTA, dk_desc, scale, scale_log2, shared, handed, place, sizes, False, o)),
        (ask_by_key, (q_desc, k_desc, v_desc, do_desc, shared, place, sizes, o)),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
