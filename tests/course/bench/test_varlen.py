"""The benchmark of packed sequences: its steps at toy sizes, and that it times nothing wrong."""

import pytest

from flashlib.course.bench import varlen
from flashlib.course.notebook.data import read_measurement

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("varlen")
    varlen.main(["--dry-run", "--out", str(folder), "--name", "toy", "--rounds", "2"])
    return read_measurement(folder / "varlen_toy.csv")


def test_a_dry_run_has_a_row_for_every_batch_and_mode(dry):
    cases = sorted((row["note"], row["mode"]) for row in dry.where(impl="ours").rows)
    assert cases == sorted((note, mode) for note in varlen.batches(True) for mode in varlen.MODES)
    assert {row["note"] for row in dry.where(impl="ours_batch").rows} == {"equal"}
    assert (dry.column("seconds") > 0).all() and (dry.column("rounds") == 2).all()
    assert (dry.column("relative_error") < varlen.harness.TOLERANCE).all()
    assert dry.provenance["absent_fa3"] == "needs a GPU"


def test_flops_and_sizes_are_those_of_the_sequences(dry):
    for row in dry.rows:
        lengths = varlen.batches(True)[row["note"]]
        assert (row["B"], row["N_q"]) == (len(lengths), max(lengths))
        pairs = sum(n * n for n in lengths) / 2
        assert row["flops"] == 4 * varlen.HEADS * row["d"] * pairs * (
            2.5 if row["mode"] == "backward" else 1)


def test_drawn_lengths_add_up_and_differ():
    lengths = varlen.drawn()
    assert sum(lengths) == varlen.TOKENS and len(set(lengths)) > 5
    assert all(varlen.LEAST <= n <= varlen.MOST for n in lengths[:-1])
    assert lengths == varlen.drawn()


def test_a_wrong_way_of_ours_is_an_error_and_a_wrong_peer_is_named():
    batch = varlen.Batch([30, 40], "cpu")
    tensors = varlen.tensors_of(batch.lengths, 8, "cpu")
    right, absent = batch.exact(tensors), {}

    def crossed(q, k, v, causal):                           # no sequence ends
        return varlen.Batch([70], "cpu").ours(q, k, v, causal)

    with pytest.raises(RuntimeError, match="ours is wrong at here"):
        varlen.errors_of({"ours": crossed}, tensors, right, "here", absent)
    assert varlen.errors_of({"fa3": crossed}, tensors, right, "here", absent) == {}
    assert "wrong" in absent["fa3 at here"]
