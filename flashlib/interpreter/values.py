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

TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn}
DTYPES = {torch.float32: gl.float32, torch.float16: gl.float16, torch.bfloat16: gl.bfloat16,
          torch.float8_e4m3fn: gl.float8e4nv, torch.int32: gl.int32, torch.int64: gl.int64}


def rounded(data: np.ndarray, dtype) -> np.ndarray:
    """Return numbers as a dtype holds them: nearest, ties to even."""
    if dtype.name == "int1":
        return np.asarray(data, bool)
    if not dtype.is_floating():
        return np.asarray(np.trunc(data) if np.asarray(data).dtype.kind == "f" else data, np.int64)
    data = np.asarray(data, np.float32)
    if dtype.name in TORCH:
        held = torch.from_numpy(np.array(data)).to(TORCH[dtype.name])
        data = held.float().numpy().reshape(data.shape)
    return data


def value_of(x):
    """Return the array or number behind an operand; what is in flight is refused."""
    return x.data if isinstance(x, Tensor) else x


class Tensor:
    """An array with a dtype of Gluon's and a layout, None for a scalar; shape () is a scalar."""

    def __init__(self, data, dtype, layout=None):
        self._data, self.dtype, self.layout = np.asarray(data), dtype, layout
        self.product: Any = None                            # one that has not been waited for

    @property
    def data(self):
        """Return the array, or raise Hazard while a product is still writing it."""
        if self.product is not None:
            raise Hazard(f"{line()}: the result of {self.product.name} of {self.product.where} is used"
                         " before it is there: pass it through warpgroup_mma_wait first")
        return self._data

    @property
    def shape(self) -> list:
        """Return its shape."""
        return list(self._data.shape)

    type = property(lambda self: self)                      # it has a layout, a shape and a dtype

    def __index__(self):
        return operator.index(self.data.item())

    __int__ = __index__

    def __bool__(self):
        return bool(self.data)

    def __float__(self):
        return float(self.data)

    def __neg__(self):
        return elementwise(np.negative, self)

    def to(self, dtype):
        """Convert to another dtype."""
        return Tensor(rounded(self.data, dtype), dtype, self.layout)

    def reshape(self, shape):
        """Return the same elements in another shape, in a layout that is not followed further."""
        return Tensor(self.data.reshape([int(value_of(n)) for n in shape]), self.dtype, Other())

    def permute(self, order):
        """Return the axes in another order."""
        return Tensor(self.data.transpose(order), self.dtype, Other())

    def split(self):
        """Return the two halves of the last axis, which has a length of 2."""
        return tuple(Tensor(self.data[..., i], self.dtype, Other()) for i in (0, 1))

    def __getitem__(self, at):
        x = self
        for axis, one in enumerate(at):
            if one is None:
                x = expand_dims(x, axis)
        return x


class Other:
    """A layout after a reshape or the like: it agrees with every other."""

    def __eq__(self, other):
        return True


def expand_dims(x, axis):
    """Insert an axis of length 1: the layout must be the slice along it."""
    layout = x.layout
    if isinstance(layout, gl.SliceLayout):
        if layout.dim != axis:
            raise Hazard(f"{line()}: expand_dims expected axis {layout.dim} of its slice, got {axis}")
        layout = layout.parent
    return Tensor(np.expand_dims(x.data, axis), x.dtype, layout)


def common(operands) -> tuple:
    """Return (dtype, layout) of an elementwise operation, or raise Hazard where layouts differ."""
    dtypes: list = []
    layouts: list = []
    numbers, blocks = [], False
    for x in operands:
        if isinstance(x, Tensor):
            dtypes.append(x.dtype)
            if x._data.ndim:
                blocks = True
                layouts += [] if isinstance(x.layout, Other) else [x.layout]
        else:
            numbers.append(x)
    for layout in layouts[1:]:
        if layout is not layouts[0] and layout != layouts[0] and None not in (layout, layouts[0]):
            raise Hazard(f"{line()}: operands in two layouts, {layouts[0]} and {layout}:"
                         " convert_layout is missing")
    floats = [dtype for dtype in dtypes if dtype.is_floating()]
    names = {dtype.name for dtype in dtypes}
    if floats:
        dtype = max(floats, key=lambda d: d.primitive_bitwidth)
    elif any(isinstance(x, float) for x in numbers):
        dtype = gl.float32
    elif names <= {"int1"} and all(isinstance(x, (bool, np.bool_)) for x in numbers):
        dtype = gl.int1
    else:
        dtype = gl.int64 if "int64" in names else gl.int32
    return dtype, layouts[0] if layouts else (Other() if blocks else None)


