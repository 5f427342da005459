"""Launch a kernel again at little cost: what depends only on how tensors lie in memory is kept.

At every launch Triton binds the arguments, encodes each tensor descriptor in Python and calls the
hooks of profilers. Here a plan, made once for tensors that lie alike, holds the compiled kernel and
tables that it reads; a later call hands it the arguments as the driver takes them, with descriptors
that are encoded once for each address. Where hooks are set, or Triton's launcher looks different from
the one known here, each launch goes Triton's way. Of many plans the oldest is dropped: a CUDA graph
must not outlive KEPT other plans, and each result that tuning keeps or drops makes all of them anew.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading

import numpy as np
import torch
import triton

try:
    from triton.backends.nvidia.driver import make_tensordesc_arg
except ImportError:                                         # a Triton that encodes elsewhere
    make_tensordesc_arg = None

KEPT = 1024                                                 # plans; and addresses of a descriptor
_plans: dict = {}
_own = threading.local()                                    # what `apart` keeps, in its thread
_generation = 0                                             # of the plans that calls may find


def plan_for(make, tensors, *options):
    """Return what `make(*tensors, *options)` returned for tensors that lay the same way, or anew."""
    key = [make, options, tensors[0].device, _generation]
    for x in tensors:
        if x.data_ptr() % 16:                               # Triton compiles by which pointers are
            return make(*tensors, *options)
        key += x.dtype, x.shape, x.stride()
    key, plans = tuple(key), getattr(_own, "plans", _plans)
    plan = plans.get(key)
    if plan is None:
        if len(plans) >= KEPT:
            del plans[next(iter(plans))]                    # the oldest
        plan = plans[key] = make(*tensors, *options)
    return plan


def forget() -> None:
    """Drop all plans, and with them the compiled kernels that they hold."""
    _plans.clear()


def renew() -> None:
    """Let later calls make plans anew; the older stay, for a CUDA graph may read their tables."""
    global _generation
    _generation += 1


@contextlib.contextmanager
def apart():
    """Keep this thread's plans inside apart: many may be tried, and none drops an older one."""
    _own.plans = {}
    try:
        yield
    finally:
        del _own.plans


def on(device: torch.device):
    """Make a GPU the current one while kernels are launched on it: Triton asks which one is.

    In the interpreter NumPy is kept from warning of overflows, which a GPU does not report either.
    """
    if device.type != "cuda":
        return np.errstate(over="ignore", invalid="ignore")
    if device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


class Launch:
    """A kernel with all arguments but the leading ones: tensors, and scalars that change by the call.

    `constants` holds the others by name. `describe` holds, by position, a function from tensor to
    descriptor for each leading argument that the kernel takes as one.
    """

    __slots__ = ("_again", "_describe", "_grid", "_kernel", "_options", "_tail", "constants")

    def __init__(self, kernel, programs, constants, describe=None, **options):
        names = kernel.arg_names[len(kernel.arg_names) - len(constants):]
        if set(names) != set(constants):
            raise TypeError(f"constants: expected the kernel's last arguments, {', '.join(names)}, got"
                            f" {', '.join(constants)}")
        self.constants, self._kernel, self._grid = constants, kernel, (programs, 1, 1)
        self._tail = tuple(constants[name] for name in names)
        self._describe, self._options = describe or {}, options
        self._again = None

    def arguments(self, *leading):
        """Return all arguments as Triton takes them."""
        return *(self._describe[at](x) if at in self._describe else x
                 for at, x in enumerate(leading)), *self._tail

    def __call__(self, *leading):
        if self._again is None or _hooked():
            kernel = self._kernel[self._grid](*self.arguments(*leading), **self._options)
            if kernel is not None and self._again is None:  # the interpreter compiles nothing
                self._again = self._directly(kernel, len(leading)) or self._triton_s_way(kernel)
        else:
            self._again(*leading)

    def _triton_s_way(self, kernel):
        launch = kernel[self._grid]
        return lambda *leading: launch(*self.arguments(*leading))

    def _directly(self, kernel, count):
        """Return a function that launches the compiled kernel with new leading arguments, or None."""
        metas = getattr(kernel.metadata, "tensordesc_meta", None) or []
        function, packed = (getattr(kernel, name, None) for name in ("function", "packed_metadata"))
        if len(metas) != len(self._describe) or not all(metas) or function is None:
            return None
        run = _without_encoding(kernel.run) if metas else kernel.run
        if run is None:
            return None
        metas = iter(metas)
        encode = [_encoder(self._describe[at], next(metas)) if at in self._describe else None
                  for at in range(count)]
        driver = triton.runtime.driver.active
        device, stream_of = driver.get_current_device(), driver.get_current_stream
        grid, tail = self._grid, self._tail

        def launch(*leading):
            flat = []
            for x, encoded in zip(leading, encode, strict=True):
                if encoded is None:
                    flat.append(x)
                else:
                    flat += encoded(x)
            run(*grid, stream_of(device), function, packed, None, None, None, *flat, *tail)

        return launch


def _hooked() -> bool:
    """Tell whether somebody, such as a profiler, wants to be called at launches."""
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


def _encoder(describe, meta):
    """Return a function from tensor to the arguments that its descriptor becomes."""
    kept = {}

    def encode(x):
        address = x.data_ptr()
        encoded = kept.get(address)
        if encoded is None:
            if len(kept) >= KEPT:
                kept.clear()
            encoded = kept[address] = make_tensordesc_arg(describe(x), meta)
        return encoded

    return encode
