"""Each primitive of the interpreter, by a kernel of a few lines: what it computes, what it refuses."""

import re

import numpy as np
import pytest

pytest.importorskip("triton.experimental.gluon")

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlib.interpreter import Hazard, orders, run
from flashlib.kernels.gluon.parts import barriers, load_tile, mma_layout, store_tile

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])
OTHER = gl.BlockedLayout([2], [32], [4], [0])
SHARED = gl.NVMMASharedLayout.get_default_for([8, 16], gl.float16)
SQUARE = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])


def tile_of(x, rows=8):
    layout = gl.NVMMASharedLayout.get_default_for([rows, x.shape[1]], gl.float16)
    return TensorDescriptor.from_tensor(x, [rows, x.shape[1]], layout)


def numbers(*shape, dtype=torch.float16):
    return torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)


@gluon.jit
def shared(rows, columns):
    return gl.allocate_shared_memory(gl.float16, [rows, columns], SHARED)


@gluon.jit
def ready():
    full = barriers(1).index(0)
    mbarrier.init(full, count=1)
    return full


def result_of(expression, *inputs, dtype=torch.float32):
    """Return what a function of `gl` and of loaded vectors stores."""
    out = torch.zeros(len(inputs[0]), dtype=dtype)

    def kernel(X, Y, OUT, n):
        at = gl.arange(0, n, LAYOUT)
        gl.store(OUT + at, expression(gl, gl.load(X + at), gl.load(Y + at)))

    run(kernel, 1, {"X": inputs[0], "Y": inputs[-1], "OUT": out, "n": len(out)})
    return out


