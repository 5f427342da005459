"""The exercises: `from flashlib.exercises import ch04`, then `ch04.check_…(answer)`, `hint`, `solution`."""

from flashlib.exercises.core import REGISTRY, Verdict, exercise, hint, solution

__all__ = ["REGISTRY", "Verdict", "exercise", "hint", "solution"]
