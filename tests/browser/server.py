"""A JupyterLab of the tests' own: it reads no settings of the reader's and leaves nothing behind."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from scripts import setup_env

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 60


class Server(NamedTuple):
    """Where a JupyterLab answers, the folder that it serves, and the file of its messages."""

    url: str
    token: str
    folder: Path
    log: Path

    def request(self, path, method="GET"):
        """Ask the server's own interface, and return its answer."""
        request = urllib.request.Request(
            f"{self.url}{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            body = answer.read()
        return json.loads(body) if body else None


@contextlib.contextmanager
def jupyterlab(folder):
    """Serve folder/course from a fresh JupyterLab until the with block ends."""
    course = folder / "course"
    (course / "work").mkdir(parents=True)
    (course / "assets").symlink_to(ROOT / "assets", target_is_directory=True)
    places = {
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTER_RUNTIME_DIR": folder / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
        "IPYTHONDIR": folder / "ipython",
    }
    for place in places.values():
        place.mkdir()
    # What set-up writes into .venv, from its own table: a reader's JupyterLab behaves like this one.
    settings = folder / "app_settings"
    settings.mkdir()
    (settings / "overrides.json").write_text(json.dumps(setup_env.LAB_SETTINGS))
    token, log = secrets.token_hex(16), folder / "jupyterlab.log"
    env = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "JUPYTER_CONFIG_PATH")}
    env.update({name: str(place) for name, place in places.items()})
    # The kernels come from this environment, and import the checkout under test.
    env.update(JUPYTER_PREFER_ENV_PATH="1", JUPYTER_TOKEN=token, JUPYTERLAB_LOG=str(log))
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        f"--port={_free_port()}",
        f"--ServerApp.root_dir={course}",
        f"--LabApp.app_settings_dir={settings}",
        "--LabApp.expose_app_in_browser=True",
        *setup_env.LAB_OPTIONS,
    ]
    with log.open("wb") as messages:
        process = subprocess.Popen(
            command, cwd=course, env=env, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages
        )
    try:
        url = _wait_for(process, places["JUPYTER_RUNTIME_DIR"], log)
        yield Server(url, token, course, log)
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(process, runtime, log):
    """Return the address that the server took: another one than asked for, where that was gone."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        for file in runtime.glob(f"jpserver-{process.pid}.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                url = json.loads(file.read_text())["url"]
                with urllib.request.urlopen(f"{url}api", timeout=5):
                    return url
        time.sleep(0.1)
    raise RuntimeError(
        f"JupyterLab did not start within {START_S} s; its last words:\n{log.read_text()[-2000:]}"
    )
