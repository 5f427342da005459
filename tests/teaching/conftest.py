"""Fixtures of the grading tests: a copy of flashlib without solutions, and notebooks graded on it."""

import pytest

from scripts import grade
from tests.teaching.answers05 import CHAPTER, notebook


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory):
    return grade.make_sandbox(tmp_path_factory.mktemp("sandbox"))


@pytest.fixture
def graded(tmp_path, sandbox):
    """Grade a notebook of chapter 05 with these cells; timeout=... and hidden=... as in grade()."""
    def run(*sources, exercises=("05.1", "05.2"), chapter=CHAPTER, timeout=30, hidden=()):
        path = tmp_path / f"{chapter}.ipynb"
        notebook(path, *sources)
        return grade.grade(grade.Submission("ada", chapter.partition("_")[0], path), exercises, sandbox,
                           timeout=timeout, hidden=hidden)

    return run
