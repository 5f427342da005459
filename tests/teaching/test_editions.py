"""The archives: a student's holds no answer and works; an instructor's holds them all."""

import ast
import importlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flashlib.course.exercises.overview import of_chapter
from flashlib.course.notebook.chapters import CHAPTERS
from flashlib.course.notebook.without_triton import why_not
from scripts import answers, editions, grade

ROOT = Path(__file__).resolve().parent.parent.parent
READY = [chapter for chapter in CHAPTERS if chapter.ready]
ids = [chapter.number for chapter in READY]


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """The student's archive, built by the command and unpacked."""
    out = tmp_path_factory.mktemp("student")
    editions.main(["student", "--out", str(out)])
    with zipfile.ZipFile(out / "student.zip") as archive:
        archive.extractall(out)
    return out / editions.FOLDER


@pytest.fixture(scope="module")
def instructor():
    return editions.instructor_files()


def bodies(node):
    """Yield every block of statements in a syntax tree, docstrings left out."""
    for inner in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(inner, name, None)
            if isinstance(block, list) and block:
                described = isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant)
                yield [ast.dump(statement) for statement in block[described:]]


def solutions(number):
    """The solutions of a chapter: (function's name, its statements, its text without spaces)."""
    module = importlib.import_module(f"flashlib.course.ch{number}.solutions")
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__:
            source = inspect.getsource(function)
            tree = ast.parse(source).body[0]
            block = tree.body[1:] if ast.get_docstring(tree) else tree.body
            text = "".join(ast.get_source_segment(source, statement) for statement in block)
            yield name, [ast.dump(statement) for statement in block], re.sub(r"\s", "", text)


def codes(files):
    """Yield (file, code) of every Python file and every code cell that parses."""
    for name, content in files.items():
        if name.endswith(".py"):
            yield name, content.decode("utf-8")
        elif name.endswith(".ipynb"):
            for cell in json.loads(content)["cells"]:
                if cell["cell_type"] == "code":
                    yield name, "".join(cell["source"])


def leaks(files, chapters):
    """Where a solution's statements stand in a row, or its text in any file."""
    found = []
    blocks = [(name, block) for name, code in codes(files) for block in bodies(ast.parse(code))]
    texts = {}
    for name, content in files.items():
        if b"\0" not in content[:1000]:
            text = content.decode("utf-8", errors="replace")
            if name.endswith(".ipynb"):
                text = "".join("".join(c["source"]) + json.dumps(c.get("outputs", "")).replace(
                    "\\n", "\n").replace('\\"', '"') for c in json.loads(content)["cells"])
            texts[name] = re.sub(r"\s", "", text)
    for chapter in chapters:
        for function, wanted, text in solutions(chapter.number):
            size = len(wanted)
            found += [(function, name) for name, block in blocks
                      if any(block[k:k + size] == wanted for k in range(len(block) - size + 1))]
            found += [(function, name) for name, other in texts.items() if text in other]
    return found


@pytest.mark.more
def test_no_solution_is_in_the_students_archive(student):
    files = {p.relative_to(student).as_posix(): p.read_bytes() for p in student.rglob("*")
             if p.is_file()}
    assert leaks(files, READY) == []
    assert not [name for name in files if "solutions" in name or "teaching" in name]
    assert b"Teach from it" not in files["README.md"]


def test_the_search_finds_a_solution_wherever_it_hides():
    whole = editions.course_files()
    found = leaks({n: c for n, c in whole.items() if n.endswith("/solutions.py")}, READY)
    functions = {name for chapter in READY for name, _, _ in solutions(chapter.number)}
    assert {function for function, _ in found} == functions
    hidden = inspect.getsource(importlib.import_module("flashlib.course.ch05.solutions").step)
    as_text = {"notes.md": f"# My notes\n\n{hidden}".encode()}
    as_output = {"x.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": "1", "outputs": [
        {"output_type": "stream", "name": "stdout", "text": hidden}]}]}).encode()}
    assert leaks(as_text, READY) and leaks(as_output, READY)


@pytest.mark.more
def test_every_stub_fails_in_the_students_course(student):
    for chapter in READY:
        names = [e.name for e in of_chapter(chapter.number)]
        handed_in = grade.Submission("nobody", chapter.number, student / chapter.file)
        graded = grade.grade(handed_in, names, student, root=student)
        assert {name: passed for name, (passed, _) in graded.items()} == dict.fromkeys(names, False)
        assert all("not answered yet" in message for _, message in graded.values()), graded


