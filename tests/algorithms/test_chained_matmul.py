"""The two chained products without softmax: their value, and their cost to the byte."""

import random

import numpy as np
import pytest

import flashlib as fl
from flashlib.algorithms.chained_matmul import fused_matmuls, unfused_matmuls
from flashlib.models import traffic
from tests.cases import qkv

BOTH = [unfused_matmuls, fused_matmuls]


@pytest.mark.parametrize("chain", BOTH)
@pytest.mark.parametrize("Nq, Nk, d", [(1, 1, 1), (6, 6, 4), (7, 12, 3), (12, 5, 4), (0, 3, 2),
                                       (3, 0, 2)])
@pytest.mark.parametrize("Br, Bc", [(1, 1), (2, 3), (5, 4), (50, 50)])
def test_it_is_the_product(chain, Nq, Nk, d, Br, Bc):
    Q, K, V = qkv(0, Nq, Nk, d)
    np.testing.assert_allclose(chain(Q, K, V, Br=Br, Bc=Bc), Q @ K.T @ V, atol=1e-13)


def random_sizes():
    rng = random.Random(2)
    for _ in range(200):
        longest = rng.choice([3, 12, 25])
        yield (dict(Nq=rng.randint(0, longest), Nk=rng.randint(0, longest), d=rng.randint(1, 7),
                    Br=rng.randint(1, 13), Bc=rng.randint(1, 13)),
               dict(element_bytes=rng.randint(1, 8), accumulator_bytes=rng.randint(1, 8)))


@pytest.mark.parametrize("chain", BOTH)
def test_the_count_is_the_closed_form(chain):
    for size, kinds in random_sizes():
        machine = fl.Machine(**kinds, record=False)
        Q, K, V = (np.zeros((size[n], size["d"])) for n in ("Nq", "Nk", "Nk"))
        chain(Q, K, V, Br=size["Br"], Bc=size["Bc"], machine=machine)
        assert machine.traffic == getattr(traffic, chain.__name__)(**size, **kinds), (size, kinds)


def test_fusing_saves_exactly_the_two_trips_of_S_and_v2_pays_only_its_statistics():
    for size, _ in random_sizes():
        unfused, fused = traffic.unfused_matmuls(**size), traffic.fused_matmuls(**size)
        assert unfused.hbm_bytes - fused.hbm_bytes == 2 * 2 * size["Nq"] * size["Nk"]
        v2 = traffic.flash_v2(**size)
        assert v2.hbm_bytes - fused.hbm_bytes == 4 * size["Nq"]


@pytest.mark.parametrize("chain", BOTH)
def test_a_byte_too_few_overflows(chain):
    Q, K, V = qkv(1, 8, 8, 4)
    need = getattr(traffic, chain.__name__)(Nq=8, Nk=8, d=4, Br=4, Bc=2).sram_peak_bytes
    chain(Q, K, V, Br=4, Bc=2, machine=fl.Machine(sram_bytes=need))
    with pytest.raises(fl.SRAMOverflow):
        chain(Q, K, V, Br=4, Bc=2, machine=fl.Machine(sram_bytes=need - 1))


@pytest.mark.parametrize("chain", BOTH)
def test_wrong_arguments_are_refused(chain):
    Q, K, V = qkv(2, 4, 4, 3)
    with pytest.raises(ValueError, match="Br: expected"):
        chain(Q, K, V, Br=0, Bc=2)
    with pytest.raises(ValueError, match="V: expected the shape of K"):
        chain(Q, K, V[:3], Br=2, Bc=2)
