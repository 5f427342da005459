"""Provenance: what is recorded, what never is, and that a file comes back as it was written."""

import platform
import re
import subprocess
import sys

import pytest

from flashlib.course.bench import provenance
from flashlib.course.notebook.data import asset, read_measurement


def test_collect_names_command_date_gpu_and_versions():
    entries = provenance.collect("python -m something", ceiling=12)
    assert entries["command"] == "python -m something"
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", entries["date"])
    assert {"gpu", "python", "torch", "triton", "numpy"} <= set(entries)
    assert entries["ceiling"] == "12"
    assert all(isinstance(value, str) for value in entries.values())


def test_collect_leaves_the_machine_unnamed():
    values = " ".join(provenance.collect("x").values()).split()
    assert platform.node() not in values


def test_collect_works_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert provenance.collect("x")["gpu"] == "none"


def test_driver_is_unknown_where_the_tool_is_missing_or_fails(monkeypatch):
    monkeypatch.setattr(provenance.shutil, "which", lambda name: None)
    assert provenance._driver() == "unknown"

    def fail(*args, **kwargs):
        raise subprocess.CalledProcessError(9, "nvidia-smi")

    monkeypatch.setattr(provenance.shutil, "which", lambda name: name)
    monkeypatch.setattr(provenance.subprocess, "run", fail)
    assert provenance._driver() == "unknown"


def test_csv_comes_back_as_written(tmp_path):
    rows = [
        {"impl": "flash", "N": 512, "seconds": 0.00012345678},
        {"impl": "standard, eager", "N": 1024, "seconds": None},
    ]
    path = provenance.write_csv(tmp_path / "new" / "some.csv", rows, {"gpu": "A: B", "date": "d"})
    back = read_measurement(path)
    assert back.provenance == {"gpu": "A: B", "date": "d"}
    assert back.rows[0] == {"impl": "flash", "N": 512, "seconds": 0.000123457}
    assert back.rows[1] == rows[1]
    assert path.read_bytes().count(b"\r") == 0


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        ([], {}, "rows: expected at least one row"),
        ([{"a": 1}, {"b": 1}], {}, r"rows: expected the columns \['a'\] in row 1"),
        ([{"a": 1}], {"a:b": "c"}, "provenance: expected one line and no colon"),
        ([{"a": 1}], {"a": "c\nd"}, "provenance: expected one line"),
    ],
    ids=["no rows", "other columns", "colon in key", "two lines"],
)
def test_csv_refuses_what_could_not_be_read_back(tmp_path, rows, head, message):
    with pytest.raises(ValueError, match=message):
        provenance.write_csv(tmp_path / "some.csv", rows, head)


def test_every_committed_measurement_says_where_it_comes_from():
    files = sorted(asset("measurements").glob("*.csv"))
    assert files
    for path in files:
        head = read_measurement(path).provenance
        missing = {"command", "date", "gpu"} - set(head)
        assert not missing, f"{path.name} does not say its {missing}"


@pytest.mark.parametrize("words", [["--out", "{}/", "--name", "x"], ["--name", "x", "--out={}"]],
                         ids=str)
def test_the_command_is_as_it_was_typed_without_the_folder(words, tmp_path):
    given = [word.format(tmp_path) for word in words]
    options = provenance.options_for(provenance.__spec__, "What is measured.", [*given, "--dry-run"],
                                     dry_run="toy sizes")
    assert options.out == tmp_path and options.dry_run
    asked = " ".join(words).replace("{}/", "{}").replace("{}", "assets/measurements")
    assert options.command == f"python -m flashlib.course.bench.provenance {asked} --dry-run"


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = provenance.options_for(provenance.__spec__, "What is measured.", [])
    provenance.write(options, "some", [{"a": 1}], {})
    assert list(tmp_path.iterdir()) == []


def test_a_probe_runs_and_ends_the_benchmark_and_rounds_have_a_default():
    seen = []
    with pytest.raises(SystemExit) as left:
        provenance.options_for(provenance.__spec__, "What.", ["--probe"], probe=lambda: seen.append(1))
    assert (seen, left.value.code) == ([1], None)
    options = provenance.options_for(provenance.__spec__, "What.", [], probe=seen.clear, rounds=5)
    assert (seen, options.rounds) == ([1], 5)


def test_every_implementation_is_said_in_the_head():
    head = provenance.collect("python", {"a": "the first"}, timing="now")
    assert head["impl_a"] == "the first" and head["timing"] == "now"
