"""A fixed table of configurations by GPU generation, dtype and head dimension: no call waits.

On request `flashlib.kernels.tune` looks for better than the table's entry, for one shape on one GPU.
A configuration that no kernel could be compiled in is refused where it is made.

The rows for Hopper were measured on an H200 (see `assets/measurements/`). The others are not measured:
they fit the shared memory of their generation and, in 16 bits, keep everything in registers (but for
TURING's gradients at 256), which `tests/lens` checks by compiling them.
"""

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

# What a configuration can hold, from and to; whether it fits into shared memory its first call says.
POWERS_OF_2 = {"BLOCK_M": (8, 256), "BLOCK_N": (8, 256), "num_warps": (1, 32), "O_PARTS": (1, 2),
               "KEYS": (8, 2**20), "UNITS": (1, 64)}
COUNTS = {"num_stages": (1, 8), "CONSUMERS": (2, 3), "STAGES": (1, 16), "Q_SLOTS": (1, 4),
          "K_STAGES": (1, 8), "V_STAGES": (1, 8), "EMULATED": (0, 2)}
LARGEST_TAU = 8                                             # in powers of 2: float16 ends at 16
WARPGROUP_ROWS = 64                                         # that a matrix instruction of Hopper takes
FUSED_KEYS = 2 * WARPGROUP_ROWS                             # of a program of the fused backward


def _expect(name: str, value, kind: type) -> None:
    """Raise ValueError unless a field can have this value."""
    if kind is bool:
        right, expected = type(value) is bool, "True or False"
    elif kind is float:
        right = type(value) in (int, float) and math.isfinite(value) and 0 <= value <= LARGEST_TAU
        expected = f"a number from 0 to {LARGEST_TAU}"
    elif name in POWERS_OF_2:
        least, most = POWERS_OF_2[name]
        right = type(value) is int and least <= value <= most and value & (value - 1) == 0
        expected = f"a power of 2 from {least} to {most}"
    else:
        least, most = COUNTS[name]
        right = type(value) is int and least <= value <= most
        expected = f"an integer from {least} to {most}"
    if not right:
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


