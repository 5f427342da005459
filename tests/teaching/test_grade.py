"""Grading: a right answer passes, everything else is a row that says why, and nothing crashes."""

import csv
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from flashlib.course.exercises.overview import of_chapter
from flashlib.course.notebook.without_triton import why_not
from scripts import grade
from tests.teaching.answers05 import BYTES, CHAPTER, FINISH, SETUP, STEP, notebook

KERNEL = """
def double_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, N, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * stride_xm + col * stride_xn, mask=col < N)
    tl.store(Y + row * stride_ym + col * stride_yn, twice(x), mask=col < N)

ex.check_transposed(double_kernel)
"""
TWICE = "import triton\nimport triton.language as tl\n@triton.jit\ndef twice(x):\n    return 2 * x"


def test_right_wrong_stub_and_missing(graded):
    wrong = FINISH.replace("return o / np.maximum(l, 1e-300)[:, None]", "return o")
    stub = STEP.split("top =")[0].rstrip() + "\n    raise NotImplementedError\nex.check_step(step)"
    got = graded(SETUP, wrong, stub, BYTES, exercises=("05.1", "05.2", "05.3", "05.4"))
    assert {name: passed for name, (passed, _) in got.items()} == {
        "05.1": False, "05.2": False, "05.3": False, "05.4": True}
    assert "divide it by l" in got["05.1"][1]
    assert "not answered yet" in got["05.2"][1]
    assert "does not define merge_finished" in got["05.3"][1]


def test_cells_that_are_broken_elsewhere_do_not_matter(graded):
    got = graded("def (", SETUP, "raise ValueError('mine')", "1 / 0", "plots.nothing()", FINISH,
                 "%matplotlib inline\n" + STEP, "import no_such_package")
    assert got["05.1"][0] and got["05.2"][0]


def test_setup_that_was_lost_comes_from_the_course(graded):
    assert graded(FINISH, exercises=("05.1",))["05.1"][0]


def test_helpers_of_the_students_own_come_along(graded):
    got = graded(SETUP, "tiny = 1e-300\ntiny = tiny + 0",
                 "def at_least(l):\n    return np.maximum(l, tiny)",
                 FINISH.replace("np.maximum(l, 1e-300)", "at_least(l)"), exercises=("05.1",))
    assert got["05.1"][0]


@pytest.mark.skipif(bool(why_not()), reason="torch or Triton is not installed")
@pytest.mark.parametrize(("helper", "kernel", "passed", "words"), [
    (TWICE, KERNEL, True, "any strides"),
    (TWICE, "@triton.jit" + KERNEL, True, "any strides"),
    (TWICE, KERNEL.replace("stride_xn, mask", "1, mask"), False, "a transposed matrix"),
    (TWICE, KERNEL.replace("    row", "    print('✓')\n    raise NotImplementedError\n    row"), False,
     "not answered yet")])
def test_a_kernel_runs_in_the_interpreter_with_its_helpers(tmp_path, sandbox, helper, kernel, passed,
                                                            words):
    path = tmp_path / "09_write_kernels_in_triton.ipynb"
    notebook(path, helper, kernel)
    got = grade.grade(grade.Submission("ada", "09", path), ["09.1"], sandbox)
    assert got["09.1"][0] is passed and words in got["09.1"][1]


def test_a_cell_that_does_not_parse_is_named_with_its_line(graded):
    got = graded(SETUP, FINISH.replace("return o /", "return o //* "), STEP)
    assert got["05.1"] == (False, "the cell does not parse: invalid syntax, line 3")
    assert got["05.2"][0]


def test_an_error_becomes_a_message_with_the_line(graded):
    got = graded(SETUP, FINISH.replace("return o", "return 1 / 0 + o"), exercises=("05.1",))
    assert "ZeroDivisionError" in got["05.1"][1] and "return 1 / 0 + o" in got["05.1"][1]


def test_a_loop_without_end_costs_one_exercise(graded):
    endless = FINISH.replace("return o", "while True: pass\n    return o")
    got = graded(SETUP, endless, STEP, timeout=2.5)
    assert got["05.1"] == (False, "took longer than 2.5 s: a loop without end?")
    assert got["05.2"][0]


@pytest.mark.parametrize("ending", ["import os; os._exit(0)", "raise SystemExit"])
def test_an_answer_that_ends_the_process_costs_one_exercise(graded, ending):
    got = graded(SETUP, FINISH.replace("return o", f"{ending}\n    return o"), STEP)
    assert not got["05.1"][0] and re.search("ended the process|SystemExit", got["05.1"][1])
    assert got["05.2"][0]


