"""The index of questions leads somewhere: every chapter is there, and has the heading that is named."""

import difflib
import functools
import re
from pathlib import Path
from urllib.parse import quote

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
INDEX = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"- (?P<question>.+?\?) \[(?P<chapter>\d\d[a-z]?) · (?P<heading>.+)\]"
                   r"\((?P<file>[^)#\s]+)#(?P<anchor>\S+)\)")
LINES = [line for line in INDEX.splitlines() if line.startswith("- ")]
ENTRIES = [found for line in LINES if (found := ENTRY.fullmatch(line))]


@functools.cache
def headings(file):
    cells = nbformat.read(NOTEBOOKS / file, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.findall(r"(?m)^#{2,3} (.+?) *$", text)


def test_every_line_is_a_question_and_a_link():
    assert [line for line in LINES if not ENTRY.fullmatch(line)] == []
    assert len(ENTRIES) >= 40


def test_no_question_stands_twice_and_every_chapter_answers_one():
    questions = [entry["question"] for entry in ENTRIES]
    assert len(set(questions)) == len(questions)
    assert {entry["file"] for entry in ENTRIES} == {path.name for path in NOTEBOOKS.glob("*.ipynb")}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["question"])
def test_the_chapter_has_the_heading(entry):
    assert entry["file"].startswith(entry["chapter"] + "_") and (NOTEBOOKS / entry["file"]).exists()
    there = headings(entry["file"])
    near = difflib.get_close_matches(entry["heading"], there, n=1, cutoff=0)
    assert entry["heading"] in there, f"{entry['file']} has no such heading; the nearest is {near}"
    assert entry["anchor"] == quote(entry["heading"].replace(" ", "-"), safe="-,:")
