"""The slides' own builder; and for what looks at built slides, that they were built."""

import importlib.util
from pathlib import Path

import pytest

from tests.browser import chromium

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "_slides"


def pytest_collection_finish(session):
    chosen = any(item.get_closest_marker("slides") for item in session.items)
    if not chosen or session.config.option.collectonly:
        return
    if not (BUILT / "index.html").exists():
        raise pytest.UsageError("These tests look at _slides, which is not there: `make test-slides`.")
    if not chromium.find():
        raise pytest.UsageError(chromium.MISSING.replace("test-browser", "test-slides"))


@pytest.fixture(scope="session")
def build():
    spec = importlib.util.spec_from_file_location("slides_build", ROOT / "slides" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
