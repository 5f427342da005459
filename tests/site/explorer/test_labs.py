"""The labs that a page shows as tables: the labs' own numbers, and the answers that the text gives."""

import json

import pytest

from scripts import lab_tables
from tests.site.explorer.page import LOOP, MOST, MOVE, least_busy
from tests.site.explorer.places import ROOT
from tests.site.explorer.test_browser_parallel import AXE

pytestmark = pytest.mark.site

TABLES = json.loads(lab_tables.FILE.read_text("utf-8"))


def row(name, *choice):
    """Return the row of a table for one option of each control."""
    options, place = TABLES[name]["options"], 0
    for some, one in zip(options, choice, strict=True):
        place = place * len(some) + some.index(one)
    return TABLES[name]["rows"][place]


def test_the_tables_are_what_the_labs_answer():
    assert lab_tables.stale() == [], "run `make explorer`"


def test_every_table_has_a_row_for_every_choice():
    for name, table in TABLES.items():
        count = 1
        for options in table["options"]:
            count *= len(options)
        assert len(table["rows"]) == count, name


def test_they_answer_what_the_chapters_ask():
    # 05: how many of the four rescales are left; after which key an output is complete.
    assert [row("walk", "needs", size, 56)[4 + 1] for size in (1, 8, 28, 56)] == [4, 3, 1, 0]
    assert row("walk", "of", 1, 19)[1] > 0.1 > 100 * row("walk", "of", 1, 20)[1]
    # 08: 32 sequences of 16 heads; smaller tiles at 1,024 tokens; four heads under a mask.
    busy = {pairs: row("fill", "v1", "none", pairs, 128)[0] for pairs in (64, 128, 256, 512)}
    assert [pairs for pairs, share in busy.items() if share >= 90] == [512]
    assert [round(row("fill", "v2", "none", 16, block)[1]) for block in (128, 64)] == [59, 79]
    assert [row("fill", "v2", "causal", heads, 128)[6] for heads in (1, 2, 4)] == ["100", "100", "50"]
    # 12: 80 keys fit with 192 rows; three stages close the gap of ping-pong.
    fits = {keys: row("schedule", "pingpong", 128, 192, keys, 2)[4] for keys in (64, 80, 96, 128)}
    assert fits == {64: 1, 80: 1, 96: 0, 128: 0}
    assert row("schedule", "pingpong", 128, 128, 128, 3)[0] == 2048
    # With one slot the run never ends, whatever is left out; with 64 keys a tile four slots hold all.
    assert row("hazards", "nothing", 1, "late", 32)[2] == 1
    freed = [row("hazards", "the wait for a free slot", 4, "late", keys)[2] for keys in (32, 64)]
    assert freed == [3, 0]
    # 12b: eight SMs, or it hangs.
    assert [row("sums", "one_ring", sms, 1.0)[2] for sms in (7, 8)] == [0, 1]
    # 13: 0.001 and 1,000 at scale 1.
    assert [row("numbers", value, "1", "e4m3")[1] for value in (0.001, 1000.0)] == [0.001953, 448]
    # 14: lanes and matmuls meet at 30 % for d = 128.
    assert [row("units", "B200", 128, share)[2] <= row("units", "B200", 128, share)[0]
            for share in (0.25, 0.3, 0.35)] == [True, True, False]
    # 17: from 8,192 tokens on; 1.40 and 1.70 at a 70B's width.
    small, large = list(TABLES["layer"]["options"][0])[::3]
    assert [float(row("layer", small, N, 200)[5]) >= 1.5 for N in (4096, 8192)] == [False, True]
    assert [row("layer", large, 131072, rate)[5] for rate in ("dense", 200)] == ["1.40", "1.70"]


LAB = {"name": "A lab", "title": "Bytes", "unit": "B", "bars": ["once", "in tiles"], "at": [0, 1],
       "controls": [["GPU", "pick", ["A", "B"]], ["edge", "range", ["16", "32", "64"]]],
       "lines": ["It <b>fits</b>: {0}.", "It does not fit."],
       "rows": [[1e6, 9e6, 0, "one"], [1e6, 5e6, 0, "two"], [None, None, 1]], "of": [0, 1, 2, 2, 1, 0]}


def test_a_table_is_moved_by_keys_and_says_its_row(open_page):
    page = open_page(360, 740)
    page.evaluate("""lab => {
        document.body.insertAdjacentHTML("afterbegin", "<div id=lab data-explorer=lab></div>");
        const place = document.getElementById("lab");
        place.dataset.state = JSON.stringify(lab); flashExplorer.mountAll(); }""", LAB)
    lab = page.locator("#lab")
    assert lab.locator(".fx-head").inner_text() == "It fits: two."
    assert lab.locator("svg").get_attribute("aria-label") == "once: 1 MB; in tiles: 5 MB"
    lab.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    assert lab.locator(".fx-head").inner_text() == "It does not fit."
    assert lab.locator("svg").get_attribute("aria-label") == "once: –; in tiles: –"
    page.wait_for_function(
        "document.querySelector('#lab [role=status]').textContent === 'It does not fit.'")
    lab.locator("input[type=radio]").first.focus()
    page.keyboard.press("ArrowRight")
    assert lab.locator(".fx-head").inner_text() == "It fits: one."
    assert lab.evaluate("e => e.explorer.get()") == {"at": [1, 2]}
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_every_table_has_its_words_and_moves_in_time(open_page, part):
    labs, page = part("labs"), open_page(1000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    assert set(labs.MADE) == set(TABLES)
    page.evaluate("""states => {
        for (const state of states) {
            const place = document.createElement("div");
            place.dataset.explorer = "lab";
            place.dataset.state = JSON.stringify(state);
            document.body.append(place);
        }
        flashExplorer.mountAll(); }""", [labs.state(name, str) for name in TABLES])
    places = page.locator("[data-explorer=lab] > .fx").all()
    assert len(places) == len(TABLES)
    for place in places:
        assert "{" not in place.inner_text() and "undefined" not in place.inner_text()

    axe = ROOT / "site" / "node_modules" / "axe-core" / "axe.min.js"
    if axe.is_file():
        page.evaluate(axe.read_text("utf-8"))
        assert page.evaluate(AXE) == []

    slider = page.locator(".fx-lab input[type=range]").nth(1)
    least = least_busy(session, lambda: slider.evaluate(MOVE, 30), 30)
    assert least <= MOST * least_busy(session, lambda: page.evaluate(LOOP))