def elementwise(fn, *operands, dtype=None) -> Tensor:
    """Return fn of the operands, broadcast against each other."""
    found, layout = common(operands)
    data = fn(*(np.float32(x) if isinstance(x, float) else x for x in map(value_of, operands)))
    dtype = dtype or found
    return Tensor(rounded(data, dtype), dtype, layout)


def _operator(fn, dtype=None, swap=False):
    def method(self, other):
        if isinstance(other, Pointer):
            return NotImplemented
        return elementwise((lambda a, b: fn(b, a)) if swap else fn, self, other, dtype=dtype)
    return method


for _name, _fn, _dtype in (                                 # integers are divided as C divides them
        ("add", np.add, None), ("sub", np.subtract, None), ("mul", np.multiply, None),
        ("truediv", np.true_divide, gl.float32), ("mod", np.fmod, None), ("and", np.bitwise_and, None),
        ("or", np.bitwise_or, None), ("xor", np.bitwise_xor, None),
        ("floordiv", lambda a, b: np.trunc(np.divide(a, b)).astype(np.int64), None)):
    setattr(Tensor, f"__{_name}__", _operator(_fn, _dtype))
    setattr(Tensor, f"__r{_name}__", _operator(_fn, _dtype, swap=True))
for _name, _fn in (("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("eq", np.equal),
                   ("ge", np.greater_equal), ("ne", np.not_equal)):
    setattr(Tensor, f"__{_name}__", _operator(_fn, gl.int1))


class Pointer:
    """An address in a tensor: the tensor's numbers as they lie, and an offset, a number or a tensor."""

    def __init__(self, memory, offset=0):
        self.memory, self.offset = memory, offset

    dtype = property(lambda self: self)                     # of a pointer: it has an element type
    element_ty = property(lambda self: self.memory.dtype)

    @property
    def value(self):
        """Return, as a tensor of one number that can be written, what a scalar's address holds."""
        return self.memory.flat[int(self.memory.at(np.asarray(value_of(self.offset)), np.True_))]

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)

    __radd__ = __add__


class Global:
    """A tensor in global memory: its numbers in the order in which they lie, and its name."""

    def __init__(self, name: str, tensor):
        tensor = tensor.detach()
        self.name, self.tensor, self.dtype = name, tensor, DTYPES[tensor.dtype]
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        self.flat = torch.as_strided(tensor, (max(span, 0),), (1,))

    def at(self, offsets, mask):
        """Return offsets inside the tensor and where they count, or raise Hazard."""
        wrong = mask & ((offsets < 0) | (offsets >= len(self.flat)))
        if np.any(wrong):
            raise Hazard(f"{line()}: {self.name} has {len(self.flat)} elements, got offset"
                         f" {int(np.asarray(offsets)[wrong][0])}")
        return torch.from_numpy(np.where(mask, offsets, 0))


class Descriptor:
    """What the copy engine knows of a tensor: shape, strides, the block that it moves."""

    def __init__(self, name, described):
        self.name, self.tensor = name, described.base.detach()
        self.dtype, self.layout = DTYPES[described.base.dtype], described.layout
        shape = list(described.block_shape)
        self.block_type = SimpleNamespace(
            shape=shape, dtype=self.dtype, nbytes=math.prod(shape) * self.dtype.primitive_bitwidth // 8)
        if list(described.shape) != list(self.tensor.shape):
            raise ValueError(f"{name}: expected a descriptor of the whole tensor, got"
                             f" {described.shape}")

    def inside(self, at, block):
        """Return the tensor's part under a block, and where in the block it lies."""
        here, there = [], []
        for first, size, length in zip(at, block, self.tensor.shape, strict=True):
            low, high = max(first, 0), min(first + size, length)
            here.append(slice(low, max(high, low)))
            there.append(slice(low - first, max(high, low) - first))
        return tuple(here), tuple(there)
