import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import setup_env

ROOT = Path(__file__).parent.parent.parent
TARGETS = ["lab", "test", "notebooks", "lint", "clean", "help", "bench-course"]

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


def make(folder, *arguments, **env):
    env = {k: v for k, v in {**os.environ, **env}.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def checkout(tmp_path):
    """A clone that nothing was set up in, at a path with a space."""
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in ("Makefile", "requirements.txt", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def fake_python(folder, script):
    path = folder / "fakepython"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@needs_make
class TestMake:
    def test_help_is_the_default_and_names_every_target(self, checkout):
        default, asked = make(checkout), make(checkout, "help")
        assert default.stdout == asked.stdout
        listed = re.findall(r"^  ([a-z-]+) {2,}\S", default.stdout, re.M)
        assert set(TARGETS) <= set(listed)
        assert "TORCH=cpu" in default.stdout
        assert not (checkout / ".venv").exists()

    def test_no_python_ends_in_one_sentence(self, checkout):
        old = fake_python(checkout, "exit 1")
        done = make(checkout, "lab", f"PYTHON={old}")
        assert done.returncode != 0
        assert "The course needs Python 3.11 to 3.14" in done.stderr

    def test_no_venv_ends_in_one_sentence(self, checkout, tmp_path):
        absent = tmp_path / "absent"
        absent.mkdir()
        (absent / "ensurepip.py").write_text("raise ImportError('as on a bare Debian')")
        python = fake_python(tmp_path, f'PYTHONPATH="{absent}" exec "{sys.executable}" "$@"')
        done = make(checkout, "test", f"PYTHON={python}", PATH="/usr/bin:/bin")
        assert done.returncode != 0
        assert "apt install python3-venv" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (checkout / ".venv" / ".ready").exists()

    def test_clean_keeps_the_readers_work(self, checkout):
        for name in ("work", ".venv", "flashlib/__pycache__"):
            (checkout / name).mkdir(parents=True)
        assert make(checkout, "clean").returncode == 0
        assert (checkout / "work").exists()
        assert not (checkout / ".venv").exists()
        assert not (checkout / "flashlib/__pycache__").exists()


class TestSetup:
    @pytest.fixture(autouse=True)
    def scratch(self, tmp_path, monkeypatch):
        monkeypatch.setattr(setup_env, "STAMP", tmp_path / ".ready")
        monkeypatch.delenv("TORCH", raising=False)

    def test_all_steps_leave_a_stamp(self, monkeypatch, capsys):
        monkeypatch.setattr(setup_env, "STEPS", [("think", lambda: "done")])
        setup_env.main()
        assert setup_env.STAMP.read_text() == str(setup_env.ROOT)
        assert "[1/1] think ...\n      done, 0 s" in capsys.readouterr().out

    @pytest.mark.parametrize("error", [setup_env.SetupError("no"), KeyboardInterrupt()])
    def test_a_step_that_stops_leaves_no_stamp(self, monkeypatch, error):
        def fail():
            raise error

        setup_env.STAMP.write_text("an older one")
        monkeypatch.setattr(setup_env, "STEPS", [("fail", fail)])
        with pytest.raises(type(error)):
            setup_env.main()
        assert not setup_env.STAMP.exists()

    @pytest.mark.parametrize("build", ["", "+cpu", "+cu130"])
    def test_a_fitting_torch_is_kept(self, monkeypatch, build):
        version = setup_env.pinned_torch() + build
        monkeypatch.setattr(setup_env, "installed_torch", lambda: version)
        monkeypatch.setattr(setup_env, "run", lambda *_, **__: pytest.fail("installs"))
        assert setup_env.install_torch() == f"kept {version}"

    def test_plain_torch_comes_through_pip(self, monkeypatch):
        commands = self.record(monkeypatch)
        setup_env.install_torch()
        assert [command[1:4] for command in commands] == [["-m", "pip", "install"]]
        assert f"torch=={setup_env.pinned_torch()}" in commands[0]

    def test_cpu_torch_comes_through_uv_where_pip_knows_none(self, monkeypatch):
        monkeypatch.setenv("TORCH", "cpu")
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(shutil, "which", lambda name: "/some/uv")
        commands = self.record(monkeypatch, fails=lambda command: "+cpu" in " ".join(command))
        setup_env.install_torch()
        assert commands[-1][0] == "/some/uv"
        assert commands[-1][-4:-2] == ["--torch-backend", "cpu"]

    def test_requirements_fall_back_to_pip_where_uv_fails(self, monkeypatch, capsys):
        monkeypatch.setattr(shutil, "which", lambda name: "/some/uv")
        self.record(monkeypatch, fails=lambda command: command[0] == "/some/uv")
        assert setup_env.install_requirements() == "with pip"
        assert "uv did not manage" in capsys.readouterr().out

    @staticmethod
    def record(monkeypatch, fails=lambda command: False):
        commands = []

        def run(*command, quiet=False):
            commands.append([str(part) for part in command])
            return not fails(commands[-1])

        monkeypatch.setattr(setup_env, "run", run)
        monkeypatch.setattr(setup_env, "installed_torch", lambda: "")
        return commands


def test_the_lock_fixes_every_requirement_and_names_no_host():
    def names(file):
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        found = [re.match(r"[A-Za-z][\w.-]*", line) for line in lines]
        return {name[0].lower().replace("_", "-") for name in found if name}

    assert names("requirements.txt") - names("requirements.lock") == {"torch", "triton"}
    for file in ("requirements.txt", "requirements.lock"):
        assert "://" not in (ROOT / file).read_text(encoding="utf-8")
