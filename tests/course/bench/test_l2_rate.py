"""Reading one piece of memory over and over: who reads what, and in loads how wide."""

import re

import pytest

from flashlib.course.bench import l2_rate as bench
from flashlib.course.bench import profiler
from tests.course.bench.test_counters import table

SMS = 132


@pytest.mark.parametrize("impl", bench.IMPLS)
@pytest.mark.parametrize("size", bench.SIZES, ids=lambda size: f"{size // bench.MIB}MiB")
def test_the_programs_read_16_gib_of_the_whole_piece(impl, size):
    programs, apart, each, steps = bench.layout(impl, size, SMS)
    assert size % each == 0 and apart % each == 0
    assert programs * each * steps == pytest.approx(bench.TOTAL_BYTES, rel=2e-3)
    reach = (programs - 1) * apart + each * steps           # from the first byte on, around the ring
    if (impl, size) in bench.cases(bench.IMPLS, bench.SIZES):
        assert reach >= size


def test_counters_are_those_of_the_cases_in_order():
    cases = bench.cases(["loads", "loads_together"], [bench.COUNTED[0], bench.COUNTED[-1]])
    assert len(cases) == 3
    kernels = bench.kernels(cases)
    assert set(kernels.values()) == {"read_kernel"}
    text = table(["fill", *["read_kernel"] * 3])
    found = profiler.sorted_out(text, kernels, bench.COUNTERS, bench.ASKED)
    assert found["loads", bench.COUNTED[0]] == {
        "dram_read_bytes": 1, "l2_to_sm_bytes": 1, "l2_read_sectors": 1, "l2_asked_sectors": None}
    assert list(found) == cases
    assert bench.kernels([("copies", 1)]) == {("copies", 1): "copy_kernel"}


def test_the_kernels_read_in_wide_loads_past_the_first_cache_and_in_tiles():
    pytest.importorskip("triton")
    from flashlib import lens

    home = "flashlib.course.bench.l2_kernels"
    read, copy = lens.compile_many([
        lens.request(f"{home}:read_kernel", num_warps=bench.WARPS, arguments={
            "X": "*i32", "SUMS": "*i32", "size": 2**22, "apart": 2**16, "steps": 100,
            "BLOCK": bench.BLOCK, "AHEAD": bench.AHEAD}),
        lens.request(f"{home}:copy_kernel", num_warps=1, arguments={
            "x_desc": f"tensordesc<fp16{list(bench.TILE)}>", "SUMS": "*fp32", "rows": 2**16,
            "apart": 2**12, "steps": 100, "STAGES": bench.STAGES})])
    wide = re.findall(r"LDG\.E\.128\.STRONG\.GPU", read.sass)
    assert len(wide) == bench.AHEAD and len(re.findall(r"\bLDG", read.sass)) == bench.AHEAD
    assert len(re.findall(r"\bUTMALDG", copy.sass)) == bench.STAGES + 1
    assert not read.spills and not copy.spills
