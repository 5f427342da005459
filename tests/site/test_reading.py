"""Reading in Chromium, at a desk and on a phone: places that are reached, what is wide."""

import re
import time
from pathlib import Path

import pytest

from tests.site.test_pages import text

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "_site"
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
DESK = {"width": 1440, "height": 900}

# How far what the address names is from where it should be, if the page does not end before.
MISSED = """() => {
    const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const wanted = parseFloat(getComputedStyle(named).scrollMarginTop);
    const missed = named.getBoundingClientRect().top - wanted;
    const left = document.documentElement.scrollHeight - innerHeight - scrollY;
    return missed > 0 && left < 2 ? 0 : Math.abs(missed);
}"""


def chapter(number):
    return next(name for name in CHAPTERS if name.startswith(number))


def settled(page):
    """Return how far a page is from where it was asked for, once it has come to rest."""
    page.wait_for_load_state("load")
    before, since = None, time.monotonic()
    while time.monotonic() - since < 10:
        page.wait_for_timeout(300)
        now = page.evaluate(f"[({MISSED})(), scrollY, document.documentElement.scrollHeight]")
        if now == before:
            break
        before = now
    return now[0]


@pytest.mark.parametrize("window", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("number", ["06", "15"])
def test_an_address_of_the_questions_lands(number, window, opened):
    """Both chapters have explorers, which come late and are tall."""
    index = text("questions")
    places = sorted(set(re.findall(rf'href="({chapter(number)}\.html#[^"]+)"', index)))
    assert len(places) >= 4
    page = opened("questions.html", **window)
    missed = {}
    for place in places:
        page.goto("about:blank")
        page.goto((BUILT / place.partition("#")[0]).as_uri() + "#" + place.partition("#")[2])
        missed[place] = settled(page)
    assert {place: far for place, far in missed.items() if far > 20} == {}


def test_an_address_lands_when_the_explorers_come_late_and_lets_the_reader_go(served, browser):
    page = browser.new_page(viewport={"width": 390, "height": 844})

    def late(route):
        time.sleep(1.5)
        route.continue_()

    page.route("**/explorer.js", late)
    page.goto(f"{served}/{chapter('06')}.html#takeaway")
    page.locator(".fx svg").first.wait_for(state="attached")
    assert settled(page) <= 20
    page.mouse.move(200, 400)
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"({MISSED})() > 300")
    page.evaluate("document.querySelector('article').prepend(Object.assign("
                  "document.createElement('p'), {style: 'height: 300px'}))")
    page.wait_for_timeout(500)
    assert page.evaluate(MISSED) > 300
    page.close()


@pytest.mark.parametrize("window", [PHONE, DESK], ids=["phone", "desk"])
def test_a_word_of_the_glossary_is_not_under_the_bar(window, opened):
    page = opened("glossary.html", **window)
    for word in ("sram", "tile"):
        page.goto("about:blank")
        page.goto((BUILT / "glossary.html").as_uri() + f"#term-{word}")
        assert settled(page) <= 20
        assert page.evaluate("document.querySelector('dt:target').getBoundingClientRect().top") >= 48


def test_the_other_language_opens_at_the_section_that_is_read(opened):
    page = opened(f"{chapter('04')}.html", **DESK)
    headings = "[...document.querySelectorAll('article section > :is(h2, h3)')]"
    sections = f"{headings}.map(heading => heading.parentElement.id)"
    ids = page.evaluate(sections)
    page.evaluate(f"document.getElementById('{ids[4]}').scrollIntoView({{behavior: 'instant'}})")
    page.locator(".other-language").click()
    page.wait_for_url(re.compile("/zh/04.*#(?!heading)"))
    assert page.evaluate(sections)[4] == page.evaluate("decodeURIComponent(location.hash.slice(1))")
    assert settled(page) <= 20 and len(page.evaluate(sections)) == len(ids)


def test_on_a_phone_the_contents_close_after_a_choice(opened):
    page = opened(f"{chapter('06')}.html", **PHONE)
    page.locator("label.toc-header-icon").tap()
    page.locator(".toc-drawer a", has_text="Takeaway").tap()
    assert not page.evaluate("document.getElementById('__toc').checked")


