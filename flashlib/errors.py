"""What the paper machine refuses: tiles that do not fit, reads of what no load brought, deadlocks."""


class SRAMOverflow(ValueError):
    """The tiles that a kernel declared do not fit into the SRAM.

    Attributes: `tiles`, a list of (name, shape, bytes); `needed_bytes`; `capacity_bytes`.
    """

    def __init__(self, kernel, tiles, capacity_bytes, remedy="Take smaller tiles"):
        self.tiles = list(tiles)
        self.needed_bytes = sum(size for _, _, size in self.tiles)
        self.capacity_bytes = capacity_bytes
        listed = ", ".join(f"{name} {shape}: {size:,} B" for name, shape, size in self.tiles)
        excess = self.needed_bytes - capacity_bytes
        gap = f"{excess:,} B too many" if excess > 0 else "it would fit, but the rule forbids it"
        super().__init__(
            f"SRAM overflow in kernel {kernel!r}: the tiles [{listed}] need {self.needed_bytes:,} B"
            f" and sram_bytes is {capacity_bytes:,} B ({gap}). {remedy}.")


class HBMReadError(TypeError, AttributeError):
    """Something was read that no load had brought into SRAM."""


class Deadlock(RuntimeError):
    """Ranks wait for one another for ever; the message says who waits for whom."""
