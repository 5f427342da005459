"""Both loop orders are right, and ask for exactly the bytes that the closed forms say."""

import pytest

from flashlib.course.bench import loop_order as bench
from flashlib.course.bench import profiler
from flashlib.models import traffic
from tests.course.bench.test_counters import table
from tests.kernels.once import run_once

pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.more                             # the benchmark itself, at toy sizes


@pytest.fixture(scope="module")
def found():
    return run_once("-m", "tests.course.bench.loop_order_cases")


def test_every_variant_is_right_up_to_the_rounding_of_its_o(found):
    assert len(found["errors"]) == 4 * 7 * 2
    for case, error in found["errors"].items():
        assert error < (2e-3 if "float16" in case else 5e-6), case


def test_the_bytes_of_v1s_order_are_those_of_the_closed_form(found):
    N, d = 64, 16
    expected = traffic.flash_v1(Nq=N, Nk=N, d=d, Br=32, Bc=16, element_bytes=4).by_tensor
    initial = {"O": 4 * N * d, "m": 4 * N, "l": 4 * N}      # the launch fills them
    for name, (loads, stores) in found["moved"]["v1"].items():
        assert (loads, stores + initial.get(name, 0)) == tuple(expected[name][:2]), name


def test_those_of_v2s_order_too_but_for_the_statistics(found):
    """It stores m and ℓ, where `flash_v2` stores one lse."""
    expected = traffic.flash_v2(Nq=64, Nk=64, d=16, Br=32, Bc=16, element_bytes=4).by_tensor
    for name in ("Q", "K", "V", "O"):
        assert tuple(found["moved"]["v2"][name]) == tuple(expected[name][:2]), name
    assert found["moved"]["v2"]["m"] == found["moved"]["v2"]["l"] == [0, 4 * 64]


def test_what_they_cannot_take_is_refused(found):
    assert "q: expected N to be a multiple of 64 and 64, got 65" in found["refusals"]["ragged"]
    assert found["refusals"]["strides"].startswith("k: expected contiguous (1, 1, 64, 16)")
    assert found["refusals"]["parts"] == "rows: expected a divisor of 64 and a multiple of 64, got 48"


def test_every_case_is_written_with_its_counters():
    assert len(set(bench.CASES)) == len(bench.CASES)
    names = list(bench.KERNELS.values())
    counters = profiler.sorted_out(table(names), bench.KERNELS, bench.COUNTERS)
    assert [row["dram_read_bytes"] for row in counters.values()] == list(range(len(bench.CASES)))
    with pytest.raises(ValueError, match=f"expected {len(names)} kernels in the cases' order"):
        profiler.sorted_out(table(names[::-1]), bench.KERNELS, bench.COUNTERS)
    rows = [bench.described(*case) for case in bench.CASES]
    assert {row["programs"] for row in rows if row["H"] == 16 and row["N_q"] == 4096} == {16, 128, 1024}
    for row in rows:
        assert row["N_q"] % row["program_rows"] == 0 and row["program_rows"] % row["BLOCK_M"] == 0
