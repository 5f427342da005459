"""The softmax measurement goes through its steps on a CPU, and its record is what it would write."""

import pytest

from flashlib import data

pytest.importorskip("torch")

from flashlib.course.bench import softmax_rates as bench


def test_a_dry_run_writes_what_the_course_reads(tmp_path, capsys):
    bench.main(["--dry-run", "--out", str(tmp_path), "--name", "cpu"])
    assert "percent of" in capsys.readouterr().out
    written = data.read_measurement(tmp_path / "softmax_cpu.csv")
    recorded = data.measurements("softmax_h200")
    assert written.columns == recorded.columns
    assert set(recorded.provenance) >= set(written.provenance) - {"max_relative_error_torch"}
    assert len(written.rows) == 2 * len(bench.DTYPES) * len(bench.DRY)


def test_the_record_holds_every_case_with_its_provenance():
    recorded = data.measurements("softmax_h200")
    cases = {(r["dtype"], r["rows"], r["cols"], r["impl"]) for r in recorded.rows}
    assert cases == {(d, *s, i) for d in bench.DTYPES for s in bench.SHAPES for i in bench.IMPLS}
    assert "H200" in recorded.provenance["gpu"]
    for key in ("date", "command", "torch", "triton", "driver", "ceiling_copy_bytes_per_s"):
        assert recorded.provenance[key]


def test_a_kernel_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(bench, "runner", lambda impl, x, y: lambda: y.zero_())
    with pytest.raises(RuntimeError, match="torch is wrong here"):
        bench.check(("torch",), ("float32",), [(4, 8)], "cpu")


def test_without_a_gpu_nothing_is_measured_and_that_is_said(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    bench.measure_here()
    assert "No GPU here" in capsys.readouterr().out


def test_quick_takes_one_dtype(capsys):
    bench.main(["--dry-run", "--quick"])
    out = capsys.readouterr().out
    assert "float32 " in out and "\nfloat16" not in out
