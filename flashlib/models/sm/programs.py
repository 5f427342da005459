"""FlashAttention's forward pass as programs for the schedule simulator, from one step at a time to v3.

Every program computes the same: `rows` query rows of one head against `tiles` tiles of `keys` keys.
They differ in who waits for what. `build` makes a program, `schedule_of` runs it. The kernel that they
model is FlashAttention-3 (arXiv:2407.08608); v4's five roles are in `blackwell`. Taught in
notebook 12.
"""

from collections.abc import Callable
from typing import cast

from flashlib import hardware
from flashlib.arguments import check_block, check_choice, check_number, check_share
from flashlib.generations import GENERATIONS, MOST_REGISTERS
from flashlib.models.sm import blackwell, operations
from flashlib.models.sm.operations import ROLE_REGISTERS, Ring, Sm, rates, slot_and_parity
from flashlib.models.sm.parts import FIFO, SHARED, Program, Role, Schedule
from flashlib.models.sm.simulator import arrive, finish, issue, run, simulate, sync, wait

ROWS = 64                          # query rows of a warpgroup: the height of a WGMMA
THREADS = 128                      # of a warpgroup
# (producer, consumer) registers of a thread after setmaxnreg, by the number of consumers: FA3's.
REGISTER_SPLIT = {1: (56, 240), 2: (24, 240), 3: (32, 160)}


def producer(sm: Sm):
    """Ask for tiles as slots become free: K of tile j, and V of tile j − 1, which is wanted then."""
    yield issue(sm.copy_q())
    for j in range(sm.tiles + 1):
        if j < sm.tiles:
            yield sm.k.empty(j)
            yield issue(sm.copy_k(j))
        if j > 0:
            yield sm.v.empty(j - 1)
            yield issue(sm.copy_v(j - 1))


def synchronous(sm: Sm, w: int):
    """One thing at a time: load and wait, multiply and wait, softmax, multiply and wait."""
    if w == 0:
        yield run(sm.copy_q())
    for j in range(sm.tiles):
        if w == 0:
            k, v = sm.copy_k(j), sm.copy_v(j)
            yield issue(k)
            yield run(v)
        yield sync("everybody")
        yield run(sm.qk(w, j))
        yield from sm.softmax(w, j)
        yield from sm.rescale(w, j)
        yield run(sm.pv(w, j))
        yield sync("everybody")
    yield run(sm.store(w))


def multistage(sm: Sm, w: int):
    """The same warps request tiles `stages` − 1 ahead; the rest is as before."""
    def request(j):
        if w == 0 and j < sm.tiles:
            yield issue(sm.copy_k(j))
            yield issue(sm.copy_v(j))

    if w == 0:
        yield issue(sm.copy_q())
    for j in range(sm.stages - 1):
        yield from request(j)
    yield wait("Q full", 0)
    for j in range(sm.tiles):
        yield sync("everybody")                 # nobody reads tile j − 1 any more: its slot is next
        yield from request(j + sm.stages - 1)
        yield sm.k.full(j)
        yield run(sm.qk(w, j))
        yield from sm.softmax(w, j)
        yield from sm.rescale(w, j)
        yield sm.v.full(j)
        yield run(sm.pv(w, j))
    yield run(sm.store(w))


def multistage_overlap(sm: Sm, w: int):
    """No producer, but P·V of the last tile under the softmax of this one."""
    def request(j):
        if w == 0 and j < sm.tiles:
            yield issue(sm.copy_k(j))
        if w == 0 and 0 < j <= sm.tiles:
            yield issue(sm.copy_v(j - 1))

    if w == 0:
        yield issue(sm.copy_q())
    for j in range(sm.stages - 1):
        yield from request(j)
    yield wait("Q full", 0)
    for j in range(sm.tiles + 1):
        yield sync("everybody")                 # K of tile j − 1 and V of tile j − 2 may go
        yield from request(j + sm.stages - 1)
        qk, pv = sm.qk(w, j), sm.pv(w, max(j - 1, 0))
        if j < sm.tiles:
            yield sm.k.full(j)
            yield issue(qk)
        if j > 0:
            yield sm.v.full(j - 1)
            yield issue(pv)
        if j < sm.tiles:
            yield finish(qk)
            yield run(sm.max(w, j))
            yield run(sm.exp(w, j))
        if j > 0:
            yield finish(pv)
        if j < sm.tiles:
            yield run(sm.pack(w, j))
            yield from sm.rescale(w, j)
    yield run(sm.store(w))


def specialized(sm: Sm, w: int):
    """A consumer beside a producer: barriers tell it what has come, and it tells what may go."""
    yield wait("Q full", 0)
    for j in range(sm.tiles):
        yield sm.k.full(j)
        yield run(sm.qk(w, j))
        yield sm.k.release(j)
        yield from sm.softmax(w, j)
        yield from sm.rescale(w, j)
        yield sm.v.full(j)
        yield run(sm.pv(w, j))
        yield sm.v.release(j)
    yield run(sm.store(w))


