"""Block sizes: what fits is what the machine takes, and one more does not."""

import math

import numpy as np
import pytest

import flashlib as fl
from flashlib.models import traffic
from flashlib.models.blocks import ideal_bytes, largest_blocks, paper_blocks, working_set_bytes

ALGORITHMS = {"flash_v1": fl.flash_v1, "flash_v2": fl.flash_v2}
both = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "standard_attention"])
@pytest.mark.parametrize("Br, Bc, d", [(1, 1, 1), (3, 5, 4), (16, 8, 32), (8, 16, 5)])
def test_the_working_set_is_the_peak_of_a_run(algorithm, Br, Bc, d):
    machine = fl.Machine(element_bytes=3, stats_bytes=5, accumulator_bytes=7)
    Q = np.zeros((2 * Br, d))
    K = np.zeros((2 * Bc, d))
    getattr(fl, algorithm)(Q, K, K, Br=Br, Bc=Bc, machine=machine)
    assert machine.traffic.sram_peak_bytes == working_set_bytes(
        algorithm, Br=Br, Bc=Bc, d=d, Nk=2 * Bc, element_bytes=3, stats_bytes=5,
        accumulator_bytes=7)


@both
@pytest.mark.parametrize("sram_bytes, d", [(200, 1), (1_000, 4), (5_000, 16), (30_000, 20)])
def test_largest_blocks_run_and_one_more_does_not_fit(algorithm, sram_bytes, d):
    Br, Bc = largest_blocks(sram_bytes, d, algorithm=algorithm)
    N = 2 * max(Br, Bc)
    Q = np.zeros((N, d))
    machine = fl.Machine(sram_bytes)
    ALGORITHMS[algorithm](Q, Q, Q, Br=Br, Bc=Bc, machine=machine)
    assert machine.traffic.sram_peak_bytes <= sram_bytes
    edge = {"flash_v1": (min(Bc + 1, d), Bc + 1), "flash_v2": (Br + 1, min(Br + 1, d))}[algorithm]
    with pytest.raises(fl.SRAMOverflow):
        ALGORITHMS[algorithm](Q, Q, Q, Br=edge[0], Bc=edge[1], machine=fl.Machine(sram_bytes))


@both
def test_largest_blocks_fit_at_every_capacity(algorithm):
    need = working_set_bytes(algorithm, Br=1, Bc=1, d=8)
    last = 0
    for sram_bytes in range(need, need + 4000, 37):
        Br, Bc = largest_blocks(sram_bytes, 8, algorithm=algorithm)
        assert working_set_bytes(algorithm, Br=Br, Bc=Bc, d=8) <= sram_bytes
        assert last <= max(Br, Bc)
        last = max(Br, Bc)


@both
def test_more_sram_never_moves_more(algorithm):
    def moved(sram_bytes):
        Br, Bc = largest_blocks(sram_bytes, 64, algorithm=algorithm)
        return getattr(traffic, algorithm)(Nq=4096, Nk=4096, d=64, Br=Br, Bc=Bc).hbm_bytes
    costs = [moved(kib * 1024) for kib in (8, 16, 48, 96, 163, 227)]
    assert costs == sorted(costs, reverse=True)


@both
def test_too_small_an_sram_says_the_bytes_needed(algorithm):
    need = working_set_bytes(algorithm, Br=1, Bc=1, d=64)
    assert largest_blocks(need, 64, algorithm=algorithm) == (1, 1)
    with pytest.raises(ValueError, match=f"sram_bytes: expected at least {need:,} B.*got {need - 1}"):
        largest_blocks(need - 1, 64, algorithm=algorithm)


@pytest.mark.parametrize("M, d", [(1, 1), (1000, 64), (96 * 1024, 64), (96 * 1024, 128),
                                  (8 * 128**2, 128), (100, 64)])
def test_the_rule_of_the_paper(M, d):
    assert paper_blocks(M, d) == (min(math.ceil(M / (4 * d)), d), math.ceil(M / (4 * d)))


def test_the_rule_of_the_paper_is_no_capacity_check():
    """Elements alone, as the paper counts: K, V, Q, O and S exceed M unless M ≥ 8d²."""
    def elements(M, d):
        Br, Bc = paper_blocks(M, d)
        return 2 * Bc * d + 2 * Br * d + Br * Bc
    d = 128
    assert elements(96 * 1024, d) > 96 * 1024 and elements(8 * d * d, d) <= 8 * d * d
    assert elements(96 * 1024, d) / (96 * 1024) == pytest.approx(1.08, abs=0.005)


