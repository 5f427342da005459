"""Write the notebooks of another language: its words, the English code and outputs.

    python i18n/notebooks.py zh        what `make zh` calls: notebooks_zh/, beside notebooks/

A Markdown cell that is not translated stays English under a remark. Links follow the headings.
"""

import json
import re
import sys
from functools import cache
from urllib.parse import quote, unquote

import catalogue
import pages
from language import LANGUAGES

ROOT = catalogue.ROOT
_HEADING = re.compile(r"(?m)^#{1,6} +(.+?) *$")
_LINK = re.compile(r"\]\(((?:\d\d[a-z]?_\w+\.ipynb)?)#([^)\s]+)\)")
_WIDE = r"\u3001-\u303f\uff01-\uff65\u2014\u2018-\u201d\u2026"     # punctuation as wide as a character
# A space outside quotation marks, which are as wide as a character, beside another wide one.
_QUOTED = re.compile(rf"(?<=[{_WIDE}\u4e00-\u9fff]) (?=“)|(?<=”) (?=[{_WIDE}\u4e00-\u9fff])")
_GLUE = re.compile(rf"[{_WIDE}]$|^[{_WIDE}]")
_HAN_BOTH = re.compile(rf"{catalogue.HAN}\n{catalogue.HAN}")
_ALONE = re.compile(r"\s*(?:$|\||#{1,6} |[-*+] |\d+[.)] |<|:::|```|\$\$|---)")
_BLOCKS = re.compile(r"(^```.*?^```[^\n]*|\$\$.*?\$\$)", re.S | re.M)


def joined(text):
    """Return Markdown whose lines do not break between two characters that know no space."""
    parts = _BLOCKS.split(text)
    parts[::2] = [_QUOTED.sub("", _paragraphs(part)) for part in parts[::2]]
    return "".join(parts)


def _paragraphs(text):
    out = []
    for line in text.split("\n"):
        bare = re.sub(r"^\s*(?:> ?)?", "", line)
        before = out[-1] if out else ""
        quoted = line.lstrip().startswith(">") == before.lstrip().startswith(">")
        if (before.strip() and quoted and not _ALONE.match(bare) and not re.match(r"\s*[|#<]", before)
                and _meet(before, bare)):
            out[-1] = before + bare
        else:
            out.append(line)
    return "\n".join(out)


def _meet(before, after):
    """Tell whether the end of a line and the start of the next one stand together without a space."""
    return bool(_HAN_BOTH.match(f"{before[-1]}\n{after[:1]}") or _GLUE.match(before[-1])
                or _GLUE.match(after[:1]))


def headings(text):
    """Return a Markdown cell's headings, in order, without those that are comments in code."""
    return _HEADING.findall(_BLOCKS.sub("", text))


def anchor(heading):
    """Return JupyterLab's anchor of a heading, as it stands in a link."""
    return quote(re.sub(r"[`*]", "", heading).replace(" ", "-"), safe="-,:")


def cells(number, language):
    """Return (English, translation or None) of each Markdown cell of a chapter."""
    given = catalogue.read(catalogue.HERE / language.code / "chapters" / f"{number}.md")
    book = json.loads(catalogue.chapter(number).read_text("utf-8"))
    texts = [catalogue.source(cell) for cell in book["cells"] if cell["cell_type"] == "markdown"]
    return [(text, given.get(("markdown", catalogue.key("markdown", text)))) for text in texts]


@cache
def anchors(file, language):
    """Return {anchor of an English heading, unquoted: the translated heading} of a chapter."""
    found = {}
    for english, text in cells(file.partition("_")[0], language):
        for old, new in zip(headings(english), headings(text or english), strict=False):
            found.setdefault(unquote(anchor(old)), new)
    return found


def relinked(text, file, language):
    """Return Markdown whose links lead to the translated headings, and to the translated index."""
    def one(found):
        there = anchors(found[1] or file, language).get(unquote(found[2]))
        return found[0] if there is None else f"]({found[1]}#{anchor(there)})"

    text = _LINK.sub(one, text)
    return text.replace("](../notebooks/README.md", f"](../notebooks_{language.code}/README.md")


def marked(english, language):
    """Return a cell that is not translated, with the remark that says so below its heading."""
    head, _, rest = english.partition("\n")
    if head.startswith("#"):
        return f"{head}\n\n{language.stale}\n\n{rest.lstrip(chr(10))}".rstrip("\n")
    return f"{language.stale}\n\n{english}"


@cache
def texts(number, language):
    """Return the translations of a chapter's messages."""
    return catalogue.read(catalogue.HERE / language.code / "chapters" / f"{number}.md")


def translated(number, language):
    """Return a chapter's notebook in another language."""
    path = catalogue.chapter(number)
    book, given = json.loads(path.read_text("utf-8")), texts(number, language)
    for cell in book["cells"]:
        if cell["cell_type"] == "markdown":
            english = catalogue.source(cell)
            text = given.get(("markdown", catalogue.key("markdown", english)))
            text = marked(english, language) if text is None else joined(text)
            cell["source"] = relinked(text, path.name, language).splitlines(keepends=True)
        for output in cell.get("outputs", []):
            for data in output.get("metadata", {}).values():
                if isinstance(data, dict) and data.get("alt"):
                    data["alt"] = given.get(("alt", catalogue.key("alt", data["alt"])), data["alt"])
    return book


def index(language):
    """Return notebooks/README.md, the index of questions, in another language."""
    def entry(found):
        question, number, heading, file, place = found.groups()
        heading = anchors(file, language).get(unquote(place), heading)
        return f"- {language.say(question)}[{number} · {heading}]({file}#{anchor(heading)})"

    parts = (ROOT / "notebooks/README.md").read_text("utf-8").strip("\n").split("\n\n")
    for n, part in enumerate(parts):
        marks, words = re.match(r"((?:#+ )?)(.*)", part, re.S).groups()
        listed = part.startswith("- ")
        parts[n] = pages.QUESTION.sub(entry, part) if listed else marks + language.say(words)
    return "\n\n".join(parts) + "\n"


def dumped(book):
    return json.dumps(book, ensure_ascii=False, indent=1) + "\n"


def write(language, out=None, *, up=""):
    """Write all notebooks and their index to a folder, which is `up` deeper than notebooks_zh is."""
    out = out or ROOT / f"notebooks_{language.code}"
    out.mkdir(parents=True, exist_ok=True)
    wanted = {"README.md": index(language)}
    for number in catalogue.chapters():
        book = translated(number, language)
        for cell in book["cells"] if up else ():
            if cell["cell_type"] == "markdown":
                cell["source"] = [line.replace("](../", f"]({up}../") for line in cell["source"]]
        wanted[catalogue.chapter(number).name] = dumped(book)
    for path in out.glob("*.ipynb"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (out / name).write_text(text, "utf-8")
    return out


def main(code):
    language = LANGUAGES[code]
    out = write(language)
    left = sum(text is None for number in catalogue.chapters() for _, text in cells(number, language))
    note = f", {left} cells still English" if left else ""
    print(f"{out.relative_to(ROOT)}: {len(catalogue.chapters())} notebooks{note}")


if __name__ == "__main__":
    main(sys.argv[1])
