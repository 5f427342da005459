"""FlashAttention-4's five roles on one Blackwell SM, for the schedule simulator.

Two query tiles of 128 rows share one program. A load warp copies, one mma warp issues all matmuls,
two softmax warpgroups exponentiate (a thread a row), a correction warpgroup rescales O, an epilogue
warp stores. S, P and O live in tensor memory, where P overwrites S. P·V begins when three quarters of
P's columns are there, as in the real kernel (`split_P_arrive` in flash_fwd_sm100.py). Zadouri et al.
2026, arXiv:2603.05451. Taught in notebook 14.
"""

from dataclasses import replace

from flashlib.models.occupancy import TENSOR_MEMORY_COLUMNS
from flashlib.models.sm.operations import ROLE_REGISTERS, Sm
from flashlib.models.sm.simulator import FIFO, SHARED, Op, Program, Role, arrive, issue, run, wait

ROWS = 128                         # query rows of a softmax warpgroup: one a thread
# Registers of a thread, by role: one of the splits of Dao-AILab/flash-attention, flash_fwd_sm100.py.
SOFTMAX_REGISTERS, CORRECTION_REGISTERS, OTHER_ROLES_REGISTERS = 192, 72, 56
CHUNK = 32                         # columns of O, or of P on its way out, that a thread holds at a time
PARTS = {"most": 3 / 4, "rest": 1 / 4}      # of P's columns: with the first P·V begins


def _part(op: Op, part: str, **changes) -> Op:
    return replace(op, work={unit: PARTS[part] * work for unit, work in op.work.items()}, **changes)


def _home(part: str, w: int) -> str:
    """Name the place of a part of P; when the rest is there, nothing of S is left."""
    return f"most of P of {w}" if part == "most" else f"S of {w}"


class BlackwellSm(Sm):
    """The operations with S, P and O in tensor memory: matmuls arrive at barriers when complete.

    What makes P or reads it comes in two `PARTS`.
    """

    def qk(self, w: int, j: int, then: tuple[str, ...] = ()) -> Op:
        return replace(super().qk(w, j, then), arrives=(f"S full[{w}]", self.k.release(j).target))

    def pv_part(self, w: int, j: int, part: str) -> Op:
        op = super().pv(w, j)
        reads = {place: tile for place, tile in op.reads.items() if place != f"P of {w}"}
        op = _part(op, part, reads=reads | {_home(part, w): f"P {j}"})
        if part == "most":
            return replace(op, writes={})
        return replace(op, arrives=(f"O done[{w}]", self.v.release(j).target))

    def exp_part(self, w: int, j: int, part: str) -> Op:
        return _part(super().exp(w, j), part, writes={f"registers of {w}": f"E {j}"})

    def pack_part(self, w: int, j: int, part: str) -> Op:
        return _part(super().pack(w, j), part, reads={f"registers of {w}": f"E {j}"},
                     writes={_home(part, w): f"P {j}"})


def load(sm: Sm):
    """Ask for tiles as slots become free: K and V of tile j, in the order in which they are wanted."""
    yield issue(sm.copy_q())
    for j in range(sm.tiles):
        yield sm.k.empty(j)
        yield issue(sm.copy_k(j))
        yield sm.v.empty(j)
        yield issue(sm.copy_v(j))


def mma(sm: BlackwellSm):
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
            yield wait(f"O ready[{w}]", j % 2)
            for part in PARTS:
                yield wait(f"P {part}[{w}]", j % 2)
                yield issue(sm.pv_part(w, j, part))
            if j + 1 < sm.tiles:
                yield issue(sm.qk(w, j + 1))


def softmax(sm: BlackwellSm, w: int):
    """Turn S into P, and tell the correction the new maximum before the exponentials begin."""
    for j in range(sm.tiles):
        yield wait(f"S full[{w}]", j % 2)
        yield run(sm.max(w, j))
        yield arrive(f"m full[{w}]")
        for part in PARTS:
            yield run(sm.exp_part(w, j, part))
            yield run(sm.pack_part(w, j, part))
            yield arrive(f"P {part}[{w}]")


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


def program(sm: BlackwellSm, asks) -> Program:
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
                 for what in ("S full", "m full", "P most", "P rest", "O ready", "O done", "O final")}
    units = {"copy": FIFO, "tensor": FIFO, "exp": SHARED, "alu": SHARED, "shared": SHARED}
    columns = sm.consumers * (sm.keys + sm.d)
    return Program("v4", roles, barriers, units, sm.tiles,
                   {**asks, "tensor memory": (columns, TENSOR_MEMORY_COLUMNS, "columns")})
