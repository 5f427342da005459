"""A fixed table of tile sizes by GPU generation, dtype and head dimension: no call waits.

On request `flashlib.kernels.tune` looks for better than the table's entry, for one shape on one GPU.

The rows for Hopper were measured on an H200 (see `assets/measurements/`). The others are not measured:
they fit the shared memory of their generation and, in 16 bits, keep everything in registers (but for
TURING's gradients at 256), which `tests/lens` checks by compiling them.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple


class Config(NamedTuple):
    """Rows of a query and of a key tile, warps of a program, stages of the load pipeline."""

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


class Configs(NamedTuple):
    """The configurations of one case: forward, dK and dV (one kernel, or one each), dQ."""

    forward: Config
    dkdv: Config | None
    dk: Config | None
    dv: Config | None
    dq: Config


def _row(forward, dkdv, dq, *, dk=None, dv=None) -> Configs:
    return Configs(*(None if c is None else Config(*c) for c in (forward, dkdv, dk, dv, dq)))


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
    16: _row((64, 64, 4, 2), (32, 64, 4, 1), (64, 32, 4, 1)),
    32: _row((64, 64, 4, 2), (32, 64, 4, 1), (64, 32, 4, 1)),
    64: _row((64, 64, 4, 2), (32, 64, 4, 1), (64, 32, 4, 1)),
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
    16: _row((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1)),
    32: _row((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1)),
    64: _row((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1)),
    128: _row((32, 32, 8, 1), (16, 32, 8, 1), (32, 16, 8, 1)),
    256: _row((16, 16, 8, 1), (16, 16, 8, 1), (16, 16, 8, 1)),
}
TURING_FLOAT32 = FLOAT32 | {256: _row((16, 16, 8, 1), (16, 8, 8, 1), (16, 16, 8, 1))}


def padded(D: int) -> int:
    """Return the head dimension that a kernel works with: D up to a power of 2, at least 16."""
    return max(16, 1 << (D - 1).bit_length())


def configs_for(capability: tuple[int, int] | None, itemsize: int, D: int, causal: bool) -> Configs:
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


def tiles(width: int, rows, keys, warps, stages, most_registers: float) -> list[Config]:
    """Return every `Config` of these whose accumulators a thread can nearly hold.

    A thread of w warps has BLOCK_M · (width + BLOCK_N) / 32w of them; `width` is the head dimension.
    """
    return [Config(m, n, w, s) for m, n, w, s in itertools.product(rows, keys, warps, stages)
            if m * (width + n) / (32 * w) <= most_registers]
