"""Reference solutions of chapter 12."""

import importlib.util

from flashlib.models.sm.simulator import arrive, finish, issue, run, sync, wait

if importlib.util.find_spec("torch") and importlib.util.find_spec("triton"):
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )

    from flashlib.kernels.gluon.parts import barriers, load_tile, mma_layout, store_tile


def break_even(matmul_flops, exps):
    """12.1: 4·d / matmul_flops = 1 / exps."""
    return matmul_flops / (4 * exps)


def place(j, slots):
    """12.2: V of tile j is number 2·j + 2; the slots in turn; the phase flips with every lap."""
    number = 2 * j + 2
    return number % slots, number // slots % 2


def split_registers(consumers):
    """12.3: the producer's warpgroup gets the least, the consumers share the rest in steps of 8."""
    return 24, (65_536 // 128 - 24) // consumers // 8 * 8


def my_pingpong(sm, w):
    """12.4: a turn is P·V of the last tile and Q·Kᵀ of this one; softmax lies between turns."""
    other = f"turn[{1 - w}]"
    yield wait("Q full", 0)
    if w == 1:
        yield arrive("turn[0]")
    yield sm.k.full(0)
    yield sync(f"turn[{w}]")
    yield run(sm.qk(w, 0, then=(other,)))
    yield sm.k.release(0)
    yield from sm.softmax(w, 0)
    for j in range(1, sm.tiles):
        pv, qk = sm.pv(w, j - 1), sm.qk(w, j, then=(other,))
        yield sm.v.full(j - 1)
        yield sm.k.full(j)
        yield sync(f"turn[{w}]")
        yield issue(pv)
        yield issue(qk)
        yield finish(pv)
        yield sm.v.release(j - 1)
        yield finish(qk)
        yield sm.k.release(j)
        yield from sm.softmax(w, j)
        yield from sm.rescale(w, j)
    yield sm.v.full(sm.tiles - 1)
    yield sync(f"turn[{w}]")
    yield run(sm.pv(w, sm.tiles - 1, then=(other,)))
    yield sm.v.release(sm.tiles - 1)
    yield run(sm.store(w))


def multiply(x_desc, w_desc, y_desc, count):
    """12.5: one tile of X and one of W at a time, whose barrier's phase flips with each."""
    x = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    w = gl.allocate_shared_memory(w_desc.dtype, w_desc.block_type.shape, w_desc.layout)
    full = barriers(1).index(0)
    mbarrier.init(full, count=1)
    fence_async_shared()
    acc = gl.zeros([64, 64], gl.float32, mma_layout(64))
    for j in range(count):
        mbarrier.expect(full, x_desc.block_type.nbytes + w_desc.block_type.nbytes)
        load_tile(x_desc, [0, 64 * j], full, x)
        load_tile(w_desc, [64 * j, 0], full, w)
        mbarrier.wait(full, j % 2)
        acc = warpgroup_mma(x, w, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
    x.store(acc.to(x_desc.dtype))
    fence_async_shared()
    store_tile(y_desc, [0, 0], x)
    tma.store_wait(0)
