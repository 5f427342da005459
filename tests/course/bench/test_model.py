"""The benchmark of the GPT: its steps at toy sizes, and what folding a batch must not change."""

import pytest

from flashlib.course.bench import model
from flashlib.course.notebook.data import read_measurement

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model.main(["--dry-run", "--out", str(folder), "--name", "toy", "--rounds", "1"])
    return {kind: read_measurement(folder / f"model_{kind}_toy.csv")
            for kind in ("steps", "losses", "writing")}


def test_a_dry_run_has_a_row_for_every_length_and_attention(dry):
    impls = {"ours", "sdpa_flash", "standard", "left_out"}
    assert {(row["N_q"], row["impl"]) for row in dry["steps"].rows} == {
        (N, impl) for N in model.DRY.eager for impl in impls}
    for row in dry["steps"].rows:
        assert row["B"] * row["N_q"] == model.DRY.T and row["status"] == "ok"
        assert row["tokens_per_s"] == pytest.approx(model.DRY.T / row["seconds"], rel=1e-4)


def test_attentions_of_a_seed_begin_with_one_loss(dry):
    for seed in range(model.DRY.seeds):
        found = dry["losses"].where(seed=seed, step=0).column("loss")
        assert len(found) == 3 and found.max() - found.min() < 1e-2


def test_the_cache_s_bytes_are_those_of_all_layers(dry):
    (row,) = dry["writing"].rows
    assert row["kv_bytes"] == 2 * model.DRY.L * model.DRY.C * row["N_k"] * 4


def test_folding_attends_within_each_sequence():
    q, k, v = torch.randn(3, 1, 2, 24, 4).unbind(0)
    o = model.folded(model.standard, 8)(q, k, v)
    for n in range(0, 24, 8):
        alone = model.standard(*(x[:, :, n:n + 8] for x in (q, k, v)), True)
        torch.testing.assert_close(o[:, :, n:n + 8], alone)
