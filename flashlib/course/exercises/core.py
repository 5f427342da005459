"""What every exercise is made of: a check that names the likely mistake, hints, and a solution.

A chapter's `exercises` module registers its checks with `@exercise`; the reference solutions stand
beside it, in `solutions`, which a student build leaves out.
"""

import functools
import importlib
import inspect
import itertools
import os
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Rational
from pathlib import Path

import numpy as np

from flashlib.course.exercises import progress_file

REGISTRY: dict[str, "Exercise"] = {}
# What the verdict on the answer at hand adds, if it is right as far as its dtype goes.
_rounded: set[str] = set()

# Where code lies that a reader did not write: this package, the standard library, what is installed.
_NOT_THE_READERS = (*(str(folder) + os.sep for folder in (
    Path(__file__).parents[2], Path(__file__).resolve().parents[2],
    Path(np.__file__).parent.parent,
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))),
    "<frozen ", "<__array_function__")


class ExerciseFailed(AssertionError):
    """Raised by a check in strict mode; its text is the verdict."""


class Wrong(Exception):
    """Raised inside a check: this answer is wrong, and the text names the likely mistake."""


@dataclass(frozen=True)
class Verdict:
    """What a check says: true if the answer passed."""

    exercise: str
    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return f"{'✓' if self.passed else '✗'} exercise {self.exercise}: {self.message}"

    def _ipython_display_(self):
        """Show nothing as a cell's value: the check has printed the verdict already."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: `name` is chapter and number, as in "04.2"; `solution` a function's name.

    `difficulty` is 1, 2 or 3 stars, `minutes` what we expect it to take; title, stars and minutes
    are those of the notebook's heading.
    """

    name: str
    title: str
    check: Callable
    solution: str
    difficulty: int
    minutes: int
    hints: tuple[str, ...] = field(default=())

    @property
    def chapter(self) -> str:
        return self.name.split(".")[0]

    @property
    def stars(self) -> str:
        return "★" * self.difficulty

    @property
    def effort(self) -> str:
        """What stands behind the title in the notebook, as in "★★, about 10 min"."""
        return f"{self.stars}{' easy' * (self.difficulty == 1)}, about {self.minutes} min"


def exercise(name: str, title: str, *, difficulty: int, minutes: int, solution: str,
             hints: tuple[str, ...] = ()):
    """Turn a function that raises `Wrong` into a check that prints and returns a `Verdict`.

    A check that passes in the reader's `work/` also goes into the record that `progress()` shows.
    """

    def register(examine):
        @functools.wraps(examine)
        def check(answer, *, strict: bool = False) -> Verdict:
            verdict = _judge(name, examine, answer)
            _show(str(verdict))
            remark = progress_file.keep(name) if verdict else ""
            if remark:
                _show(remark)
            if strict and not verdict:
                raise ExerciseFailed(str(verdict))
            return verdict

        REGISTRY[name] = Exercise(name, title, check, solution, difficulty, minutes, tuple(hints))
        return check

    return register


def _show(text) -> None:
    """Print a text, also where the terminal cannot show all of it, as ✓ in Latin-1."""
    try:
        print(text)
    except UnicodeEncodeError as error:
        print(text.encode(error.encoding, "replace").decode(error.encoding))


def _judge(name, examine, answer) -> Verdict:
    if answer is None or answer is ...:
        return Verdict(name, False, "not answered yet: replace the ... by your answer")
    try:
        praise = (examine(answer) or "right.") + "".join(_rounded)
    except NotImplementedError:
        return Verdict(name, False, "not answered yet: write the function, then run this cell again")
    except Wrong as wrong:
        return Verdict(name, False, str(wrong))
    except Exception as error:
        return Verdict(name, False, f"your code raised {type(error).__name__}: {error}{_where(error)}")
    finally:
        _rounded.clear()
    return Verdict(name, True, praise)


def _where(error) -> str:
    """Quote the last line of the answer's own code on the way to an error; "" if there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if frame.line and not frame.filename.startswith(_NOT_THE_READERS)]
    return f" (line {own[-1].lineno}: {own[-1].line})" if own else ""


def given(got):
    """Return what a reader's function returned; a None, alone or among others, is no answer."""
    if got is None or (isinstance(got, tuple | list) and any(part is None for part in got)):
        raise Wrong("your function returned None: is a `return` missing?")
    return got


