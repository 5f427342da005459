"""The explorers in a real browser, opened from a folder: words, keys, time, width, light and dark."""

import re
from itertools import pairwise

import pytest

from flashlib import hardware
from flashlib.course.plots.theme import human_bytes, human_room, luminance
from flashlib.models import roofline, traffic
from scripts import explorer_data
from tests.site.explorer.page import LOOP, MOST, MOVE, least_busy, put, words

pytestmark = pytest.mark.site

KINDS = ("blocks", "walk", "softmax")


STATES = {
    "default": (
        {}, "A100", lambda: traffic.flash_v2(Nq=4096, Nk=4096, d=128, Br=128, Bc=64, causal=True)),
    "v1, ragged": (
        {"algorithm": "v1", "causal": False, "Nq": 1000, "Nk": 197, "same": False, "d": 80, "Br": 48},
        "T4", lambda: traffic.flash_v1(Nq=1000, Nk=197, d=80, Br=48, Bc=64)),
    "backward, windowed": (
        {"algorithm": "backward", "left": 256, "Nq": 16384, "Nk": 16384, "Bc": 128},
        "H100", lambda: traffic.flash_backward(Nq=16384, Nk=16384, d=128, Br=128, Bc=128, causal=True,
                                               window=(256, 256))),
    "backward, Q outside": (
        {"algorithm": "backward_q", "causal": False, "Nq": 2048, "Nk": 2048, "Br": 32, "d": 64},
        "A100", lambda: traffic.flash_backward(Nq=2048, Nk=2048, d=64, Br=32, Bc=64, order="q")),
    "a window with two sides": (
        {"causal": False, "left": 64, "right": 512},
        "A100", lambda: traffic.flash_v2(Nq=4096, Nk=4096, d=128, Br=128, Bc=64, window=(64, 512))),
    "v3 in FP8": (
        {"algorithm": "v3", "precision": "fp8", "causal": False},
        "H200", lambda: traffic.flash_v3(Nq=4096, Nk=4096, d=128, Br=128, Bc=64, fp8=True,
                                         element_bytes=1)),
    "decoding": (
        {"Nq": 1, "Nk": 65536, "same": False},
        "B200", lambda: traffic.flash_v2(Nq=1, Nk=65536, d=128, Br=128, Bc=64, causal=True)),
}


@pytest.mark.parametrize("name", STATES)
def test_blocks_say_pythons_numbers(open_page, name):
    state, gpu, closed_form = STATES[name]
    cost, page = closed_form(), open_page()
    put(page, "blocks", **state, gpu=gpu)
    said = words(page, "blocks")
    assert f"moves {human_bytes(cost.hbm_bytes)} a head" in said
    room = hardware.get(gpu).sram_bytes
    assert f"{human_room(cost.sram_peak_bytes)} of {human_room(room)}" in said
    assert ("do not fit" in said) == (cost.sram_peak_bytes > room)
    dtype = "float8" if state.get("precision") == "fp8" else "float16"
    time = roofline.time_s(cost, gpu, dtype)
    unit, scale = ("ms", 1e3) if time.time_s >= 1e-3 else ("µs", 1e6)
    bound = {"exp": "exponentials", "vector": "other math"}.get(time.bound, time.bound)
    assert f"predicts {time.time_s * scale:.3g} {unit}, bound by {bound}" in said
    page.locator("[data-explorer=blocks] summary").click()
    page.locator("[data-explorer=blocks] [data-number=ideal]").wait_for()   # "toggle" comes later
    table = {n.get_attribute("data-number"): int(re.sub(r"\D", "", n.inner_text()))
             for n in page.locator("[data-explorer=blocks] [data-number]").all()}
    table.pop("ideal")
    assert table == {"read": cost.hbm_read_bytes, "written": cost.hbm_write_bytes,
                     "matmul": cost.matmul_flops, "vector": cost.vector_flops, "exps": cost.exps,
                     "sram": cost.sram_peak_bytes}


def test_the_walk_ends_with_the_machines_bytes(open_page):
    page = open_page()
    for name, run in explorer_data.walks()["runs"].items():
        put(page, "walk", run=name, step=10**6)
        moved = sum(map(sum, run["traffic"]["byTensor"].values()))
        bar = page.locator("[data-explorer=walk] [data-panel=bytes] svg").get_attribute("aria-label")
        assert bar == f"{human_bytes(moved)} of {human_bytes(moved)} moved"
        sram = page.locator("[data-explorer=walk] [data-panel=sram] svg")
        assert f"at most {run['traffic']['sramPeakBytes']:,} B" in sram.text_content()
        assert sram.get_attribute("aria-label") == "SRAM: empty"


def test_the_walk_marks_the_line_that_runs(open_page):
    page, walk = open_page(), explorer_data.walks()["runs"]["v1"]
    for step in (0, 40, 133, 200):
        put(page, "walk", run="v1", step=step)
        line = walk["steps"][5 * step]
        marked = page.locator("[data-explorer=walk] [aria-current]")
        assert marked.get_attribute("value") == str(walk["firstLine"] + line)
        assert "".join(marked.inner_text().split()) == "".join(walk["code"][line].split())
        assert words(page, "walk").startswith(f"Line {walk['firstLine'] + line}.")


