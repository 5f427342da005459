"""What a kernel finds under `gl`: the part of `triton.experimental.gluon.language` that ours use.

Each function does what Gluon's of that name does, on `flashlib.interpreter.values`. Names that are not
here are refused, but for dtypes and layouts, which are Gluon's own.
"""

import functools
import math
import re

import numpy as np
import torch
from triton.experimental.gluon import language as gl

from flashlib.interpreter.memory import Barriers, Buffer, Place, View
from flashlib.interpreter.tasks import Hazard, Task, join, line
from flashlib.interpreter.values import (
    Other,
    Tensor,
    common,
    elementwise,
    expand_dims,
    rounded,
    value_of,
)

THREADS = 32                                                # of a warp
TURN = re.compile(r"barrier\.(sync|arrive) (\d+), (\d+);")


# Of a number and NaN the larger is the number, as in `max.f32`.
ELEMENTWISE = {"maximum": np.fmax, "minimum": np.fmin, "abs": np.abs, "log2": np.log2, "log": np.log,
               "exp2": np.exp2, "exp": np.exp}
REDUCTIONS = {"max": np.fmax.reduce, "min": np.fmin.reduce, "sum": np.sum}


def reduced(fn, x, axis):
    """Return a tensor without one axis; the result's layout is the slice along it."""
    layout = Other() if isinstance(x.layout, Other) else gl.SliceLayout(axis, x.layout)
    return Tensor(rounded(fn(x.data, axis=axis), x.dtype), x.dtype, layout)


