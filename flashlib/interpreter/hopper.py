"""Hopper's asynchronous parts: mbarriers, the copy engine (TMA), products of warpgroups, the fence.

What the hardware does is in NVIDIA's PTX ISA, under the names `mbarrier`, `cp.async.bulk.tensor`,
`wgmma` and `fence.proxy.async`: copies and products go through another proxy to shared memory than the
threads' own stores, and see those only after a fence.
"""

from math import prod

import numpy as np
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashlib.interpreter.memory import View
from flashlib.interpreter.tasks import Agent, Hazard, join, line
from flashlib.interpreter.values import Tensor, rounded, value_of


class MBarrier:
    """`mbarrier`: a phase ends when `count` have arrived and all expected bytes have come."""

    MBarrierLayout = mbarrier.MBarrierLayout

    def __init__(self, program):
        self.program = program

    def init(self, place, count):
        """Set a barrier up for `count` arrivals a phase."""
        if place.barrier.count is not None:
            raise Hazard(f"{line()}: {place.name} is set up a second time")
        place.barrier.count = int(value_of(count))
        task = self.program.current
        place.barrier.slot.overwrite(task, task.tick(), place.name, by_copy=False)
        task.unfenced.append(place.barrier.slot)
        task.advance()

    def expect(self, place, bytes, pred=True):
        """Arrive, and say how many bytes must come before the phase can end."""
        if value_of(pred):
            place.ready().bytes += int(value_of(bytes))
            self._arrive(place, "expect", f"{place.name}, {int(value_of(bytes))} B")

    def arrive(self, place, *, count=1, pred=True):
        """Arrive: what this task did before is known to all who then wait."""
        if value_of(pred):
            place.ready()
            for _ in range(count):
                self._arrive(place, "arrive", place.name)

    def _arrive(self, place, kind, what):
        task, barrier = self.program.current, place.ready()
        join(barrier.coming, task.clock)
        task.advance()
        barrier.arrived += 1
        self.program.note(kind, what)
        barrier.complete()
        if self.program.drawn and task.thread is not None:
            self.program.wait(lambda: True, "its next turn")

    def wait(self, place, phase, pred=True, deps=()):
        """Wait until the phase of this parity has ended; before the first, parity 1 passes."""
        if not value_of(pred):
            return
        barrier, parity, task = place.ready(), int(value_of(phase)), self.program.current
        if parity not in (0, 1):
            raise Hazard(f"{line()}: a phase is 0 or 1, got {parity}")
        self.program.wait(
            lambda: barrier.phase & 1 != parity, Waiting(place.name, barrier, parity))
        join(task.clock, barrier.come)

    def invalidate(self, place):
        """Give a barrier's memory back."""
        place.barrier.count = None


class Waiting:
    """Why a task waits at a barrier, in words that are made when they are needed."""

    def __init__(self, name, barrier, parity):
        self.name, self.barrier, self.parity = name, barrier, parity

    def __str__(self):
        b = self.barrier
        return (f"{self.name}, parity {self.parity} ({b.arrived} of {b.count} arrivals in phase"
                f" {b.phase}" + (f", {b.bytes} B to come)" if b.bytes else ")"))


class Copy(Agent):
    """A tile on its way from global to shared memory, or back, there perhaps to be added."""

    def __init__(self, program, descriptor, at, view, barrier=None, adds=False):
        super().__init__(program, f"the copy of {descriptor.name}", program.current.clock)
        self.descriptor, self.view, self.barrier, self.landed = descriptor, view, barrier, False
        self.at = [int(value_of(x)) for x in at]
        self.begun, self.adds = program.step, adds
        if view.data.size != prod(descriptor.block_type.shape) or view.dtype != descriptor.dtype:
            raise Hazard(f"{self.where}: {view.name} holds {view.shape} of {view.dtype}, and"
                         f" {descriptor.name} moves {descriptor.block_type.shape} of"
                         f" {descriptor.dtype}")
        slot = view.buffer.slot(view.key)
        if barrier is not None:
            if not barrier.barrier.slot.fenced:
                raise Hazard(f"{self.where}: {self.name} arrives at {barrier.name}, which was set up"
                             " without fence_async_shared()")
            slot.overwrite(self, self.tick(), view.name, by_copy=True)
        else:
            slot.read(self, self.tick(), view.name, asynchronous=True)
        program.start(self)

    def land(self):
        """Take effect."""
        block = self.descriptor.block_type
        here, there = self.descriptor.inside(self.at, block.shape)
        tensor = self.descriptor.tensor
        tile = self.view.data.reshape(block.shape)          # of a view: the same memory
        moved = tensor[here].numel() * tensor.element_size()
        if self.barrier is None:
            data = torch.from_numpy(np.ascontiguousarray(tile[there])).to(tensor.dtype)
            tensor[here] = tensor[here] + data if self.adds else data
            self.program.count(f"stored {self.descriptor.name}", moved)
        else:
            filled = np.zeros(block.shape, np.float32)
            filled[there] = tensor[here].float().numpy()
            self.view.data[...] = filled.reshape(self.view.data.shape)
            barrier = self.barrier.ready()
            join(barrier.coming, self.clock)
            barrier.bytes -= block.nbytes
            barrier.complete()
            self.program.count(f"loaded {self.descriptor.name}", moved)
        self.landed = True
        self.program.note("copy", self.view.name, self.begun, "the copy engine")


