"""The live ablation says why it measured nothing, that it failed, or what it measured."""

import sys

import pytest

from flashlib.course.bench import gluon_ablation
from flashlib.course.notebook.data import measurements, read_measurement
from flashlib.kernels.configs import gluon_config_for

torch = pytest.importorskip("torch")


@pytest.fixture
def hopper(monkeypatch):
    """A machine whose torch sees a Hopper GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a Hopper")


@pytest.fixture
def launcher():
    pytest.importorskip("triton.experimental.gluon")
    from flashlib.kernels.backends import gluon

    return gluon


def import_anew(monkeypatch):
    from flashlib.kernels import backends

    monkeypatch.delattr(backends, "gluon", raising=False)
    monkeypatch.delitem(sys.modules, "flashlib.kernels.backends.gluon", raising=False)


def refuse(*arguments, **options):
    raise AssertionError("nothing can be measured")


@pytest.mark.parametrize(("available", "capability"), [(False, None), (True, (8, 0)), (True, (10, 0))])
def test_without_a_hopper_gpu_nothing_is_measured_and_that_is_said(
        available, capability, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(gluon_ablation, "ablation", refuse)
    gluon_ablation.measure_here()
    assert capsys.readouterr().out.startswith("No Hopper GPU here")


def test_without_triton_it_says_why(hopper, monkeypatch, capsys):
    import_anew(monkeypatch)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(gluon_ablation, "ablation", refuse)
    gluon_ablation.measure_here()
    said = capsys.readouterr().out
    assert said.startswith("Not measured here") and "triton" in said and said.count("\n") == 1


def test_with_an_old_triton_it_says_which_is_needed(hopper, launcher, monkeypatch, capsys):
    import triton

    import_anew(monkeypatch)
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    monkeypatch.setattr(gluon_ablation, "ablation", refuse)
    gluon_ablation.measure_here()
    said = capsys.readouterr().out
    assert said.startswith("Not measured here") and "needs Triton 3.6 or newer, got 3.5.1" in said


def test_a_wrong_variant_is_a_failure_in_a_sentence(hopper, launcher, monkeypatch, capsys):
    def wrong(*arguments, **options):
        raise RuntimeError("no_overlap is wrong at (4, 16, 4096, 128)")

    monkeypatch.setattr(gluon_ablation, "ablation", wrong)
    gluon_ablation.measure_here()
    said = capsys.readouterr().out
    assert "The measurement failed: no_overlap is wrong" in said and "Measured here" not in said


def test_other_errors_are_not_swallowed(hopper, launcher, monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("no such variant")

    monkeypatch.setattr(gluon_ablation, "ablation", broken)
    with pytest.raises(KeyError, match="no such variant"):
        gluon_ablation.measure_here()


def test_it_announces_the_compilation_and_prints_every_variant(hopper, launcher, monkeypatch, capsys):
    def ablation(shape, causal, rounds):
        assert capsys.readouterr().out == "Compiling 13 variants takes about a minute.\n"
        return [{"impl": "full", "tflops_per_s": 640.4}, {"impl": "no_overlap", "tflops_per_s": 540.0}]

    monkeypatch.setattr(gluon_ablation, "ablation", ablation)
    gluon_ablation.measure_here()
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "Measured here, on a Hopper, (B, H, N, d) = (4, 16, 4096, 128):",
        "full   640 TFLOP/s", "no_overlap   540 TFLOP/s"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", gluon_ablation.SHAPES, ids=str)
def test_the_full_kernel_has_every_technique_and_the_tables_is_measured(shape, causal, launcher):
    config = gluon_config_for(shape[3], causal, shape[2])
    found = gluon_ablation.variants(shape[3], causal, shape[2])
    full = found["full"]
    assert full.PING_PONG and full.OVERLAP and full.UNDER_SOFTMAX
    assert full.PERSISTENT and full.SPECIALIZED and not full.EMULATED and not full.TAU
    assert config in found.values()
    assert len(set(found.values())) == len(found) == 12 + (shape[3] == 128)


def test_it_writes_the_columns_and_keys_that_were_recorded(monkeypatch, tmp_path):
    def some(kind, **more):
        return lambda shape, causal, rounds: [
            gluon_ablation.row_of(kind, shape, causal, [500.0, 700.0, 600.0]) | more]

    monkeypatch.setattr(gluon_ablation, "only_on_hopper", lambda: None)
    monkeypatch.setattr(gluon_ablation.harness, "warm_all", lambda function, cases: None)
    monkeypatch.setattr(gluon_ablation, "ablation", some("full", registers=168, spilled_words=0))
    monkeypatch.setattr(gluon_ablation, "fp8", some("own_bf16", rmse=1e-4, ratio_to_bf16=1.0))
    gluon_ablation.main(["--out", str(tmp_path), "--name", "toy"])
    for name, shapes in (("gluon_ablation", gluon_ablation.SHAPES), ("fp8", gluon_ablation.FP8_SHAPES)):
        written, recorded = read_measurement(tmp_path / f"{name}_toy.csv"), measurements(f"{name}_h200")
        assert written.columns == recorded.columns and len(written.rows) == 2 * len(shapes)
        assert set(written.provenance) <= set(recorded.provenance)
        assert [written.rows[1][key] for key in ("impl", "causal", "N_k", "d")] == [
            "full" if name == "gluon_ablation" else "own_bf16", 1, 4096, 128]
        rates = [written.rows[0][f"tflops_per_s{end}"] for end in ("", "_low", "_high")]
        assert rates == [600, 500, 700]
