"""The tensors' hues in prose and code: which letters are lit on a page, and that they are legible."""

import re

import pytest

pytestmark = pytest.mark.site

LIT = """letter => [...(CSS.highlights.get("t" + letter) ?? [])].map(range => ({
    text: range.toString(), after: range.endContainer.data.slice(range.endOffset).slice(0, 12),
    before: range.startContainer.data.slice(0, range.startOffset).slice(-3),
    inside: range.startContainer.parentElement.closest("pre") ? "code" : "prose",
    output: Boolean(range.startContainer.parentElement.closest(".output, .katex, a, h2"))}))"""


def luminance(color):
    """Return the relative luminance of "#rrggbb" (WCAG 2)."""
    color = "#" + 2 * color[1:] if len(color) == 4 and len(set(color[1:])) == 1 else color
    parts = [int(color[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("folder", ["", "zh/"])
def test_tensors_have_their_hues_in_prose_and_in_code(opened, folder):
    page = opened(f"{folder}06_tile_flashattention_v1.html")
    for letter in "QKVSPO":
        found = page.evaluate(LIT, letter)
        assert {place["inside"] for place in found} == {"prose", "code"}, letter
        for place in found:
            assert re.fullmatch(rf"d?{letter}([ij]{{1,2}}|_[ij])?", place["text"])
            assert not place["output"] and not place["after"].startswith("(")
            joined = re.search(r"(?a)[\w.]\Z", place["before"])
            assert not joined or place["text"] + place["after"][:1] == "Kᵀ"
    assert {place["text"] for place in page.evaluate(LIT, "K")} >= {"K", "Kj"}


def test_letters_that_mean_something_else_stay_plain(opened):
    ring = opened("16_go_around_the_ring.html")             # P GPUs
    assert ring.evaluate(LIT, "P") == [] and ring.evaluate(LIT, "K")
    assert ring.locator(".katex .tP").count() == 0
    written = opened("05_fuse_attention_into_one_pass.html").evaluate(LIT, "P")
    assert written and not [place for place in written if place["after"].startswith(". Abbeel")]
    assert opened("index.html").evaluate(LIT, "Q") == [], "no chapter"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_they_can_be_read_on_code_and_on_the_page(opened, theme):
    page = opened("06_tile_flashattention_v1.html", color_scheme=theme)
    style = "name => getComputedStyle(document.body).getPropertyValue(name).trim()"
    for ground in ("--box", "--color-background-primary", "--color-code-background"):
        behind = page.evaluate(style, ground)
        for letter in "QKVSPO":
            a, b = sorted((luminance(page.evaluate(style, f"--t{letter}")), luminance(behind)))
            assert (b + 0.05) / (a + 0.05) >= 4.5, f"{letter} on {ground} {behind}"