class TestValues:
    x = torch.tensor([3.0, -1.5, float("nan"), 0.1])
    y = torch.tensor([2.0, 4.0, 1.0, 0.2])
    i, j = torch.tensor([7, -7, 9, 2]), torch.tensor([2, 2, -4, 5])

    @pytest.mark.parametrize(("expression", "expected"), [
        (lambda gl, x, y: x + y, lambda x, y: x + y),
        (lambda gl, x, y: 2 * x - y, lambda x, y: 2 * x - y),
        (lambda gl, x, y: -x / y, lambda x, y: -x / y),
        (lambda gl, x, y: gl.where(x > y, x, y), lambda x, y: torch.where(x > y, x, y)),
        (lambda gl, x, y: gl.maximum(x, y), torch.fmax),            # of a number and NaN the number
        (lambda gl, x, y: gl.minimum(x, y), torch.fmin),
        (lambda gl, x, y: gl.abs(x) + gl.exp2(y), lambda x, y: x.abs() + torch.exp2(y)),
        (lambda gl, x, y: x.to(gl.float16).to(gl.float32), lambda x, y: x.half().float()),
        (lambda gl, x, y: x.to(gl.bfloat16).to(gl.float32), lambda x, y: x.bfloat16().float()),
        (lambda gl, x, y: x.to(gl.float8e4nv).to(gl.float32),
         lambda x, y: x.to(torch.float8_e4m3fn).float()),
        (lambda gl, x, y: x * 0 + gl.max(y, 0) + gl.sum(y, 0), lambda x, y: x * 0 + y.max() + y.sum())])
    def test_of_floats(self, expression, expected):
        found = result_of(expression, self.x, self.y)
        torch.testing.assert_close(found, expected(self.x, self.y), rtol=1e-6, atol=0, equal_nan=True)

    @pytest.mark.parametrize(("expression", "expected"), [
        (lambda gl, i, j: i // j, [3, -3, -2, 0]), (lambda gl, i, j: i % j, [1, -1, 1, 2]),   # as in C
        (lambda gl, i, j: gl.cdiv(i + 7, 4), [4, 0, 4, 3]), (lambda gl, i, j: i & j, [2, 0, 8, 0]),
        (lambda gl, i, j: (i | 1) ^ j, [5, -5, -11, 6])])
    def test_of_integers(self, expression, expected):
        assert result_of(expression, self.i, self.j, dtype=torch.int64).tolist() == expected

    def test_sixteen_bits_with_a_number_stay_sixteen_bits(self):
        def expression(gl, x, y):
            assert (x * 0.1).dtype == gl.float16 and (x + y).dtype == gl.float16
            return x * 0.1
        found = result_of(expression, self.y.half(), self.y.half(), dtype=torch.float16)
        assert torch.equal(found, self.y.half() * torch.tensor(0.1).half())

    def test_two_layouts_do_not_mix(self):
        def kernel(X):
            a, b = gl.arange(0, 128, LAYOUT), gl.arange(0, 128, OTHER)
            assert (a + gl.convert_layout(b, LAYOUT)).shape == [128]
            a + b
        with pytest.raises(Hazard, match="operands in two layouts") as caught:
            run(kernel, 1, {"X": 0})
        assert caught.value.source == "a + b"               # the kernel's line, not NumPy's

    def test_an_axis_goes_where_it_was_sliced(self):
        def kernel(axis):
            row = gl.arange(0, 4, gl.SliceLayout(1, SQUARE))
            assert row[:, None].shape == [4, 1] and gl.sum(row[:, None], 1).shape == [4]
            row[None, :]
        with pytest.raises(Hazard, match="expand_dims expected axis 1 of its slice, got 0"):
            run(kernel, 1, {"axis": 0})


class TestGlobalMemory:
    def test_masked_lanes_are_neither_read_nor_written(self):
        x, out = numbers(5, dtype=torch.float32), torch.full((5,), -1.0)

        def kernel(X, OUT):
            at = gl.arange(0, 8, LAYOUT)
            gl.store(OUT + at, gl.load(X + at, mask=at < 5, other=9.0), mask=at < 3)
        run(kernel, 1, {"X": x, "OUT": out})
        assert out.tolist() == [0, 1, 2, -1, -1]

    @pytest.mark.parametrize("first", [-1, 1])
    def test_an_address_outside_names_tensor_and_offset(self, first):
        def kernel(X, first):
            gl.load(X + first + gl.arange(0, 4, LAYOUT))
        with pytest.raises(Hazard, match=f"X has 4 elements, got offset {-1 if first < 0 else 4}"):
            run(kernel, 1, {"X": torch.zeros(4), "first": first})

    def test_atomics_add_what_every_program_brings(self):
        total = torch.zeros(1, dtype=torch.int32)

        def kernel(TOTAL):
            gl.atomic_add(TOTAL, gl.program_id(0) + gl.num_programs(0))
        run(kernel, 4, {"TOTAL": total})
        assert total.item() == 0 + 1 + 2 + 3 + 4 * 4


def copied(x_desc, y_desc, row):
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    full = barriers(1).index(0)
    mbarrier.init(full, count=1)
    fence_async_shared()
    mbarrier.expect(full, x_desc.block_type.nbytes)
    load_tile(x_desc, [row, 0], full, tile)
    mbarrier.wait(full, 0)
    store_tile(y_desc, [row, 0], tile)
    tma.store_wait(0)


class TestCopyEngine:
    @pytest.mark.parametrize("row", [0, 8, 12, -3])
    def test_outside_the_tensor_it_reads_zeros_and_writes_nothing(self, row):
        x, y = numbers(16, 16), torch.full((16, 16), -1.0).half()
        found = run(copied, 1, {"x_desc": tile_of(x), "y_desc": tile_of(y), "row": row})
        inside = [r for r in range(row, row + 8) if 0 <= r < 16]
        expected = torch.full((16, 16), -1.0).half()
        expected[inside] = x[inside]
        assert torch.equal(y, expected)
        assert found.counts == {"loaded x_desc": 32 * len(inside), "stored y_desc": 32 * len(inside)}

    def test_what_is_read_from_outside_is_zero(self):
        out = torch.full((8, 16), -1.0)

        def kernel(x_desc, OUT):
            tile = gl.allocate_shared_memory(x_desc.dtype, [8, 16], x_desc.layout)
            full = barriers(1).index(0)
            mbarrier.init(full, count=1)
            fence_async_shared()
            mbarrier.expect(full, x_desc.block_type.nbytes)
            load_tile(x_desc, [12, 0], full, tile)
            mbarrier.wait(full, 0)
            at = gl.arange(0, 8, gl.SliceLayout(1, SQUARE))[:, None] * 16
            gl.store(OUT + at + gl.arange(0, 16, gl.SliceLayout(0, SQUARE))[None, :],
                     tile.load(SQUARE).to(gl.float32))
        run(kernel, 1, {"x_desc": tile_of(numbers(16, 16) + 1), "OUT": out})
        assert (out[:4] > 0).all() and (out[4:] == 0).all()

    def test_a_tile_of_another_shape_is_refused(self):
        def kernel(x_desc):
            tile = gl.allocate_shared_memory(x_desc.dtype, [4, 16], x_desc.layout)
            full = barriers(1).index(0)
            mbarrier.init(full, count=1)
            fence_async_shared()
            load_tile(x_desc, [0, 0], full, tile)
        with pytest.raises(Hazard, match=r"tile holds \[4, 16\] of fp16, and x_desc moves \[8, 16\]"):
            run(kernel, 1, {"x_desc": tile_of(numbers(16, 16))})

    @pytest.mark.parametrize("fenced", [True, False])
    def test_what_threads_wrote_is_copied_over_after_a_fence_only(self, fenced):
        def kernel(x_desc, FENCED):
            tile, full = shared(8, 16), ready()
            fence_async_shared()
            tile.store(gl.zeros([8, 16], gl.float16, SQUARE))
            if FENCED:
                fence_async_shared()
            mbarrier.expect(full, x_desc.block_type.nbytes)
            load_tile(x_desc, [0, 0], full, tile)
            mbarrier.wait(full, 0)
        given = {"x_desc": tile_of(numbers(8, 16)), "FENCED": fenced}
        if fenced:
            run(kernel, 1, given)
        else:
            with pytest.raises(Hazard, match=r"overwrites tile, which .* wrote at .*fence_async"):
                run(kernel, 1, given)


class TestProducts:
    @pytest.mark.parametrize("order", ["late", "early", 3])
    def test_a_chain_of_products_adds_up_in_float32(self, order):
        a, b = torch.randn(64, 16).half(), torch.randn(16, 32).half()
        out = torch.zeros(64, 32)

        def kernel(a_desc, b_desc, OUT):
            A, B = shared(64, 16), shared(16, 32)
            full = barriers(1).index(0)
            mbarrier.init(full, count=1)
            fence_async_shared()
            mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            load_tile(a_desc, [0, 0], full, A)
            load_tile(b_desc, [0, 0], full, B)
            mbarrier.wait(full, 0)
            acc = gl.full([64, 32], 1.0, gl.float32, mma_layout(32))
            acc = warpgroup_mma(A, B, acc, is_async=True)
            acc = warpgroup_mma(A, B, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            row = gl.arange(0, 64, gl.SliceLayout(1, mma_layout(32)))[:, None] * 32
            gl.store(OUT + row + gl.arange(0, 32, gl.SliceLayout(0, mma_layout(32)))[None, :], acc)
        found = run(kernel, 1, {"a_desc": tile_of(a, 64), "b_desc": tile_of(b, 16), "OUT": out},
                    order=order)
        torch.testing.assert_close(out, 1 + 2 * a.float() @ b.float(), rtol=1e-5, atol=1e-4)
        assert found.counts["flops"] == 2 * 2 * 64 * 32 * 16
        assert found.counts["operand bytes"] == 2 * 2 * (64 * 16 + 16 * 32)

    @pytest.mark.parametrize("shape", [{"M": 64, "K": 16, "L": 8, "N": 32},
                                       {"M": 64, "K": 16, "L": 16, "N": 16}])
    def test_shapes_that_do_not_fit_are_refused(self, shape):
        def kernel(M, K, L, N):
            A, B = shared(M, K), shared(L, N)
            warpgroup_mma(A, B, gl.zeros([64, 32], gl.float32, mma_layout(32)))
        with pytest.raises(Hazard, match=r"expected \(M, K\), \(K, N\) and \(M, N\) with one dtype"):
            run(kernel, 1, shape)


@gluon.jit
def waits(OUT, n):
    gl.store(OUT, 1)
    gl.inline_asm_elementwise("barrier.sync 1, 256;", "=r,r", [0], gl.int32, False, 1)
    gl.store(OUT + 1, gl.load(OUT))


@gluon.jit
def comes(OUT, n):
    gl.store(OUT, 2)
    gl.inline_asm_elementwise("barrier.arrive 1, 256;", "=r,r", [0], gl.int32, False, 1)
    if n:
        gl.inline_asm_elementwise("barrier.arrive 1, 128;", "=r,r", [0], gl.int32, False, 1)
        gl.inline_asm_elementwise("barrier.arrive 1, 100;", "=r,r", [0], gl.int32, False, 1)


def two_tasks(OUT, n):
    gl.warp_specialize([(waits, (OUT, n)), (comes, (OUT, n))], [4], [24])


class TestBarriers:
    def test_the_hardware_s_barriers_count_threads(self):
        out = torch.zeros(2, dtype=torch.int32)
        run(two_tasks, 1, {"OUT": out, "n": 0})
        assert out.tolist() == [2, 2]                       # the first task waited for the second
        with pytest.raises(Hazard, match="one too many at barrier 1, which expects 100 threads"):
            run(two_tasks, 1, {"OUT": out, "n": 1})

    @pytest.mark.parametrize(("body", "why"), [
        (lambda n: mbarrier.wait(ready(), 0), "waits for ever: full, parity 0 (0 of 1 arrivals"),
        (lambda n: mbarrier.wait(ready(), 2), "a phase is 0 or 1, got 2"),
        (lambda n: mbarrier.init(ready(), count=2), "full is set up a second time"),
        (lambda n: mbarrier.arrive(barriers(1).index(0)), "mbarrier.init is missing"),
        (lambda n: barriers(2).index(2), "has 2 slots, got number 2")])
    def test_misuse_is_named(self, body, why):
        with pytest.raises(Hazard, match=re.escape(why)):
            run(body, 1, {"n": 0})


@gluon.jit
def add(OUT, what):
    before = gl.load(OUT)
    gl.inline_asm_elementwise("barrier.arrive 1, 512;", "=r,r", [0], gl.int32, False, 1)
    gl.store(OUT, before * 2 + what)


def races(OUT):
    gl.warp_specialize([(add, (OUT, 1)), (add, (OUT, 2))], [4], [24])


class TestOrders:
    def test_results_that_depend_on_the_order_are_refused(self):
        with pytest.raises(Hazard, match=r"OUT has other bits in order .* than in order 'late'"):
            orders(races, 1, {"OUT": torch.zeros(1)}, ("OUT",), seeds=range(20))

    def test_the_same_seed_gives_the_same_events(self):
        x, y = numbers(16, 16), torch.zeros(16, 16).half()
        given = {"x_desc": tile_of(x), "y_desc": tile_of(y), "row": 0}
        first, again = (run(copied, 1, given, order=7) for _ in range(2))
        assert first.events == again.events and first.counts == again.counts

    @pytest.mark.parametrize("order", ["late", "early", 0])
    def test_a_copy_that_nobody_waits_for_would_land_in_the_next_program(self, order):
        def kernel(x_desc, waits):
            tile, full = shared(8, 16), ready()
            fence_async_shared()
            mbarrier.expect(full, x_desc.block_type.nbytes)
            load_tile(x_desc, [0, 0], full, tile)
            mbarrier.wait(full, 0, pred=waits)
        given = {"x_desc": tile_of(numbers(16, 16))}
        run(kernel, 1, given | {"waits": True}, order=order)
        with pytest.raises(Hazard, match="program ends before the copy of x_desc has been waited for"):
            run(kernel, 1, given | {"waits": False}, order=order)

    def test_a_hazard_has_the_statement_and_what_was_under_way(self):
        def kernel(x_desc):
            tile = gl.allocate_shared_memory(x_desc.dtype, [8, 16], x_desc.layout)
            full = barriers(1).index(0)
            mbarrier.init(full, count=1)
            fence_async_shared()
            mbarrier.expect(full, x_desc.block_type.nbytes)
            load_tile(x_desc, [0, 0], full, tile)
            tile.load(SQUARE)
        with pytest.raises(Hazard, match="reads tile while the copy of x_desc") as caught:
            run(kernel, 1, {"x_desc": tile_of(numbers(16, 16))})
        assert caught.value.source == "tile.load(SQUARE)"
        assert [e.what for e in caught.value.events if e.kind == "under way"] == ["tile"]


@pytest.mark.parametrize(("body", "why"), [
    (lambda n: gl.dot(1, 2, 3), "the interpreter does not know gl.dot"),
    (lambda n: gl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,r", [1], gl.int32, True, 1),
     "knows no meaning of this PTX: mov.u32"),
    (lambda n: gl.warp_specialize([(add, ())], [4], [24]), "expected warps and registers of 0 workers"),
    (lambda n: shared(8, 16).load(SQUARE), "which nobody has written"),
    (lambda n: shared(8, 16).store(gl.zeros([8, 16], gl.float32, SQUARE)), "of fp16, got [8, 16] of")])
def test_what_it_does_not_know_is_refused_by_name(body, why):
    with pytest.raises((Hazard, ValueError), match=re.escape(why)):
        run(body, 1, {"n": 0})
