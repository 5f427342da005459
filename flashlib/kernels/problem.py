"""What attention is asked: sizes, dtype, window, scores, device, and how the tensors lie in memory.

A `Problem` knows nothing of kernels. Backends answer questions about it: whether they can, in which
configuration, with which plan. `Problem.of` returns the same object for tensors that lie alike, and
what was decided and made for a problem hangs on it, in `made`: so a later call finds it, and it goes
when the problem goes. `forget` drops all of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from flashlib.kernels.configs import padded
from flashlib.kernels.recent import Recent
from flashlib.kernels.scores import PLAIN, Kind
from flashlib.masks import Window

FULL, CAUSAL = Window(), Window(None, 0)
NARROW = 16                                                 # below it float32 costs next to nothing
MOST_PROBLEMS = 1024                                        # that are found again
COPY_BYTES = 16                                             # what the copy engine's strides divide by


class Device(NamedTuple):
    """What decides which kernel runs on a device, and how; one without an index is only asked about."""

    type: str
    index: int | None                                       # pyright: ignore[reportIncompatibleMethodOverride]
    capability: tuple[int, int] | None
    sms: int
    name: str

    @property
    def here(self) -> bool:
        """Tell whether the device is in this machine."""
        return self.type != "cuda" or self.index is not None

    @property
    def place(self) -> torch.device:
        """Return where tensors for this device lie."""
        return torch.device(self.type) if self.index is None else torch.device(self.type, self.index)


@functools.cache
def device_of(device: torch.device) -> Device:
    """Return what torch knows of a device; a capability only of an NVIDIA GPU."""
    if device.type != "cuda":
        return Device(device.type, device.index, None, 1, device.type)
    about = torch.cuda.get_device_properties(device)
    capability = None if torch.version.hip else (about.major, about.minor)  # "cuda" is AMD's name, too
    return Device("cuda", device.index, capability, about.multi_processor_count, about.name)


class Layout(NamedTuple):
    """A (B, H, N, D) tensor's shape, its strides, and whether its address is a multiple of 16."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True

    @classmethod
    def contiguous(cls, *shape: int) -> Layout:
        """Return the layout of a new tensor."""
        _, H, N, D = shape
        return cls(shape, (H * N * D, N * D, D, 1))

    @classmethod
    def packed(cls, *shape: int) -> Layout:
        """Return the layout of new packed rows: a new (N, H, D) tensor, seen as (1, H, N, D)."""
        _, H, N, D = shape
        return cls(shape, (N * H * D, D, H * D, 1))

    @classmethod
    def like(cls, other: Layout) -> Layout:
        """Return the layout of a new tensor of the same shape."""
        return cls.contiguous(*other.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One attention: its sizes, dtype, window, device and scores, and the layout of each tensor.

    `layout` is that of q, k and v, in a backward also of O and dO. With `into`, keys are folded into a
    state that is there: `layout` has its O, too, or in a backward dQ, dK and dV behind dO. Of packed
    `sequences`, which are so many, B is 1 and N_Q and N_K count the rows of all; None are not packed.
    `reserve` SMs a persistent launch leaves to others. Two problems are equal only if they are the same
    object. `made` holds what was decided and made for this problem, whoever made it.
    """

    B: int
    H: int
    H_K: int
    N_Q: int
    N_K: int
    D: int
    dtype: torch.dtype
    device: Device
    window: Window
    layout: tuple[Layout, ...]
    scores: Kind = PLAIN
    sequences: int | None = None
    into: bool = False
    reserve: int = 0
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, q, k, v, *more, window: Window = FULL, scores: Kind = PLAIN,
           sequences: int | None = None, into: bool = False, reserve: int = 0) -> Problem:
        """Return the problem of these tensors; the very same one for tensors that lie alike."""
        key = _key_of(q, k, v, window, scores)
        if sequences is not None:
            key += (sequences,)
        if into or reserve:
            key += (into, "reserve", reserve)
        if more:
            key += tuple([y for x in more for y in (x.shape, x.stride(), x.data_ptr() & 15 == 0)])
        found = _seen.get(key)
        if found is None:
            found = _seen[key] = cls.new(q, k, v, *more, window=window, scores=scores,
                                         sequences=sequences, into=into, reserve=reserve)
        return found

    @classmethod
    def new(cls, q, k, v, *more, window: Window = FULL, scores: Kind = PLAIN,
            sequences: int | None = None, into: bool = False, reserve: int = 0) -> Problem:
        """Return a problem of these tensors that no other call finds."""
        (B, H, N_Q, D), (H_K, N_K) = q.shape, k.shape[1:3]
        layout = [Layout(tuple(x.shape), x.stride(), x.data_ptr() & 15 == 0) for x in (q, k, v, *more)]
        return cls(B, H, H_K, N_Q, N_K, D, q.dtype, device_of(q.device), window, tuple(layout),
                   scores, sequences, into, reserve)

    @classmethod
    def example(cls, *, H: int, N_Q: int, N_K: int, D: int, dtype: torch.dtype, device: Device,
                B: int = 1, H_K: int | None = None, window: Window = FULL,
                scores: Kind = PLAIN, sequences: int | None = None, into: bool = False) -> Problem:
        """Return the problem of new tensors, forward or backward, on a GPU that need not be there."""
        H_K = H if H_K is None else H_K
        order = Layout.contiguous if sequences is None else Layout.packed
        q, k = order(B, H, N_Q, D), order(B, H_K, N_K, D)
        return cls(B, H, H_K, N_Q, N_K, D, dtype, device, window,
                   (q, k, k, q, q, *((q, k, k) if into else ())), scores, sequences, into)

    @property
    def head_dim(self) -> int:
        """Return the head dimension that a kernel works with: D up to a power of 2, at least 16."""
        return padded(self.D)

    @property
    def causal(self) -> bool:
        """Tell whether the window hides later keys and no others."""
        return self.window == CAUSAL

    @property
    def sides(self) -> tuple[int, int] | None:
        """Return (left, right) of the window as kernels take it; None if it hides nothing or is causal.

        A side without a bound, or with one beyond all keys, is N_Q + N_K: so both are numbers.
        """
        if self.window in (FULL, CAUSAL):
            return None
        far, (left, right) = self.N_Q + self.N_K, (self.window.left, self.window.right)
        return far if left is None else min(left, far), far if right is None else min(right, far)

    @property
    def narrow(self) -> bool:
        """Tell whether a 16-bit head is so narrow that rounding P and dS would make all its error."""
        return self.dtype.itemsize == 2 and self.D < NARROW

    def written_strides(self, at: int, like: int) -> tuple[int, ...]:
        """Return the strides of what a kernel writes: tensor `at` if it is there, else a new one."""
        return self.layout[at].strides if self.into else self.new_strides(like)

    def new_strides(self, which: int) -> tuple[int, ...]:
        """Return the strides of a new tensor of the shape of one in `layout`."""
        order = Layout.contiguous if self.sequences is None else Layout.packed
        return order(*self.layout[which].shape).strides

    def widened(self) -> Problem:
        """Return the problem in float32, as narrow heads are computed."""
        return replace(self, dtype=torch.float32)

    def copyable(self, *which: int) -> bool:
        """Tell whether the bulk-copy engine (Hopper's TMA) reads these tensors as they lie in memory.

        `which` counts tensors of `layout`. It takes 16-bit elements, the last dimension contiguous,
        other strides positive and whole 16 bytes (but where the length is 1), and addresses of whole
        16 bytes.
        """
        able = self.device.capability is not None and self.device.capability[0] >= 9
        return able and self.dtype.itemsize == 2 and all(
            x.aligned and x.strides[3] == 1 and all(
                size == 1 or (stride > 0 and stride * 2 % COPY_BYTES == 0)
                for size, stride in zip(x.shape[:3], x.strides, strict=False))
            for x in map(self.layout.__getitem__, which))


_seen = Recent(MOST_PROBLEMS)


def _key_of(q, k, v, window: Window, scores: Kind) -> tuple:
    # Every call comes here: so no loop, and no hash of a window, which is a class of Python's.
    return (window.left, window.right, scores, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
            q.shape, q.stride(), q.data_ptr() & 15 == 0, k.shape, k.stride(), k.data_ptr() & 15 == 0,
            v.shape, v.stride(), v.data_ptr() & 15 == 0)


def known(q, k, v, window: Window, scores: Kind = PLAIN) -> Problem | None:
    """Return the problem of these tensors if `Problem.of` made it before."""
    return _seen.get(_key_of(q, k, v, window, scores))


def forget() -> None:
    """Let later calls make their problems anew, and with them what was decided and made for them."""
    _seen.clear()