@pytest.mark.more
def test_the_text_of_the_course_is_no_answer(tmp_path, sandbox):
    """Deleting a stub must not make an example of the same name count."""
    stems = sorted((grade.ROOT / "notebooks").glob("[0-9]*.ipynb"))
    for path in stems:
        mine = json.loads(path.read_text(encoding="utf-8"))
        mine["cells"] = [c for c in mine["cells"] if "exercises.check_" not in "".join(c["source"])]
        there = tmp_path / path.name
        there.write_text(json.dumps(mine))
        names = [e.name for e in of_chapter(path.stem.partition("_")[0])]
        got = grade.grade(grade.Submission("x", path.stem.partition("_")[0], there), names, sandbox)
        assert not any(passed for passed, _ in got.values()), path.stem


def test_students_are_folders_or_prefixes(tmp_path):
    for name in (f"ada/{CHAPTER}.ipynb", f"bob/deep/{CHAPTER} (1).ipynb", f"cy_2_{CHAPTER}.ipynb",
                 "dee/essay.ipynb", f"ada/.ipynb_checkpoints/{CHAPTER}-checkpoint.ipynb"):
        notebook(tmp_path / name)
    found = {(s.student, s.chapter) for s in grade.find(tmp_path, [CHAPTER])}
    assert found == {("ada", "05"), ("bob", "05"), ("cy_2", "05"), ("dee", "")}
    assert len(grade.find(tmp_path, [CHAPTER])) == 4


