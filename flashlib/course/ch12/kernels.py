"""Four Gluon kernels for Hopper, to be read: three tiny ones, and FlashAttention-3 without its options.

A tile is a block of rows of a matrix. Matrices are contiguous, tiles divide them, and nothing is
masked. The library's kernel, with all that this one lacks, is `flashlib.kernels.gluon.forward`. Taught
in notebook 12.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlib.exp2 import LOG2E
from flashlib.interpreter import run
from flashlib.kernels.gluon.parts import barriers, load_tile, mma_layout, store_tile

ROWS = gl.constexpr(64)                                     # query rows of a warpgroup
SLOTS = gl.constexpr(4)                                     # of the ring
REGISTERS = 168                                             # of a thread at launch: `maxnreg`


@gluon.jit
def copy_kernel(x_desc, y_desc):
    """Copy one tile: in by the copy engine, wait for its bytes, out again."""
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    full = barriers(1).index(0)
    mbarrier.init(full, count=1)
    fence_async_shared()                                    # the copy engine sees the barrier, too
    row = gl.program_id(0) * x_desc.block_type.shape[0]
    mbarrier.expect(full, x_desc.block_type.nbytes)         # so many bytes complete its phase
    load_tile(x_desc, [row, 0], full, tile)                 # one thread asks, and all go on
    mbarrier.wait(full, 0)                                  # parity 0: its first phase
    store_tile(y_desc, [row, 0], tile)
    tma.store_wait(0)


@gluon.jit
def matmul_kernel(q_desc, k_desc, S):
    """Write S = QKᵀ of one tile of Q and one of K."""
    q = gl.allocate_shared_memory(q_desc.dtype, q_desc.block_type.shape, q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, k_desc.block_type.shape, k_desc.layout)
    full = barriers(1).index(0)
    mbarrier.init(full, count=1)
    fence_async_shared()
    mbarrier.expect(full, q_desc.block_type.nbytes + k_desc.block_type.nbytes)
    load_tile(q_desc, [0, 0], full, q)
    load_tile(k_desc, [0, 0], full, k)
    mbarrier.wait(full, 0)
    KEYS: gl.constexpr = k_desc.block_type.shape[0]
    LAYOUT: gl.constexpr = mma_layout(KEYS)                 # which thread holds which elements of S
    qk = gl.zeros([ROWS, KEYS], gl.float32, LAYOUT)
    qk = warpgroup_mma(q, k.permute([1, 0]), qk, use_acc=False, is_async=True)
    qk = warpgroup_mma_wait(0, deps=[qk])                   # until 0 matmuls are outstanding
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    gl.store(S + row * KEYS + gl.arange(0, KEYS, gl.SliceLayout(0, LAYOUT))[None, :], qk)


@gluon.jit
def ring_of(desc, READERS: gl.constexpr):
    """Return a ring: slots for tiles, and for each slot a barrier *full* and a barrier *empty*."""
    ROWS_OF_TILE: gl.constexpr = desc.block_type.shape[0]
    tiles = gl.allocate_shared_memory(desc.dtype, [SLOTS, ROWS_OF_TILE, desc.block_type.shape[1]],
                                      desc.layout)
    full, empty = barriers(SLOTS), barriers(SLOTS)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=READERS)
    fence_async_shared()
    return tiles, full, empty


@gluon.jit
def request(ring, i, desc, row):
    """Wait until the slot of tile number i is empty, then ask for the tile at this row."""
    tiles, full, empty = ring
    slot, parity = i % SLOTS, i // SLOTS % 2
    mbarrier.wait(empty.index(slot), parity ^ 1)            # the first lap passes
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    load_tile(desc, [row, 0], full.index(slot), tiles.index(slot))


@gluon.jit
def tile_of(ring, i):
    """Wait until tile number i has come, and return it."""
    tiles, full, _ = ring
    mbarrier.wait(full.index(i % SLOTS), i // SLOTS % 2)
    return tiles.index(i % SLOTS)


@gluon.jit
def give_back(ring, i):
    """Say that the slot of tile number i may be overwritten."""
    mbarrier.arrive(ring[2].index(i % SLOTS))


@gluon.jit
def ask_for_all(ring, x_desc, count):
    """Ask for all tiles: the producer."""
    for i in range(count):
        request(ring, i, x_desc, i * x_desc.block_type.shape[0])


@gluon.jit
def write_all(ring, y_desc, count):
    """Use every tile, here: write it elsewhere: the consumer."""
    for i in range(count):
        store_tile(y_desc, [i * y_desc.block_type.shape[0], 0], tile_of(ring, i))
        tma.store_wait(0)                                   # it has been read
        give_back(ring, i)


@gluon.jit
def ring_kernel(x_desc, y_desc, count):
    """Copy `count` tiles through a ring: one warp asks for them, four others use what comes."""
    ring = ring_of(x_desc, 1)
    gl.warp_specialize([(write_all, (ring, y_desc, count)), (ask_for_all, (ring, x_desc, count))],
                       [1], [24])


@gluon.jit
def producer(ring, q, q_full, q_desc, k_desc, v_desc, q_row, k_row, count):
    """Ask for Q, then for K of tile j and V of tile j − 1, which is wanted then."""
    KEYS: gl.constexpr = k_desc.block_type.shape[0]
    mbarrier.expect(q_full, 2 * q_desc.block_type.nbytes)
    load_tile(q_desc, [q_row, 0], q_full, q.index(0))
    load_tile(q_desc, [q_row + ROWS, 0], q_full, q.index(1))
    i = 0
    for j in range(count + 1):
        if j < count:
            request(ring, i, k_desc, k_row + j * KEYS)
            i += 1
        if j > 0:
            request(ring, i, v_desc, k_row + (j - 1) * KEYS)
            i += 1


@gluon.jit
def softmax(qk, m_i, l_i, scale_log2):
    """Return P, the new m and ℓ, and the factor for O; exponentials are base 2, as in notebook 10."""
    m_new = gl.maximum(m_i, gl.max(qk, 1) * scale_log2)
    p = gl.exp2(qk * scale_log2 - m_new[:, None])
    alpha = gl.exp2(m_i - m_new)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def consumer(ring, q, q_full, o_desc, q_row, count, scale_log2, c: gl.constexpr):
    """Let the 64 query rows of warpgroup c attend to all keys."""
    KEYS: gl.constexpr = ring[0].shape[1]
    D: gl.constexpr = ring[0].shape[2]
    S_LAYOUT: gl.constexpr = mma_layout(KEYS)
    O_LAYOUT: gl.constexpr = mma_layout(D)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)        # P stays in registers
    BY_ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    q, zero = q.index(c), gl.zeros([ROWS, KEYS], gl.float32, S_LAYOUT)
    m_i = gl.full([ROWS], float("-inf"), gl.float32, BY_ROW)
    l_i = gl.zeros([ROWS], gl.float32, BY_ROW)
    acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)

    mbarrier.wait(q_full, 0)
    qk = warpgroup_mma(q, tile_of(ring, 0).permute([1, 0]), zero, use_acc=False, is_async=True)
    qk = warpgroup_mma_wait(0, deps=[qk])
    give_back(ring, 0)
    p, m_i, l_i, _ = softmax(qk, m_i, l_i, scale_log2)
    p = gl.convert_layout(p.to(q.dtype), P_LAYOUT)
    for j in range(1, count):                               # ring: K of j is 2j − 1, V of j − 1 is 2j
        k = tile_of(ring, 2 * j - 1)
        qk = warpgroup_mma(q, k.permute([1, 0]), zero, use_acc=False, is_async=True)
        acc = warpgroup_mma(p, tile_of(ring, 2 * j), acc, is_async=True)
        qk = warpgroup_mma_wait(1, deps=[qk])               # 1 may be outstanding: P·V
        give_back(ring, 2 * j - 1)
        p, m_i, l_i, alpha = softmax(qk, m_i, l_i, scale_log2)
        acc = warpgroup_mma_wait(0, deps=[acc])
        give_back(ring, 2 * j)
        p = gl.convert_layout(p.to(q.dtype), P_LAYOUT)
        acc *= gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT))[:, None]
    acc = warpgroup_mma(p, tile_of(ring, 2 * count - 1), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])

    acc /= gl.convert_layout(l_i, gl.SliceLayout(1, O_LAYOUT))[:, None]
    q.store(acc.to(q.dtype))                                # O leaves through the memory of Q
    fence_async_shared()
    store_tile(o_desc, [q_row + c * ROWS, 0], q)
    tma.store_wait(0)


@gluon.jit
def attention_kernel(q_desc, k_desc, v_desc, o_desc, scale_log2, N):
    """Write 128 rows of O: one warp asks for tiles, two warpgroups multiply and exponentiate.

    Matrices are (heads · N, d) in 16 bits; tiles of Q and O have 64 rows, those of K and V divide N.
    `scale_log2` is the factor on the logits times log2(e).
    """
    KEYS: gl.constexpr = k_desc.block_type.shape[0]
    ring = ring_of(k_desc, 2)
    q = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, q_desc.block_type.shape[1]], q_desc.layout)
    q_full = barriers(1).index(0)
    mbarrier.init(q_full, count=1)
    fence_async_shared()
    q_row, count = gl.program_id(0) * 2 * ROWS, N // KEYS
    k_row = q_row // N * N                                  # where its head begins
    gl.warp_specialize([
        (consumer, (ring, q, q_full, o_desc, q_row, count, scale_log2, 0)),
        (consumer, (ring, q, q_full, o_desc, q_row, count, scale_log2, 1)),
        (producer, (ring, q, q_full, q_desc, k_desc, v_desc, q_row, k_row, count)),
    ], [4, 1], [232, 40])                                   # of the last two: warps, registers


def described(x, rows, columns=None):
    """Return what the copy engine has to know of a 16-bit matrix, in tiles of (rows, all columns)."""
    block = [rows, columns or x.shape[1]]
    dtype = getattr(gl, str(x.dtype).removeprefix("torch."))
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


def attention(q, k, v, keys=128):
    """Return O of (B, H, N, d) tensors on a Hopper GPU, without a mask; `keys` is a key tile's height.

    Contiguous float16 or bfloat16, d = 64 or 128, N a multiple of 128 and of `keys`.
    """
    B, H, N, d = q.shape
    o = q.new_empty(q.shape)
    tensors = [described(x.view(-1, d), rows) for x, rows in ((q, 64), (k, keys), (v, keys), (o, 64))]
    attention_kernel[(B * H * N // 128,)](*tensors, d**-0.5 * LOG2E, N, num_warps=4, maxnreg=REGISTERS)
    return o


def attention_here(q, k, v, keys=64, *, order="late"):
    """Return O of (n, d) tensors on the CPU, by `attention_kernel` in the interpreter, and its `Run`.

    Args:
        q, k, v: one head, float16 or bfloat16, n a multiple of 128 and of `keys`, d = 64 or 128.
        order: "late", "early" or a seed, see `flashlib.interpreter.run`.
    Raises:
        flashlib.interpreter.Hazard: somebody reads what is not there, overwrites what is read, or waits
            for ever.
    """
    o = torch.zeros_like(q)
    blocks = zip(("q_desc", "k_desc", "v_desc", "o_desc"), ((q, 64), (k, keys), (v, keys), (o, 64)),
                 strict=True)
    arguments = {name: described(*pair) for name, pair in blocks}
    n, d = q.shape
    found = run(attention_kernel, n // 128, arguments | {"scale_log2": d**-0.5 * LOG2E, "N": n},
                order=order)
    return o, found
