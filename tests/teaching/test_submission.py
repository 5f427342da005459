"""What of a submitted notebook belongs to an answer: definitions, helpers, and what changes them."""

import ast

import pytest

from scripts import submission
from tests.teaching.answers05 import FINISH, SETUP, notebook

ASK = "ex.check_finish(finish)"
USES = "def finish(l, o):\n    return {}\n\n" + ASK


@pytest.fixture
def taken(tmp_path):
    """The source of the statements that a notebook's answer to 05.1 takes along."""
    def take(*cells):
        original = submission.Notebook(notebook(tmp_path / "course.ipynb", SETUP, "def finish(l, o):"
                                                "\n    raise NotImplementedError\n\n" + ASK))
        mine = submission.Notebook(notebook(tmp_path / "mine.ipynb", *cells))
        task = submission.tasks(original, {"check_finish": "05.1"})["05.1"]
        statements, _, _ = submission.answer(task, mine, original)
        return [ast.unparse(statement.node) for statement in statements]

    return take


@pytest.mark.parametrize(("changed", "reads"), [
    ("cache = {}\ncache['axis'] = 1", "cache['axis']"),
    ("axes = []\naxes.append(1)", "axes[0]"),
    ("axes = []\nfor n in (1, 2):\n    axes.append(n)", "axes[0]"),
    ("axes = [0, 1]\nlast = axes.pop()", "axes[0]"),
    ("axes = [0, 1]\ndel axes[0]", "axes[0]"),
    ("axes = [0]\naxes += [1]", "axes[1]"),
    ("axis = 1\nif axis > 1:\n    axis = 0", "axis"),
    ("axis = 3\nwhile axis > 1:\n    axis -= 1", "axis"),
    ("cache = {}\ncache.setdefault('a', {})['b'] = 1", "cache['a']['b']"),
    ("class Box:\n    pass\nbox = Box()\nbox.axis = 1", "box.axis"),
    ("def helper():\n    return helper.axis\nhelper.axis = 1", "helper()"),
    ("import random\naxes = [1]\nrandom.shuffle(axes)", "axes[0]"),
    ("def fill(c):\n    c['axis'] = 1\ncache = {}\nfill(cache)", "cache['axis']"),
    ("cache = {}\ndef setup():\n    cache['axis'] = 1\nsetup()", "cache['axis']"),
    ("def setup():\n    global axis\n    axis = 1\nsetup()", "axis"),
    ("def deep():\n    global axis\n    axis = 1\ndef setup():\n    deep()\nsetup()", "axis"),
    ("import functools\n@functools.singledispatch\ndef area(x):\n    return 0\n"
     "@area.register\ndef _(x: int):\n    return 1", "area(1)")])
def test_what_changes_a_helper_comes_along(taken, changed, reads):
    """By an item, an attribute or a call: Python agrees with what is taken."""
    kept = taken(SETUP, changed, USES.format(reads))
    space = {}
    exec("\n".join(kept), space)
    whole = {}
    exec(f"{changed}\ndef finish(l, o):\n    return {reads}", whole)
    assert space["finish"](0, 0) == whole["finish"](0, 0)


def test_what_only_shows_a_helper_stays_behind(taken):
    kept = taken(SETUP, "axes = [1]", "len(axes)\nn = max(axes)", USES.format("axes[0]"),
                 "axes.append('after the check')", "axes[0] = 'scratch'")
    assert "axes = [1]" in kept and "n = max(axes)" not in kept
    assert not any("scratch" in line or "after" in line for line in kept)


def test_the_checks_are_not_called_again(taken):
    kept = taken(SETUP, USES.format("o"), "answer = 1\nex.check_other(answer)")
    assert not any("check_" in line for line in kept)


def test_the_definition_beside_the_check_wins_over_a_later_one(taken):
    """Else a scratch cell at the end decides."""
    kept = taken(SETUP, USES.format("'mine'"), "def finish(l, o):\n    return 'scratch'")
    assert any("'mine'" in line for line in kept) and not any("scratch" in line for line in kept)


@pytest.mark.parametrize("line", ["np.sum?", "?np.sum", "np.sum??", "files = !ls", "!ls -l", "!!ls",
                                  "%time 1 + 1", "took = %timeit -o 1", "%%time", "%%capture out",
                                  "\n\nnp.sum?", ">>> 1 + 1", "%matplotlib inline", "!ls \\\n  -l"])
def test_ipythons_own_lines_do_not_lose_a_cell(taken, line):
    assert any("'mine'" in kept for kept in taken(SETUP, f"{line}\n" + USES.format("'mine'")))


def test_magics_in_a_string_stay(taken):
    cell = 'text = """\n%time\n!ls\n"""\nnp.sum?\n' + USES.format("text")
    assert any(ast.unparse(ast.parse('text = "\\n%time\\n!ls\\n"')) == line
               for line in taken(SETUP, cell))


def test_a_cell_of_another_language_is_no_python(taken):
    with pytest.raises(submission.NoAnswer, match=r"does not define finish|does not parse"):
        taken(SETUP, "%%bash\n" + FINISH)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 1}', '{"cells": [1]}', '{"cells": [{}]}',
                                  '{"cells": [{"cell_type": "code", "source": [1]}]}', "[" * 200_000,
                                  '{"cells": ' + "9" * 5000 + "}", "\ud800"])
def test_what_is_no_notebook_is_said(tmp_path, text):
    (tmp_path / "x.ipynb").write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(submission.NoAnswer, match="the file is no notebook"):
        submission.Notebook(tmp_path / "x.ipynb")


def test_a_mark_of_utf8_is_no_mistake(tmp_path):
    path = notebook(tmp_path / "x.ipynb", "a = 1")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert submission.Notebook(path).sources == ["a = 1"]
