"""What is saved for the backward pass: by hand, by what the algorithms return, and its limits."""

import numpy as np
import pytest

import flashlib as fl
from flashlib.models import memory
from tests.cases import qkv

SIZE = dict(Nq=6, Nk=5, d=4)


@pytest.mark.parametrize("algorithm, options, expected", [
    ("standard", {}, {"Q": 48, "K": 40, "V": 40, "P": 60}),
    ("standard", {"logits": True}, {"Q": 48, "K": 40, "V": 40, "S": 60, "P": 60}),
    ("standard", {"dropout": True}, {"Q": 48, "K": 40, "V": 40, "P": 60, "keep": 30, "Z": 60}),
    ("flash_v1", {}, {"Q": 48, "K": 40, "V": 40, "O": 48, "m": 24, "l": 24}),
    ("flash_v2", {}, {"Q": 48, "K": 40, "V": 40, "O": 48, "lse": 24}),
    ("flash_v2", {"dropout": True, "logits": True},
     {"Q": 48, "K": 40, "V": 40, "O": 48, "lse": 24}),
])
def test_by_hand(algorithm, options, expected):
    assert memory.saved_bytes(algorithm, **SIZE, **options) == expected


def test_sizes_scale_each_tensor_by_its_own_kind():
    wide = memory.saved_bytes("flash_v1", **SIZE, heads=3, element_bytes=4, stats_bytes=8)
    assert wide == {"Q": 288, "K": 240, "V": 240, "O": 288, "m": 144, "l": 144}


@pytest.mark.parametrize("algorithm", ["standard", "flash_v2"])
def test_it_is_what_the_backward_functions_take(algorithm):
    """The arrays handed from forward to backward, counted by their sizes, and no others."""
    Q, K, V = qkv(0, 6, 5, 4)
    if algorithm == "standard":
        _, P, _ = fl.standard_training_forward(Q, K, V)
        fl.standard_backward(Q, K, V, P, np.ones_like(Q))
        held = {"Q": Q, "K": K, "V": V, "P": P}
    else:
        O, lse = fl.flash_v2(Q, K, V, Br=2, Bc=2)
        fl.flash_backward(Q, K, V, O, lse, np.ones_like(Q), Br=2, Bc=2)
        held = {"Q": Q, "K": K, "V": V, "O": O, "lse": lse}
    got = memory.saved_bytes(algorithm, **SIZE, element_bytes=8, stats_bytes=8)
    assert got == {name: array.nbytes for name, array in held.items()}


def test_the_backward_reads_exactly_what_was_saved():
    """On the machine: nothing but the saved tensors and dO is read before it was written."""
    Q, K, V = qkv(1, 6, 5, 4)
    O, lse = fl.flash_v2(Q, K, V, Br=2, Bc=2)
    machine = fl.Machine()
    fl.flash_backward(Q, K, V, O, lse, np.ones_like(Q), Br=2, Bc=2, machine=machine)
    written, first_read = set(), set()
    for event in machine.trace:
        if event.op == "store":
            written.add(event.tensor)
        elif event.op == "load" and event.tensor not in written:
            first_read.add(event.tensor)
    assert first_read == {*memory.saved_bytes("flash_v2", **SIZE), "dO"}


@pytest.mark.parametrize("options", [{}, {"dropout": True}, {"heads": 7, "element_bytes": 1}],
                         ids=str)
@pytest.mark.parametrize("algorithm", memory.ALGORITHMS)
def test_the_longest_sequence_fits_and_one_more_token_does_not(algorithm, options):
    def total(N):
        return sum(memory.saved_bytes(algorithm, Nq=N, Nk=N, d=16, **options).values())

    for capacity in (0, 1000, 10**6, total(1), total(77)):
        N = memory.longest_sequence(algorithm, capacity, d=16, **options)
        assert total(N) <= capacity < total(N + 1)
    assert memory.longest_sequence(algorithm, total(77), d=16, **options) == 77


def test_linear_and_quadratic():
    def total(algorithm, N):
        return sum(memory.saved_bytes(algorithm, Nq=N, Nk=N, d=64).values())

    assert total("flash_v2", 8192) == 2 * total("flash_v2", 4096)
    assert total("standard", 1 << 16) > 3.9 * total("standard", 1 << 15)
    assert total("flash_v1", 100) - total("flash_v2", 100) == 4 * 100


@pytest.mark.parametrize("wrong, error, message", [
    ({"algorithm": "v3"}, ValueError, "algorithm: expected one of .* got 'v3'"),
    ({"Nq": -1}, ValueError, "Nq: expected a whole number of at least 0, got -1"),
    ({"Nk": 2.5}, TypeError, "Nk: expected a whole number, got 2.5"),
    ({"d": 0}, ValueError, "d: expected a whole number of at least 1, got 0"),
    ({"heads": 0}, ValueError, "heads: expected"),
    ({"stats_bytes": 0}, ValueError, "stats_bytes: expected"),
    ({"dropout": 1}, TypeError, "dropout: expected True or False, got 1"),
    ({"logits": None}, TypeError, "logits: expected True or False, got None"),
])
def test_wrong_arguments_are_refused_by_name(wrong, error, message):
    good = {"algorithm": "standard", **SIZE}
    with pytest.raises(error, match=message):
        memory.saved_bytes(**good | wrong)
    with pytest.raises(ValueError, match="capacity_bytes: expected"):
        memory.longest_sequence("standard", -1, d=4)
