import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
import time
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
        assert "TORCH=..." in default.stdout
        assert not (checkout / ".venv").exists()

    @pytest.mark.parametrize("asked, again", [("", False), ("cpu", False), ("cuda", True)])
    def test_another_build_of_torch_sets_up_again(self, checkout, asked, again):
        """With a .venv that looks finished, whose Python is this one."""
        (checkout / ".venv/bin").mkdir(parents=True)
        (checkout / ".venv/bin/python").symlink_to(sys.executable)
        (checkout / ".venv/.ready").write_text(f"{checkout}\ncpu")
        done = make(checkout, "setup", f"TORCH={asked}", f"PYTHON={fake_python(checkout, 'exit 1')}")
        assert ("The course needs Python" in done.stderr) == again

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
        monkeypatch.setattr(setup_env, "BUSY", tmp_path / ".venv.lock")
        monkeypatch.setattr(setup_env, "has_nvidia_gpu", lambda: False)
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.delenv("TORCH", raising=False)

    def test_all_steps_leave_a_stamp(self, monkeypatch, capsys):
        monkeypatch.setattr(setup_env, "STEPS", [("think", lambda: "done")])
        setup_env.main()
        assert setup_env.STAMP.read_text() == f"{setup_env.ROOT}\ncpu"
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

    @pytest.mark.parametrize("asked, gpu, system, build", [
        ("", False, "linux", "cpu"), ("", True, "linux", "cuda"), ("", False, "darwin", "cuda"),
        ("cuda", False, "linux", "cuda"), ("cpu", True, "linux", "cpu"),
    ])
    def test_the_build_of_torch_fits_the_machine_unless_one_is_named(
        self, monkeypatch, asked, gpu, system, build
    ):
        monkeypatch.setenv("TORCH", asked)
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(setup_env, "has_nvidia_gpu", lambda: gpu)
        assert setup_env.wanted_torch() == build

    def test_a_build_that_does_not_exist_is_refused_by_name(self, monkeypatch):
        monkeypatch.setenv("TORCH", "gpu")
        with pytest.raises(setup_env.SetupError, match="TORCH: expected cpu, cuda or nothing, got"):
            setup_env.main()

    def test_torch_cuda_takes_the_place_of_the_cpu_build(self, monkeypatch):
        monkeypatch.setenv("TORCH", "cuda")
        commands = self.record(monkeypatch)
        monkeypatch.setattr(setup_env, "installed_torch", lambda: setup_env.pinned_torch() + "+cpu")
        setup_env.install_torch()
        assert [command[3] for command in commands] == ["uninstall", "install"]

    def test_a_silent_step_shows_that_it_is_at_work(self, monkeypatch, capsys):
        monkeypatch.setattr(setup_env, "TICK_S", 0.01)
        monkeypatch.setattr(setup_env, "size_gb", lambda: 1.25)
        monkeypatch.setattr(setup_env, "STEPS", [("think", lambda: time.sleep(0.2))])
        setup_env.main()
        assert "0 s; .venv holds 1.2 GB" in capsys.readouterr().out

    def test_two_set_ups_at_once_wait_for_each_other(self, monkeypatch, capsys):
        monkeypatch.setattr(setup_env, "STEPS", [("wreck", lambda: pytest.fail("sets up at once"))])
        first = setup_env.BUSY.open("w")
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(target=setup_env.main)
        second.start()
        second.join(0.3)
        assert second.is_alive() and "waiting for it" in capsys.readouterr().out
        setup_env.STAMP.write_text("by the first")
        first.close()
        second.join(10)
        assert not second.is_alive() and setup_env.STAMP.read_text() == "by the first"
        assert "serves for this one" in capsys.readouterr().out

    def test_after_a_set_up_that_failed_the_one_that_waited_does_it(self, monkeypatch):
        monkeypatch.setattr(setup_env, "STEPS", [("think", lambda: "done")])
        first = setup_env.BUSY.open("w")
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(target=setup_env.main)
        second.start()
        second.join(0.3)
        first.close()
        second.join(10)
        assert setup_env.STAMP.exists()

    @pytest.mark.parametrize("where", ["absent", "a file"])
    def test_a_home_that_cannot_be_written_is_replaced(self, monkeypatch, tmp_path, where):
        (tmp_path / "a file").write_text("")
        monkeypatch.setenv("HOME", str(tmp_path / where))
        assert setup_env.home() == setup_env.VENV / "home"
        monkeypatch.setenv("HOME", str(tmp_path))
        assert setup_env.home() == tmp_path

    def test_plain_torch_comes_through_pip(self, monkeypatch):
        monkeypatch.setenv("TORCH", "cuda")
        commands = self.record(monkeypatch)
        setup_env.install_torch()
        assert [command[1:4] for command in commands] == [["-m", "pip", "install"]]
        assert f"torch=={setup_env.pinned_torch()}" in commands[0]

    def test_cpu_torch_comes_through_uv_where_pip_knows_none(self, monkeypatch):
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
    assert names("tests/browser/requirements.txt") == {"playwright"} <= names("requirements.lock")
    door = names("tests/integrations/requirements.txt")
    assert door == {"transformers"} <= names("requirements.lock")
    assert not {"playwright", "transformers"} & names("requirements.txt"), "readers need neither"
    for file in ("requirements.txt", "requirements.lock"):
        assert "://" not in (ROOT / file).read_text(encoding="utf-8")
