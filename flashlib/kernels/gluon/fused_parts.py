"""The parts of the fused backward: its shared memory and barriers, its locks, adds to global memory."""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma

from flashlib.kernels.aggregates import fields
from flashlib.kernels.gluon.backward_parts import KEEP, keep
from flashlib.kernels.gluon.parts import ROWS, barriers, mma_layout, tiles_of

# Two accumulators that begin with numbers; otherwise ptxas would compute one product after the other.
BEGIN = gl.constexpr("mov.b32 $0, $2; mov.b32 $1, $3;")
# A number, or 0 where its key lies outside of the row's window: a register less than `KEEP_INSIDE`.
KEEP_BETWEEN = gl.constexpr("""{ .reg .pred seen; .reg .s32 off; sub.s32 off, $2, $3;
setp.ge.s32 seen, off, $4; setp.le.and.s32 seen, off, $5, seen; selp.f32 $0, $1, 0f00000000, seen; }""")
# A number, or 0 where another one is 0.
UNLESS_0 = gl.constexpr("""{ .reg .pred none; setp.eq.f32 none, $2, 0f00000000;
selp.f32 $0, 0f00000000, $1, none; }""")
# Wait until a lock has a number: then what others have added is visible to this program's copies.
TAKE = gl.constexpr("""{ .reg .pred p; .reg .b32 v;
AGAIN: ld.acquire.gpu.global.b32 v, [$1]; setp.ne.s32 p, v, $2; @p bra AGAIN;
fence.proxy.async; mov.b32 $0, v; }""")
# Of one warp: when all that its copies add has landed, count a lock up.
GIVE = gl.constexpr("""{ .reg .pred p; cp.async.bulk.wait_group 0; fence.proxy.async;
bar.warp.sync -1; elect.sync _|p, -1; @p red.release.gpu.global.add.s32 [$1], 1; mov.b32 $0, 0; }""")


@_core.builtin
def reduce_tile(descriptor, at, source, _semantic=None):
    """Ask the copy engine to add a tile of shared memory to global memory.

    PTX ISA, `cp.reduce.async.bulk.tensor`; Gluon has no name for it, its compiler has.
    """
    at = _semantic._convert_to_ir_values(at, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, descriptor.handle, at,
                                              source.handle)


@gluon.constexpr_function
def apart(o):
    """Tell whether a third warpgroup makes dQ, as registers allow up to 64 columns."""
    return o.HEAD_DIM <= 64


@gluon.constexpr_function
def held(o, masked):
    """Tell whether K and V are operands in registers; a mask takes the room."""
    return o.HEAD_DIM <= 64 and not masked


@gluon.constexpr_function
def registers_of(o):
    """Return the registers of a thread of each partition but the first."""
    if o.HEAD_DIM > 64:
        return [240, 24, 24, 24]
    return [*((192, 104) if o.HEAD_DIM == 64 else (200, 88)), 24, 24, 24]


@gluon.constexpr_function
def parts_of(o):
    """Return in how many parts a tile of dQ leaves."""
    return 1 if o.HEAD_DIM <= 64 else 2


@gluon.jit
def keep_seen(x, row, key, sizes, o):
    """Return x, and 0 where a row may not see a key or there is none; rows that do not exist may."""
    if sizes.window is not None:
        left, right = sizes.window
        on = row + (sizes.N_K - sizes.N_Q)                  # the key that a row lies on: bottom right
        x = gl.inline_asm_elementwise(KEEP_BETWEEN, "=r,r,r,r,r,r", [x, key, on, -left, right],
                                      dtype=gl.float32, is_pure=True, pack=1)
        if o.RAGGED:
            x = gl.inline_asm_elementwise(KEEP, "=r,r,r,r", [x, key, sizes.N_K - 1], dtype=gl.float32,
                                          is_pure=True, pack=1)
    else:
        x = keep(x, row, key, sizes, o)
    return x


@fields("k v q do lse delta ds dq")
class Tiles:
    """Shared memory: K and V, rings of Q, dO and their statistics, two tiles each of dSᵀ and dQ."""


