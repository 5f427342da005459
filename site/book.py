"""Print the built site as one PDF book: title, contents, and every chapter with its answers open.

    python site/book.py _site OUT.pdf       what `make book` calls

A browser prints each page; the parts are joined, numbered through, and get an outline by chapter and
heading. Links between chapters become plain text: the files that they lead to are not in a book.
"""

import html
import io
import shutil
import sys
import time
from pathlib import Path

import prep
from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
TITLE = "FlashAttention, from softmax to silicon"
SHEET = {"format": "A4", "print_background": True, "tagged": True,
         "margin": {"top": "17mm", "bottom": "19mm", "left": "18mm", "right": "18mm"}}
# All folds open, all figures there, no link to a file that the book does not hold.
READY = """async () => {
    document.querySelectorAll('details').forEach(fold => { fold.open = true })
    document.querySelectorAll('article a[href]').forEach(link => {
        const to = link.getAttribute('href')
        if (!/^(https?:|mailto:|#)/.test(to)) link.removeAttribute('href')
    })
    const images = [...document.querySelectorAll('img')]
    images.forEach(image => { image.loading = 'eager' })
    await Promise.all(images.map(image => image.decode()))
    await document.fonts.ready
}"""
_PLAIN = """<!doctype html><meta charset="utf-8"><style>
@font-face{font-family:Inter;src:url(_static/fonts/inter-latin-wght-normal.woff2);font-weight:100 900}
body{font:11pt/1.5 Inter,sans-serif;color:#222;margin:0}
.title{height:240mm;display:flex;flex-direction:column;justify-content:center;break-after:page}
h1{font-size:34pt;line-height:1.15;letter-spacing:-.02em;margin:0 0 8mm}
.title p{font-size:14pt;color:#555}
h2{font-size:18pt;margin:0 0 6mm}h3{font-size:11pt;color:#35775a;margin:5mm 0 1mm}
.row{display:flex;gap:3mm}.row i{flex:1;border-bottom:1px dotted #bbb;margin-bottom:1.6mm}
.sheet{height:297mm;position:relative;break-after:page}
.sheet span{position:absolute;bottom:8mm;left:0;right:0;text-align:center;font-size:9pt;color:#666}
</style>"""


def contents(parts, chapters, firsts):
    """Return the title page and the contents as HTML; `firsts` are the chapters' first pages."""
    rows = []
    for part in parts:
        rows.append(f"<h3>{html.escape(part)}</h3>")
        rows += [f'<div class="row"><span>{c.number} · {html.escape(c.title)}</span><i></i>'
                 f"<span>{firsts[c.number]}</span></div>" for c in chapters if c.part == part]
    return (f'{_PLAIN}<div class="title"><h1>{TITLE}</h1><p>The course as a book. What it states was'
            " computed by the notebooks that it was printed from, recorded on GPUs that it names, or"
            " is cited.</p></div>"
            f"<h2>Contents</h2>{''.join(rows)}")


def numbers(count):
    """Return HTML of as many sheets, each with its number and nothing else."""
    return _PLAIN + "".join(f'<div class="sheet"><span>{n or ""}</span></div>' for n in count)


class Printer:
    """One browser that prints pages of the built site."""

    def __init__(self, browser, built):
        self.browser, self.built = browser, built

    def page(self, name):
        """Return a page of the site as a PDF."""
        page = self.browser.new_page(viewport={"width": 1000, "height": 1400})
        page.goto((self.built / name).as_uri())
        page.emulate_media(media="print", color_scheme="light")
        page.evaluate(READY)
        found = PdfReader(io.BytesIO(page.pdf(outline=True, **SHEET)))
        page.close()
        return found

    def text(self, source, **options):
        """Return HTML as a PDF; it may use the site's fonts."""
        path = self.built / "_book.html"
        path.write_text(source, "utf-8")
        try:
            page = self.browser.new_page()
            page.goto(path.as_uri())
            page.evaluate("document.fonts.ready")
            found = PdfReader(io.BytesIO(page.pdf(**{**SHEET, **options})))
            page.close()
        finally:
            path.unlink()
        return found


def bind(printer, parts, chapters, say=print):
    """Return the book as a PdfWriter."""
    printed = {}
    for chapter in chapters:
        printed[chapter.number] = printer.page(f"{Path(chapter.file).stem}.html")
        count = len(printed[chapter.number].pages)
        say(f"{chapter.number} · {chapter.title}: {count} pages", flush=True)
    printed["questions"] = printer.page("questions.html")
    printed["glossary"] = printer.page("glossary.html")
    front = printer.text(contents(parts, chapters, dict.fromkeys(printed, 0)))
    firsts, at = {}, len(front.pages) + 1
    for name, pdf in printed.items():
        firsts[name], at = at, at + len(pdf.pages)
    front = printer.text(contents(parts, chapters, firsts))
    book = PdfWriter()
    book.append(front, import_outline=False)
    titles = {c.number: f"{c.number} · {c.title}" for c in chapters}
    for name, pdf in printed.items():
        book.append(pdf, outline_item=titles.get(name, name.capitalize()))
    count = len(book.pages)
    plain = {"margin": dict.fromkeys(SHEET["margin"], "0")}
    stamps = printer.text(numbers([0, *range(2, count + 1)]), **plain)
    for page, stamp in zip(book.pages, stamps.pages, strict=False):
        page.merge_page(stamp)
    book.add_metadata({"/Title": TITLE, "/Author": "the FlashAttention course authors"})
    book.page_layout = "/OneColumn"
    book.compress_identical_objects()
    return book


def main(built, out):
    start = time.monotonic()
    built = Path(built).resolve()
    if not (built / "index.html").exists():
        sys.exit(f"site: expected a built site in {built}, found none: run `make site` first")
    chrome = next(filter(None, map(shutil.which, NAMES)), None)
    if chrome is None:
        sys.exit("The book is printed by a browser: install Chromium or Chrome.")
    chapters, parts = prep.chapters()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome,
                                             args=["--headless", "--no-sandbox"])
        book = bind(Printer(browser, built), parts, chapters)
        browser.close()
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    book.write(out)
    print(f"{out}: {len(book.pages)} pages, {Path(out).stat().st_size / 1e6:.1f} MB,"
          f" {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