def test_softmax_opens_on_the_toy(open_page):
    page = open_page()
    assert words(page, "softmax").endswith("A new maximum: all that was summed shrinks to 60.7 %.")
    assert "ℓ = 1.386 · 0.607 + 1 = 1.841" in words(page, "softmax", ".fx-formulas")
    page.locator("[data-text=x]").fill("1 2 x")
    assert "“x” is no number." in words(page, "softmax", ".fx-wrong")
    page.locator("[data-text=x]").fill("0 0")
    assert words(page, "softmax", ".fx-wrong") == ""
    assert words(page, "softmax", ".fx-player output") == "3 of 3"


def test_every_control_answers_to_the_keyboard(open_page):
    page = open_page()
    put(page, "blocks", algorithm="v4")
    for control in page.locator("[data-explorer=blocks] .fx-range:not([hidden]) input").all():
        before = page.locator("[data-explorer=blocks]").inner_text()
        control.focus()
        top = control.evaluate("e => +e.value === +e.max")
        page.keyboard.press("ArrowLeft" if top else "ArrowRight")
        key = control.get_attribute("data-key")
        assert page.locator("[data-explorer=blocks]").inner_text() != before, key
    page.locator("[data-explorer=blocks] [data-key=algorithm]:checked").focus()
    page.keyboard.press("ArrowLeft")
    assert words(page, "blocks").startswith("FlashAttention v3 moves")
    slider = page.locator("[data-explorer=walk] .fx-player input")
    slider.focus()
    start = int(slider.input_value())
    page.keyboard.press("ArrowRight")
    assert int(slider.input_value()) == start + 1
    page.keyboard.press("PageDown")
    assert int(slider.input_value()) > start + 2
    page.keyboard.press("Home")
    assert slider.input_value() == "0"
    page.keyboard.press("Space")
    assert words(page, "walk", ".fx-play") == "pause"
    page.wait_for_function("+document.querySelector('[data-explorer=walk] .fx-player input').value > 0")
    page.keyboard.press("Space")
    assert words(page, "walk", ".fx-play") == "play"
    page.locator("[data-explorer=softmax] .fx-player input").focus()
    page.keyboard.press("ArrowRight")
    assert "logit 5 of 6" in words(page, "softmax")


def test_buttons_and_the_mouse_go_to_lines_and_tiles(open_page):
    page = open_page()
    at = page.locator("[data-explorer=walk] .fx-player output")
    shown = [at.inner_text()]
    for label in ("next line", "next tile", "previous tile", "previous line"):
        page.get_by_label(label).first.click()
        shown.append(at.inner_text())
    assert all(a != b for a, b in pairwise(shown))
    page.locator("[data-explorer=walk] [data-line='3']").click()
    assert "A tile of queries comes into SRAM. Q: 1,024 B read from HBM." in words(page, "walk")
    box = page.locator("[data-explorer=walk] .fx-edge").bounding_box()
    page.mouse.click(box["x"] + 0.1 * box["width"], box["y"] + 0.9 * box["height"])
    assert "(48–55) meet" in words(page, "walk", ".fx-where")


def test_everything_has_a_name_and_says_what_changed(open_page):
    page = open_page()
    nameless = page.evaluate("""[...document.querySelectorAll('.fx input, .fx select, .fx button')]
        .filter(e => !(e.getAttribute('aria-label') || (e.localName === 'button' && e.textContent)
            || [...(e.labels || [])].some(l => l.textContent.trim()))).map(e => e.outerHTML)""")
    assert nameless == []
    assert page.locator(".fx svg:not([aria-label]), .fx svg:not([role=img])").count() == 0
    status = page.locator("[data-explorer=blocks] [role=status]")
    assert status.text_content() == "", "nothing is said before a hand moves"
    page.locator("[data-key=Br]").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('[data-explorer=blocks] [role=status]').textContent")
    assert status.text_content() == words(page, "blocks")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scroll(open_page, scheme):
    page = open_page(360, 740, color_scheme=scheme)
    for state in ({}, {"algorithm": "backward_q", "Nq": 65536, "Nk": 1, "Br": 1},
                  {"algorithm": "v4", "share": 0.3},
                  {"precision": "fp8", "algorithm": "v3", "gpu": "T4"},
                  {"precision": "16", "algorithm": "decode"}, {"parts": 256, "B": 64, "gpu": "B200"},
                  {"algorithm": "ring"}, {"P": 16, "N": 2**22, "layout": "zigzag", "backward": True}):
        put(page, "blocks", **state)
        page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
        width = page.evaluate("document.documentElement.scrollWidth")
        wide = page.evaluate("""Math.max(...[...document.querySelectorAll('.fx svg')]
            .map(e => e.getBoundingClientRect().right))""")
        assert width == 360 and wide <= 360, state
        small = page.evaluate("""[...document.querySelectorAll('.fx svg text')].map(e =>
            parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)""")
        assert min(small) >= 9.5, "letters too small to read"
        out = page.evaluate("""[...document.querySelectorAll('.fx svg')].flatMap(s => {
            const edge = s.closest('.fx').getBoundingClientRect();
            return [...s.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
                return b.width && (b.left < edge.left || b.right > edge.right); })
                .map(t => t.textContent); })""")
        assert out == [], state


