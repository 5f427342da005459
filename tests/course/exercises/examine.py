"""What every chapter's checks must do, as one class of tests: a chapter brings its answers.

    TestAnswers = examine(
        right=[(ch05.check_finish, right.finish), ...],               # a check and its solution
        wrong=[(ch05.check_finish, lambda l, o: o, "divide it by l"), ...])   # and what it must say
"""

import inspect

import pytest

from flashlib.course.exercises.core import REGISTRY, ExerciseFailed, hint, solution


def stub(*args, **kwargs):
    """Answer nothing, as the cell of a notebook that a reader has not edited."""
    raise NotImplementedError


def returns_nothing(*args, **kwargs):
    """Answer nothing, as a function whose `return` was forgotten."""


UNANSWERED = (stub, returns_nothing, None, ...)


def _label(thing):
    return getattr(thing, "__name__", str(thing))


def examine(*, right, wrong, unanswered=UNANSWERED):
    """Return a class of tests; `unanswered` are the answers that no check may take for one.

    A right answer passes and is the solution that is shown; each wrong one fails with its mistake
    named; an unanswered one is told so, and one that returns nothing asked for its `return`;
    `strict=True` raises in all but the first case.
    """
    exercises = {registered.check: registered for registered in REGISTRY.values()}
    checks = [check for check, _ in right]
    assert checks and {check for check, _, _ in wrong} <= set(checks)

    class Answers:
        @pytest.mark.parametrize(("check", "answer"), right, ids=_label)
        def test_solution_passes(self, check, answer, capsys):
            assert check(answer, strict=True)
            assert capsys.readouterr().out.startswith(f"✓ exercise {exercises[check].name}: ")

        @pytest.mark.parametrize(("check", "answer", "diagnosis"), wrong,
                                 ids=[f"{_label(c)}-{diagnosis}" for c, _, diagnosis in wrong])
        def test_mistake_is_named(self, check, answer, diagnosis, capsys):
            verdict = check(answer)
            assert not verdict
            assert diagnosis in verdict.message, verdict.message
            assert capsys.readouterr().out == f"✗ exercise {exercises[check].name}: {verdict.message}\n"
            with pytest.raises(ExerciseFailed) as failure:
                check(answer, strict=True)
            assert diagnosis in str(failure.value), str(failure.value)

        @pytest.mark.parametrize("check", checks, ids=_label)
        @pytest.mark.parametrize("answer", unanswered, ids=_label)
        def test_unanswered_is_told_so(self, check, answer):
            verdict = check(answer)
            assert not verdict
            told = "is a `return` missing" if answer is returns_nothing else "not answered yet"
            assert told in verdict.message, verdict.message
            with pytest.raises(ExerciseFailed):
                check(answer, strict=True)

        @pytest.mark.parametrize(("check", "answer"), right, ids=_label)
        def test_hints_and_the_solution_are_shown(self, check, answer, capsys):
            exercise = exercises[check]
            assert len(exercise.hints) >= 2
            for number, text in enumerate(exercise.hints, 1):
                hint(exercise.name, number)
                assert text in capsys.readouterr().out
            solution(exercise.name)
            assert capsys.readouterr().out.strip() == inspect.getsource(answer).strip()
            assert exercise.solution == answer.__name__

    return Answers
