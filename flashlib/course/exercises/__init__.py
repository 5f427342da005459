"""What the exercises of all chapters share; a chapter's own are in its folder, as `exercises`.

`flashlib.exercises.progress()` shows which ones you have solved.
"""

from flashlib.course.exercises.core import REGISTRY, Verdict, exercise, hint, solution
from flashlib.course.exercises.overview import progress

__all__ = ["REGISTRY", "Verdict", "exercise", "hint", "progress", "solution"]
