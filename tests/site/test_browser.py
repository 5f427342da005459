"""The site in Chromium, from its folder: no request, no sideways scroll, and everything works."""

import gzip
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "_site"
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
PAGES = ["index", *CHAPTERS, "questions", "glossary", "figures"]
WIDTHS = (360, 390, 1024, 1280, 1366, 1440, 1920)
FIRST_LOAD_GZ, EXPLORER_GZ = 450_000, 40_000                # bytes; explorers come when they are near
SIXTH = next(name for name in CHAPTERS if name.startswith("06"))
# What is English on one page and Chinese on the other has the same place: few pages tell.
CHINESE = ["zh/index", f"zh/{SIXTH}", "zh/questions", "zh/glossary"]
PACKED = (".webp", ".woff2")

AXE = """async (rules) => {
    const options = rules.length ? {runOnly: {type: 'rule', values: rules}}
                                 : {runOnly: {type: 'tag', values: ['wcag2a', 'wcag2aa']}};
    const found = await axe.run(document, options);
    return found.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160)]);
}"""


def first_load(page):
    """Return how many bytes a page has asked for, as a server would pack them."""
    weight = 0
    for url in {url.split("?")[0] for url in page.files if url.startswith("file:")}:
        content = Path(unquote(urlsplit(url).path)).read_bytes()
        weight += len(content) if url.endswith(PACKED) else len(gzip.compress(content))
    return weight


@pytest.mark.parametrize("name", [*PAGES, *CHINESE])
def test_a_page_opens_asks_nobody_and_never_scrolls_sideways(name, opened):
    page = opened(f"{name}.html")
    page.wait_for_load_state("load")
    assert not [url for url in page.files if not url.startswith(("file:", "data:"))]
    assert first_load(page) <= FIRST_LOAD_GZ
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"at {width}"
    assert page.wrong == []


@pytest.fixture(scope="module")
def axe():
    return (ROOT / "site/node_modules/axe-core/axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("name", [*PAGES, *CHINESE])
def test_no_accessibility_violation(name, opened, axe):
    """All rules in the light; in the dark, where the page is the same but for its colors, contrast."""
    page = opened(f"{name}.html", color_scheme="light", reduced_motion="reduce")
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    page.evaluate(axe)
    assert page.evaluate(AXE, []) == []
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(AXE, ["color-contrast"]) == []


def test_search_finds_with_excerpts_and_leads_there(opened):
    page = opened("index.html")
    page.keyboard.press("/")
    page.locator("dialog.search input").fill("rescale")
    page.wait_for_selector("dialog.search li")
    assert page.locator("dialog.search li").count() >= 10
    first = page.locator("dialog.search li").first
    assert "rescal" in first.locator("mark").first.inner_text().lower()
    assert len(first.locator(".excerpt").inner_text()) > 60
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")                        # past the glossary
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"\d\d[a-z]?_\w+\.html\?find=rescale"))
    assert page.evaluate("CSS.highlights.get('found').size") > 0 and page.wrong == []


@pytest.mark.parametrize(
    "words", ["bank conflict", "e4m3", "merge_tile", "log-sum-exp", "ping-pong", "4,096"])
def test_search_knows(words, opened):
    page = opened(f"{SIXTH}.html", width=390)
    page.locator(".search-icon").click()
    page.locator("dialog.search input").fill(words)
    page.wait_for_selector("dialog.search li")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390 and page.wrong == []


def test_search_says_when_it_finds_nothing(opened):
    page = opened("index.html")
    page.keyboard.press("Control+k")
    page.locator("dialog.search input").fill("zyzzyva")
    page.get_by_text("0 places").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("dialog.search").is_visible()


@pytest.mark.parametrize(("words", "first"), [
    ("rescale", {"rescaling"}), ("tiles", {"tile"}),
    ("softmax", {"online softmax", "03 · Keep softmax safe", "04 · Run softmax online"})])
def test_search_begins_with_the_glossary_and_the_chapters_of_that_name(words, first, opened):
    page = opened("index.html")
    page.keyboard.press("/")
    page.locator("dialog.search input").fill(words)
    page.wait_for_selector("dialog.search li")
    found = page.locator("dialog.search .what").all_inner_texts()
    assert set(found[:len(first)]) == first
    assert page.wrong == []


