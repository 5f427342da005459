"""Shared memory, slot by slot, with who last wrote and who has read; and the barriers in it."""

from math import prod

import numpy as np

from flashlib.interpreter.tasks import Hazard, assigned, join, line
from flashlib.interpreter.values import Tensor, value_of


class Slot:
    """One tile of shared memory as the hazards see it: the last write, and reads since.

    Accesses are `Agent.tick()`s. `by_copy`: the copy engine wrote it. `fenced`: what threads wrote can
    be seen by the copy engine and the matrix units (the asynchronous proxy of PTX).
    """

    def __init__(self):
        self.write, self.reads = None, {}
        self.by_copy, self.fenced = False, True

    def read(self, who, moment, name: str, *, asynchronous=False, product=False) -> None:
        """Record a read, or raise Hazard.

        A product may read what nobody has written: it is NaN, and so is what comes of it.
        """
        key, _, by, where = moment
        self.reads[key] = moment
        if self.write is None:
            if product:
                return
            raise Hazard(f"{where}: {by} reads {name}, which nobody has written")
        writer, tick, writer_name, writer_line = self.write
        if who.clock.get(writer, 0) < tick:
            raise Hazard(f"{where}: {by} reads {name} while {writer_name} of {writer_line} may still"
                         " write it: " + ("wait for the barrier at which the copy arrives"
                                          if self.by_copy else "a barrier between them is missing"))
        if asynchronous and not self.fenced:
            raise Hazard(f"{where}: {by} reads {name}, which {writer_name} wrote at {writer_line}:"
                         " fence_async_shared() is missing between the two")

    def overwrite(self, who, moment, name: str, by_copy: bool) -> None:
        """Record a write, or raise Hazard."""
        _, _, by, where = moment
        for key, tick, reader, read_at in self.reads.values():
            if who.clock.get(key, 0) < tick:
                raise Hazard(f"{where}: {by} overwrites {name} while {reader} of {read_at} may still"
                             " read it: it has not been waited for, or its slot was given back too"
                             " early")
        if self.write is not None and who.clock.get(self.write[0], 0) < self.write[1]:
            raise Hazard(f"{where}: {by} overwrites {name} while {self.write[2]} of {self.write[3]} may"
                         " still write it: nobody has waited for it")
        if self.write is not None and by_copy and not self.fenced:
            raise Hazard(f"{where}: {by} overwrites {name}, which {self.write[2]} wrote at"
                         f" {self.write[3]}: fence_async_shared() is missing between the two")
        self.write, self.reads, self.by_copy, self.fenced = moment, {}, by_copy, by_copy


class Buffer:
    """What one `allocate_shared_memory` returned; it begins as NaN."""

    def __init__(self, program, dtype, shape):
        self.program, self.dtype, self.name = program, dtype, assigned(program.taken)
        self.data = np.full(shape, np.nan, np.float32)
        self.slots = {}

    def slot(self, key) -> Slot:
        """Return a slot's record."""
        return self.slots.setdefault(key, Slot())


class View:
    """A buffer, or a part of it, in some shape: what Gluon calls a shared memory descriptor."""

    def __init__(self, buffer, data, key=()):
        self.buffer, self.data, self.key = buffer, data, key
        self.dtype, self.shape = buffer.dtype, list(data.shape)

    @property
    def name(self) -> str:
        """Return what messages call it."""
        return self.buffer.name + "".join(f" slot {k}" for k in self.key)

    @property
    def nbytes(self) -> int:
        """Return its size in the kernel's own dtype."""
        return prod(self.shape) * self.dtype.primitive_bitwidth // 8

    def called(self, name: str) -> None:
        """Let messages say the name of the field that holds it."""
        self.buffer.name = name

    def index(self, i):
        """Return one of what lies along the first axis."""
        i = int(value_of(i))
        if not 0 <= i < self.shape[0]:
            raise Hazard(f"{line()}: {self.name} has {self.shape[0]} slots, got number {i}")
        if isinstance(self.buffer, Barriers):
            return Place(self.buffer, i)
        return View(self.buffer, self.data[i], (*self.key, i))

    def reshape(self, shape):
        """Return the same memory in another shape."""
        return View(self.buffer, self.data.reshape([int(value_of(n)) for n in shape]), self.key)

    def permute(self, order):
        """Return the same memory with its axes in another order."""
        return View(self.buffer, self.data.transpose(order), self.key)

    def slice(self, start, length, dim=0):
        """Return a part along an axis; hazards are still those of the whole slot."""
        start = int(value_of(start))
        part = (slice(None),) * dim + (slice(start, start + length),)
        return View(self.buffer, self.data[part], self.key)

    def load(self, layout=None):
        """Read it into registers."""
        program = self.buffer.program
        task = program.current
        self.buffer.slot(self.key).read(task, task.tick(), self.name)
        program.note("load", self.name)
        return Tensor(self.data.copy(), self.dtype, layout)

    def store(self, value):
        """Write registers into it."""
        program = self.buffer.program
        task = program.current
        if value.dtype != self.dtype or list(value.shape) != self.shape:
            raise Hazard(f"{line()}: {self.name} holds {self.shape} of {self.dtype}, got"
                         f" {value.shape} of {value.dtype}")
        slot = self.buffer.slot(self.key)
        slot.overwrite(task, task.tick(), self.name, by_copy=False)
        task.unfenced.append(slot)
        self.data[...] = value.data
        task.advance()
        program.note("store", self.name)


class Barriers(Buffer):
    """An array of mbarriers."""

    def __init__(self, program, count):
        super().__init__(program, None, [count])
        self.dtype = None
        self.all = [Barrier() for _ in range(count)]


class Barrier:
    """One of them: its phase ends when `count` have arrived and as many bytes as were expected."""

    def __init__(self):
        self.count, self.arrived, self.bytes, self.phase = None, 0, 0, 0
        self.coming, self.come = {}, {}                     # clocks of this phase, and of those before
        self.slot = Slot()

    def complete(self) -> None:
        """End the phase if everything is there."""
        if self.arrived == self.count and self.bytes == 0:
            join(self.come, self.coming)
            self.arrived, self.coming, self.phase = 0, {}, self.phase + 1


class Place:
    """One barrier of an array."""

    def __init__(self, array, i):
        self.array, self.i, self.barrier, self.program = array, i, array.all[i], array.program
        self.shape = [1]

    @property
    def name(self) -> str:
        """Return what messages call it."""
        return f"{self.array.name}[{self.i}]" if len(self.array.all) > 1 else self.array.name

    def called(self, name: str) -> None:
        """Let messages say the name of the field that holds it."""
        self.array.name = name

    def index(self, i):
        """Return itself: an array of one."""
        return self

    def ready(self) -> "Barrier":
        """Return the barrier, or raise Hazard if nobody has set it up."""
        if self.barrier.count is None:
            raise Hazard(f"{line()}: {self.program.current.name} uses {self.name}, which has no count:"
                         " mbarrier.init is missing")
        return self.barrier
