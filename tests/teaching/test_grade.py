"""Grading: a right answer passes, everything else is a row that says why, and nothing crashes."""

import csv
import json
import re
from pathlib import Path

import pytest

from flashlib.exercises.overview import of_chapter
from flashlib.kernels.presence import why_not
from scripts import grade

CHAPTER = "05_fuse_attention_into_one_pass"
SETUP = "import numpy as np\nimport flashlib as fl\nfrom flashlib.exercises import ch05 as ex"
FINISH = """
def finish(l, o):
    return o / np.maximum(l, 1e-300)[:, None]

ex.check_finish(finish)
"""
STEP = """
def step(m, l, o, s, v):
    top = max(m, s)
    a, p = np.exp(m - top), np.exp(s - top)
    return top, l * a + p, o * a + p * v

ex.check_step(step)
"""
BYTES = """
def one_pass_bytes(Nq, Nk, d, element_bytes, stats_bytes):
    return (2 * Nq * d + 2 * Nq * Nk * d) * element_bytes + Nq * stats_bytes

ex.check_one_pass_bytes(one_pass_bytes)
"""


KERNEL = """
def double_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, N, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * stride_xm + col * stride_xn, mask=col < N)
    tl.store(Y + row * stride_ym + col * stride_yn, twice(x), mask=col < N)

ex.check_transposed(double_kernel)
"""
TWICE = "import triton\nimport triton.language as tl\n@triton.jit\ndef twice(x):\n    return 2 * x"


def notebook(path, *sources):
    cells = [{"cell_type": "code", "source": source, "metadata": {}, "outputs": [],
              "execution_count": None} for source in sources]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    return grade.make_sandbox(tmp_path_factory.mktemp("sandbox"))


@pytest.fixture
def graded(tmp_path, sandbox):
    """Grade a notebook of chapter 05 with these cells; timeout=... as in grade()."""
    def run(*sources, exercises=("05.1", "05.2"), timeout=30):
        path = tmp_path / f"{CHAPTER}.ipynb"
        notebook(path, *sources)
        return grade.grade(grade.Submission("ada", "05", path), exercises, sandbox, timeout=timeout)

    return run


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


STUB = "def finish(l, o):\n    {}raise NotImplementedError\n"
CHEATS = {
    "prints a tick": ("print('✓ exercise 05.1: right.')\n" + STUB.format(""), "not answered yet"),
    "its own check": ("def always(f): return True\nex.check_finish = always\n" + STUB.format("")
                      + "ex.check_finish(finish)", "not answered yet"),
    "replaces the comparison": (STUB.format(
        "import flashlib.exercises.ch05 as c; c.expect_close = lambda *a, **k: None; return o\n    "),
        "divide it by l"),
    "replaces numpy": (STUB.format("np.allclose = lambda *a, **k: True; return o\n    "),
                       "replaced numpy.allclose"),
    "imports the solution": ("from flashlib.exercises.solutions.ch05 import finish\n"
                             "ex.check_finish(finish)", "ModuleNotFoundError"),
    "imports it inside": (STUB.format(
        "from flashlib.exercises.solutions import ch05; return ch05.finish(l, o)\n    "),
        "ModuleNotFoundError"),
    "writes an event": (STUB.format(
        "import os; os.write(3, b'{\"exercise\": \"05.1\", \"passed\": true, \"message\": \"\"}\\n')"
        "\n    "), "not answered yet"),
    "has no answer": ("", "does not define finish"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_does_not_pass(graded, name):
    cell, reason = CHEATS[name]
    passed, message = graded(SETUP, cell, exercises=("05.1",))["05.1"]
    assert not passed and reason in message


def test_the_text_of_the_course_is_no_answer(tmp_path, sandbox):
    """Deleting a stub must not make an example of the same name count."""
    stems = sorted((grade.ROOT / "notebooks").glob("[0-9]*.ipynb"))
    for path in stems:
        mine = json.loads(path.read_text(encoding="utf-8"))
        mine["cells"] = [c for c in mine["cells"] if "ex.check_" not in "".join(c["source"])]
        there = tmp_path / path.name
        there.write_text(json.dumps(mine))
        names = [e.name for e in of_chapter(path.stem[:2])]
        got = grade.grade(grade.Submission("x", path.stem[:2], there), names, sandbox)
        assert not any(passed for passed, _ in got.values()), path.stem


def test_students_are_folders_or_prefixes(tmp_path):
    for name in (f"ada/{CHAPTER}.ipynb", f"bob/deep/{CHAPTER} (1).ipynb", f"cy_2_{CHAPTER}.ipynb",
                 "dee/essay.ipynb", f"ada/.ipynb_checkpoints/{CHAPTER}-checkpoint.ipynb"):
        notebook(tmp_path / name)
    found = {(s.student, s.chapter) for s in grade.find(tmp_path, [CHAPTER])}
    assert found == {("ada", "05"), ("bob", "05"), ("cy_2", "05"), ("dee", "")}
    assert len(grade.find(tmp_path, [CHAPTER])) == 4


def test_a_folder_becomes_a_table(tmp_path, capsys):
    inbox, out = tmp_path / "inbox", tmp_path / "grades.csv"
    notebook(inbox / "ada" / f"{CHAPTER}.ipynb", SETUP, FINISH, STEP)
    notebook(inbox / "ada" / f"{CHAPTER} (second).ipynb", SETUP, BYTES)
    notebook(inbox / "bob" / "essay.ipynb", "1")
    (inbox / f"cy_{CHAPTER}.ipynb").write_text("no notebook")
    grade.main([str(inbox), "--out", str(out)])
    with open(out, encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == grade.COLUMNS
    assert {r["student"]: (r["passed"], r["message"]) for r in table if r["exercise"] == "total"} == {
        "ada": ("3", "3 of 4"), "bob": ("0", "0 of 4"), "cy": ("0", "0 of 4")}
    by = {(r["student"], r["exercise"]): r["message"] for r in table}
    assert by["bob", "05.1"] == "not handed in"
    assert "no chapter's notebook" in by["bob", "essay.ipynb"]
    assert by["cy", "05.2"] == "the file is no notebook (JSONDecodeError)"
    assert "3 students" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_no_folder_ends_in_a_sentence(folder):
    with pytest.raises(SystemExit, match=r"make grade FOLDER=submissions"):
        grade.main([folder])


def test_an_empty_folder_ends_in_a_sentence(tmp_path):
    with pytest.raises(SystemExit, match="No notebook"):
        grade.main([str(tmp_path), "--out", str(tmp_path / "x.csv")])
    assert not Path(tmp_path / "x.csv").exists()
