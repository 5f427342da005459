"""What attention is asked: sizes, dtype, window, device, and how the tensors lie in memory.

A `Problem` knows nothing of kernels. Backends answer questions about it: whether they can, in which
configuration, with which plan. `Problem.of` returns the same object for tensors that lie alike, so that
what is decided and made for it once is found by later calls.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from flashlib.kernels.configs import padded
from flashlib.kernels.recent import Recent
from flashlib.masks import Window

FULL, CAUSAL = Window(), Window(None, 0)
NARROW = 16                                                 # below it float32 costs next to nothing
KEPT = 1024                                                 # problems that are found again
COPY_BYTES = 16                                             # what the copy engine's strides divide by


class Device(NamedTuple):
    """What decides which kernel runs on a device, and how; one without an index is only asked about."""

    type: str
    index: int | None
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
    """How a (B, H, N, D) tensor lies in memory: its strides, and whether it starts at 16 bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True

    @classmethod
    def contiguous(cls, *shape: int) -> Layout:
        """Return the layout of a new tensor."""
        _, H, N, D = shape
        return cls(shape, (H * N * D, N * D, D, 1))

    @classmethod
    def like(cls, other: Layout) -> Layout:
        """Return the layout of a new tensor of the same shape."""
        return cls.contiguous(*other.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One attention: its sizes, dtype, window and device, and the layout of each tensor.

    `layout` is that of q, k and v, in a backward also of O and dO. A problem equals itself alone, which
    is what makes it a key that costs nothing.
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

    @classmethod
    def of(cls, q, k, v, *more, window: Window = FULL) -> Problem:
        """Return the problem of these tensors; the very same one for tensors that lie alike."""
        # Every call comes here: so no loop, and no hash of a window, which is a class of Python's.
        key = (window.left, window.right, q.dtype, q.device,
               q.shape, q.stride(), q.data_ptr() & 15 == 0,
               k.shape, k.stride(), k.data_ptr() & 15 == 0, v.shape, v.stride(), v.data_ptr() & 15 == 0)
        if more:
            key += tuple([y for x in more for y in (x.shape, x.stride(), x.data_ptr() & 15 == 0)])
        found = _seen.get(key)
        if found is None:
            (B, H, N_Q, D), (H_K, N_K) = q.shape, k.shape[1:3]
            layout = (Layout(tuple(x.shape), x.stride(), x.data_ptr() % 16 == 0)
                      for x in (q, k, v, *more))
            found = _seen[key] = cls(B, H, H_K, N_Q, N_K, D, q.dtype, device_of(q.device), window,
                                     tuple(layout))
        return found

    @classmethod
    def example(cls, *, H: int, N_Q: int, N_K: int, D: int, dtype: torch.dtype, device: Device,
                B: int = 1, H_K: int | None = None, window: Window = FULL) -> Problem:
        """Return the problem of new tensors, forward or backward, on a GPU that need not be there."""
        H_K = H if H_K is None else H_K
        q, k = Layout.contiguous(B, H, N_Q, D), Layout.contiguous(B, H_K, N_K, D)
        return cls(B, H, H_K, N_Q, N_K, D, dtype, device, window, (q, k, k, q, q))

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
        """Return a window as kernels take it, two numbers: what is far away is no bound.

        None for what needs no window: all keys, or the causal mask, of which `causal` tells.
        """
        if self.window in (FULL, CAUSAL):
            return None
        far, (left, right) = self.N_Q + self.N_K, (self.window.left, self.window.right)
        return far if left is None else min(left, far), far if right is None else min(right, far)

    @property
    def narrow(self) -> bool:
        """Tell whether a 16-bit head is so narrow that rounding P and dS would make all its error."""
        return self.dtype.itemsize == 2 and self.D < NARROW

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


_seen: Recent = Recent(KEPT)


def forget() -> None:
    """Let later calls make their problems anew."""
    _seen.clear()
