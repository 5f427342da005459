"""What `make lab` gives to JupyterLab: nothing is started here."""

import importlib
import os
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


@pytest.fixture
def open_lab(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)                    # it imports its neighbors, as a script does
    return importlib.import_module("open_lab")


@pytest.fixture
def started(open_lab, monkeypatch, tmp_path):
    """Return what would be executed, and with which home."""
    monkeypatch.setattr(open_lab.sync_work, "main", lambda language: None)
    monkeypatch.setattr(open_lab.sys, "argv", ["open_lab.py", "--no-browser"])
    monkeypatch.setattr(open_lab.setup_env, "VENV", tmp_path / ".venv")
    for name in ("HOME", "MPLBACKEND", "JUPYTER_PREFER_ENV_PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    found = {}
    monkeypatch.setattr(open_lab.os, "execv", lambda path, command: found.update(command=command))

    def start(user, home=tmp_path):
        monkeypatch.setattr(open_lab.os, "geteuid", lambda: user)
        monkeypatch.setenv("HOME", str(home))
        open_lab.main()
        return found["command"], os.environ["HOME"]

    return start


def test_a_usual_reader_gets_no_flag_and_no_word(started, capsys):
    command, _ = started(user=1000)
    assert command[-1] == "--no-browser" and "--allow-root" not in command
    assert capsys.readouterr().out == ""


def test_root_gets_the_flag_and_is_told(started, capsys):
    command, _ = started(user=0)
    assert command[-2:] == ["--no-browser", "--allow-root"]
    out = capsys.readouterr().out
    assert "You are root" in out and "ssh -L" in out


def test_a_language_opens_its_own_copies(started, open_lab, monkeypatch):
    asked = []
    monkeypatch.setattr(open_lab.sync_work, "main", asked.append)
    monkeypatch.setattr(open_lab.sys, "argv", ["open_lab.py", "--language=zh", "--no-browser"])
    command, _ = started(user=1000)
    assert asked == ["zh"] and "--language=zh" not in command and command[-1] == "--no-browser"
    (page,) = (word for word in command if "default_url" in word)
    assert page.startswith("--LabApp.default_url=/lab/tree/work/zh")
    monkeypatch.setattr(open_lab.sys, "argv", ["open_lab.py", "--language="])
    command, _ = started(user=1000)
    assert asked[1:] == ["en"] and "/lab/tree/work" in " ".join(command)


def test_who_passes_the_flag_knows(started, open_lab, monkeypatch, capsys):
    monkeypatch.setattr(open_lab.sys, "argv", ["open_lab.py", "--allow-root"])
    command, _ = started(user=0)
    assert command.count("--allow-root") == 1 and capsys.readouterr().out == ""


def test_a_home_that_cannot_be_written_is_replaced_and_named(started, open_lab, tmp_path, capsys):
    _, home = started(user=1000, home=tmp_path / "absent")
    assert home == str(open_lab.setup_env.VENV / "home") and os.path.isdir(home)
    assert f"{tmp_path / 'absent'} cannot be written" in capsys.readouterr().out
