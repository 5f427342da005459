"""What a kernel finds under `gl`: the part of `triton.experimental.gluon.language` that ours use.

Each function does what Gluon's of that name does, on `flashlib.interpreter.values`. Names that are not
here are refused, but for dtypes and layouts, which are Gluon's own.
"""

import functools
import re

import numpy as np
import torch
from triton.experimental.gluon import language as gl

from flashlib.interpreter.hopper import Hopper
from flashlib.interpreter.memory import Barrier, Buffer, Phases, View
from flashlib.interpreter.tasks import Hazard, Task, join, line
from flashlib.interpreter.values import Tensor, elementwise, expand_dims, reduced, rounded, value_of

TURN = re.compile(r"barrier\.(sync|arrive) (\d+), (\d+);")


def _each(fn):
    return functools.partial(elementwise, fn)


def _along(fn):
    return functools.partial(reduced, fn)


def full(shape, value, dtype, layout=None):
    """Return a tensor of one value."""
    return Tensor(rounded(np.full([*map(int, shape)], value_of(value)), dtype), dtype, layout)


# What needs nothing of the program. Of a number and NaN the larger is the number (PTX `max.f32`).
PURE = {
    "maximum": _each(np.fmax), "minimum": _each(np.fmin), "abs": _each(np.abs),
    "where": _each(np.where), "log": _each(np.log), "log2": _each(np.log2), "sum": _along(np.sum),
    "max": _along(np.fmax.reduce), "min": _along(np.fmin.reduce),
    "full": full, "zeros": lambda shape, dtype, layout=None: full(shape, 0, dtype, layout),
    "arange": lambda start, end, layout=None: Tensor(np.arange(start, end), gl.int32, layout),
    "convert_layout": lambda x, layout, assert_trivial=False: Tensor(x.data, x.dtype, layout),
    "expand_dims": expand_dims,
    "cdiv": lambda a, b: (a + b - 1) // b,                  # of what is not negative
    "constexpr": lambda value=None: value,                  # everything is constant here
    "static_range": range,
    "thread_barrier": lambda: None, "barrier": lambda: None,            # here a task is one thread
}


