"""Launch a kernel again at little cost: what was worked out once is kept, and handed to the driver.

At every launch Triton binds the arguments, encodes each tensor descriptor in Python and calls the hooks
of profilers. Three things are kept here, so that a later call does none of that:

- A `Plan` says what is launched, by name. It holds no length: sequences that grow share one, and the
  binaries that Triton compiled for it.
- A `Launch` is a plan at one problem: its grid, its lengths and strides, its tables, and the
  descriptors, which are encoded once for each address. A new length costs a new launch, some tens of
  microseconds, and no new plan. A launch hangs on its problem; of problems and of plans the least
  recently used are dropped.
- A launch whose table a CUDA graph has captured is pinned: it is never freed, for the graph may be
  replayed as long as the process lives. So a process that captures without end keeps one table for
  each different problem that it captured. A shape has to be called once before it is captured.

Where hooks are set, or Triton's launcher looks different from the one known here, each launch goes
Triton's way; `why_slow` says why.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton
from triton import knobs

from flashlib.kernels import problem
from flashlib.kernels.problem import Problem
from flashlib.kernels.recent import Recent

try:
    from triton.backends.nvidia import driver as nvidia
except ImportError:
    nvidia = None

# None in a Triton that encodes elsewhere.
make_tensordesc_arg: Any = getattr(nvidia, "make_tensordesc_arg", None)
wrap_handle_tensordesc: Any = getattr(nvidia, "wrap_handle_tensordesc", None)
MOST_PLANS, MOST_ADDRESSES = 1024, 1024                     # plans; addresses of a launch's descriptor
# Tell whether a CUDA graph records what this thread launches, and which GPU is the current one. torch's
# own functions for that call these; its CPU build has none.
if torch.version.cuda:
    capturing, current_device = torch._C._cuda_isCurrentStreamCapturing, torch._C._cuda_getDevice
else:
    capturing, current_device = (lambda: False), (lambda: None)


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel and its arguments by name, for all problems that differ in lengths and strides alone.

    Args:
        kernel: what Triton or Gluon made of a function; its first arguments are `tensors`.
        tensors: names of what changes by the call: tensors, and factors.
        constants: arguments that are the same for all lengths, most of them constexprs.
        sizes: a function from problem to the other arguments: lengths, strides, and constexprs that
            depend on them.
        grid: a function from problem to the number of programs.
        options: Triton's own, such as num_warps.
        blocks: name → shape, of each tensor that the kernel takes as a descriptor of such blocks.
        describe: a function from tensor and block to descriptor.
        tables: name → function from problem to a tensor that a launch owns.
        grouped: name → names of the `constants` and `sizes` that the kernel takes as one constexpr, a
            tuple.
    """

    kernel: Any
    tensors: tuple[str, ...]
    constants: dict[str, Any]
    sizes: Callable[[Problem], dict[str, Any]]
    grid: Callable[[Problem], int]
    options: dict[str, Any]
    blocks: dict[str, list[int]] = field(default_factory=dict)
    describe: Callable[[torch.Tensor, list[int]], Any] | None = None
    tables: dict[str, Callable[[Problem], torch.Tensor]] = field(default_factory=dict)
    grouped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # What Triton compiled, by what its compiler looks at: see `_specialization`.
    binaries: dict[tuple, _Binary] = field(default_factory=dict, repr=False)

    def at(self, p: Problem) -> dict[str, Any]:
        """Return `constants` and `sizes` at a problem as the kernel takes them."""
        given = {**self.constants, **self.sizes(p)}
        return given | {group: tuple([given.pop(name) for name in names])
                        for group, names in self.grouped.items()}


