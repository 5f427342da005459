"""The parts of the Gluon kernels for Hopper: tiles, slots, turns, a step of the softmax.

Taught in notebook 12; what a stale maximum leaves out, and the polynomial that stands in for an
exponential, in notebook 14.
"""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

# 2**f on [0, 1): minimax of the relative error among cubics with value 1 at 0.
CUBIC = (1.0, 0.69511679, 0.22764499, 0.07706704)
LN2 = gl.constexpr(0.6931471805599453)
ROWS = gl.constexpr(64)                                     # query rows of a warpgroup

# A logit, or −∞ where its column lies beyond the last that the row sees. As one piece of PTX, because
# the compiler would compare before QKᵀ is there, and keep 64 answers in registers that it lacks.
HIDE = gl.constexpr("""{ .reg .pred seen;
setp.le.s32 seen, $2, $3; selp.f32 $0, $1, 0fFF800000, seen; }""")

# A turn is a barrier of the hardware, on which one warpgroup waits and another only arrives: 2 · 128
# threads. Triton numbers its own barriers from 0; these have the last of the sixteen.
MY_TURN = gl.constexpr([f"barrier.sync {13 + c}, 256; mov.b32 $0, $1;" for c in range(3)])
NEXT_TURN = gl.constexpr([f"barrier.arrive {13 + c}, 256; mov.b32 $0, $1;" for c in (1, 2, 0)])
# Newer versions of Triton call them by other names.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
meet = getattr(gl, "barrier", None) or gl.thread_barrier    # all threads of a program


def hex32(value):
    """Return a float32 as PTX writes it."""
    return "0f" + struct.pack(">f", value).hex().upper()


def exp2_asm(emulated):
    """Return PTX that maps four registers to 2**x, the first `emulated` of them by polynomial.

    With x = n + f, n = ⌊x⌋: 1.5 · 2²³ + x, rounded down, holds n in its low bits; the cubic gives 2**f,
    and n is added to its exponent. The cubic is 1 at 0, its largest relative error 8.6e-5.
    """
    lines = ["{ .reg .f32 x, t, f; .reg .b32 n, y;"]
    for i in range(4):
        if i < emulated:
            lines += [f"max.f32 x, ${4 + i}, 0fC2FE0000;",              # −127: below, the exponent ends
                      "add.rm.f32 t, x, 0f4B400000;",                   # 1.5 · 2²³
                      "sub.f32 f, t, 0f4B400000;", "sub.f32 f, x, f;",
                      f"fma.rn.f32 x, f, {hex32(CUBIC[3])}, {hex32(CUBIC[2])};",
                      f"fma.rn.f32 x, x, f, {hex32(CUBIC[1])};", "fma.rn.f32 x, x, f, 0f3F800000;",
                      "mov.b32 n, t;", "shl.b32 n, n, 23;", "mov.b32 y, x;",
                      f"add.s32 ${i}, n, y;"]
        else:
            lines.append(f"ex2.approx.ftz.f32 ${i}, ${4 + i};")
    return " ".join([*lines, "}"])


ONE_OF_FOUR, TWO_OF_FOUR = gl.constexpr(exp2_asm(1)), gl.constexpr(exp2_asm(2))


@gluon.constexpr_function
def grow_asm(tau):
    """Return PTX that lets the maxima of a thread's two rows grow, if in its warp one must.

    $0, $1: the maxima, renewed in place; $2, $3: what sums have to be multiplied by; $4, $5: the
    largest logits of the thread. The four threads that share a row meet only if some logit of the warp
    is above its maximum by more than tau.
    """
    tau = float(tau)                                        # PTX knows 8.0, but not 8
    row = ("shfl.sync.bfly.b32 s, ${top}, 1, 31, -1; max.f32 r, ${top}, s;"
           " shfl.sync.bfly.b32 s, r, 2, 31, -1; max.f32 r, r, s;"
           " sub.f32 s, r, ${m}; setp.gt.f32 grows, s, {tau}; sub.f32 s, ${m}, r;"
           " ex2.approx.ftz.f32 s, s; @grows mov.f32 ${alpha}, s; @grows mov.f32 ${m}, r;")
    return (f"{{ .reg .pred grows; .reg .f32 r, s; sub.f32 s, $4, $0; setp.gt.f32 grows, s, {tau};"
            f" sub.f32 s, $5, $1; setp.gt.or.f32 grows, s, {tau}, grows;"
            " vote.sync.any.pred grows, grows, -1; mov.f32 $2, 0f3F800000; mov.f32 $3, 0f3F800000;"
            " @!grows bra.uni DONE; "
            + row.format(m=0, alpha=2, top=4, tau=tau) + " " + row.format(m=1, alpha=3, top=5, tau=tau)
            + " DONE: }")


@gluon.constexpr_function
def rescale_asm(registers):
    """Return PTX that multiplies registers of O by their factors, unless all of the warp's are 1.

    Two registers of one row and two of the row eight below take turns, so two factors tell for all.
    NaN is not 1.
    """
    first = 2 * registers                                   # after outputs and the same as inputs
    return (f"{{ .reg .pred some; setp.neu.f32 some, ${first}, 0f3F800000;"
            f" setp.neu.or.f32 some, ${first + 2}, 0f3F800000, some;"
            " vote.sync.any.pred some, some, 0xffffffff; @!some bra.uni DONE; "
            + " ".join(f"mul.f32 ${i}, ${i}, ${first + i};" for i in range(registers)) + " DONE: }")


@gluon.constexpr_function
def rescale_operands(registers):
    """Return the constraints of `rescale_asm`: outputs, inputs in the same registers, factors."""
    return ",".join(["=r"] * registers + [str(i) for i in range(registers)] + ["r"] * registers)


@gluon.constexpr_function
def mma_layout(columns, warps=4, depth=16):
    """Return how the registers of whole warpgroups hold a float32 tile, 16 rows a warp.

    `depth` is what one instruction sums over: 32 bytes, so 16 elements of 16 bits or 32 of 8.
    """
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[warps, 1],
                                     instr_shape=[16, columns, depth])


@gluon.jit
def key_tiles(start, N_Q, N_K, TILE_M: gl.constexpr, BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """Return how many key tiles the query tile at row `start` sees, how many of them masked."""
    end, whole = gl.cdiv(N_K, BLOCK_N), N_K // BLOCK_N
    if IS_CAUSAL:                                           # aligned bottom right
        whole = gl.minimum(whole, gl.maximum(start + 1 + N_K - N_Q, 0) // BLOCK_N)
        end = gl.minimum(end, gl.cdiv(gl.maximum(start + TILE_M + N_K - N_Q, 0), BLOCK_N))
    end = gl.maximum(end, 1)                                # where no row sees a key: one, all masked
    return end, end - whole


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


@gluon.jit
def exp2_shared_out(x, EMULATED: gl.constexpr):
    """Return 2**x, x ≤ 0; of every four elements the FMA units compute EMULATED, by a cubic."""
    if EMULATED == 0:
        y = gl.exp2(x)
    else:
        asm: gl.constexpr = ONE_OF_FOUR if EMULATED == 1 else TWO_OF_FOUR
        y = gl.inline_asm_elementwise(asm, "=&r,=&r,=&r,=&r,r,r,r,r", [x], dtype=gl.float32,
                                      is_pure=True, pack=4)
    return y


@gluon.jit
def by_thread(x, TAU: gl.constexpr):
    """Return a tile with, if there is a TAU, an axis for the four threads that share a row.

    They take its columns in turns, two at a time: (rows, columns / 8, 4, 2).
    """
    if TAU > 0:
        x = x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])
    return x


@gluon.jit
def across(x, TAU: gl.constexpr):
    """Return what belongs to rows, or to threads of rows, with axes for the columns of `by_thread`."""
    x = gl.expand_dims(x, 1)
    if TAU > 0:
        x = gl.expand_dims(x, 3)
    return x


@gluon.jit
def as_matrix(x, layout: gl.constexpr, TAU: gl.constexpr):
    """Return a tile of `by_thread` as (rows, columns); nothing moves between threads."""
    if TAU > 0:
        x = gl.convert_layout(x.reshape([x.shape[0], x.shape[1] * 8]), layout, assert_trivial=True)
    return x


@gluon.jit
def nothing_seen(qk, TAU: gl.constexpr):
    """Return m and ℓ before the first tile, one of each for a row of logits, or (rows, 4) with a TAU.

    Then each of the four threads that share a row adds up its own columns: ℓ is the sum of four parts,
    and m is the same four times.
    """
    of_tile = by_thread(qk, TAU)
    if TAU > 0:
        of_tile = gl.max(of_tile, 3)
    of_tile = gl.max(of_tile, 1)
    layout: gl.constexpr = of_tile.type.layout
    return (gl.full(of_tile.shape, float("-inf"), gl.float32, layout),
            gl.zeros(of_tile.shape, gl.float32, layout))


@gluon.jit
def softmax_step(qk, factor, m_i, l_i, row, col, N_Q, N_K,
                 MASKED: gl.constexpr, IS_CAUSAL: gl.constexpr, EMULATED: gl.constexpr,
                 TAU: gl.constexpr, OFFSET: gl.constexpr):
    """Return 2**OFFSET · P of a tile of raw logits, the new m (base 2), ℓ, and what to rescale by."""
    layout: gl.constexpr = qk.type.layout
    if MASKED:
        limit = N_K - 1                                     # the last key that a row sees
        if IS_CAUSAL:
            limit = gl.expand_dims(row + (N_K - N_Q), 1)    # aligned bottom right
        qk = gl.inline_asm_elementwise(HIDE, "=r,r,r,r", [qk, gl.expand_dims(col, 0), limit],
                                       dtype=gl.float32, is_pure=True, pack=1)
    qk = by_thread(qk, TAU)
    if TAU == 0:
        m_new = gl.maximum(m_i, gl.max(qk, 1) * factor)
    else:                                                   # a stale maximum serves as long as it can
        top = gl.max(gl.max(qk, 3), 1) * factor
        m_new, alpha = gl.inline_asm_elementwise(grow_asm(TAU), "=f,=f,=&f,=&f,f,f,0,1", [top, m_i],
                                                 dtype=(gl.float32, gl.float32), is_pure=True, pack=2)
    m_used = m_new
    if MASKED:                                              # a row that has seen nothing yet
        m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
    x = qk * factor - across(m_used - OFFSET, TAU)
    p = exp2_shared_out(x, 0 if MASKED else EMULATED)       # the cubic does not reach 0
    if TAU == 0:
        alpha = gl.exp2(m_i - m_used)
        added = gl.sum(p, 1)
    else:
        added = gl.sum(gl.sum(p, 3), 1)
    return as_matrix(p, layout, TAU), m_new, l_i * alpha + added, alpha


