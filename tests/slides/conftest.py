"""The slides' own builder; and for what looks at built slides, that they were built."""

import importlib.util
from pathlib import Path

import pytest

from tests.browser import chromium

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "_slides"


def pytest_collection_finish(session):
    chromium.needed(session, "slides", "_slides")


@pytest.fixture(scope="session")
def build():
    spec = importlib.util.spec_from_file_location("slides_build", ROOT / "slides" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
