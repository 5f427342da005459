"""The README's table, links and pictures agree with the tree."""

import re
from pathlib import Path

import pytest

from flashlib.course.notebook.chapters import CHAPTERS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
READY = [chapter for chapter in CHAPTERS if chapter.ready]


@pytest.mark.parametrize("chapter", READY, ids=[c.number for c in READY])
def test_row_of_the_table(chapter):
    row = (f"| [{chapter.number} {chapter.title}]({chapter.file}) | {chapter.question} |"
           f" {chapter.minutes} | ")
    assert row in README
    assert chapter.shows in README


def test_only_ready_chapters_are_linked():
    linked = set(re.findall(r"\(notebooks/(\w+)\.ipynb\)", README))
    assert linked == {f"{c.number}_{c.slug}" for c in READY}


def test_every_notebook_is_in_the_table_of_chapters():
    files = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert files == {chapter.file for chapter in READY}


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_link_leads_somewhere(target):
    assert (ROOT / target).exists()
