"""The parts of the Gluon kernels for Hopper: tiles, slots, turns, and the warp that asks for tiles.

Taught in notebook 12.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from flashlib import exp2
from flashlib.kernels.aggregates import fields

LN2, LOG2E = gl.constexpr(exp2.LN2), gl.constexpr(exp2.LOG2E)
ROWS = gl.constexpr(64)                                     # query rows of a warpgroup

# A turn is a barrier of the hardware, on which one warpgroup waits and another only arrives: 2 · 128
# threads. Triton numbers its own barriers from 0; these have the last of the sixteen.
MY_TURN = gl.constexpr([f"barrier.sync {13 + c}, 256; mov.b32 $0, $1;" for c in range(3)])
ALL_HAVE_READ = gl.constexpr("bar.warp.sync -1; mov.b32 $0, $1;")            # of a warp
NEXT_TURN = gl.constexpr([f"barrier.arrive {13 + c}, 256; mov.b32 $0, $1;" for c in (1, 2, 0)])
# Newer versions of Triton call them by other names.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
meet = getattr(gl, "barrier", None) or gl.thread_barrier    # all threads of a program


@gluon.constexpr_function
def mma_layout(columns, warps=4, depth=16):
    """Return how the registers of whole warpgroups hold a float32 tile, 16 rows a warp.

    `depth` is what one instruction sums over: 32 bytes, so 16 elements of 16 bits or 32 of 8.
    """
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[warps, 1],
                                     instr_shape=[16, columns, depth])


def layout_of(block, dtype):
    """Return how shared memory holds a descriptor's tile: for products, or float32 as it lies."""
    if dtype == gl.float32:
        return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=len(block))
    return gl.NVMMASharedLayout.get_default_for(block, dtype)


@fields("BLOCK_N HEAD_DIM IS_CAUSAL RAGGED CONSUMERS STAGES Q_SLOTS O_PARTS PING_PONG",
        "OVERLAP UNDER_SOFTMAX EMULATED TAU COLUMNS")
class Options:
    """What is fixed when a warp-specialised kernel is compiled: see `flash_fwd_hopper_kernel`."""


@fields("q k v o q_full q_empty k_full k_empty v_full v_empty o_full")
class Shared:
    """Shared memory: slots for tiles of Q, K, V and O; barriers for each of Q, K and V.

    A *full* barrier says that a tile has come, an *empty* one that its slot may be overwritten. O comes
    where it is a state, which is float32; else `o_full` is None.
    """


@fields("order H GROUP N_Q N_K window sink")
class Work:
    """This program's list of query tiles (see `read_entry`); heads, lengths, window of the whole.

    `sink` is a pointer to the logits of sinks, (H,) float32, or None.
    """


@gluon.constexpr_function
def in_pieces(o):
    """Tell whether sums of HEAD_DIM columns are two pieces, as the last quarter is padding."""
    return o.HEAD_DIM >= 128 and o.HEAD_DIM // 4 * 3 >= o.COLUMNS


@gluon.constexpr_function
def registers_of(consumers, head_dim):
    """Return the registers of a consumer's thread: what the launch's cap leaves, in units of eight."""
    if consumers == 3:
        return 160
    return 224 if head_dim == 256 else 232                  # with 232, 12 bytes spill at 256