@pytest.mark.parametrize("call, error, message", [
    (lambda: largest_blocks(0, 64), ValueError, "sram_bytes: expected .* got 0"),
    (lambda: largest_blocks(1e5, 64), TypeError, "sram_bytes: expected .* got 100000.0"),
    (lambda: largest_blocks(10_000, 0), ValueError, "d: expected .* got 0"),
    (lambda: largest_blocks(10_000, 64, algorithm="v2"), ValueError, "algorithm: .* got 'v2'"),
    (lambda: largest_blocks(10_000, 64, element_bytes=0), ValueError, "element_bytes: .* got 0"),
    (lambda: largest_blocks(10_000, 64, stats_bytes=-4), ValueError, "stats_bytes: .* got -4"),
    (lambda: paper_blocks(0, 64), ValueError, "sram_elements: expected .* got 0"),
    (lambda: paper_blocks(100, 0.5), TypeError, "d: expected .* got 0.5"),
    (lambda: working_set_bytes("v3", Br=1, Bc=1, d=1), ValueError, "algorithm: .* got 'v3'"),
    (lambda: working_set_bytes("flash_v1", Br=0, Bc=1, d=1), ValueError, "Br: .* got 0"),
    (lambda: working_set_bytes("flash_v1", Br=1, Bc=1, d=1, Nk=-1), ValueError, "Nk: .* got -1"),
    (lambda: working_set_bytes("flash_v1", Br=1, Bc=1, d=1, Nk=0), ValueError, "Nk: .* got 0"),
])
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def ideal_run(N, d, machine):
    """Standard attention that keeps a whole K, then a whole V, and one row of all else."""
    Q, K, V = machine.hbm(**{name: np.ones((N, d)) for name in "QKV"})
    S, P, O = (machine.hbm_empty(*named) for named in (("S", (N, N)), ("P", (N, N)), ("O", (N, d))))
    rows = [slice(i, i + 1) for i in range(N)]
    with machine.kernel("S = QKᵀ") as sram:
        Kt = sram.load(K[:])
        for row in rows:
            with sram.scope():
                tile = sram.tile("S", row, slice(0, N))
                tile[...] = sram.load(Q[row]) @ Kt.T
                sram.store(tile, S[row])
    with machine.kernel("P = softmax(S)") as sram:
        for row in rows:
            with sram.scope():
                tile = sram.load(S[row])
                m, l = sram.tile("m", row, kind="stats"), sram.tile("l", row, kind="stats")
                m[...] = tile.max(axis=1)
                tile[...] = np.exp(tile - m[:, None])
                l[...] = tile.sum(axis=1)
                tile[...] = tile / l[:, None]
                sram.store(tile, P[row])
    with machine.kernel("O = PV") as sram:
        values = sram.load(V[:])
        for row in rows:
            with sram.scope():
                out = sram.tile("O", row, d, kind="accumulator")
                out[...] = sram.load(P[row]) @ values
                sram.store(out, O[row])
    return O.to_host()


@pytest.mark.parametrize("N, d", [(1, 1), (5, 3), (8, 16), (20, 2)])
def test_the_ideal_runs_in_its_bytes_and_not_in_one_less(N, d):
    machine = fl.Machine(sram_bytes=ideal_bytes(N, d))
    assert np.allclose(ideal_run(N, d, machine), 1)
    assert machine.traffic.hbm_bytes == traffic.standard_attention(Nq=N, Nk=N, d=d).hbm_bytes
    with pytest.raises(fl.SRAMOverflow):
        ideal_run(N, d, fl.Machine(sram_bytes=ideal_bytes(N, d) - 1))


def test_the_ideal_fits_an_a100_at_512_and_64_and_not_at_4096_and_128():
    a100 = fl.hardware.get("A100").sram_bytes
    assert ideal_bytes(512, 64) < working_set_bytes("standard_attention", Br=512, Bc=1, d=64,
                                                    Nk=512) <= a100 < ideal_bytes(4096, 128)
    one_row_tile = traffic.standard_attention(Nq=512, Nk=512, d=64, Br=512, Bc=1)
    assert one_row_tile.hbm_bytes == traffic.standard_attention(Nq=512, Nk=512, d=64).hbm_bytes
