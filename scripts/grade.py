"""Grade a folder of submitted notebooks into a CSV.

    grade.py FOLDER --out grades.csv

A student is a subfolder of FOLDER, or what stands before the notebook's name in a file's name:
`ada/04_run_softmax_online.ipynb` and `ada_04_run_softmax_online.ipynb` are both ada's. Only the
exercises' answers run, each notebook in a process of its own with a time limit, on a copy of
flashlib without solutions. A notebook that cannot be read, a loop without end and a cell that does
not parse are rows of the table. If a student hands in a chapter twice, an exercise counts if it is
solved in either. Beside grades.csv, grades_totals.csv has a row for every student.

Run it on a machine that may run the students' code: there are limits, and no jail.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from flashlib.course.exercises.overview import of_chapter  # noqa: E402
from scripts import editions  # noqa: E402
from scripts.grade_table import Table  # noqa: E402

WORKER = Path(__file__).with_name("grade_worker.py")
WARDEN = Path(__file__).with_name("grade_warden.py")
TIMEOUT_S = 60
GRACE_S = 30                                          # for the warden, which keeps the limit, to report
MOST_BYTES = 2**23                                    # of its report
COLUMNS = ("student", "chapter", "exercise", "stars", "passed", "message")
TOTALS = ("student", "solved", "exercises", "stars", "of stars")
NOT_HANDED_IN = (False, "not handed in")
NO_CHAPTER = "no chapter's notebook: expected a name such as 04_run_softmax_online.ipynb"


@dataclass(frozen=True)
class Submission:
    """One handed-in file; `chapter` is empty for one that cannot be graded, and `remark` says why."""

    student: str
    chapter: str
    path: Path
    remark: str = ""


def find(folder, stems, say=lambda line: None):
    """The submissions in a folder; `stems` are the chapters' file names, 04_run_softmax_online."""
    name = re.compile(rf"(?P<before>.*?)(?P<stem>{'|'.join(map(re.escape, stems))})", re.IGNORECASE)
    unread, paths = [], []
    for here, folders, files in os.walk(folder, onerror=unread.append):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__MACOSX"]
        paths += [Path(here, f) for f in files
                  if f.lower().endswith(".ipynb") and not f.startswith(".")]
    folder = _folder_of_students(folder, paths, name, say)
    found = []
    for path in sorted(paths):
        match = name.match(path.name)
        chapter = match["stem"].partition("_")[0].lower() if match else ""
        found.append(Submission(_student(folder, path, match), chapter, path,
                                "" if match else NO_CHAPTER))
    for error in unread:
        path = Path(error.filename)
        inside = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
        found.append(Submission(inside[0] if inside else folder.resolve().name, "", path,
                                f"the folder cannot be read ({error.strerror})"))
    return found


def _student(folder, path, match):
    """Whose file it is: the first folder's, or of who stands before the chapter in its name."""
    inside = path.relative_to(folder).parts
    if len(inside) > 1:
        return inside[0]
    return (match["before"] if match else path.stem).strip(" ._-") or folder.resolve().name


def _folder_of_students(folder, paths, name, say):
    """Return the folder whose folders are students: a level deeper if all lie in one folder.

    An archive may unpack to submissions/submissions/ada. It is a student's folder unless it has its
    parent's name, or holds the same chapter of several.
    """
    while True:
        tops = {path.relative_to(folder).parts[0] for path in paths}
        if len(tops) != 1 or folder / (top := min(tops)) in paths:
            return folder
        owners, deeper = defaultdict(set), folder / top
        for path in paths:
            if match := name.match(path.name):
                owners[match["stem"].lower()].add((path.parent, match["before"]))
        if top != folder.resolve().name and all(len(who) < 2 for who in owners.values()):
            if len({path.parent for path in paths}) > 1:
                say(f"All notebooks lie in {deeper}: they count as those of one student, {top}. If its"
                    f" folders are the students: make grade FOLDER='{deeper}'")
            return folder
        say(f"All notebooks lie in {deeper}: its folders are taken for the students.")
        folder = deeper


