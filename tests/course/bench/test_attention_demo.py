"""The recorded demo's own steps, gone through at toy sizes, and the reading of Nsight's table."""

import subprocess

import pytest

from flashlib.course.bench import attention_demo, profiler
from flashlib.course.notebook.data import measurements, read_measurement

SHAPES = [(1, 2, 64, 64)]


def table(kernels):
    """Return what ncu prints for (name, bytes) pairs, notes before it included."""
    lines = ["==PROF== Connected to process 1", '"ID","Kernel Name","dram__bytes_read.sum"']
    lines.append('"","","byte"')
    lines += [f'"{i}","{name}","{moved}"' for i, (name, moved) in enumerate(kernels)]
    return "\n".join(lines)


def test_kernels_belong_to_the_case_whose_mark_precedes_them():
    mark = ("at::cuda::(anonymous namespace)::spin_kernel(long)", "0")
    kernels = [mark, ("void x::matmul<int>(a)", "1,024"), ("soft(b)", "2048.0"), mark]
    kernels += [("back(b)", "1"), mark, ("flash(c)", "n/a"), mark, ("flash(c)", "7")]
    rows = attention_demo.parse_counters(table(kernels), SHAPES)
    assert [(row["impl"], row["mode"], row["kernel"], row["dram_read_bytes"]) for row in rows] == [
        ("standard", "forward", "matmul", 1024),
        ("standard", "forward", "soft", 2048),
        ("standard", "forward+backward", "back", 1),
        ("flash", "forward", "flash", None),
        ("flash", "forward+backward", "flash", 7),
    ]
    assert rows[0]["seconds"] is None
    assert tuple(rows[0]) == measurements("attention_demo_counters_h200").columns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("==ERROR== no permission", "expected a table"),
        (table([("flash(c)", "7")]), "expected a mark before the kernel flash"),
        (table([("spin_kernel(long)", "7")]), "fewer marks than cases"),
    ],
    ids=["no table", "no mark", "too few"],
)
def test_a_table_that_cannot_be_trusted_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        attention_demo.parse_counters(text, SHAPES)


def parse(text):
    return attention_demo.parse_counters(text, SHAPES)


def test_counting_without_nsight_gives_a_sentence(monkeypatch):
    monkeypatch.setattr(profiler.shutil, "which", lambda name: None)
    with pytest.raises(profiler.NoCounters, match=r"Nsight Compute \(ncu\) is not on the PATH"):
        profiler.count("a.module", parse)


def test_counting_falls_back_to_what_every_version_has_and_says_what_it_cannot_trust(monkeypatch):
    marks = [("spin_kernel(long)", "0"), ("flash(c)", "7")] * 4
    asked, told = [], {"failing": 1, "text": table(marks)}

    def run(command, **options):
        asked.append(command[command.index("--metrics") + 1].split(","))
        failed = int(len(asked) <= told["failing"])
        return subprocess.CompletedProcess(command, failed, "" if failed else told["text"], "no metric")

    monkeypatch.setattr(profiler.shutil, "which", lambda name: name)
    monkeypatch.setattr(profiler.subprocess, "run", run)
    assert len(profiler.count("a.module", parse)) == 4
    assert set(asked[0]) - set(asked[1]) == set(profiler.OPTIONAL_METRICS)
    told["failing"] = 9
    with pytest.raises(profiler.NoCounters, match="ncu ended with 1: no metric"):
        profiler.count("a.module", parse)
    told |= {"failing": 0, "text": table(marks[:2])}
    with pytest.raises(profiler.NoCounters, match="fewer marks than cases"):
        profiler.count("a.module", parse)


def test_dry_run_writes_a_file_that_reads_back(tmp_path, capsys):
    pytest.importorskip("torch")
    attention_demo.main(["--dry-run", "--out", str(tmp_path), "--name", "toy"])
    recorded = read_measurement(tmp_path / "attention_demo_toy.csv")
    assert recorded.columns == measurements("attention_demo_h200").columns
    assert recorded.number("max_relative_error_flash_dQ") < 2e-2
    assert str(tmp_path) not in " ".join(recorded.provenance.values())
    assert len(recorded.rows) == 8
    assert (recorded.column("seconds") > 0).all()
    flops = recorded.where(mode="forward", N_q=64).column("matmul_flops")
    assert set(flops) == {4 * 1 * 2 * 64 * 64 * 64}
    assert "TFLOP/s" in capsys.readouterr().out


def test_without_a_gpu_it_ends_in_one_sentence(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        attention_demo.main([])
