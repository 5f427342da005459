"""What one SM does in a clock, and the operations of attention on it: how long each occupies a unit.

The programs that put them in order are in `programs` and `blackwell`. Taught in notebook 12.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from flashlib import hardware
from flashlib.arguments import check_choice
from flashlib.models.predict import L2_BYTES_PER_CLOCK
from flashlib.models.sm.simulator import Op, arrive, run, wait

LANES = 128                        # float32 instructions per clock and SM
SHARED_BYTES_PER_CLOCK = 128       # per SM
COPY_LATENCY = 500                 # cycles from a request to its first byte; a round figure, assumed
# Instruction slots of a logit, in full-rate ones; max, LEA and IMAD run at half rate (CUDA C++ Best
# Practices Guide, Throughput of Native Arithmetic Instructions, compute capability 9.0).
MAX_SLOTS = 2
EXP_SLOTS = 2                      # beside the exponential: the multiply-add before, the sum after
PACK_SLOTS = 1                     # float32 → 16 bits, two at a time at half rate
SOFTMAX_SLOTS = MAX_SLOTS + EXP_SLOTS + PACK_SLOTS
EMULATED_SLOTS = 10                # exp2 on the float32 lanes: range reduction 3, cubic 3, exponent 4
ROLE_REGISTERS = 32                # of a thread with one role, beside its tiles; estimated
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float8": 1}


@dataclass(frozen=True)
class Rates:
    """What one SM does in a clock, at best, and the clock."""

    matmul_flops: float
    exps: float
    copy_bytes: float
    element_bytes: int
    clock_hz: float
    sms: int
    copy_latency: float = COPY_LATENCY
    lanes: float = LANES
    shared_bytes: float = SHARED_BYTES_PER_CLOCK


def rates(gpu, dtype: str = "bfloat16", copy_from: str = "L2") -> Rates:
    """Return an SM's rates from a spec sheet: `rates("H100").matmul_flops` is 4096.

    Args:
        gpu: name or sheet.  dtype: "bfloat16", "float16" or "float8".
        copy_from: "L2" or "HBM": whose bandwidth the SMs share when they fetch K and V.
    """
    check_choice("dtype", dtype, tuple(ELEMENT_BYTES))
    check_choice("copy_from", copy_from, ("L2", "HBM"))
    gpu = hardware.get(gpu)
    known = gpu.matmul_flops_per_s.get(dtype)
    if known is None:
        raise ValueError(f"gpu: expected a sheet with a {dtype} rate, got {gpu.name}")
    sms, clock = int(gpu.fact("sms")), float(gpu.fact("clock_hz"))
    from_hbm = float(gpu.fact("hbm_bytes_per_s")) / sms / clock
    copy = L2_BYTES_PER_CLOCK / sms if copy_from == "L2" else from_hbm
    exps = round(float(gpu.fact("exps_per_s")) / sms / clock)
    return Rates(round(float(known) / sms / clock), exps, copy, ELEMENT_BYTES[dtype], clock, sms)


def slot_and_parity(index: int, stages: int) -> tuple[int, int]:
    """Return where tile `index` lies in a ring of slots, and the parity of its barrier's phase."""
    lap, slot = divmod(index, stages)
    return slot, lap % 2


@dataclass(frozen=True)
class Ring:
    """A ring of shared-memory slots for tiles of K or V: a full and an empty barrier for each."""

    name: str
    stages: int
    place: Callable[[int, int], tuple[int, int]] = slot_and_parity

    def slot(self, j: int) -> str:
        return f"{self.name} slot {self.place(j, self.stages)[0]}"

    def full(self, j: int):
        """The consumer waits until tile j has arrived."""
        slot, parity = self.place(j, self.stages)
        return wait(f"{self.name} full[{slot}]", parity)

    def empty(self, j: int):
        """The producer waits until the slot of tile j is free, as it is on the first lap."""
        slot, parity = self.place(j, self.stages)
        return wait(f"{self.name} empty[{slot}]", parity ^ 1)

    def release(self, j: int):
        """A consumer will not read tile j again."""
        return arrive(f"{self.name} empty[{self.place(j, self.stages)[0]}]")

    def arrival(self, j: int) -> tuple[str, ...]:
        return (f"{self.name} full[{self.place(j, self.stages)[0]}]",)


