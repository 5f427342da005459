"""The paper GPU: arrays live in HBM, a kernel works on tiles in SRAM, and everything is counted.

What counts is fixed once, here, and not by the author of an algorithm:

* an array in HBM cannot be read or written except by `SRAM.load` and `SRAM.store`, which count;
* arithmetic on what was loaded counts itself: `@` as matmul FLOPs, `np.exp` and its kin, `np.tanh`
  too, as exponentials, every other elementwise operation or reduction as one vector FLOP per element;
* an operand that is neither a number nor came through a load is refused;
* every value that is computed must have the shape of a tile that the kernel declared, or of the
  part of a tile that it is computed from, so that a matrix cannot hide from the capacity;
* a kernel may branch on data only by `SRAM.vote`, which counts and is traced.

Taught in notebook 00; used by every algorithm of the course.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flashlib.arguments import check_block, check_choice, check_plain
from flashlib.errors import HBMReadError, SRAMOverflow
from flashlib.machine.trace import Event, Trace
from flashlib.machine.traffic import Moved, Traffic
from flashlib.machine.values import HBMArray, Room, Tile, Value, squeezed

KINDS = ("element", "stats", "accumulator", "mask", "half")
EXPONENTIALS = (np.exp, np.exp2, np.expm1, np.logaddexp, np.logaddexp2, np.float_power, np.tanh)


class SRAM:
    """The on-chip memory of one running kernel: load, store, make and free tiles."""

    def __init__(self, machine: Machine, kernel: str):
        self._machine, self._kernel = machine, kernel
        self.tiles: dict[int, Tile] = {}
        self.used_bytes = 0
        self.rooms: dict[tuple, Room] = {(): Room("number", tiles=1)}      # numbers need no tile

    def load(self, source: HBMArray, *, kind: str | None = None) -> Tile:
        """Copy a range of HBM into a new tile, and count its bytes.

        `kind="accumulator"` keeps the tile at accumulator precision; the transfer costs the same.
        """
        self._address("source", source)
        tile = self._allocate(source.name, source._array.copy(), kind or source.kind, source.regions)
        self._machine._move("load", source, self._kernel, self.used_bytes)
        return tile

    def store(self, value, target: HBMArray, *, atomic: bool = False) -> None:
        """Write a tile, or a value of the same shape, to a range of HBM, and count its bytes.

        `atomic` marks, in the trace, the end of a read-add-write that other programs of the same
        kernel may do to the same range: on a GPU it has to be one indivisible update.
        """
        self._address("target", target)
        array = self._machine._operand(value)
        if np.shape(array) != target.shape:
            raise ValueError(f"value: expected {target.shape} as {target.name}, got {np.shape(array)}")
        if not target._array.flags.writeable:
            raise ValueError(f"target: {target.name} is an input, which no kernel may overwrite")
        target._array[...] = array
        self._machine._move("store", target, self._kernel, self.used_bytes, atomic)

    def tile(self, name: str, *extent: slice | int, kind: str = "element",
             fill: float | np.floating = np.nan, dtype=None) -> Tile:
        """Make room for a tile; an extent is a length, or a slice that tells where the tile lies.

        The room holds `fill`, NaN unless told otherwise, so that reading what was never written
        shows.
        """
        regions = tuple((e.start, e.stop) if isinstance(e, slice) else (0, e) for e in extent)
        shape = tuple(stop - start for start, stop in regions)
        array = np.full(shape, self._machine._operand(fill), dtype or self._machine.dtype)
        return self._allocate(name, array, kind, regions)

    def free(self, *tiles: Tile) -> None:
        """Give the room of tiles back; using one afterwards raises."""
        for tile in tiles:
            if self.tiles.pop(id(tile), None) is None:
                raise ValueError(f"tile {tile!r} was freed already, or is not of this kernel")
            tile._owner.live = False
            self.used_bytes -= tile.size_bytes
            room = self.rooms[squeezed(tile.shape)]
            room.tiles -= 1
            if not room.tiles:
                self.rooms.pop(squeezed(tile.shape)).live = False
            self._machine._record(self._kernel, "free", tile.name, tile.regions, tile.size_bytes,
                                  self.used_bytes)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Free, on leaving, every tile that was made inside the `with` block."""
        before = set(self.tiles)
        try:
            yield
        finally:
            self.free(*(tile for key, tile in list(self.tiles.items()) if key not in before))

    def vote(self, question: str, rows: slice, condition) -> bool:
        """Tell whether an element of `condition` is true: a kernel may branch on that and nothing else.

        It counts one vector FLOP an element, as a reduction does, and stands in the trace under the
        name of its question, with `rows` and how many elements were true.
        """
        if not isinstance(condition, Value) or condition.dtype != bool:
            raise TypeError(f"condition: expected a tile of booleans, such as m > 0, got {condition!r}")
        count = int(np.sum(self._machine._operand(condition)))
        self._machine._vector_flops += condition._array.size
        self._machine._keep_event(Event(self._kernel, "vote", question, (rows.start, rows.stop),
                                        (0, count), 0, self.used_bytes))
        return count > 0

    def peek(self, value: Value) -> np.ndarray:
        """Return a copy for checking and drawing: no kernel can do this, so nothing is counted."""
        return np.array(value._alive())

    def _address(self, argument, hbm) -> None:
        if not isinstance(hbm, HBMArray):
            raise TypeError(f"{argument}: expected an address in HBM, such as Q[rows], got {hbm!r}")
        if hbm._machine is not self._machine:
            raise HBMReadError(f"{argument}: {hbm.name} lives in the HBM of another machine")

    def _allocate(self, name, array, kind, regions) -> Tile:
        if self._machine.sram is not self:
            raise HBMReadError(f"kernel {self._kernel!r} has ended, and its SRAM with it")
        size = array.size * self._machine.bytes_of(kind)
        tile = Tile(self._machine, name, array, kind, regions, size)
        self.tiles[id(tile)] = tile
        self.used_bytes += size
        self._machine._occupy(self, tile)
        self.rooms.setdefault(squeezed(array.shape), Room(f"shape {array.shape}")).tiles += 1
        return tile


