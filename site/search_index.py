"""The index of the search: one entry for each section of each page, with its text for excerpts."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser

from terms import TERMS
from tongue import ENGLISH

_SKIP_TAGS = ("script", "style", "annotation", "svg", "form", "button")
_SKIP_CLASSES = ("katex-html", "headerlink", "facts", "lab-note", "chapters", "gallery", "begin",
                 "race", "ratios", "answers", "cell_output")
_VOID = ("br", "img", "input", "hr", "meta", "link", "wbr", "col", "source")
_INLINE = ("span", "a", "em", "strong", "code", "b", "i", "mi", "mo", "mn", "mrow", "sub", "sup")


class Sections(HTMLParser):
    """Collects [anchor, heading, text] of the sections inside <article>."""

    def __init__(self):
        super().__init__()
        self.sections, self.open, self.stack = [], [], []
        self.skipped = 0
        self.heading = self.article = False

    def handle_starttag(self, tag, attributes):
        if tag in _VOID:
            return
        given = dict(attributes)
        classes = (given.get("class") or given.get("k") or "").split()     # k: slim.formula
        skip = tag in _SKIP_TAGS or any(name in _SKIP_CLASSES for name in classes)
        self.stack.append((tag, skip))
        self.skipped += skip
        self.article |= tag == "article"
        if tag == "section" and self.article:
            self.sections.append([given.get("id", ""), "", []])
            self.open.append(self.sections[-1])
        self.heading |= tag in ("h1", "h2", "h3")
        if tag not in _INLINE:
            self.handle_data(" ")

    def handle_endtag(self, tag):
        if not any(name == tag for name, _ in self.stack):
            return
        while self.stack:
            name, skip = self.stack.pop()
            self.skipped -= skip
            if name == tag:
                break
        if tag == "section" and self.open:
            self.open.pop()
        if tag in ("h1", "h2", "h3"):
            self.heading = False
        self.article &= tag != "article"
        if tag not in _INLINE:
            self.handle_data(" ")

    def handle_data(self, data):
        if self.skipped or not self.open:
            return
        if self.heading:
            self.open[-1][1] += data
        else:
            self.open[-1][2].append(data)


def sections(page):
    """Return [anchor, heading, text] of a page's sections."""
    parser = Sections()
    parser.feed(page)
    return [[anchor, _tidy(heading), _tidy("".join(text))] for anchor, heading, text in parser.sections]


def _tidy(text):
    return re.sub(r"\s+", " ", text).strip()


def script(pages, language=ENGLISH):
    """Return the index of {address: HTML}, packed, as a classic script: it loads from a folder, too."""
    say = language.say
    glossary = f"{language.folder}glossary.html"
    entries = [[glossary, term.key, say("Glossary"), say(term.name), say(term.text)] for term in TERMS]
    for name, page in pages.items():
        if name == glossary:                                # each of its words is an entry already
            continue
        found = sections(page)
        for n, (anchor, heading, text) in enumerate(found):
            if heading:
                entries.append([name, anchor if n else "", found[0][1], heading, text])
    columns = list(zip(*entries, strict=True))
    text = json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
    return f'window.COURSE_INDEX="{base64.b85encode(zlib.compress(text.encode(), 9)).decode()}";\n'


def entries(script):
    """Return the entries of an index, as search.js reads them."""
    packed = base64.b85decode(script.partition('"')[2].rpartition('"')[0])
    return [list(entry) for entry in zip(*json.loads(zlib.decompress(packed)), strict=True)]
