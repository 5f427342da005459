"""The pages that no notebook is: the front, the index of questions, the glossary."""

import html
import re

from markup import slug
from terms import TERMS

TITLE = "FlashAttention, from softmax to silicon"
PAGES = {
    "index": {"title": TITLE, "question": "A sixth more arithmetic, a third of the time: how?",
              "description": "A course in notebooks, from the softmax of a textbook to FlashAttention v1 to v4,"
                             " with every byte counted."},
    "questions": {"title": "Questions", "question": "Where is mine answered?",
                  "description": "Questions about FlashAttention, each with the place that answers it."},
    "glossary": {"title": "Glossary", "question": "What does this word mean here?",
                 "description": "The words of GPUs, kernels and attention, in plain English."},
    "figures": {"title": "All figures", "question": "Where was that picture?",
                "description": "Every figure of the course, with a link to the cell that made it."},
}


def link(name, text, cls=""):
    return f'<a{f" class={cls!r}" if cls else ""} href="{name}">{text}</a>'


def facts(book):
    """The line under a chapter's title: minutes, needs, and the notebook to take away."""
    row, name = book.row, book.path.name
    solve = f' · <span>{book.solve} min of exercises</span>' if book.solve else ""
    away = f'<a href="notebooks/{name}" download>Download the notebook</a>'
    if book.repository:
        place = f"{book.repository}/blob/main/notebooks/{name}"
        away += (f' · <a href="https://colab.research.google.com/github/{place}">Open in Colab</a>'
                 f' · <a href="https://github.com/{place}">On GitHub</a>')
    return (f'<p class="facts" data-page="{book.path.stem}"><span>{row.minutes} min to read</span>{solve}'
            f'<span class="away">{away}</span></p>')


def lab_note(blocks):
    """What stands where a notebook has sliders: the explorer's place, or how to move them."""
    note = ('<p class="lab-note"><strong>A lab stands here in the notebook:</strong> download the notebook, type'
            ' <code>make lab</code> in a copy of the course, and move its controls. The picture above is how it'
            ' begins.</p>')
    return f'<div data-explorer="blocks">{note}</div>' if blocks else note


def _ratios(surprise):
    """Read the pairs of numbers in the surprise's alternative text: {name: (standard, flash)}."""
    pairs = re.findall(r"([a-zA-Z ]+) \(([^)]*)\): ([\d.]+ ?\w*) for standard, ([\d.]+ ?\w*) for Flash", surprise)
    return {name.strip(): (origin, a, b) for name, origin, a, b in pairs}


_PREFIX = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _value(text):
    number, _, unit = text.partition(" ")
    return float(number) * (_PREFIX.get(unit[:1], 1) if len(unit) > 1 else 1)


def race(times, surprise):
    """The surprise, moving: two bars that run at the recorded times, slowed down."""
    standard, flash = times
    pairs = _ratios(surprise)
    more = _value(pairs["arithmetic"][2]) / _value(pairs["arithmetic"][1])
    less = _value(pairs["bytes at DRAM"][1]) / _value(pairs["bytes at DRAM"][2])
    slow = 400
    lanes = "".join(
        f'<div class="lane {cls}"><span class="who">{name}</span><span class="track"><span class="run"'
        f' style="--time:{seconds * slow:.2f}s;--share:{seconds / standard:.4f}"></span></span>'
        f'<span class="ms">{seconds * 1e3:.2f} ms</span></div>'
        for cls, name, seconds in (("standard", "standard attention", standard), ("flash", "FlashAttention", flash)))
    return (
        '<figure class="race" id="race">'
        f'{lanes}<figcaption>One training step of 64 heads over 4,096 tokens, recorded on an NVIDIA H200 and'
        f' played {slow} times slower. <button type="button" data-again>Run it again</button></figcaption></figure>'
        '<ul class="ratios">'
        f'<li><b>× {more:.2f}</b> arithmetic, counted</li>'
        f'<li><b>÷ {less:.0f}</b> bytes from and to DRAM, recorded</li>'
        f'<li><b>÷ {standard / flash:.1f}</b> time, recorded</li>'
        '<li><b>=</b> the same function, exactly</li></ul>')


