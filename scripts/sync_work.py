"""Keep work/ a copy of notebooks/ that belongs to the reader.

A notebook that the reader has not touched follows its original. One that was edited (opening and
running it is enough: Jupyter saves its outputs) is never overwritten; when its original changes,
the new version is laid beside it as new_NN_name.ipynb, once. A deleted notebook comes back.
work/.originals.json remembers what was copied.
"""

import errno
import hashlib
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ".originals.json"


def sync(notebooks, work, called="work"):
    """Bring work up to date with notebooks, and return the sentences that the reader should see."""
    notebooks, work = Path(notebooks), Path(work)
    work.mkdir(parents=True, exist_ok=True)
    remembered = _read_manifest(work / MANIFEST)
    copied, offered = remembered["copied"], remembered["offered"]
    messages = []
    for original in sorted(notebooks.glob("*.ipynb")):
        name, content = original.name, original.read_bytes()
        version, mine = _sha256(content), work / name
        here = _sha256(mine.read_bytes()) if mine.exists() else None
        if here in (None, version, copied.get(name)):
            if here != version:
                _write(mine, content)
            copied[name] = version
        elif version not in (copied.get(name), offered.get(name, {}).get("version")):
            beside = _free_name(work, name, offered.get(name, {}))
            _write(work / beside, content)
            offered[name] = {"file": beside, "version": version}
            messages.append(
                f"{called}/{name} holds your edits and stays; "
                f"the course's new version lies beside it as {beside}."
            )
    _write(work / MANIFEST, json.dumps(remembered, indent=1, sort_keys=True).encode())
    return messages


def _translated(language):
    """Write the notebooks of another language, and to build/ with links as they must be in work/zh."""
    sys.path.insert(0, str(ROOT / "i18n"))
    import notebooks

    if language not in notebooks.LANGUAGES:
        sys.exit(f"LANGUAGE: expected one of {', '.join(notebooks.LANGUAGES)}, got {language}")
    notebooks.write(notebooks.LANGUAGES[language])          # its index is linked to
    return notebooks.write(notebooks.LANGUAGES[language], ROOT / "build" / f"work_{language}", up="../")


def _free_name(work, name, last_offer):
    """A name for a new version that takes no file away from the reader."""
    number = 1
    while True:
        candidate = work / f"new{number if number > 1 else ''}_{name}"
        if not candidate.exists():
            return candidate.name
        untouched = _sha256(candidate.read_bytes()) == last_offer.get("version")
        if candidate.name == last_offer.get("file") and untouched:
            return candidate.name
        number += 1


def _read_manifest(path):
    try:
        manifest = json.loads(path.read_bytes())
        return {"copied": dict(manifest["copied"]), "offered": dict(manifest["offered"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"copied": {}, "offered": {}}


def _write(path, content):
    """Write a whole file or nothing."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # a full disk names no file
        raise


def _sha256(content):
    return hashlib.sha256(content).hexdigest()


def main(language="en"):
    """Bring work/ up to date, or work/zh with the Chinese notebooks."""
    try:
        if language == "en":
            messages = sync(ROOT / "notebooks", ROOT / "work")
        else:
            messages = sync(_translated(language), ROOT / "work" / language, f"work/{language}")
    except OSError as error:
        remedy = "copy the course to a folder of your own and try again there"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "make room and try again; your notebooks in work/ are as they were"
        sys.exit(f"work/ cannot be written ({error.strerror}: {error.filename}): {remedy}.")
    print("\n".join(messages), end="\n" if messages else "")


if __name__ == "__main__":
    main()
