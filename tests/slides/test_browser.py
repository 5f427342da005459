"""Every slide in Chromium: nothing overflows, nobody else is asked for a file; PDFs are whole."""

import re
import zlib

import pytest

from tests.browser import chromium
from tests.slides.conftest import BUILT
from tests.slides.test_decks import DECKS, slides_of

pytestmark = pytest.mark.slides
CHINESE = [f"zh/{number}" for number in DECKS]
# What stands on a slide must end above the footer, and inside the slide's width.
OVERFLOWS = """() => [...document.querySelectorAll('section[data-marpit-pagination]')].flatMap(
slide => {
    const box = slide.getBoundingClientRect(), scale = box.width / slide.offsetWidth, wrong = []
    if (!box.width) return [`slide ${slide.id} is not drawn`]
    for (const part of slide.querySelectorAll('h1, h2, p, li, pre, img, table, .katex-display')) {
        const at = part.getBoundingClientRect()
        if ((at.bottom - box.top) / scale > 690 || (at.right - box.left) / scale > 1264 ||
            part.scrollWidth > part.clientWidth + 1 && part.tagName === 'PRE')
            wrong.push(`slide ${slide.id}: ${part.tagName} ${part.textContent.slice(0, 40)}`)
    }
    for (const img of slide.querySelectorAll('img'))
        if (!img.naturalWidth) wrong.push(`slide ${slide.id}: ${img.src}`)
        else if (!img.alt.trim()) wrong.push(`slide ${slide.id}: a figure without a text`)
    return wrong
})"""


@pytest.fixture(scope="module")
def page():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=list(chromium.FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.asked, page.wrong = [], []
        page.on("request", lambda asked: page.asked.append(asked.url))
        page.on("console", lambda said: page.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        yield page
        browser.close()


@pytest.mark.parametrize("number", [*DECKS, *CHINESE])
def test_nothing_overflows_a_slide(page, number):
    page.asked.clear(), page.wrong.clear()
    page.goto((BUILT / f"{number}.html").as_uri())
    # Marp draws the slide that is shown; in print it draws all.
    page.emulate_media(media="print")
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.querySelectorAll('section[data-marpit-pagination]').length") == len(
        slides_of(number.removeprefix("zh/")))
    assert page.evaluate(OVERFLOWS) == []
    assert page.wrong == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in page.asked)
    page.emulate_media(media="screen")


def inflated(stream):
    """Return a stream of a PDF without its compression; nothing of what is compressed otherwise."""
    try:
        return zlib.decompressobj().decompress(stream)
    except zlib.error:
        return b""


@pytest.mark.parametrize("number", [*DECKS, *CHINESE])
def test_a_pdf_has_a_page_for_every_slide(number):
    pdf = (BUILT / f"{number}.pdf").read_bytes()
    objects = b"".join(map(inflated, re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.S))) + pdf
    assert len(re.findall(rb"/Type\s*/Page\b", objects)) == len(
        slides_of(number.removeprefix("zh/")))


@pytest.mark.parametrize(("folder", "other"), [("", "zh/index"), ("zh/", "../index")])
def test_the_index_names_every_deck(folder, other):
    page = (BUILT / f"{folder}index.html").read_text("utf-8")
    assert re.findall(r'href="([^"]+)\.html"', page) == [*DECKS, other]
    assert all((BUILT / f"{folder}{number}.pdf").exists() for number in DECKS)
