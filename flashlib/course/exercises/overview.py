"""What a reader has solved, chapter by chapter, and what is left."""

import importlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from flashlib.course.exercises import progress_file
from flashlib.course.exercises.core import REGISTRY, Exercise
from flashlib.course.notebook import show
from flashlib.course.notebook.chapters import CHAPTERS


@dataclass(frozen=True)
class Progress:
    """What `progress()` found: when each exercise was solved, which are left, and the file."""

    solved: dict[str, str]
    left: tuple[str, ...]
    file: Path | None

    def _ipython_display_(self):
        """Show nothing as a cell's value: `progress()` has printed the table already."""


def of_chapter(number: str) -> list[Exercise]:
    """Return the exercises of one chapter in order; none for a chapter without a folder."""
    chapter = f"flashlib.course.ch{number}"
    if importlib.util.find_spec(chapter) is None:
        return []
    importlib.import_module(f"{chapter}.exercises")
    return [REGISTRY[name] for name in sorted(REGISTRY) if name.split(".")[0] == number]


def progress() -> Progress:
    """Print which exercises of which chapter are solved (✓) and how much work the others are (★)."""
    folder = progress_file.find(below=True)
    solved, remark = {}, progress_file.ELSEWHERE
    if folder is not None:
        solved, remark = _read(folder)
    rows, left = [], []
    for chapter in CHAPTERS:
        if not chapter.ready:
            continue
        try:
            exercises = of_chapter(chapter.number)
        except ImportError as error:
            print(f"Chapter {chapter.number} is left out: its exercises need {error.name}.")
            continue
        todo = [e for e in exercises if e.name not in solved]
        left += todo
        rows.append({"chapter": f"{chapter.number} {chapter.title}",
                     "solved": f"{len(exercises) - len(todo)} of {len(exercises)}",
                     "minutes left": sum(e.minutes for e in todo),
                     "exercises": "   ".join(f"{e.name} {e.stars if e in todo else '✓'}"
                                             for e in exercises)})
    show.table(rows)
    total = sum(row["minutes left"] for row in rows)
    if left:
        print(f"\n{len(left)} to solve, about {total} minutes. Next: {left[0].name},"
              f" {left[0].title} ({left[0].effort}).")
    else:
        print("\nAll solved.")
    if remark:
        print(remark)
    return Progress(solved, tuple(e.name for e in left), folder and folder / progress_file.FILE)


def _read(folder):
    try:
        solved, remark = progress_file.read(folder)
    except OSError as error:
        return {}, f"work/{progress_file.FILE} cannot be read ({error.strerror})."
    if not os.access(folder, os.W_OK):
        remark = "Nothing new is kept: work/ cannot be written."
    return solved, remark
