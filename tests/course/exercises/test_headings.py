"""What a notebook's heading says of an exercise is what the registry says."""

import json
import re
from pathlib import Path

import pytest

from flashlib.course.exercises.overview import of_chapter
from flashlib.course.notebook.chapters import CHAPTERS

ROOT = Path(__file__).resolve().parents[3]
READY = [chapter for chapter in CHAPTERS if chapter.ready]
HEADING = re.compile(r"(?m)^### Exercise (\d\d[a-z]?\.\d+) · (.+) \(([^()]+)\)$")


@pytest.mark.parametrize("chapter", READY, ids=[c.number for c in READY])
def test_headings_agree_with_the_registry(chapter):
    cells = json.loads((ROOT / chapter.file).read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    headings = HEADING.findall(text)
    assert len(headings) == text.count("### Exercise ")
    assert headings == [(e.name, e.title, e.effort) for e in of_chapter(chapter.number)]


@pytest.mark.parametrize("chapter", READY, ids=[c.number for c in READY])
def test_every_exercise_has_stars_and_minutes(chapter):
    lacking = [e.name for e in of_chapter(chapter.number)
               if e.difficulty not in (1, 2, 3) or not isinstance(e.minutes, int) or e.minutes < 1]
    assert not lacking, f"give these a difficulty= and minutes=: {', '.join(lacking)}"


@pytest.mark.parametrize("chapter", READY, ids=[c.number for c in READY])
def test_the_first_exercise_is_easy(chapter):
    assert of_chapter(chapter.number)[0].effort.startswith("★ easy")
