"""Grade a folder of submitted notebooks into a CSV.

    grade.py FOLDER --out grades.csv

A student is a subfolder of FOLDER, or what stands before the notebook's name in a file's name:
`ada/04_run_softmax_online.ipynb` and `ada_04_run_softmax_online.ipynb` are both ada's. Only the
exercises' answers run, each notebook in a process of its own with a time limit, on a copy of
flashlib without solutions. A notebook that cannot be read, a loop without end and a cell that does
not parse are rows of the table. If a student hands in a chapter twice, an exercise counts if it is
solved in either.

Run it on a machine that may run the students' code: there is a time and a memory limit, no jail.
"""

import argparse
import csv
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("grade_worker.py")
TIMEOUT_S = 60
COLUMNS = ("student", "chapter", "exercise", "passed", "message")
NOT_HANDED_IN = (False, "not handed in")


@dataclass(frozen=True)
class Submission:
    """One handed-in file; `chapter` is empty for one that no chapter's name fits."""

    student: str
    chapter: str
    path: Path


def find(folder, stems):
    """The submissions in a folder; `stems` are the chapters' file names, 04_run_softmax_online."""
    name = re.compile(rf"(?P<before>.*?)(?P<stem>{'|'.join(map(re.escape, stems))})")
    found = []
    for path in sorted(folder.rglob("*.ipynb")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):
            continue
        match = name.match(path.name)
        student = inside.parts[0] if len(inside.parts) > 1 else (
            match["before"] if match else path.stem).strip(" ._-") or folder.resolve().name
        found.append(Submission(student, match["stem"][:2] if match else "", path))
    return found


def grade(submission, exercises, sandbox, *, root=ROOT, timeout=TIMEOUT_S):
    """Return {exercise: (passed, message)} of one notebook."""
    original = next((root / "notebooks").glob(f"{submission.chapter}_*.ipynb"))
    job = {"submission": str(submission.path.resolve()), "original": str(original),
           "chapter": submission.chapter, "sandbox": str(sandbox), "root": str(root),
           "scripts": str(WORKER.parent)}
    grades, pending = {}, list(exercises)
    while pending:
        events, ending = _run({**job, "exercises": pending}, sandbox, timeout)
        grades |= {e["exercise"]: (e["passed"], e["message"]) for e in events if "exercise" in e}
        told = [e["error"] for e in events if "error" in e]
        started = [e["start"] for e in events if "start" in e and e["start"] not in grades]
        if told or not (started or grades.keys() & set(pending)):
            grades |= {name: (False, told[0] if told else ending) for name in pending}
        elif started:
            grades[started[0]] = (False, ending)
        pending = [name for name in pending if name not in grades]
    return grades


def _run(job, sandbox, timeout):
    """Start a worker; return the events that it told, and how it ended if it did not finish."""
    job["token"] = secrets.token_hex(16)
    keep = {k: os.environ[k] for k in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH") if k in os.environ}
    with tempfile.TemporaryDirectory() as home:
        env = {**keep, "HOME": home, "TMPDIR": home, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", "TRITON_INTERPRET": "1",
               "PYTHONPYCACHEPREFIX": str(sandbox / "__pycache__")}
        worker = subprocess.Popen([sys.executable, "-P", WORKER], cwd=home, env=env, text=True,
                                  encoding="utf-8", errors="replace", start_new_session=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL)
        try:
            told, _ = worker.communicate(json.dumps(job), timeout=timeout)
            ending = f"the code ended the process (exit code {worker.returncode})"
        except subprocess.TimeoutExpired:
            ending = f"took longer than {timeout:g} s: a loop without end?"
            _end(worker)
            told, _ = worker.communicate()
        _end(worker)
    return [event for line in told.splitlines() if (event := _event(line, job["token"]))], ending


def _end(worker):
    """End the worker and whatever it started."""
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError, AttributeError):
        worker.kill()


def _event(line, token):
    try:
        event = json.loads(line)
        return event if event.pop("token") == token else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def rows(submissions, grades, exercises):
    """The rows of the table: per student, each exercise of every chapter at hand, then a total."""
    chapters = sorted({s.chapter for s in submissions if s.chapter})
    results = defaultdict(dict)
    for submission, graded in zip(submissions, grades, strict=True):
        mine = results[submission.student]
        for name, grade_ in graded.items():
            if not mine.get(name, NOT_HANDED_IN)[0]:
                mine[name] = grade_
    for student in sorted(results):
        mine, solved = results[student], 0
        names = [(chapter, name) for chapter in chapters for name in exercises[chapter]]
        for chapter, name in names:
            passed, message = mine.get(name, NOT_HANDED_IN)
            solved += passed
            yield student, chapter, name, int(passed), " ".join(message.split())
        for submission in submissions:
            if submission.student == student and not submission.chapter:
                yield student, "", submission.path.name, 0, (
                    "no chapter's notebook: expected a name such as 04_run_softmax_online.ipynb")
        yield student, "all", "total", solved, f"{solved} of {len(names)}"


def make_sandbox(folder, root=ROOT):
    """Lay flashlib and its data, without the solutions, into a folder; return it."""
    sys.path.insert(0, str(root / "scripts"))
    import editions

    for name, content in editions.student_files(root).items():
        if name.startswith(("flashlib/", "assets/")):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


def grade_folder(folder, *, root=ROOT, timeout=TIMEOUT_S, jobs=2, say=lambda line: None):
    """Grade every notebook in a folder; return the rows of the table."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    from flashlib.course.exercises.overview import of_chapter

    stems = [path.stem for path in sorted((root / "notebooks").glob("[0-9]*.ipynb"))]
    exercises = {stem[:2]: [e.name for e in of_chapter(stem[:2])] for stem in stems}
    submissions = find(folder, stems)

    def one(submission):
        names = exercises.get(submission.chapter, [])
        graded = grade(submission, names, sandbox, root=root, timeout=timeout) if names else {}
        say(f"{submission.path.relative_to(folder)}: {sum(p for p, _ in graded.values())}"
            f" of {len(names)}")
        return graded

    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(jobs) as pool:
        sandbox = make_sandbox(Path(temporary), root)
        return list(rows(submissions, list(pool.map(one, submissions)), exercises))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="with the submitted notebooks")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table to write")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds, default 60")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1),
                        help="notebooks at a time")
    options = parser.parse_args(arguments)
    folder = Path(options.folder)
    if not options.folder or not folder.is_dir():
        sys.exit(f"FOLDER: expected a folder with submitted notebooks, got {options.folder!r};"
                 " as in: make grade FOLDER=submissions")
    table = grade_folder(folder, timeout=options.timeout, jobs=options.jobs, say=print)
    if not table:
        sys.exit(f"No notebook (*.ipynb) in {folder}.")
    with open(options.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(table)
    students = sum(row[1] == "all" for row in table)
    print(f"{students} student{'s' * (students != 1)}, {len(table) - students} rows and a total each:"
          f" {options.out}")


if __name__ == "__main__":
    main()