class Launch:
    """A plan at one problem; call it with the plan's `tensors`."""

    __slots__ = ("_binary", "_capturable", "_descriptors", "_device", "_index", "_specialization",
                 "_streams", "_tail", "grid", "plan", "tables")

    def __init__(self, plan: Plan, p: Problem):
        self.plan, self.grid = plan, (plan.grid(p), 1, 1)
        self.tables = {name: make(p) for name, make in plan.tables.items()}
        count, names, own = len(plan.tensors), plan.kernel.arg_names, plan.at(p)
        given = {**own, **self.tables}
        if tuple(names[:count]) != plan.tensors or set(names[count:]) != given.keys():
            raise TypeError(f"plan: expected arguments for {', '.join(names)}, got"
                            f" {', '.join((*plan.tensors, *given))}")
        self._tail = tuple([given[name] for name in names[count:]])
        fixed = {x.name for x in getattr(plan.kernel, "params", ()) if x.is_constexpr}
        self._specialization = (*(value if name in fixed else _specialization(value)
                                  for name, value in own.items()), *(x.aligned for x in p.layout))
        self._binary: _Binary | None = None
        self._descriptors: list[_Descriptor | None] = []
        self._device, self._index = p.device, p.device.index
        # A table on the GPU must outlast the graphs that captured it and the streams that read it.
        self._capturable = any(table.is_cuda for table in self.tables.values())
        self._streams: set[int] = set()

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what each call hands over beside the plan's `tensors`, by name."""
        return dict(zip(self.plan.kernel.arg_names[len(self.plan.tensors):], self._tail, strict=True))

    def bound(self, *leading) -> tuple:
        """Return all arguments as Triton takes them, in the order of the kernel's signature."""
        blocks, describe = self.plan.blocks, self.plan.describe
        return *(describe(x, blocks[name]) if describe and name in blocks else x
                 for name, x in zip(self.plan.tensors, leading, strict=True)), *self._tail

    def __call__(self, *leading) -> None:
        """Launch on the current stream of the problem's device."""
        if self._index is None or self._index != current_device():
            with on(self._device):
                self._run(leading)
        else:
            self._run(leading)

    def _run(self, leading) -> None:
        if self._capturable and capturing():
            pin(self)
        binary = self._binary
        if binary is None or _hooked():
            binary = self._find(leading)
            if binary is None:
                return
        flat = []
        for x, descriptor in zip(leading, self._descriptors, strict=True):
            if descriptor is None:
                flat.append(x)
            else:
                flat += descriptor.encoded.get(x.data_ptr()) or descriptor.encode(x)
        run, stream_of, device, function, packed = binary.direct
        stream = stream_of(device)
        if stream not in self._streams:
            self._lend(stream)
        run(*self.grid, stream, function, packed, None, None, None, *flat, *self._tail)

    def _find(self, leading) -> _Binary | None:
        """Return the binary that launches directly; without one, launch Triton's way and give None."""
        binary = None if _hooked() else self.plan.binaries.get(self._specialization)
        if binary is None or binary.direct is None:
            self._lend(None)
            kernel = self.plan.kernel if binary is None else binary.kernel
            options = self.plan.options if binary is None else {}
            kernel = kernel[self.grid](*self.bound(*leading), **options)
            if binary is None and kernel is not None:       # None: the interpreter
                self.plan.binaries.setdefault(self._specialization,
                                              _Binary(kernel, len(self.plan.blocks)))
            return None
        metas, blocks = iter(binary.metas), self.plan.blocks
        self._descriptors = [_Descriptor(self.plan.describe, blocks[name], next(metas))
                             if name in blocks else None for name in self.plan.tensors]
        self._binary = binary
        return binary

    def _lend(self, stream: int | None) -> None:
        """Keep the memory of tables from being used anew before the current stream has read them."""
        for table in self.tables.values():
            if table.is_cuda:
                table.record_stream(torch.cuda.current_stream(table.device))
        if stream is not None:
            self._streams.add(stream)


class _Binary:
    """What Triton compiled for a plan, with all that a direct launch of it needs.

    `direct` is (launcher, function from device to stream, device, function, packed metadata), or None
    where the launcher is not the one known here: then `kernel` is launched as Triton launches it.
    """

    __slots__ = ("direct", "kernel", "metas")

    def __init__(self, kernel, descriptors: int):
        self.kernel, run = kernel, None
        self.metas = getattr(kernel.metadata, "tensordesc_meta", None) or []
        function, packed = (getattr(kernel, name, None) for name in ("function", "packed_metadata"))
        if len(self.metas) == descriptors and all(self.metas) and function is not None:
            run = _without_encoding(kernel.run) if self.metas else kernel.run
        driver: Any = triton.runtime.driver.active
        self.direct: Any = None if run is None else (run, driver.get_current_stream,
                                                driver.get_current_device(), function, packed)
        if run is None:
            _slow[getattr(kernel, "name", "a kernel")] = "its launcher is not the one known here"


