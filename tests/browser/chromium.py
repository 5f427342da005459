"""The system's own Chromium: nothing is downloaded."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = (
    f"These tests need Chromium and found none of {', '.join(NAMES)} on PATH: install it with"
    " `apt install chromium` (or install Google Chrome), then run `make test-{mark}` again."
)


def needed(session, mark, built=""):
    """Stop pytest with a sentence if chosen tests of that mark lack Chromium, or the folder `built`."""
    chosen = any(item.get_closest_marker(mark) for item in session.items)
    if not chosen or session.config.option.collectonly:
        return
    if built and not (ROOT / built / "index.html").exists():
        raise pytest.UsageError(f"These tests look at {built}, which is not there: `make test-{mark}`.")
    if not find():
        raise pytest.UsageError(MISSING.format(mark=mark))


def find():
    """Return the path of the browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)