@gluon.jit
def key_tiles(start, N_Q, N_K, window, TILE_M: gl.constexpr, BLOCK_N: gl.constexpr,
              IS_CAUSAL: gl.constexpr):
    """Return (begin, whole, cut, end), counted in key tiles, for the query tile at row `start`.

    It visits begin … end. All of its rows see whole … cut, and a mask cuts through the others. From
    row to row the first key and the last never move left: so two rows tell for all.
    """
    begin, whole = 0, 0
    end, cut = gl.cdiv(N_K, BLOCK_N), N_K // BLOCK_N
    if IS_CAUSAL:                                           # aligned bottom right
        cut = gl.minimum(cut, gl.maximum(start + 1 + N_K - N_Q, 0) // BLOCK_N)
        end = gl.minimum(end, gl.cdiv(gl.maximum(start + TILE_M + N_K - N_Q, 0), BLOCK_N))
    if window is not None:
        left, right = window
        first = start + N_K - N_Q                           # the keys that the first row lies on,
        last = gl.minimum(start + TILE_M, N_Q) - 1 + N_K - N_Q              # and the last
        begin = gl.maximum(first - left, 0) // BLOCK_N
        whole = gl.cdiv(gl.maximum(last - left, 0), BLOCK_N)
        cut = gl.minimum(cut, gl.maximum(first + 1 + right, 0) // BLOCK_N)
        end = gl.minimum(end, gl.cdiv(gl.maximum(last + 1 + right, 0), BLOCK_N))
    return begin, whole, cut, gl.maximum(end, 1)            # where no row sees a key: one, all masked


@gluon.jit
def read_entry(order, nth):
    """Return (batch, head, first row) of this program's query tile number `nth`."""
    entry = order + 4 * (1 + nth)
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 2)


@gluon.jit
def my_turn(x, c: gl.constexpr):
    """Wait until warpgroup c may multiply; return x."""
    return gl.inline_asm_elementwise(gl.constexpr(MY_TURN[c]), "=r,r", [x], dtype=gl.int32,
                                     is_pure=False, pack=1)


@gluon.jit
def next_turn(x, c: gl.constexpr, CONSUMERS: gl.constexpr):
    """Let the warpgroup after c multiply; return x."""
    asm: gl.constexpr = NEXT_TURN[2] if c == CONSUMERS - 1 else NEXT_TURN[c]
    return gl.inline_asm_elementwise(asm, "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def next_slot(slot, phase, STAGES: gl.constexpr):
    """Step around the ring of STAGES slots; a barrier's phase flips each time around."""
    wrapped = slot == STAGES - 1
    return gl.where(wrapped, 0, slot + 1), gl.where(wrapped, phase ^ 1, phase)


@gluon.constexpr_function
def several(count, shape):
    """Return the shape of `count` blocks."""
    return [count, *shape]


@gluon.jit
def tiles_of(descriptor, count: gl.constexpr):
    """Return shared memory for `count` tiles of a descriptor."""
    return gl.allocate_shared_memory(descriptor.dtype, several(count, descriptor.block_type.shape),
                                     descriptor.layout)


@gluon.jit
def barriers(count: gl.constexpr):
    """Return shared memory for `count` barriers."""
    return gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())


@gluon.constexpr_function
def state_slots(o_desc, head_dim):
    """Return how many parts of a state's tile a consumer has in shared memory: two, where they fit."""
    return 2 if o_desc.dtype == gl.float32 and head_dim < 256 else 1


@gluon.jit
def allocate(q_desc, k_desc, v_desc, o_desc, o):
    """Return `Shared`: consumers share K and V, while each has places for its own Q, and one for O."""
    PLACES: gl.constexpr = o.Q_SLOTS * o.CONSUMERS
    SLOTS: gl.constexpr = state_slots(o_desc, o.HEAD_DIM)
    o_full = None
    if o_desc.dtype == gl.float32:
        o_full = barriers(o.CONSUMERS * SLOTS)
        for c in gl.static_range(o.CONSUMERS * SLOTS):
            mbarrier.init(o_full.index(c), count=1)
    shared = Shared(tiles_of(q_desc, PLACES), tiles_of(k_desc, o.STAGES), tiles_of(v_desc, o.STAGES),
                    tiles_of(o_desc, o.CONSUMERS * SLOTS), barriers(PLACES), barriers(PLACES),
                    barriers(o.STAGES), barriers(o.STAGES), barriers(o.STAGES), barriers(o.STAGES),
                    o_full)
    for i in gl.static_range(PLACES):
        mbarrier.init(shared.q_full.index(i), count=1)
        mbarrier.init(shared.q_empty.index(i), count=1)
    for s in gl.static_range(o.STAGES):
        mbarrier.init(shared.k_full.index(s), count=1)
        mbarrier.init(shared.k_empty.index(s), count=o.CONSUMERS)
        mbarrier.init(shared.v_full.index(s), count=1)
        mbarrier.init(shared.v_empty.index(s), count=o.CONSUMERS)
    fence_async_shared()
    return shared


@gluon.jit
def producer(q_desc, k_desc, v_desc, shared, work, TRANSPOSED: gl.constexpr, o):
    """Ask for tiles as slots become free: each step brings a K, and the V of the K before it.

    TRANSPOSED: V lies as (D, N), keys along the rows.
    """
    nbytes: gl.constexpr = k_desc.block_type.nbytes
    slot, phase = 0, 1                                      # the first wait for a free slot passes
    last_b, last_h, last_key = 0, 0, 0
    count = gl.load(work.order)
    for nth in range(count):
        b, h, start = read_entry(work.order, nth)
        begin, _, _, end = key_tiles(start, work.N_Q, work.N_K, work.window, o.CONSUMERS * ROWS,
                                     o.BLOCK_N, o.IS_CAUSAL)
        for c in gl.static_range(o.CONSUMERS):
            place = nth % o.Q_SLOTS * o.CONSUMERS + c
            mbarrier.wait(shared.q_empty.index(place), (nth // o.Q_SLOTS & 1) ^ 1)
            mbarrier.expect(shared.q_full.index(place), q_desc.block_type.nbytes)
            load_tile(q_desc, [b, h, start + c * ROWS, 0], shared.q_full.index(place),
                      shared.q.index(place))
        h = h // work.GROUP
        for step in range(end - begin):
            key = (end - 1 - step) * o.BLOCK_N              # the last key tile comes first
            mbarrier.wait(shared.k_empty.index(slot), phase)
            mbarrier.expect(shared.k_full.index(slot), nbytes)
            load_tile(k_desc, [b, h, key, 0], shared.k_full.index(slot), shared.k.index(slot))
            has_v = (nth > 0) | (step > 0)                  # before the first K there was none
            mbarrier.wait(shared.v_empty.index(slot), phase)
            mbarrier.expect(shared.v_full.index(slot), nbytes, pred=has_v)
            mbarrier.expect(shared.v_full.index(slot), 0, pred=has_v == 0)
            if has_v:
                load_values(v_desc, last_b, last_h, last_key, shared.v_full.index(slot),
                            shared.v.index(slot), TRANSPOSED)
            last_b, last_h, last_key = b, h, key
            slot, phase = next_slot(slot, phase, o.STAGES)
    mbarrier.wait(shared.k_empty.index(slot), phase)        # the last V of all, and no K
    mbarrier.expect(shared.k_full.index(slot), 0)
    mbarrier.wait(shared.v_empty.index(slot), phase)
    mbarrier.expect(shared.v_full.index(slot), nbytes)
    load_values(v_desc, last_b, last_h, last_key, shared.v_full.index(slot), shared.v.index(slot),
                TRANSPOSED)


@gluon.jit
def load_values(v_desc, b, h, key, barrier, tile, TRANSPOSED: gl.constexpr):
    """Ask for a tile of V."""
    if TRANSPOSED:
        load_tile(v_desc, [b, h, 0, key], barrier, tile)
    else:
        load_tile(v_desc, [b, h, key, 0], barrier, tile)


@gluon.jit
def finish(acc, m_i, l_i, o_desc, LSE, o_tile, at, work, OFFSET: gl.constexpr, o):
    """Divide by ℓ and write O, through shared memory and the copy engine, and the natural-log LSE.

    `at` is where: batch, head, first row. P and ℓ are 2**OFFSET times what they stand for.
    """
    b, h, first = at
    WIDTH: gl.constexpr = o.HEAD_DIM // o.O_PARTS
    row = first + gl.arange(0, ROWS, m_i.type.layout)
    if work.sink is not None:                               # one more key, of which O has nothing
        sink_log2 = gl.load(work.sink + h) * LOG2E
        m_new = gl.maximum(gl.maximum(m_i, sink_log2), -1.0e30)         # both may be −∞
        keep = gl.exp2(m_i - m_new)
        l_i = l_i * keep + gl.exp2(sink_log2 - m_new)
        m_i = m_new
    l_safe = gl.where(l_i == 0.0, 1.0, l_i)                 # a row that saw nothing: O = 0, lse = −∞
    log_l = gl.log2(l_safe)
    lse = gl.where(l_i == 0.0, float("-inf"), (m_i - OFFSET + log_l) * LN2)
    gl.store(LSE + (b * work.H + h).to(gl.int64) * work.N_Q + row, lse, mask=row < work.N_Q)
    inverse = gl.exp2(-log_l)
    if work.sink is not None:
        inverse *= keep
    flat = o_tile.reshape([ROWS, WIDTH])
    tma.store_wait(0)                                       # what lay there before has left
    if in_pieces(o):
        left, right = acc
    elif o.O_PARTS == 2:
        left, right = halves(acc[0])
    if o.O_PARTS == 2:                                      # half of the columns at a time
        flat.store(divided(left, inverse, o_desc.dtype))
        fence_async_shared()
        store_tile(o_desc, [b, h, first, 0], o_tile)
        tma.store_wait(0)
        flat.slice(0, right.shape[1], 1).store(divided(right, inverse, o_desc.dtype))
    elif in_pieces(o):
        flat.slice(0, left.shape[1], 1).store(divided(left, inverse, o_desc.dtype))
        flat.slice(left.shape[1], right.shape[1], 1).store(divided(right, inverse, o_desc.dtype))
    else:
        flat.store(divided(acc[0], inverse, o_desc.dtype))
    fence_async_shared()
    store_tile(o_desc, [b, h, first, o.HEAD_DIM - WIDTH], o_tile)


@gluon.jit
def divided(x, inverse, dtype: gl.constexpr):
    """Return columns of O in the dtype in which they leave; `inverse` is one over ℓ."""
    x = x * gl.expand_dims(gl.convert_layout(inverse, gl.SliceLayout(1, x.type.layout)), 1)
    if dtype == gl.float16:                                 # a rounded P may lift O past 65,504
        x = gl.where(gl.abs(x) < 65600.0, gl.maximum(gl.minimum(x, 65504.0), -65504.0), x)
    return x.to(dtype)


@gluon.jit
def halves(x):
    """Return the left and the right half of a tile's columns."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute([0, 2, 1]).split()


@gluon.jit
def ask_state(o_desc, shared, at, c, PART: gl.constexpr, o):
    """Ask for the next parts of a state's tile, of four, as soon as what lay there before has left."""
    SLOTS: gl.constexpr = state_slots(o_desc, o.HEAD_DIM)
    b, h, first = at
    for s in gl.static_range(SLOTS):
        tma.store_wait(SLOTS - 1 - s)
        full = shared.o_full.index(c * SLOTS + s)
        mbarrier.expect(full, o_desc.block_type.nbytes)
        load_tile(o_desc, [b, h, first, (PART + s) * (o.HEAD_DIM // 4)], full,
                  shared.o.index(c * SLOTS + s))


@gluon.jit
def add_state(x, weight, o_desc, shared, at, c, PART: gl.constexpr, o):
    """Write a part of O: x, and what the state has there times its weight."""
    SLOTS: gl.constexpr = state_slots(o_desc, o.HEAD_DIM)
    b, h, first = at
    place = c * SLOTS + PART % SLOTS
    o_tile = shared.o.index(place)
    mbarrier.wait(shared.o_full.index(place), PART // SLOTS & 1)            # an even number a tile
    held = o_tile.reshape([ROWS, x.shape[1]]).load(x.type.layout)
    by_row: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    weight = gl.expand_dims(gl.convert_layout(weight, by_row), 1)
    x += gl.where(weight > 0.0, held * weight, 0.0)         # an empty state, whatever its O holds
    o_tile.reshape([ROWS, x.shape[1]]).store(x)
    fence_async_shared()
    store_tile(o_desc, [b, h, first, PART * x.shape[1]], o_tile)
    if PART < 3 and (PART + 1) % SLOTS == 0:
        ask_state(o_desc, shared, at, c, PART + 1, o)


@gluon.jit
def finish_into(acc, m_i, l_i, o_desc, LSE, shared, at, work, c, o):
    """Merge with the state in O and LSE: one more key of each row, whose value is its O.

    Arguments as in `finish`, c the warpgroup; O comes and goes in four parts, the first asked for.
    """
    b, h, first = at
    row = first + gl.arange(0, ROWS, m_i.type.layout)
    statistics = LSE + (b * work.H + h).to(gl.int64) * work.N_Q + row
    before = gl.load(statistics, mask=row < work.N_Q, other=float("-inf"))
    m_new = gl.maximum(gl.maximum(m_i, before * LOG2E), -1.0e30)            # both may be −∞
    keep, weight = gl.exp2(m_i - m_new), gl.exp2(before * LOG2E - m_new)
    total = l_i * keep + weight
    log_l = gl.log2(gl.where(total == 0.0, 1.0, total))
    before = gl.inline_asm_elementwise(ALL_HAVE_READ, "=r,r", [before], dtype=gl.float32, is_pure=False,
                                       pack=1)
    lse = gl.where(l_i == 0.0, before, (m_new + log_l) * LN2)               # no key seen: to the bit
    gl.store(statistics, lse, mask=row < work.N_Q)
    inverse = gl.exp2(-log_l)
    acc = acc[0]                                            # a state's columns are one piece
    by_row: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    acc = acc * gl.expand_dims(gl.convert_layout(inverse * keep, by_row), 1)
    weight = inverse * weight
    left, right = halves(acc)                               # quarters leave registers enough
    first_quarter, second = halves(left)
    third, fourth = halves(right)
    add_state(first_quarter, weight, o_desc, shared, at, c, 0, o)
    add_state(second, weight, o_desc, shared, at, c, 1, o)
    add_state(third, weight, o_desc, shared, at, c, 2, o)
    add_state(fourth, weight, o_desc, shared, at, c, 3, o)