def parts(got, names: str, where: str = "", *, right: tuple = ()) -> tuple:
    """Return the parts of an answer, a tuple, a list or a row of numbers; `names` says which ones.

    Args:
        names: as in "(m, l, o)".
        right: the right parts; an answer that holds them in another order is told so.
    """
    row = isinstance(given(got), tuple | list) or (isinstance(got, np.ndarray) and got.ndim == 1)
    if not row or len(got) != names.count(",") + 1:
        many = f"a {type(got).__name__} of {len(got)}" if row else type(got).__name__
        raise Wrong(f"{where}expected a tuple {names}, got {many}")
    held = tuple(got)
    for order in itertools.permutations(range(len(right))):
        if all(_same(held[n], right[place]) for n, place in enumerate(order)):
            if order != tuple(range(len(right))):
                named = [names.strip("()").split(", ")[place] for place in order]
                raise Wrong(f"{where}the values are right, but in the order ({', '.join(named)}):"
                            f" return {names}")
            break
    return held


def _same(part, right) -> bool:
    part, right = np.asarray(part), np.asarray(right)
    return (part.shape == right.shape and part.dtype != object
            and bool(np.allclose(part, right, equal_nan=True)))


def expect_close(got, expected, what: str, *, mistakes: dict[str, np.ndarray] | None = None,
                 rtol=1e-9, atol=1e-12) -> None:
    """Raise `Wrong` unless `got` equals `expected`; an answer in `mistakes` is named by its key.

    An answer in float32 passes if it is right to five digits, and the verdict says a word about it; a
    check that asks for more digits than the default means them.
    """
    expected = np.asarray(expected)
    array = np.asarray(given(got))
    if array.shape != expected.shape:
        raise Wrong(f"{what}: expected shape {expected.shape}, got {array.shape}")
    if array.dtype == object and all(isinstance(x, Rational) for x in array.flat):
        array = array.astype(float)                             # as Fraction, which is exact
    if array.dtype == object or not np.issubdtype(array.dtype, np.number):
        raise Wrong(f"{what}: expected numbers, got {got!r}")
    if array.dtype == np.float32 and expected.dtype == np.float64 and rtol >= 1e-9:
        rtol, atol = max(rtol, 1e-5), max(atol, 1e-6)
        _rounded.add(" (Your answer is float32: right to its seven digits, where float64 has sixteen.)")
    if np.allclose(array, expected, rtol=rtol, atol=atol, equal_nan=True):
        return
    for mistake, wrong in (mistakes or {}).items():
        if np.allclose(array, wrong, rtol=rtol, atol=atol, equal_nan=True):
            raise Wrong(f"{what}: {mistake}")
    with np.errstate(invalid="ignore"):
        gap = np.where(np.isclose(array, expected, 0, 0, equal_nan=True), 0, abs(array - expected))
    worst = np.unravel_index(np.argmax(np.where(np.isnan(gap), np.inf, gap)), expected.shape)
    place = f" at {tuple(map(int, worst))}" if worst else ""
    right, wrong = _told_apart(expected[worst], array[worst])
    raise Wrong(f"{what}{place}: expected {right}, got {wrong}")


def _told_apart(a, b) -> tuple[str, str]:
    """Write two numbers with as many digits as it takes to see that they differ."""
    if np.issubdtype(a.dtype, np.integer) and abs(a) >= 1e6:
        return f"{a:,}", f"{b:,}"
    short = f"{a:.6g}", f"{b:.6g}"
    return short if short[0] != short[1] else (str(a.item()), str(b.item()))


def hint(name: str, number: int = 1) -> None:
    """Print hint `number` of an exercise, as in `hint("04.2")`, then `hint("04.2", 2)`."""
    found = _find(name)
    name, hints = found.name, found.hints
    if not 1 <= number <= len(hints):
        raise ValueError(f"number: exercise {name} has hints 1 to {len(hints)}, got {number}")
    more = f"  (there is a hint {number + 1})" if number < len(hints) else "  (the last hint)"
    print(f"Hint {number} for {name}: {hints[number - 1]}{more}")


def solution(name: str) -> None:
    """Print the reference solution of an exercise; in a student build, say that it is left out."""
    found = _find(name)
    try:
        module = importlib.import_module(f"flashlib.course.ch{found.chapter}.solutions")
    except ModuleNotFoundError:
        print(f"The solution of {found.name} is not part of this build of the course.")
        return
    print(inspect.getsource(getattr(module, found.solution)))


def _find(name: str) -> Exercise:
    chapter, _, number = str(name).partition(".")
    chapter = chapter.zfill(2)                       # "4.2" is clear enough
    try:
        importlib.import_module(f"flashlib.course.ch{chapter}.exercises")
        return REGISTRY[f"{chapter}.{number}"]
    except (ModuleNotFoundError, KeyError):
        raise ValueError(f"name: expected an exercise such as '04.2', got {name!r};"
                         f" loaded: {', '.join(sorted(REGISTRY)) or 'none'}") from None
