"""Products of heads whose columns are no power of 2: of the padding as little as pays is multiplied.

Tiles lie in shared memory with D rounded up to a power of 2, the rest zeros. A product that sums over
columns takes half of them, and then a power of 2 that holds the others. One that makes columns has two
accumulators, where the last quarter would be padding: 64 and 32 columns, or 128 and 64.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from flashlib.kernels.gluon.parts import ROWS, in_pieces, mma_layout


@gluon.jit
def by_transposed(a, b, acc, use_acc: gl.constexpr, COLUMNS: gl.constexpr):
    """Issue acc + a bᵀ, or a bᵀ, over the columns that are not padding: half of them, and some more."""
    HALF: gl.constexpr = b.shape[1] // 2
    if b.shape[1] == COLUMNS:
        acc = warpgroup_mma(a, b.permute([1, 0]), acc, use_acc=use_acc, is_async=True)
    else:
        acc = warpgroup_mma(a.slice(0, HALF, 1), b.slice(0, HALF, 1).permute([1, 0]), acc,
                            use_acc=use_acc, is_async=True)
        acc = warpgroup_mma(a.slice(HALF, COLUMNS - HALF, 1),
                            b.slice(HALF, COLUMNS - HALF, 1).permute([1, 0]), acc, is_async=True)
    return acc


@gluon.jit
def no_sum(o):
    """Return a sum of 64 rows, 0: one accumulator, or one of half of the columns and of a quarter."""
    if in_pieces(o):
        return (gl.zeros([ROWS, o.HEAD_DIM // 2], gl.float32, mma_layout(o.HEAD_DIM // 2)),
                gl.zeros([ROWS, o.HEAD_DIM // 4], gl.float32, mma_layout(o.HEAD_DIM // 4)))
    else:
        return (gl.zeros([ROWS, o.HEAD_DIM], gl.float32, mma_layout(o.HEAD_DIM)),)


@gluon.jit
def add_product(total, a, b, o):
    """Issue total + a b."""
    if in_pieces(o):
        HALF: gl.constexpr = o.HEAD_DIM // 2
        left = gl.convert_layout(a, gl.DotOperandLayout(0, mma_layout(HALF), 2))
        right = gl.convert_layout(a, gl.DotOperandLayout(0, mma_layout(HALF // 2), 2))
        return (warpgroup_mma(left, b.slice(0, HALF, 1), total[0], is_async=True),
                warpgroup_mma(right, b.slice(HALF, HALF // 2, 1), total[1], is_async=True))
    else:
        a = gl.convert_layout(a, gl.DotOperandLayout(0, mma_layout(o.HEAD_DIM), 2))
        return (warpgroup_mma(a, b, total[0], is_async=True),)


@gluon.jit
def wait_for(total, o):
    """Return a sum when all that was issued is there."""
    if in_pieces(o):
        return warpgroup_mma_wait(0, deps=[total[0], total[1]])
    else:
        return (warpgroup_mma_wait(0, deps=[total[0]]),)


@gluon.jit
def put(total, factor, tile, o):
    """Put a sum, times a factor, into shared memory; padding stays what it was, and goes nowhere."""
    if in_pieces(o):
        HALF: gl.constexpr = o.HEAD_DIM // 2
        tile.slice(0, HALF, 1).store((total[0] * factor).to(tile.dtype))
        tile.slice(HALF, HALF // 2, 1).store((total[1] * factor).to(tile.dtype))
    else:
        tile.store((total[0] * factor).to(tile.dtype))
