"""Bring work/ up to date and open JupyterLab on it; arguments go to JupyterLab.

The server's root is the course's folder, so that ../assets resolves in work/ as in notebooks/.
Address and token are Jupyter's defaults: localhost only, a new token each time.
"""

import os
import sys

import sync_work

FIRST = "work/00_start_here.ipynb"


def main():
    sync_work.main()
    page = FIRST if (sync_work.ROOT / FIRST).exists() else "work"
    # The kernels come from .venv, whatever other kernels the reader has installed.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    # A backend set for other projects would leave the notebooks without figures.
    os.environ.pop("MPLBACKEND", None)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={sync_work.ROOT}",
        f"--LabApp.default_url=/lab/tree/{page}",
        *sys.argv[1:],
    ]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
