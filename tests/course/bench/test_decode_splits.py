"""The benchmark of parts: its steps at toy sizes, in the interpreter, its cuts, whose bits change."""

import os
import subprocess
import sys

import pytest

from flashlib.course.bench import decode_splits
from flashlib.course.notebook.data import read_measurement

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.more                             # the benchmark itself, at toy sizes


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits")
    subprocess.run([sys.executable, "-m", decode_splits.__name__, "--dry-run", "--out", str(folder),
                    "--name", "toy", "--rounds", "1"], check=True, capture_output=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return read_measurement(folder / "decode_splits_toy.csv")


def test_a_dry_run_times_each_number_of_parts_ours_pages_and_the_sum(dry):
    for shape in decode_splits.DRY_SHAPES:
        of_shape = [row for row in dry.rows if row["N_k"] == shape.N_k and row["seconds"]]
        assert {row["impl"] for row in of_shape} == {"sum", "parts", "ours", "ours_page_16",
                                                     "ours_page_32"}
        for row in of_shape:
            if row["impl"] == "parts":
                assert row["programs"] == row["parts"] * shape.B * shape.H_k
            assert row["kv_bytes"] == 2 * 2 * shape.B * shape.H_k * shape.N_k * shape.d
    assert [row["parts"] for row in dry.rows if row["impl"] == "parts"] == [1, 2, 4, 1, 2]


def test_a_rule_that_looks_at_the_batch_changes_bits_and_ours_does_not(dry):
    changed = {(row["impl"], row["B"]): row["other_bits_elements"] for row in dry.rows
               if row["elements"]}
    assert all(changed["ours", B] == 0 for B in (1, 2, 3)) and changed["one_wave", 1] == 0
    assert changed["one_wave", 2] > 20 and changed["one_wave", 3] > 20
    assert all(row["relative_error"] < 2e-3 for row in dry.rows if row["elements"])


def test_cuts_are_of_whole_tiles_and_each_differs():
    shape = decode_splits.KEY_SHAPES[0]._replace(N_k=2048)
    q, both = decode_splits.decode.caches_of(shape, "cpu", 1, dtype="float16")
    p = decode_splits.problem_of(q, both[0])
    cuts = decode_splits.cuts_of(p, decode_splits.KEY_PARTS)
    assert len({parts for parts, _, _ in cuts}) == len(cuts) > 8
    for parts, programs, cut in cuts:
        assert cut.KEYS % cut.BLOCK_N == 0 and (parts - 1) * cut.KEYS < p.N_K <= parts * cut.KEYS
        assert programs == parts * shape.H_k
