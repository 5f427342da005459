"""Decoding and the ring in a real browser: Python's numbers in words, keys, and what is set aside."""

import re

import pytest

from flashlib.course.ch15 import lab, plan
from flashlib.course.ch16.plan import LINKS
from flashlib.course.plots.theme import human_bytes
from flashlib.models import ring, traffic
from flashlib.models.ring import Rates, Sharing
from scripts.explorer_data import ring_rates
from tests.site.explorer.page import put, words
from tests.site.explorer.places import ROOT

pytestmark = pytest.mark.site

AXE = """async () => {
    const found = await axe.run(document, {runOnly: {type: 'tag', values: ['wcag2a', 'wcag2aa']}});
    return found.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160)]); }"""


def time(seconds):
    """Return a time as the explorer writes it."""
    size, unit = next((s, u) for s, u in ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
                      if seconds >= s)
    scaled = seconds / size
    return f"{scaled:,.0f} {unit}" if scaled >= 99.95 else f"{scaled:.3g} {unit}"


def table(page):
    """Return the numbers of the fold."""
    fold = page.locator("[data-explorer=blocks] details")
    if not fold.evaluate("e => e.open"):
        fold.locator("summary").click()
    page.locator("[data-explorer=blocks] [data-number]").first.wait_for()
    return {n.get_attribute("data-number"): int(re.sub(r"\D", "", n.inner_text()))
            for n in page.locator("[data-explorer=blocks] [data-number]").all()}


DECODING = {
    "default": {"gpu": "H200"},
    "two waves": {"gpu": "A100", "B": 8, "cache": 16384, "parts": 2, "Hk": 8, "group": 8},
    "best with one part": {"gpu": "T4", "B": 32, "cache": 8192, "parts": 16, "Hk": 4, "group": 1},
    "many parts": {"gpu": "B200", "cache": 131072, "parts": 256, "d": 64},
}


