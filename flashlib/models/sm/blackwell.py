"""FlashAttention-4's five roles on one Blackwell SM, for the schedule simulator.

Two query tiles of 128 rows share one program. A load warp copies, one mma warp issues all matmuls,
two softmax warpgroups exponentiate (a thread a row), a correction warpgroup rescales O, an epilogue
warp stores. S, P and O live in tensor memory, where P overwrites S. Here P·V begins when all of P is
there; the real kernel begins with the first three quarters. Zadouri et al. 2026,
arXiv:2603.05451. Taught in notebook 14.
"""

from dataclasses import replace

from flashlib.models.occupancy import TENSOR_MEMORY_COLUMNS
from flashlib.models.sm.operations import ROLE_REGISTERS, Sm
from flashlib.models.sm.simulator import FIFO, SHARED, Op, Program, Role, arrive, issue, run, wait

ROWS = 128                         # query rows of a softmax warpgroup: one a thread
# Registers of a thread, by role: one of the splits of Dao-AILab/flash-attention, flash_fwd_sm100.py.
SOFTMAX_REGISTERS, CORRECTION_REGISTERS, OTHER_ROLES_REGISTERS = 192, 72, 56
CHUNK = 32                         # columns of O, or of P on its way out, that a thread holds at a time


class BlackwellSm(Sm):
    """The operations with S, P and O in tensor memory: matmuls arrive at barriers when complete."""

    def qk(self, w: int, j: int, then: tuple[str, ...] = ()) -> Op:
        return replace(super().qk(w, j, then), arrives=(f"S full[{w}]", self.k.release(j).target))

    def pv(self, w: int, j: int, then: tuple[str, ...] = ()) -> Op:
        op = super().pv(w, j, then)
        reads = {place: tile for place, tile in op.reads.items() if place != f"P of {w}"}
        return replace(op, reads=reads | {f"S of {w}": f"P {j}"},
                       arrives=(f"O done[{w}]", self.v.release(j).target))

    def exp(self, w: int, j: int) -> Op:
        return replace(super().exp(w, j), writes={f"registers of {w}": f"E {j}"})

    def pack(self, w: int, j: int) -> Op:
        return replace(super().pack(w, j), reads={f"registers of {w}": f"E {j}"},
                       writes={f"S of {w}": f"P {j}"})


def load(sm: Sm):
    """Ask for tiles as slots become free: K and V of tile j, in the order in which they are wanted."""
    yield issue(sm.copy_q())
    for j in range(sm.tiles):
        yield sm.k.empty(j)
        yield issue(sm.copy_k(j))
        yield sm.v.empty(j)
        yield issue(sm.copy_v(j))


def mma(sm: Sm):
    """Issue every matmul: P·V of one query tile, then its next Q·Kᵀ, then those of the other."""
    yield wait("Q full", 0)
    yield sm.k.full(0)
    for w in range(sm.consumers):
        yield issue(sm.qk(w, 0))
    for j in range(sm.tiles):
        yield sm.v.full(j)
        if j + 1 < sm.tiles:
            yield sm.k.full(j + 1)
        for w in range(sm.consumers):
            yield wait(f"P full[{w}]", j % 2)
            yield wait(f"O ready[{w}]", j % 2)
            yield issue(sm.pv(w, j))
            if j + 1 < sm.tiles:
                yield issue(sm.qk(w, j + 1))


def softmax(sm: Sm, w: int):
    """Turn S into P, and tell the correction the new maximum before the exponentials begin."""
    for j in range(sm.tiles):
        yield wait(f"S full[{w}]", j % 2)
        yield run(sm.max(w, j))
        yield arrive(f"m full[{w}]")
        yield run(sm.exp(w, j))
        yield run(sm.pack(w, j))
        yield arrive(f"P full[{w}]")


def correction(sm: Sm):
    """Rescale O where the maximum has grown enough: only P·V waits for it, and not the softmax."""
    for j in range(sm.tiles):
        for w in range(sm.consumers):
            yield wait(f"m full[{w}]", j % 2)
            if j > 0:
                yield wait(f"O done[{w}]", (j - 1) % 2)
                yield from sm.rescale(w, j)
            yield arrive(f"O ready[{w}]")
    for w in range(sm.consumers):
        yield wait(f"O done[{w}]", (sm.tiles - 1) % 2)
        yield arrive(f"O final[{w}]")


def epilogue(sm: Sm):
    """Store both query tiles of O when the correction hands them over."""
    for w in range(sm.consumers):
        yield wait(f"O final[{w}]", 0)
        yield run(sm.store(w))


def program(sm: Sm, asks) -> Program:
    """Return the five roles as a program; `asks` is the shared memory."""
    needs = {"S": sm.keys, "P": CHUNK * sm.rates.element_bytes // 4, "other": ROLE_REGISTERS}
    chunk = {"O": CHUNK, "other": ROLE_REGISTERS}
    roles = (Role("load", lambda: load(sm), 32, OTHER_ROLES_REGISTERS),
             Role("mma", lambda: mma(sm), 32, OTHER_ROLES_REGISTERS),
             *(Role(f"softmax {w}", lambda w=w: softmax(sm, w), 128, SOFTMAX_REGISTERS, needs)
               for w in range(sm.consumers)),
             Role("correction", lambda: correction(sm), 128, CORRECTION_REGISTERS, chunk),
             Role("epilogue", lambda: epilogue(sm), 64, OTHER_ROLES_REGISTERS))
    barriers = {"Q full": 1}
    for ring in ("K", "V"):
        for slot in range(sm.stages):
            barriers |= {f"{ring} full[{slot}]": 1, f"{ring} empty[{slot}]": sm.consumers}
    barriers |= {f"{what}[{w}]": 1 for w in range(sm.consumers)
                 for what in ("S full", "m full", "P full", "O ready", "O done", "O final")}
    units = {"copy": FIFO, "tensor": FIFO, "exp": SHARED, "alu": SHARED, "shared": SHARED}
    columns = sm.consumers * (sm.keys + sm.d)
    return Program("v4", roles, barriers, units, sm.tiles,
                   {**asks, "tensor memory": (columns, TENSOR_MEMORY_COLUMNS, "columns")})
