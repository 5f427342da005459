"""What the backward passes move and keep: to the byte, against closed forms and a third derivation."""

import random
import tracemalloc

import numpy as np
import pytest

import flashlib as fl
from flashlib.models import traffic
from tests.algorithms.backward_cases import SHAPES, either_mask, either_order, problem
from tests.cases import normal

SHAPES_COUNTED, CHUNKS = 1800, 12  # two thirds of them with a window


def random_shapes(chunk):
    rng = random.Random(chunk)
    for n in range(SHAPES_COUNTED // CHUNKS):
        longest = rng.choice([3, 7, 13])
        bounds = [None if rng.random() < 0.3 else rng.randint(0, longest + 2) for _ in "lr"]
        yield (dict(Nq=rng.randint(0, longest), Nk=rng.randint(0, longest), d=rng.randint(1, 6)),
               dict(Br=rng.randint(1, 9), Bc=rng.randint(1, 9), order=rng.choice(["kv", "q"]),
                    causal=rng.random() < 0.4, window=tuple(bounds) if n % 3 else None),
               rng.random() < 0.4,
               dict(element_bytes=rng.randint(1, 8), stats_bytes=rng.randint(1, 8),
                    accumulator_bytes=rng.randint(1, 8)))


def empty_problem(Nq, Nk, d, dlse):
    rows, keys = np.zeros((Nq, d)), np.zeros((Nk, d))
    return (rows, keys, keys, rows, np.zeros(Nq), rows), np.zeros(Nq) if dlse else None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_flash_backward_counts_its_closed_form(chunk):
    for shape, blocks, with_lse, sizes in random_shapes(chunk):
        arrays, dlse = empty_problem(**shape, dlse=with_lse)
        machine = fl.Machine(**sizes, record=False)
        fl.flash_backward(*arrays, dlse=dlse, **blocks, machine=machine)
        form = traffic.flash_backward(**shape, **blocks, dlse=with_lse, **sizes)
        assert machine.traffic == form, (shape, blocks, with_lse, sizes)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_standard_attention_in_training_counts_its_closed_forms(chunk):
    for shape, blocks, dropout, sizes in random_shapes(chunk):
        (Q, K, V, _, _, dO), _ = empty_problem(**shape, dlse=False)
        mask = {"keep": np.ones((len(Q), len(K)), bool), "drop": 0.1} if dropout else {}
        hides = {name: blocks[name] for name in ("causal", "window")}
        forward, backward = fl.Machine(**sizes, record=False), fl.Machine(**sizes, record=False)
        _, P, Z = fl.standard_training_forward(Q, K, V, **hides, **mask, machine=forward)
        fl.standard_backward(Q, K, V, P, dO, Z=Z if dropout else None, **mask, machine=backward)
        shape |= {"dropout": dropout, **sizes}
        assert forward.traffic == traffic.standard_training_forward(**shape, **hides), shape
        assert backward.traffic == traffic.standard_backward(**shape), shape


def test_more_than_a_thousand_different_shapes_were_counted():
    drawn = [shape for chunk in range(CHUNKS) for shape in random_shapes(chunk)]
    assert len({str(shape) for shape in drawn}) > 1600
    assert len({str(shape) for shape in drawn if shape[1]["window"] not in (None, (None, None))}) > 1000


@pytest.mark.parametrize("Nq, Nk, d, Br, Bc", [s for s in SHAPES if s[0] and s[1]])
def test_bytes_and_flops_written_out(Nq, Nk, d, Br, Bc):
    """A third derivation, unmasked: element and statistic counts as a reader would add them up."""
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)
    arrays, dlse = empty_problem(Nq, Nk, d, True)
    kv, q = fl.Machine(), fl.Machine()
    for order, machine in (("kv", kv), ("q", q)):
        fl.flash_backward(*arrays, dlse=dlse, Br=Br, Bc=Bc, order=order, machine=machine)
    pre_elements, pre_stats = 2 * Nq * d, 2 * Nq               # O, dO; dlse in, delta out
    main_elements = 4 * Nk * d + 2 * Tc * Nq * d               # K, V, dK, dV; Q and dO
    main_stats = 2 * Tc * Nq                                   # lse, delta
    assert kv.traffic.hbm_bytes == (2 * (pre_elements + main_elements + (1 + 2 * Tc) * Nq * d)
                                    + 4 * (pre_stats + main_stats))
    assert q.traffic.hbm_bytes == (2 * (pre_elements + main_elements + 3 * Nq * d + 2 * Tr * Nk * d)
                                   + 4 * (pre_stats + main_stats + 2 * Nq))
    assert kv.traffic.matmul_flops == 5 * 2 * Nq * Nk * d
    assert q.traffic.matmul_flops == 7 * 2 * Nq * Nk * d
    assert kv.traffic.exps == Nq * Nk and q.traffic.exps == 2 * Nq * Nk


@either_mask
def test_atomic_updates_are_the_visited_tiles_of_the_first_order_only(causal):
    Q, K, V, O, lse, dO, _ = problem(15, 22, 17, 4, causal=causal)
    kv, q = fl.Machine(), fl.Machine()
    for order, machine in (("kv", kv), ("q", q)):
        fl.flash_backward(Q, K, V, O, lse, dO, Br=5, Bc=4, order=order, causal=causal,
                          machine=machine)
    atomic = [e for e in kv.trace if e.atomic]
    assert kv.trace.atomic_updates() == len(kv.trace.visits("S")) == len(atomic)
    assert {e.tensor for e in atomic} == {"dQ"}
    assert len(atomic) == (0 + 2 + 3 + 4 + 5 if causal else 5 * 5)
    assert q.trace.atomic_updates() == 0


@either_order
@either_mask
def test_capacity_of_the_peak_suffices_and_one_byte_less_raises(order, causal):
    Q, K, V, O, lse, dO, dlse = problem(16, 13, 11, 4, causal=causal)

    def run(capacity):
        machine = fl.Machine(sram_bytes=capacity)
        fl.flash_backward(Q, K, V, O, lse, dO, Br=5, Bc=4, dlse=dlse, order=order, causal=causal,
                          machine=machine)
        return machine.traffic.sram_peak_bytes

    peak = run(None)
    assert run(peak) == peak
    with pytest.raises(fl.SRAMOverflow, match="1 B too many"):
        run(peak - 1)


@either_order
def test_nothing_of_size_n_by_n_is_made(order):
    N, d, B = 1024, 16, 64
    Q, K, V, dO = normal(17, (N, d), (N, d), (N, d), (N, d))
    O, lse = fl.flash_v2(Q, K, V, Br=B, Bc=B)

    def run():
        fl.flash_backward(Q, K, V, O, lse, dO, Br=B, Bc=B, order=order)

    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        peak = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()
    assert peak < 8 * N * N / 5                        # three gradients twice, and a few tiles


def test_the_passes_over_n_by_n_are_those_of_the_table():
    """At d ≪ N: 6 + 7 passes, with dropout 18 in all, in units of Nq·Nk elements."""
    size = dict(Nq=1 << 20, Nk=1 << 20, d=1)
    unit = 2 * size["Nq"] * size["Nk"]

    def passes(**options):
        return (traffic.standard_training_forward(**size, **options).hbm_bytes / unit,
                traffic.standard_backward(**size, **options).hbm_bytes / unit)

    assert passes() == pytest.approx((6, 7), abs=1e-4)
    assert passes(dropout=True) == pytest.approx((8.5, 9.5), abs=1e-4)
