"""Kernels that read one piece of memory over and over: by the threads' loads, or by the copy engine.

Nothing is computed but a sum that shows what came. Whether the bytes come from L2 or from DRAM depends
on the size of the piece alone: `flashlib.course.bench.l2_rate`.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from flashlib.kernels.gluon.parts import barriers, load_tile, next_slot, tiles_of


@triton.jit
def read_kernel(X, SUMS, size, apart, steps, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    """Read `steps` · AHEAD blocks of BLOCK int32 past the L1 cache, around a ring of `size` elements.

    Program p begins at p · apart; its sum goes to SUMS[p].
    """
    at = tl.program_id(0) * apart % size
    total = tl.zeros((BLOCK,), tl.int32)
    for _ in range(steps):
        here = tl.multiple_of(X + at, BLOCK)
        for n in tl.static_range(AHEAD):
            total += tl.load(here + n * BLOCK + tl.arange(0, BLOCK), cache_modifier=".cg")
        at = (at + AHEAD * BLOCK) % size
    tl.store(SUMS + tl.program_id(0), tl.sum(total))


@gluon.jit
def copy_kernel(x_desc, SUMS, rows, apart, steps, STAGES: gl.constexpr):
    """Bring `steps` tiles into shared memory, STAGES on their way, around a ring of `rows` rows.

    One warp asks, as a producer does; steps ≥ STAGES. Program p begins at row p · apart; the sum of its
    last tile goes to SUMS[p].
    """
    TILE: gl.constexpr = x_desc.block_type.shape[0]
    nbytes: gl.constexpr = x_desc.block_type.nbytes
    smem, full = tiles_of(x_desc, STAGES), barriers(STAGES)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
    fence_async_shared()
    at = gl.program_id(0) * apart % rows
    for s in gl.static_range(STAGES):
        mbarrier.expect(full.index(s), nbytes)
        load_tile(x_desc, [at, 0], full.index(s), smem.index(s))
        at = (at + TILE) % rows
    slot, phase = 0, 0
    for n in range(steps):
        mbarrier.wait(full.index(slot), phase)
        if n + STAGES < steps:                              # nobody reads the tile: overwrite it
            mbarrier.expect(full.index(slot), nbytes)
            load_tile(x_desc, [at, 0], full.index(slot), smem.index(slot))
            at = (at + TILE) % rows
        slot, phase = next_slot(slot, phase, STAGES)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    last = smem.index((steps - 1) % STAGES).load(LAYOUT).to(gl.float32)
    gl.store(SUMS + gl.program_id(0), gl.sum(gl.sum(last, 1), 0))
