"""What a kernel handles: addresses in HBM, tiles in SRAM, and values whose arithmetic counts itself.

They belong to a `Machine`, which does the counting and whose docstring says what counts. Taught in
notebook 00.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from flashlib import quant
from flashlib.errors import HBMReadError


class HBMArray(NDArrayOperatorsMixin):
    """An array in HBM. `Q[rows]` is an address: nothing moves before `sram.load(Q[rows])`."""

    def __init__(self, machine, name, array, kind, regions=None):
        self._machine, self._array = machine, array
        self.name, self.kind = name, kind
        self.regions = regions or tuple((0, n) for n in array.shape)

    @property
    def shape(self):
        return self._array.shape

    def __getitem__(self, index) -> HBMArray:
        index = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(i, slice) and i.step in (None, 1) for i in index):
            raise TypeError(f"{self.name}: address a range of HBM by slices, got index {index!r}")
        regions = list(self.regions)
        for axis, part in enumerate(index):
            base = self.regions[axis][0]
            start, stop, _ = part.indices(self.shape[axis])
            regions[axis] = (base + start, base + max(start, stop))
        return HBMArray(self._machine, self.name, self._array[index], self.kind, tuple(regions))

    def _refuse(self, *args, **kwargs):
        raise HBMReadError(
            f"{self.name} lives in HBM and cannot be read there: sram.load({self.name}[rows]) first"
        )

    __getattr__ = __iter__ = __float__ = __bool__ = _refuse
    __array__ = __array_ufunc__ = __array_function__ = _refuse

    def to_host(self) -> np.ndarray:
        """Return a copy for the host, which no kernel sees and nothing counts."""
        if self._machine.sram is not None:
            raise HBMReadError(f"{self.name}.to_host() inside a kernel: use sram.load instead")
        return self._array.copy()

    def __repr__(self):
        return f"<HBM {self.name} {self.shape} {self.kind}>"


@functools.lru_cache(maxsize=4096)
def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its axes of length one."""
    return tuple(n for n in shape if n != 1)


def _basic(index):
    for i in index if isinstance(index, tuple) else (index,):
        if not (i is None or i is ... or isinstance(i, slice | int | np.integer)):
            raise TypeError(f"index: a tile takes slices, whole numbers, None and ..., got {i!r};"
                            " np.where(mask, tile, number) selects, and counts")
    return index


class Room:
    """Room in SRAM: for one tile, or for the values of a shape while any tile of it is there."""

    def __init__(self, name, tiles=0):
        self.name, self.tiles, self.live = name, tiles, True


class Value(NDArrayOperatorsMixin):
    """What a kernel computes with: NumPy arithmetic that counts itself."""

    def __init__(self, machine, array, owner: Room):
        self._machine, self._array, self._owner = machine, array, owner

    shape = HBMArray.shape

    @property
    def dtype(self) -> np.dtype:
        return self._array.dtype

    @property
    def T(self) -> Value:
        return Value(self._machine, self._alive().T, self._owner)

    def astype(self, dtype) -> Value:
        """Convert every element: one vector FLOP each."""
        return self._machine._compute(lambda array: array.astype(dtype), (self,))

    def rounded(self, fmt: str) -> Value:
        """Round every element to an eight-bit format, "e4m3" say, saturating: one vector FLOP each."""
        return self._machine._compute(lambda array: quant.round_to(array, fmt), (self,))

    def less(self, slope: Value, distances: np.ndarray) -> Value:
        """Take slope · distance off every element: two vector FLOPs each.

        Distances follow from the indices of a tile, whole numbers that no kernel loads.
        """
        if distances.dtype.kind != "i" or distances.shape != self.shape:
            raise ValueError(f"distances: expected whole numbers of shape {self.shape}, got"
                             f" {distances.dtype} {distances.shape}")
        return self - self._machine._compute(lambda x, _: x * distances.astype(x.dtype), (slope, self))

    def view(self, dtype) -> Value:
        """Read the same bits as numbers of another type of that width, which costs nothing."""
        if np.dtype(dtype).itemsize != self.dtype.itemsize:
            raise TypeError(f"dtype: expected a type of {self.dtype.itemsize} bytes, got {dtype!r}")
        return Value(self._machine, self._alive().view(dtype), self._owner)

    def __getitem__(self, index) -> Value:
        return Value(self._machine, self._alive()[_basic(index)], self._owner)

    def __array__(self, *args, **kwargs):
        raise HBMReadError(
            "a tile is not a NumPy array, or its arithmetic would go uncounted: compute with the"
            " tile itself, or look at a copy with sram.peek(tile)"
        )

    def __bool__(self):
        raise HBMReadError("a tile has no truth value: on the machine, choose with np.where")

    def max(self, axis: int) -> Value:
        return self._machine._reduce(np.maximum.reduce, self, axis)

    def sum(self, axis: int) -> Value:
        return self._machine._reduce(np.add.reduce, self, axis)

    def dot(self, other: Value, where: np.ndarray | None = None) -> Value:
        """Return self @ other, in which row i ignores row j of other unless where[i, j].

        With `where=None` it is plain `@`; the FLOPs are dense either way. Outside of a mask the
        weights self[i, j] are exact zeros already; it keeps 0 × NaN from leaking a forbidden key.
        """
        product = self @ other
        if where is None:
            return product
        if np.shape(where) != self.shape or where.dtype != bool:
            raise ValueError(f"where: expected booleans of shape {self.shape}, got {where!r}")
        weights, values = self._alive(), other._alive()
        tainted = ~np.all(np.isfinite(values), axis=1)
        if tainted.any():
            with np.errstate(all="ignore"):
                clean = weights @ np.where(tainted[:, None], 0, values)
                for j in np.flatnonzero(tainted):
                    clean[where[:, j]] += weights[where[:, j], j, None] * values[j]
            product._array = clean
        return product

    def _alive(self) -> np.ndarray:
        if not self._owner.live:
            raise HBMReadError(f"{self._owner.name} was freed and cannot be used any more")
        return self._array

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        known = getattr(np, ufunc.__name__, None) is ufunc and not ufunc.signature
        if method != "__call__" or kwargs or not (known or ufunc is np.matmul):
            raise TypeError(f"np.{ufunc.__name__}.{method} is not on the machine: it has @,"
                            " elementwise ufuncs without keywords, .max(axis) and .sum(axis)")
        result = self._machine._compute(ufunc, inputs)
        if out is None:
            return result
        (target,) = out
        target[...] = result
        return target

    def __array_function__(self, function, types, args, kwargs):
        if function is np.where and len(args) == 3 and not kwargs:
            return self._machine._compute(np.where, args)
        raise TypeError(f"np.{function.__name__} is not on the machine: it has ufuncs, @, np.where,"
                        " .max(axis), .sum(axis) and .dot")

    def __repr__(self):
        return f"<Value {self.shape}>"


class Tile(Value):
    """Room in SRAM that a kernel declared; assign to it with `tile[...] = value`."""

    def __init__(self, machine, name, array, kind, regions, size_bytes):
        super().__init__(machine, array, Room(name))      # no cycle: memory is back at once
        self.name, self.kind, self.regions, self.size_bytes = name, kind, regions, size_bytes

    @property
    def live(self) -> bool:
        """Whether the tile is still in SRAM."""
        return self._owner.live

    def __setitem__(self, index, value) -> None:
        self._alive()[_basic(index)] = self._machine._operand(value)

    def __repr__(self):
        return f"<SRAM {self.name} {self.shape} {self.kind}, {self.size_bytes:,} B>"
