import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import sync_work
from scripts.sync_work import sync


@pytest.fixture
def folders(tmp_path):
    notebooks, work = tmp_path / "notebooks", tmp_path / "work"
    notebooks.mkdir()
    (notebooks / "00_a.ipynb").write_text("a1")
    (notebooks / "03_b.ipynb").write_text("b1")
    assert sync(notebooks, work) == []
    return notebooks, work


def files(work):
    return {path.name: path.read_text() for path in work.glob("*.ipynb")}


def test_first_run_copies_everything(folders):
    assert files(folders[1]) == {"00_a.ipynb": "a1", "03_b.ipynb": "b1"}


def test_an_untouched_copy_follows_its_original_silently(folders):
    notebooks, work = folders
    (notebooks / "00_a.ipynb").write_text("a2")
    assert sync(notebooks, work) == []
    assert files(work)["00_a.ipynb"] == "a2"


def test_an_edited_copy_stays_when_its_original_did_not_change(folders):
    notebooks, work = folders
    (work / "00_a.ipynb").write_text("mine")
    assert sync(notebooks, work) == []
    assert files(work) == {"00_a.ipynb": "mine", "03_b.ipynb": "b1"}


def test_a_changed_original_is_offered_beside_an_edited_copy_once(folders):
    notebooks, work = folders
    (work / "00_a.ipynb").write_text("mine")
    (notebooks / "00_a.ipynb").write_text("a2")
    (message,) = sync(notebooks, work)
    assert "new_00_a.ipynb" in message
    assert files(work)["00_a.ipynb"] == "mine"
    assert files(work)["new_00_a.ipynb"] == "a2"
    (work / "new_00_a.ipynb").unlink()
    assert sync(notebooks, work) == []
    assert "new_00_a.ipynb" not in files(work)


def test_an_untouched_offer_is_replaced_by_the_next_one(folders):
    notebooks, work = folders
    (work / "00_a.ipynb").write_text("mine")
    for version in ("a2", "a3"):
        (notebooks / "00_a.ipynb").write_text(version)
        assert len(sync(notebooks, work)) == 1
    assert files(work) == {"00_a.ipynb": "mine", "new_00_a.ipynb": "a3", "03_b.ipynb": "b1"}


def test_an_edited_offer_is_never_overwritten(folders):
    notebooks, work = folders
    (work / "00_a.ipynb").write_text("mine")
    (notebooks / "00_a.ipynb").write_text("a2")
    sync(notebooks, work)
    (work / "new_00_a.ipynb").write_text("also mine")
    (notebooks / "00_a.ipynb").write_text("a3")
    (message,) = sync(notebooks, work)
    assert "new2_00_a.ipynb" in message
    here = files(work)
    assert here["00_a.ipynb"] == "mine"
    assert here["new_00_a.ipynb"] == "also mine"
    assert here["new2_00_a.ipynb"] == "a3"


def test_a_deleted_copy_comes_back(folders):
    notebooks, work = folders
    (work / "03_b.ipynb").unlink()
    assert sync(notebooks, work) == []
    assert files(work)["03_b.ipynb"] == "b1"


def test_an_edit_that_was_undone_follows_again(folders):
    notebooks, work = folders
    (work / "00_a.ipynb").write_text("mine")
    sync(notebooks, work)
    (work / "00_a.ipynb").write_text("a1")
    (notebooks / "00_a.ipynb").write_text("a2")
    assert sync(notebooks, work) == []
    assert files(work)["00_a.ipynb"] == "a2"


@pytest.mark.parametrize("manifest", [None, "", "[]", "{}", '{"copied": 3, "offered": {}}'])
def test_a_lost_manifest_costs_no_edit(folders, manifest):
    notebooks, work = folders
    (work / "00_a.ipynb").write_text("mine")
    path = work / sync_work.MANIFEST
    path.unlink() if manifest is None else path.write_text(manifest)
    (message,) = sync(notebooks, work)
    assert "new_00_a.ipynb" in message
    assert files(work)["00_a.ipynb"] == "mine"
    assert "b1" in files(work)["03_b.ipynb"]


def test_a_notebook_of_the_readers_own_is_left_alone(folders):
    notebooks, work = folders
    (work / "my_own.ipynb").write_text("mine")
    sync(notebooks, work)
    assert files(work)["my_own.ipynb"] == "mine"
    assert set(json.loads((work / sync_work.MANIFEST).read_text())["copied"]) == {
        "00_a.ipynb",
        "03_b.ipynb",
    }


def test_nothing_but_copies_and_the_manifest_is_left_in_work(folders):
    assert {path.name for path in folders[1].iterdir()} == {
        "00_a.ipynb",
        "03_b.ipynb",
        sync_work.MANIFEST,
    }


def test_a_folder_that_cannot_be_written_ends_in_a_sentence(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (tmp_path / "work").write_text("a file where the folder should be")
    script = scripts / "sync_work.py"
    script.write_bytes((sync_work.ROOT / "scripts" / "sync_work.py").read_bytes())
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("work/ cannot be written")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_is_named_and_leaves_nothing_half_written(folders, monkeypatch, capsys):
    notebooks, work = folders
    (notebooks / "00_a.ipynb").write_text("a2")

    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(sync_work, "ROOT", notebooks.parent)
    with pytest.raises(SystemExit) as end:
        sync_work.main()
    assert "make room" in str(end.value) and "00_a.ipynb" in str(end.value)
    assert files(work)["00_a.ipynb"] == "a1" and not list(work.glob(".*.part"))


def test_another_language_has_copies_of_its_own(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sync_work, "ROOT", tmp_path)
    monkeypatch.setattr(sync_work, "_translated", lambda language: tmp_path / f"written_{language}")
    (tmp_path / "written_zh").mkdir()
    original, mine = tmp_path / "written_zh/00_a.ipynb", tmp_path / "work/zh/00_a.ipynb"
    original.write_text("译文", "utf-8")
    sync_work.main("zh")
    assert mine.read_text("utf-8") == "译文" and not (tmp_path / "work/00_a.ipynb").exists()
    mine.write_text("我的", "utf-8")
    original.write_text("新的译文", "utf-8")
    sync_work.main("zh")
    assert mine.read_text("utf-8") == "我的"
    assert (tmp_path / "work/zh/new_00_a.ipynb").read_text("utf-8") == "新的译文"
    assert "work/zh/00_a.ipynb holds your edits" in capsys.readouterr().out


def test_a_language_that_there_is_not_is_named():
    with pytest.raises(SystemExit, match="LANGUAGE: expected one of en, zh, got xx"):
        sync_work.main("xx")
