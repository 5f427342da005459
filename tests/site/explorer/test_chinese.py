"""The page's scripts in Chinese: with COURSE_WORDS set, no English word is left to see or to hear."""

import base64
import json
import re
import zlib

import pytest

from tests.browser import chromium
from tests.site.explorer.places import ROOT, SOURCE

pytestmark = pytest.mark.site

WORDS = (ROOT / "i18n" / "zh" / "words.json").read_text(encoding="utf-8")
STATIC = ROOT / "site" / "static"
# Letters, names, units and keys of the keyboard stay; a unit's prefix comes from format.ts.
STAYS = {
    "FlashAttention", "softmax", "logit", "bank", "SRAM", "HBM", "L2", "GPU", "RTX", "FP8", "FLOP",
    "SM", "KV", "token", "NVLink", "PCIe",
    "TFLOP", "lse", "exp", "max", "dQ", "dK", "dV", "dO", "dP", "dS", "Page", "Up", "Down",
    "ms", "ns", "kB", "MB", "GB", "KiB", "MiB"}
# Every text, and what is spoken or shown of an element on demand; code aside.
SEEN = """root => {
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const place = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
        if (place.closest('.fx-code, .fx-file, style, script')) continue;
        if (node.nodeType === Node.TEXT_NODE) found.push(node.data);
        else for (const name of ['aria-label', 'aria-valuetext', 'title', 'placeholder'])
            if (node.hasAttribute(name)) found.push(node.getAttribute(name));
    }
    return found.map(text => text.trim()).filter(Boolean); }"""
STATES = {
    "blocks": [
        {}, {"algorithm": "v4", "share": 0.3}, {"share": 0}, {"algorithm": "standard"},
        {"algorithm": "v1", "Br": 512, "gpu": "T4"}, {"algorithm": "v3", "precision": "fp8"},
        {"gpu": "H100"}, {"precision": "16"}, {"algorithm": "backward", "Bc": 128},
        {"algorithm": "backward_q"}, {"algorithm": "v2", "causal": False, "Nq": 1}, {"Nq": 0},
        {"algorithm": "decode"}, {"parts": 16, "gpu": "H200"}, {"parts": 64}, {"B": 64},
        {"algorithm": "ring"}, {"causal": True}, {"layout": "zigzag"}, {"layout": "stripe"},
        {"backward": True, "P": 16}],
    "walk": [{"run": run, "step": step} for run in ("v2, causal", "v1", "standard")
             for step in (*range(0, 60, 3), 120, 10**6)],
    "softmax": [
        *({"method": method, "step": step} for method in "321" for step in (0, 1, 3, 7, 10**6)),
        {"x": "1 2 x"}, {"x": " "}, {"x": "1 " * 17}, {"x": "1 2", "v": "1 inf"}],
}


@pytest.fixture
def page():
    """Yield an empty page whose scripts find the Chinese words, as zh/_words.js gives them."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not chromium.find():
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium.find(), args=list(chromium.FLAGS))
        opened, wrong = running.new_page(viewport={"width": 900, "height": 900}), []
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("console", lambda said: wrong.append(said.text))
        opened.add_init_script(f"window.COURSE_WORDS = {WORDS}")
        yield opened
        running.close()
    assert wrong == []


def english(texts):
    """Return the texts that hold a word in Latin letters which does not stay; what is quoted may."""
    def foreign(text):
        return set(re.findall(r"[A-Za-z]{2,}\d?", re.sub(r"“.*?”|内核：.*", "", text))) - STAYS

    return sorted({text for text in texts if foreign(text)})


@pytest.mark.parametrize("kind", STATES)
def test_an_explorer_speaks_chinese_alone(page, kind):
    page.goto((SOURCE / "demo.html").as_uri())
    place = page.locator(f"[data-explorer={kind}]")
    place.locator(".fx").wait_for()
    place.evaluate("e => e.querySelectorAll('details').forEach(fold => { fold.open = true })")
    seen = set()
    for width in (900, 360):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "([kind, wide]) => !!document.querySelector(`.fx-${kind}.fx-wide`) === wide",
            arg=[kind, width == 900])
        for state in STATES[kind]:
            place.evaluate("(e, state) => e.explorer.set(state)", state)
            seen |= set(place.evaluate(SEEN))
    assert len(seen) > 80 and english(seen) == []
    pictures = place.locator("svg").all()
    assert pictures
    for picture in pictures:
        assert re.search(r"[\u4e00-\u9fff]", picture.get_attribute("aria-label"))
    out = place.evaluate("""e => { const edge = e.getBoundingClientRect();
        return [...e.querySelectorAll('svg text')].filter(t => { const b = t.getBoundingClientRect();
            return b.width && (b.left < edge.left || b.right > edge.right); })
            .map(t => t.textContent); }""")
    assert out == []


def test_what_is_spoken_of_a_change_is_chinese_with_its_numbers_as_they_were(page):
    page.goto((SOURCE / "demo.html").as_uri())
    page.locator("[data-explorer=walk] .fx").wait_for()
    for kind in STATES:
        page.locator(f"[data-explorer={kind}] input[type=range]").first.press("ArrowRight")
    page.wait_for_function("[...document.querySelectorAll('[role=status]')].every(e => e.textContent)")
    said = page.locator("[role=status]").all_text_contents()
    assert len(said) == 3 and english(said) == []
    assert re.search(r"\d,\d{3} FLOP", said[1]) and "次方" in said[2]
    assert not any(re.search("[。，：] ", text) for text in said), "a space between sentences"


PAGE = """<!doctype html><html data-content_root="{root}"><meta charset="utf-8"><title>页</title>
<body><div class="facts" data-page="x" data-plain=""></div><div class="header-right"></div>
<div class="course-search"><svg></svg></div>
<article><form class="guess" data-guess="x"><label>甲<input data-answer="4096"><output></output></label>
<button>对照</button></form><img data-still="data:," src="data:," alt="图"></article>
<script src="{static}/course.js"></script></body></html>"""


def test_the_pages_scripts_speak_chinese_alone(page, tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "search.js").write_bytes((STATIC / "search.js").read_bytes())
    index = [["x.html", anchor, "第一章", "一节", "甲乙 rescale 丙"] for anchor in ("", "b")] + [
        ["x.html", "c", "第一章", "二节", "zigzag"]]
    text = json.dumps(list(zip(*index, strict=True)))       # packed as site/search_index.py does it
    (tmp_path / "_static" / "search-index.js").write_text(
        f'window.COURSE_INDEX="{base64.b85encode(zlib.compress(text.encode())).decode()}"')
    (tmp_path / "x.html").write_text(PAGE.format(root="", static=STATIC.as_uri()), encoding="utf-8")
    page.goto((tmp_path / "x.html").as_uri())
    seen = set()

    def look():
        seen.update(page.evaluate(f"({SEEN})(document.body)"))

    look()
    page.locator(".finished button").click()
    page.locator(".film-stop").click()
    for guess in ("many", "4096", "2048"):
        page.locator(".guess input").fill(guess)
        page.locator(".guess button").click()
        look()
    assert page.locator("output").inner_text() == "答案是 4,096：你的是它的 0.500 倍"
    page.locator(".search-icon").click()
    for words, places in (("rescale", "2 处"), ("zigzag", "1 处"), ("zyzzyva", "0 处")):
        page.locator("dialog input").fill(words)
        page.locator(".count").get_by_text(places, exact=True).wait_for()
        look()
    assert len(seen) > 15 and english(seen) == ["rescal", "zigzag"]  # stems are marked
