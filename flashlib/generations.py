"""What one SM holds, by compute capability: the limits that stop the next block.

Numbers: NVIDIA CUDA Programming Guide, Compute Capabilities, tables of technical specifications and of
memory information. `flashlib.hardware` has the sheets of whole GPUs.
"""

from typing import NamedTuple

MOST_REGISTERS = 255               # of a thread, of 4 bytes each, on every generation


class SM(NamedTuple):
    """What one SM holds at a time; `shared_per_block_bytes` is the most that one block may ask for.

    What an SM has beyond that, the system keeps with every block: 1 KiB since sm_80.
    """

    warps: int
    blocks: int
    shared_bytes: int
    shared_per_block_bytes: int
    registers: int = 65_536


GENERATIONS = {
    "sm_70": SM(64, 32, 96 << 10, 96 << 10),
    "sm_75": SM(32, 16, 64 << 10, 64 << 10),
    "sm_80": SM(64, 32, 164 << 10, 163 << 10),
    "sm_86": SM(48, 16, 100 << 10, 99 << 10),
    "sm_89": SM(48, 24, 100 << 10, 99 << 10),
    "sm_90": SM(64, 32, 228 << 10, 227 << 10),
    "sm_100": SM(64, 32, 228 << 10, 227 << 10),
    "sm_120": SM(48, 24, 100 << 10, 99 << 10),
}
