"""The explorers' sources, built once by node, and their demo in a browser.

Without node, or without Chromium, a test is skipped in plain sight.
"""

import json
import shutil
import subprocess

import pytest

from tests.browser import chromium
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


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not chromium.find():
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium.find(), args=list(chromium.FLAGS))
        yield running
        running.close()


@pytest.fixture
def open_page(browser):
    """Return a function that opens the demo; what the page complains of or asks for fails the test."""
    contexts, said = [], []

    def opened(width=900, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:"))
                else said.append(request.url))
        page.goto((SOURCE / "demo.html").as_uri())
        page.wait_for_function("document.querySelectorAll('[data-explorer] > .fx').length === 3")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