@pytest.mark.more
def test_every_solution_passes_there(student, tmp_path):
    """The same notebooks, each stub replaced: so it is the stubs that failed above."""
    for chapter in READY:
        if chapter.number == "09" and bool(why_not()):    # its answers are Triton kernels
            continue
        notebook = json.loads((student / chapter.file).read_text(encoding="utf-8"))
        module = importlib.import_module(f"flashlib.course.ch{chapter.number}.solutions")
        exercises = {e.check.__name__: e for e in of_chapter(chapter.number)}
        head = inspect.getsource(module).split("\ndef ")[0]
        for cell in notebook["cells"]:
            call = re.search(r"exercises\.(check_\w+)\((\w+)\)", "".join(cell["source"]))
            if cell["cell_type"] == "code" and call and call[1] in exercises:
                mine = exercises[call[1]].solution
                cell["source"] = (head.replace("from __future__ import annotations", "") + "\n"
                                  + inspect.getsource(getattr(module, mine))
                                  + f"\n{call[2]} = {mine}\n{call[0]}")
        path = tmp_path / Path(chapter.file).name
        path.write_text(json.dumps(notebook), encoding="utf-8")
        names = [e.name for e in exercises.values()]
        graded = grade.grade(grade.Submission("x", chapter.number, path), names, student, root=student)
        assert all(passed for passed, _ in graded.values()), graded


def test_the_students_course_sets_up_with_the_same_commands(student):
    listed = subprocess.run(["make", "--no-print-directory", "help"], cwd=student,
                            capture_output=True, text=True, check=True)
    assert " lab " in listed.stdout and " test " in listed.stdout
    assert "student" not in listed.stdout and "grade" not in listed.stdout
    planned = subprocess.run(["make", "-n", "lab"], cwd=student, capture_output=True, text=True,
                             check=True).stdout
    for script in re.findall(r"scripts/\w+\.\w+", planned):
        assert (student / script).is_file()
    assert {"scripts/setup.sh", "scripts/open_lab.py"} <= set(re.findall(r"scripts/\w+\.\w+", planned))
    subprocess.run([sys.executable, "scripts/sync_work.py"], cwd=student, check=True)
    names = {path.name for path in (student / "notebooks").iterdir()}
    assert {path.name for path in (student / "work").glob("*.ipynb")} | {"README.md"} == names
    code = "from flashlib.course.exercises import progress, solution; solution('05.1'); progress()"
    said = subprocess.run([sys.executable, "-c", code], cwd=student / "work", text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(student)}, capture_output=True).stdout
    assert "not part of this build" in said and "0 of 4" in said


def test_the_same_tree_gives_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        editions.write_zip(tmp_path / folder / "x.zip", {"b.txt": b"2", "a.txt": b"1"})
    assert (tmp_path / "a/x.zip").read_bytes() == (tmp_path / "b/x.zip").read_bytes()


def test_the_instructors_archive_holds_the_course_and_the_answers(instructor, tmp_path):
    assert set(editions.course_files()) < set(instructor)
    assert set(editions.student_files()) < set(instructor)
    for needed in ("scripts/grade.py", "scripts/teach.mk", "flashlib/course/ch05/solutions.py",
                   "assets/teaching/syllabus_day.md", "assets/teaching/syllabus_term.md"):
        assert needed in instructor
    assert all(not name.startswith(("work/", "dist/", ".git/", ".venv/")) for name in instructor)
    editions.write_zip(tmp_path / "instructor.zip", instructor)
    with zipfile.ZipFile(io.BytesIO((tmp_path / "instructor.zip").read_bytes())) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("chapter", READY, ids=ids)
def test_the_answer_sheet_holds_every_prediction_and_solution(instructor, chapter):
    sheet = instructor[f"assets/teaching/answers/{Path(chapter.file).stem}.md"].decode("utf-8")
    cells = json.loads((ROOT / chapter.file).read_text(encoding="utf-8"))["cells"]
    found = answers.predictions({"cells": cells})
    text = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    assert found and len(found) == text.count("**Predict.**")
    for prediction in found:
        assert prediction.question and prediction.reasoning
        assert prediction.shown, f"no cell prints an answer to: {prediction.question[:60]}"
        assert prediction.shown in sheet
    for exercise in of_chapter(chapter.number):
        assert f"{exercise.name} · {exercise.title} ({exercise.effort})" in sheet
        assert f"def {exercise.solution}(" in sheet
