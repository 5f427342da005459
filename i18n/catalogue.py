"""The translations: what there is to translate, what was, and what a translation must keep.

    python i18n/catalogue.py show 06          the English of chapter 06, message by message
    python i18n/catalogue.py check [06 ...]   what is missing, left over or suspicious, by chapter

`pages` in place of a chapter's number stands for what is no notebook's: the lines of pages.py.

A message is a Markdown cell, a figure's alternative text, a slide or a line of the site's own. In a
catalogue it has a section, headed `<!-- KIND KEY -->`; KEY is the first eight digits of the sha256 of
"KIND:English", so a Markdown cell's key is its id. Where the English has changed the key is another:
the old section is left over, the new message is missing, and it stays English until it is renewed.
"""

import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
_HEAD = re.compile(r"^<!-- (markdown|alt|slide|text) ([0-9a-f]{8}) -->\n", re.M)
HAN = r"[\u4e00-\u9fff]"
# Fences, displayed formulas, code, formulas, a slide's fields.
_ISLANDS = re.compile(
    r"(^```.*?^```[^\n]*|\$\$.*?\$\$|(`+)(?!`).+?(?<!`)\2(?!`)|(?<![\\$])\$[^$]{1,300}?\$(?!\d)"
    r"|\{\{.*?\}\})", re.S | re.M)


_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
           "October", "November", "December")
_MONTH = re.compile(rf"\b({'|'.join(_MONTHS)})(?= \d{{4}}\b)")


def _month(found):
    return str(_MONTHS.index(found[1]) + 1)


def key(kind, text):
    return hashlib.sha256(f"{kind}:{text}".encode()).hexdigest()[:8]


def read(path):
    """Return {(kind, key): translation} of a catalogue's file, in its order."""
    if not Path(path).exists():
        return {}
    parts = _HEAD.split(Path(path).read_text("utf-8"))
    found = {}
    for kind, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if (kind, name) in found:
            raise ValueError(f"{path}: {kind} {name} is translated twice")
        found[kind, name] = text.strip("\n")
    return found


def chapter(number):
    """Return the path of a chapter's notebook, by its number such as "06" or "12b"."""
    return next((ROOT / "notebooks").glob(f"{number}_*.ipynb"))


def chapters():
    return sorted(path.name.partition("_")[0] for path in (ROOT / "notebooks").glob("*.ipynb"))


def source(cell):
    return "".join(cell["source"])


def alts(cell):
    """Yield each alternative text of a code cell's pictures."""
    for output in cell.get("outputs", []):
        for given in output.get("metadata", {}).values():
            if isinstance(given, dict) and given.get("alt"):
                yield given["alt"]


def slides(text):
    """Return the slides of a deck; a line of --- stands between two."""
    return re.split(r"\n+---\n+", text.strip("\n"))


