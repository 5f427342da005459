"""Launch a kernel again at little cost: what was worked out once is kept, and handed to the driver.

At every launch Triton binds the arguments, encodes each tensor descriptor in Python and calls the hooks
of profilers. Three things are kept here, so that a later call does none of that:

- A `Plan` says what is launched, by name. It holds no length: sequences that grow share one, and the
  binaries that Triton compiled for it.
- A `Launch` is a plan at one problem: its grid, its lengths and strides, its tables, and the
  descriptors, which are encoded once for each address. A new length costs a new launch, some tens of
  microseconds, and no new plan. Of launches and of plans the least recently used are dropped.
- A launch whose table a CUDA graph has captured is pinned: it is never freed, for the graph may be
  replayed as long as the process lives. So a process that captures without end keeps one table for
  each different problem that it captured. A shape has to be called once before it is captured.

Where hooks are set, or Triton's launcher looks different from the one known here, each launch goes
Triton's way; `fast_launch` says why.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton

from flashlib.kernels.problem import Problem
from flashlib.kernels.recent import Recent

try:
    from triton.backends.nvidia.driver import make_tensordesc_arg, wrap_handle_tensordesc
except ImportError:                                         # a Triton that encodes elsewhere
    make_tensordesc_arg = wrap_handle_tensordesc = None

KEPT = 1024                                                 # launches, plans, addresses of a descriptor
HERE = contextlib.nullcontext()
# Tell whether a CUDA graph records what this thread launches; PyTorch's CPU build cannot be asked.
capturing = torch.cuda.is_current_stream_capturing if torch.version.cuda else lambda: False


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel and its arguments by name, for all problems that differ in lengths and strides alone.

    Args:
        kernel: what Triton or Gluon made of a function; its first arguments are `tensors`.
        tensors: names of what changes by the call: tensors, and factors.
        constants: arguments that are the same for all lengths, most of them constexprs.
        sizes: a function from problem to the other arguments: lengths, strides, and switches that
            depend on them.
        grid: a function from problem to the number of programs.
        options: Triton's own, such as num_warps.
        blocks: name → shape, of each tensor that the kernel takes as a descriptor of such blocks.
        describe: a function from tensor and block to descriptor.
        tables: name → function from problem to a tensor that a launch owns.
    """

    kernel: Any
    tensors: tuple[str, ...]
    constants: dict[str, Any]
    sizes: Callable[[Problem], dict[str, Any]]
    grid: Callable[[Problem], int]
    options: dict[str, Any]
    blocks: dict[str, list[int]] = field(default_factory=dict)
    describe: Callable | None = None
    tables: dict[str, Callable[[Problem], torch.Tensor]] = field(default_factory=dict)
    # What Triton compiled, by what it looks at: see `_kind`.
    binaries: dict[tuple, _Binary] = field(default_factory=dict, repr=False)


class Launch:
    """A plan at one problem; call it with the plan's `tensors`."""

    __slots__ = ("_binary", "_descriptors", "_kind", "_pinned", "_tail", "grid", "plan", "tables")

    def __init__(self, plan: Plan, p: Problem):
        self.plan, self.grid = plan, (plan.grid(p), 1, 1)
        self.tables = {name: make(p) for name, make in plan.tables.items()}
        sizes, count = plan.sizes(p), len(plan.tensors)
        given, names = {**plan.constants, **sizes, **self.tables}, plan.kernel.arg_names
        if tuple(names[:count]) != plan.tensors or set(names[count:]) != given.keys():
            raise TypeError(f"plan: expected arguments for {', '.join(names)}, got"
                            f" {', '.join((*plan.tensors, *given))}")
        self._tail = tuple([given[name] for name in names[count:]])
        self._kind = (*map(_kind, sizes.values()), *(x.aligned for x in p.layout))
        self._binary: _Binary | None = None
        self._descriptors: list[_Descriptor | None] = []
        self._pinned = not any(table.is_cuda for table in self.tables.values())     # nothing to pin

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what each call hands over beside the plan's `tensors`, by name."""
        return dict(zip(self.plan.kernel.arg_names[len(self.plan.tensors):], self._tail, strict=True))

    def bound(self, *leading) -> tuple:
        """Return all arguments as Triton takes them, in the order of the kernel's signature."""
        blocks = self.plan.blocks
        return *(self.plan.describe(x, blocks[name]) if name in blocks else x
                 for name, x in zip(self.plan.tensors, leading, strict=True)), *self._tail

    def __call__(self, *leading):
        if not self._pinned and capturing():
            pin(self)
        binary = self._binary
        if binary is None or _hooked():
            binary = self._find(leading)
            if binary is None:
                return
        flat = []
        for x, encoded in zip(leading, self._descriptors, strict=True):
            if encoded is None:
                flat.append(x)
            else:
                flat += encoded(x)
        run, stream_of, device, function, packed = binary.direct
        run(*self.grid, stream_of(device), function, packed, None, None, None, *flat, *self._tail)

    def _find(self, leading) -> _Binary | None:
        """Return the binary that launches directly; without one, launch Triton's way and give None."""
        binary = None if _hooked() else self.plan.binaries.get(self._kind)
        if binary is None:
            kernel = self.plan.kernel[self.grid](*self.bound(*leading), **self.plan.options)
            if kernel is not None and self._kind not in self.plan.binaries:     # None: the interpreter
                self.plan.binaries[self._kind] = _Binary(kernel, len(self.plan.blocks))
            return None
        if binary.direct is None:
            binary.kernel[self.grid](*self.bound(*leading))
            return None
        metas, blocks = iter(binary.metas), self.plan.blocks
        self._descriptors = [_Descriptor(self.plan.describe, blocks[name], next(metas))
                             if name in blocks else None for name in self.plan.tensors]
        self._binary = binary
        return binary


