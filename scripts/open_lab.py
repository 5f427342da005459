"""Bring work/ up to date and open JupyterLab on it; arguments go to JupyterLab, but --language=zh.

The server's root is the course's folder, so that ../assets resolves in work/ as in notebooks/.
Address and token are Jupyter's defaults: localhost only, a new token each time.
"""

import os
import sys
from pathlib import Path

import setup_env
import sync_work
import zmq

FIRST = "00_start_here.ipynb"


def as_root(arguments):
    """The arguments, with the flag that JupyterLab wants of root, who is at home in containers."""
    if os.geteuid() or "--allow-root" in arguments:
        return arguments
    print("You are root, as in most containers: JupyterLab starts with --allow-root. It answers on this"
          " machine alone; from another one, reach it through `ssh -L 8888:localhost:8888 …`.")
    return [*arguments, "--allow-root"]


def chosen(arguments):
    """Return the language that the arguments name, and the others, which are JupyterLab's."""
    named = [argument for argument in arguments if argument.startswith("--language=")]
    others = [argument for argument in arguments if argument not in named]
    return (named[-1].partition("=")[2] if named else "") or "en", others


def main():
    language, arguments = chosen(sys.argv[1:])
    sync_work.main(language)
    work = "work" if language == "en" else f"work/{language}"
    page = f"{work}/{FIRST}" if (sync_work.ROOT / work / FIRST).exists() else work
    # The kernels come from .venv, whatever other kernels the reader has installed.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    # A backend set for other projects would leave the notebooks without figures.
    os.environ.pop("MPLBACKEND", None)
    if (place := setup_env.home()) != Path.home():
        print(f"{Path.home()} cannot be written: JupyterLab keeps its files in {place}.")
        os.environ["HOME"] = str(place)
        place.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={sync_work.ROOT}",
        f"--LabApp.default_url=/lab/tree/{page}",
        *(setup_env.LAB_OPTIONS if zmq.has("curve") else []),
        *as_root(arguments),
    ]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
