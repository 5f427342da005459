"""Freeze the manual's topics that CPython carries (`help('topics')`) as a text to train on.

    python assets/data/make_python_topics.py

The text differs from one version of Python to the next, and losses with it: the file is of 3.11.7.
"""

import gzip
from pathlib import Path
from pydoc_data.topics import topics

FOLDER = Path(__file__).resolve().parent


def main():
    """Write `python_topics.txt.gz`, the topics in the order of their names."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    # No time of making in it, so that the same text gives the same bytes.
    (FOLDER / "python_topics.txt.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(text)} characters, {len(set(text))} kinds")


if __name__ == "__main__":
    main()