def grade(submission, exercises, sandbox, *, root=ROOT, timeout=TIMEOUT_S, hidden=()):
    """Return {exercise: (passed, message)} of one notebook.

    `hidden` are folders and files that the answers cannot open, besides the course itself.
    """
    original = next((root / "notebooks").glob(f"{submission.chapter}_*.ipynb"))
    job = {"submission": str(submission.path.resolve()), "original": str(original),
           "chapter": submission.chapter, "sandbox": str(sandbox), "root": str(root),
           "scripts": str(WORKER.parent), "hidden": [str(root), *map(str, hidden)],
           "withheld": [part for part in editions.WITHHELD if not part.startswith("scripts/")]}
    grades, pending = {}, list(exercises)
    while pending:
        events, ending = _run({**job, "exercises": pending}, timeout)
        grades |= {e["exercise"]: (e["passed"], e["message"]) for e in events if "exercise" in e}
        told = [e["error"] for e in events if "error" in e]
        started = [e["start"] for e in events if "start" in e and e["start"] not in grades]
        if told or not (started or grades.keys() & set(pending)):
            grades |= {name: (False, told[0] if told else ending) for name in pending}
        elif started:
            grades[started[0]] = (False, ending)
        pending = [name for name in pending if name not in grades]
    return grades


_running = set()                                      # wardens, which end when their stdin is closed


