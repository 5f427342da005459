"""Planting bugs: what counts in an edit, and what does not."""

import ast
import re
import shutil
import subprocess
import sys

import pytest

from tests.mutants.build import SOURCE
from tests.mutants.edits import canonical, edited, tokens

SOURCE_TEXT = '''
def attend(q, k, *, scale=1.0):                 # a comment
    """Say what it does."""
    S = ((q @ k.T)
         * scale)
    low, high = S.min(), f"{S.max():.1f}"
    if (scale > 1 and
            low < 0):
        S = S + 1
        S = S + 2
    for n, x in enumerate(S,): low += x
    return (S,
            low)
'''
FITS = {
    "as it is written": ("S = S + 1", "S = S - 1"),
    "other spaces": ("S=S  +1", "S = S - 1"),
    "parentheses that mean nothing": ("S = (S + (1))", "S = S - 1"),
    "parentheses that the source has": ("((q @ k.T) * scale)", "q @ k.T"),
    "none where the source has some": ("return S, low", "return low, S"),
    "and the other way": ("low, high = (S.min(), f'{S.max():.1f}')", "low, high = 0, 1"),
    "a fragment that closes nothing": ("enumerate(S", "enumerate(2 * S"),
    "a fragment that opens nothing": ("k.T * scale", "k.T"),
    "line breaks": ("q @ k.T\n* scale", "q @ k.T"),
    "a comment": ("S = S + 1  # why", "S = S - 1"),
    "a trailing comma": ("enumerate(S,)", "enumerate(q,)"),
    "quotes": ('"""Say what it does."""', "'Do it.'"),
    "another way to write a number": ("scale=1.00", "scale=2.0"),
    "indentation": ("        S = S + 1\n        S", "        S = S - 1\n        S"),
    "the end of a statement": ("S + 1\n", "S + 3\n"),
    "two statements on a line": ("S = S + 1; S = S + 2", "S = S + 3"),
    "the head of a block": ("if (scale > 1 and low < 0):", "if scale > 1:"),
    "a block on one line": ("for n, x in enumerate(S):\n    low += x", "low += 1"),
}


@pytest.mark.parametrize("old, new", FITS.values(), ids=FITS)
def test_layout_counts_for_nothing(old, new):
    assert edited(SOURCE_TEXT, ((old, new),)) != canonical(SOURCE_TEXT)


@pytest.mark.parametrize("edit, message", [
    (("S = S + 4", ""), "attention: expected exactly one 'S = S [+] 4', found 0"),
    (("S = S", "S = 2 * S"), "expected exactly one 'S = S', found 2"),
    (("ow += x", ""), "found 0"),                                   # whole words count
    (("q @ k", "q @ k\n"), "with .* in the place of 'q @ k' it does not parse"),
    (("S = S + 1", "S = (S + 1)"), "changes nothing"),
    (("a comment", "another"), "found 0"),
    (("S.min()\n", "S.max()\n"), "found 0"),                        # no statement ends here
])
def test_an_edit_that_does_not_fit_is_an_error(edit, message):
    with pytest.raises(LookupError, match=message):
        edited(SOURCE_TEXT, (edit,), name="attention")


def test_all_places_are_changed_on_request():
    text = edited(SOURCE_TEXT, (("S = S", "S = 2 * S"),), everywhere=True)
    assert text.count("S = 2 * S +") == 2


def test_further_lines_are_indented_as_the_first_is():
    text = edited(SOURCE_TEXT, (("S = S + 1", "if S:\n    S = S + 1\nelse:\n    pass"),))
    assert "        if S:\n            S = S + 1\n        else:\n            pass\n" in text


PATHS = [*SOURCE.glob("*.py"), *SOURCE.glob("algorithms/*.py"), *SOURCE.glob("kernels/**/*.py")]


def test_the_canonical_form_means_the_same_and_is_its_own():
    for path in PATHS:
        source = path.read_text(encoding="utf-8")
        text = canonical(source)
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)), path
        assert canonical(text) == text, path


def test_a_formatter_changes_nothing(tmp_path):
    """Docstrings apart, whose indentation a formatter may change."""
    shutil.copytree(SOURCE, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "ruff", "format", "-q", "--isolated", "--line-length=72", "."]
    subprocess.run(command, cwd=tmp_path / "copy", check=True)
    changed = 0
    for path in PATHS:
        before, after = (whose.read_text(encoding="utf-8")
                         for whose in (path, tmp_path / "copy" / path.relative_to(SOURCE)))
        says = ["".join(re.sub(r"\\n|\s", "", token.says) for token in tokens(canonical(text)))
                for text in (before, after)]
        assert says[0] == says[1], path
        changed += before != after
    assert changed > len(PATHS) / 2
