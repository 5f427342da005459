"""What the Gluon backward kernels for Hopper share: tiles and rings, who sees whom, which tile."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from flashlib import exp2
from flashlib.kernels.aggregates import fields
from flashlib.kernels.gluon.parts import barriers, tiles_of

LOG2E = gl.constexpr(exp2.LOG2E)
CONSUMER_REGISTERS, PRODUCER_REGISTERS = gl.constexpr(240), gl.constexpr(24)

# An address that is worked out in the loop, so that it waits in no register from step to step.
SAME = gl.constexpr("mov.b32 $0, $1;")
# A number, or 0 where its key lies beyond the last that the row sees.
KEEP = gl.constexpr("""{ .reg .pred seen;
setp.le.s32 seen, $2, $3; selp.f32 $0, $1, 0f00000000, seen; }""")
# The same for a window, by how far the key lies from the one that the row lies on.
KEEP_INSIDE = gl.constexpr("""{ .reg .pred seen; .reg .s32 off; sub.s32 off, $2, $3;
setp.ge.s32 seen, off, $4; setp.le.and.s32 seen, off, $5, seen; setp.le.and.s32 seen, $2, $6, seen;
setp.le.and.s32 seen, $3, $6, seen; selp.f32 $0, $1, 0f00000000, seen; }""")


@fields("BLOCK_M BLOCK_N HEAD_DIM IS_CAUSAL RAGGED STAGES STAGES_2 COLUMNS")
class Options:
    """What is fixed when a backward kernel is compiled: see the kernels."""


@fields("H GROUP N_Q N_K window")
class Sizes:
    """Heads, lengths and window of the whole."""


@fields("fixed_1 fixed_2 ring_1 ring_2 fixed_full full_1 empty_1 full_2 empty_2")
class Shared:
    """Shared memory: tiles that stay, of two kinds, a ring of tiles that go by for each, and barriers.

    By key tile `fixed_1` and `fixed_2` are K and V, `ring_1` and `ring_2` Q and dO; by query tile it is
    the other way round. A *full* barrier says that a tile has come, an *empty* one that its slot may
    be overwritten.
    """


@gluon.jit
def allocate(fixed_desc, ring_desc, tiles: gl.constexpr, o):
    """Return `Shared` for `tiles` fixed tiles of each kind; two warpgroups read the rings."""
    shared = Shared(
        tiles_of(fixed_desc, tiles), tiles_of(fixed_desc, tiles), tiles_of(ring_desc, o.STAGES),
        tiles_of(ring_desc, o.STAGES_2), barriers(1), barriers(o.STAGES), barriers(o.STAGES),
        barriers(o.STAGES_2), barriers(o.STAGES_2))
    mbarrier.init(shared.fixed_full.index(0), count=1)
    for s in gl.static_range(o.STAGES):
        mbarrier.init(shared.full_1.index(s), count=1)
        mbarrier.init(shared.empty_1.index(s), count=2)
    for s in gl.static_range(o.STAGES_2):
        mbarrier.init(shared.full_2.index(s), count=1)
        mbarrier.init(shared.empty_2.index(s), count=2)
    fence_async_shared()
    return shared


@gluon.jit
def query_tiles(start, sizes, o):
    """Return (begin, end), in query tiles: rows of these see keys of the tile at row `start`."""
    begin, end = 0, gl.cdiv(sizes.N_Q, o.BLOCK_M)
    shift = sizes.N_K - sizes.N_Q
    if o.IS_CAUSAL:                                         # aligned bottom right
        begin = gl.maximum(start - shift, 0) // o.BLOCK_M
    if sizes.window is not None:
        left, right = sizes.window
        last = gl.minimum(start + o.BLOCK_N, sizes.N_K) - 1
        begin = gl.maximum(start - shift - right, 0) // o.BLOCK_M
        end = gl.minimum(end, gl.cdiv(gl.maximum(last - shift + 1 + left, 0), o.BLOCK_M))
    return begin, end


@gluon.jit
def keep(x, row, key, sizes, o):
    """Return x, and 0 where a row may not see a key, or where there is none.

    Row and key broadcast against each other and against x. As PTX, because the compiler would compare
    before the product is there, and keep the answers in registers.
    """
    on = row + (sizes.N_K - sizes.N_Q)                      # the key that a row lies on: bottom right
    last = sizes.N_K - 1
    if sizes.window is not None:
        left, right = sizes.window
        x = gl.inline_asm_elementwise(KEEP_INSIDE, "=r,r,r,r,r,r,r", [x, key, on, -left, right, last],
                                      dtype=gl.float32, is_pure=True, pack=1)
    elif o.IS_CAUSAL:
        x = gl.inline_asm_elementwise(KEEP, "=r,r,r,r", [x, key, on], dtype=gl.float32, is_pure=True,
                                      pack=1)
    else:
        x = gl.inline_asm_elementwise(KEEP, "=r,r,r,r", [x, key, last], dtype=gl.float32, is_pure=True,
                                      pack=1)
    return x


@gluon.jit
def of_rows(X, row, N_Q):
    """Return lse or delta of some rows, 0 outside."""
    return gl.load(X + row, mask=row < N_Q, other=0.0)


@gluon.jit
def lse_of(LSE, row, N_Q):
    """Return the lse of some rows in base 2; where nothing is seen, a number that is finite."""
    return gl.maximum(of_rows(LSE, row, N_Q), -1.0e30) * LOG2E


@gluon.jit
def place_of(pid, heads, tiles, TOGETHER, LAST_FIRST: gl.constexpr):
    """Return (head, tile) of a program by its number: TOGETHER heads at a time, tile after tile."""
    section = pid // (TOGETHER * tiles)
    beside = gl.minimum(TOGETHER, heads - section * TOGETHER)
    within = pid - section * TOGETHER * tiles
    tile = within // beside
    if LAST_FIRST:
        tile = tiles - 1 - tile
    return section * TOGETHER + within % beside, tile
