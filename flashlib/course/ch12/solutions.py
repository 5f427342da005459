"""Reference solutions of chapter 12."""

from flashlib.models.sm.simulator import arrive, finish, issue, run, sync, wait


def break_even(matmul_flops, exps):
    """12.1: 4·d / matmul_flops = 1 / exps."""
    return matmul_flops / (4 * exps)


def place(index, stages):
    """12.2: the slots in turn; the phase flips with every lap."""
    return index % stages, index // stages % 2


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
