"""Keep which exercises were solved, in one small file of the reader's own `work/` folder.

`work/` is the folder of that name beside `notebooks/`. A check that passes in a kernel that runs
there adds a line; in `notebooks/`, where the committed outputs are made, in a test, or in a folder
that cannot be written, nothing is kept, and one sentence says so.
"""

import json
import os
from datetime import datetime
from pathlib import Path

FILE = "progress.json"
ELSEWHERE = ("Nothing is kept here: progress belongs to work/, your own copy of the notebooks, which"
             " `make lab` opens.")
_said: set[str] = set()                              # what this session was told already


def find(*, below: bool = False) -> Path | None:
    """Return the `work/` that this process runs in, or with `below` the one that it stands beside."""
    try:
        here = Path.cwd()
    except OSError:                                  # the folder was deleted
        return None
    candidates = [here, *here.parents] + [here / "work"] * below
    return next((folder for folder in candidates if folder.name == "work" and folder.is_dir()
                 and (folder.parent / "notebooks").is_dir()), None)


def read(folder: Path) -> tuple[dict[str, str], str]:
    """Return {exercise: when it was solved} and a remark; a damaged file is moved aside."""
    path = folder / FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))["solved"]
        if all(isinstance(when, str) for when in dict(kept).values()):
            return dict(kept), ""
    except FileNotFoundError:
        return {}, ""
    except (ValueError, KeyError, TypeError):
        pass
    aside = _free_name(folder)
    os.replace(path, aside)
    return {}, (f"work/{FILE} was damaged and lies now beside as {aside.name}; progress starts anew,"
                " and running a solved cell again brings its tick back.")


def keep(name: str) -> str:
    """Add a solved exercise to the file; return a sentence for the reader, or an empty one."""
    folder = find()
    if folder is None:
        return _once(ELSEWHERE)
    try:
        solved, remark = read(folder)
        if name not in solved:
            solved[name] = datetime.now().astimezone().isoformat(timespec="seconds")
            _write(folder / FILE, json.dumps({"solved": solved}, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        return _once(f"Nothing is kept: work/{FILE} cannot be written ({error.strerror}).")
    return remark


def _once(sentence: str) -> str:
    if sentence in _said:
        return ""
    _said.add(sentence)
    return sentence


def _write(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _free_name(folder: Path) -> Path:
    number = 1
    while (path := folder / f"progress.damaged{number if number > 1 else ''}.json").exists():
        number += 1
    return path