@fields("fixed_full fixed_empty full empty ds_full ds_empty dq_full dq_empty")
class Bars:
    """Barriers: a *full* one says that a tile is there, an *empty* one that it may be overwritten."""


@gluon.jit
def allocate_fused(k_desc, q_desc, lse_desc, sum_desc, o):
    """Return `Tiles` and `Bars`."""
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], k_desc.dtype)
    PARTS: gl.constexpr = parts_of(o)
    tiles = Tiles(tiles_of(k_desc, 2), tiles_of(k_desc, 2), tiles_of(q_desc, o.STAGES),
                  tiles_of(q_desc, o.STAGES), tiles_of(lse_desc, o.STAGES),
                  tiles_of(lse_desc, o.STAGES),
                  gl.allocate_shared_memory(k_desc.dtype, [4, ROWS, ROWS], DS_LAYOUT),
                  tiles_of(sum_desc, 2 * PARTS))
    bars = Bars(barriers(1), barriers(1), barriers(o.STAGES), barriers(o.STAGES), barriers(4),
                barriers(4), barriers(2 * PARTS), barriers(2 * PARTS))
    mbarrier.init(bars.fixed_full.index(0), count=1)
    mbarrier.init(bars.fixed_empty.index(0), count=1)
    for s in gl.static_range(o.STAGES):
        mbarrier.init(bars.full.index(s), count=1)
        mbarrier.init(bars.empty.index(s), count=2)
    for s in gl.static_range(4):
        mbarrier.init(bars.ds_full.index(s), count=1)
        mbarrier.init(bars.ds_empty.index(s), count=1)
    for s in gl.static_range(2 * PARTS):
        mbarrier.init(bars.dq_full.index(s), count=1)
        mbarrier.init(bars.dq_empty.index(s), count=1)
    fence_async_shared()
    return tiles, bars


@gluon.jit
def flat(x):
    """Return an accumulator as (n, 256), in the order in which its threads hold it."""
    n: gl.constexpr = x.shape[0] * x.shape[1] // 256
    x = x.reshape([x.shape[0] // 16, 2, 8, x.shape[1] // 8, 4, 2])
    return x.permute([3, 0, 2, 4, 1, 5]).reshape([n, 256])


@gluon.jit
def hand_on(dq, tiles, bars, place, phase):
    """Put a part of dQ where a warp will add it from."""
    mbarrier.wait(bars.dq_empty.index(place), phase ^ 1)
    tiles.dq.index(place).store(flat(dq))
    fence_async_shared()
    mbarrier.arrive(bars.dq_full.index(place))


@gluon.jit
def half_of_dq(tiles, buf, w: gl.constexpr, o):
    """Return half w of the columns of dQ, of all 128 keys, under way."""
    WIDTH: gl.constexpr = o.HEAD_DIM // 2
    dq = gl.zeros([ROWS, WIDTH], gl.float32, mma_layout(WIDTH))
    for part in gl.static_range(2):
        k = tiles.k.index(part).reshape([ROWS, o.HEAD_DIM]).slice(w * WIDTH, WIDTH, 1)
        dq = warpgroup_mma(tiles.ds.index(buf * 2 + part).permute([1, 0]), k, dq, use_acc=part > 0,
                           is_async=True)
    return dq


@gluon.jit
def add_to(SUM, x, place, first, layout, sizes):
    """Add rows of an accumulator to a float32 sum in global memory; nobody else adds to these rows.

    `layout`: the sum's strides of batch, head and row, and its columns.
    """
    b, head, _tile = place
    stride_b, stride_h, stride_n, D = layout
    row = first + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    column = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    at = SUM + b.to(gl.int64) * stride_b + head.to(gl.int64) * stride_h
    at = at + gl.expand_dims(row.to(gl.int64) * stride_n, 1) + gl.expand_dims(column, 0)
    there = gl.expand_dims(row < sizes.N_K, 1) & gl.expand_dims(column < D, 0)
    x += gl.load(at, mask=there, other=0.0)
    gl.store(at, x, mask=there)
