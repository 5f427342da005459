"""What holds for every test: no window, no figure left open, and property tests without a clock."""

import os
import sys

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")

# A slow machine is no counterexample, and CI searches the same examples every time.
settings.register_profile("course", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("course"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "course")


@pytest.fixture(autouse=True)
def close_figures():
    """Close what a test drew, so that no test meets another's figures."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