def messages(number):
    """Return {(kind, key): English} of a chapter's notebook, in its order."""
    found = {}
    for cell in json.loads(chapter(number).read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            found["markdown", key("markdown", source(cell))] = source(cell)
        for text in alts(cell):
            found["alt", key("alt", text)] = text
    return found


def of_slides(number):
    """Return {(kind, key): English} of a chapter's slides, in their order."""
    deck = (ROOT / "slides" / f"{number}.md").read_text("utf-8")
    return {("slide", key("slide", text)): text for text in slides(deck)}


def of_pages():
    """Return {(kind, key): English} of what is no notebook's."""
    import pages

    return {("text", key("text", text)): text for text in pages.lines()}


def terms(language="zh"):
    """Return [(English, translation)] of the terms that have one translation each."""
    table = (HERE / language / "terms.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.M)
    return [row for row in rows if row[0][0] not in "-:`" and row[0] not in ("English", "英文", "章")]


def prose(text):
    """Return a message's prose alone: no code, formulas, fields, targets of links, or comments."""
    text = _ISLANDS.sub(" ¤ ", text)
    text = re.sub(r"\]\([^)]*\)", "] ", text)
    text = re.sub(r"<!-- _\w+:.*?-->", " ", text)
    return re.sub(r"</?(?:details|summary|sub|sup|br|b|i|em|div|span|p)\b[^>]*>", " ", text)


def kept(text):
    """Return what a translation must keep, as {what: a multiset}."""
    islands = [found[0] for found in _ISLANDS.finditer(text)]
    words = re.compile(r"\\(?:text|textbf|textit)\{[^{}]*\}|[\s\\,;]|\.(?=\s*\$+$)")
    formulas = [words.sub("", island) for island in islands if island[0] == "$"]
    return {
        "code": Counter(island for island in islands if island[0] == "`"),
        "formulas": Counter(formulas),
        "fields": Counter(island for island in islands if island[0] == "{"),
        "links": Counter(re.findall(r"\]\(([^)]+)\)", text)),
        "numbers": Counter(re.findall(r"\d(?:[\d,.]*\d)?", _MONTH.sub(_month, prose(text)))),
        "folds": Counter(re.findall(r"</?(?:details|summary)>", text)),
        "headings": Counter(re.findall(r"(?m)^#+(?= )", text)),
        "rows of tables": Counter(re.findall(r"(?m)^\|", text)),
        "points of lists": Counter(re.findall(r"(?m)^ *[-*] ", text)),
        "classes": Counter(re.findall(r"<!-- _\w+:.*?-->", text)),
    }


def complaints(english, translation, words=()):
    """Return what looks wrong in a translation, as sentences."""
    found = []
    here, there = kept(english), kept(translation)
    for what in here:
        lost, new = here[what] - there[what], there[what] - here[what]
        if lost or new:
            found.append(f"{what}: lost {sorted(lost.elements())}, new {sorted(new.elements())}")
    plain_en, plain = prose(english), prose(translation)
    for term, word in words:
        asked = rf"(?<![\w-]){re.escape(term)}(?:s|es)?(?![\w-])"
        if word not in plain and re.search(asked, plain_en, re.I):
            found.append(f"term: {term!r} is {word!r}")
    bare = re.sub(r"\*+", "", plain)
    for text, pattern, says in (
            (bare, rf"{HAN}[,;:!?]|{HAN}\.(?!\w)|[,;:!?]{HAN}", "punctuation of half width"),
            (bare, rf"{HAN}[A-Za-z0-9¤]|[A-Za-z0-9¤%]{HAN}", "no space between Chinese and Latin"),
            (plain, r"[。，；：？！、（）] +(?=[^\s*\[`$¤<_&\-|(\d])",
             "a space after punctuation of full width")):
        for bad in re.finditer(pattern, text):
            found.append(f"{says}: …{text[max(0, bad.start() - 12):bad.end() + 12]!r}…")
    if not any(_unmarked(english)):                         # in English they are stars as well
        found += [f"this ** does not mark bold: …{bad}…" for bad in _unmarked(translation)]
    named = translation in dict(words).values()
    if translation and english != translation and not named and not re.search(HAN, translation):
        found += ["no Chinese in it"] * bool(re.search(r"[a-z]{4}", plain_en))
    return found


def _unmarked(text):
    """Yield the places at which CommonMark would take * or ** beside punctuation for plain stars."""
    text = _ISLANDS.sub(lambda island: "x" * len(island[0]), text)
    for paragraph in re.split(r"\n\s*\n", text):
        for mark in (r"\*\*", r"(?<!\*)\*(?!\*)"):
            places = list(re.finditer(mark, re.sub(r"(?m)^ *\* ", "  ", paragraph)))
            for n, place in enumerate(places):
                before = paragraph[:place.start()][-1:] or "\n"
                after = paragraph[place.end():][:1] or "\n"
                if n % 2 == 0:                              # it opens
                    bad = after.isspace() or (_mark(after) and not (before.isspace() or _mark(before)))
                else:
                    bad = before.isspace() or (_mark(before) and not (after.isspace() or _mark(after)))
                if bad:
                    yield paragraph[max(0, place.start() - 8):place.end() + 8]


def _mark(char):
    return not (char.isalnum() or char.isspace())


def sources(name):
    """Return {file: {(kind, key): English}} of a chapter with its slides, or of the pages."""
    if name == "pages":
        return {"pages.md": of_pages()}
    return {f"chapters/{name}.md": messages(name), f"slides/{name}.md": of_slides(name)}


def report(number, language="zh"):
    """Return (missing, left over, {key: complaints}) of a chapter with its slides, or of the pages."""
    words = terms(language)
    missing, over, odd = [], [], {}
    for file, english in sources(number).items():
        given = read(HERE / language / file)
        missing += [f"{kind} {name}" for kind, name in english if (kind, name) not in given]
        over += [f"{kind} {name}" for kind, name in given if (kind, name) not in english]
        for name, text in english.items():
            if name in given and (found := complaints(text, given[name], words)):
                odd[" ".join(name)] = found
    return missing, over, odd


def main(arguments):
    command, *numbers = arguments or ["check"]
    for number in numbers or [*chapters(), "pages"]:
        if command == "show":
            for english in sources(number).values():
                for (kind, name), text in english.items():
                    print(f"<!-- {kind} {name} -->\n{text}\n")
            continue
        missing, over, odd = report(number)
        print(f"{number}: {len(missing)} missing, {len(over)} left over, {len(odd)} suspicious")
        for name in missing:
            print(f"  missing {name}")
        for name in over:
            print(f"  left over {name}")
        for name, found in odd.items():
            print("".join(f"  {name}: {what}\n" for what in found), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
