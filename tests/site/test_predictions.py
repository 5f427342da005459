"""Each prediction has its field, and what the fields compare with stands on the page."""

import re

import pytest

pytestmark = pytest.mark.site
NAMES = {"CUDA", "FLOP", "NVLink", "Python", "graph", "group", "one_wave"}   # the same in any language


@pytest.fixture
def books(part):
    rows, _ = part("prep").chapters()
    return {row.number: part("prep").Chapter(row) for row in rows}


def asked(book):
    """Return [(the fold's text, what is printed from there to the next heading)] of the predictions."""
    found = []
    for cell in book.book["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for n, section in enumerate(re.split(r"(?m)^##+ ", text)):
                if n:
                    for prediction in found:
                        prediction[2] = False               # a heading ends what is printed for it
                folds = re.findall(r"(?s)<details>\s*<summary>(.*?)</summary>(.*?)</details>", section)
                found += [[body, "", True] for title, body in folds
                          if re.search(book.language.commit, title)]
        else:
            said = "".join("".join(o.get("text", "")) for o in cell["outputs"])
            for prediction in found:
                prediction[1] += said * prediction[2]
    return [(fold, said) for fold, said, _ in found]


def test_every_prediction_of_a_page_has_a_form(books, part):
    for number, book in books.items():
        cells = "\n".join("".join(cell["source"]) for cell in book.cells()["cells"])
        forms = re.findall(r'<form class="guess[^"]*" data-guess="([^"]+)"', cells)
        assert len(forms) == len(asked(book)) == cells.count("::::::::{fold} Commit first") > 0, number
        assert len(set(forms)) == len(forms)
    chinese = part("prep").Chapter(books["15"].row, language=part("tongue").CHINESE)
    text = "\n".join("".join(cell["source"]) for cell in chinese.cells()["cells"])
    assert text.count('<form class="guess') == len(asked(books["15"]))


def test_every_written_answer_stands_in_its_fold_or_is_printed_below(books, part):
    written, chinese = part("predictions").WRITTEN, part("tongue").CHINESE
    assert written.keys() <= books.keys()
    missing = []
    for number, places in written.items():
        there = asked(books[number])
        for place, fields in places.items():
            fold, said = there[int(place)]
            for label, answer in fields:
                assert part("predictions").number(answer)
                plain = fold.replace("{,}", ",")
                alone = rf"(?<![\d.,]){re.escape(answer)}(?!\d|[.,]\d)"
                if not re.search(alone, f"{plain}\n{said}"):
                    missing.append(f"{number} #{place}: {label} {answer}")
                words = set(re.findall("[A-Za-z_]{4,}", label)) - NAMES
                assert not words or chinese.say(label) != label, f"{label}: nobody translates it"
    assert not missing, missing


def test_a_guess_in_words_is_kept_and_opens_the_answer(opened):
    page = opened("12_overlap_everything_v3.html")
    form = page.locator("form.guess.words").first
    form.locator("input").fill("four, for both")
    assert not form.evaluate("form => form.nextElementSibling.open")
    form.locator("button").click()
    assert form.evaluate("form => form.nextElementSibling.open")
    page.reload()
    assert page.locator("form.guess.words input").first.input_value() == "four, for both"
    assert page.wrong == []


TWELFTH = "12_overlap_everything_v3.html"


@pytest.mark.parametrize("way", ["compare", "fold", "anyway"])
def test_the_next_cell_is_covered_until_there_is_a_guess(way, opened):
    page = opened(TWELFTH)
    form, cell = page.locator("form.guess").first, page.locator("form.guess ~ .cell").first
    code, above = cell.locator("pre").first, form.bounding_box()["y"]
    assert not code.is_visible() and cell.locator(".cover").is_visible()
    if way == "compare":
        form.locator("button").click()
        assert not code.is_visible(), "nothing was guessed"
        assert "A guess first" in form.locator("input").evaluate("e => e.validationMessage")
        form.locator("input").fill("75")
        form.locator("button").click()
    elif way == "fold":
        page.locator("form.guess + details summary").first.click()
    else:
        cell.get_by_role("button", name="Show me anyway").click()
    code.wait_for()
    assert not cell.locator(".cover").count()
    assert abs(form.bounding_box()["y"] + page.evaluate("scrollY") - above) < 3, "what is above stays"
    page.reload()
    assert page.locator("form.guess ~ .cell pre").first.is_visible(), "once is enough"


def test_what_is_said_of_a_covered_cell_is_covered_with_it(opened):
    page = opened("06_tile_flashattention_v1.html")
    said = page.get_by_text("An eighth comes from DRAM")
    assert not said.is_visible()
    assert not page.locator(".veiled [id], .veiled[id]").count(), "an address leads to none of it"
    page.emulate_media(media="print")
    assert said.is_visible()
    page.emulate_media(media="screen")
    page.get_by_role("button", name="Show me anyway").last.click()
    assert said.is_visible()
    page = opened("15_decode_with_split_kv.html")
    asked = page.locator("p:has(> strong:first-child)").filter(has_text="Predict")
    assert asked.count() > 8 and not page.locator(".veiled > strong:first-child").count()
    plain = opened("06_tile_flashattention_v1.html", java_script_enabled=False)
    assert plain.get_by_text("An eighth comes from DRAM").is_visible()


def test_a_covered_cell_opens_for_its_address_and_is_there_in_print_and_without_scripts(opened):
    page = opened(TWELFTH)
    name = page.locator(".covered img").first.get_attribute("id")
    page.goto(f"{page.url}#{name}")
    page.locator(f"#{name}").wait_for()
    assert page.locator(f".covered #{name}").count() == 0
    page.emulate_media(media="print")
    assert page.locator(".covered pre").first.is_visible()
    assert not page.locator(".cover").first.is_visible()
    plain = opened(TWELFTH, java_script_enabled=False)
    assert plain.locator("form.guess ~ .cell pre").first.is_visible()


def test_a_written_answer_is_compared(opened):
    page = opened("12_overlap_everything_v3.html")
    form = page.locator("form.guess:not(.words)").first
    form.locator("input").fill("150")
    form.locator("button").click()
    told = form.locator("output").text_content()
    assert "75" in told and "2.00" in told
