"""The text that chapter 17's model reads: the manual that Python carries, as numbers."""

import gzip

import numpy as np

from flashlib.course.notebook.data import PACKAGE

FILE = "python_topics.txt.gz"


def manual() -> str:
    """Return the topics of Python 3.11's manual, 465,126 characters (PSF licence, assets/data)."""
    folders = [PACKAGE / "_assets" / "data", PACKAGE.parent / "assets" / "data"]
    path = next(folder / FILE for folder in folders if (folder / FILE).is_file())
    return gzip.decompress(path.read_bytes()).decode()


def numbered(text):
    """Return the sorted kinds of characters in a text, and the number of each character's kind."""
    kinds = sorted(set(text))
    place = {kind: n for n, kind in enumerate(kinds)}
    return kinds, np.array([place[c] for c in text], dtype=np.int64)


def batches(numbers, N, B, seed):
    """Yield arrays (B, N + 1) of consecutive characters, drawn from a seeded generator, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        at = rng.integers(0, len(numbers) - N, size=(B, 1))
        yield numbers[at + np.arange(N + 1)]
