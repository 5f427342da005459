"""Build the slides: a deck of each chapter, figures and numbers from the executed notebooks.

    python slides/build.py OUT [CHAPTER ...]        what `make slides` calls
    python slides/build.py OUT --cells 04           which cells a chapter offers, and what they printed

A deck is `slides/04.md`: slides apart by `---` on a line of its own, speaker notes as HTML comments. A
cell is named by the eight digits of its id:

    ![w:900](b9c5560b)              its first figure, (b9c5560b#2) its second; the text of both is kept
    {{9358f8c2: safe +([\\d,]+)}}    what this pattern finds in its printed text, or the pattern's group
    {{9358f8c2}}                    on its own line: all that it printed; {{9358f8c2 1-4}}: lines 1 to 4
    {{code 4dba9645 1-9}}           lines of its source

A cell that is gone, a figure that it lacks, a pattern that finds nothing: the build stops and says so.

The Chinese decks, in OUT/zh, are these slides as i18n/zh translates them, with the same figures.
"""

import argparse
import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "i18n"))

import catalogue  # noqa: E402
from language import ENGLISH, LANGUAGES  # noqa: E402

import notebooks  # noqa: E402

WORK = ROOT / "build" / "slides"
MODULES = HERE / "node_modules"
FONTS = {"Inter Variable": "inter/files/inter-latin-wght-normal.woff2",
         "JetBrains Mono Variable": "jetbrains-mono/files/jetbrains-mono-latin-wght-normal.woff2"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
CELL = r"[0-9a-f]{8}"
_FIGURE = re.compile(rf"!\[([^\]]*)\]\(({CELL})(?:#(\d+))?\)")
_BLOCK = re.compile(rf"^\{{\{{(code )?({CELL})(?: (\d+)-(\d+))?\}}\}}$", re.M)
_NUMBER = re.compile(rf"\{{\{{({CELL}): (.+?)\}}\}}")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Missing(Exception):
    """What a deck names and its notebook lacks."""


class Book:
    """An executed notebook, by cell; `words` are translations of its messages."""

    def __init__(self, path, words=None):
        self.path, self.words = Path(path), words or {}
        cells = json.loads(self.path.read_text("utf-8"))["cells"]
        self.cells = {cell["id"]: cell for cell in cells}
        head = "".join(cells[0]["source"])
        self.title = re.match(r"# (.*)", self.said("markdown", head))[1]

    def said(self, kind, text):
        return self.words.get((kind, catalogue.key(kind, text)), text)

    def cell(self, name):
        if name not in self.cells:
            raise Missing(f"{self.path.name} has no cell {name}")
        return self.cells[name]

    def source(self, name):
        return "".join(self.cell(name)["source"])

    def printed(self, name):
        """Return what a cell printed; text of a Markdown cell is what it says."""
        cell = self.cell(name)
        if cell["cell_type"] == "markdown":
            return self.source(name)
        texts = ["".join(o.get("text", "")) for o in cell.get("outputs", ())]
        return _ANSI.sub("", "".join(texts)).strip("\n")

    def figures(self, name):
        """Return (PNG, alternative text) of every figure of a cell."""
        found = []
        for output in self.cell(name).get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
                found.append((base64.b64decode("".join(data["image/png"])),
                              self.said("alt", alt) or "".join(data.get("text/plain", ""))))
        return found

    def figure(self, name, nth=1):
        figures = self.figures(name)
        if len(figures) < nth:
            raise Missing(f"cell {name} of {self.path.name} has {len(figures)} figures, not {nth}")
        return figures[nth - 1]

    def number(self, name, pattern):
        found = re.search(pattern, self.printed(name))
        if found is None:
            raise Missing(f"cell {name} of {self.path.name} printed nothing that matches {pattern}")
        return found[1] if found.re.groups else found[0]


def lines(text, first, last):
    """Return lines first … last of a text, all of them without numbers."""
    if not first:
        return text
    found = text.split("\n")[int(first) - 1:int(last)]
    if len(found) < int(last) - int(first) + 1:
        raise Missing(f"lines {first} to {last} of {len(text.splitlines())}")
    return "\n".join(found)


def filled(deck, book, number, images, up=""):
    """Return the Markdown of a deck with what it names in its notebook; figures go to `images`.

    `up` leads from the deck to the folder in which `images` is.
    """
    def figure(found):
        how, name, nth = found[1], found[2], int(found[3] or 1)
        png, alt = book.figure(name, nth)
        path = images / f"{number}-{name}-{nth}.png"
        path.write_bytes(png)
        alt = re.sub(r"[\[\]\n]", " ", alt)
        return f"![{how} {alt}]({up}img/{path.name})"

    def block(found):
        code, name, first, last = found.groups()
        text = book.source(name) if code else book.printed(name)
        return f"```{'python' if code else 'text'}\n{lines(text, first, last)}\n```"

    deck = _NUMBER.sub(lambda found: book.number(found[1], found[2]), deck)
    return _FIGURE.sub(figure, _BLOCK.sub(block, deck))


def decks(chosen=()):
    """Return chapter number → (deck, notebook), of all that are written or of the chosen ones."""
    sys.path.insert(0, str(ROOT))
    from flashlib.course.notebook.chapters import CHAPTERS

    files = {c.number: ROOT / c.file for c in CHAPTERS if c.ready}
    found = {path.stem: (path, files.get(path.stem)) for path in sorted(HERE.glob("[0-9]*.md"))}
    for number in chosen:
        if number not in found:
            sys.exit(f"chapter: expected one of {', '.join(found)}, got {number}")
    return {number: pair for number, pair in found.items() if not chosen or number in chosen}


def translated(number, text, language):
    """Return a deck in a language, by slide; a slide that is not translated stays English."""
    if language is ENGLISH:
        return text
    given = catalogue.read(catalogue.HERE / language.code / "slides" / f"{number}.md")
    found = [given.get(("slide", catalogue.key("slide", one)), one) for one in catalogue.slides(text)]
    return "\n\n---\n\n".join(found) + "\n"


def write(number, deck, notebook, work, language=ENGLISH):
    """Write the filled-in deck of a chapter and its figures to the folder `work`; return its title."""
    if notebook is None:
        raise Missing(f"{deck.name}: there is no chapter {number}")
    book = Book(notebook, {} if language is ENGLISH else notebooks.texts(number, language))
    (work / "img").mkdir(parents=True, exist_ok=True)
    (work / language.folder).mkdir(exist_ok=True)
    footer = f"{language.say('FlashAttention, from softmax to silicon')} · {number}"
    head = (f"---\nmarp: true\ntheme: course\nmath: katex\npaginate: true\nlang: {language.html}\n"
            f"title: {json.dumps(book.title, ensure_ascii=False)}\n"
            f"footer: {json.dumps(footer, ensure_ascii=False)}\n---\n\n")
    text = translated(number, deck.read_text("utf-8"), language)
    text = filled(text, book, number, work / "img", up="../" if language.folder else "")
    (work / language.folder / f"{number}.md").write_text(head + text, "utf-8")
    return book.title


def browser():
    """Return the path of a Chromium, Chrome or Edge, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def chinese_font():
    """Tell whether a font with Chinese is there; a system without fontconfig has one."""
    if not shutil.which("fc-list"):
        return True
    found = subprocess.run(["fc-list", ":lang=zh", "family"], capture_output=True, text=True)
    return bool(found.stdout.strip())


def theme(work, languages):
    """Write the fonts, and for each language the theme and Marp's configuration beside its decks."""
    (work / "fonts").mkdir(parents=True, exist_ok=True)
    faces = []
    for family, file in FONTS.items():
        package, _, name = file.split("/")
        folder = MODULES / "@fontsource-variable" / package
        shutil.copy(folder / "files" / name, work / "fonts")
        shutil.copy(folder / "LICENSE", work / "fonts" / f"LICENSE-{package}")
        faces.append(f'@font-face{{font-family:"{family}";src:url(fonts/{name}) format("woff2");'
                     "font-weight:100 900}\n")
    katex = MODULES / "katex"
    shutil.copytree(katex / "dist" / "fonts", work / "fonts" / "katex", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.ttf", "*.woff"))
    shutil.copy(katex / "LICENSE", work / "fonts" / "LICENSE-katex")
    css = (HERE / "theme.css").read_text("utf-8").replace("/* fonts */", "".join(faces))
    for language in languages:
        place, up = work / language.folder, "../" if language.folder else ""
        place.mkdir(exist_ok=True)
        (place / "theme.css").write_text(css.replace("url(fonts/", f"url({up}fonts/"), "utf-8")
        options = {"html": False, "allowLocalFiles": True, "themeSet": [str(place / "theme.css")],
                   "options": {"math": {"lib": "katex", "katexFontPath": f"{up}fonts/katex/"}}}
        (place / "marp.config.json").write_text(json.dumps(options))


def marp(work, numbers, *options):
    """Run Marp over the decks of a folder."""
    command = [str(MODULES / ".bin" / "marp"), "--config-file", "marp.config.json", "--no-stdin",
               *options, *(f"{number}.md" for number in numbers)]
    done = subprocess.run(command, cwd=work, env=os.environ | {"CHROME_NO_SANDBOX": "1"},
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"Marp failed:\n{done.stdout}{done.stderr}")


def build(chosen, work, language, chrome):
    """Build the decks of a language in the folder `work`, PDFs with a browser; return their titles."""
    titles = {}
    for number, (deck, notebook) in chosen.items():
        try:
            titles[number] = write(number, deck, notebook, work, language)
        except Missing as error:
            sys.exit(f"slides/{deck.name}, {language.name}: {error}")
    marp(work / language.folder, titles)
    if chrome:
        marp(work / language.folder, titles, "--pdf", "--pdf-outlines", "--browser-path", chrome)
    return titles


def index(titles, out, pdf, language, others):
    """Write a page that names all decks of a language."""
    rows = "".join(f'<li><a href="{number}.html">{title}</a>'
                   + (f' <a class="pdf" href="{number}.pdf">PDF</a>' if pdf else "") + "</li>\n"
                   for number, title in titles.items())
    decks = f"<ul>\n{rows}</ul>"
    for other in others:
        there = ("../" if language.folder else "") + other.folder
        decks += f'\n<p><a href="{there}index.html" hreflang="{other.html}">{other.name}</a></p>'
    parts = (HERE / "index.html").read_text("utf-8").split("\n\n")
    name = f"{language.say('Slides')} · {language.say('FlashAttention, from softmax to silicon')}"
    page = "\n\n".join(language.say(part, lang=language.html, title=name) for part in parts)
    (out / language.folder / "index.html").write_text(page.replace("<!-- decks -->", decks), "utf-8")


def cells(number):
    """Print every cell of a chapter: its id, and what a deck may take from it."""
    book = Book(next(path for path in (ROOT / "notebooks").glob(f"{number}_*.ipynb")))
    for name, cell in book.cells.items():
        print(f"== {name} {cell['cell_type']}\n{book.source(name)}")
        if cell["cell_type"] == "code":
            for n, (_, alt) in enumerate(book.figures(name), 1):
                print(f"-- figure {n}: {alt}")
            print(f"-- printed:\n{book.printed(name)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder for HTML and PDF")
    parser.add_argument("chapters", nargs="*", help="such as 04 12b; all without one")
    parser.add_argument("--cells", metavar="CHAPTER", help="print the cells of a chapter instead")
    parser.add_argument("--language", choices=LANGUAGES, help="one language alone")
    parser.add_argument("--no-pdf", action="store_true", help="HTML alone, which needs no browser")
    options = parser.parse_args()
    if options.cells:
        return cells(options.cells)
    chrome = browser()
    if chrome is None and not options.no_pdf:
        sys.exit("PDFs are printed by a browser: install Chromium or Chrome, or say --no-pdf"
                 " (make slides SLIDES_ARGS=--no-pdf).")
    languages = [LANGUAGES[options.language]] if options.language else list(LANGUAGES.values())
    if not options.no_pdf and any(language.folder for language in languages) and not chinese_font():
        sys.exit("The Chinese slides are printed with a font of the system, and none has Chinese:"
                 " install one (apt install fonts-noto-cjk, or fonts-wqy-microhei), or say"
                 " --language en (make slides SLIDES_ARGS='--language en').")
    shutil.rmtree(WORK, ignore_errors=True)
    theme(WORK, languages)
    titles = {}
    for language in languages:
        printer = None if options.no_pdf else chrome
        titles[language] = build(decks(options.chapters), WORK, language, printer)
    shutil.rmtree(options.out, ignore_errors=True)
    sources = shutil.ignore_patterns("*.md", "marp.config.json", "theme.css")
    shutil.copytree(WORK, options.out, ignore=sources)
    for language, found in titles.items():
        others = [other for other in languages if other is not language]
        index(found, options.out, not options.no_pdf, language, others)
        print(f"{len(found)} decks in {options.out / language.folder}")


if __name__ == "__main__":
    main()
