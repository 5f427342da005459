"""Hopper's asynchronous parts: mbarriers, the copy engine (TMA), products of warpgroups, the fence.

What the hardware does is in NVIDIA's PTX ISA, under the names that the docstrings give.
"""

import numpy as np
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashlib.interpreter.memory import View
from flashlib.interpreter.tasks import Effect, Hazard, join, line
from flashlib.interpreter.values import Tensor, rounded


class Copy(Effect):
    """A tile on its way from global to shared memory, or back, there perhaps to be added."""

    def __init__(self, program, descriptor, at, view, barrier=None, adds=False):
        program.note("ask", view.name)
        super().__init__(program, f"the copy of {descriptor.name}")
        self.descriptor, self.at, self.view = descriptor, [*map(int, at)], view
        self.barrier, self.adds = barrier, adds
        block = descriptor.block_type
        if view.nbytes != block.nbytes or view.dtype != block.dtype:
            raise Hazard(f"{self.where}: {view.name} holds {view.shape} of {view.dtype}, and"
                         f" {descriptor.name} moves {block.shape} of {block.dtype}")
        if barrier is None:
            view.slot.read(self)
        else:
            if not barrier.slot.fenced:
                raise Hazard(f"{self.where}: {self.name} arrives at {barrier.name}, which was set up"
                             " without fence_async_shared()")
            view.slot.overwrite(self)
            program.loads.append((self.key, self.where, self.name))
        program.start(self, by_itself=True)

    def happen(self):
        """Move the tile: outside of the tensor zeros are read, and nothing is written."""
        program, shape = self.program, self.descriptor.block_type.shape
        part, there = self.descriptor.inside(self.at)
        if self.barrier is None:
            data = torch.tensor(self.view.data.reshape(shape)[there], dtype=part.dtype)
            part.copy_(part + data if self.adds else data)
        else:
            tile = np.zeros(shape, np.float32)
            tile[there] = part.float().numpy()
            self.view.data[...] = tile.reshape(self.view.shape)
            self.barrier.ready().arrive(self, 0, -self.view.nbytes)
        moved = "loaded" if self.barrier else "stored"
        program.count(f"{moved} {self.descriptor.name}", part.numel() * part.element_size())
        program.note("copy", self.view.name, self.begun, self)


class Product(Effect):
    """A product of a warpgroup's that is under way: a · b, and acc if it is to be added to."""

    def __init__(self, program, a, b, acc, use_acc):
        super().__init__(program, f"the product of {program.current.name}")
        self.a, self.b, self.acc, self.use_acc, self.found = a, b, acc, use_acc, None
        for operand in (a, b):
            if isinstance(operand, View):                   # if nobody wrote it, the result is NaN
                operand.slot.read(self, unwritten=True)
        program.start(self, by_itself=False)

    def happen(self):
        """Multiply, and add in float32."""
        self.found = np.matmul(*(np.asarray(x.data, np.float32) for x in (self.a, self.b)))
        if self.use_acc and self.acc.product is not None:
            self.program.land(self.acc.product)             # of a chain, the one before
            self.found += self.acc.product.found
        elif self.use_acc:
            self.found += self.acc.data


def _expect(right, what, got):
    if not right:
        raise Hazard(f"{line()}: warpgroup_mma expected {what}, got {got}")


