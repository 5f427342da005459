"""The system's own Chromium: nothing is downloaded."""

import shutil

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
    f"The browser tests need Chromium and found none of {', '.join(NAMES)} on PATH: install it with"
    " `apt install chromium` (or install Google Chrome), then run `make test-browser` again."
)


def find():
    """Return the path of the browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)
