"""The processes that all tests of this folder share."""

import pytest

from tests.parallel.pool import Pool


@pytest.fixture(scope="session")
def pool():
    """Four gloo ranks; a file of tests stays with one test process, and so do they."""
    made = Pool()
    yield made
    made.close()
