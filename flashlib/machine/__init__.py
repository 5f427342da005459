"""The paper GPU: HBM, an SRAM with a capacity, a trace, and a count of bytes, FLOPs and exponentials.

`machine` has the GPU, `values` what it computes with, `traffic` and `trace` what it writes down,
`thread_block` the warps of one block, and `ranks` the links between several GPUs.
"""

from flashlib.errors import HBMReadError, SRAMOverflow
from flashlib.machine.machine import Machine
from flashlib.machine.values import HBMArray, Tile, Value

__all__ = ["HBMArray", "HBMReadError", "Machine", "SRAMOverflow", "Tile", "Value"]
