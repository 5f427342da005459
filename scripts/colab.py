"""Write the chapters for Google Colab: each begins with a cell that installs the course's package.

    python scripts/colab.py OUT --repository OWNER/NAME [--revision REV]      what `make colab` calls

Colab opens one notebook of a repository at a time, without what lies beside it. So the workflow that
publishes the site pushes these to a branch of their own, `colab`, to which the site's pages link; their
links lead to each other there, and to files on GitHub. Outputs stay: who runs nothing reads them.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLAB = "https://colab.research.google.com/github"
_NAMED = re.compile(r"[\w.-]+/[\w.-]+")
_CHAPTER = re.compile(r"\]\((\d\d\w*\.ipynb)")
_FILE = re.compile(r"\]\((?:\.\./)+")


def set_up(address: str) -> dict:
    """Return the cell that installs the package from a repository's address."""
    source = ("# Colab does not know the course yet: this takes it from its repository.\n"
              f'%pip install -q "flashlib[colab] @ git+{address}"')
    return {"cell_type": "code", "execution_count": None, "id": "colab-set-up", "metadata": {},
            "outputs": [], "source": source.splitlines(keepends=True)}


def for_colab(notebook: dict, repository: str, revision: str = "", folder: str = "") -> dict:
    """Return a notebook with that cell in front, and links that lead on from Colab.

    Args:
        repository: "OWNER/NAME", on GitHub.
        revision: what the cell installs; "" is the newest.
        folder: where the notebooks lie in the branch, "" or as "zh/".

    Raises:
        ValueError: the repository has another form.
    """
    if not _NAMED.fullmatch(repository):
        raise ValueError(f"repository: expected OWNER/NAME, got {repository!r}")
    there = f"https://github.com/{repository}"
    cells = [set_up(there + f"@{revision}" * bool(revision))]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = _FILE.sub(f"]({there}/blob/main/", "".join(cell["source"]))
            text = _CHAPTER.sub(rf"]({COLAB}/{repository}/blob/colab/{folder}\1", text)
            cell = cell | {"source": text.splitlines(keepends=True)}
        cells.append(cell)
    return notebook | {"cells": cells}


def write(out: Path, repository: str, revision: str = "") -> int:
    """Write every chapter into `out`, and the Chinese ones into `out`/zh; return how many."""
    subprocess.run([sys.executable, ROOT / "i18n" / "notebooks.py", "zh"], check=True)
    count = 0
    for home, folder in (("notebooks", ""), ("notebooks_zh", "zh/")):
        (out / folder).mkdir(parents=True, exist_ok=True)
        for path in sorted((ROOT / home).glob("*.ipynb")):
            notebook = for_colab(json.loads(path.read_text("utf-8")), repository, revision, folder)
            text = json.dumps(notebook, ensure_ascii=False, indent=1)
            (out / folder / path.name).write_text(text + "\n", "utf-8")
            count += 1
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--revision", default="")
    args = parser.parse_args()
    try:
        print(f"{args.out}: {write(args.out, args.repository, args.revision)} notebooks")
    except ValueError as error:
        parser.error(str(error))
