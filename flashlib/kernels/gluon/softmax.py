"""A step of the softmax in registers, for the Gluon kernels: masks, exponentials, stale maxima.

Taught in notebook 12; what a stale maximum leaves out, and the polynomial that stands in for an
exponential, in notebook 14.
"""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# 2**f on [0, 1): minimax of the relative error among cubics with value 1 at 0.
CUBIC = (1.0, 0.69511679, 0.22764499, 0.07706704)
# A logit, or −∞ where its column lies beyond the last that the row sees. As one piece of PTX, because
# the compiler would compare before QKᵀ is there, and keep 64 answers in registers that it lacks.
HIDE = gl.constexpr("""{ .reg .pred seen;
setp.le.s32 seen, $2, $3; selp.f32 $0, $1, 0fFF800000, seen; }""")
# The same for a window, by how far the column lies from the key that the row lies on: a register a row.
HIDE_OUTSIDE = gl.constexpr("""{ .reg .pred seen; .reg .s32 off; sub.s32 off, $2, $3;
setp.ge.s32 seen, off, $4; setp.le.and.s32 seen, off, $5, seen; setp.le.and.s32 seen, $2, $6, seen;
selp.f32 $0, $1, 0fFF800000, seen; }""")


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
def by_thread(x):
    """Return a tile with an axis for the four threads that share a row.

    They take its columns in turns, two at a time: (rows, columns / 8, 4, 2).
    """
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def across(x):
    """Return what belongs to threads of rows, with axes for the columns of `by_thread`."""
    return gl.expand_dims(gl.expand_dims(x, 1), 3)


@gluon.jit
def as_matrix(x, layout: gl.constexpr):
    """Return a tile of `by_thread` as (rows, columns); nothing moves between threads."""
    return gl.convert_layout(x.reshape([x.shape[0], x.shape[1] * 8]), layout, assert_trivial=True)


@gluon.jit
def nothing_seen(qk, TAU: gl.constexpr):
    """Return m and ℓ before the first tile, one of each for a row of logits, or (rows, 4) with a TAU.

    Then each of the four threads that share a row adds up its own columns: ℓ is the sum of four parts,
    and m is the same four times.
    """
    if TAU > 0:
        qk = gl.max(by_thread(qk), 3)
    like = gl.max(qk, 1)
    layout: gl.constexpr = like.type.layout
    return (gl.full(like.shape, float("-inf"), gl.float32, layout),
            gl.zeros(like.shape, gl.float32, layout))


@gluon.jit
def visible(qk, row, col, N_Q, N_K, window, IS_CAUSAL: gl.constexpr, RAGGED: gl.constexpr):
    """Return a tile of logits, −∞ where a row may not see a key, or where there is none (RAGGED)."""
    limit = N_K - 1                                         # the last key that a row sees
    if IS_CAUSAL:
        limit = gl.expand_dims(row + (N_K - N_Q), 1)        # aligned bottom right
    col = gl.expand_dims(col, 0)
    if window is None:
        qk = gl.inline_asm_elementwise(HIDE, "=r,r,r,r", [qk, col, limit], dtype=gl.float32,
                                       is_pure=True, pack=1)
    else:
        left, right = window
        on = gl.expand_dims(row + (N_K - N_Q), 1)           # the key that a row lies on
        if not RAGGED:
            limit = 0x7fffffff                              # there are no keys behind the end
        qk = gl.inline_asm_elementwise(HIDE_OUTSIDE, "=r,r,r,r,r,r,r",
                                       [qk, col, on, -left, right, limit], dtype=gl.float32,
                                       is_pure=True, pack=1)
    return qk


@gluon.jit
def reference_of(m_i, MASKED: gl.constexpr):
    """Return what exponents are relative to: the maximum, or 0 in a row that has seen nothing yet."""
    if MASKED:
        m_i = gl.where(m_i == float("-inf"), 0.0, m_i)
    return m_i


@gluon.jit
def softmax_step(qk, factor, m_i, l_i, MASKED: gl.constexpr, EMULATED: gl.constexpr,
                 OFFSET: gl.constexpr):
    """Return 2**OFFSET · P of a tile of raw logits, the new m (base 2), ℓ, and what to rescale by."""
    m_new = gl.maximum(m_i, gl.max(qk, 1) * factor)
    m_used = reference_of(m_new, MASKED)
    x = qk * factor - gl.expand_dims(m_used - OFFSET, 1)
    p = exp2_shared_out(x, 0 if MASKED else EMULATED)       # none in tiles that a mask cuts
    alpha = gl.exp2(m_i - m_used)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def stale_softmax_step(qk, factor, m_i, l_i, MASKED: gl.constexpr, EMULATED: gl.constexpr,
                       TAU: gl.constexpr):
    """Return the same where a stale maximum serves until it has been outgrown by more than TAU.

    Each of the four threads that share a row has an m and an ℓ of its own: see `nothing_seen`.
    """
    layout: gl.constexpr = qk.type.layout
    qk = by_thread(qk)
    top = gl.max(gl.max(qk, 3), 1) * factor
    m_new, alpha = gl.inline_asm_elementwise(grow_asm(TAU), "=f,=f,=&f,=&f,f,f,0,1", [top, m_i],
                                             dtype=(gl.float32, gl.float32), is_pure=True, pack=2)
    x = qk * factor - across(reference_of(m_new, MASKED))
    p = exp2_shared_out(x, 0 if MASKED else EMULATED)       # none in tiles that a mask cuts
    return as_matrix(p, layout), m_new, l_i * alpha + gl.sum(gl.sum(p, 3), 1), alpha


@gluon.jit
def rescale(acc, alpha):
    """Return O times alpha, one factor a row."""
    by_row: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    return acc * gl.expand_dims(gl.convert_layout(alpha, by_row), 1)


@gluon.jit
def rescale_seldom(acc, alpha):
    """Return O times what `stale_softmax_step` says: most factors are 1, and a warp of them skips."""
    layout: gl.constexpr = acc.type.layout
    acc = by_thread(acc)
    own: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, acc.type.layout))
    alpha = across(gl.convert_layout(alpha, own, assert_trivial=True))
    AT_ONCE: gl.constexpr = min(64, 4 * acc.shape[1])       # of a thread's registers of O
    acc = gl.inline_asm_elementwise(rescale_asm(AT_ONCE), rescale_operands(AT_ONCE), [acc, alpha],
                                    dtype=gl.float32, is_pure=True, pack=AT_ONCE)
    return as_matrix(acc, layout)


@gluon.jit
def of_rows(m_i, l_i):
    """Return m and ℓ of `stale_softmax_step` with one entry a row."""
    return gl.max(m_i, 1), gl.sum(l_i, 1)
