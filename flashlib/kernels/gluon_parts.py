"""The parts of the Gluon kernels for Hopper: layouts, tiles, slots, turns, and one step of the softmax.

Taught in notebook 12; the polynomial that stands in for an exponential in notebook 14.
"""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

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
def softmax_step(qk, factor, m_i, l_i, row, col, N_Q, N_K,
                 MASKED: gl.constexpr, IS_CAUSAL: gl.constexpr, EMULATED: gl.constexpr,
                 TAU: gl.constexpr, OFFSET: gl.constexpr):
    """Return 2**OFFSET · P of a tile of raw logits, the new m (base 2), ℓ, and what to rescale by."""
    if MASKED:
        limit = N_K - 1                                     # the last key that a row sees
        if IS_CAUSAL:
            limit = gl.expand_dims(row + (N_K - N_Q), 1)    # aligned bottom right
        qk = gl.inline_asm_elementwise(HIDE, "=r,r,r,r", [qk, gl.expand_dims(col, 0), limit],
                                       dtype=gl.float32, is_pure=True, pack=1)
    m_new = gl.maximum(m_i, gl.max(qk, 1) * factor)
    if TAU > 0:                                             # a stale maximum serves as long as it can
        m_new = gl.where(m_new - m_i > TAU, m_new, m_i)
    m_used = m_new
    if MASKED:                                              # a row that has seen nothing yet
        m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
    x = qk * factor - gl.expand_dims(m_used - OFFSET, 1)
    p = exp2_shared_out(x, 0 if MASKED else EMULATED)       # the cubic does not reach 0
    alpha = gl.exp2(m_i - m_used)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha
