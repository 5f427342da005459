"""Build the course as an archive for students or for instructors.

    editions.py student      dist/student.zip: no solutions, no lesson plans, no tests of exercises
    editions.py instructor   dist/instructor.zip: everything, and the expected answers written out

Both hold a whole course: `make lab` and `make test` work in either. The same tree gives the same
bytes.
"""

import argparse
import re
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "flashattention-course"
COURSE = ("LICENSE", "Makefile", "README.md", "pyproject.toml", "requirements.txt",
          "requirements.lock", ".gitignore", "assets", "flashlib", "i18n", "notebooks", "scripts",
          "site", "tests")
NEVER = {"__pycache__", ".ipynb_checkpoints", ".hypothesis", ".pytest_cache", "node_modules"}
# What a student must not have: the answers, what tests them, and what is for the instructor.
WITHHELD = ("assets/teaching", "flashlib/course/ch*/solutions.py", "i18n/*/slides",
            "tests/course/ch*/test_exercises.py", "tests/course/ch*/kernels_ch*.py",
            "tests/course/exercises", "tests/teaching", "scripts/teach.mk",
            "scripts/editions.py", "scripts/answers.py", "scripts/grade.py",
            "scripts/grade_guard.py", "scripts/grade_table.py", "scripts/grade_warden.py",
            "scripts/grade_worker.py", "scripts/submission.py")
TEACH = re.compile(r"(?ms)^## Teach from it\n.*?(?=^## |\Z)")


def course_files(root=ROOT):
    """All files of the course as {path inside it: content}."""
    files = {}
    for name in COURSE:
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            inside = path.relative_to(root)
            if path.is_file() and not NEVER & set(inside.parts) and _belongs(inside):
                files[inside.as_posix()] = path.read_bytes()
    return files


def _belongs(inside):
    if inside.parts[0] == "notebooks":                # a stray file there is nobody else's
        return re.fullmatch(r"\d\d[a-z]?_\w+\.ipynb|README\.md", inside.name) is not None
    return inside.suffix not in (".pyc", ".part") and inside.name != ".DS_Store"


def student_files(root=ROOT):
    """The course without what is withheld from students."""
    files = {name: content for name, content in course_files(root).items()
             if not any(fnmatch(name, part) or name.startswith(part + "/") for part in WITHHELD)}
    readme = files["README.md"].decode("utf-8")
    files["README.md"] = TEACH.sub("", readme).encode("utf-8")
    return files


def instructor_files(root=ROOT):
    """The whole course, with a sheet of expected answers beside each lesson plan."""
    if str(root) not in sys.path:                     # the answers come from this tree's flashlib
        sys.path.insert(0, str(root))
    from scripts import answers

    files = course_files(root)
    for chapter, sheet in answers.sheets(root).items():
        files[f"assets/teaching/answers/{chapter}.md"] = sheet.encode("utf-8")
    return files


def write_zip(path, files):
    """Write {name: content} as one archive, sorted and without times, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(f"{FOLDER}/{name}")
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            archive.writestr(info, files[name])
    beside.replace(path)


EDITIONS = {"student": student_files, "instructor": instructor_files}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("edition", choices=EDITIONS)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder; default: dist/")
    options = parser.parse_args(arguments)
    files = EDITIONS[options.edition]()
    path = options.out / f"{options.edition}.zip"
    try:
        write_zip(path, files)
    except OSError as error:
        sys.exit(f"{path} cannot be written ({error.strerror}).")
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    print(f"{shown}: {len(files)} files, {path.stat().st_size / 1e6:.1f} MB."
          f" Unpack it; `make lab` and `make test` work in {FOLDER}/.")


if __name__ == "__main__":
    main()