class Language(Hopper):
    """The functions of `gl`, too, bound to a program."""

    def __init__(self, program, meanings):
        super().__init__(program)
        self._meanings = meanings

    def __getattr__(self, name):
        if name in PURE:
            return PURE[name]
        found = getattr(gl, name, None)
        if isinstance(found, gl.dtype) or (isinstance(found, type) and name.endswith("Layout")):
            return found
        raise Hazard(f"{line()}: the interpreter does not know gl.{name}")

    def exp2(self, x, fn=np.exp2):
        """Return 2ˣ, and count it (PTX `ex2.approx`, which rounds a bit less well)."""
        self.program.count("exponentials", np.size(value_of(x)))
        return elementwise(fn, x)

    def exp(self, x):
        """Return eˣ, on the same unit."""
        return self.exp2(x, np.exp)

    def program_id(self, axis):
        """Return the program's number (PTX `%ctaid`)."""
        return Tensor(self.program.identity[0] if axis == 0 else 0, gl.int32)

    def num_programs(self, axis):
        """Return how many programs were launched (PTX `%nctaid`)."""
        return Tensor(self.program.identity[1] if axis == 0 else 1, gl.int32)

    def num_warps(self):
        """Return the warps of the task that asks."""
        return self.program.current.warps

    def load(self, pointer, mask=True, other=0):
        """Read global memory through pointers (PTX `ld.global`)."""
        mask, at = pointer.lanes(mask)
        found = pointer.numbers[at]
        found = (found.float() if found.dtype.is_floating_point else found.long()).numpy()
        data = np.full(mask.shape, value_of(other), found.dtype)
        data[mask] = found
        return Tensor(data, pointer.element_ty, getattr(pointer.offset, "layout", None))

    def store(self, pointer, value, mask=True, adds=False):
        """Write global memory through pointers (PTX `st.global`)."""
        mask, at = pointer.lanes(mask)
        data = torch.from_numpy(np.broadcast_to(value_of(value), mask.shape)[mask])
        pointer.numbers.index_put_((at,), data.to(pointer.numbers.dtype), accumulate=adds)

    def atomic_add(self, pointer, value, mask=True):
        """Add to global memory; return what was there (PTX `atom.add`)."""
        before = self.load(pointer, mask)
        self.store(pointer, value, mask, adds=True)
        self.program.note("atomic", pointer.name)
        return before

    def allocate_shared_memory(self, dtype, shape, layout, value=None):
        """Return shared memory, which begins as NaN; in the layout of barriers, barriers."""
        buffer = Buffer(self.program, dtype, np.full([*map(int, shape)], np.nan, np.float32))
        if isinstance(layout, self.MBarrierLayout):
            buffer.data = np.array([Barrier(buffer, i) for i in range(len(buffer.data))])
            return View(buffer, buffer.data) if len(shape) > 1 else buffer.data[0]
        view = View(buffer, buffer.data)
        if value is not None:
            view.store(value)
        return view

    def warp_specialize(self, partitions, worker_num_warps, worker_num_regs):
        """Run functions side by side, the first with the program's own warps, until all have ended."""
        if not len(partitions) - 1 == len(worker_num_warps) == len(worker_num_regs):
            raise ValueError(f"{line()}: warp_specialize expected warps and registers of"
                             f" {len(partitions) - 1} workers, got {len(worker_num_warps)} and"
                             f" {len(worker_num_regs)}")
        main, tasks = self.program.current, []
        names = [fn.__name__ for fn, _ in partitions]
        warps = main.warps, *worker_num_warps
        for i, (fn, arguments) in enumerate(partitions):
            name = f"{names[i]} {names[:i].count(names[i])}" if names.count(names[i]) > 1 else names[i]
            tasks.append(Task(self.program, name, main.clock, warps[i]))
            tasks[i].begin(functools.partial(fn, *arguments))
        self.program.pause(lambda: all(task.done for task in tasks))
        for task in tasks:
            join(main.clock, task.clock)

    def inline_asm_elementwise(self, asm, constraints, args, dtype, is_pure, pack):
        """Do what a piece of PTX means: a barrier of the hardware, or what `meanings` says of it."""
        if turn := TURN.match(asm):
            self._meet(turn[1] == "sync", int(turn[2]), int(turn[3]))
            return args[-1]
        if (meaning := self._meanings(asm)) is None:
            raise Hazard(f"{line()}: the interpreter knows no meaning of this PTX: {asm[:60]}")
        like = elementwise(lambda *x: np.zeros(np.broadcast_shapes(*map(np.shape, x))), *args)

        def made(x, kind):
            return Tensor(rounded(np.broadcast_to(x, like.shape), kind), kind, like.layout)
        found = meaning(self.program, *map(value_of, args))
        if not isinstance(dtype, tuple):
            return made(found, dtype)
        return tuple(made(*result) for result in zip(found, dtype, strict=True))

    def _meet(self, sync: bool, number: int, threads: int):
        """Arrive at one of the sixteen barriers of the hardware (PTX `barrier`), and wait if `sync`."""
        program, task, name = self.program, self.program.current, f"barrier {number}"
        barrier = program.named.setdefault(number, Phases())
        barrier.count, phase = threads, barrier.phase
        barrier.arrive(task, task.warps * 32)               # threads of a warp
        if barrier.arrived > threads:
            raise Hazard(f"{line()}: {task.name} is one too many at {name}, which expects {threads}"
                         " threads")
        program.note("arrive", name)
        if sync:
            program.wait(lambda: barrier.phase > phase, name,
                         lambda: f": {barrier.arrived} of {threads} threads have come")
            join(task.clock, barrier.come)