class _Validated:
    """A named tuple of numbers and switches whose constructor looks at each of them."""

    __slots__ = ()
    if TYPE_CHECKING:                                       # of the named tuple beside it
        def _asdict(self) -> dict[str, Any]: ...

    def __new__(cls, *values, **named):
        made = super().__new__(cls, *values, **named)
        made._validate()
        return made

    def _validate(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            _expect(name, getattr(self, name), kind)

    def _replace(self, **changes):                          # NamedTuple's own goes past the constructor
        return type(self)(**(self._asdict() | changes))


class _Triton(NamedTuple):
    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


class TritonConfig(_Validated, _Triton):
    """Rows of a query and of a key tile, warps of a program, stages of the load pipeline."""

    __slots__ = ()


class _Parts(NamedTuple):
    forward: TritonConfig
    dkdv: TritonConfig | None
    dk: TritonConfig | None
    dv: TritonConfig | None
    dq: TritonConfig


class TritonConfigs(_Validated, _Parts):
    """The configurations of one case: forward, dK and dV (one kernel, or one each), dQ."""

    __slots__ = ()

    def _validate(self) -> None:
        present = {name for name, value in self._asdict().items() if value is not None}
        if present not in ({"forward", "dkdv", "dq"}, {"forward", "dk", "dv", "dq"}):
            raise ValueError("config: expected forward, dq, and dkdv or both dk and dv, got"
                             f" {', '.join(sorted(present)) or 'none'}")


class _Gluon(NamedTuple):
    BLOCK_N: int
    CONSUMERS: int
    STAGES: int
    Q_SLOTS: int = 2
    O_PARTS: int = 1
    PING_PONG: bool = True
    OVERLAP: bool = True
    UNDER_SOFTMAX: bool = True
    PERSISTENT: bool = True
    SPECIALIZED: bool = True
    EMULATED: int = 0
    TAU: float = 0.0


class GluonConfig(_Validated, _Gluon):
    """Rows of a key tile, consumer warpgroups, slots of the ring; then what can be switched.

    Without SPECIALIZED the warps that compute also ask for tiles, only OVERLAP counts, and CONSUMERS
    must be 2. EMULATED of four exponentials and the threshold TAU are ideas of FlashAttention-4. The
    8-bit kernel knows only PING_PONG and PERSISTENT.
    """

    __slots__ = ()

    def _validate(self) -> None:
        super()._validate()
        if not self.SPECIALIZED and self.CONSUMERS != 2:
            raise ValueError(f"CONSUMERS: expected 2 without SPECIALIZED, got {self.CONSUMERS}")

    @property
    def BLOCK_M(self) -> int:
        """Rows of a query tile."""
        return self.CONSUMERS * WARPGROUP_ROWS


class _GluonBackward(NamedTuple):
    STAGES: int = 2
    K_STAGES: int = 2
    V_STAGES: int = 1


class GluonBackwardConfig(_Validated, _GluonBackward):
    """Tiles in flight: of Q and dO by key tile; of K, and of V, in the kernel of wide heads' dQ."""

    __slots__ = ()


class _Decode(NamedTuple):
    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int
    KEYS: int
    UNITS: int


class DecodeConfig(_Validated, _Decode):
    """As `TritonConfig`; keys of a unit, and units of a run. These two decide the bits of a result."""

    __slots__ = ()

    def _validate(self) -> None:
        super()._validate()
        if self.KEYS < self.BLOCK_N:
            raise ValueError(f"KEYS: expected at least BLOCK_N, {self.BLOCK_N}, got {self.KEYS}")


def _row(forward, dkdv, dq, *, dk=None, dv=None) -> TritonConfigs:
    return TritonConfigs(*(None if c is None else TritonConfig(*c)
                           for c in (forward, dkdv, dk, dv, dq)))


# head dimension (padded to a power of 2) → configuration, for 16-bit floats.
HOPPER = {
    (16, False): _row((64, 128, 4, 3), (64, 64, 4, 3), (64, 64, 4, 3)),
    (32, False): _row((64, 128, 4, 3), (64, 64, 4, 3), (64, 64, 4, 3)),
    (64, False): _row((64, 128, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3)),
    (128, False): _row((128, 64, 4, 2), (64, 64, 4, 2), (128, 64, 8, 3)),
    (256, False): _row((128, 64, 8, 2), None, (64, 64, 4, 2), dk=(32, 64, 4, 2), dv=(64, 128, 8, 2)),
    (16, True): _row((64, 128, 4, 3), (64, 64, 4, 3), (64, 64, 4, 3)),
    (32, True): _row((64, 128, 4, 3), (32, 128, 4, 3), (64, 64, 4, 3)),
    (64, True): _row((64, 64, 4, 4), (32, 64, 4, 3), (128, 64, 8, 3)),
    (128, True): _row((64, 64, 4, 3), (32, 64, 4, 3), (128, 64, 8, 3)),
    (256, True): _row((128, 64, 8, 2), None, (64, 64, 4, 2), dk=(32, 64, 4, 2), dv=(32, 128, 8, 2)),
}
AMPERE = {
    16: _row((128, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2)),
    32: _row((128, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2)),
    64: _row((128, 32, 4, 3), (32, 64, 4, 2), (64, 32, 4, 2)),
    128: _row((128, 32, 8, 2), (32, 64, 8, 2), (64, 32, 8, 2)),
    256: _row((64, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)),
}
BLACKWELL = {  # a tcgen05 instruction multiplies 64 rows or more
    16: _row((128, 64, 4, 3), (64, 64, 4, 2), (128, 64, 4, 2)),
    32: _row((128, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2)),
    64: _row((128, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2)),
    128: _row((128, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 2)),
    256: _row((128, 64, 8, 2), (64, 64, 8, 1), (64, 64, 8, 1)),
}
ADA = {  # and GeForce Ampere: 99 KiB of shared memory
    **dict.fromkeys((16, 32, 64), _row((64, 64, 4, 2), (32, 64, 4, 1), (64, 32, 4, 1))),
    128: _row((64, 16, 4, 2), (32, 32, 4, 1), (32, 32, 4, 1)),
    256: _row((64, 32, 8, 1), (16, 32, 8, 1), (32, 16, 8, 1)),
}
GEFORCE_BLACKWELL = {  # 99 KiB, too
    16: _row((64, 64, 4, 1), (32, 64, 4, 2), (64, 32, 4, 1)),
    32: _row((64, 64, 4, 2), (32, 64, 4, 1), (64, 32, 4, 1)),
    64: _row((64, 64, 4, 2), (32, 64, 4, 1), (64, 32, 4, 2)),
    128: _row((64, 16, 8, 1), (32, 32, 8, 1), (32, 32, 4, 1)),
    256: _row((32, 32, 8, 1), (16, 32, 8, 1), (16, 32, 8, 1)),
}
TURING = {  # 64 KiB, and Triton multiplies without tensor cores there: operands wait in registers
    16: _row((32, 32, 4, 1), (16, 32, 4, 1), (64, 32, 4, 1)),
    32: _row((32, 32, 8, 1), (16, 32, 4, 1), (32, 32, 8, 1)),
    64: _row((32, 16, 8, 1), (16, 16, 8, 1), (16, 16, 8, 1)),
    128: _row((32, 16, 8, 1), (16, 16, 8, 1), (8, 16, 8, 1)),
    256: _row((16, 16, 8, 1), None, (8, 16, 8, 1), dk=(16, 16, 8, 1), dv=(16, 16, 8, 1)),
}
FLOAT32 = {
    **dict.fromkeys((16, 32, 64), _row((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1))),
    128: _row((32, 32, 8, 1), (16, 32, 8, 1), (32, 16, 8, 1)),
    256: _row((16, 16, 8, 1), (16, 16, 8, 1), (16, 16, 8, 1)),
}
TURING_FLOAT32 = FLOAT32 | {256: _row((16, 16, 8, 1), (16, 8, 8, 1), (16, 16, 8, 1))}


# Backend → direction → the class of what it can be configured in, and tuned. A new backend enters here.
BACKENDS: dict[str, dict[str, type]] = {
    "triton": {"forward": TritonConfig, "backward": TritonConfigs},
    "gluon": {"forward": GluonConfig, "backward": GluonBackwardConfig},
    "decode": {"forward": DecodeConfig}, "reference": {},
}


def padded(D: int) -> int:
    """Return the head dimension that a kernel works with: D up to a power of 2, at least 16."""
    return max(16, 1 << (D - 1).bit_length())


def multiplied(D: int) -> int:
    """Return how many columns a Hopper kernel sums over: half of the padded ones, and a power of 2."""
    half = max(32, padded(D)) // 2
    return half + max(16, 1 << max(0, D - half - 1).bit_length())


def configs_for(capability: tuple[int, int] | None, itemsize: int, D: int,
                causal: bool) -> TritonConfigs:
    """Return the table's entry; `capability` is (major, minor), None for the interpreter."""
    head_dim = padded(D)
    if capability is None or itemsize == 4:
        turing = capability is not None and capability < (8, 0)
        return (TURING_FLOAT32 if turing else FLOAT32)[head_dim]
    if capability[0] == 9:
        return HOPPER[head_dim, causal]
    if capability in ((8, 0), (8, 7)):
        return AMPERE[head_dim]
    if capability in ((10, 0), (10, 3)):
        return BLACKWELL[head_dim]
    if capability[0] == 12:
        return GEFORCE_BLACKWELL[head_dim]
    return (TURING if capability < (8, 0) else ADA)[head_dim]


# head dimension → keys of a tile, warps, stages; a query tile has 16, 32 or 64 rows.
DECODE_HOPPER = {16: (128, 4, 4), 32: (128, 4, 4), 64: (128, 4, 4), 128: (64, 4, 4), 256: (64, 4, 3)}
DECODE = {16: (64, 4, 3), 32: (64, 4, 3), 64: (64, 4, 3), 128: (32, 4, 3), 256: (32, 8, 2)}
DECODE_TURING = {16: (32, 4, 1), 32: (32, 4, 1), 64: (16, 4, 1), 128: (16, 8, 1), 256: (16, 8, 1)}
DECODE_FLOAT32 = {16: (32, 4, 1), 32: (32, 4, 1), 64: (32, 4, 1), 128: (32, 8, 1), 256: (16, 8, 1)}
# Rows of a query tile → keys of a unit and units of a run. If every unit is a part of its own, partial
# results are 2 · rows / keys of K and V, so that more rows have larger ones.
DECODE_CUTS = {16: (256, 8), 32: (512, 4), 64: (1024, 1)}


def decode_config_for(capability: tuple[int, int] | None, itemsize: int, D: int,
                      rows: int) -> DecodeConfig:
    """Return the table's entry to decode `rows` packed rows of queries.

    It knows nothing of the batch, of lengths or of the number of SMs: a sequence is cut alike in any
    company, however much room it has.
    """
    if capability is None or itemsize == 4:
        table, most = DECODE_FLOAT32, 32
    elif capability[0] == 9:
        table, most = DECODE_HOPPER, 64
    else:
        table, most = (DECODE_TURING, 16) if capability < (8, 0) else (DECODE, 32)
    block_m = next(m for m in DECODE_CUTS if m >= rows or m == most)
    block_n, warps, stages = table[padded(D)]
    if block_m > 16 and table is DECODE_HOPPER:             # so that two programs share an SM
        block_n, stages = 64, 3 if block_m == 64 else stages
    if block_m > 16 and padded(D) > 128:                    # the accumulators stay in registers
        warps = 8
    return DecodeConfig(block_m, block_n, warps, stages, *DECODE_CUTS[block_m])


def candidates(width: int, rows, keys, warps, stages, most_registers: float) -> list[TritonConfig]:
    """Return every configuration of these whose accumulators a thread can nearly hold.

    A thread of w warps has BLOCK_M · (width + BLOCK_N) / 32w of them; `width` is the head dimension.
    """
    return [TritonConfig(m, n, w, s) for m, n, w, s in itertools.product(rows, keys, warps, stages)
            if m * (width + n) / (32 * w) <= most_registers]


# PV under the softmax is off where an H200 under sustained load was faster without, or as fast.
GLUON = {  # (head dimension, whether a mask cuts tiles: causal, or keys that no tile divides)
    (32, False): GluonConfig(128, 3, 4, TAU=8.0),
    (64, False): GluonConfig(128, 3, 3, TAU=8.0),
    (128, False): GluonConfig(64, 3, 4, Q_SLOTS=1, UNDER_SOFTMAX=False, TAU=8.0),
    (256, False): GluonConfig(64, 2, 2, Q_SLOTS=1, O_PARTS=2, UNDER_SOFTMAX=False, TAU=8.0),
    (32, True): GluonConfig(128, 3, 3, UNDER_SOFTMAX=False, TAU=8.0),
    (64, True): GluonConfig(128, 3, 3, UNDER_SOFTMAX=False, TAU=8.0),
    (128, True): GluonConfig(64, 3, 4, Q_SLOTS=1, UNDER_SOFTMAX=False, TAU=8.0),
    (256, True): GluonConfig(64, 2, 2, Q_SLOTS=1, O_PARTS=2, UNDER_SOFTMAX=False, TAU=8.0),
}
# 192 do not divide 1,024 rows: the last tile, with a mask the longest, is two thirds empty, and the
# diagonal cuts more of taller tiles. So for few rows 128 are faster, at d = 128 without a mask as well;
# 1,024, 2,048 and 4,096 were timed. With ragged keys, 192 rows and key tiles of 128 do not fit into
# registers at d = 64.
SHORT, SHORTER = 2048, 1024                                 # with a causal mask, and without
SHORT_64, SHORT_128 = GluonConfig(128, 2, 4, TAU=8.0), GluonConfig(128, 2, 2, TAU=8.0)
# The masks of a window take registers: with taller tiles the kernel spills, and at 256 with a stale
# maximum. Of these only 128 was timed, and against no other tiles (windows_h200.csv).
GLUON_WINDOW = {32: GLUON[32, True], 64: SHORT_64, 128: SHORT_128,
                256: GLUON[256, True]._replace(TAU=0.0)}
# What tuning tries: head dimension → BLOCK_N, CONSUMERS, STAGES, Q_SLOTS;
# and PING_PONG, UNDER_SOFTMAX, TAU.
GLUON_TILES = {
    32: ((128, 3, 3, 2), (128, 3, 4, 2), (128, 2, 4, 2)),
    64: ((128, 3, 3, 2), (128, 3, 4, 2), (128, 2, 4, 2), (64, 3, 6, 2)),
    128: ((128, 2, 2, 2), (64, 2, 4, 2), (64, 3, 4, 1)),
    256: ((64, 2, 2, 1),),
}
GLUON_SWITCHES = tuple(itertools.product((True, False), (True, False), (0.0, 8.0)))
FP8 = dict.fromkeys(itertools.product((64, 128), (False, True)), GluonConfig(128, 2, 4)) | {
    (256, causal): GluonConfig(64, 2, 2, PING_PONG=False) for causal in (False, True)}
# By head dimension; of 128 and 256 columns no more tiles fit.
GLUON_BACKWARD = {32: GluonBackwardConfig(3), 64: GluonBackwardConfig(4),
                  128: GluonBackwardConfig(), 256: GluonBackwardConfig()}
# Registers of a thread that the launch asks for, by consumers; the kernels deal them out anew.
REGISTERS = {2: 168, 3: 128}


# Of a state, where masks cut tiles: at 64 columns more would spill. Without masks as above.
GLUON_INTO = {head_dim: GLUON[head_dim, True] for head_dim in (32, 128, 256)} | {
    64: GluonConfig(64, 3, 6, UNDER_SOFTMAX=False, TAU=8.0)}
GLUON_INTO_WINDOW = GluonConfig(64, 2, 4, TAU=8.0)          # at 128 columns


def gluon_config_into(head_dim: int, window: bool, causal: bool, N_K: int) -> GluonConfig:
    """Return the Gluon table's entry for keys that are folded into a state."""
    whole = GLUON[head_dim, False]
    if window and head_dim == 128:
        return GLUON_INTO_WINDOW
    return GLUON_INTO[head_dim] if window or causal or N_K % whole.BLOCK_N else whole


def gluon_config_for(D: int, causal: bool, N_K: int, N_Q: int | None = None) -> GluonConfig:
    """Return the Gluon table's entry without a window; N_Q is N_K unless given."""
    head_dim = max(32, padded(D))
    ragged = N_K % GLUON[head_dim, False].BLOCK_N != 0
    if head_dim == 64 and (ragged or (causal and N_K <= SHORT)):
        return SHORT_64
    fewest = N_K if N_Q is None else min(N_Q, N_K)
    if head_dim == 128 and (fewest <= SHORTER or (causal and fewest <= SHORT)):
        return SHORT_128
    return GLUON[head_dim, causal or ragged]
