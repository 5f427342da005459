"""The pages that no notebook is: the front, the index of questions, the glossary, all figures."""

import html
import json
import re
from pathlib import Path

from markup import powers, slug
from terms import TERMS

TEMPLATES = Path(__file__).resolve().parent / "templates"
SLOWER = 400                                                # times, in the race of the front page
_PREFIX = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def title(say):
    return say("FlashAttention, from softmax to silicon")


def pages(say):
    """Return what is said of these pages to those who do not see them yet."""
    return {
        "index": {
            "title": title(say),
            "question": say("A sixth more arithmetic, a third of the time: how?"),
            "description": say("A course in notebooks, from the softmax of a textbook to FlashAttention"
                               " v1 to v4, with every byte counted.")},
        "questions": {
            "title": say("Questions"), "question": say("Where is mine answered?"),
            "description": say("Questions about FlashAttention, each with what answers it.")},
        "glossary": {
            "title": say("Glossary"), "question": say("What does this word mean here?"),
            "description": say("The words of GPUs, kernels and attention, in plain English.")},
        "figures": {
            "title": say("All figures"), "question": say("Where was that picture?"),
            "description": say("Every figure of the course, with a link to the cell that made it.")},
    }


def paragraphs(name):
    """Return the parts of a file of templates/; an empty line stands between two."""
    return (TEMPLATES / name).read_text("utf-8").strip("\n").split("\n\n")


def fill(name, say, **words):
    """Return a file of templates/ in a language, with its {{words}} filled in."""
    return "\n\n".join(say(text, **words) for text in paragraphs(name)) + "\n"


def facts(book):
    """The line under a chapter's title: minutes, and the notebook to take away."""
    name, say = book.path.name, book.language.say
    parts = [f'<span>{say("{{n}} min to read", n=book.row.minutes)}</span>']
    if book.solve:
        parts.append(f'<span>{say("{{n}} min of exercises", n=book.solve)}</span>')
    packed = f"notebooks/{book.path.stem}.zip"
    away = [f'<a href="{packed}" download>{say("Download the notebook")} (zip)</a>',
            f'<a href="index.html#course">{say("How to run it")}</a>']
    if book.repository:
        away.append(f'<a href="https://colab.research.google.com/github/{book.repository}/blob/colab/'
                    f'{book.language.folder}{name}">{say("Open in Colab")}</a>')
    if book.repository and not book.language.folder:        # beside the English ones, none are kept
        away += [f'<a href="https://mybinder.org/v2/gh/{book.repository}/main?labpath='
                 f'notebooks%2F{name}">{say("Open in Binder")}</a>',
                 f'<a href="https://github.com/{book.repository}/blob/main/notebooks/{name}">'
                 f'{say("On GitHub")}</a>']
    return (f'<p class="facts" data-page="{book.path.stem}" data-plain="{book.plain}">'
            f'{" · ".join(parts)} <span class="away">{" · ".join(away)}</span></p>')


def explore(kind, state, fallback=""):
    """The place of an explorer; course.js fetches the script when the reader comes near it."""
    text = html.escape(json.dumps(state, ensure_ascii=False, separators=(",", ":")), quote=False)
    opens = " data-state='" + text.replace("'", "&#39;") + "'" if state else ""
    return f'<div data-explorer="{kind}"{opens}>{fallback}</div>'


def lab_note(say, repository=""):
    """What stands where a notebook has sliders: how to move them."""
    course = f"https://github.com/{repository}" if repository else "index.html#course"
    words = say("<strong>In the notebook only:</strong> this lab has controls there. Type"
                ' <code>make lab</code> in the folder of <a href="{{course}}">the course</a>, and move'
                " them.", course=course)
    return f'<p class="lab-note">{words}</p>'


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
    return (f'<div class="lane {cls}" style="{style}"><span class="who">{name}</span>'
            '<span class="track"><span class="run"></span></span>'
            f'<span class="ms">{seconds * 1e3:.2f} ms</span></div>')


def contents(books, parts, say):
    """The chapters by part, each with its question and its minutes."""
    out = []
    for part in parts:
        items = "".join(
            f'<li data-page="{book.path.stem}"><a href="{book.path.stem}.html">'
            f'<span class="number">{book.row.number}</span>'
            f'<span class="name">{html.escape(say(book.row.title))}</span>'
            f'<span class="asks">{html.escape(say(book.row.question))}</span>'
            f'<span class="minutes">{say("{{n}} min", n=book.row.minutes)}</span></a></li>'
            for book in books if book.row.part == part)
        if items:
            out.append(f'## {say(part)}\n\n```{{raw}} html\n<ul class="chapters">{items}</ul>\n```\n')
    return "\n".join(out)


