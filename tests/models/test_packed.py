"""The closed form of packed sequences equals what one machine counts over all of them."""

import numpy as np
import pytest

from flashlib import Machine
from flashlib.algorithms.flash_v2 import flash_v2
from flashlib.models import traffic
from flashlib.models.packed import packed

LENGTHS = [(5, 7), (0, 4), (8, 8), (3, 0), (9, 2), (1, 1)]


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_what_the_machine_counts(causal):
    machine, rng = Machine(), np.random.default_rng(0)
    for Nq, Nk in LENGTHS:
        Q, K, V = (rng.normal(size=(n, 4)) for n in (Nq, Nk, Nk))
        flash_v2(Q, K, V, Br=3, Bc=4, causal=causal, machine=machine)
    assert packed(traffic.flash_v2, LENGTHS, d=4, Br=3, Bc=4, causal=causal) == machine.traffic


def test_padding_costs_more_and_one_long_sequence_much_more():
    sizes = {"d": 4, "Br": 4, "Bc": 4}
    lengths = [(8, 8), (20, 20), (4, 4)]
    alone = packed(traffic.flash_v2, lengths, **sizes)
    padded = packed(traffic.flash_v2, [(20, 20)] * 3, **sizes)
    joined = traffic.flash_v2(Nq=32, Nk=32, **sizes)
    assert alone.hbm_bytes < joined.hbm_bytes and alone.hbm_bytes < padded.hbm_bytes
    assert packed(traffic.flash_v2, [], **sizes) == traffic.Traffic()