def _run(job, timeout):
    """Start a worker; return the events that it told, and how it ended if it did not finish."""
    job["token"] = secrets.token_hex(16)
    keep = {k: os.environ[k] for k in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH") if k in os.environ}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        env = {**keep, "HOME": home, "TMPDIR": home, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", "TRITON_INTERPRET": "1"}
        warden = subprocess.Popen(
            [sys.executable, "-I", WARDEN, repr(timeout), sys.executable, "-P", "-B", WORKER],
            cwd=home, env=env, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        _running.add(warden)
        impatience = threading.Timer(timeout + GRACE_S, warden.kill)
        impatience.start()
        try:
            with contextlib.suppress(OSError):
                warden.stdin.write(json.dumps(job).encode() + b"\n")
                warden.stdin.flush()
            said = warden.stdout.read(MOST_BYTES)
        finally:
            impatience.cancel()
            _running.discard(warden)
            warden.kill()
            warden.wait()
            warden.stdout.close()
            with contextlib.suppress(OSError):
                warden.stdin.close()
    try:
        report = json.loads(said)
    except ValueError:
        report = {"told": "", "ending": "the code ended the process that watches over it"}
    events = [_event(line, job["token"]) for line in report["told"].splitlines()]
    return [event for event in events if event], report["ending"]


def _event(line, token):
    try:
        event = json.loads(line)
        return event if event.pop("token") == token else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def make_sandbox(folder, root=ROOT):
    """Lay flashlib and its data, without the solutions, into a folder; return it."""
    for name, content in editions.student_files(root).items():
        if name.startswith(("flashlib/", "assets/")):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


def grade_folder(submissions, exercises, *, root=ROOT, timeout=TIMEOUT_S, jobs=2, hidden=()):
    """Yield (student, rows, total) of every student, in order, as soon as the last notebook is graded.

    Whatever becomes of one notebook is told in its own rows.
    """
    by_student = defaultdict(list)
    for submission in submissions:
        by_student[submission.student].append(submission)

    def one(submission):
        names = [e.name for e in exercises[submission.chapter]] if submission.chapter else []
        try:
            return grade(submission, names, sandbox, root=root, timeout=timeout, hidden=hidden)
        except Exception as error:                    # of the grader itself: nobody else's loss
            return dict.fromkeys(names, (False, f"not graded, {type(error).__name__}: {error}"))

    chapters = sorted({s.chapter for s in submissions if s.chapter})
    pool = ThreadPoolExecutor(jobs)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        sandbox = make_sandbox(Path(temporary), root)
        graded = {student: [pool.submit(one, s) for s in by_student[student]]
                  for student in sorted(by_student)}
        try:
            for student, futures in graded.items():
                wanted = [e for chapter in chapters for e in exercises[chapter]]
                yield student, *_result(student, by_student[student], futures, wanted)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for warden in list(_running):             # only if somebody stops the grading
                warden.stdin.close()
            pool.shutdown()


def _result(student, submissions, futures, wanted):
    """The rows of one student, each exercise of the chapters at hand, and the row of the totals."""
    mine = {}
    for future in futures:
        for name, grade_ in future.result().items():
            if not mine.get(name, NOT_HANDED_IN)[0]:
                mine[name] = grade_
    rows = []
    for exercise in wanted:
        passed, message = mine.get(exercise.name, NOT_HANDED_IN)
        rows.append((student, exercise.chapter, exercise.name, exercise.difficulty, int(passed),
                     message))
    solved = [e for e in wanted if mine.get(e.name, NOT_HANDED_IN)[0]]
    stars = [sum(e.difficulty for e in some) for some in (solved, wanted)]
    rows += [(student, "", s.path.name, 0, 0, s.remark) for s in submissions if s.remark]
    return rows, (student, len(solved), len(wanted), *stars)


def main(arguments=None):
    options = _options(arguments)
    folder, out = Path(options.folder), options.out
    if not options.folder or not folder.is_dir():
        sys.exit(f"FOLDER: expected a folder with submitted notebooks, got {options.folder!r};"
                 " as in: make grade FOLDER=submissions")
    if hasattr(sys.stdout, "reconfigure"):            # names and verdicts that the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    stems = [path.stem for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))]
    numbers = [stem.partition("_")[0] for stem in stems]
    exercises = {number: of_chapter(number) for number in numbers}
    submissions = find(folder, stems, _say)
    if not submissions:
        sys.exit(f"No notebook (*.ipynb) in {folder}.")
    paths = out, out.with_name(f"{out.stem}_totals{out.suffix}")
    tables = []
    try:
        for path, columns in zip(paths, (COLUMNS, TOTALS), strict=True):
            tables.append(Table(path, columns))
    except OSError as error:
        for table in tables:
            table.part.unlink()
        sys.exit(f"OUT: {error.filename} cannot be written ({error.strerror}); nothing was graded.")
    hidden = [folder.resolve(), *(p.resolve() for table in tables for p in (table.path, table.part))]
    count = 0
    try:
        with contextlib.closing(grade_folder(submissions, exercises, timeout=options.timeout,
                                             jobs=options.jobs, hidden=hidden)) as graded:
            for student, rows, total in graded:
                tables[0].write(rows)
                tables[1].write([total])
                count += 1
                _say(f"{student}: {total[1]} of {total[2]}")
    except KeyboardInterrupt:
        sys.exit(f"Stopped. {tables[0].part} holds the rows of {count} students.")
    _finish(tables)
    _say(f"{count} student{'s' * (count != 1)}, {len(tables[0].rows) - 1} rows: {paths[0]}; the totals:"
         f" {paths[1]}")


def _finish(tables):
    """Name the files; what no file can hold is shown instead, and the run counts as failed."""
    lost = []
    for table in tables:
        try:
            table.finish()
        except OSError as error:
            lost.append(f"{table.path} cannot be written ({error.strerror}); its rows stand above.")
            _say(table.text())
    if lost:
        sys.exit("\n".join(lost))


def _say(line):
    with contextlib.suppress(OSError):                # nobody listens, and the table is what counts
        print(line, flush=True)


def _options(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="with the submitted notebooks")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table to write")
    parser.add_argument("--timeout", type=_seconds, default=TIMEOUT_S, help="seconds, default 60")
    parser.add_argument("--jobs", type=_count, default=min(4, os.cpu_count() or 1),
                        help="notebooks at a time")
    return parser.parse_args(arguments)


def _seconds(text):
    try:
        if 0 < float(text) < 1e6:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a number of seconds, above 0 and below a million, got"
                                     f" {text!r}")


def _count(text):
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {text!r}")


if __name__ == "__main__":
    main()
