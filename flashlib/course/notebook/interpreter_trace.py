"""See which program touches which element: a witness for kernels in Triton's interpreter.

While a `watch` is open, each load and store of an interpreted kernel is kept with its program, its
lanes and its mask. Addresses outside the named tensors are never followed: a load from there gives
poison (NaN), a store is dropped, and both are reported. Used in notebook 09.
"""

import contextlib
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Touch:
    """One load or store of one program.

    Attributes:
        program: (x, y, z).  op: "load" or "store".
        tensor: which named tensor the lanes point into, "" if none does.
        lanes: element of each lane, counted from the tensor's first.  mask: which lanes took part.
        outside: unmasked lanes that point into no named tensor.  nbytes: what moved.
    """

    program: tuple[int, int, int]
    op: str
    tensor: str
    lanes: np.ndarray
    mask: np.ndarray
    outside: np.ndarray
    nbytes: int


@dataclass
class Watch:
    """What happened while it was open."""

    touches: list[Touch] = field(default_factory=list)

    def of(self, tensor: str, op: str | None = None) -> list[Touch]:
        """Return the loads and stores of one tensor, in order."""
        return [t for t in self.touches if t.tensor == tensor and op in (None, t.op)]

    def nbytes(self, tensor: str, op: str) -> int:
        """Return the bytes that one kind of access moved; masked lanes move nothing."""
        return sum(t.nbytes for t in self.of(tensor, op))

    @property
    def outside(self) -> list[Touch]:
        """Return the accesses that left every named tensor."""
        return [t for t in self.touches if t.outside.any()]

    def complaint(self) -> str:
        """Describe the first access that went outside; "" if none did."""
        if not self.outside:
            return ""
        touch = self.outside[0]
        lane = int(np.flatnonzero(touch.outside)[0])
        where = f"element {int(touch.lanes.flat[lane])} of {touch.tensor or 'nothing'}"
        return f"program {touch.program[0]} {touch.op}s {where} (lane {lane}), which is outside"


def poisoned(array, margin: int = 4096):
    """Return a torch tensor with the array's numbers, amid NaN on both sides in memory."""
    import torch

    array = np.ascontiguousarray(array)
    room = torch.full((array.size + 2 * margin,), float("nan"),
                      dtype=torch.from_numpy(array[:0].reshape(-1)).dtype)
    inner = room[margin:margin + array.size]
    inner.copy_(torch.from_numpy(array.reshape(-1)))
    return inner.view(array.shape)


def _span(tensor) -> int:
    """Return how many elements lie from the first to the last of a tensor."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


@contextlib.contextmanager
def watch(**tensors):
    """Keep every load and store of interpreted kernels as a `Touch`; tensors are named by keyword.

    Example:
        with watch(x=x, y=y) as seen:
            kernel[grid](x, y, n, BLOCK=8)
        seen.nbytes("x", "load")
    """
    from triton.runtime import interpreter

    builder, seen = interpreter.interpreter_builder, Watch()
    spans = {name: (t.data_ptr(), _span(t), t.element_size()) for name, t in tensors.items()}
    load, store = builder.create_masked_load, builder.create_masked_store

    def record(op, ptrs, mask, itemsize):
        address = ptrs.data.astype(np.int64)
        mask = np.broadcast_to(mask.data.astype(bool), address.shape)
        inside, votes = np.zeros(address.shape, bool), {}
        for name, (start, count, size) in spans.items():
            hit = (address >= start) & (address < start + count * size)
            inside |= hit
            votes[name] = np.count_nonzero(hit & mask)
        tensor = max(votes, key=votes.get, default="")
        if not votes.get(tensor) and mask.any():            # all of it astray: the nearest one is meant
            tensor = min(spans, key=lambda n: abs(int(address[mask][0]) - spans[n][0]), default="")
        start, _, size = spans[tensor] if tensor else (0, 0, itemsize)
        seen.touches.append(Touch(
            tuple(map(int, builder.grid_idx)), op, tensor, (address - start) // size, mask.copy(),
            mask & ~inside, int(np.count_nonzero(mask)) * itemsize))
        return mask & inside, mask & ~inside

    def size_of(ptrs):
        return np.dtype(interpreter._get_np_dtype(ptrs.get_element_ty())).itemsize

    def watched_load(ptrs, mask, other, *rest):
        good, bad = record("load", ptrs, mask, size_of(ptrs))
        result = load(ptrs, interpreter.TensorHandle(good, mask.dtype), other, *rest)
        if bad.any() and np.issubdtype(result.data.dtype, np.floating):
            result.data = np.where(bad, np.nan, result.data).astype(result.data.dtype)
        return result

    def watched_store(ptrs, value, mask, *rest):
        good, _ = record("store", ptrs, mask, size_of(ptrs))
        return store(ptrs, value, interpreter.TensorHandle(good, mask.dtype), *rest)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    try:
        yield seen
    finally:
        del builder.create_masked_load, builder.create_masked_store
