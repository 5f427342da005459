"""One thread block of paper, one level below the machine: warps, their registers, shared memory.

What counts is fixed here, and not by the author of a program:

* a warp reads shared memory by `warp.load` and writes it by `warp.store`, which count the bytes;
* it computes with what it loaded, and with nothing that another warp holds in its registers;
* every value that it computes has the shape of registers that it declared with `warp.tile`;
* what one warp wrote is there for another only after `block.barrier()`, which counts: a load or a
  store that would depend on which warp came first raises `WarpRace`.

The operands of a matmul stream through registers a sliver at a time, as on a tensor core, so only
declared tiles (accumulators, statistics) take room there. `flashlib.Machine` counts how tiles reach
shared memory from HBM. Taught in notebook 08.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from flashlib.arguments import check_block, check_plain
from flashlib.generations import MOST_REGISTERS
from flashlib.machine.traffic import Moved, summed

THREADS_PER_WARP = 32
KINDS = ("element", "stats", "accumulator")


class WarpRace(RuntimeError):
    """Two warps touched the same place of shared memory, one of them writing, without a barrier."""


class RegisterSpill(ValueError):
    """The tiles that a warp declared do not fit into its registers."""


class WarpReadError(TypeError, AttributeError):
    """A warp used something that it had not loaded from shared memory."""


@dataclass(frozen=True)
class BlockCost:
    """What a program of one thread block costs, counted or given by a closed form.

    `by_tensor` holds the bytes of shared memory that warps read and wrote; `exchanged_bytes` is the
    part of them that moved through buffers which the warps themselves filled.
    """

    shared_read_bytes: int = 0
    shared_write_bytes: int = 0
    exchanged_bytes: int = 0
    barriers: int = 0
    matmul_flops: int = 0
    register_peak_bytes: int = 0
    by_tensor: dict[str, Moved] = field(default_factory=dict)

    @classmethod
    def of(cls, by_tensor, exchanged=(), barriers=0, matmul_flops=0, register_peak_bytes=0):
        """Make a cost whose totals are the sums of `by_tensor`; `exchanged` names the buffers."""
        moved, read_bytes, write_bytes = summed(by_tensor)
        return cls(read_bytes, write_bytes,
                   sum(m.total_bytes for name, m in moved.items() if name in exchanged),
                   barriers, int(matmul_flops), int(register_peak_bytes), moved)

    @property
    def shared_bytes(self) -> int:
        """All bytes between shared memory and registers, both directions."""
        return self.shared_read_bytes + self.shared_write_bytes


class SharedArray(NDArrayOperatorsMixin):
    """An array in shared memory. `K[keys]` is an address: nothing moves before `warp.load`."""

    def __init__(self, block, name, array, kind, buffer):
        self._block, self._array, self.name, self.kind, self.buffer = block, array, name, kind, buffer
        self._writer, self._written = np.full(array.shape, -1), np.full(array.shape, -1)
        self._reader, self._read = np.full(array.shape, -1), np.full(array.shape, -1)

    @property
    def shape(self):
        return self._array.shape

    def __getitem__(self, index) -> SharedArray:
        for i in index if isinstance(index, tuple) else (index,):
            if not isinstance(i, slice | int | np.integer):
                raise TypeError(f"{self.name}: address shared memory by slices and whole numbers,"
                                f" got index {index!r}")
        part = object.__new__(SharedArray)
        vars(part).update(vars(self))
        for log in ("_array", "_writer", "_written", "_reader", "_read"):
            setattr(part, log, getattr(self, log)[(*np.index_exp[index], ...)])
        return part

    def _refuse(self, *args, **kwargs):
        raise WarpReadError(f"{self.name} lies in shared memory: warp.load({self.name}[...]) first")

    __getattr__ = __iter__ = __float__ = __bool__ = _refuse
    __array__ = __array_ufunc__ = __array_function__ = _refuse

    def __repr__(self):
        return f"<shared {self.name} {self.shape} {self.kind}>"


class Fragment(NDArrayOperatorsMixin):
    """What one warp computes with: its own registers, with arithmetic that counts itself."""

    def __init__(self, warp, array):
        self._warp, self._array = warp, array

    @property
    def shape(self):
        return self._array.shape

    @property
    def T(self) -> Fragment:
        return Fragment(self._warp, self._array.T)

    def __getitem__(self, index) -> Fragment:
        return Fragment(self._warp, self._array[index])

    def __array__(self, *args, **kwargs):
        raise WarpReadError("registers are not a NumPy array: look at a copy with block.peek(value)")

    def max(self, axis: int) -> Fragment:
        return self._warp._result(self._array.max(axis=axis))

    def sum(self, axis: int) -> Fragment:
        return self._warp._result(self._array.sum(axis=axis))

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if method != "__call__" or kwargs or out is not None:
            raise WarpReadError(f"np.{ufunc.__name__}.{method} is not among a warp's instructions")
        arrays = [self._warp._operand(value) for value in inputs]
        with np.errstate(all="ignore"):
            result = ufunc(*arrays)
        if ufunc is np.matmul:
            self._warp.block._matmul_flops += 2 * result.size * arrays[0].shape[-1]
        return self._warp._result(result)

    def __repr__(self):
        return f"<registers of warp {self._warp.index} {self.shape}>"


class Tile(Fragment):
    """Registers that a warp declared; assign with `tile[...] = value`."""

    def __init__(self, warp, name, array, size_bytes):
        super().__init__(warp, array)
        self.name, self.size_bytes = name, size_bytes

    def __setitem__(self, index, value) -> None:
        self._array[index] = self._warp._operand(value)


class Warp:
    """32 threads that share registers: they load, compute and store, and see no other warp's."""

    def __init__(self, block, index):
        self.block, self.index = block, index
        self.used_bytes = self.peak_bytes = 0
        self._tiles: dict[int, Tile] = {}

    def load(self, source: SharedArray) -> Fragment:
        """Bring a range of shared memory to this warp's registers, and count its bytes."""
        self._check(source)
        self._race(source, source._writer, source._written, "reads", "wrote")
        now = self.block.barriers
        several = (source._read == now) & (source._reader != self.index)
        source._reader[...] = np.where(several, self.block.warps, self.index)
        source._read[...] = now
        self.block._move(source, 0)
        return Fragment(self, source._array.copy())

    def store(self, value, target: SharedArray) -> None:
        """Write registers to a range of shared memory, and count its bytes."""
        self._check(target)
        array = self._operand(value)
        if np.shape(array) != target.shape:
            raise ValueError(f"value: expected shape {target.shape} as in {target.name},"
                             f" got {np.shape(array)}")
        if not target.buffer:
            raise ValueError(f"target: {target.name} is an input, which no warp may overwrite")
        self._race(target, target._writer, target._written, "writes", "wrote")
        self._race(target, target._reader, target._read, "writes", "read")
        target._array[...] = array
        target._writer[...], target._written[...] = self.index, self.block.barriers
        self.block._move(target, 1)

    def tile(self, name: str, *shape: int, kind: str = "accumulator", fill: float = np.nan) -> Tile:
        """Declare registers for a tile of this warp."""
        array = np.full(shape, fill)
        tile = Tile(self, name, array, array.size * self.block.bytes_of(kind))
        limit = self.block.register_bytes
        if limit is not None and self.used_bytes + tile.size_bytes > limit:
            held = ", ".join(f"{t.name} {t.shape}: {t.size_bytes:,} B"
                             for t in [*self._tiles.values(), tile])
            raise RegisterSpill(
                f"warp {self.index} would spill: its tiles [{held}] need"
                f" {self.used_bytes + tile.size_bytes:,} B and a warp has {limit:,} B of registers."
                " Take smaller tiles, or more warps.")
        self._tiles[id(tile)] = tile
        self.used_bytes += tile.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return tile

    def free(self, *tiles: Tile) -> None:
        """Give registers back."""
        for tile in tiles:
            if self._tiles.pop(id(tile), None) is None:
                raise ValueError(f"tile {tile!r} was freed already, or belongs to another warp")
            self.used_bytes -= tile.size_bytes

    def output(self, value) -> np.ndarray:
        """Return a finished result on its way to HBM, which the other machine counts."""
        return np.array(self._operand(value))

    def _check(self, address) -> None:
        if not isinstance(address, SharedArray) or address._block is not self.block:
            raise WarpReadError(f"expected an address in this block's shared memory, got {address!r}")

    def _race(self, place, who, when, does, did) -> None:
        others = (when == self.block.barriers) & (who >= 0) & (who != self.index)
        if np.any(others):
            other = int(np.max(np.where(others, who, -1)))
            whom = f"warp {other}" if other < self.block.warps else "several warps"
            raise WarpRace(f"warp {self.index} {does} {place.name} where {whom} {did} since the last"
                           " barrier: put block.barrier() between them")

    def _operand(self, value):
        if isinstance(value, Fragment):
            if value._warp is not self:
                raise WarpReadError(f"warp {self.index} cannot see the registers of warp"
                                    f" {value._warp.index}: exchange through shared memory")
            return value._array
        if isinstance(value, bool | int | float | np.generic):
            return value
        raise WarpReadError(f"an operand of type {type(value).__name__} was never loaded: put it into"
                            " shared memory with block.shared(name=array) and warp.load it")

    def _result(self, array) -> Fragment:
        shape = tuple(n for n in np.shape(array) if n != 1)
        rooms = [tuple(n for n in t.shape if n != 1) for t in self._tiles.values()]
        if shape and shape not in rooms:
            raise WarpReadError(f"a value of shape {np.shape(array)} has no registers: declare"
                                f" warp.tile(name, {', '.join(map(str, np.shape(array)))})")
        return Fragment(self, np.asarray(array))


