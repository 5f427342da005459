"""The Chinese edition of the site: its words, its way to the English one, its search."""

import gzip
import html
import itertools
import re
from pathlib import Path

import pytest

from tests.site.test_browser import FIRST_LOAD_GZ, first_load
from tests.site.test_pages import BUILT, CHAPTERS, PAGES, ROOT, notebook, text

pytestmark = pytest.mark.site

HAN = re.compile("[\u4e00-\u9fff]")
SIXTH = next(name for name in CHAPTERS if name.startswith("06"))


@pytest.fixture(scope="module")
def zh(part):
    return part("tongue").CHINESE


@pytest.mark.parametrize("name", PAGES)
def test_each_page_leads_to_itself_in_the_other_language(name):
    for page, up, language, other, there in ((name, "", "en", "zh-Hans", f"zh/{name}.html"),
                                             (f"zh/{name}", "../", "zh-Hans", "en", f"../{name}.html")):
        found = text(page)
        assert f' lang="{language}"' in found.partition("<head>")[0]
        for folder, code in (("", "en"), ("zh/", "zh-Hans")):
            assert f'<link rel="alternate" hreflang="{code}" href="{up}{folder}{name}.html">' in found
        assert f'<a class="other-language" href="{there}" lang="{other}"' in found


def test_a_published_site_names_both_by_their_whole_addresses(part, zh, tmp_path):
    there = part("edition").alternates("a.html", zh, "https://example.org/course")
    assert re.findall('href="([^"]+)"', there) == [
        "https://example.org/course/a.html", "https://example.org/course/zh/a.html"]
    part("post").publish(tmp_path, ["a.html", "zh/a.html"], "https://example.org/course")
    places = (tmp_path / "sitemap.xml").read_text("utf-8")
    assert "<loc>https://example.org/course/zh/a.html</loc>" in places


def test_styles_scripts_and_pictures_are_there_once():
    assert not (BUILT / "zh/_static").exists() and not (BUILT / "zh/_images").exists()
    assert not (BUILT / "zh/files").exists()
    kinds = {path.suffix for path in (BUILT / "zh").rglob("*") if path.is_file()}
    assert kinds == {".html", ".zip", ".js"}


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_its_parts_in_chinese(name, part):
    page = text(f"zh/{name}")
    assert '<div class="question container">' in page and "takeaway container" in page
    assert len(re.findall(r"<span>(?:阅读|练习)约 \d+ 分钟</span>", page)) == 2
    assert f'href="notebooks/{name}.zip" download' in page
    assert "katex-error" not in page and "全部章节</a>" not in page
    assert page.count('class="term"') >= 6
    english = text(name)
    for sign in ('<div class="answers container">', "data-answer=", "data-explorer=",
                 '<details class="fold">'):
        assert page.count(sign) == english.count(sign), sign
    assert "Commit first" not in page and "A solution" not in page and "A hint" not in page


@pytest.mark.parametrize("name", PAGES)
def test_the_frame_of_a_page_is_chinese(name, part, zh):
    page = text(f"zh/{name}")
    for english, chinese in part("edition").frame(zh.say).items():
        assert HAN.search(chinese)
        word = re.escape(english)
        assert not re.search(rf'(?:aria-label|title)="{word}"|>\s*{word}\s*<', page)


@pytest.mark.parametrize("name", CHAPTERS)
def test_pictures_have_their_translated_texts(name, part, pages, zh):
    book = part("tongue").notebooks.translated(name.partition("_")[0], zh)
    book["cells"] = part("prep").shown(book["cells"])
    drawn = [alt for _, _, alt in part("prep").outputs(book, "image/png")]
    images = pages[BUILT / f"zh/{name}.html"].images
    assert [image["alt"] for image in images] == drawn
    english = [f'../{image["src"]}' for image in pages[BUILT / f"{name}.html"].images]
    assert [image["src"] for image in images] == english


@pytest.fixture(scope="module")
def pages(part):
    return part("check_site").read(BUILT)


