"""The README's table, links and pictures agree with the tree."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flashlib as fl
from flashlib.course.notebook.chapters import CHAPTERS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", README)     # (language, text)
READY = [chapter for chapter in CHAPTERS if chapter.ready]


@pytest.mark.parametrize("chapter", READY, ids=[c.number for c in READY])
def test_row_of_the_table(chapter):
    solve = sum(e.minutes for e in fl.exercises.overview.of_chapter(chapter.number))
    row = (f"| [{chapter.number} {chapter.title}]({chapter.file}) | {chapter.question} |"
           f" {chapter.minutes} | {solve} | ")
    assert row in README
    assert chapter.shows in README


def test_hours_are_those_of_the_chapters():
    read = sum(chapter.minutes for chapter in READY)
    solve = sum(e.minutes for c in READY for e in fl.exercises.overview.of_chapter(c.number))
    assert len(READY) == 19 and "The nineteen\nchapters are about" in README
    assert f"{round(read / 60)} hours of reading and {round(solve / 60)} of exercises" in README


def test_only_ready_chapters_are_linked():
    linked = set(re.findall(r"\(notebooks/(\w+)\.ipynb\)", README))
    assert linked == {f"{c.number}_{c.slug}" for c in READY}


def test_every_notebook_is_in_the_table_of_chapters():
    files = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert files == {chapter.file for chapter in READY}


@pytest.mark.parametrize("code", [block for language, block in BLOCKS if language == "python"],
                         ids=lambda code: re.search(r"integrations\.\w+|flash_[a-z0-9]+", code)[0])
def test_snippet_runs_as_it_stands(code):
    if "transformers" in code:
        pytest.importorskip("transformers")                 # no requirement of the course
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands_can_be_pasted():
    commands = [block for language, block in BLOCKS if not language]
    assert "make lab\n" in commands
    for block in commands:
        assert not re.search(r"<[a-z ]+>", block), "a shell reads <words> as a redirection"


def test_extras_that_are_named_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = re.findall(r"[`\"b.]\[([a-z,]+)\](?!\()", README)
    named = {name for group in groups for name in group.split(",")}
    assert named and named <= set(project["optional-dependencies"])


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_link_leads_somewhere(target):
    assert (ROOT / target).exists()
