"""The lesson plans and syllabi: one page each, complete, and their minutes add up."""

import itertools
import json
import re
from pathlib import Path

import pytest

from flashlib.course.exercises.overview import of_chapter
from flashlib.course.notebook.chapters import CHAPTERS

ROOT = Path(__file__).resolve().parent.parent.parent
TEACHING = ROOT / "assets" / "teaching"
READY = [chapter for chapter in CHAPTERS if chapter.ready]
every_chapter = pytest.mark.parametrize("chapter", READY, ids=[c.number for c in READY])
PARTS = ("**On the board before they come in.**", "**Aim.**", "## Board sketch",
         "## Misconception to probe", "**Ask:**", "**Show:**", "## Questions to ask", "## Exercises")


def text(name):
    return (TEACHING / name).read_text(encoding="utf-8")


def plan(chapter):
    return text(f"{chapter.number}_{chapter.slug}.md")


@every_chapter
def test_a_plan_is_one_page_with_all_its_parts(chapter):
    page = plan(chapter)
    assert page.startswith(f"# Lesson {chapter.number} · {chapter.title}\n")
    assert len(page.splitlines()) <= 85
    assert [page.index(part) for part in PARTS] == sorted(page.index(part) for part in PARTS)


@every_chapter
def test_the_minutes_add_up(chapter):
    page = plan(chapter)
    total = int(re.search(r"## Time \((\d+) min\)", page)[1])
    assert sum(map(int, re.findall(r"(?m)^\| (\d+) \|", page))) == total


@every_chapter
def test_every_question_has_a_short_answer(chapter):
    section = plan(chapter).split("## Questions to ask")[1].split("## Exercises")[0]
    questions = re.split(r"(?m)^\d\. ", section)[1:]
    assert len(questions) >= 4
    for question in questions:
        asked, _, answer = question.partition("?* ") if "?* " in question else (
            question.partition(".* "))
        assert asked.startswith("*") and 1 <= len(answer.split()) <= 60, question


@every_chapter
def test_every_exercise_has_a_place_and_every_name_exists(chapter):
    section = plan(chapter).split("## Exercises")[1]
    names = {exercise.name for exercise in of_chapter(chapter.number)}
    assert names <= set(re.findall(r"\b\d\d[a-z]?\.\d\b", section))
    known = {e.name for c in READY for e in of_chapter(c.number)}
    quoted = set(re.findall(r"(?<![\d.,])0\d\.\d(?![\d%])", plan(chapter)))
    assert quoted <= known


@every_chapter
def test_numbers_of_the_board_are_in_the_notebook(chapter):
    """What the question on the board says with digits, the chapter says or shows as well."""
    cells = json.loads((ROOT / chapter.file).read_text(encoding="utf-8"))["cells"]
    shown = "".join("".join(c["source"]) + json.dumps(c.get("outputs", ""), ensure_ascii=False)
                    for c in cells)
    question = plan(chapter).split("**On the board before they come in.**")[1].split("**Aim.**")[0]
    for number in re.findall(r"\d[\d,]*\.?\d*(?<![.,])", question):
        assert number in shown or number.replace(",", "") in shown, number


def test_the_day_has_no_gap_and_visits_every_chapter():
    visited = []
    for day in re.split("## A (?:second|third) day", text("syllabus_day.md")):
        rows = re.findall(r"(?m)^\| (\d+):(\d\d) \| (\d+):(\d\d) \| (\S+) ", day)
        times = [(60 * int(a) + int(b), 60 * int(c) + int(d)) for a, b, c, d, _ in rows]
        assert times and all(start < end for start, end in times)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(times))
        visited.append([row[4] for row in rows if row[4] != "–"])
    assert visited[0] == [f"{n:02}" for n in range(9)]
    assert sorted({*itertools.chain(*visited)}) == [chapter.number for chapter in READY]


def test_the_term_visits_every_chapter_and_every_exercise():
    page = text("syllabus_term.md")
    rows = re.findall(r"(?m)^\| (\d+) \| (\d\d[a-z]?) \| .* \| (.+) \|$", page)
    # Week 0 is the clinic before the term; 01 to 16 need 21 · 90 minutes, four of them two sessions.
    assert [int(week) for week, _, _ in rows] == list(range(22))
    assert sorted({chapter for _, chapter, _ in rows}) == [c.number for c in READY]
    named = set()
    for _, _, home in rows:
        for first, last in re.findall(r"(\d\d[a-z]?\.\d)(?:–(\d\d[a-z]?\.\d))?", home):
            named |= {f"{first[:-1]}{n}" for n in range(int(first[-1]), int((last or first)[-1]) + 1)}
    assert {e.name for chapter in READY for e in of_chapter(chapter.number)} <= named
    weeks = {chapter: sum(row[1] == chapter for row in rows) for _, chapter, _ in rows}
    for chapter in READY:
        total = int(re.search(r"## Time \((\d+) min\)", plan(chapter))[1])
        assert total <= 90 * weeks[chapter.number]


@pytest.mark.parametrize("path", sorted(TEACHING.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
