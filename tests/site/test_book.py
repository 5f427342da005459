"""The book: chapters in order, numbered through, with their headings in the outline and folds open."""

import pytest

from tests.site.conftest import BUILT

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def bound(part, browser):
    book = part("book")
    chapters, parts = part("prep").chapters()
    chosen = [c for c in chapters if c.number in ("04", "05")]
    parts = [name for name in parts if name in {c.part for c in chosen}]
    printer = book.Printer(browser, BUILT)
    return book.bind(printer, parts, chosen, lambda *words, **options: None), chosen


def test_pages_are_numbered_and_the_contents_name_the_first_of_each_chapter(bound):
    pages = [page.extract_text() for page in bound[0].pages]
    assert [text.split("\n")[-1] for text in pages[1:]] == [str(n) for n in range(2, len(pages) + 1)]
    for chapter in bound[1]:
        name = f"{chapter.number} · {chapter.title}"
        first = next(n for n, text in enumerate(pages, 1) if n > 2 and text.startswith(name))
        assert f"{name} {first}" in pages[1].split("\n")


def test_the_outline_has_chapters_and_their_headings(bound):
    outline = bound[0].outline
    names = [item.title for item in outline if not isinstance(item, list)]
    assert names == [f"{c.number} · {c.title}" for c in bound[1]] + ["Questions", "Glossary"]
    inside = [str(item) for item in outline if isinstance(item, list)]
    assert "Takeaway" in inside[0] and "Takeaway" in inside[1]


def test_folded_answers_are_printed(bound):
    text = "".join(page.extract_text() for page in bound[0].pages)
    assert "Start from" in text                             # the induction of chapter 04 lies in a fold


def test_a_site_that_was_not_built_is_named(part, tmp_path):
    with pytest.raises(SystemExit, match="expected a built site in"):
        part("book").main(tmp_path, tmp_path / "book.pdf")