def test_downloads_are_the_chinese_notebooks(part, zh):
    for name in CHAPTERS:
        book = notebook(name, "zh")
        full = part("tongue").notebooks.translated(name.partition("_")[0], zh)
        texts = ["".join(cell["source"]) for cell in full["cells"]]
        assert [cell["source"] for cell in book["cells"]] == texts
        assert not any(cell.get("outputs") for cell in book["cells"])


def test_next_says_the_next_chapters_question(part, zh):
    rows, _ = part("prep").chapters()
    for row, after in itertools.pairwise(rows):
        assert f'<span class="asks">{html.escape(zh.say(after.question))}</span>' in text(
            f"zh/{row.number}_{row.slug}").split('class="next-page"')[1].split("</a>")[0]


def test_the_front_page_says_the_recorded_numbers():
    numbers = [re.findall(r"<b>[×÷] ([\d.]+)</b>|([\d.]+) ms</span>", text(name))
               for name in ("index", "zh/index")]
    assert numbers[0] == numbers[1] and len(numbers[0]) == 5


def test_the_glossary_has_every_word_by_its_chinese_name(part, zh):
    page = text("zh/glossary")
    for term in part("terms").TERMS:
        assert f'<dt id="{term.key}">{html.escape(zh.say(term.name))}</dt>' in page
    tips = re.findall('data-tip="([^"]+)"', text(f"zh/{SIXTH}"))
    assert tips and all(map(HAN.search, tips))


@pytest.fixture
def index(part):
    script = (BUILT / "zh/_search-index.js").read_text("utf-8")
    return script, part("search_index").entries(script)


def test_the_search_knows_every_section(index):
    script, found = index
    assert len(found) > 300 and len(gzip.compress(script.encode())) < 250_000
    assert {page for page, *_ in found} == {f"zh/{name}.html" for name in PAGES if name != "figures"}
    for page, anchor, _, heading, _ in found:
        assert heading and (not anchor or f'id="{anchor}"' in text(page.removesuffix(".html")))


@pytest.mark.parametrize("name", PAGES)
def test_the_first_load_is_light(name, opened):
    page = opened(f"zh/{name}.html")
    page.wait_for_load_state("load")
    assert first_load(page) <= FIRST_LOAD_GZ and page.wrong == []


@pytest.mark.parametrize(("words", "least"), [
    ("重新缩放", 5), ("在线 softmax", 5), ("访存量", 10), ("头", 5),
    ("共享内存带宽", 1),                                    # nowhere as a whole: pairs of characters
])
def test_search_finds_chinese(words, least, opened):
    page = opened(f"zh/{SIXTH}.html")
    page.keyboard.press("/")
    page.locator("dialog.search input").fill(words)
    page.wait_for_selector("dialog.search li")
    assert page.locator("dialog.search li").count() >= least
    assert page.locator("dialog.search mark").count() > 0
    page.locator("dialog.search li a").first.click()
    page.wait_for_url(re.compile(r"/zh/\w+\.html\?find="))
    assert page.evaluate("CSS.highlights.get('found').size") > 0 and page.wrong == []


def test_what_stands_nowhere_is_not_found(opened, index):
    _, found = index
    assert not any("麒麟" in heading + told for *_, heading, told in found)
    assert any("缓存" in told for *_, told in found), "one pair of three is not enough"
    page = opened("zh/index.html")
    page.keyboard.press("/")
    page.locator("dialog.search input").fill("麒麟缓存")
    page.wait_for_function("document.querySelector('dialog.search .count').textContent.includes('0')")
    assert page.locator("dialog.search li").count() == 0


def test_the_scripts_words_come_before_the_scripts(zh):
    words = Path(ROOT / "i18n/zh/words.json")
    for name in PAGES:
        scripts = re.findall(r'<script[^>]*src="([^"?]+)', text(f"zh/{name}"))
        assert ("_words.js" in scripts) == words.exists()
        if words.exists():
            assert scripts.index("_words.js") < scripts.index("../_static/course.js")