class Machine:
    """A GPU of paper: unlimited HBM, one SRAM of `sram_bytes` (None: unlimited), and counters.

    Args:
        sram_bytes: capacity of the SRAM; a kernel whose tiles exceed it raises `SRAMOverflow`.
        element_bytes: size of an element of Q, K, V, O, S, P as it is moved and stored.
        stats_bytes: size of an element of m, l, lse.
        accumulator_bytes: size of an element of an accumulator tile in SRAM.
        record: keep a trace of events (`machine.trace`).

    The counting sizes say what a GPU would move; the arithmetic itself runs in the dtype of the
    arrays, float64 for an oracle. Taught in notebook 00.
    """

    mask_bytes = 1                     # a dropout mask is kept as one byte per weight
    half_bytes = 2                     # what an eight-bit kernel stores: a sum needs more bits

    def __init__(self, sram_bytes=None, element_bytes=2, stats_bytes=4, accumulator_bytes=4, *,
                 record=True):
        self.sram_bytes = None if sram_bytes is None else check_block("sram_bytes", sram_bytes)
        self.element_bytes = check_block("element_bytes", element_bytes)
        self.stats_bytes = check_block("stats_bytes", stats_bytes)
        self.accumulator_bytes = check_block("accumulator_bytes", accumulator_bytes)
        self.dtype = np.dtype(np.float64)
        self._keep = record
        self.sram: SRAM | None = None
        self.reset()

    @classmethod
    def or_unbounded(cls, machine: Machine | None) -> Machine:
        """Return `machine`, or for None a machine without limits that keeps no trace."""
        if machine is None:
            return cls(record=False)
        if not isinstance(machine, cls):
            raise TypeError(f"machine: expected a flashlib.Machine or None, got {machine!r}")
        return machine

    @classmethod
    def for_gpu(cls, gpu, **kwargs) -> Machine:
        """Return a machine whose SRAM is what one thread block of `gpu` may use at most."""
        return cls(sram_bytes=int(gpu.shared_memory_per_block_bytes), **kwargs)

    def reset(self) -> None:
        """Set every counter to zero and forget the trace."""
        if self.sram is not None:
            raise RuntimeError("reset inside a kernel: leave the kernel first")
        self.trace = Trace()
        self.peak_tiles: list[tuple[str, tuple, int]] = []
        self._matmul_flops = self._vector_flops = self._exps = self._peak = 0
        self._moved: dict[tuple[str, str], int] = {}

    @property
    def traffic(self) -> Traffic:
        """What was counted since the machine was made or reset."""
        names = dict.fromkeys(name for name, _ in self._moved)
        by_tensor = {n: Moved(self._moved.get((n, "load"), 0), self._moved.get((n, "store"), 0))
                     for n in names}
        return Traffic.of(by_tensor, self._matmul_flops, self._vector_flops, self._exps, self._peak)

    def bytes_of(self, kind: str) -> int:
        """Return the size in bytes of one element of this kind, "stats" for instance."""
        check_choice("kind", kind, KINDS)
        return getattr(self, f"{kind}_bytes")

    def hbm(self, *, kind: str = "element", **arrays: np.ndarray) -> Any:
        """Put arrays into HBM under their keyword names; return one, or a list in that order."""
        self.bytes_of(kind)
        if self.sram is not None:
            raise HBMReadError(f"{', '.join(arrays)}: inside a kernel, write to HBM by sram.store")
        placed = []
        for name, array in arrays.items():
            check_plain(name, array)
            view = np.asarray(array).view()
            if view.dtype.kind != "f":
                raise TypeError(f"{name}: expected an array of floats, got dtype {view.dtype}")
            view.flags.writeable = False
            self.dtype = view.dtype
            placed.append(HBMArray(self, name, view, kind))
        return placed[0] if len(placed) == 1 else placed

    def hbm_empty(self, name: str, shape: tuple[int, ...], *, kind: str = "element") -> HBMArray:
        """Reserve an array in HBM; it holds NaN until a kernel stores something."""
        self.bytes_of(kind)
        return HBMArray(self, name, np.full(shape, np.nan, self.dtype), kind)

    @contextmanager
    def kernel(self, name: str) -> Iterator[SRAM]:
        """Open an empty SRAM for one kernel; on leaving, all of it is free again."""
        if self.sram is not None:
            raise RuntimeError(f"kernel {name!r} starts inside another: leave that one first")
        self.sram = SRAM(self, name)
        try:
            with self.sram.scope():
                yield self.sram
        finally:
            self.sram.rooms[()].live = False
            self.sram = None

    def _occupy(self, sram, tile) -> None:
        if sram.used_bytes > self._peak or (self.sram_bytes or np.inf) < sram.used_bytes:
            tiles = [(t.name, t.shape, t.size_bytes) for t in sram.tiles.values()]
            if self.sram_bytes is not None and sram.used_bytes > self.sram_bytes:
                del sram.tiles[id(tile)]
                sram.used_bytes -= tile.size_bytes
                raise SRAMOverflow(sram._kernel, tiles, self.sram_bytes)
            self._peak, self.peak_tiles = sram.used_bytes, tiles
        self._record(sram._kernel, "tile", tile.name, tile.regions, tile.size_bytes, sram.used_bytes)

    def _move(self, op, hbm, kernel, sram_bytes, atomic=False) -> None:
        size = hbm._array.size * self.bytes_of(hbm.kind)
        key = (hbm.name, op)
        self._moved[key] = self._moved.get(key, 0) + size
        self._record(kernel, op, hbm.name, hbm.regions, size, sram_bytes, atomic)

    def _record(self, kernel, op, tensor, regions, size, sram_bytes, atomic=False) -> None:
        if not self._keep:
            return
        rows = regions[0] if regions else (0, 1)
        cols = regions[1] if len(regions) > 1 else (0, 1)
        self._keep_event(Event(kernel, op, tensor, rows, cols, size, sram_bytes, atomic))

    def _keep_event(self, event) -> None:
        if self._keep:
            self.trace.events.append(event)

    def _operand(self, value) -> Any:
        if isinstance(value, Value):
            if value._machine is not self:
                raise HBMReadError("a tile of another machine cannot be used here")
            return value._alive()
        if isinstance(value, bool | int | float):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype == bool:
            return value
        raise HBMReadError(
            f"an operand of type {type(value).__name__} was never loaded: put it into HBM with"
            " machine.hbm(name=array) and sram.load it"
        )

    def _compute(self, function, inputs) -> Value:
        arrays = [self._operand(value) for value in inputs]
        with np.errstate(all="ignore"):
            result = function(*arrays)
        if function is np.matmul:
            self._matmul_flops += 2 * result.size * arrays[0].shape[-1]
        elif function in EXPONENTIALS or (function is np.power and isinstance(inputs[1], Value)):
            self._exps += result.size
        else:
            self._vector_flops += result.size
        return self._housed(result, () if function is np.matmul else inputs)

    def _reduce(self, function, value, axis) -> Value:
        array = value._alive()
        self._vector_flops += array.size
        with np.errstate(all="ignore"):
            return self._housed(function(array, axis=axis))

    def _housed(self, result, inputs=()) -> Value:
        """Find room for a result: of its shape, or that of the part of a tile it was made from."""
        if self.sram is None:
            raise HBMReadError("tiles are computed with inside `with machine.kernel(...)` only")
        room = self.sram.rooms.get(squeezed(result.shape)) or next(
            (v._owner for v in inputs if isinstance(v, Value) and v.shape == result.shape), None)
        if room is None:
            raise HBMReadError(
                f"a value of shape {result.shape} has no room: declare a tile of that shape with"
                f" sram.tile(name, {', '.join(map(str, result.shape))})"
            )
        return Value(self, result, room)