class Hopper:
    """The functions of `mbarrier`, of `tma`, and those beside them, bound to a program."""

    MBarrierLayout = mbarrier.MBarrierLayout

    def __init__(self, program):
        self.program = program

    def init(self, barrier, count):
        """Set a barrier up for `count` arrivals a phase (`mbarrier.init`)."""
        if barrier.count is not None:
            raise Hazard(f"{line()}: {barrier.name} is set up a second time")
        barrier.count = int(count)
        barrier.slot.overwrite(self.program.current)

    def invalidate(self, barrier):
        """Give a barrier's memory back (`mbarrier.inval`)."""
        barrier.count = None

    def expect(self, barrier, bytes, pred=True):
        """Arrive, and say how many bytes must come in this phase (`mbarrier.arrive.expect_tx`)."""
        if pred:
            self._arrive("expect", f"{barrier.name}, {int(bytes)} B", barrier, 1, int(bytes))

    def arrive(self, barrier, *, count=1, pred=True):
        """Arrive: what this task did before is known to all who then wait (`mbarrier.arrive`)."""
        if pred:
            self._arrive("arrive", barrier.name, barrier, count)

    def _arrive(self, kind, what, barrier, count, bytes=0):
        barrier.ready().arrive(self.program.current, count, bytes)
        self.program.note(kind, what)
        if self.program.drawn:
            self.program.wait(lambda: True, "its next turn")

    def wait(self, barrier, phase, pred=True, deps=()):
        """Wait for the end of the phase of a parity; at first, 1 passes (`mbarrier.try_wait`)."""
        if not pred:
            return
        parity = int(phase)
        if parity not in (0, 1):
            raise Hazard(f"{line()}: a phase is 0 or 1, got {parity}")
        b = barrier.ready()
        self.program.wait(lambda: b.phase & 1 != parity, b.name, lambda: (
            f", parity {parity} ({b.arrived} of {b.count} arrivals in phase {b.phase}"
            + f", {abs(b.bytes)} B {'to come' if b.bytes > 0 else 'too many'}" * bool(b.bytes) + ")"))
        join(self.program.current.clock, b.come)

    def async_copy_global_to_shared(self, descriptor, at, barrier, result, pred=True, multicast=False):
        """Ask for a tile; it arrives at a barrier with its bytes (`cp.async.bulk.tensor`)."""
        if multicast:
            raise Hazard(f"{line()}: the interpreter does not know multicast: a cluster is one program")
        if pred:
            Copy(self.program, descriptor, at, result, barrier)

    def async_copy_shared_to_global(self, descriptor, at, source):
        """Ask for a tile to be written; `store_wait` says when its memory is free again."""
        self.program.current.stores.append(Copy(self.program, descriptor, at, source))

    def reduce_tile(self, descriptor, at, source):
        """Ask for a tile to be added to global memory (`cp.reduce.async.bulk.tensor`)."""
        self.program.current.stores.append(Copy(self.program, descriptor, at, source, adds=True))

    async_load, async_store = async_copy_global_to_shared, async_copy_shared_to_global

    def store_wait(self, pendings):
        """Wait until at most so many of this task's stores are left (`cp.async.bulk.wait_group`)."""
        self.program.finish(self.program.current.stores, pendings)

    def warpgroup_mma(self, a, b, acc, *, use_acc=True, precision=None, max_num_imprecise_acc=None,
                      is_async=False):
        """Return acc + a · b, or what will be it: float32, of 16 or 8 bits (`wgmma.mma_async`)."""
        _expect(isinstance(b, View) and isinstance(acc, Tensor),
                "b in shared memory and acc in registers", f"{type(b).__name__}, {type(acc).__name__}")
        _expect(isinstance(acc.layout, gl.NVMMADistributedLayout), "acc in an NVMMADistributedLayout",
                acc.layout)
        (M, K), N = a.shape, b.shape[1]
        _expect(b.shape == [K, N] and acc.shape == [M, N] and a.dtype == b.dtype,
                "(M, K), (K, N) and (M, N) with one dtype",
                f"{a.shape} of {a.dtype}, {b.shape} of {b.dtype}, {acc.shape}")
        if isinstance(a, Tensor):
            role = getattr(a.layout, "operand_index", None), getattr(a.layout, "parent", None)
            _expect(role == (0, acc.layout), f"a in DotOperandLayout(0, {acc.layout})", a.layout)
        product = Product(self.program, a, b, acc, bool(use_acc))
        self.program.current.products.append(product)
        self.program.count("flops", 2 * M * N * K)
        self.program.count("operand bytes", b.nbytes + (a.nbytes if isinstance(a, View) else 0))
        self.program.note("ask", "a product")
        result = Tensor(np.broadcast_to(np.float32(np.nan), (M, N)), acc.dtype, acc.layout, product)
        return result if is_async else self.warpgroup_mma_wait(0, deps=[result])

    def warpgroup_mma_wait(self, num_outstanding=0, deps=()):
        """Wait until at most so many products are left; return what is there (`wgmma.wait_group`)."""
        under_way = self.program.current.products
        for product in self.program.finish(under_way, num_outstanding):
            self.program.note("product", product.b.name, product.begun)
        found = tuple(x if x.product in (None, *under_way) else
                      Tensor(rounded(x.product.found, x.dtype), x.dtype, x.layout) for x in deps or ())
        return found[0] if len(found) == 1 else found

    def fence_async_shared(self, cluster=False):
        """Let the copy engine and the matrix units see what threads wrote (`fence.proxy.async`)."""
        task = self.program.current
        for slot in task.unfenced:
            slot.fenced = True
        task.unfenced.clear()