def pingpong(sm: Sm, w: int):
    """Matmuls only in its turn: while one warpgroup multiplies, the other does its softmax.

    A turn is P·V of one tile and Q·Kᵀ of the next. It passes on when its last instruction is through.
    """
    mine, next_one = f"turn[{w}]", f"turn[{(w + 1) % sm.consumers}]"
    yield wait("Q full", 0)
    if w == sm.consumers - 1:
        yield arrive("turn[0]")                 # warpgroup 0 has the first turn
    for j in range(sm.tiles + 1):
        first, last = j == 0, j == sm.tiles
        qk = sm.qk(w, j, then=(next_one,))
        pv = sm.pv(w, max(j - 1, 0), then=(next_one,) if last else ())
        if not first:
            yield sm.v.full(j - 1)
        if not last:
            yield sm.k.full(j)
        yield sync(mine)
        if not first:
            yield issue(pv)
        if not last:
            yield issue(qk)
        if not first:
            yield finish(pv)
            yield sm.v.release(j - 1)
        if not last:
            yield finish(qk)
            yield sm.k.release(j)
            yield from sm.softmax(w, j)
            yield from sm.rescale(w, j)
    yield run(sm.store(w))


def overlap(sm: Sm, w: int, turns: bool = False):
    """Within a warpgroup: P·V of the last tile runs under the softmax of this one."""
    mine, next_one = f"turn[{w}]", f"turn[{(w + 1) % sm.consumers}]"
    yield wait("Q full", 0)
    yield sm.k.full(0)
    yield run(sm.qk(w, 0))
    yield sm.k.release(0)
    yield from sm.softmax(w, 0)
    if turns and w == sm.consumers - 1:
        yield arrive("turn[0]")
    for j in range(1, sm.tiles):
        qk, pv = sm.qk(w, j), sm.pv(w, j - 1, then=(next_one,) if turns else ())
        yield sm.k.full(j)
        yield sm.v.full(j - 1)
        if turns:
            yield sync(mine)
        yield issue(qk)
        yield issue(pv)                         # its end hands the turn on
        yield finish(qk)                        # P·V still runs
        yield sm.k.release(j)
        yield run(sm.max(w, j))
        yield run(sm.exp(w, j))
        yield finish(pv)
        yield sm.v.release(j - 1)
        yield run(sm.pack(w, j))
        yield from sm.rescale(w, j)
    yield sm.v.full(sm.tiles - 1)
    yield run(sm.pv(w, sm.tiles - 1))
    yield sm.v.release(sm.tiles - 1)
    yield run(sm.store(w))


def pingpong_overlap(sm: Sm, w: int):
    """Both: turns between warpgroups, and P·V under softmax within each."""
    yield from overlap(sm, w, turns=True)


# A consumer's program, and whether a producer stands beside it.
PROGRAMS = {"synchronous": (synchronous, False), "multistage": (multistage, False),
            "multistage_overlap": (multistage_overlap, False), "specialized": (specialized, True),
            "pingpong": (pingpong, True), "overlap": (overlap, True),
            "pingpong_overlap": (pingpong_overlap, True)}
NAMES = (*PROGRAMS, "v4")


