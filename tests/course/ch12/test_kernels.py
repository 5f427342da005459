"""The teaching kernels without a GPU: their functions run in NumPy, and they compile for an H100."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("triton.experimental.gluon")

import flashlib.lens as lens
from flashlib.course.ch12 import kernels, strip_figures
from flashlib.lens.assembly import matrix_in_ptx
from flashlib.models.sm.operations import slot_and_parity
from tests.lens.toolchain import needs_triton

KEYS, D, ROWS = 32, 16, 64


class Array(np.ndarray):
    """An array with the few methods that a kernel calls on a tensor."""

    def permute(self, order):
        return self.transpose(order)

    def to(self, dtype):
        return self

    def index(self, i):
        return self[i]

    def store(self, values):
        self[:] = values


class TensorCores:
    """Matmuls that are there once they have been waited for, as those of a warpgroup."""

    def __init__(self):
        self.outstanding = []

    def multiply(self, a, b, acc, use_acc=True, is_async=False):
        assert is_async
        box = SimpleNamespace(value=a @ b + (acc if use_acc else 0), reads=(a, b))
        self.outstanding.append(box)
        return box

    def wait(self, count, deps):
        self.outstanding = self.outstanding[len(self.outstanding) - count:] if count else []
        (box,) = deps
        assert not any(box is other for other in self.outstanding), "read before it is there"
        return box.value


class Consumed:
    """The tiles that a producer asked for, in its order; each is read once and then given back."""

    def __init__(self, tiles, cores):
        self.tiles, self.cores, self.open, self.returned = tiles, cores, set(), []

    def take(self, ring, i):
        assert i not in self.returned
        self.open.add(i)
        return self.tiles[i]

    def give_back(self, ring, i):
        self.open.remove(i)
        self.returned.append(i)
        reading = [part for box in self.cores.outstanding for part in box.reads]
        assert not any(np.shares_memory(part, self.tiles[i]) for part in reading), "still being read"


def arrays(*shapes):
    rng = np.random.default_rng(12)
    return [rng.normal(size=shape).view(Array) for shape in shapes]


def asked_for(monkeypatch, k, v, first, count):
    """Return the tiles that the producer asks for, in their order."""
    found = {}

    def request(ring, i, matrix, row):
        assert i not in found
        found[i] = matrix[row:row + KEYS]

    monkeypatch.setattr(kernels, "request", request)
    monkeypatch.setattr(kernels, "load_tile", lambda *arguments: None)
    monkeypatch.setattr(kernels, "mbarrier", SimpleNamespace(expect=lambda *arguments: None))
    for x in (k, v):
        x.block_type = SimpleNamespace(shape=[KEYS, D])
    q_desc = SimpleNamespace(block_type=SimpleNamespace(nbytes=2 * ROWS * D))
    kernels.producer.fn(None, Array((2, 1)), None, q_desc, k, v, 0, first, count)
    assert sorted(found) == list(range(2 * count))
    return [found[i] for i in range(2 * count)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_producer_and_consumer_compute_attention(monkeypatch, count):
    first = 2 * KEYS                                        # K and V of two other tiles come before
    Q, K, V = arrays((2, ROWS, D), (first + count * KEYS, D), (first + count * KEYS, D))
    tiles = asked_for(monkeypatch, K, V, first, count)
    cores, written = TensorCores(), {}
    ring = Consumed(tiles, cores)
    monkeypatch.setattr(kernels, "tile_of", ring.take)
    monkeypatch.setattr(kernels, "give_back", ring.give_back)
    monkeypatch.setattr(kernels, "warpgroup_mma", cores.multiply)
    monkeypatch.setattr(kernels, "warpgroup_mma_wait", cores.wait)
    monkeypatch.setattr(kernels, "softmax", kernels.softmax.fn)
    monkeypatch.setattr(kernels, "mma_layout", lambda columns: None)
    monkeypatch.setattr(kernels, "ROWS", ROWS)
    monkeypatch.setattr(kernels, "fence_async_shared", lambda: None)
    monkeypatch.setattr(kernels, "mbarrier", SimpleNamespace(wait=lambda *arguments: None))
    monkeypatch.setattr(kernels, "tma", SimpleNamespace(store_wait=lambda *arguments: None))
    monkeypatch.setattr(kernels, "store_tile",
                        lambda o, at, tile: written.update({at[0]: np.array(tile)}))
    monkeypatch.setattr(kernels, "gl", SimpleNamespace(
        constexpr=None, float32=None, maximum=np.maximum, max=np.max, exp2=np.exp2, sum=np.sum,
        zeros=lambda shape, *more: np.zeros(shape), full=lambda shape, x, *more: np.full(shape, x),
        SliceLayout=lambda *more: None, DotOperandLayout=lambda *more: None,
        convert_layout=lambda x, layout: x.view(Array)))
    exact = []
    for c in (0, 1):
        S = Q[c] @ K[first:].T / np.sqrt(D)
        P = np.exp(S - S.max(1, keepdims=True))
        exact.append(P @ V[first:] / P.sum(1, keepdims=True))
        shape = SimpleNamespace(shape=[4, KEYS, D])
        kernels.consumer.fn((shape,), Q, None, None, 256, count, np.log2(np.e) / np.sqrt(D), c)
        assert ring.returned[:2 * count - 1] == list(range(2 * count - 1))      # nobody wants the last
        ring.returned.clear()
        ring.open.clear()
    np.testing.assert_allclose(written[256], exact[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(written[256 + ROWS], exact[1], rtol=1e-12, atol=1e-14)


def test_slots_and_parities_are_those_of_the_simulator(monkeypatch):
    waits = []
    monkeypatch.setattr(kernels, "SLOTS", 4)
    monkeypatch.setattr(kernels, "load_tile",
                        lambda desc, at, barrier, tile: waits.append((barrier, tile)))
    monkeypatch.setattr(kernels, "mbarrier", SimpleNamespace(
        wait=lambda barrier, parity: waits.append((barrier, parity)), expect=lambda *arguments: None,
        arrive=lambda barrier: waits.append(barrier)))
    ring = [SimpleNamespace(index=lambda slot, name=name: (name, slot))
            for name in ("tile", "full", "empty")]
    desc = SimpleNamespace(block_type=SimpleNamespace(nbytes=1))
    for i in range(20):
        slot, parity = slot_and_parity(i, 4)
        waits.clear()
        kernels.request.fn(ring, i, desc, 0)
        assert kernels.tile_of.fn(ring, i) == ("tile", slot)
        kernels.give_back.fn(ring, i)
        assert waits == [(("empty", slot), parity ^ 1), (("full", slot), ("tile", slot)),
                         (("full", slot), parity), ("empty", slot)]


def tile(rows, columns=128):
    return f"tensordesc<bf16[{rows}, {columns}]>"


ARGUMENTS = {"copy_kernel": {"x_desc": tile(64), "y_desc": tile(64)},
             "matmul_kernel": {"q_desc": tile(64), "k_desc": tile(128), "S": "*fp32"},
             "ring_kernel": {"x_desc": tile(64), "y_desc": tile(64), "count": 32},
             "attention_kernel": {"q_desc": tile(64), "k_desc": tile(128), "v_desc": tile(128),
                                  "o_desc": tile(64), "scale_log2": 1.0, "N": 4096}}


@needs_triton
@pytest.mark.slow
def test_they_compile_for_an_h100_without_a_gpu():
    home = "flashlib.course.ch12.kernels"
    copied, multiplied, ring, attention = found = lens.compile_many([
        lens.request(f"{home}:{name}", arch="H100", arguments=given) for name, given
        in ARGUMENTS.items()])
    assert not any(report.spills for report in found)
    assert all(report.loads_by_width["UTMALDG 2D"] for report in found)
    assert all(report.stores_by_width["UTMASTG 2D"] for report in (copied, ring, attention))
    assert sum(matrix_in_ptx(multiplied.ptx).values()) == 128 // 16
    # Two consumers: the first Q·Kᵀ, both products in the loop, the last P·V.
    assert sum(matrix_in_ptx(attention.ptx).values()) == 2 * 4 * 128 // 16
    assert re.search(r"setmaxnreg\.inc\S*\s+232", attention.ptx)
    loop = strip_figures.loop_of(attention.sass)
    assert loop.count("QK") == loop.count("PV") == 8
    assert loop.index("wait QK") < loop.index("wait PV") < loop.index("exp")
    assert 64 <= loop.count("exp") < 72
