"""The benchmark of decoding: its steps at toy sizes, what it counts, and who is not timed."""

import pytest

from flashlib.course.bench import decode, harness
from flashlib.course.notebook.data import read_measurement

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decode")
    decode.main(["--dry-run", "--out", str(folder), "--name", "toy", "--rounds", "2"])
    return read_measurement(folder / "decode_toy.csv")


def test_a_dry_run_has_a_row_for_every_shape_harness_and_implementation(dry):
    cases = {(row["B"], row["harness"], row["impl"]) for row in dry.rows}
    for shape in decode.DRY:
        for which in decode.HARNESSES:
            for impl in ("sum", "ours", "ours_auto", "sdpa_flash"):
                assert (shape.B, which, impl) in cases
    assert {row["N_q"] for row in dry.rows if row["impl"] == "ours_causal"} == {3}
    assert {row["N_k"] for row in dry.rows if row["impl"] == "ours_page_16"} == {96}
    assert (dry.column("seconds") > 0).all() and (dry.column("rounds") == 2).all()


def test_bytes_and_rates_are_those_of_k_and_v(dry):
    for row in dry.rows:
        assert row["kv_bytes"] == 2 * 2 * row["B"] * row["H_k"] * row["N_k"] * row["d"]
        assert row["kv_bytes_per_s"] == pytest.approx(row["kv_bytes"] / row["seconds"], rel=1e-4)


def test_twelve_shapes_of_all_kinds():
    shapes = decode.SHAPES
    assert len(set(shapes)) == 12
    assert {s.H // s.H_k for s in shapes} == {1, 4, 8} and {s.d for s in shapes} == {64, 128}
    assert {s.B for s in shapes} >= {1, 64} and {s.N_q for s in shapes} >= {1, 16}
    assert {s.N_k for s in shapes} >= {2048, 131072}
    for shape in shapes:
        assert decode.cache_count(shape, "cuda") * shape.kv_bytes >= 150e6


def test_who_is_wrong_is_not_timed(monkeypatch):
    shape = decode.DRY[1]
    q, both = decode.caches_of(shape, "cpu", 1)
    absent = {}
    found = {"ours": lambda q, k, v, causal: decode.peers.ours(q, k, v, causal),
             "sdpa_flash": lambda q, k, v, causal: v[:, :, :3] * 0 + 1,
             "fa3": lambda q, k, v, causal: 1 / 0}
    calls = decode.calls_for(shape, found, q, both, absent)
    assert set(calls) == {"ours", "ours_causal"}
    assert "wrong" in absent[f"sdpa_flash at {tuple(shape)}"]
    assert "ZeroDivisionError" in absent[f"fa3 at {tuple(shape)}"]
    found["ours"] = found["sdpa_flash"]
    with pytest.raises(RuntimeError, match="ours is wrong"):
        decode.calls_for(shape, found, q, both, absent)


def test_pages_hold_what_the_cache_holds():
    shape = decode.Shape(2, 4, 2, 1, 96, 16)
    q, both = decode.caches_of(shape, "cpu", 2)
    for x in both:
        o = decode.paged(q, both, 16)(x[0], x[1])
        assert harness.relative([o], [decode.exact(q, x[0], x[1], False)]) < 1e-2