class Language:
    """The functions, bound to a program."""

    expand_dims, static_range = staticmethod(expand_dims), range

    def __init__(self, program, meanings):
        self.program, self._meanings = program, meanings

    def __getattr__(self, name):
        if name in ELEMENTWISE:
            return functools.partial(self._elementwise, name)
        if name in REDUCTIONS:
            return functools.partial(reduced, REDUCTIONS[name])
        found = getattr(gl, name, None)
        if isinstance(found, gl.dtype) or (isinstance(found, type) and name.endswith("Layout")):
            return found
        raise Hazard(f"{line()}: the interpreter does not know gl.{name}")

    def _elementwise(self, name, *operands):
        """Do one of `ELEMENTWISE`, and count exponentials (`ex2.approx`, here as NumPy rounds it)."""
        made = elementwise(ELEMENTWISE[name], *operands)
        if name in ("exp2", "exp"):
            self.program.count("exponentials", made.data.size)
        return made

    @staticmethod
    def constexpr(value=None):
        """Return the value: everything is constant here."""
        return value

    def program_id(self, axis):
        """Return the program's number."""
        return Tensor(self.program.identity[0] if axis == 0 else 0, gl.int32)

    def num_programs(self, axis):
        """Return how many programs were launched."""
        return Tensor(self.program.identity[1] if axis == 0 else 1, gl.int32)

    def num_warps(self):
        """Return the warps of the task that asks."""
        return self.program.current.warps

    @staticmethod
    def cdiv(a, b):
        """Return a / b, rounded up, for numbers that are not negative."""
        return (a + b - 1) // b

    @staticmethod
    def full(shape, value, dtype, layout=None):
        """Return a tensor of one value."""
        shape = [int(value_of(n)) for n in shape]
        return Tensor(rounded(np.full(shape, value_of(value)), dtype), dtype, layout)

    def zeros(self, shape, dtype, layout=None):
        """Return a tensor of zeros."""
        return self.full(shape, 0, dtype, layout)

    @staticmethod
    def arange(start, end, layout=None):
        """Return start … end."""
        return Tensor(np.arange(start, end), gl.int32, layout)

    @staticmethod
    def where(condition, a, b):
        """Choose element by element."""
        chosen = (a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else (condition, a, b)
        dtype, _ = common(chosen)
        return elementwise(np.where, condition, a, b, dtype=dtype)

    @staticmethod
    def convert_layout(x, layout, assert_trivial=False):
        """Return the tensor in another layout."""
        return Tensor(x.data, x.dtype, layout)

    @staticmethod
    def load(pointer, mask=True, other=0):
        """Read global memory through pointers."""
        offsets = value_of(pointer.offset)
        mask_ = np.broadcast_to(value_of(mask), np.shape(offsets))
        at = pointer.memory.at(np.asarray(offsets), mask_)
        found = pointer.memory.flat[at]
        data = (found.float() if found.dtype.is_floating_point else found.long()).numpy()
        data = np.where(mask_, data, value_of(other)).astype(data.dtype)
        layout = pointer.offset.layout if isinstance(pointer.offset, Tensor) else None
        return Tensor(data, pointer.memory.dtype, layout)

    def store(self, pointer, value, mask=True):
        """Write global memory through pointers."""
        offsets = np.asarray(value_of(pointer.offset))
        mask_ = np.broadcast_to(value_of(mask), offsets.shape)
        at = pointer.memory.at(offsets, mask_)
        self._put(pointer.memory, at, mask_, np.broadcast_to(value_of(value), offsets.shape))

    def _put(self, memory, at, mask, data):
        chosen = torch.from_numpy(np.array(np.asarray(data)[mask]))
        memory.flat[at[torch.from_numpy(np.array(mask))]] = chosen.to(memory.flat.dtype)

    def atomic_add(self, pointer, value, mask=True):
        """Add to global memory; return what was there."""
        before = self.load(pointer, mask)
        offsets = np.asarray(value_of(pointer.offset))
        mask_ = np.broadcast_to(value_of(mask), offsets.shape)
        data = np.broadcast_to(value_of(value), offsets.shape)
        flat = pointer.memory.flat.numpy()
        np.add.at(flat, offsets[mask_], np.asarray(data)[mask_].astype(flat.dtype))
        self.program.note("atomic", pointer.memory.name)
        return before

    def allocate_shared_memory(self, dtype, shape, layout, value=None):
        """Return shared memory: of 64-bit numbers in the layout of barriers, barriers."""
        if type(layout).__name__ == "MBarrierLayout":
            made = Barriers(self.program, math.prod(shape))
            return View(made, made.data) if len(shape) > 1 else Place(made, 0)
        buffer = Buffer(self.program, dtype, [int(value_of(n)) for n in shape])
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
        program = self.program
        names = [fn.__name__ for fn, _ in partitions]
        tasks = []
        for i, (fn, arguments) in enumerate(partitions):
            twins = names.count(names[i]) > 1
            name = f"{names[i]} {names[:i].count(names[i])}" if twins else names[i]
            warps = program.warps if i == 0 else worker_num_warps[i - 1]
            tasks.append(Task(program, name, program.current.clock, warps,
                              lambda fn=fn, arguments=arguments: fn(*arguments)))
        program.run(tasks)

    def thread_barrier(self):
        """Let all threads of a task meet: here a task is one thread."""

    barrier = thread_barrier

    def inline_asm_elementwise(self, asm, constraints, args, dtype, is_pure, pack):
        """Do what a piece of PTX means: a barrier of the hardware, or what `meanings` says of it."""
        turn = TURN.match(asm)
        if turn:
            self._meet(turn[1] == "sync", int(turn[2]), int(turn[3]))
            return args[-1]
        meaning = self._meanings(asm)
        if meaning is None:
            raise Hazard(f"{line()}: the interpreter knows no meaning of this PTX: {asm[:60]}")
        several = isinstance(dtype, tuple)
        dtypes = dtype if several else (dtype,)
        found = elementwise(lambda *x: np.zeros(np.broadcast_shapes(*map(np.shape, x))), *args)
        results = meaning(self.program, *(value_of(x) for x in args))
        results = results if several else (results,)
        made = tuple(Tensor(rounded(np.broadcast_to(x, found.shape), d), d, found.layout)
                     for x, d in zip(results, dtypes, strict=True))
        return made if several else made[0]

    def _meet(self, sync: bool, number: int, threads: int):
        """Arrive at one of the sixteen barriers of the hardware (PTX `barrier`), and wait if `sync`."""
        program = self.program
        task = program.current
        state = program.named.setdefault(number, {"here": 0, "turn": 0, "coming": {}, "come": {}})
        turn, name = state["turn"], f"barrier {number}"
        join(state["coming"], task.clock)
        state["here"] += task.warps * THREADS
        task.advance()
        if state["here"] > threads:
            raise Hazard(f"{line()}: {task.name} is one too many at {name}, which expects {threads}"
                         " threads")
        if state["here"] == threads:
            join(state["come"], state["coming"])
            state.update(here=0, turn=turn + 1, coming={})
        program.note("arrive", name)
        if sync:
            program.wait(lambda: state["turn"] > turn,
                         f"{name}: {state['here']} of {threads} threads have come")
            join(task.clock, state["come"])
