"""The parts that all exercises share: verdicts, hints, solutions, and the registry."""

import importlib
import inspect
import io
import sys
from fractions import Fraction

import numpy as np
import pytest

import flashlib as fl
from flashlib.course.ch04 import exercises as ch04
from flashlib.course.exercises import core
from flashlib.course.exercises.core import ExerciseFailed, Wrong, expect_close
from flashlib.course.notebook.chapters import CHAPTERS

READY = [chapter.number for chapter in CHAPTERS if chapter.ready]


@pytest.fixture
def check():
    """A check of its own: accepts 42, and names 43 as a mistake."""
    def examine(answer):
        value = answer() if callable(answer) else answer
        expect_close(value, 42.0, "the answer", mistakes={"one too many": 43.0})

    yield core.exercise("99.1", "a test", difficulty=1, minutes=1, solution="none",
                        hints=("first", "second"))(examine)
    del core.REGISTRY["99.1"]


def test_verdicts(check, capsys):
    assert check(42)
    assert "✓ exercise 99.1" in capsys.readouterr().out
    assert check(43).message == "the answer: one too many"
    assert "expected 42, got 7" in check(7).message
    assert "not answered yet" in check(...).message
    assert "is a `return` missing" in check(lambda: None).message
    assert "expected shape (), got (2,)" in check(np.zeros(2)).message


def test_an_error_of_the_reader_becomes_a_verdict_with_the_line(check):
    def answer():
        return 1 / 0

    message = check(answer).message
    assert "ZeroDivisionError" in message and "return 1 / 0" in message


def test_the_quoted_line_is_the_readers_not_the_librarys(check):
    def calls_numpy():
        return np.stack([])

    def calls_flashlib():
        return fl.Machine(element_bytes=-1)

    for answer, error, line in ((calls_numpy, "ValueError", "return np.stack([])"),
                                (calls_flashlib, "Error", "return fl.Machine(element_bytes=-1)")):
        message = check(answer).message
        assert error in message and message.endswith(f": {line})")


def test_an_error_before_the_readers_first_line_quotes_none():
    message = ch04.check_factor(lambda one_only: one_only).message
    assert "TypeError" in message and "positional argument" in message and "(line" not in message


def test_strict_raises_and_nothing_else_does(check):
    with pytest.raises(ExerciseFailed, match="one too many"):
        check(43, strict=True)
    assert check(42, strict=True)


def test_hints(capsys):
    with pytest.raises(ValueError, match="hints 1 to"):
        core.hint("05.1", 9)
    core.hint("05.1")
    assert "Hint 1 for 05.1" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"expected an exercise such as '04\.2', got 'nonsense'"):
        core.hint("nonsense")


def test_a_chapters_number_needs_no_zero(capsys):
    core.hint("5.1")
    core.solution("5.1")
    assert "Hint 1 for 05.1" in capsys.readouterr().out


