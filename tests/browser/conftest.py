"""One server and one browser for all browser tests; without Chromium they end in a sentence."""

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.browser.page import NotebookPage
from tests.browser.server import jupyterlab

PICTURES = Path(__file__).resolve().parent.parent.parent / "build" / "browser"


def pytest_collection_finish(session):
    chromium.needed(session, "browser")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with jupyterlab(tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium.find(), args=list(chromium.FLAGS)
        )
        yield running
        running.close()


@pytest.fixture(scope="session")
def open_notebook(server, browser):
    """Return a context that opens a copy of a notebook and runs it; its pictures are kept."""

    @contextlib.contextmanager
    def open_copy(path):
        shutil.copy(path, server.folder / "work" / path.name)
        pictures = PICTURES / path.stem
        shutil.rmtree(pictures, ignore_errors=True)
        pictures.mkdir(parents=True)
        page = NotebookPage(browser, server, path.name, pictures)
        try:
            page.run()
            yield page
        finally:
            page.close()

    return open_copy