class _Descriptor:
    """The arguments that the descriptor of a tensor becomes, encoded once for each address."""

    __slots__ = ("_block", "_describe", "_meta", "encoded")

    def __init__(self, describe, block, meta):
        self._describe, self._block, self._meta = describe, block, meta
        self.encoded: dict[int, list] = {}                  # address → arguments

    def encode(self, x) -> list:
        """Return the arguments of a tensor at a new address; if there are many, the oldest go."""
        if len(self.encoded) >= MOST_ADDRESSES:
            for address in list(self.encoded)[:max(1, MOST_ADDRESSES // 8)]:
                self.encoded.pop(address, None)             # another thread may have been here
        made = self.encoded[x.data_ptr()] = make_tensordesc_arg(self._describe(x, self._block),
                                                                self._meta)
        return made


_plans = Recent(MOST_PLANS)                                 # by all that is no length
_pinned: set[Launch] = set()
_slow: dict[str, str] = {}                                  # kernel → why it goes Triton's way


def launches_for(backend, p: Problem, direction: str, config=None, *more) -> dict[str, Launch]:
    """Return by name what a backend launches for a problem, from before or made anew.

    `config` None is what tuning found, or the table's. `more`: what else the backend's plan depends on.
    """
    key = (backend.name, direction, config, *more)
    launches = p.made.get(key)
    if launches is None:
        given, config = config, config or backend.config(p, direction)
        of_plan = (backend.name, direction, config, backend.copies(p, direction), p.D, p.dtype,
                   p.device, p.window, p.scores, p.sequences is not None, p.into, p.reserve, *more)
        plans = _plans.get(of_plan)
        if plans is None:
            plans = backend.plan(p, direction, config, *more)
            if given is None:                               # what a search tries drops no other
                _plans[of_plan] = plans
        launches = p.made[key] = {name: Launch(plan, p) for name, plan in plans.items()}
    return launches


def forget() -> None:
    """Let later calls decide, plan and launch anew; what a CUDA graph may read stays."""
    problem.forget()
    _plans.clear()


def pin(launch: Launch) -> None:
    """Keep a launch, its tables above all, as long as the process lives."""
    launch._capturable = False
    _pinned.add(launch)


def on(device: torch.device | problem.Device):
    """Make a GPU the current one while kernels are launched on it: Triton asks which one is.

    In the interpreter NumPy is kept from warning of overflows, which a GPU does not report either.
    """
    if device.type != "cuda":
        return np.errstate(over="ignore", invalid="ignore")
    return torch.cuda.device(device.index)


def why_slow() -> str | None:
    """Return why launches go Triton's way, or None where they skip Triton's own work."""
    if make_tensordesc_arg is None or wrap_handle_tensordesc is None:
        return f"Triton {triton.__version__} encodes tensor descriptors in another place"

    class Sample:
        launch = staticmethod(wrap_handle_tensordesc(print, {0: "tensordesc<fp16[1]>"}, [{}]))

    if _without_encoding(Sample()) is None:
        return f"the launcher of Triton {triton.__version__} looks different from the one known here"
    return "; ".join(f"{kernel}: {reason}" for kernel, reason in _slow.items()) or None


def _specialization(value):
    """Return what Triton's compiler looks at in an argument, such as whether 16 divides it."""
    if type(value) is int:
        return 1 if value == 1 else (value % 16 == 0, value.bit_length() > 31)
    return tuple(map(_specialization, value)) if isinstance(value, tuple) else value


def _hooked() -> bool:
    """Tell whether somebody, such as a profiler, has asked to be called at launches."""
    hooks = knobs.runtime
    enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
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
