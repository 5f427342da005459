"""Create .venv, install the pinned requirements and flashlib itself, and leave a stamp.

The Makefile runs it (through setup.sh) with any Python from 3.11 on; it needs nothing but the
standard library. The environment variable TORCH=cpu asks for PyTorch's CPU build, TORCH=cuda for the
one with CUDA; without it, Linux takes the CPU build where no NVIDIA GPU is found.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".ready"
REQUIREMENTS = ROOT / "requirements.txt"
LOCK = ROOT / "requirements.lock"
# Held while a set-up runs; it stands beside .venv, which the set-up may clear.
BUSY = ROOT / ".venv.lock"
TICK_S = 15
ESTIMATE = "It takes 3 to 10 minutes and 2 GB in .venv, with CUDA some gigabytes more."

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
# Kernels talk to JupyterLab encrypted; they would warn at each start that they do not.
LAB_OPTIONS = ["--KernelManager.transport_encryption=auto"]


class SetupError(Exception):
    """A step failed; the message is the sentence that the reader sees."""


def home():
    """The reader's home, or a folder in .venv where that cannot be written: tools keep caches there."""
    with contextlib.suppress(OSError, RuntimeError), tempfile.TemporaryFile(dir=Path.home()):
        return Path.home()
    return VENV / "home"


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


def wanted_torch():
    """The build to take, "cpu" or "cuda": what TORCH says, or what this machine can use."""
    asked = os.environ.get("TORCH", "")
    if asked not in ("", "cpu", "cuda"):
        raise SetupError(f"TORCH: expected cpu, cuda or nothing, got {asked!r}.")
    return asked or ("cuda" if sys.platform != "linux" or has_nvidia_gpu() else "cpu")


def has_nvidia_gpu():
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


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
    present, build = installed_torch(), wanted_torch()
    refused = os.environ.get("TORCH") == "cuda" and present.endswith("+cpu")
    if present.split("+")[0] == version and not refused:
        return f"kept {present}"
    if build == "cpu" and sys.platform == "linux":
        print("      PyTorch's CPU build, about 200 MB (TORCH=cuda takes the other)", flush=True)
        install_cpu_torch(version)
        return installed_torch()
    if sys.platform == "linux":
        print("      PyTorch with CUDA, several gigabytes (TORCH=cpu spares them)", flush=True)
    if refused:  # to pip, the CPU build is the version that is asked for
        run(PYTHON, "-m", "pip", "uninstall", "-q", "-y", "torch")
    if not pip_install(f"torch=={version}", "-c", LOCK):
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
            "the usual build, which on Linux is several gigabytes: make lab TORCH=cuda"
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


@contextlib.contextmanager
def one_at_a_time():
    """Wait for another set-up of this folder; yield whether there was one."""
    with BUSY.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waited = False
        except BlockingIOError:
            print("Another set-up is at work in this folder; waiting for it to end.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
            waited = True
        yield waited


@contextlib.contextmanager
def ticking():
    """Say every few seconds that a silent step is still at work, and how far .venv has grown."""
    done, start = threading.Event(), time.perf_counter()

    def tick():
        while not done.wait(TICK_S):
            seconds = time.perf_counter() - start
            print(f"      {seconds:.0f} s; .venv holds {size_gb():.1f} GB", flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield start
    finally:
        done.set()
        thread.join()


def size_gb():
    """What .venv takes on the disk; files may come and go meanwhile."""
    total = 0
    for folder, _, names in os.walk(VENV):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total / 1e9


def main():
    build = wanted_torch()
    with one_at_a_time() as waited:
        if waited and STAMP.exists():
            print("The other set-up is done, and serves for this one.")
            return
        set_up(build)


def set_up(build):
    STAMP.unlink(missing_ok=True)
    place = home()
    if place != Path.home():
        print(f"{Path.home()} cannot be written: caches go to {place}.", flush=True)
        ENV["HOME"] = str(place)
    print(f"Setting up the course in {ROOT}\n{ESTIMATE}", flush=True)
    for number, (name, step) in enumerate(STEPS, start=1):
        print(f"[{number}/{len(STEPS)}] {name} ...", flush=True)
        with ticking() as start:
            result = step()
        print(f"      {result}, {time.perf_counter() - start:.0f} s", flush=True)
    # The Makefile compares both lines: another folder, or another build asked for, sets up again.
    STAMP.write_text(f"{ROOT}\n{build}", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit(f"Set-up stopped: {error}")
    except KeyboardInterrupt:
        sys.exit("\nSet-up interrupted; the same command goes on where it stopped.")
