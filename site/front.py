"""The pages that no notebook is: the front, the index of questions, the glossary, all figures."""

import html
import json
import re
from pathlib import Path
from string import Template

from markup import slug
from terms import TERMS

TEMPLATES = Path(__file__).resolve().parent / "templates"
TITLE = "FlashAttention, from softmax to silicon"
SLOWER = 400                                                # times, in the race of the front page
PAGES = {
    "index": {"title": TITLE, "question": "A sixth more arithmetic, a third of the time: how?",
              "description": "A course in notebooks, from the softmax of a textbook to FlashAttention"
                             " v1 to v4, with every byte counted."},
    "questions": {"title": "Questions", "question": "Where is mine answered?",
                  "description": "Questions about FlashAttention, each with what answers it."},
    "glossary": {"title": "Glossary", "question": "What does this word mean here?",
                 "description": "The words of GPUs, kernels and attention, in plain English."},
    "figures": {"title": "All figures", "question": "Where was that picture?",
                "description": "Every figure of the course, with a link to the cell that made it."},
}
_TENSORS = {"Q": "queries", "K": "keys", "V": "values", "S": "logits", "P": "weights", "O": "output"}
_PREFIX = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def fill(name, **words):
    """Return a file of templates/ with its $words filled in."""
    return Template((TEMPLATES / name).read_text("utf-8")).substitute(words)


def facts(book):
    """The line under a chapter's title: minutes, and the notebook to take away."""
    name = book.path.name
    parts = [f"<span>{book.row.minutes} min to read</span>"]
    if book.solve:
        parts.append(f"<span>{book.solve} min of exercises</span>")
    away = [f'<a href="notebooks/{name}" download>Download the notebook</a>']
    if book.repository:
        place = f"{book.repository}/blob/main/notebooks/{name}"
        away += [f'<a href="https://colab.research.google.com/github/{place}">Open in Colab</a>',
                 f'<a href="https://github.com/{place}">On GitHub</a>']
    return (f'<p class="facts" data-page="{book.path.stem}">{" · ".join(parts)}'
            f' <span class="away">{" · ".join(away)}</span></p>')


def explore(kind, state, fallback=""):
    """The place of an explorer; course.js fetches the script when the reader comes near it."""
    opens = f" data-state='{json.dumps(state)}'" if state else ""
    return f'<div data-explorer="{kind}"{opens}>{fallback}</div>'


def lab_note():
    """What stands where a notebook has sliders: how to move them."""
    return ('<p class="lab-note"><strong>A lab stands here in the notebook:</strong> download it, type'
            " <code>make lab</code> in a copy of the course, and move its controls. The picture above"
            " is how it begins.</p>")


def pairs(surprise):
    """Read the surprise's alternative text: {quantity: (of standard attention, of FlashAttention)}."""
    found = re.findall(r"([a-zA-Z ]+) \([^)]*\): ([\d.]+ ?\w*) for standard, ([\d.]+ ?\w*) for Flash",
                       surprise)
    return {name.strip(): (value(a), value(b)) for name, a, b in found}


def value(text):
    """Return the number that "836 GFLOP" stands for."""
    number, _, unit = text.partition(" ")
    return float(number) * (_PREFIX.get(unit[:1], 1) if len(unit) > 1 else 1)


def lane(cls, name, seconds, slowest):
    """One bar of the race, which runs at its recorded time."""
    style = f"--time:{seconds * SLOWER:.2f}s;--share:{seconds / slowest:.4f}"
    return (f'<div class="lane {cls}"><span class="who">{name}</span><span class="track">'
            f'<span class="run" style="{style}"></span></span>'
            f'<span class="ms">{seconds * 1e3:.2f} ms</span></div>')


def contents(books, parts):
    """The chapters by part, each with its question and its minutes."""
    out = []
    for part in parts:
        items = "".join(
            f'<li data-page="{book.path.stem}"><a href="{book.path.stem}.html">'
            f'<span class="number">{book.row.number}</span>'
            f'<span class="name">{html.escape(book.row.title)}</span>'
            f'<span class="asks">{html.escape(book.row.question)}</span>'
            f'<span class="minutes">{book.row.minutes} min</span></a></li>'
            for book in books if book.row.part == part)
        if items:
            out.append(f'## {part}\n\n```{{raw}} html\n<ul class="chapters">{items}</ul>\n```\n')
    return "\n".join(out)


def trees(books, parts):
    """The tables of contents that Sphinx's sidebar is made of, one a part."""
    out = []
    for part in parts:
        stems = [book.path.stem for book in books if book.row.part == part]
        if stems:
            head = ["```{toctree}", ":hidden:", f":caption: {part}", ""]
            out.append("\n".join([*head, *stems, "```", ""]))
    return "\n".join(out)


def page(books, parts, times, surprise, film):
    """Return the front page as Markdown; its numbers are those that were recorded."""
    standard, flash = times
    ratio = {name: max(a, b) / min(a, b) for name, (a, b) in pairs(surprise).items()}
    stems = {book.row.number: book.path.stem for book in books}
    return fill(
        "front.md", title=TITLE, film=film, slow=SLOWER, count=len(books),
        lanes=lane("standard", "standard attention", standard, standard)
        + lane("flash", "FlashAttention", flash, standard),
        more=f"{ratio['arithmetic']:.2f}", less=f"{ratio['bytes at DRAM']:.0f}",
        faster=f"{standard / flash:.1f}",
        hours=round(sum(book.row.minutes for book in books) / 60),
        solve=round(sum(book.solve for book in books) / 60),
        first=stems["00"], softmax=stems["03"], sixth=stems["06"],
        contents=contents(books, parts), trees=trees(books, parts))


def questions(index):
    """The index of notebooks/README.md as a page."""
    body = index[index.index("\n## "):]
    body = re.sub(r"\]\(([^)#\s]+)#([^)\s]+)\)", lambda found: f"]({found[1]}#{slug(found[2])})", body)
    return ("# Questions, and where they are answered\n\nEach line leads to the heading under which the"
            f" answer stands.\n{body}")


def glossary(books):
    """The glossary as a page; sphinx_parts.py shows the same words over the chapters' prose."""
    stems = {book.row.number: book.path.stem for book in books}
    items = "".join(
        f'<dt id="{term.key}">{html.escape(term.name)}</dt><dd>{html.escape(term.text)} '
        f'<a href="{stems[term.chapter]}.html">chapter {term.chapter}</a></dd>'
        for term in sorted(TERMS, key=lambda term: term.name.lower()))
    hues = "".join(f'<li class="t{name}"><b>{name}</b> {what}</li>' for name, what in _TENSORS.items())
    return ("# Glossary\n\nThe words as this course uses them. In a chapter, each has a dotted line"
            f' where it first occurs.\n\n```{{raw}} html\n<dl class="glossary">{items}</dl>\n```\n\n'
            "## The six tensors\n\nTheir hues are the same in formulas and in figures.\n\n"
            f'```{{raw}} html\n<ul class="hues">{hues}</ul>\n```\n')


def figures(books):
    """The page of all figures; post.py puts the pictures where the marks are."""
    sections = [f"## {book.row.number} {book.row.title}\n\n```{{raw}} html\n"
                f"<!-- gallery {book.path.stem} -->\n```\n" for book in books]
    return "\n".join(["# All figures\n\nEach leads to the cell that made it.\n", *sections])