class TMA:
    """`tma`: copies of tiles that run by themselves."""

    def __init__(self, program):
        self.program = program

    def async_copy_global_to_shared(self, descriptor, at, barrier, result, pred=True, **unknown):
        """Ask for a tile; it arrives at a barrier with its bytes."""
        refuse(unknown)
        if value_of(pred):
            self.program.note("ask", result.name)
            Copy(self.program, descriptor, at, result, barrier)

    def async_copy_shared_to_global(self, descriptor, at, source):
        """Ask for a tile to be written; `store_wait` says when its memory is free again."""
        self.program.note("ask", source.name)
        self.program.current.stores.append(Copy(self.program, descriptor, at, source))

    def reduce_tile(self, descriptor, at, source):
        """Ask for a tile to be added to global memory (`cp.reduce.async.bulk.tensor`)."""
        self.program.note("ask", source.name)
        self.program.current.stores.append(Copy(self.program, descriptor, at, source, adds=True))

    async_load, async_store = async_copy_global_to_shared, async_copy_shared_to_global

    def store_wait(self, pendings):
        """Wait until at most `pendings` of this task's stores still read shared memory."""
        self.program.finish_stores(pendings)


class Product(Agent):
    """A product of a warpgroup's that is under way: it reads shared memory until it is waited for."""

    def __init__(self, program, a, b, acc, use_acc):
        name = program.current.name
        super().__init__(program, f"the product of {name}", program.current.clock)
        self.a, self.b, self.acc, self.use_acc = a, b, acc, use_acc
        self.found, self.begun = None, program.step
        for operand in (a, b):
            if isinstance(operand, View):
                operand.buffer.slot(operand.key).read(self, self.tick(), operand.name,
                                                      asynchronous=True, product=True)
        if program.order == "early":
            self.compute()

    def compute(self):
        """Return a · b + acc in float32, computed once."""
        if self.found is None:
            before = self.acc.product.compute() if self.acc.product else self.acc.data
            a, b = (x.data if isinstance(x, View) else value_of(x) for x in (self.a, self.b))
            made = np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32))
            self.found = made + before if self.use_acc else made
        return self.found


def refuse(unknown):
    """Raise Hazard for options that are not known here."""
    if any(value not in (None, False) for value in unknown.values()):
        raise Hazard(f"{line()}: the interpreter does not know {', '.join(unknown)}")


class Functions:
    """Products and the fence."""

    def __init__(self, program):
        self.program = program

    def warpgroup_mma(self, a, b, acc, *, use_acc=True, is_async=False, **unknown):
        """Return acc + a · b, or what will be it: float32, of operands in 16 or 8 bits."""
        refuse({k: v for k, v in unknown.items() if k not in ("precision", "max_num_imprecise_acc")})
        program = self.program
        if not isinstance(b, View) or not isinstance(acc, Tensor):
            raise Hazard(f"{line()}: warpgroup_mma expected b in shared memory and acc in registers")
        if not isinstance(acc.layout, gl.NVMMADistributedLayout):
            raise Hazard(f"{line()}: warpgroup_mma expected acc in an NVMMADistributedLayout, got"
                         f" {acc.layout}")
        (M, K), (K_B, N) = a.shape, b.shape
        if K != K_B or acc.shape != [M, N] or a.dtype != b.dtype:
            raise Hazard(f"{line()}: warpgroup_mma expected (M, K), (K, N) and (M, N) with one dtype,"
                         f" got {a.shape} of {a.dtype}, {b.shape} of {b.dtype}, {acc.shape}")
        if isinstance(a, Tensor):
            wanted = getattr(a.layout, "parent", None) == acc.layout and getattr(
                a.layout, "operand_index", None) == 0
            if not wanted:
                raise Hazard(f"{line()}: warpgroup_mma expected a in DotOperandLayout(0, {acc.layout}),"
                             f" got {a.layout}")
        product = Product(program, a, b, acc, bool(value_of(use_acc)))
        program.count("flops", 2 * M * N * K)
        program.count("operand bytes", b.nbytes + (a.nbytes if isinstance(a, View) else 0))
        program.current.products.append(product)
        program.note("ask", "a product")
        result = Tensor(np.broadcast_to(np.float32(np.nan), (M, N)), acc.dtype, acc.layout)
        result.product = product
        return result if is_async else self.warpgroup_mma_wait(0, deps=[result])

    def warpgroup_mma_wait(self, num_outstanding=0, deps=None):
        """Wait until at most so many of this task's products are under way; return what is there."""
        task = self.program.current
        while len(task.products) > num_outstanding:
            product = task.products.pop(0)
            product.compute()
            join(task.clock, product.clock)
            self.program.note("product", product.b.name, product.begun)
        found = tuple(self._received(x, task) for x in deps or ())
        return found[0] if len(found) == 1 else found

    def _received(self, x, task):
        if x.product is None or x.product in task.products:
            return x
        return Tensor(rounded(x.product.found, x.dtype), x.dtype, x.layout)

    def fence_async_shared(self, cluster=False):
        """Let the copy engine and the matrix units see what this task's threads have written."""
        task = self.program.current
        for slot in task.unfenced:
            slot.fenced = True
        task.unfenced.clear()
