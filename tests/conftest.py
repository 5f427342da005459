"""What holds for every test: an order, no window, no figure left open, no clock."""

import os
import sys

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
# For nbformat jsonschema would build a grammar of addresses, two seconds long, that no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)

# A slow machine is no counterexample, and CI searches the same examples every time.
settings.register_profile("course", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("course"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "course")


def pytest_collection_modifyitems(items):
    """Put files with slow tests first, or one process would end on a long file and the other wait."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def close_figures():
    """Close what a test drew, so that no test meets another's figures."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