@pytest.mark.parametrize("name", DECODING)
def test_decoding_says_pythons_numbers(open_page, name):
    state = {"B": 1, "cache": 65536, "parts": 1, "Hk": 8, "group": 4, "d": 128} | DECODING[name]
    page = open_page()
    put(page, "blocks", algorithm="decode", **state)
    case = plan.Case(state["B"], state["cache"], state["Hk"], state["group"], state["d"])
    rates, sms = lab.rates_on(state["gpu"]), int(lab.hardware.get(state["gpu"]).sms)
    parts, best = case.cut(state["parts"]), rates.best(case, sms)
    w, said = case.waves(parts, sms), words(page, "blocks")
    assert said.startswith(f"{w.programs:,} programs on {state['gpu']}: ")
    works = (f"{sms - w.idle_sms} of {sms} SMs work" if w.waves == 1
             else f"{sms - w.idle_sms} of {sms} SMs have {w.waves}, {w.idle_sms} have {w.waves - 1}")
    assert works in said
    assert f"Predicted: {time(rates.seconds(case, parts, sms))}." in said
    assert f"the keys alone takes {time(case.kv_bytes / rates.bytes_per_s)}." in said
    if best != parts:
        many = "is one part" if best == 1 else f"are {best} parts"
        assert f"Best {many}, with {time(rates.seconds(case, best, sms))}" in said
    keys = 64 * -(-case.N_k // (64 * state["parts"]))
    one = traffic.flash_decode(Nq=1, Nk=case.N_k, d=case.d, Br=16, Bc=64, keys=keys, group=case.group)
    cost = sum((one for _ in range(case.heads)), traffic.Traffic())
    alone = traffic.flash_v2(Nq=1, Nk=case.N_k, d=case.d, Br=16, Bc=64)
    assert table(page) == {
        "read": cost.hbm_read_bytes, "written": cost.hbm_write_bytes, "matmul": cost.matmul_flops,
        "vector": cost.vector_flops, "exps": cost.exps, "sram": cost.sram_peak_bytes,
        "ideal": alone.hbm_bytes * case.heads * case.group}


RINGS = {
    "default": {},
    "zigzag, 16 GPUs": {"layout": "zigzag", "P": 16, "N": 262144, "link": "100 Gb/s network"},
    "stripe, backward": {"layout": "stripe", "P": 8, "N": 2**20, "group": 1, "backward": True,
                         "gpu": "B200"},
    "before they work": {"layout": "zigzag", "hidden": False, "link": "400 Gb/s network"},
    "no mask": {"causal": False, "P": 2, "d": 64, "gpu": "A100"},
}


@pytest.mark.parametrize("name", RINGS)
def test_the_ring_says_pythons_numbers(open_page, name):
    state = {"gpu": "H200", "P": 4, "N": 65536, "layout": "contiguous", "link": "NVLink", "group": 4,
             "causal": True, "backward": False, "hidden": True, "d": 128} | RINGS[name]
    page = open_page()
    put(page, "blocks", algorithm="ring", **state)
    s = Sharing(state["P"], state["N"], 32, 32 // state["group"], state["d"], state["causal"],
                state["layout"], state["backward"])
    gpu = lab.hardware.get(state["gpu"])
    rates = Rates(**ring_rates(gpu), link_bytes_per_s=LINKS[state["link"]],
                  hidden=state["hidden"])
    said, share = words(page, "blocks"), ring.efficiency(s, rates)
    assert said.startswith(f"{s.P} GPUs, {s.layout}: {time(ring.seconds(s, rates))} a layer, "
                           f"{100 * share:.0f} % of what they could do.")
    assert page.locator("[data-explorer=blocks] .fx-head .fx-bad").count() == (share < 0.8)
    work = sum(ring.step_seconds(s, rates, r, q) for r in range(s.P) for q in range(s.P))
    idle = 1 - work / (s.P * ring.seconds(s, rates))
    assert f"They wait for {100 * idle:.0f} % of their time" in said
    hides = ring.hides_from(rates.flops_per_s, rates.link_bytes_per_s, s.H, s.Hk, backward=s.backward,
                            zigzag=s.causal and s.layout != "contiguous")
    why = words(page, "blocks", ".fx-why")
    assert f"from {hides:,.0f} tokens a GPU on; here it has {s.n:,}." in why
    shown = ring.METHODS if s.Hk % s.P == 0 else ring.METHODS[:2]
    assert table(page) == {f"sent-{m}": ring.traffic(s, m) for m in shown} | {
        f"room-{m}": ring.memory(s, m) for m in shown}
    for panel, bytes_of in (("time", ring.traffic), ("roof", ring.memory)):
        bars = page.locator(f"[data-explorer=blocks] [data-panel={panel}] svg").get_attribute(
            "aria-label")
        assert bars.startswith(f"ring: {human_bytes(bytes_of(s))}; ")


def test_the_default_states_tell_their_story(open_page):
    page = open_page()
    page.locator("[data-explorer=blocks] [data-key=algorithm]:checked").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert words(page, "blocks").startswith("8 programs on A100: 8 of 108 SMs work.")
    assert page.locator("[data-explorer=blocks] [data-panel=parts] .fx-dot-other").count() == 1
    page.keyboard.press("ArrowRight")
    assert words(page, "blocks").startswith("4 GPUs, contiguous:")
    idle = [int(n) for n in re.findall(r"(\d+) %", words(page, "blocks").split("wait")[1])]
    assert idle[0] > 35 and idle[1] < 5


@pytest.mark.parametrize("mode", ["decode", "ring", "backward"])
def test_every_control_of_a_mode_answers_to_the_keyboard(open_page, mode):
    page = open_page()
    put(page, "blocks", algorithm=mode, parts=16, causal=False)
    place, seen = page.locator("[data-explorer=blocks]"), []
    for control in place.locator(".fx-range:not([hidden]) input").all():
        seen.append(control.get_attribute("data-key"))
        before, top = place.inner_text(), control.evaluate("e => +e.value === +e.max")
        control.focus()
        page.keyboard.press("ArrowLeft" if top else "ArrowRight")
        assert place.inner_text() != before, seen[-1]
        assert control.get_attribute("aria-valuetext")
    assert seen == {"decode": ["parts", "B", "cache", "Hk", "group", "d", "page"],
                    "ring": ["P", "N", "group", "d"],
                    "backward": ["Br", "Bc", "Nq", "Nk", "d", "left", "right"]}[mode]
    picks = {pick.get_attribute("data-key") for pick in place.locator(
        ".fx-pick:not([hidden]) input, .fx-check:not([hidden]) input").all()} - {"algorithm"}
    assert picks == {"decode": set(), "ring": {"layout", "causal", "backward", "hidden"},
                     "backward": {"causal", "precision", "same"}}[mode]


def test_what_means_nothing_is_out_of_the_way(open_page):
    page = open_page()
    right, Br = (page.locator(f"[data-explorer=blocks] [data-row={key}]") for key in ("right", "Br"))
    assert not right.is_visible(), "a causal mask hides all keys after"
    put(page, "blocks", causal=False)
    assert right.is_visible() and Br.is_visible()
    put(page, "blocks", algorithm="ring")
    assert not right.is_visible() and not Br.is_visible()
    page.locator("[data-explorer=blocks] [data-key=layout]").last.check()
    assert "GPUs, stripe:" in words(page, "blocks")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [900, 360])
def test_no_accessibility_violation(open_page, scheme, width):
    axe = ROOT / "site" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("axe-core is not installed: `make site` brings it")
    page = open_page(width, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    page.evaluate(axe.read_text("utf-8"))
    for state in ({"algorithm": "decode"}, {"algorithm": "decode", "parts": 32}, {"algorithm": "ring"},
                  {"algorithm": "ring", "layout": "zigzag", "backward": True, "P": 16},
                  {"algorithm": "backward"}):
        put(page, "blocks", **state)
        assert page.evaluate(AXE) == [], state
