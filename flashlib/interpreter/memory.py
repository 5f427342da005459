"""Shared memory, slot by slot, with who last wrote and who has read; and the barriers in it."""

from flashlib.interpreter.tasks import Access, Hazard, assigned, join, line
from flashlib.interpreter.values import Tensor, bytes_of


class Buffer:
    """What one `allocate_shared_memory` returned: its data, and its slots as the hazards see them."""

    def __init__(self, program, dtype, data):
        self.program, self.dtype, self.data = program, dtype, data
        self.name, self.slots = assigned(program.taken), {}


class Slot:
    """One tile of shared memory: the last write, and reads since.

    `fenced`: what was written can be seen by the copy engine and the matrix units, which go through
    another proxy to memory than threads (PTX ISA, "Async proxy").
    """

    def __init__(self, buffer, key):
        self.buffer, self.key, self.fenced = buffer, key, True
        self.write: Access | None = None
        self.reads: dict = {}                               # the last of each agent

    name = property(lambda self: self.buffer.name + "".join(f" slot {k}" for k in self.key))

    def read(self, who, unwritten: bool = False) -> None:
        """Record a read, or raise Hazard; `unwritten`: it may be of what nobody has written."""
        self.reads[who.key] = access = who.access()
        if self.write is not None:
            self._require_over(self.write, access, "reads", "write", (
                "wait for the barrier at which the copy arrives" if self.write.who.asynchronous
                else "a barrier between them is missing"))
        elif not unwritten:
            raise Hazard(f"{access.where}: {who.name} reads {self.name}, which nobody has written")

    def overwrite(self, who) -> None:
        """Record a write, or raise Hazard."""
        access = who.access()
        for read in self.reads.values():
            self._require_over(read, access, "overwrites", "read", (
                "it has not been waited for, or its slot was given back too early"))
        if self.write is not None:
            self._require_over(self.write, access, "overwrites", "write", "nobody has waited for it")
        self.write, self.reads, self.fenced = access, {}, who.asynchronous
        if not who.asynchronous:
            who.unfenced.append(self)
            who.advance()

    def _require_over(self, before, now, does, may, why):
        """Raise Hazard unless an access is over and, if it is a write, seen by who comes now."""
        said = f"{now.where}: {now.who.name} {does} {self.name}"
        if now.who.clock.get(before.who.key, 0) < before.moment:
            raise Hazard(f"{said} while {before.who.name} of {before.where} may still {may} it: {why}")
        if may == "write" and now.who.asynchronous and not self.fenced:
            raise Hazard(f"{said}, which {before.who.name} wrote at {before.where}:"
                         " fence_async_shared() is missing between the two")


class View:
    """A buffer, or a part of it, in some shape: what Gluon calls a shared memory descriptor."""

    def __init__(self, buffer, data, key=()):
        self.buffer, self.data = buffer, data
        self.slot = buffer.slots.setdefault(key, Slot(buffer, key))
        self.dtype, self.shape = buffer.dtype, list(data.shape)
        self.nbytes = bytes_of(self.shape, self.dtype)      # in the kernel's own dtype

    name = property(lambda self: self.slot.name)

    def index(self, i):
        """Return one of what lies along the first axis."""
        i = int(i)
        if not 0 <= i < self.shape[0]:
            raise Hazard(f"{line()}: {self.name} has {self.shape[0]} slots, got number {i}")
        part = self.data[i]
        return part if isinstance(part, Barrier) else View(self.buffer, part, (*self.slot.key, i))

    def reshape(self, shape):
        """Return the same memory in another shape."""
        return View(self.buffer, self.data.reshape([*map(int, shape)]), self.slot.key)

    def permute(self, order):
        """Return the same memory with its axes in another order."""
        return View(self.buffer, self.data.transpose(order), self.slot.key)

    def slice(self, start, length, dim=0):
        """Return a part along an axis; hazards are still those of the whole slot."""
        part = (*[slice(None)] * dim, slice(start, start + length))
        return View(self.buffer, self.data[part], self.slot.key)

    def load(self, layout=None):
        """Read it into registers (PTX `ld.shared`)."""
        self.slot.read(self.buffer.program.current)
        self.buffer.program.note("load", self.name)
        return Tensor(self.data.copy(), self.dtype, layout)

    def store(self, value):
        """Write registers into it (PTX `st.shared`)."""
        if value.dtype != self.dtype or value.shape != self.shape:
            raise Hazard(f"{line()}: {self.name} holds {self.shape} of {self.dtype}, got"
                         f" {value.shape} of {value.dtype}")
        self.slot.overwrite(self.buffer.program.current)
        self.data[...] = value.data
        self.buffer.program.note("store", self.name)


class Phases:
    """What a barrier counts: a phase ends when `count` have arrived and all expected bytes came."""

    def __init__(self, count: int | None = None):
        self.count, self.arrived, self.bytes, self.phase = count, 0, 0, 0
        self.coming, self.come = {}, {}                     # clocks of this phase, and of those before

    def arrive(self, who, count: int, bytes: int = 0) -> None:
        """Let somebody arrive, or expect more bytes: all who then wait know what it did before."""
        join(self.coming, who.clock)
        who.advance()
        self.arrived += count
        self.bytes += bytes
        if self.arrived == self.count and self.bytes == 0:
            join(self.come, self.coming)
            self.arrived, self.coming, self.phase = 0, {}, self.phase + 1


class Barrier(Phases):
    """An mbarrier; it lies in shared memory, and setting it up is a write there."""

    def __init__(self, buffer, i):
        super().__init__()
        self.buffer, self.i, self.slot = buffer, i, Slot(buffer, (i,))

    name = property(lambda self: self.buffer.name + f"[{self.i}]" * (len(self.buffer.data) > 1))

    def ready(self) -> "Barrier":
        """Return itself, or raise Hazard if nobody has set it up."""
        if self.count is None:
            raise Hazard(f"{line()}: {self.buffer.program.current.name} uses {self.name}, which has no"
                         " count: mbarrier.init is missing")
        return self
