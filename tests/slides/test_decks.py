"""Every chapter has a deck for one lecture, and all that a deck names is in its chapter."""

import base64
import json
import re

import pytest

from flashlib.course.notebook.chapters import CHAPTERS
from tests.slides.conftest import ROOT

DECKS = sorted(path.stem for path in (ROOT / "slides").glob("[0-9]*.md"))
SLIDES = range(12, 21)


def slides_of(number):
    return re.split(r"\n---\n", (ROOT / "slides" / f"{number}.md").read_text("utf-8"))


def test_every_chapter_has_a_deck():
    assert sorted(c.number for c in CHAPTERS if c.ready) == DECKS


@pytest.mark.parametrize("number", DECKS)
def test_a_deck_fills_a_lecture_and_every_slide_has_notes(number):
    slides = slides_of(number)
    assert len(slides) in SLIDES
    without = [n for n, slide in enumerate(slides, 1) if not re.search(r"<!--\s*(?!_class)\S.{20,}?-->",
                                                                       slide, re.S)]
    assert not without, f"slides without speaker notes: {without}"
    assert sum("_class: predict" in slide for slide in slides) >= 2
    assert "_class: takeaway" in slides[-1]
    chapter = next(c for c in CHAPTERS if c.number == number)
    assert f"# {number} · {chapter.title}" in slides[0]


@pytest.mark.parametrize("number", DECKS)
def test_all_that_a_deck_names_is_in_its_notebook(number, build, tmp_path):
    deck, notebook = build.decks([number])[number]
    build.write(number, deck, notebook, tmp_path)
    text = (tmp_path / f"{number}.md").read_text("utf-8")
    assert "{{" not in re.sub(r"```.*?```|\$\$.*?\$\$|\$[^$\n]*\$", "", text, flags=re.S)
    images = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert len(images) >= 3
    assert all((tmp_path / image).read_bytes().startswith(b"\x89PNG") for image in images)


@pytest.mark.parametrize("number", DECKS)
def test_a_chinese_deck_has_the_figures_and_numbers_of_the_english_one(number, build, tmp_path):
    deck, notebook = build.decks([number])[number]
    texts = []
    for language in (build.ENGLISH, build.LANGUAGES["zh"]):
        build.write(number, deck, notebook, tmp_path, language)
        texts.append((tmp_path / language.folder / f"{number}.md").read_text("utf-8"))
    english, chinese = texts
    assert len(build.catalogue.slides(english)) == len(build.catalogue.slides(chinese))
    images = [re.findall(r"!\[(?:[^\]]*)\]\((?:\.\./)?(img/[^)]*)\)", text) for text in texts]
    assert images[0] == images[1]
    assert "\nlang: zh-Hans\n" in chinese and "](../img/" in chinese and "](img/" not in chinese


def test_a_slide_that_is_not_translated_stays_english(build, monkeypatch):
    slides = ["# One\n\nWords", "## Two"]
    given = {("slide", build.catalogue.key("slide", slides[1])): "## 二"}
    monkeypatch.setattr(build.catalogue, "read", lambda path: given)
    deck = "\n\n---\n\n".join(slides)
    assert build.translated("01", deck, build.LANGUAGES["zh"]) == "# One\n\nWords\n\n---\n\n## 二\n"
    assert build.translated("01", deck, build.ENGLISH) == deck


def test_pdfs_in_chinese_ask_for_a_font_that_has_it(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "chinese_font", lambda: False)
    monkeypatch.setattr(build, "browser", lambda: "chromium")
    monkeypatch.setattr(build.sys, "argv", ["build.py", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="apt install fonts-noto-cjk, or fonts-wqy-microhei"):
        build.main()


@pytest.fixture
def book(build, tmp_path):
    png = base64.b64encode(b"\x89PNG one").decode()
    cells = [{"id": "aaaaaaaa", "cell_type": "markdown", "source": ["# 99 · A title\n", "12 words"]},
             {"id": "bbbbbbbb", "cell_type": "code", "source": ["x = 1\n", "y = 2\n", "print(x)"],
              "outputs": [{"output_type": "stream", "text": ["safe   25,088\n", "online 18,816\n"]},
                          {"output_type": "display_data", "data": {"image/png": png},
                           "metadata": {"image/png": {"alt": "a [small] picture"}}}]}]
    path = tmp_path / "99.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return build.Book(path)


@pytest.mark.parametrize(("deck", "expected"), [
    ("moves {{bbbbbbbb: safe +([\\d,]+)}} bytes", "moves 25,088 bytes"),
    ("{{aaaaaaaa: \\d+ words}}", "12 words"),
    ("{{bbbbbbbb}}", "```text\nsafe   25,088\nonline 18,816\n```"),
    ("{{bbbbbbbb 2-2}}", "```text\nonline 18,816\n```"),
    ("{{code bbbbbbbb 1-2}}", "```python\nx = 1\ny = 2\n```"),
    ("![w:90](bbbbbbbb)", "![w:90 a  small  picture](img/99-bbbbbbbb-1.png)"),
])
def test_what_a_deck_names_is_taken_from_the_notebook(build, book, tmp_path, deck, expected):
    (tmp_path / "img").mkdir()
    assert build.filled(deck, book, "99", tmp_path / "img") == expected


@pytest.mark.parametrize(("deck", "said"), [
    ("{{cccccccc}}", "has no cell cccccccc"),
    ("{{bbbbbbbb: naive (\\d+)}}", r"printed nothing that matches naive \(\\d\+\)"),
    ("![](bbbbbbbb#2)", "has 1 figures, not 2"),
    ("{{bbbbbbbb 2-3}}", "lines 2 to 3 of 2"),
    ("{{code bbbbbbbb 3-4}}", "lines 3 to 4 of 3"),
])
def test_what_a_notebook_lacks_is_named(build, book, tmp_path, deck, said):
    with pytest.raises(build.Missing, match=said):
        build.filled(deck, book, "99", tmp_path)
