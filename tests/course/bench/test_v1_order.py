"""The kernel in v1's loop order is right, and asks for exactly the bytes that the closed form says."""

import pytest

from flashlib.models import traffic
from tests.kernels.once import run_once

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found():
    return run_once("-m", "tests.course.bench.v1_order_cases")


def test_it_is_right_up_to_the_rounding_of_o_at_every_key_tile(found):
    assert len(found["errors"]) == 3
    for case, error in found["errors"].items():
        assert error < (2e-3 if "float16" in case else 5e-6), case


def test_its_bytes_are_those_of_the_closed_form(found):
    N, d = 64, 16
    expected = traffic.flash_v1(Nq=N, Nk=N, d=d, Br=32, Bc=16, element_bytes=4).by_tensor
    initial = {"O": 4 * N * d, "m": 4 * N, "l": 4 * N}      # the launch fills them
    for name, (loads, stores) in found["moved"].items():
        assert (loads, stores + initial.get(name, 0)) == tuple(expected[name][:2]), name


def test_what_it_cannot_take_is_refused(found):
    assert "q: expected N to be a multiple of 64 and 64, got 65" in found["refusals"]["ragged"]
    assert found["refusals"]["strides"].startswith("k: expected contiguous (1, 1, 64, 16)")
