"""Accounting to the byte: three derivations of the same cost, for every shape."""

import dataclasses
import inspect
import random

import numpy as np
import pytest

import flashlib as fl
from flashlib.models import scores, traffic
from tests.cases import BLOCKED, FORWARD, FUNCTIONS, normal, qkv

SHAPES = 1800                      # two thirds of them with a window
CHUNKS = 12
ATTENTION = [*BLOCKED, "ideal"]
STREAMED = [name for name in FORWARD if name not in BLOCKED]
SOFTMAX = ["naive_softmax", "safe_softmax", "online_softmax"]


def form_of(name):
    """Return the closed form of an algorithm, None if there is none."""
    return getattr(traffic, name, None) or getattr(scores, name, None)


def shapes(chunk):
    """Draw a twelfth of 1,800 random shapes: lengths from 0, blocks also beyond the lengths."""
    rng = random.Random(chunk)
    for n in range(SHAPES // CHUNKS):
        longest = rng.choice([3, 8, 14])
        bounds = [None if rng.random() < 0.3 else rng.randint(0, longest + 2) for _ in "lr"]
        window = tuple(bounds) if n % 3 else None
        yield (dict(Nq=rng.randint(0, longest), Nk=rng.randint(0, longest), d=rng.randint(1, 7),
                    causal=rng.random() < (0.25 if window else 0.6), window=window),
               dict(Br=rng.randint(1, 13), Bc=rng.randint(1, 13)),
               dict(element_bytes=rng.randint(1, 8), stats_bytes=rng.randint(1, 8),
                    accumulator_bytes=rng.randint(1, 8)))


def assert_counted(name, shape, blocks, sizes):
    """Run an algorithm on a machine and hold every field of its count against the closed form."""
    function, blocks = ("standard_attention", {}) if name == "ideal" else (name, blocks)
    machine = fl.Machine(**sizes, record=False)
    Q, K, V = (np.zeros((shape[n], shape["d"])) for n in ("Nq", "Nk", "Nk"))
    FUNCTIONS[function](Q, K, V, causal=shape["causal"], window=shape["window"], machine=machine,
                        **blocks)
    assert machine.traffic == form_of(function)(**shape, **blocks, **sizes), (
        name, shape, blocks, sizes)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_tiled_attention_counts_its_closed_form(name, chunk):
    for shape, blocks, sizes in shapes(chunk):
        assert_counted(name, shape, blocks, sizes)


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_streamed_attention_counts_its_closed_form(name, chunk):
    for shape, _, sizes in shapes(chunk):
        shape = shape | {n: shape[n] % 9 for n in ("Nq", "Nk")}
        assert_counted(name, shape, {}, sizes)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_softmax_and_matmul_count_their_closed_forms(chunk):
    for shape, blocks, sizes in shapes(chunk):
        rows, n, N = shape["Nq"] % 13, shape["Nk"] % 13, shape["d"]
        element = {k: v for k, v in sizes.items() if k != "accumulator_bytes"}
        for name in SOFTMAX:
            machine = fl.Machine(**sizes, record=False)
            getattr(fl, name)(np.zeros((rows, n)), machine=machine)
            assert machine.traffic == getattr(traffic, name)(rows=rows, n=n, **element), (name, rows)
        element = {k: v for k, v in sizes.items() if k != "stats_bytes"}
        A, B = np.zeros((rows, n)), np.zeros((n, N))
        tiles = dict(Bm=blocks["Br"], Bn=blocks["Bc"], Bk=1 + n // 2)
        machine = fl.Machine(**sizes, record=False)
        fl.tiled_matmul(A, B, **tiles, machine=machine)
        assert machine.traffic == traffic.tiled_matmul(M=rows, N=N, K=n, **tiles, **element)
        machine = fl.Machine(**sizes, record=False)
        fl.naive_matmul(A[:5], B[:, :3], machine=machine)
        assert machine.traffic == traffic.naive_matmul(M=min(rows, 5), N=min(N, 3), K=n, **element)


def test_there_are_a_thousand_shapes_and_a_thousand_with_a_window():
    drawn = [shape for chunk in range(CHUNKS) for shape in shapes(chunk)]
    assert len({str(shape) for shape in drawn}) >= 1600
    windows = {str(shape) for shape in drawn if shape[0]["window"] not in (None, (None, None))}
    assert len(windows) >= 1000


def test_every_algorithm_has_a_closed_form_and_every_closed_form_a_test():
    """An algorithm that is in no list is found here, and told what it lacks."""
    elsewhere = {"split_k", "split_q"}                     # counted by a block: models.warp_traffic
    for name in FUNCTIONS.keys() - elsewhere:
        assert form_of(name), f"flashlib.algorithms has {name}: write models.traffic.{name}"
    tested = {*FORWARD, *SOFTMAX, "naive_matmul", "tiled_matmul"}
    tested |= {"flash_backward", "standard_training_forward", "standard_backward"}  # its accounting
    tested |= {"unfused_matmuls", "fused_matmuls"}         # test_chained_matmul.py
    written = {form.id for form in forms()} | {"flash_scores"}      # in models.scores
    assert written == tested, f"a closed form without a test or an algorithm: {written ^ tested}"


# The third derivation: the formulas of the papers, written out; unmasked, e and s bytes each.

LITERAL = [(1, 1, 1, 1, 1), (12, 12, 4, 3, 4), (13, 11, 4, 3, 4), (64, 64, 16, 16, 8),
           (5, 40, 8, 7, 6), (40, 5, 8, 6, 7), (4, 4, 4, 9, 9), (96, 128, 32, 96, 128)]


@pytest.mark.parametrize("Nq, Nk, d, Br, Bc", LITERAL)
@pytest.mark.parametrize("e, s", [(2, 4), (1, 1), (4, 8)])
def test_bytes_are_those_of_the_papers(Nq, Nk, d, Br, Bc, e, s):
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)
    Q, K, V = qkv(0, Nq, Nk, d)

    def moved(algorithm, **blocks):
        machine = fl.Machine(element_bytes=e, stats_bytes=s)
        algorithm(Q, K, V, machine=machine, **blocks)
        return machine.traffic.hbm_read_bytes, machine.traffic.hbm_write_bytes

    assert moved(fl.flash_v1, Br=Br, Bc=Bc) == (
        e * (2 * Nk * d + 2 * Tc * Nq * d) + s * 2 * Tc * Nq,
        e * (1 + Tc) * Nq * d + s * 2 * (1 + Tc) * Nq)
    assert moved(fl.flash_v2, Br=Br, Bc=Bc) == (
        e * (Nq * d + 2 * Tr * Nk * d), e * Nq * d + s * Nq)
    assert sum(moved(fl.standard_attention)) == e * (4 * Nq * Nk + 2 * Nq * d + 2 * Nk * d)
    assert sum(moved(fl.standard_attention, Br=Br, Bc=Bc)) == e * (
        4 * Nq * Nk + 2 * Nq * d + 2 * Nk * d * Tr)
    if Nq * Nk > 1000:                                 # the streamed ones take a step per pair
        return
    assert moved(fl.multi_pass_attention)[0] == e * (Nq * d + 3 * Nq * Nk * d)
    assert moved(fl.one_pass_attention)[0] == e * (Nq * d + 2 * Nq * Nk * d)


@pytest.mark.parametrize("name, loads, exps", [("naive", 2, 2), ("safe", 3, 2), ("online", 2, 3)])
def test_softmax_loads_and_stores_per_element(name, loads, exps):
    machine = fl.Machine(element_bytes=1)
    getattr(fl, f"{name}_softmax")(*normal(0, (4, 11)), machine=machine)
    assert (machine.traffic.hbm_read_bytes, machine.traffic.hbm_write_bytes) == (loads * 44, 44)
    assert machine.traffic.exps == exps * 44


def test_arithmetic_of_attention_by_hand():
    """N = 6, d = 4, tiles of 2 by 3, unmasked: 3 row tiles of 2 key tiles."""
    Q, K, V = qkv(0, 6, 6, 4)
    v1, v2 = fl.Machine(), fl.Machine()
    fl.flash_v1(Q, K, V, Br=2, Bc=3, machine=v1)
    fl.flash_v2(Q, K, V, Br=2, Bc=3, machine=v2)
    assert v1.traffic.matmul_flops == v2.traffic.matmul_flops == 2 * 2 * 6 * 6 * 4
    assert v1.traffic.exps == 6 * 6 + 2 * 6 * 2           # P, and two corrections a row and tile
    assert v2.traffic.exps == 6 * 6 + 6 * 2               # P, and alpha
    # v2 a tile: scale, max, subtract, sum; statistics 4 a row; rescale O, add. Once a row: ln l,
    # m + ln l, max(l, tiny) and the late division.
    assert v2.traffic.vector_flops == 6 * (4 * 6 + 4 * 2 + 2 * 2 * 4) + 6 * (3 + 4)
    assert v1.traffic.vector_flops == 6 * (4 * 6 + 8 * 2 + 4 * 2 * 4)
    assert v2.traffic.sram_peak_bytes == 2 * 4 * (2 + 4) + 2 * 2 * 4 + 2 * 3 * 4 * 2 + 2 * 3 * 2


@pytest.mark.parametrize("B, v1, loops, v2", [
    (32, 2.962, 2.955, 1.955), (64, 1.493, 1.485, 0.985), (128, 0.758, 0.750, 0.500),
    (256, 0.390, 0.383, 0.258)])
def test_ratios_to_the_ideal_at_4096_by_128(B, v1, loops, v2):
    """A statistic taken for an element; v1 with its line 2, which initialises O, m, l, and without."""
    N, d = 4096, 128
    size = dict(Nq=N, Nk=N, d=d, element_bytes=2, stats_bytes=2)
    ideal = traffic.standard_attention(**size).hbm_bytes
    counted = traffic.flash_v1(**size, Br=B, Bc=B).hbm_bytes
    assert counted / ideal == pytest.approx(v1, abs=0.001)
    assert (counted - 2 * (N * d + 2 * N)) / ideal == pytest.approx(loops, abs=0.001)
    assert traffic.flash_v2(**size, Br=B, Bc=B).hbm_bytes / ideal == pytest.approx(v2, abs=0.001)


def random_sizes(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        yield dict(Nq=rng.randint(1, 3000), Nk=rng.randint(1, 3000), d=rng.randint(1, 256),
                   Br=rng.randint(1, 300), Bc=rng.randint(1, 300), element_bytes=rng.choice([1, 2, 4]),
                   stats_bytes=rng.choice([1, 2, 4, 8]))


def test_v2_never_moves_more_than_the_same_sram_baseline():
    """They differ by 4·Nq·Nk elements of S and P against Nq statistics: v2 wins iff s ≤ 4·e·Nk."""
    for size in random_sizes(1000, 1):
        Nq, Nk = size["Nq"], size["Nk"]
        e, s = size["element_bytes"], size["stats_bytes"]
        v2, same = (f(**size).hbm_bytes for f in (traffic.flash_v2, traffic.standard_attention))
        assert same - v2 == Nq * (4 * e * Nk - s)
        assert v2 <= same or Nk == 1
        assert traffic.flash_v2(**size, causal=True).hbm_bytes <= v2
    tiny = dict(Nq=5, Nk=1, d=3, Br=2, Bc=2, element_bytes=1)
    for s, loses in ((4, False), (5, True)):           # both sides, at the only lengths that have two
        v2 = traffic.flash_v2(**tiny, stats_bytes=s).hbm_bytes
        assert (v2 > traffic.standard_attention(**tiny, stats_bytes=s).hbm_bytes) == loses


def v1_loses(Nq, Nk, d, Br, Bc, element_bytes, stats_bytes):
    """The exact condition under which v1 moves more than the same-SRAM baseline, unmasked.

    v1's O, m and l travel once per key tile; the baseline's S and P travel once, and its K and V
    once per row tile. With blocks that divide and N → ∞ it becomes (3d + 4s/e)/Bc > 4 + 2d/Br,
    which for square blocks is B < d/4 + s/e.
    """
    Tr, Tc, ratio = -(-Nq // Br), -(-Nk // Bc), stats_bytes / element_bytes
    travels = (3 * Tc - 1) * Nq * d + (4 * Tc + 2) * ratio * Nq
    return travels > 4 * Nq * Nk + 2 * (Tr - 1) * Nk * d


def test_v1_moves_more_than_the_same_sram_baseline_exactly_where_its_tiles_are_small():
    outcomes = set()
    for size in random_sizes(2000, 2):
        v1, same = (f(**size).hbm_bytes for f in (traffic.flash_v1, traffic.standard_attention))
        assert (v1 > same) == v1_loses(**size)
        outcomes.add(v1 > same)
    assert outcomes == {True, False}


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("e, s", [(2, 2), (2, 4), (4, 4)])
def test_the_crossover_of_v1_with_square_blocks_is_near_a_quarter_of_d(d, e, s):
    crossover = d / 4 + s / e
    for B, loses in ((int(crossover) - 1, True), (int(crossover) + 2, False)):
        N = 1000 * B
        size = dict(Nq=N, Nk=N, d=d, Br=B, Bc=B, element_bytes=e, stats_bytes=s)
        v1, same = (f(**size).hbm_bytes for f in (traffic.flash_v1, traffic.standard_attention))
        assert (v1 > same) == loses == v1_loses(**size)
        v2 = traffic.flash_v2(**size).hbm_bytes
        assert v2 < same


def test_v1_at_32_by_32_loses_to_the_same_sram_baseline_and_at_64_by_64_wins():
    size = dict(Nq=4096, Nk=4096, d=128)
    for B, ratio in ((32, 1.023), (64, 0.771)):
        v1 = traffic.flash_v1(**size, Br=B, Bc=B).hbm_bytes
        same = traffic.standard_attention(**size, Br=B, Bc=B).hbm_bytes
        assert v1 / same == pytest.approx(ratio, abs=0.002)


def forms():
    for name, form in vars(traffic).items():
        if hasattr(form, "__wrapped__"):
            yield pytest.param(form, id=name)


@pytest.mark.parametrize("form", forms())
def test_wrong_sizes_are_refused_by_name(form):
    parameters = inspect.signature(form).parameters
    good = {name: 2 for name, p in parameters.items() if p.default is inspect.Parameter.empty}
    assert isinstance(form(**good), fl.Traffic)
    for name in parameters:
        if name == "causal":
            with pytest.raises(TypeError, match="causal: expected True or False, got 1"):
                form(**good | {name: 1})
            continue
        if name == "window":
            with pytest.raises(ValueError, match=r"^window: expected for left .* got -1"):
                form(**good | {name: (-1, 0)})
            continue
        if isinstance(parameters[name].default, bool | str | float):
            continue
        for wrong, error in ((-1, ValueError), (2.5, TypeError), ("2", TypeError), (True, TypeError)):
            with pytest.raises(error, match=f"^{name}: expected .*got {wrong!r}"):
                form(**good | {"Br": 2, "Bc": 2} | {name: wrong}
                     if "Br" in parameters else good | {name: wrong})
    with pytest.raises(TypeError):
        form(**good, nonsense=1)


def test_a_standard_baseline_takes_both_blocks_or_none():
    with pytest.raises(ValueError, match="Br, Bc: expected both or neither, got Br=2 and Bc=None"):
        traffic.standard_attention(Nq=4, Nk=4, d=2, Br=2)
    assert [f.name for f in dataclasses.fields(fl.Traffic)][:2] == ["hbm_read_bytes",
                                                                    "hbm_write_bytes"]


def test_closed_forms_answer_at_sizes_that_no_run_reaches():
    """A million keys: whole numbers beyond 2⁵³ stay exact."""
    N, d, B = 1 << 20, 128, 128
    v2 = traffic.flash_v2(Nq=N, Nk=N, d=d, Br=B, Bc=B)
    assert v2.matmul_flops == 4 * N * N * d and v2.hbm_read_bytes == 2 * (N * d + 2 * N * N // B * d)
    v1 = traffic.flash_v1(Nq=N, Nk=N, d=d, Br=B, Bc=B, causal=True)
    assert v1.by_tensor["Q"].read_bytes == 2 * d * sum(B * (i + 1) for i in range(N // B))
