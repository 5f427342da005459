"""Values of a Gluon kernel as NumPy arrays: tensors with a layout, scalars, pointers, descriptors.

Floats are held in float32, rounded as their dtype rounds; integers in int64. A layout is carried along
and compared; which thread holds which element is no matter here.
"""

import math
import operator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.experimental.gluon import language as gl

from flashlib.interpreter.tasks import Hazard, line

DTYPES = {torch.float32: gl.float32, torch.float16: gl.float16, torch.bfloat16: gl.bfloat16,
          torch.float8_e4m3fn: gl.float8e4nv, torch.int32: gl.int32, torch.int64: gl.int64}
TORCH = {dtype.name: theirs for theirs, dtype in DTYPES.items()}
DEFAULTS = {"f": gl.float32, "i": gl.int32, "b": gl.int1}           # by NumPy's kind
AS_IN_C = {np.remainder: np.fmod,
           np.floor_divide: lambda a, b: np.trunc(np.divide(a, b)).astype(np.int64)}


def rounded(data, dtype) -> np.ndarray:
    """Return numbers as a dtype holds them: nearest, ties to even; integers towards zero."""
    if not dtype.is_floating():
        return np.asarray(data).astype(bool if dtype.name == "int1" else np.int64)
    data = np.asarray(data, np.float32)
    if dtype.primitive_bitwidth == 32:
        return data
    return torch.from_numpy(np.array(data)).to(TORCH[dtype.name]).float().numpy().reshape(data.shape)


def value_of(x):
    """Return the array or number behind an operand; what is in flight is refused."""
    return x.data if isinstance(x, Tensor) else x


def bytes_of(shape, dtype) -> int:
    """Return the bytes of so many elements."""
    return math.prod(shape) * dtype.primitive_bitwidth // 8


class Unknown:
    """The layout of a scalar, and after a reshape or the like: it agrees with every other."""

    def __eq__(self, other):
        return True


UNKNOWN = Unknown()