class _Binary:
    """What Triton compiled, and how it is launched without Triton's own work; None is no way."""

    __slots__ = ("direct", "kernel", "metas")

    def __init__(self, kernel, descriptors: int):
        self.kernel, run = kernel, None
        self.metas = getattr(kernel.metadata, "tensordesc_meta", None) or []
        function, packed = (getattr(kernel, name, None) for name in ("function", "packed_metadata"))
        if len(self.metas) == descriptors and all(self.metas) and function is not None:
            run = _without_encoding(kernel.run) if self.metas else kernel.run
        driver = triton.runtime.driver.active
        self.direct = None if run is None else (run, driver.get_current_stream,
                                                driver.get_current_device(), function, packed)
        if run is None:
            _slow[getattr(kernel, "name", "a kernel")] = "its launcher is not the one known here"


class _Descriptor:
    """A function from tensor to the arguments that its descriptor becomes, encoded once an address."""

    __slots__ = ("_block", "_describe", "_kept", "_meta")

    def __init__(self, describe, block, meta):
        self._describe, self._block, self._meta, self._kept = describe, block, meta, {}

    def __call__(self, x):
        address = x.data_ptr()
        encoded = self._kept.get(address)
        if encoded is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            encoded = self._kept[address] = make_tensordesc_arg(self._describe(x, self._block),
                                                                self._meta)
        return encoded


class _Kept:
    """Launches by what they are for, and plans by what of it is no length."""

    def __init__(self):
        self.launches, self.plans = Recent(KEPT), Recent(KEPT)


_shared, _own = _Kept(), threading.local()                  # `apart` keeps in its thread
_pinned: set[Launch] = set()
_slow: dict[str, str] = {}                                  # kernel → why it goes Triton's way


def launches_for(backend, p: Problem, direction: str, config=None, *more) -> dict[str, Launch]:
    """Return by name what a backend launches for a problem, kept from before or made anew.

    `config` None is what tuning found, or the table's. `more`: what else the backend's plan depends on.
    """
    kept = getattr(_own, "kept", _shared)
    key = (backend.name, direction, p, config, *more)
    found = kept.launches.get(key)
    if found is None:
        config = config or backend.config(p, direction)
        kind = (backend.name, direction, config, backend.copies(p, direction), p.D, p.dtype,
                p.device, p.window, *more)
        plans = kept.plans.get(kind)
        if plans is None:
            plans = kept.plans[kind] = backend.plan(p, direction, config, *more)
        found = kept.launches[key] = {name: Launch(plan, p) for name, plan in plans.items()}
    return found


def forget() -> None:
    """Let later calls plan and launch anew; what a CUDA graph may read stays."""
    _shared.launches.clear()
    _shared.plans.clear()


def pin(launch: Launch) -> None:
    """Keep a launch, its tables above all, as long as the process lives."""
    launch._pinned = True
    _pinned.add(launch)


@contextlib.contextmanager
def apart():
    """Keep this thread's launches inside apart: many may be tried, and none drops an older one."""
    _own.kept = _Kept()
    try:
        yield
    finally:
        del _own.kept


def on(device: torch.device):
    """Make a GPU the current one while kernels are launched on it: Triton asks which one is.

    In the interpreter NumPy is kept from warning of overflows, which a GPU does not report either.
    """
    if device.type != "cuda":
        return np.errstate(over="ignore", invalid="ignore")
    if device.index == torch.cuda.current_device():
        return HERE
    return torch.cuda.device(device)


def fast_launch() -> str | None:
    """Return None where a launch skips Triton's own work, else why each goes Triton's way."""
    if make_tensordesc_arg is None:
        return f"Triton {triton.__version__} encodes tensor descriptors in another place"

    class Sample:
        launch = staticmethod(wrap_handle_tensordesc(print, {0: "tensordesc<fp16[1]>"}, [{}]))

    if _without_encoding(Sample()) is None:
        return f"the launcher of Triton {triton.__version__} looks different from the one known here"
    return "; ".join(f"{kernel}: {reason}" for kernel, reason in _slow.items()) or None


def _kind(value):
    """Return what Triton's compiler looks at in an argument, such as whether 16 divides it."""
    if type(value) is int:
        return 1 if value == 1 else (value % 16 == 0, value.bit_length() > 31)
    return tuple(map(_kind, value)) if isinstance(value, tuple) else value


def _hooked() -> bool:
    """Tell whether somebody, such as a profiler, has asked to be called at launches."""
    enter, leave = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    return bool((enter is not None and getattr(enter, "calls", True))       # a chain of them, or one
                or (leave is not None and getattr(leave, "calls", True)))


def _without_encoding(run):
    """Return a copy of a kernel's launcher that takes encoded descriptors, None if it looks different.

    `run.launch` is a closure that encodes descriptors and calls "launcher" with the result.
    """
    if make_tensordesc_arg is None or not inspect.isfunction(getattr(run, "launch", None)):
        return None
    launcher = inspect.getclosurevars(run.launch).nonlocals.get("launcher")
    if launcher is None:
        return None
    run = copy.copy(run)
    run.launch = launcher
    return run