def consumer_registers(d: int, keys: int, element_bytes: int = 2) -> dict[str, int]:
    """Return what a thread of a consumer warpgroup of 64 rows keeps in registers, of 4 bytes each.

    O and S are float32, P has `element_bytes`; S of the next tile takes the place of this one's, whose
    weights are in P by then.
    """
    return {"O": ROWS * d // THREADS, "S": ROWS * keys // THREADS,
            "P": ROWS * keys * element_bytes // (4 * THREADS), "other": ROLE_REGISTERS}


def sm_of(*, gpu=None, d=128, rows=None, keys=128, stages=2, tiles=16, dtype="bfloat16",
          emulate=0.0, rescales=1.0, emulated_slots=operations.EMULATED_SLOTS, matmul_latency=0.0,
          copy_from="L2", place=None, v4=False) -> Sm:
    """Return the operations of one program: see `build` for the arguments."""
    rows = check_block("rows", (256 if v4 else 128) if rows is None else rows)
    each = blackwell.ROWS if v4 else ROWS
    counts = (2,) if v4 else tuple(REGISTER_SPLIT)
    if rows % each or rows // each not in counts:
        raise ValueError(f"rows: expected {' or '.join(str(each * n) for n in counts)} query rows"
                         f" ({each} a warpgroup), got {rows}")
    stages = check_block("stages", stages)
    gpu = hardware.get(gpu or ("B200" if v4 else "H200"))
    if v4 and "B200" not in gpu.name:
        raise ValueError(f"gpu: expected one with tensor memory for v4 (B200), got {gpu.name}")
    place = place or slot_and_parity
    kind = blackwell.BlackwellSm if v4 else Sm
    return kind(rates(gpu, dtype, copy_from), check_block("d", d), each, check_block("keys", keys),
                check_block("tiles", tiles), rows // each, stages, Ring("K", stages, place),
                Ring("V", stages, place), check_share("emulate", emulate),
                check_share("rescales", rescales),
                check_number("emulated_slots", emulated_slots, least=0),
                check_number("matmul_latency", matmul_latency, least=0))


def build(name: str | Callable = "pingpong_overlap", *, arbitration: str = SHARED, registers=None,
          **options) -> Program:
    """Return a program for `schedule.simulate`.

    Args:
        name: one of `NAMES`, or a consumer of your own, `f(sm, w)`, which gets a producer beside it
            and barriers for turns.
        gpu, dtype, copy_from: see `rates`; None for an H200, or a B200 for v4.  d: head dimension.
        rows: query rows of the program, 64 a consumer warpgroup (v4: 256, 128 a softmax warpgroup).
        keys: keys of a tile.  stages: slots for K, and for V.  tiles: key tiles.
        arbitration: how the tensor cores serve two warpgroups whose order no turn fixes: "shared",
            a part of an instruction stream from each, or "fifo", whole operations in order.
        registers: (producer, consumer) registers of a thread after setmaxnreg; None for FA3's.
        emulate: share of the exponentials that run on the float32 lanes.
        rescales: share of the key tiles, the first apart, that rescale O.
        emulated_slots: full-rate float32 instructions that an emulated exponential takes.
        matmul_latency: cycles from the end of a matmul's work until whoever waits for it goes on;
            the sheets do not give it, so it is 0 unless you infer it from a measurement.
        place: function (index, stages) → (slot, parity) of the rings; None for `slot_and_parity`.
    """
    if name == "v4":
        sm = cast(blackwell.BlackwellSm, sm_of(v4=True, **options))
        return blackwell.program(sm, _asks(hardware.get(options.get("gpu") or "B200"), sm))
    if not callable(name):
        check_choice("name", name, NAMES)
    check_choice("arbitration", arbitration, (SHARED, FIFO))
    consumer, has_producer = (name, True) if callable(name) else PROGRAMS[name]
    sm = sm_of(**options)
    few, many = _split(registers, sm.consumers) if has_producer else (0, _equal(sm.consumers))
    needs = consumer_registers(sm.d, sm.keys, sm.rates.element_bytes)
    roles = [Role("producer", lambda: producer(sm), THREADS, few)] if has_producer else []
    roles += [Role(f"warpgroup {w}", lambda w=w: consumer(sm, w), THREADS, many, needs)
              for w in range(sm.consumers)]
    barriers = {"Q full": 1, "everybody": sm.consumers}
    for ring in ("K", "V"):
        for slot in range(sm.stages):
            barriers |= {f"{ring} full[{slot}]": 1, f"{ring} empty[{slot}]": sm.consumers}
    barriers |= {f"turn[{w}]": 2 for w in range(sm.consumers)}
    units = {"copy": FIFO, "tensor": arbitration, "exp": SHARED, "alu": SHARED, "shared": SHARED}
    gpu = hardware.get(options.get("gpu") or "H200")
    title = getattr(name, "__name__", "a program") if callable(name) else name
    return Program(title, tuple(roles), barriers, units, sm.tiles, _asks(gpu, sm), gpu.sm.registers)


def schedule_of(name: str | Callable = "pingpong_overlap", **options) -> Schedule:
    """Build a program and simulate it: `schedule_of("pingpong", d=64).utilization["tensor"]`."""
    return simulate(build(name, **options))


def totals(**options) -> dict[str, float]:
    """Return the cycles of work that each unit has to do, in closed form; the arguments of `build`.

    No program can be faster than the largest of them, and none needs to be slower than their sum.
    """
    v4 = options.pop("v4", False)
    sm = sm_of(v4=v4, **options)
    r, rows, logits = sm.rates, sm.rows * sm.consumers, sm.rows * sm.consumers * sm.keys * sm.tiles
    rescales = int((sm.tiles - 1) * sm.rescales + 1e-9)
    moved = (2 * rows + 2 * sm.keys * sm.tiles) * sm.d * r.element_bytes
    operands = sm.tiles * (rows + 2 * sm.consumers * sm.keys) * sm.d * r.element_bytes
    return {"copy": moved / r.copy_bytes, "tensor": 4 * logits * sm.d / r.matmul_flops,
            "exp": (1 - sm.emulate) * logits / r.exps,
            "alu": (logits * (operations.SOFTMAX_SLOTS + sm.emulate * sm.emulated_slots)
                    + rescales * rows * sm.d) / r.lanes,
            "shared": operands / r.shared_bytes}


def _split(registers, consumers) -> tuple[int, int]:
    few, many = REGISTER_SPLIT[consumers] if registers is None else registers
    for count in (few, many):
        if check_block("registers", count) % 8 or not 24 <= count <= 256:
            raise ValueError("registers: expected multiples of 8 between 24 and 256, as setmaxnreg"
                             f" takes, got {count}")
    return few, many


def _equal(consumers) -> int:
    """Without setmaxnreg every thread gets the same: a multiple of 8, at most 255."""
    return min(MOST_REGISTERS, GENERATIONS["sm_90"].registers // (THREADS * consumers) // 8 * 8)


def _asks(gpu, sm) -> dict:
    tile = sm.d * sm.rates.element_bytes
    asked = tile * (sm.rows * sm.consumers + 2 * sm.stages * sm.keys)
    return {"shared memory": (asked, gpu.sram_bytes, "B")}
