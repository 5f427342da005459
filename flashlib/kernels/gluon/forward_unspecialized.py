"""The forward of `forward` without warp specialisation: the warps that compute also ask for tiles.

Here for comparison: notebook 12 measures what specialisation buys. With STAGES = 1 and no OVERLAP,
copy, matmul and softmax take turns, as in a synchronous program.
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

from flashlib.kernels.gluon.parts import (
    LN2,
    key_tiles,
    load_tile,
    meet,
    mma_layout,
    next_slot,
    store_tile,
)
from flashlib.kernels.gluon.softmax import rescale, softmax_step, visible


@gluon.jit
def ask(step, slot, end, k_desc, v_desc, k_smem, v_smem, full, b, h, BLOCK_N: gl.constexpr):
    """Ask for step `step` of `end` + 1: K of that key tile, V of the one before; the last comes first.

    Step 0 has a V all the same, of a tile that exists, because its product with P = 0 must be finite.
    """
    nbytes: gl.constexpr = k_desc.block_type.nbytes
    has_k, has_v = step < end, step <= end
    key = (end - 1 - step) * BLOCK_N
    mbarrier.expect(full.index(slot), 2 * nbytes, pred=has_k & has_v)
    mbarrier.expect(full.index(slot), nbytes, pred=has_k ^ has_v)
    load_tile(k_desc, [b, h, key, 0], full.index(slot), k_smem.index(slot), pred=has_k)
    v_key = gl.minimum(key + BLOCK_N, (end - 1) * BLOCK_N)
    load_tile(v_desc, [b, h, v_key, 0], full.index(slot), v_smem.index(slot), pred=has_v)


@gluon.jit
def flash_fwd_pipelined_kernel(q_desc, k_desc, v_desc, o_desc, LSE, scale_log2, H, GROUP, N_Q, N_K,
                               TILE_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
                               IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr, STAGES: gl.constexpr,
                               OVERLAP: gl.constexpr):
    """Write O and the natural-log LSE of one tile of TILE_M query rows, 16 rows a warp."""
    WARPS: gl.constexpr = gl.num_warps()
    MASKED: gl.constexpr = IS_CAUSAL or RAGGED
    S_LAYOUT: gl.constexpr = mma_layout(BLOCK_N, WARPS)
    O_LAYOUT: gl.constexpr = mma_layout(HEAD_DIM, WARPS)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    dtype: gl.constexpr = q_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, [1, 1, TILE_M, HEAD_DIM], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
    fence_async_shared()

    tile = gl.num_programs(0) - 1 - gl.program_id(0)        # the longest rows of a head first
    tiles_per_head = gl.cdiv(N_Q, TILE_M)
    head, start = tile // tiles_per_head, tile % tiles_per_head * TILE_M
    _, _, _, end = key_tiles(start, N_Q, N_K, None, TILE_M, BLOCK_N, IS_CAUSAL)
    b, h = head // H, head % H
    mbarrier.expect(q_full, q_desc.block_type.nbytes)
    load_tile(q_desc, [b, h, start, 0], q_full, q_smem)
    for s in gl.static_range(STAGES):
        ask(s, s, end, k_desc, v_desc, k_smem, v_smem, full, b, h // GROUP, BLOCK_N)

    row = start + gl.arange(0, TILE_M, gl.SliceLayout(1, S_LAYOUT))
    acc = gl.zeros([TILE_M, HEAD_DIM], gl.float32, O_LAYOUT)
    m_i = gl.full([TILE_M], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    l_i = gl.zeros([TILE_M], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    q = q_smem.reshape([TILE_M, HEAD_DIM])
    p = gl.zeros([TILE_M, BLOCK_N], dtype, P_LAYOUT)
    mbarrier.wait(q_full, 0)
    slot, phase = 0, 0
    for step in range(end):
        k = k_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
        v = v_smem.index(slot).reshape([BLOCK_N, HEAD_DIM])
        mbarrier.wait(full.index(slot), phase)
        qk = warpgroup_mma(q, k.permute([1, 0]), gl.zeros([TILE_M, BLOCK_N], gl.float32, S_LAYOUT),
                           use_acc=False, is_async=True)
        if not OVERLAP:
            qk = warpgroup_mma_wait(0, deps=[qk])
        acc = warpgroup_mma(p, v, acc, is_async=True)       # of the tile before; at step 0, P is 0
        if OVERLAP:
            qk = warpgroup_mma_wait(1, deps=[qk])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])
        col = (end - 1 - step) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
        if MASKED:
            qk = visible(qk, row, col, N_Q, N_K, None, IS_CAUSAL, RAGGED)
        p32, m_i, l_i, alpha = softmax_step(qk, scale_log2, m_i, l_i, MASKED, 0, 0.0)
        if OVERLAP:
            acc = warpgroup_mma_wait(0, deps=[acc])
        meet()                                              # all warps have read the slot
        ask(step + STAGES, slot, end, k_desc, v_desc, k_smem, v_smem, full, b, h // GROUP, BLOCK_N)
        p = gl.convert_layout(p32.to(dtype), P_LAYOUT)
        acc = rescale(acc, alpha)
        slot, phase = next_slot(slot, phase, STAGES)

    mbarrier.wait(full.index(slot), phase)                  # the last V
    acc = warpgroup_mma(p, v_smem.index(slot).reshape([BLOCK_N, HEAD_DIM]), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    l_safe = gl.where(l_i == 0.0, 1.0, l_i)                 # a row that saw nothing: O = 0, lse = −∞
    lse = gl.where(l_i == 0.0, float("-inf"), (m_i + gl.log2(l_safe)) * LN2)
    gl.store(LSE + head.to(gl.int64) * N_Q + row, lse, mask=row < N_Q)
    acc = rescale(acc, 1.0 / l_safe)
    q.store(acc.to(dtype))                                  # O leaves through the memory of Q
    fence_async_shared()
    store_tile(o_desc, [b, h, start, 0], q_smem)
    tma.store_wait(0)
