"""What is to translate beside the chapters: titles, questions, the glossary, the site's words, hints.

The site's words stand where they are used, as `say("…")` in site/ and slides/, and are collected there.
"""

import ast
import html
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUESTION = re.compile(r"^- (.+?) \[(\d\d[a-z]?) · (.+)\]\(([^)#\s]+)#(\S+)\)$", re.M)
_NO_WORDS = re.compile(
    r"(?s:<style>.*?</style>)|```.*|<[^>]*>|\{\{\w+\}\}|!\[|\]\([^)]*\)|^hide-toc.*", re.M)
TEMPLATES = ("site/templates/front.md", "site/templates/lost.html", "slides/index.html")


def table():
    """Yield the parts, titles, questions and what is shown, of the table of chapters."""
    sys.path.insert(0, str(ROOT))
    from flashlib.course.notebook.chapters import CHAPTERS, PARTS

    yield from PARTS
    for row in CHAPTERS:
        yield from filter(None, (row.title, row.question, row.shows))


def said():
    """Yield each line that a module of the site or the slides says to its readers."""
    for path in sorted([*(ROOT / "site").glob("*.py"), *(ROOT / "slides").glob("*.py")]):
        tree = ast.parse(path.read_text("utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name == "say" and isinstance(call.args[0], ast.Constant):
                yield call.args[0].value


def labels():
    """Yield the labels of predictions that are not symbols only, each once."""
    written = json.loads((ROOT / "site/predictions.json").read_text("utf-8"))
    found = [label for places in written.values() for fields in places.values() for label, _ in fields]
    words = re.compile(r"\b(?!group=)[a-z]{3}")
    yield from (label for label in dict.fromkeys(found) if words.search(label))


def templates():
    """Yield the paragraphs of site/templates and of the slides' index in which there are words."""
    for name in TEMPLATES:
        for text in (ROOT / name).read_text("utf-8").strip("\n").split("\n\n"):
            if re.search(r"[A-Za-z]{3}", html.unescape(_NO_WORDS.sub(" ", text))):
                yield text


def glossary():
    """Yield the glossary's words, and what each of them means."""
    sys.path.insert(0, str(ROOT / "site"))
    from terms import TERMS

    for term in TERMS:
        yield from (term.name, term.text)


def questions():
    """Yield the headings and paragraphs of notebooks/README.md, and its questions."""
    for part in (ROOT / "notebooks/README.md").read_text("utf-8").strip("\n").split("\n\n"):
        if part.startswith("- "):
            yield from (found[1] for found in QUESTION.finditer(part))
        else:
            yield re.sub("^#+ ", "", part)


def hints():
    """Yield the hints of all exercises."""
    sys.path.insert(0, str(ROOT / "site"))
    import answers

    for number in sorted(path.name[2:] for path in (ROOT / "flashlib/course").glob("ch[0-9]*")):
        for found, _ in answers.of_chapter(number).values():
            yield from found


def lines():
    """Yield every line, in the order in which a translator would read them."""
    for part in (table, said, labels, templates, questions, glossary, hints):
        yield from part()
