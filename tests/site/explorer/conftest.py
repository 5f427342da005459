"""The explorers' sources, built once by node; without node a test is skipped in plain sight."""

import json
import shutil
import subprocess

import pytest

from tests.site.explorer.places import RUN, SOURCE


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return a folder with a fresh explorer.js and tested.mjs."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed: nothing could be built")
    if not (SOURCE / "node_modules" / "esbuild").is_dir():
        pytest.skip("esbuild is not installed: run `npm install` in site/explorer")
    folder = tmp_path_factory.mktemp("explorer")
    subprocess.run(["node", "build.mjs", str(folder)], cwd=SOURCE, check=True)
    return folder


@pytest.fixture(scope="session")
def node(built):
    """Return a function that calls the sources' functions, many at a time: [(name, *arguments)]."""

    def call(calls):
        lines = "".join(json.dumps(call) + "\n" for call in calls)
        done = subprocess.run(["node", str(RUN), str(built / "tested.mjs")], input=lines, text=True,
                              encoding="utf-8", capture_output=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return call