@gluon.jit
def rescale(acc, alpha, TAU: gl.constexpr):
    """Return O times alpha; with TAU most factors are 1, and a warp in which all are skips its work."""
    layout: gl.constexpr = acc.type.layout
    acc = by_thread(acc, TAU)
    if TAU == 0:
        acc = acc * across(gl.convert_layout(alpha, gl.SliceLayout(1, layout)), TAU)
    else:
        own: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, acc.type.layout))
        alpha = across(gl.convert_layout(alpha, own, assert_trivial=True), TAU)
        AT_ONCE: gl.constexpr = min(64, 4 * acc.shape[1])   # of a thread's registers of O
        acc = gl.inline_asm_elementwise(rescale_asm(AT_ONCE), rescale_operands(AT_ONCE), [acc, alpha],
                                        dtype=gl.float32, is_pure=True, pack=AT_ONCE)
    return as_matrix(acc, layout, TAU)


@gluon.jit
def of_rows(m_i, l_i, TAU: gl.constexpr):
    """Return m and ℓ with one entry a row."""
    if TAU > 0:
        m_i, l_i = gl.max(m_i, 1), gl.sum(l_i, 1)
    return m_i, l_i


@gluon.constexpr_function
def several(count, shape):
    """Return the shape of `count` blocks."""
    return [count, *shape]


@gluon.jit
def allocate(q_desc, k_desc, v_desc, o_desc, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
             Q_SLOTS: gl.constexpr):
    """Return shared memory for tiles of Q, K, V and O, and barriers full and empty for Q, K and V."""
    dtype: gl.constexpr = q_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, several(Q_SLOTS * CONSUMERS, q_desc.block_type.shape),
                                       q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, several(STAGES, k_desc.block_type.shape), k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, several(STAGES, v_desc.block_type.shape), v_desc.layout)
    o_smem = gl.allocate_shared_memory(o_desc.dtype, several(CONSUMERS, o_desc.block_type.shape),
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
    return q_smem, k_smem, v_smem, o_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty


@gluon.jit
def producer(q_desc, k_desc, v_desc, shared, sizes,
             BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr, CONSUMERS: gl.constexpr,
             STAGES: gl.constexpr, Q_SLOTS: gl.constexpr, TRANSPOSED: gl.constexpr):
    """Ask for tiles as slots become free: each step brings a K, and the V of the K before it.

    TRANSPOSED: V lies as (D, N), keys along the rows.
    """
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
                            TRANSPOSED)
            last_b, last_h, last_key = b, h, key
            slot, phase = next_slot(slot, phase, STAGES)
    mbarrier.wait(k_empty.index(slot), phase)               # the last V of all, and no K
    mbarrier.expect(k_full.index(slot), 0)
    mbarrier.wait(v_empty.index(slot), phase)
    mbarrier.expect(v_full.index(slot), nbytes)
    load_values(v_desc, last_b, last_h, last_key, v_full.index(slot), v_smem.index(slot), TRANSPOSED)


@gluon.jit
def load_values(v_desc, b, h, key, barrier, tile, TRANSPOSED: gl.constexpr):
    """Ask for a tile of V."""
    if TRANSPOSED:
        load_tile(v_desc, [b, h, 0, key], barrier, tile)
    else:
        load_tile(v_desc, [b, h, key, 0], barrier, tile)


@gluon.jit
def finish(acc, m_i, l_i, o_desc, LSE, o_tile, b, h, first, H, N_Q,
           HEAD_DIM: gl.constexpr, O_PARTS: gl.constexpr, OFFSET: gl.constexpr):
    """Divide by ℓ and write O, through shared memory and the copy engine, and the natural-log LSE.

    P and ℓ are 2**OFFSET times what they stand for.
    """
    WIDTH: gl.constexpr = HEAD_DIM // O_PARTS
    row = first + gl.arange(0, ROWS, m_i.type.layout)
    l_safe = gl.where(l_i == 0.0, 1.0, l_i)                 # a row that saw nothing: O = 0, lse = −∞
    log_l = gl.log2(l_safe)
    lse = gl.where(l_i == 0.0, float("-inf"), (m_i - OFFSET + log_l) * LN2)
    gl.store(LSE + (b * H + h).to(gl.int64) * N_Q + row, lse, mask=row < N_Q)
    by_row: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    acc = acc * gl.expand_dims(gl.convert_layout(gl.exp2(-log_l), by_row), 1)
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
