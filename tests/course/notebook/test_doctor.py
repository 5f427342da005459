"""`doctor` says what runs here, names a remedy for what does not, and never raises."""

import builtins
import importlib
import importlib.metadata
import subprocess
import sys

import pytest

import flashlib as fl
from flashlib.course.notebook.chapters import CHAPTERS, PARTS, Chapter

module = importlib.import_module("flashlib.course.notebook.doctor")


def without(monkeypatch, *missing):
    """Make packages look as if they were not installed."""
    version, imported = importlib.metadata.version, builtins.__import__

    def no_version(name):
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    def no_import(name, *args, **kwargs):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(importlib.metadata, "version", no_version)
    monkeypatch.setattr(builtins, "__import__", no_import)


def test_every_ready_chapter_has_a_row():
    report = fl.doctor()
    assert [row["chapter"].split()[0] for row in report.chapters] == [
        chapter.number for chapter in CHAPTERS if chapter.ready]
    assert report.machine["numpy"] == importlib.metadata.version("numpy")
    assert str(report) == repr(report)
    named = [row["chapter"] in str(report) for row in report.chapters]
    assert not any(named) and f"all {len(named)} " in str(report) if {
        row["runs here"] for row in report.chapters} == {"yes"} else all(named)


def test_the_package_run_as_a_program_prints_the_report():
    done = subprocess.run([sys.executable, "-m", "flashlib"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{fl.doctor()}\n"


def test_torch_and_triton_absent_leave_the_numpy_chapters_running(monkeypatch):
    without(monkeypatch, "torch", "triton")
    report = fl.doctor()
    assert report.ok
    assert report.machine["torch"] == "not installed"
    assert "requirements.txt" in report.missing["torch"]
    assert "not installed" in report.machine["GPU"] and "gpu" in report.missing


@pytest.mark.parametrize(("package", "verdict"), [("matplotlib", "yes, without figures"),
                                                  ("ipywidgets", "yes, without sliders")])
def test_what_is_lost_without_a_package(monkeypatch, package, verdict):
    without(monkeypatch, package)
    report = fl.doctor()
    assert {row["runs here"] for row in report.chapters if row["chapter"].startswith("0")} >= {verdict}
    assert "pip install" in report.missing[package]


def test_a_chapter_that_cannot_run_names_what_is_missing():
    chapter = Chapter("99", "X", "?", "P", minutes=1, needs=("numpy", "triton"))
    row = module._row(chapter, {"triton": "…"})
    assert row["runs here"] == "not yet: triton missing, see the remedy"


def test_a_torch_that_does_not_start_is_reported(monkeypatch):
    imported = builtins.__import__

    def broken(name, *args, **kwargs):
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    text, found = module._gpu(torch_installed=True)
    assert not found and "does not start" in text and "libcudart" in text


def test_the_table_of_chapters_is_consistent():
    numbers = [f"{n:02d}" for n in range(18)]
    assert [c.number for c in CHAPTERS] == [*numbers[:13], "12b", *numbers[13:]]
    assert {c.part for c in CHAPTERS} == set(PARTS)
    for chapter in CHAPTERS:
        assert chapter.question.endswith("?")
        assert not chapter.ready or (chapter.minutes > 0 and chapter.shows)


def test_the_chapters_on_eight_bits_need_the_package_that_knows_them(monkeypatch):
    without(monkeypatch, "ml_dtypes")
    report = fl.doctor()
    stuck = {row["chapter"][:2] for row in report.chapters if row["runs here"].startswith("not yet")}
    assert stuck == {"13", "14"} and "pip install ml_dtypes" in report.missing["ml_dtypes"]


@pytest.mark.parametrize("reason, words", [(None, "the short way"),
                                           ("it looks different", "Triton's own way")])
def test_it_says_when_launches_take_the_long_way(reason, words, monkeypatch):
    pytest.importorskip("triton")
    from flashlib.kernels import plans

    monkeypatch.setattr(module, "_gpu", lambda installed: ("a GPU", True))
    monkeypatch.setattr(plans, "why_slow", lambda: reason)
    said = module.doctor().machine["launches"]
    assert words in said and (reason or "") in said
