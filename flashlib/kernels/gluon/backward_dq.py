"""dQ of wide heads for Hopper in Gluon, by query tile: K and V go by.

Each of two warpgroups has 64 rows of Q and dO. A product of its own for S, and one for dP, spare dQ's
sums the atomics. dK and dV are `backward_dkdv`'s.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from flashlib.kernels.gluon.backward_parts import (
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    SAME,
    Options,
    Sizes,
    allocate,
    keep,
    lse_of,
    of_rows,
    place_of,
)
from flashlib.kernels.gluon.columns import add_product, by_transposed, no_sum, put, wait_for
from flashlib.kernels.gluon.parts import ROWS, key_tiles, load_tile, mma_layout, next_slot, store_tile


@gluon.jit
def visited(start, sizes, o):
    """Return (begin, end), counted in key tiles: the 128 rows from `start` see keys of these."""
    begin, _, _, end = key_tiles(start, sizes.N_Q, sizes.N_K, sizes.window, 2 * ROWS, o.BLOCK_N,
                                 o.IS_CAUSAL)
    return begin, end


@gluon.jit
def fold_keys(shared, statistics, row, tiles, scale_log2, sizes, c: gl.constexpr,
              MASKED: gl.constexpr, o):
    """Return dQ / scale of the 64 rows of warpgroup c."""
    dq = no_sum(o)
    slot, phase, v_slot, v_phase = 0, 0, 0, 0
    lse_log2, delta = statistics
    S_LAYOUT: gl.constexpr = mma_layout(o.BLOCK_N)
    for tile in range(tiles[0], tiles[1]):
        here = gl.inline_asm_elementwise(SAME, "=r,r", [slot * 0 + c], dtype=gl.int32, is_pure=False,
                                         pack=1)
        q = shared.fixed_1.index(here).reshape([ROWS, o.HEAD_DIM])
        do = shared.fixed_2.index(here).reshape([ROWS, o.HEAD_DIM])
        k = shared.ring_1.index(slot).reshape([o.BLOCK_N, o.HEAD_DIM])
        v = shared.ring_2.index(v_slot).reshape([o.BLOCK_N, o.HEAD_DIM])
        zero = gl.zeros([ROWS, o.BLOCK_N], gl.float32, S_LAYOUT)
        mbarrier.wait(shared.full_1.index(slot), phase)
        s = by_transposed(q, k, zero, False, o.COLUMNS)
        mbarrier.wait(shared.full_2.index(v_slot), v_phase)
        dp = by_transposed(do, v, zero, False, o.COLUMNS)
        s = warpgroup_mma_wait(1 if o.COLUMNS == o.HEAD_DIM else 2, deps=[s])
        p = gl.exp2(s * scale_log2 - gl.expand_dims(lse_log2, 1))
        dp = warpgroup_mma_wait(0, deps=[dp])
        mbarrier.arrive(shared.empty_2.index(v_slot))
        ds = p * (dp - gl.expand_dims(delta, 1))
        if MASKED:
            key = tile * o.BLOCK_N + gl.arange(0, o.BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
            ds = keep(ds, gl.expand_dims(row, 1), gl.expand_dims(key, 0), sizes, o)
        dq = wait_for(add_product(dq, ds.to(shared.ring_1.dtype), k, o), o)
        mbarrier.arrive(shared.empty_1.index(slot))
        slot, phase = next_slot(slot, phase, o.STAGES)
        v_slot, v_phase = next_slot(v_slot, v_phase, o.STAGES_2)
    return dq


@gluon.jit
def by_query(dq_desc, LSE, DELTA, scale, scale_log2, shared, place, sizes, c: gl.constexpr, o):
    """Compute dQ of 64 rows: those of warpgroup c."""
    MASKED: gl.constexpr = o.IS_CAUSAL or o.RAGGED or sizes.window is not None
    b, h, start = place
    row = start + c * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, mma_layout(o.BLOCK_N)))
    head = (b * sizes.H + h).to(gl.int64) * sizes.N_Q
    lse_log2 = lse_of(LSE + head, row, sizes.N_Q)
    statistics = lse_log2, of_rows(DELTA + head, row, sizes.N_Q)
    mbarrier.wait(shared.fixed_full.index(0), 0)
    dq = fold_keys(shared, statistics, row, visited(start, sizes, o), scale_log2, sizes, c, MASKED, o)
    tile = shared.fixed_1.index(c)                          # only this warpgroup reads its Q
    put(dq, scale, tile.reshape([ROWS, o.HEAD_DIM]), o)
    fence_async_shared()
    store_tile(dq_desc, [b, h, start + c * ROWS, 0], tile)
    tma.store_wait(0)


@gluon.jit
def ask_by_query(q_desc, k_desc, v_desc, do_desc, shared, place, sizes, o):
    """Ask for 128 rows of Q and dO, and for the tiles of K and V that they see."""
    b, h, start = place
    mbarrier.expect(shared.fixed_full.index(0), 4 * q_desc.block_type.nbytes)
    for c in gl.static_range(2):
        load_tile(q_desc, [b, h, start + c * ROWS, 0], shared.fixed_full.index(0),
                  shared.fixed_1.index(c))
        load_tile(do_desc, [b, h, start + c * ROWS, 0], shared.fixed_full.index(0),
                  shared.fixed_2.index(c))
    h = h // sizes.GROUP
    slot, phase, v_slot, v_phase = 0, 1, 0, 1
    begin, end = visited(start, sizes, o)
    for tile in range(begin, end):
        key = tile * o.BLOCK_N
        mbarrier.wait(shared.empty_1.index(slot), phase)
        mbarrier.expect(shared.full_1.index(slot), k_desc.block_type.nbytes)
        load_tile(k_desc, [b, h, key, 0], shared.full_1.index(slot), shared.ring_1.index(slot))
        mbarrier.wait(shared.empty_2.index(v_slot), v_phase)
        mbarrier.expect(shared.full_2.index(v_slot), v_desc.block_type.nbytes)
        load_tile(v_desc, [b, h, key, 0], shared.full_2.index(v_slot), shared.ring_2.index(v_slot))
        slot, phase = next_slot(slot, phase, o.STAGES)
        v_slot, v_phase = next_slot(v_slot, v_phase, o.STAGES_2)


@gluon.jit(do_not_specialize=["H", "GROUP", "N_Q", "N_K", "LEFT", "RIGHT", "TOGETHER"])
def flash_bwd_dq_hopper_kernel(q_desc, k_desc, v_desc, do_desc, LSE, DELTA, dq_desc, scale, scale_log2,
                               H, GROUP, N_Q, N_K, LEFT, RIGHT, TOGETHER,
                               BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr,
                               RAGGED: gl.constexpr, STAGES: gl.constexpr, V_STAGES: gl.constexpr,
                               COLUMNS: gl.constexpr):
    """Write dQ of one query tile of 128 rows.

    BLOCK_N: rows of a key tile.  RAGGED: BLOCK_N does not divide N_K.  STAGES, V_STAGES: tiles of K and
    of V in flight. All others as in `flash_bwd_dkdv_hopper_kernel`.
    """
    HEAD_DIM: gl.constexpr = q_desc.block_type.shape[3]
    o = Options(ROWS, BLOCK_N, HEAD_DIM, IS_CAUSAL, RAGGED, STAGES, V_STAGES, COLUMNS)
    shared = allocate(q_desc, k_desc, 2, o)
    window = None if LEFT is None else (LEFT, RIGHT)
    sizes = Sizes(H, GROUP, N_Q, N_K, window)
    tiles = gl.cdiv(N_Q, 2 * ROWS)
    head, tile = place_of(gl.program_id(0), gl.num_programs(0) // tiles, tiles, TOGETHER, IS_CAUSAL)
    place = head // H, head % H, tile * 2 * ROWS
    gl.warp_specialize([
        (by_query, (dq_desc, LSE, DELTA, scale, scale_log2, shared, place, sizes, 0, o)),
        (by_query, (dq_desc, LSE, DELTA, scale, scale_log2, shared, place, sizes, 1, o)),
        (ask_by_query, (q_desc, k_desc, v_desc, do_desc, shared, place, sizes, o)),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