class ThreadBlock:
    """A thread block on one SM: `warps` warps around one shared memory, and counters.

    Args:
        warps: number of warps; `block.each` holds them.
        register_bytes: registers of one warp, None for no limit. A thread has 255 of 4 bytes on
            every GPU of `flashlib.hardware`, so a warp has 32,640 B: `ThreadBlock.REGISTERS`.
        element_bytes, stats_bytes, accumulator_bytes: as on a `Machine`.
    """

    REGISTERS = MOST_REGISTERS * 4 * THREADS_PER_WARP

    def __init__(self, warps=4, register_bytes=None, element_bytes=2, stats_bytes=4,
                 accumulator_bytes=4):
        self.warps = check_block("warps", warps)
        self.register_bytes = register_bytes
        self._bytes = dict(zip(KINDS, (element_bytes, stats_bytes, accumulator_bytes), strict=True))
        for name, size in self._bytes.items():
            check_block(f"{name}_bytes", size)
        self.each = [Warp(self, index) for index in range(self.warps)]
        self.barriers = self._matmul_flops = 0
        self._moved: dict[str, list[int]] = {}
        self._buffers: set[str] = set()

    def bytes_of(self, kind: str) -> int:
        """Return the size of one element of a kind: "element", "stats" or "accumulator"."""
        if kind not in self._bytes:
            raise ValueError(f"kind: expected one of {KINDS}, got {kind!r}")
        return self._bytes[kind]

    def shared(self, **arrays: np.ndarray) -> Any:
        """Place tiles that have arrived from HBM in shared memory; one array, or a list of them."""
        for name, array in arrays.items():
            check_plain(name, array)
        placed = [SharedArray(self, name, np.array(array, float), "element", False)
                  for name, array in arrays.items()]
        return placed[0] if len(placed) == 1 else placed

    def buffer(self, name: str, shape: tuple[int, ...], *, kind: str = "accumulator") -> SharedArray:
        """Reserve shared memory through which warps exchange; it holds NaN until one stores."""
        self.bytes_of(kind)
        self._buffers.add(name)
        return SharedArray(self, name, np.full(shape, np.nan), kind, True)

    def barrier(self) -> None:
        """Let every warp wait for all others, and count it."""
        self.barriers += 1

    def peek(self, value: Fragment) -> np.ndarray:
        """Return a copy for checking and drawing; no warp can do this, so nothing is counted."""
        return np.array(value._array)

    @property
    def cost(self) -> BlockCost:
        """What was counted so far."""
        return BlockCost.of(self._moved, self._buffers, self.barriers, self._matmul_flops,
                            max(warp.peak_bytes for warp in self.each))

    def _move(self, place, direction) -> None:
        moved = self._moved.setdefault(place.name, [0, 0])
        moved[direction] += place._array.size * self.bytes_of(place.kind)
