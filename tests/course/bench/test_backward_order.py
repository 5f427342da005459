"""The benchmark of the sums' order: its steps at a toy size, in the interpreter."""

import pytest

from flashlib.course.bench import backward_order
from flashlib.course.bench.harness import TOLERANCE
from flashlib.course.ch12b.edited_kernels import VARIANTS
from flashlib.course.notebook.data import read_measurement

pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

pytestmark = pytest.mark.more                             # the benchmark itself, at toy sizes
LAUNCHES = 3                                                # of 20 on a GPU, where orders differ


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backward_order")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward_order, "LAUNCHES", LAUNCHES)
        backward_order.main(["--dry-run", "--out", str(folder), "--name", "toy", "--rounds", "1"])
    return [read_measurement(folder / f"{name}_toy.csv")
            for name in ("backward_order", "backward_order_kernels")]


def test_a_dry_run_has_a_row_for_every_variant_with_and_without_a_mask(dry):
    found = [(row["impl"], row["causal"]) for row in dry[0].rows]
    assert found == [*((name, 0) for name in VARIANTS if name not in ("longest_first", "last_first")),
                     *((name, 1) for name in VARIANTS if name != "one_start")]
    assert (dry[0].column("relative_error") < TOLERANCE).all()
    # One program after another adds in the order in which they start.
    assert (dry[0].column("other_bits_launches") == 0).all()
    assert (dry[0].column("launches") == LAUNCHES).all()
    assert {f"impl_{name}" for name in backward_order.IMPLS} <= set(dry[0].provenance)


def test_and_a_time_for_every_launch(dry):
    of = {row["impl"]: [r["kernel"] for r in dry[1].rows
                        if (r["impl"], r["causal"]) == (row["impl"], row["causal"])]
          for row in dry[1].rows}
    assert of == {"shipped": ["before", "fused", "after"], "one_start": ["before", "fused", "after"],
                  "unordered": ["before", "zeros", "fused", "after"],
                  "no_locks": ["before", "zeros", "fused", "after"],
                  "longest_first": ["before", "zeros", "fused", "after"],
                  "last_first": ["before", "fused", "after"]}
    assert (dry[1].column("seconds") > 0).all()


def test_without_a_gpu_it_ends_with_a_sentence(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        backward_order.main([])