def test_search_asks_what_a_mistyped_word_means(opened):
    page = opened("index.html")
    page.keyboard.press("/")
    page.locator("dialog.search input").fill("bank conflcit")
    page.get_by_role("button", name="Did you mean “bank conflict”?").click()
    assert page.locator("dialog.search input").input_value() == "bank conflict"
    assert page.locator("dialog.search .what").first.inner_text() == "bank conflict"


def test_search_finds_a_short_word_where_a_word_begins_and_no_stop_words(opened):
    page = opened("index.html")
    page.keyboard.press("/")

    def found(words):
        page.locator("dialog.search input").fill(words)
        return page.locator("dialog.search li").all_inner_texts()

    page.locator("dialog.search input").fill("softmax")
    page.wait_for_selector("dialog.search li")
    assert not any("property" in text for text in found("RoPE"))
    assert any("divide" in text for text in found("why divide by l only once"))
    heads = [text.splitlines()[1] for text in found("why")]
    assert all(re.search(r"(?i)\bwhy", head) for head in heads)
    assert page.wrong == []


def test_a_site_on_a_server_searches_too(served, browser):
    page = browser.new_page()
    page.goto(f"{served}/{SIXTH}.html")
    page.keyboard.press("/")
    page.locator("dialog.search input").fill("rescale")
    page.wait_for_selector("dialog.search li")
    page.close()


def test_folds_open_with_formulas(opened):
    page = opened(f"{SIXTH}.html")
    fold = page.locator("details.fold:has(.katex)").first
    assert not fold.locator(".katex").first.is_visible()
    fold.locator("summary").click()
    assert fold.locator(".katex").first.is_visible()
    assert page.locator("article .tO").count() > 10


def test_code_can_be_copied(opened):
    page = opened(f"{SIXTH}.html", permissions=["clipboard-read", "clipboard-write"])
    page.wait_for_selector("button.copybtn")
    cells = page.locator("div.cell_input div.highlight pre").count()
    assert page.locator("button.copybtn").count() == cells > 20
    page.locator("button.copybtn").first.click()
    page.wait_for_selector("button.copybtn.success")


def test_a_guess_is_kept_and_compared(opened):
    page = opened(f"{CHAPTERS[0]}.html")
    form = page.locator("form.guess").first
    form.locator("input").fill("71.3 M")
    page.reload()
    assert form.locator("input").input_value() == "71.3 M"
    form.locator("button").click()
    assert form.locator("output").inner_text() == "it was 142,606,336: yours is 0.500 times that"
    for guess, said in (("5", "29 million times too small"), ("1e15", "7 million times too large")):
        form.locator("input").fill(guess)
        form.locator("button").click()
        assert form.locator("output").inner_text() == f"it was 142,606,336: yours is about {said}"
    field, output = (form.locator(name).bounding_box() for name in ("input", "output"))
    assert field["x"] + field["width"] <= output["x"]
    assert form.evaluate("form => form.nextElementSibling.open"), "how to work it out"
    form.locator("input").fill("many")
    form.locator("button").click()
    assert "a number, please" in form.locator("output").inner_text()
    form.locator("input").fill("142606336")
    form.locator("button").click()
    assert form.locator("output").inner_text().endswith("yours is right")
    form.locator("input").fill("143 M")
    form.locator("button").click()
    assert form.locator("output").inner_text().endswith("yours is right, to rounding")


def test_a_chapter_is_ticked_off(opened):
    page = opened(f"{CHAPTERS[0]}.html")
    button = page.get_by_role("button", name="Mark this chapter as read")
    button.click()
    assert page.locator(".sidebar-tree a[data-done]").count() == 1
    page.goto((BUILT / "index.html").as_uri())
    assert page.locator("ul.chapters li[data-done]").count() == 1
    page.go_back()
    page.get_by_role("button", name="You have read this chapter").click()
    assert page.locator("[data-done]").count() == 0


