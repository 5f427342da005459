"""The exercises: `from flashlib.exercises import ch04`, then `ch04.check_…`, `hint`, `solution`.

`flashlib.exercises.progress()` shows which ones you have solved.
"""

from flashlib.exercises.core import REGISTRY, Verdict, exercise, hint, solution
from flashlib.exercises.overview import progress

__all__ = ["REGISTRY", "Verdict", "exercise", "hint", "progress", "solution"]
