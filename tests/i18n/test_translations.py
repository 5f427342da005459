"""The translations: whole, unsuspicious, with links that lead somewhere and one name for a thing."""

import re
import sys
from urllib.parse import unquote

import pytest

from tests.i18n.conftest import ROOT

sys.path.insert(0, str(ROOT / "i18n"))

import catalogue
import pages
from language import CHINESE, ENGLISH

import notebooks

pytestmark = pytest.mark.skipif(not (ROOT / "slides").exists(), reason="an archive has no decks")
CHAPTERS = catalogue.chapters()
LINK = re.compile(r"\]\(((?:\d\d[a-z]?_\w+\.ipynb)?)#([^)\s]+)\)")


@pytest.mark.parametrize("name", [*CHAPTERS, "pages"])
def test_nothing_is_missing_left_over_or_suspicious(name):
    missing, over, odd = catalogue.report(name)
    assert missing == [] and over == []
    assert odd == {}


def text_of(number):
    cells = notebooks.translated(number, CHINESE)["cells"]
    return "\n\n".join(catalogue.source(cell) for cell in cells if cell["cell_type"] == "markdown")


@pytest.fixture(scope="module")
def texts():
    return {catalogue.chapter(number).name: text_of(number) for number in CHAPTERS}


def dangling(texts, file, text):
    """Return the links to a heading that a chapter does not have."""
    places = {name: {unquote(notebooks.anchor(heading)) for heading in notebooks.headings(found)}
              for name, found in texts.items()}
    return [found[0] for found in LINK.finditer(text)
            if unquote(found[2]) not in places[found[1] or file]]


@pytest.mark.parametrize("number", CHAPTERS)
def test_every_link_to_a_heading_leads_there(number, texts):
    file = catalogue.chapter(number).name
    assert dangling(texts, file, texts[file]) == []


def test_the_index_leads_to_headings_and_has_every_question(texts):
    index = notebooks.index(CHINESE)
    assert dangling(texts, "", index) == []
    english = (ROOT / "notebooks/README.md").read_text("utf-8")
    assert len(LINK.findall(index)) == len(pages.QUESTION.findall(english)) > 40


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_chapter_has_the_title_that_the_site_says(number, texts):
    sys.path.insert(0, str(ROOT))
    from flashlib.course.notebook.chapters import CHAPTERS as ROWS

    row = next(row for row in ROWS if row.number == number)
    title = CHINESE.say(row.title)
    assert texts[catalogue.chapter(number).name].startswith(f"# {number} · {title}\n")
    deck = catalogue.read(catalogue.HERE / "zh/slides" / f"{number}.md")
    assert title in next(iter(deck.values()))


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_chapter_has_the_phrases_by_which_the_site_reads_it(number, texts):
    text = texts[catalogue.chapter(number).name]
    english = "\n\n".join(message for (kind, _), message in catalogue.messages(number).items()
                          if kind == "markdown")
    for name in ("question", "exercise", "minutes"):
        counts = [len(re.findall(getattr(language, name), found))
                  for language, found in ((ENGLISH, english), (CHINESE, text))]
        assert counts[0] == counts[1] > 0, name
    for name in ("ways", "takeaway", "commit"):
        found = re.search(getattr(CHINESE, name), text)
        assert found or not re.search(getattr(ENGLISH, name), english), name


def test_each_word_of_the_glossary_has_a_name_of_its_own_that_is_used(texts):
    sys.path.insert(0, str(ROOT / "site"))
    from terms import TERMS

    names = [CHINESE.say(term.name) for term in TERMS]
    assert len(set(names)) == len(names)
    prose = "\n".join(texts.values())
    unused = {name for name in names if name not in prose and not name.isascii()}
    assert unused <= {"持久化内核"}, "chapter 12 says the adjective alone"