def contents(books, parts):
    """The chapters by part, each with its question and its minutes."""
    out = []
    for part in parts:
        inside = [book for book in books if book.row.part == part]
        if not inside:
            continue
        items = "".join(
            f'<li data-page="{b.path.stem}"><a href="{b.path.stem}.html"><span class="number">{b.row.number}</span>'
            f'<span class="name">{html.escape(b.row.title)}</span><span class="asks">{html.escape(b.row.question)}'
            f'</span><span class="minutes">{b.row.minutes} min</span></a></li>' for b in inside)
        out.append(f"## {part}\n\n```{{raw}} html\n<ul class=\"chapters\">{items}</ul>\n```\n")
    return "\n".join(out)


def page(books, parts, times, surprise, film):
    """Return the front page as Markdown."""
    hours = round(sum(b.row.minutes for b in books) / 60)
    solve = round(sum(b.solve for b in books) / 60)
    trees = "".join("```{toctree}\n:hidden:\n:caption: " + part + "\n\n"
                    + "\n".join(b.path.stem for b in books if b.row.part == part) + "\n```\n\n"
                    for part in parts if any(b.row.part == part for b in books))
    first, fourth = books[0].path.stem, books[3].path.stem
    return f"""---
hide-toc: true
---
# {TITLE}

```{{raw}} html
<p class="lede">This algorithm does <b>a sixth more arithmetic</b> than the plain one and is done in <b>about a
third of the time</b>. Both compute the same function, exactly. How can that be?</p>
{race(times, surprise)}
<p class="begin">{link(first + ".html", "Begin with chapter 00", "primary")}
{link(fourth + ".html", "Straight to the softmax")} {link("questions.html", "I have a question")}</p>
```

The short answer is that a GPU spends much of its time waiting for memory. The long answer is this course:
{len(books)} notebooks, about {hours} hours of reading and {solve} of exercises, after which you can derive the
algorithm with pen and paper, predict its traffic to the byte, and read its kernels. You need Python and linear
algebra, and no GPU.

![{film}](film.png){{.film}}

*FlashAttention walks over one attention head of a real sentence, tile by tile. Every byte is counted by a GPU made of
paper, whose memory cannot be read except through a load that counts.*

{contents(books, parts)}
## Take it with you

Every chapter is a notebook, and its page has a link to it. To run them all, with their sliders and exercises that
say which mistake an answer looks like, type `make lab` in a copy of the course. There is an
[index of questions](questions.md), a [glossary](glossary.md), and a page with [all figures](figures.md).
This site works without a network: save its folder, open `index.html`.

{trees}```{{toctree}}
:hidden:
:caption: To look things up

questions
glossary
figures
```
"""


def questions(index):
    """The index of notebooks/README.md as a page."""
    body = index[index.index("\n## "):]
    body = re.sub(r"\]\(([^)#\s]+)#([^)\s]+)\)", lambda found: f"]({found[1]}#{slug(found[2])})", body)
    return ("# Questions, and where they are answered\n\nEach line leads to the heading under which the answer"
            f" stands.\n{body}")


def glossary(books):
    """The glossary as a page; sphinx_parts.py shows the same words over the chapters' prose."""
    stems = {book.row.number: book.path.stem for book in books}
    items = "".join(
        f'<dt id="{term.key}">{html.escape(term.name)}</dt><dd>{html.escape(term.text)} '
        f'<a href="{stems[term.chapter]}.html">chapter {term.chapter}</a></dd>'
        for term in sorted(TERMS, key=lambda term: term.name.lower()))
    hues = "".join(f'<li class="t{name}"><b>{name}</b> {what}</li>' for name, what in (
        ("Q", "queries"), ("K", "keys"), ("V", "values"), ("S", "logits"), ("P", "weights"), ("O", "output")))
    return ("# Glossary\n\nThe words as this course uses them. In a chapter, each has a dotted line where it first"
            f" occurs.\n\n```{{raw}} html\n<dl class=\"glossary\">{items}</dl>\n```\n\n## The six tensors\n\nTheir"
            f" hues are the same in formulas and in figures.\n\n```{{raw}} html\n<ul class=\"hues\">{hues}</ul>\n```\n")


def figures(books):
    """The page of all figures; post.py puts the pictures where the marks are."""
    return "# All figures\n\nEach leads to the cell that made it.\n\n" + "\n".join(
        f"## {book.row.number} {book.row.title}\n\n```{{raw}} html\n<!-- gallery {book.path.stem} -->\n```\n"
        for book in books)