def test_a_word_of_the_glossary_explains_itself(opened):
    page = opened(f"{SIXTH}.html")
    word = page.locator("a.term", has_text="SRAM").first
    word.hover()
    tip = page.get_by_role("tooltip")
    assert "small memory" in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    word.click()
    page.wait_for_url(re.compile("glossary.html#term-sram"))


def test_dark_mode_turns_figures_round_and_can_be_chosen(opened):
    page = opened(f"{SIXTH}.html", color_scheme="dark")
    filtered = "getComputedStyle(document.querySelector('article img:not(.tensors)')).filter"
    assert "invert" in page.evaluate(filtered)
    light = opened(f"{SIXTH}.html", color_scheme="light")
    assert light.evaluate(filtered) == "none"
    for _ in range(3):
        if light.evaluate("document.body.dataset.theme") == "dark":
            break
        light.locator(".theme-toggle-content button").click()
    assert "invert" in light.evaluate(filtered)


def test_a_moving_picture_stops(opened):
    page = opened(f"{SIXTH}.html")
    film = page.locator("img[data-still]").first
    page.get_by_role("button", name="Stop the moving picture").first.click()
    assert film.get_attribute("src").endswith(".still.webp")
    calm = opened(f"{SIXTH}.html", reduced_motion="reduce")
    assert calm.locator("img[data-still]").first.get_attribute("src").endswith(".still.webp")


def test_the_front_page_moves_and_begins(opened):
    page = opened("index.html")
    share = "document.querySelectorAll('.race .run')[1].getBoundingClientRect().width"
    page.wait_for_function(f"{share} > 40")
    page.locator("[data-again]").click()
    page.get_by_role("link", name="Begin with chapter 00").click()
    page.wait_for_url(re.compile("00_start_here"))


def test_a_page_prints_without_its_frame(opened):
    page = opened(f"{SIXTH}.html")
    page.emulate_media(media="print")
    for part in (".sidebar-drawer", ".toc-drawer", ".copybtn", ".related-pages", ".guess"):
        assert not page.locator(part).first.is_visible(), part


@pytest.mark.parametrize("theme", ["auto", "dark"])
def test_paper_is_light_whatever_the_screen_is(theme, opened):
    page = opened(f"{SIXTH}.html", color_scheme="dark")
    page.evaluate(f"document.body.dataset.theme = '{theme}'")
    page.locator("[data-explorer]").first.scroll_into_view_if_needed()
    page.locator(".fx").first.wait_for(state="attached")
    look = """() => {
        const style = (place) => getComputedStyle(document.querySelector(place));
        return [style('article img').filter, style('.question').backgroundColor,
                style('div.cell_input div.highlight').backgroundColor, style('.fx').colorScheme];
    }"""
    assert page.evaluate(look)[0] != "none"
    page.emulate_media(media="print")
    assert page.evaluate(look) == ["none", *["rgb(242, 244, 248)"] * 2, "light"]


def test_an_address_inside_a_page_is_reached(opened):
    page = opened(f"{SIXTH}.html")
    page.goto(f"{page.url}#what-hbm-traffic-becomes")
    page.wait_for_function("scrollY > 1000")


EXPLORER = ROOT / "site/static/explorer.js"


@pytest.mark.skipif(not EXPLORER.exists(), reason="the explorers are not built")
@pytest.mark.parametrize(("chapter", "kind"), [
    ("01", "lab"), ("02", "lab"), ("04", "softmax"), ("05", "lab"), ("06", "blocks"), ("07", "blocks"),
    ("08", "walk"), ("08", "lab"), ("09", "lab"), ("10", "blocks"), ("11", "lab"), ("12_", "lab"),
    ("12b", "lab"), ("13", "lab"), ("14", "lab"), ("15", "blocks"), ("16", "blocks"), ("17", "lab")])
def test_an_explorer_takes_the_place_of_a_lab(chapter, kind, opened):
    page = opened(f"{next(name for name in CHAPTERS if name.startswith(chapter))}.html")
    place = page.locator(f"[data-explorer={kind}]").first
    place.scroll_into_view_if_needed()
    place.locator("svg").first.wait_for(state="attached")
    assert page.wrong == []
    assert page.locator(".lab-note:visible").count() == 0
    assert len(gzip.compress(EXPLORER.read_bytes())) <= EXPLORER_GZ
