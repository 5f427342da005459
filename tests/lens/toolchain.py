"""What the tests of the lens share: whether it works here, and how many compilers run at a time."""

import os

import pytest

from flashlib.lens import compiler

REASON = compiler.why_not()
needs_triton = pytest.mark.skipif(REASON is not None, reason=REASON or "")

# Under pytest-xdist every test process has a compiler of its own; alone, two run.
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