def trees(books, parts, say):
    """The tables of contents that Sphinx's sidebar is made of, one a part."""
    stems = {say(part): [book.path.stem for book in books if book.row.part == part] for part in parts}
    stems[say("To look things up")] = ["questions", "glossary", "figures"]
    trees = [["```{toctree}", ":hidden:", f":caption: {part}", "", *inside, "```", ""]
             for part, inside in stems.items() if inside]
    return "\n".join("\n".join(lines) for lines in trees)


def taken(repository, say):
    """Return where the course is, if its repository is known, and what to type to run it."""
    if not repository:
        words = say("It is a folder, the one that this site was built from. In a terminal there, type")
        return words, "make lab"
    words = say("It is [on GitHub]({{address}}). In a terminal, type",
                address=f"https://github.com/{repository}")
    name = repository.partition("/")[2]
    return words, f"git clone https://github.com/{repository}\ncd {name}\nmake lab"


def page(books, parts, times, surprise, film, say):
    """Return the front page as Markdown; its numbers are those that were recorded."""
    where, commands = taken(books[0].repository, say)
    standard, flash = times
    ratio = {name: max(a, b) / min(a, b) for name, (a, b) in pairs(surprise).items()}
    stems = {book.row.number: book.path.stem for book in books}
    return fill(
        "front.md", say, title=title(say), film=film, slow=SLOWER, count=len(books),
        lanes=lane("standard", say("standard attention"), standard, standard)
        + lane("flash", "FlashAttention", flash, standard),
        more=f"{ratio['arithmetic']:.2f}", less=f"{ratio['bytes at DRAM']:.0f}",
        faster=f"{standard / flash:.1f}",
        hours=round(sum(book.row.minutes for book in books) / 60),
        solve=round(sum(book.solve for book in books) / 60),
        first=stems["00"], softmax=stems["03"], sixth=stems["06"],
        where=where, commands=commands,
        contents=contents(books, parts, say), trees=trees(books, parts, say))


def questions(index, say):
    """The index of notebooks/README.md as a page."""
    body = index[index.index("\n## "):]
    body = re.sub(r"\]\(([^)#\s]+)#([^)\s]+)\)", lambda found: f"]({found[1]}#{slug(found[2])})", body)
    head, words = (say("Questions, and where they are answered"),
                   say("Each line leads to the heading under which the answer stands."))
    return f"# {head}\n\n{words}\n{body}"


def glossary(books, say):
    """The glossary as a page; sphinx_parts.py shows the same words over the chapters' prose."""
    stems = {book.row.number: book.path.stem for book in books}
    named = sorted(((say(term.name), term) for term in TERMS), key=lambda pair: pair[0].lower())
    first = {name[0].upper(): term.key for name, term in reversed(named) if name[0].isascii()}
    letters = " ".join(f'<a href="#{key}">{letter}</a>' for letter, key in sorted(first.items()))
    items = "".join(
        f'<dt id="{term.key}">{html.escape(name)}</dt><dd>{powers(html.escape(say(term.text)))} '
        f'<a href="{stems[term.chapter]}.html">{say("chapter {{n}}", n=term.chapter)}</a></dd>'
        for name, term in named)
    tensors = {"Q": say("queries"), "K": say("keys"), "V": say("values"), "S": say("logits"),
               "P": say("weights"), "O": say("output")}
    hues = "".join(f'<li class="t{name}"><b>{name}</b> {what}</li>' for name, what in tensors.items())
    return "\n\n".join((
        f'# {say("Glossary")}',
        say("The words as this course uses them. In a chapter, each has a dotted line where it first"
            " occurs."),
        f'```{{raw}} html\n<p class="letters">{letters}</p>\n<dl class="glossary">{items}</dl>\n```',
        f'## {say("The six tensors")}', say("Their hues are the same in formulas and in figures."),
        f'```{{raw}} html\n<ul class="hues">{hues}</ul>\n```')) + "\n"


def figures(books, say):
    """The page of all figures; post.py puts the pictures where the marks are."""
    sections = [f"## {book.row.number} {say(book.row.title)}\n\n```{{raw}} html\n"
                f"<!-- gallery {book.path.stem} -->\n```\n" for book in books]
    head = f'# {say("All figures")}\n\n{say("Each leads to the cell that made it.")}\n'
    return "\n".join([head, *sections])