@dataclass(frozen=True)
class Sm:
    """The operations of one program, sized by its tiles; w counts consumers, j key tiles.

    emulate: share of exponentials computed on the float32 lanes.  rescales: share of the key tiles
    after the first that rescale O.  rows: query rows of one consumer.  matmul_latency: cycles from the
    end of a matmul's work until whoever waits for it goes on.
    """

    rates: Rates
    d: int
    rows: int
    keys: int
    tiles: int
    consumers: int
    stages: int
    k: Ring
    v: Ring
    emulate: float = 0.0
    rescales: float = 1.0
    emulated_slots: float = EMULATED_SLOTS
    matmul_latency: float = 0.0

    def _copy(self, what, j, rows, **more) -> Op:
        bytes_ = rows * self.d * self.rates.element_bytes
        return Op(what, j, {"copy": bytes_ / self.rates.copy_bytes}, self.rates.copy_latency, **more)

    def copy_q(self) -> Op:
        return self._copy("Q", None, self.rows * self.consumers, writes={"Q": "Q"}, arrives=("Q full",))

    def copy_k(self, j: int) -> Op:
        return self._copy("K", j, self.keys, writes={self.k.slot(j): f"K {j}"},
                          arrives=self.k.arrival(j))

    def copy_v(self, j: int) -> Op:
        return self._copy("V", j, self.keys, writes={self.v.slot(j): f"V {j}"},
                          arrives=self.v.arrival(j))

    def store(self, w: int) -> Op:
        return self._copy("O", None, self.rows, reads={f"O of {w}": f"O {self.tiles - 1}"})

    def _matmul(self, what, j, operand_rows, **more) -> Op:
        flops = 2 * self.rows * self.keys * self.d
        operands = operand_rows * self.d * self.rates.element_bytes
        return Op(what, j, {"tensor": flops / self.rates.matmul_flops,
                            "shared": operands / self.rates.shared_bytes}, self.matmul_latency,
                  **more)

    def qk(self, w: int, j: int, then: tuple[str, ...] = ()) -> Op:
        """S = Q·Kᵀ: both operands come from shared memory; `then` gets the turn at its end."""
        return self._matmul("QK", j, self.rows + self.keys, passes=then,
                            reads={"Q": "Q", self.k.slot(j): f"K {j}"}, writes={f"S of {w}": f"S {j}"})

    def pv(self, w: int, j: int, then: tuple[str, ...] = ()) -> Op:
        """O += P·V: P comes from registers, V from shared memory; `then` as in `qk`."""
        old = {} if j == 0 else {f"O of {w}": self.old_o(j)}
        return self._matmul("PV", j, self.keys, passes=then, writes={f"O of {w}": f"O {j}"},
                            reads={f"P of {w}": f"P {j}", self.v.slot(j): f"V {j}", **old})

    def _logits(self, slots: float) -> float:
        return slots * self.rows * self.keys / self.rates.lanes

    def max(self, w: int, j: int) -> Op:
        return Op("max", j, {"alu": self._logits(MAX_SLOTS)}, reads={f"S of {w}": f"S {j}"},
                  writes={f"m of {w}": f"m {j}"})

    def exp(self, w: int, j: int) -> Op:
        """P in place of S: exponentials, and on the float32 lanes what comes before and after."""
        hard = (1 - self.emulate) * self.rows * self.keys / self.rates.exps
        soft = self._logits(EXP_SLOTS + self.emulate * self.emulated_slots)
        return Op("exp", j, {"exp": hard, "alu": soft},
                  reads={f"S of {w}": f"S {j}", f"m of {w}": f"m {j}"}, writes={f"S of {w}": f"E {j}"})

    def pack(self, w: int, j: int) -> Op:
        """P in 16 bits, where the next P·V finds it."""
        return Op("pack", j, {"alu": self._logits(PACK_SLOTS)}, reads={f"S of {w}": f"E {j}"},
                  writes={f"P of {w}": f"P {j}"})

    def softmax(self, w: int, j: int):
        """Maximum, exponentials, 16 bits: one after the other."""
        yield run(self.max(w, j))
        yield run(self.exp(w, j))
        yield run(self.pack(w, j))

    def is_rescaled(self, j: int) -> bool:
        """Whether tile j rescales O: never the first, and of the others the share `rescales`."""
        return j > 0 and math.floor(j * self.rescales) > math.floor((j - 1) * self.rescales)

    def old_o(self, j: int) -> str:
        return f"O {j - 1}" + (f"·α{j}" if self.is_rescaled(j) else "")

    def rescale(self, w: int, j: int):
        """Scale O by α of tile j, if this tile does."""
        if self.is_rescaled(j):
            yield run(Op("rescale", j, {"alu": self.rows * self.d / self.rates.lanes},
                         reads={f"O of {w}": f"O {j - 1}", f"m of {w}": f"m {j}"},
                         writes={f"O of {w}": self.old_o(j)}))