class Tensor(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with a dtype of Gluon's and a layout; shape () is a scalar."""

    def __init__(self, data, dtype, layout: Any = None, product: Any = None):
        self._data, self.dtype = np.asarray(data), dtype
        self.layout = UNKNOWN if layout is None or not self._data.ndim else layout
        self.product = product                              # one that has not been waited for

    def __array_ufunc__(self, ufunc, method, *operands, out=None):
        """Do what an operator asks of NumPy; `x += y`, which names an `out`, makes a new tensor."""
        return elementwise(AS_IN_C.get(ufunc, ufunc), *operands)

    @property
    def data(self):
        """Return the array, or raise Hazard while a product is still writing it."""
        if self.product is not None:
            raise Hazard(f"{line()}: the result of {self.product.name} of {self.product.where} is used"
                         " before it is there: pass it through warpgroup_mma_wait first")
        return self._data

    shape = property(lambda self: list(self._data.shape))
    type = property(lambda self: self)                      # it has a layout, a shape and a dtype

    def __index__(self):
        return operator.index(self.data.item())

    __int__ = __index__

    def __bool__(self):
        return bool(self.data)

    def to(self, dtype):
        """Convert to another dtype."""
        return Tensor(rounded(self.data, dtype), dtype, self.layout)

    def reshape(self, shape):
        """Return the same elements in another shape, in a layout that is not followed further."""
        return Tensor(self.data.reshape([*map(int, shape)]), self.dtype)

    def permute(self, order):
        """Return the axes in another order."""
        return Tensor(self.data.transpose(order), self.dtype)

    def split(self):
        """Return the two halves of the last axis, which has a length of 2."""
        return tuple(Tensor(self.data[..., i], self.dtype) for i in (0, 1))

    def __getitem__(self, at):
        x = self
        for axis, one in enumerate(at):
            if one is None:
                x = expand_dims(x, axis)
        return x


def expand_dims(x, axis):
    """Insert an axis of length 1: the layout must be the slice along it."""
    layout = x.layout
    if isinstance(layout, gl.SliceLayout):
        if layout.dim != axis:
            raise Hazard(f"{line()}: expand_dims expected axis {layout.dim} of its slice, got {axis}")
        layout = layout.parent
    return Tensor(np.expand_dims(x.data, axis), x.dtype, layout)


def reduced(fn, x, axis):
    """Return a tensor without one axis; the result's layout is the slice along it."""
    layout = x.layout if x.layout is UNKNOWN else gl.SliceLayout(axis, x.layout)
    return Tensor(rounded(fn(x.data, axis=axis), x.dtype), x.dtype, layout)


def elementwise(fn, *operands) -> Tensor:
    """Return fn of the operands, broadcast against each other; two layouts are a Hazard."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    layouts = [x.layout for x in tensors if x.layout is not UNKNOWN]
    for layout in layouts[1:]:
        if layout is not layouts[0] and layout != layouts[0]:
            raise Hazard(f"{line()}: operands in two layouts, {layouts[0]} and {layout}:"
                         " convert_layout is missing")
    values = (np.float32(x) if isinstance(x, float) else x for x in map(value_of, operands))
    data = np.asarray(fn(*values))
    of_its_kind = (x.dtype for x in tensors if x.data.dtype.kind == data.dtype.kind)
    dtype = max(of_its_kind, key=lambda d: d.primitive_bitwidth, default=DEFAULTS[data.dtype.kind])
    return Tensor(rounded(data, dtype), dtype, layouts[0] if layouts else None)


class Pointer:
    """An address in a tensor: its numbers in the order in which they lie, and one offset or several."""

    __array_ufunc__ = None                                  # tensors leave adding to it

    def __init__(self, name: str, numbers, offset: Any = 0):
        self.name, self.numbers, self.offset = name, numbers, offset
        self.dtype, self.element_ty = self, DTYPES[numbers.dtype]

    @property
    def value(self):
        """Return, as a tensor of one number that can be written, what a scalar's address holds."""
        return self.numbers[int(self.lanes()[1])]

    def __add__(self, offset):
        return Pointer(self.name, self.numbers, self.offset + offset)

    __radd__ = __add__

    def lanes(self, mask: Any = True) -> tuple:
        """Return which lanes take part, and their offsets; those outside the tensor are a Hazard."""
        offsets = np.asarray(value_of(self.offset))
        mask = np.broadcast_to(value_of(mask), offsets.shape)
        inside, size = offsets[mask], len(self.numbers)
        wrong = inside[(inside < 0) | (inside >= size)]
        if wrong.size:
            raise Hazard(f"{line()}: {self.name} has {size} elements, got offset {wrong[0]}")
        return mask, torch.from_numpy(inside)


class Descriptor:
    """What the copy engine knows of a tensor: shape, strides, the block that it moves."""

    def __init__(self, name, given):
        self.name, self.tensor = name, given.base.detach()
        self.dtype, self.layout = DTYPES[given.base.dtype], given.layout
        shape, nbytes = list(given.block_shape), bytes_of(given.block_shape, self.dtype)
        self.block_type = SimpleNamespace(shape=shape, dtype=self.dtype, nbytes=nbytes)
        if list(given.shape) != list(self.tensor.shape):
            raise ValueError(f"{name}: expected a descriptor of the whole tensor, got {given.shape}")

    def inside(self, at) -> tuple:
        """Return the tensor's part under the block at a place, and where it lies in the block."""
        here, there = [], []
        for first, size, length in zip(at, self.block_type.shape, self.tensor.shape, strict=True):
            low = max(first, 0)
            high = max(low, min(first + size, length))
            here.append(slice(low, high))
            there.append(slice(low - first, high - first))
        return self.tensor[tuple(here)], tuple(there)


def argument(name: str, x):
    """Return what a kernel sees of an argument: of a tensor, the address of its first element."""
    if hasattr(x, "block_shape"):
        return Descriptor(name, x)
    if not isinstance(x, torch.Tensor):
        return x
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return Pointer(name, torch.as_strided(x.detach(), (max(last + 1, 0),), (1,)))