def test_an_element_opens_where_it_says_and_a_wrong_one_keeps_its_fallback(open_page):
    page = open_page()
    errors = page.evaluate("""() => {
        const said = [], real = console.error;
        console.error = error => said.push(String(error));
        for (const [kind, state] of [["blocks", {gpu: "H100", algorithm: "v1", Br: 100}], ["gantt", {}],
                                     ["blocks", {gpu: "H1000"}], ["walk", {run: "v1", step: 7}]])
            document.body.insertAdjacentHTML("beforeend", `<div class="late" data-explorer="${kind}"
                data-state='${JSON.stringify(state)}'><b>static</b></div>`);
        flashExplorer.mountAll();
        console.error = real;
        return said; }""")
    blocks, unknown, wrong, walk = page.locator(".late").all()
    assert "on H100" in blocks.text_content()
    assert blocks.locator("[data-row=Br] output").inner_text() == "100"
    assert unknown.inner_text() == wrong.inner_text() == "static"
    assert walk.locator(".fx-player output").inner_text() == "8 of 344"
    assert "gantt" in errors[0] and "H1000" in errors[1] and len(errors) == 2


def test_the_width_is_followed(open_page):
    page = open_page(900)
    assert page.locator(".fx-blocks.fx-wide").count() == 1
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function("!document.querySelector('.fx-blocks.fx-wide')")


def test_light_and_dark_follow_the_page(open_page):
    def paper(page):
        return sum(map(int, re.findall(r"\d+", page.locator(".fx").first.evaluate(
            "e => getComputedStyle(e).backgroundColor"))[:3]))
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        found = {}
        for theme in ("auto", "light", "dark"):
            page.evaluate("theme => { document.body.dataset.theme = theme }", theme)
            found[theme] = paper(page) < 384
        assert found == {"auto": scheme == "dark", "light": False, "dark": True}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_from_their_tensors(open_page, scheme):
    page = open_page(color_scheme=scheme)
    seen = {}
    for state in ({"algorithm": "standard"}, {"algorithm": "v1"}, {"algorithm": "backward", "Bc": 128}):
        put(page, "blocks", **state)
        for name, ink, paper in page.evaluate(LABELS):
            ink, paper = (tuple(float(n) / (1 if "srgb" in color else 255)
                                for n in re.findall(r"[\d.]+", color)[:3]) for color in (ink, paper))
            light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
            seen[name] = (light + 0.05) / (dark + 0.05)
    assert len(seen) >= 10 and min(seen.values()) >= 4.5, seen


# Every label inside a tensor's bar, its ink, and the bar's hue: the bar is the last one before it.
LABELS = """() => [...document.querySelectorAll('.fx svg text.fx-in')].map(e => {
    let bar = e.previousElementSibling;
    while (!bar.matches('.fx-t')) bar = bar.previousElementSibling;
    return [e.textContent, getComputedStyle(e).fill, getComputedStyle(bar).fill]; })"""


def test_nothing_moves_by_itself(open_page):
    page = open_page(reduced_motion="reduce")
    before = [words(page, kind) for kind in KINDS]
    page.wait_for_timeout(1200)
    assert [words(page, kind) for kind in KINDS] == before
    moving = page.evaluate("""[...document.querySelectorAll('.fx, .fx *')].map(e => getComputedStyle(e))
        .filter(s => s.animationName !== 'none' || s.transitionDuration !== '0s').length""")
    assert moving == 0


# The first state is the heaviest of the tiles.
MODES = {"v4": {"algorithm": "v4", "Nq": 65536, "Nk": 65536, "causal": False},
         "backward": {"algorithm": "backward", "Nq": 65536, "Nk": 65536, "causal": False},
         "decode": {"algorithm": "decode"}, "ring": {"algorithm": "ring", "P": 16}}


@pytest.mark.parametrize("mode", MODES)
def test_an_event_leaves_the_main_thread_its_frames(open_page, mode):
    page = open_page(1000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    put(page, "blocks", **MODES[mode])
    times = {}
    shown = "[data-explorer=blocks] .fx-row:not([hidden]) input" if mode != "v4" else (
        ".fx-row:not([hidden]) input[type=range], .fx-player input")
    for slider in page.locator(shown).all():
        kind = slider.evaluate("e => e.closest('[data-explorer]').dataset.explorer")
        name = f"{kind} {slider.get_attribute('data-key') or 'step'}"
        slider.evaluate(MOVE, 10)
        times[name] = least_busy(session, lambda slider=slider: slider.evaluate(MOVE, 30), 30)
    loop = least_busy(session, lambda: page.evaluate(LOOP))
    print({name: round(ms, 1) for name, ms in times.items()}, "loop", round(loop, 1))
    assert max(times.values()) <= MOST * loop, times