def test_on_a_phone_the_bar_names_the_chapter_and_fingers_have_room(opened):
    page = opened(f"{chapter('06')}.html", **PHONE)
    assert page.locator(".mobile-header .brand").inner_text().startswith("06 · ")
    for icon in page.locator(".mobile-header :is(label, button)").all():
        box = icon.bounding_box()
        assert box["width"] >= 40 and box["height"] >= 40
    page.locator("[data-explorer=blocks]").scroll_into_view_if_needed()
    page.locator(".fx-blocks svg").first.wait_for(state="attached")
    small = """[...document.querySelectorAll('.fx :is(.fx-pill, button, select, input[type=text])')]
        .filter(e => e.offsetHeight && (e.offsetHeight < 36 || e.matches('select, input')
            && parseFloat(getComputedStyle(e).fontSize) < 16)).map(e => e.outerHTML)"""
    assert page.evaluate(small) == []
    size = page.locator(".guess input").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    assert size >= 16
    for hint in (".fx-keys", ".course-search kbd"):
        assert not page.locator(hint).is_visible()


def test_on_a_phone_an_explorers_sentence_stays_in_sight(opened):
    page = opened(f"{chapter('06')}.html", **PHONE)
    page.locator("[data-explorer=blocks]").scroll_into_view_if_needed()
    page.locator(".fx-blocks svg").first.wait_for(state="attached")
    below, sentence = page.locator(".fx-blocks .fx-why"), page.locator(".fx-blocks .fx-head")
    below.evaluate("e => e.scrollIntoView({block: 'end', behavior: 'instant'})")
    assert sentence.evaluate("e => e.getBoundingClientRect().top") == 48
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("number", ["00", "16"])
def test_the_sidebar_shows_where_the_reader_is(number, opened):
    page = opened(f"{chapter(number)}.html", **DESK)
    box = page.locator(".sidebar-tree .current-page").bounding_box()
    assert 100 < box["y"] < 800
    assert page.evaluate("scrollY") == 0


def test_the_sidebar_stands_where_it_stood(opened):
    left = [opened(name, **DESK).locator(".sidebar-brand").bounding_box()["x"]
            for name in ("index.html", f"{chapter('00')}.html", "glossary.html")]
    assert max(left) - min(left) < 1


def test_a_long_line_of_output_breaks_and_a_table_does_not(opened):
    page = opened(f"{chapter('06')}.html", **DESK)
    long = page.locator(".output .wrap").first
    assert "SRAM overflow" in long.inner_text()
    assert long.evaluate("e => { const p = e.closest('pre'); return p.scrollWidth <= p.clientWidth }")
    assert page.locator(".wrap", has_text="──").count() == 0


def test_on_a_phone_the_code_of_a_figure_folds(opened):
    page = opened(f"{chapter('06')}.html", **PHONE)
    fold = page.locator(".cell > details.fold").first
    assert not fold.locator("pre").is_visible()
    fold.locator("summary").tap()
    assert fold.locator("pre").is_visible()
    assert opened(f"{chapter('06')}.html", **DESK).locator(".cell > details.fold").count() == 0


def test_a_figure_opens_alone(opened):
    page = opened(f"{chapter('06')}.html", **PHONE)
    figure = page.locator("article button.enlarge").nth(1)
    alone = page.get_by_role("dialog", name="Enlarged figure")
    figure.tap()
    large = alone.locator("img")
    assert large.get_attribute("alt") == figure.locator("img").get_attribute("alt")
    assert large.bounding_box()["width"] > 1.25 * int(figure.locator("img").get_attribute("width"))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    alone.get_by_role("button", name="Close").tap()
    assert not alone.is_visible()
    figure.press("Enter")
    assert alone.is_visible()
    page.keyboard.press("Escape")
    assert not alone.is_visible() and page.wrong == []
    assert page.evaluate("document.activeElement.className") == "enlarge"


def test_a_moving_picture_opens_alone_as_it_is(opened):
    page = opened(f"{chapter('06')}.html", **DESK)
    page.get_by_role("button", name="Stop the moving picture").first.click()
    page.locator("button.enlarge:has([data-still])").first.click()
    assert page.locator("dialog.enlarged img").get_attribute("src").endswith(".still.webp")


def test_what_goes_on_to_the_right_fades_there(opened):
    page = opened(f"{chapter('06')}.html", **PHONE)
    page.wait_for_function("document.querySelectorAll('pre.more').length > 20")
    wide = page.locator("div.math.more").first.element_handle()
    assert "gradient" in wide.evaluate("e => getComputedStyle(e).maskImage")
    wide.evaluate("e => { e.scrollLeft = e.scrollWidth }")
    page.wait_for_function("e => !e.classList.contains('more')", arg=wide)
    assert page.evaluate("""Math.min(...[...document.querySelectorAll('.katex-display > .katex')]
        .filter(e => e.offsetWidth).map(e => parseFloat(getComputedStyle(e).fontSize)))""") >= 15
