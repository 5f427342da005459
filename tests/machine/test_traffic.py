"""Traffic as a value: addition, equality, intensity, and its CSV."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib import Traffic
from flashlib.machine.traffic import Moved
from tests.cases import PROPERTY

counts = st.integers(0, 10**15)
traffics = st.builds(Traffic.of,
                     st.dictionaries(st.sampled_from("QKVOSP"), st.tuples(counts, counts)),
                     counts, counts, counts, counts)


@PROPERTY
@given(traffics, traffics, traffics)
def test_addition_is_a_commutative_monoid(a, b, c):
    assert a + b == b + a and (a + b) + c == a + (b + c)
    assert a + Traffic() == a == sum([a]) and sum([a, b, c]) == a + b + c


@PROPERTY
@given(traffics, traffics)
def test_everything_adds_but_the_peak(a, b):
    both = a + b
    assert both.sram_peak_bytes == max(a.sram_peak_bytes, b.sram_peak_bytes)
    for name in ("hbm_read_bytes", "hbm_write_bytes", "hbm_bytes", "matmul_flops", "vector_flops",
                 "exps", "flops"):
        assert getattr(both, name) == getattr(a, name) + getattr(b, name)
    assert both.hbm_read_bytes == sum(m.read_bytes for m in both.by_tensor.values())
    assert both.hbm_write_bytes == sum(m.write_bytes for m in both.by_tensor.values())
    assert both.hbm_bytes == sum(m.total_bytes for m in both.by_tensor.values())


@PROPERTY
@given(traffics)
def test_every_tensor_survives_csv(traffic):
    rows = csv.DictReader(io.StringIO(traffic.to_csv()))
    back = {(row["tensor"], row["direction"]): int(row["bytes"]) for row in rows}
    assert back == {(name, direction): bytes_ for name, moved in traffic.by_tensor.items()
                    for direction, bytes_ in zip(("read", "write"), moved, strict=True)}


def test_csv_goes_to_a_file_too(tmp_path):
    text = Traffic.of({"Q": (3, 4), "Δ": (1, 0)}).to_csv(tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes() == text.encode("utf-8")


def test_totals_given_without_tensors_add_too():
    assert (Traffic(hbm_read_bytes=3) + Traffic(hbm_read_bytes=4)).hbm_read_bytes == 7


def test_intensity_and_flops():
    traffic = Traffic.of({"Q": (6, 2)}, matmul_flops=20, vector_flops=8, exps=4)
    assert (traffic.flops, traffic.hbm_bytes, traffic.intensity) == (32, 8, 4.0)
    assert Traffic().intensity == float("inf")


def test_equality_looks_at_every_tensor():
    assert Traffic.of({"Q": (4, 0)}) != Traffic.of({"K": (4, 0)})
    assert Traffic.of({"Q": (4, 0), "K": (0, 0)}) == Traffic.of({"Q": Moved(4, 0)})


def test_a_traffic_is_frozen_and_adds_to_traffic_only():
    with pytest.raises(AttributeError):
        Traffic().exps = 1
    for wrong in (1, "x", None):
        with pytest.raises(TypeError):
            Traffic() + wrong


def test_the_text_shows_every_number():
    text = str(Traffic.of({"Q": (1234, 0), "O": (0, 5678)}, 10**6, 2000, 3000, 4000))
    for part in ("Q", "O", "1,234", "5,678", "1,000,000", "2,000", "3,000", "4,000"):
        assert part in text
