"""The record of solved exercises: kept in work/ alone, and never lost."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flashlib.course.ch04 import exercises as ch04
from flashlib.course.exercises import REGISTRY, progress, progress_file
from flashlib.course.notebook.chapters import CHAPTERS

ROOT = Path(__file__).resolve().parents[3]


def factor(m_old, m_new):
    return np.exp(m_old - m_new)


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course's folder with notebooks/ and work/; the process stands in work/."""
    for name in ("notebooks", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(progress_file, "_said", set())
    return tmp_path


def test_a_check_that_passes_is_kept_once(course, capsys):
    assert not ch04.check_factor(lambda m_old, m_new: 1.0)
    assert files(course) == set()
    assert ch04.check_factor(factor)
    first = (course / "work" / progress_file.FILE).read_bytes()
    assert list(json.loads(first)["solved"]) == ["04.1"]
    assert ch04.check_factor(factor)
    assert (course / "work" / progress_file.FILE).read_bytes() == first
    assert files(course) == {"work/progress.json"}
    assert "kept" not in capsys.readouterr().out


def test_progress_shows_every_chapter_and_what_is_next(course, capsys):
    ch04.check_factor(factor)
    capsys.readouterr()
    found = progress()
    shown = capsys.readouterr().out
    for chapter in CHAPTERS:
        assert (f"{chapter.number} {chapter.title}" in shown) == chapter.ready
    assert "04.1 ✓   04.2 ★★" in shown and "1 of 4" in shown
    assert "Next: 00.1, The size of the logits (★ easy, about 2 min)." in shown
    assert set(found.solved) == {"04.1"} and found.left[0] == "00.1"
    assert {*found.solved, *found.left} <= set(REGISTRY)
    assert found.file == course / "work" / progress_file.FILE


def test_the_course_folder_reads_and_does_not_write(course, monkeypatch, capsys):
    ch04.check_factor(factor)
    monkeypatch.chdir(course)
    assert set(progress().solved) == {"04.1"}
    (course / "work" / progress_file.FILE).unlink()
    ch04.check_factor(factor)
    assert files(course) == set()


@pytest.mark.parametrize("where", ["notebooks", "elsewhere"])
def test_elsewhere_nothing_is_kept_and_one_sentence_says_so(course, monkeypatch, capsys, where):
    ch04.check_factor(factor)
    kept = files(course)
    (course / where).mkdir(exist_ok=True)
    monkeypatch.chdir(course / where)
    capsys.readouterr()
    for _ in range(2):
        assert ch04.check_factor(factor)
    assert capsys.readouterr().out.count(progress_file.ELSEWHERE) == 1
    assert progress().solved == {}
    assert capsys.readouterr().out.count(progress_file.ELSEWHERE) == 1
    assert files(course) == kept


def test_a_folder_that_was_deleted_keeps_nothing(monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", gone)
    assert progress_file.find() is None


def test_a_read_only_folder_is_a_sentence(course, monkeypatch, capsys):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(progress_file, "_write", refuse)
    assert ch04.check_factor(factor)
    assert "cannot be written (Permission denied)" in capsys.readouterr().out
    assert files(course) == set()
    monkeypatch.setattr(progress_file.os, "access", lambda *_: False)
    progress()
    assert "Nothing new is kept: work/ cannot be written." in capsys.readouterr().out


DAMAGED = ["", "{", "[]", '{"solved": 3}', '{"solved": {"04.1": 3}}', '{"done": {}}', "\udcff"]


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("way", ["check", "progress"])
def test_a_damaged_file_is_reported_and_kept_aside(course, capsys, text, way):
    path = course / "work" / progress_file.FILE
    content = text.encode("utf-8", errors="surrogateescape")
    path.write_bytes(content)
    (course / "work" / "progress.damaged.json").write_text("an older one")
    ch04.check_factor(factor) if way == "check" else progress()
    assert "lies now beside as progress.damaged2.json" in capsys.readouterr().out
    assert (course / "work" / "progress.damaged2.json").read_bytes() == content
    assert (course / "work" / "progress.damaged.json").read_text() == "an older one"
    assert path.exists() == (way == "check")


def test_what_an_interrupted_write_leaves_is_the_old_file(course, monkeypatch):
    ch04.check_factor(factor)
    before = (course / "work" / progress_file.FILE).read_bytes()

    def interrupted(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress_file.os, "replace", interrupted)
    assert "No space left" in progress_file.keep("04.2")
    assert (course / "work" / progress_file.FILE).read_bytes() == before


def test_rendering_in_notebooks_writes_nothing(tmp_path):
    """Even a solved exercise leaves no trace beside the committed notebooks."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "work").mkdir()
    code = ("import numpy as np; from flashlib.course.exercises import progress;"
            "from flashlib.course.ch04 import exercises as ch04;"
            "ch04.check_factor(lambda a, b: np.exp(a - b)); progress()")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "notebooks", check=True,
                   env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True)
    assert files(tmp_path) == set()