def read(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_folder_becomes_a_table(tmp_path, capsys):
    inbox, out = tmp_path / "inbox", tmp_path / "new" / "grades.csv"
    notebook(inbox / "ada" / f"{CHAPTER}.ipynb", SETUP, FINISH, STEP)
    notebook(inbox / "ada" / f"{CHAPTER} (second).IPYNB", SETUP, BYTES)
    notebook(inbox / "bob" / "essay.ipynb", "1")
    (inbox / f"cy_{CHAPTER}.ipynb").write_text("no notebook")
    (inbox / f"dee_{CHAPTER}.ipynb").write_text('{"cells": ' + "[" * 200_000)
    (inbox / f"eve_{CHAPTER}.ipynb").symlink_to(tmp_path / "nowhere")
    grade.main([str(inbox), "--out", str(out)])
    table, totals = read(out), read(tmp_path / "new" / "grades_totals.csv")
    assert tuple(table[0]) == grade.COLUMNS and tuple(totals[0]) == grade.TOTALS
    assert {r["student"]: (r["solved"], r["exercises"], r["stars"], r["of stars"]) for r in totals} == {
        "ada": ("3", "4", "5", "8"), **dict.fromkeys(("bob", "cy", "dee", "eve"), ("0", "4", "0", "8"))}
    assert sum(int(r["passed"]) * int(r["stars"]) for r in table) == 5
    by = {(r["student"], r["exercise"]): r["message"] for r in table}
    assert by["bob", "05.1"] == "not handed in"
    assert "no chapter's notebook" in by["bob", "essay.ipynb"]
    assert by["cy", "05.2"] == "the file is no notebook (JSONDecodeError)"
    assert by["dee", "05.2"] == "the file is no notebook (RecursionError)"
    assert by["eve", "05.2"] == "the file is no notebook (FileNotFoundError)"
    assert "5 students" in capsys.readouterr().out
    assert {p.name for p in out.parent.iterdir()} == {"grades.csv", "grades_totals.csv"}


def test_names_of_any_kind_reach_the_table(tmp_path, monkeypatch):
    """A name unzipped from an old archive is no UTF-8, and one that computes is only shown."""
    inbox, out = tmp_path / "inbox", tmp_path / "grades.csv"
    notebook(inbox / "plain" / f"{CHAPTER}.ipynb", SETUP, FINISH)
    notebook(inbox / "=1+1" / f"{CHAPTER}.ipynb", SETUP, FINISH)
    strange = os.fsencode(inbox) + b"/Jos\xe9_" + f"{CHAPTER}.ipynb".encode()
    try:
        os.rename(notebook(inbox / "x.ipynb", SETUP, FINISH), strange)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    grade.main([str(inbox), "--out", str(out)])
    assert {r["student"]: r["solved"] for r in read(tmp_path / "grades_totals.csv")} == {
        "plain": "1", "'=1+1": "1", "Jos\\udce9": "1"}


def test_a_name_in_capitals_is_the_chapters(tmp_path):
    notebook(tmp_path / f"ada_{CHAPTER.upper()}.IPYNB")
    assert [(s.student, s.chapter) for s in grade.find(tmp_path, [CHAPTER])] == [("ada", "05")]


@pytest.mark.parametrize(("files", "students", "word"), [
    (("inbox/ada/{}", "inbox/bob/{}"), {"ada", "bob"}, "taken for the students"),
    (("inbox/ada/{}",), {"ada"}, "taken for the students"),
    (("all/ada/{}", "all/bob/{}", "__MACOSX/all/ada/._{}"), {"ada", "bob"}, "taken for the students"),
    (("all/ada_{}", "all/bob_{}"), {"ada", "bob"}, "taken for the students"),
    (("all/more/ada/{}", "all/more/bob/{}"), {"ada", "bob"}, "taken for the students"),
    (("ada/first/{}",), {"ada"}, None),
    (("ada/{}", "ada/{} (1)"), {"ada"}, None),
    (("ada/week1/{}", "ada/week2/04_run_softmax_online"), {"ada"}, "those of one student, ada")])
def test_a_folder_too_many_is_seen(tmp_path, files, students, word):
    said = []
    for name in files:
        notebook(tmp_path / "inbox" / f"{name.format(CHAPTER)}.ipynb")
    found = grade.find(tmp_path / "inbox", [CHAPTER, "04_run_softmax_online"], said.append)
    assert {s.student for s in found} == students
    assert (word in said[0]) if word else not said


def test_a_folder_that_cannot_be_read_is_a_row(tmp_path, monkeypatch):
    notebook(tmp_path / "ada" / f"{CHAPTER}.ipynb")
    (tmp_path / "bob").mkdir()
    scan = os.scandir

    def scandir(path):
        if Path(path).name == "bob":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = {s.student: (s.chapter, s.remark) for s in grade.find(tmp_path, [CHAPTER])}
    assert found == {"ada": ("05", ""), "bob": ("", "the folder cannot be read (Permission denied)")}


def test_what_breaks_the_grader_costs_one_submission(tmp_path, monkeypatch):
    for name in ("ada", "bob"):
        notebook(tmp_path / "inbox" / name / f"{CHAPTER}.ipynb", SETUP, FINISH)
    run = grade._run

    def broken(job, timeout):
        if "ada" in job["submission"]:
            raise MemoryError
        return run(job, timeout)

    monkeypatch.setattr(grade, "_run", broken)
    grade.main([str(tmp_path / "inbox"), "--out", str(tmp_path / "grades.csv")])
    by = {(r["student"], r["exercise"]): r for r in read(tmp_path / "grades.csv")}
    assert by["ada", "05.1"]["message"].startswith("not graded, MemoryError")
    assert by["bob", "05.1"]["passed"] == "1"


def test_the_rows_of_a_stopped_run_are_kept_and_the_older_table(tmp_path, monkeypatch):
    for name in ("ada", "bob"):
        notebook(tmp_path / "inbox" / name / f"{CHAPTER}.ipynb", SETUP, FINISH)
    out = tmp_path / "grades.csv"
    out.write_text("older")
    one = grade.grade

    def stopped(submission, *rest, **options):
        if submission.student == "bob":
            raise KeyboardInterrupt
        return one(submission, *rest, **options)

    monkeypatch.setattr(grade, "grade", stopped)
    with pytest.raises(SystemExit, match=r"grades\.csv\.part holds the rows of 1 student"):
        grade.main([str(tmp_path / "inbox"), "--out", str(out)])
    assert out.read_text() == "older"
    assert {(r["student"], r["exercise"]) for r in read(tmp_path / "grades.csv.part")
            if r["passed"] == "1"} == {("ada", "05.1")}


def test_a_table_that_cannot_be_written_is_said_before_anything_is_graded(tmp_path, monkeypatch):
    notebook(tmp_path / "inbox" / "ada" / f"{CHAPTER}.ipynb", SETUP, FINISH)
    monkeypatch.setattr(grade, "grade_folder", None)
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "grades.csv", tmp_path / "inbox"):
        with pytest.raises(SystemExit, match=r"cannot be written \(.*\); nothing was graded"):
            grade.main([str(tmp_path / "inbox"), "--out", str(out)])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_shows_the_rows_and_ends_in_a_sentence(tmp_path, capsys):
    notebook(tmp_path / "inbox" / "ada" / f"{CHAPTER}.ipynb", SETUP, FINISH)
    (tmp_path / "grades.csv.part").symlink_to("/dev/full")
    with pytest.raises(SystemExit, match=r"grades\.csv cannot be written \(No space left on device\)"):
        grade.main([str(tmp_path / "inbox"), "--out", str(tmp_path / "grades.csv")])
    assert "ada,05,05.1,1,1," in capsys.readouterr().out
    assert len(read(tmp_path / "grades_totals.csv")) == 1


@pytest.mark.parametrize(("option", "value"), [("--jobs", "0"), ("--jobs", "-1"), ("--jobs", "two"),
                                               ("--timeout", "nan"), ("--timeout", "inf"),
                                               ("--timeout", "0"), ("--timeout", "soon")])
def test_wrong_options_are_refused(tmp_path, capsys, option, value):
    with pytest.raises(SystemExit):
        grade.main([str(tmp_path), f"{option}={value}"])
    assert "expected a " in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_no_folder_ends_in_a_sentence(folder):
    with pytest.raises(SystemExit, match=r"make grade FOLDER=submissions"):
        grade.main([folder])


def test_an_empty_folder_ends_in_a_sentence(tmp_path):
    with pytest.raises(SystemExit, match="No notebook"):
        grade.main([str(tmp_path), "--out", str(tmp_path / "x.csv")])
    assert not Path(tmp_path / "x.csv").exists()
