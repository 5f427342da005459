"""Create .venv, install the pinned requirements and flashlib itself, and leave a stamp.

The Makefile runs it (through setup.sh) with any Python from 3.11 on; it needs nothing but the
standard library. The environment variable TORCH=cpu asks for PyTorch's CPU build.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".ready"
REQUIREMENTS = ROOT / "requirements.txt"
LOCK = ROOT / "requirements.lock"

# What the reader has set for other projects may not steer an installation into .venv.
ENV = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET")}
ENV.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_USER="0")

# JupyterLab asks nobody outside for news or updates, and saves what a lab shows: without that, a
# notebook that is opened the next day has an error in its place.
LAB_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "checkForUpdates": False,
        "fetchNews": "false",
    },
    "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
}


class SetupError(Exception):
    """A step failed; the message is the sentence that the reader sees."""


def run(*command, quiet=False):
    """Run a command in the course's folder; True if it succeeded."""
    output = subprocess.DEVNULL if quiet else None
    command = [str(part) for part in command]
    return subprocess.run(command, cwd=ROOT, env=ENV, stdout=output, stderr=output).returncode == 0


def ask_venv(code):
    """What a line of Python prints inside .venv, or "" where it fails."""
    try:
        done = subprocess.run([PYTHON, "-c", code], cwd=ROOT, env=ENV, capture_output=True)
    except OSError:
        return ""
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def pip_install(*arguments, quiet=False):
    return run(PYTHON, "-m", "pip", "install", *arguments, quiet=quiet)


def uv_install(uv, *arguments):
    return run(uv, "pip", "install", "--python", PYTHON, *arguments)


def pinned_torch():
    """The version that requirements.txt pins."""
    return re.search(r"^torch==(\S+)", REQUIREMENTS.read_text(encoding="utf-8"), re.M)[1]


def installed_torch():
    return ask_venv("from importlib.metadata import version; print(version('torch'))")


def create_venv():
    if ask_venv("import pip, sys; print((3, 11) <= sys.version_info[:2] <= (3, 14))") == "True":
        return "kept"
    try:
        import ensurepip  # noqa: F401
        import venv
    except ImportError:
        uv = shutil.which("uv")
        if uv and run(uv, "venv", "--clear", "--seed", "--python", sys.executable, VENV):
            return "made by uv"
        version = "{}.{}".format(*sys.version_info)
        raise SetupError(
            f"Python {version} has no venv here: install it with `apt install python3-venv` "
            f"(python{version}-venv for a Python that is not the system's), then try again."
        ) from None
    try:
        venv.create(VENV, clear=True, with_pip=True, symlinks=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f".venv could not be created: {error}") from None
    return "Python {}.{}.{}".format(*sys.version_info)


def install_torch():
    version = pinned_torch()
    present = installed_torch()
    if present.split("+")[0] == version:
        return f"kept {present}"
    if os.environ.get("TORCH") == "cpu" and sys.platform == "linux":
        install_cpu_torch(version)
    elif not pip_install(f"torch=={version}", "-c", LOCK):
        raise SetupError("torch could not be installed; pip's own words stand above.")
    return installed_torch()


def install_cpu_torch(version):
    """Take the CPU build where pip knows one, or else through uv, which knows PyTorch's index."""
    if pip_install(f"torch=={version}+cpu", "-c", LOCK, quiet=True):
        return
    uv = shutil.which("uv")
    if not uv and pip_install("-q", "uv"):
        uv = VENV / "bin" / "uv"
    if not (uv and uv_install(uv, f"torch=={version}", "--torch-backend", "cpu", "-c", LOCK)):
        raise SetupError(
            "PyTorch's CPU build could not be fetched; check the network and try again, or take "
            "the usual build, which on Linux is several gigabytes: make lab"
        )


def install_requirements():
    uv = shutil.which("uv")
    if uv:
        if uv_install(uv, "-q", "-r", REQUIREMENTS, "-c", LOCK):
            return "with uv"
        print("      uv did not manage (it does not read pip's settings): going on with pip")
    if not pip_install("-q", "-r", REQUIREMENTS, "-c", LOCK):
        raise SetupError("the requirements could not be installed; pip's own words stand above.")
    return "with pip"


def install_flashlib():
    if not pip_install("-q", "--no-deps", "--no-build-isolation", "-e", "."):
        raise SetupError("flashlib could not be installed; pip's own words stand above.")
    settings = VENV / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(LAB_SETTINGS, indent=2), encoding="utf-8")
    return "editable"


STEPS = [
    ("create .venv", create_venv),
    ("install torch", install_torch),
    ("install the other requirements", install_requirements),
    ("install flashlib", install_flashlib),
]


def main():
    STAMP.unlink(missing_ok=True)
    print(f"Setting up the course in {ROOT}", flush=True)
    for number, (name, step) in enumerate(STEPS, start=1):
        print(f"[{number}/{len(STEPS)}] {name} ...", flush=True)
        start = time.perf_counter()
        result = step()
        print(f"      {result}, {time.perf_counter() - start:.0f} s", flush=True)
    STAMP.write_text(str(ROOT), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit(f"Set-up stopped: {error}")
    except KeyboardInterrupt:
        sys.exit("\nSet-up interrupted; the same command goes on where it stopped.")