def test_a_verdict_is_shown_where_the_terminal_has_no_tick(check, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert check(42)
    terminal.flush()
    assert terminal.buffer.getvalue().startswith(b"? exercise 99.1: right.\n")


@pytest.mark.parametrize("number", READY)
def test_every_exercise_has_a_solution_hints_and_a_title(number, capsys):
    importlib.import_module(f"flashlib.course.ch{number}.exercises")
    solutions = importlib.import_module(f"flashlib.course.ch{number}.solutions")
    mine = [e for e in core.REGISTRY.values() if e.chapter == number]
    assert len(mine) >= 3
    for exercise in mine:
        assert exercise.title and exercise.hints
        source = inspect.getsource(getattr(solutions, exercise.solution))
        core.solution(exercise.name)
        assert source in capsys.readouterr().out


def test_a_build_without_solutions_says_so(monkeypatch, capsys):
    importlib.import_module("flashlib.course.ch05.exercises")
    monkeypatch.setitem(sys.modules, "flashlib.course.ch05.solutions", None)
    core.solution("05.1")
    assert "not part of this build" in capsys.readouterr().out


def test_expect_close_is_as_strict_as_it_says():
    expect_close(1.0 + 1e-10, 1.0, "x")
    for got, options in ((1.0005, {}), (1.0 + 1e-8, {}), (1.0005, {"rtol": 1e-4}), (1e-11, {})):
        with pytest.raises(Wrong, match="x: expected"):
            expect_close(got, 1.0 if got > 0.5 else 0.0, "x", **options)


def test_expect_close_names_the_place():
    with pytest.raises(Wrong, match=r"x at \(1, 0\): expected 3, got nan"):
        expect_close(np.array([[1.0, 2.0], [np.nan, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]), "x")
    expect_close(np.array([np.nan]), np.array([np.nan]), "NaN where it belongs")
    with pytest.raises(Wrong, match=r"x at \(1,\): expected inf, got -3"):
        expect_close([np.inf, -3.0], [np.inf] * 2, "x")
    with pytest.raises(Wrong, match=r"x at \(2,\): expected 5, got 6"):
        expect_close([np.inf, np.nan, 6.0], [np.inf, np.nan, 5.0], "x")
    with pytest.raises(Wrong, match=r"x: expected inf, got -inf"):
        expect_close(-np.inf, np.inf, "x")


def test_expect_close_tells_numbers_apart_and_writes_whole_ones_in_full():
    with pytest.raises(Wrong, match=r"expected 0\.85, got 0\.85000001"):
        expect_close(0.85000001, 0.85, "x")
    with pytest.raises(Wrong, match=r"expected 70,254,592, got 71,335,936"):
        expect_close(71_335_936, 70_254_592, "bytes", rtol=0)


def test_a_float32_answer_passes_with_a_word_about_it():
    right = np.array([1 / 3, -2 / 7])
    single = core._judge("x", lambda answer: expect_close(answer(), right, "x"),
                         lambda: right.astype(np.float32))
    assert single.passed and "float32" in single.message
    double = core._judge("x", lambda answer: expect_close(answer(), right, "x"), right.copy)
    assert double.passed and "float32" not in double.message
    with pytest.raises(Wrong, match="x at"):
        expect_close(right.astype(np.float32), right, "x", rtol=1e-12)
    for wrong in (right + 1e-4, -right):
        with pytest.raises(Wrong, match="half of it" if wrong[0] < 0 else "expected"):
            expect_close(wrong.astype(np.float32), right, "x", mistakes={"half of it": -right})


def test_fractions_are_numbers_and_other_objects_are_not():
    expect_close([Fraction(1, 4), Fraction(3)], [0.25, 3.0], "x")
    with pytest.raises(Wrong, match=r"x at \(0,\): expected 0.25, got 0.5"):
        expect_close([Fraction(1, 2), Fraction(3)], [0.25, 3.0], "x")
    with pytest.raises(Wrong, match="expected numbers"):
        expect_close([Fraction(1, 4), "3"], [0.25, 3.0], "x")


def test_parts_takes_tuples_lists_and_rows_and_names_another_order():
    m, o = 2.0, np.array([1.0, 2.0])
    for got in ((m, o), [m, o]):
        assert core.parts(got, "(m, o)", right=(m, o)) == (m, o)
    assert core.parts(np.array([3, 4]), "(Br, Bc)") == (3, 4)
    with pytest.raises(Wrong, match=r"in the order \(o, m\): return \(m, o\)"):
        core.parts((o, m), "(m, o)", right=(m, o))
    with pytest.raises(Wrong, match="got a list of 3"):
        core.parts([m, o, o], "(m, o)")
    for got in (m, o[:1], (m, o, o), np.ones((2, 2))):
        with pytest.raises(Wrong, match=r"expected a tuple \(m, o\)"):
            core.parts(got, "(m, o)")
