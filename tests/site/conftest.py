"""The built site, and one Chromium, for all tests of the site; `make test-site` builds it first."""

import functools
import http.server
import importlib
import sys
import threading
from pathlib import Path

import pytest

from tests.browser import chromium

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "_site"


def pytest_collection_finish(session):
    chromium.needed(session, "site", "_site")


@pytest.fixture(scope="session")
def part():
    """Return a module of the folder site/ by its name."""
    sys.path[:0] = [str(ROOT / "site"), str(ROOT / "i18n")]
    yield importlib.import_module
    for folder in ("site", "i18n"):
        sys.path.remove(str(ROOT / folder))


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium.find(), args=list(chromium.FLAGS))
        yield running
        running.close()


@pytest.fixture
def opened(browser):
    """Return a function that opens a page of the site from its folder and notes what goes wrong."""
    contexts = []

    def open_page(name, *, width=1440, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.wrong, page.files = [], []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda said: page.wrong.append(said.text) if said.type == "error" else None)
        page.on("requestfailed", lambda asked: page.wrong.append(asked.url))
        page.on("request", lambda asked: page.files.append(asked.url))
        page.goto((BUILT / name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def served():
    """The site from a web server, as a second way to read it."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(quiet, directory=str(BUILT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
