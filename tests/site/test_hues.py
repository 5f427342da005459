"""The tensors' hues in prose and code: which letters are lit on a page, and that they are legible."""

import colorsys
import io
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


# In the place of a picture: a cell of paper and one of each tensor, a stroke as of a letter in each.
CELLS = """async () => {
    const size = 60, canvas = document.createElement("canvas"), names = Object.keys(LIGHT);
    canvas.width = size * (names.length + 1); canvas.height = size;
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#fff"; pen.fillRect(0, 0, canvas.width, size);
    names.forEach((name, k) => {
        pen.fillStyle = LIGHT[name]; pen.fillRect(size * (k + 1), 0, size, size); });
    for (let k = 0; k <= names.length; k++) {
        pen.fillStyle = "QV".includes(names[k - 1] ?? " ") ? "#fff" : "#000";
        pen.fillRect(size * k + 28, 15, 3, 30); }
    const picture = document.querySelector("img.tensors");
    picture.loading = "eager"; picture.src = canvas.toDataURL();
    picture.style.cssText = `width:${canvas.width}px;height:${size}px;max-width:none;border-radius:0`;
    await picture.decode();
    return picture.id; }"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_have_the_explorers_hues_in_both_themes(opened, theme):
    """In the dark K, S and P are as light as the explorers have them, and words on them are dark."""
    from PIL import Image

    from tests.site.test_browser import ROOT

    css = (ROOT / "site/explorer/src/theme.css").read_text("utf-8")
    found = re.findall(r"--fx-([QKVSPO]): light-dark\((#\w+),(#\w+)\)", css)
    own = {name: pair for name, *pair in found}
    page = opened("05_fuse_attention_into_one_pass.html", color_scheme=theme)
    light = {name: pair[0] for name, pair in own.items()}
    named = page.evaluate(CELLS.replace("LIGHT", str(light)))
    shot = Image.open(io.BytesIO(page.locator(f"#{named}").screenshot())).convert("RGB")

    def seen(k, x):
        return "#{:02x}{:02x}{:02x}".format(*shot.getpixel((60 * k + x, 30)))

    def hue(color):
        return 360 * colorsys.rgb_to_hls(*(int(color[at:at + 2], 16) / 255 for at in (1, 3, 5)))[0]

    paper, ink = luminance(seen(0, 10)), luminance(seen(0, 29))
    assert (paper < 0.02 and ink > 0.6) if theme == "dark" else (paper > 0.9 and ink < 0.02)
    for k, (name, pair) in enumerate(own.items(), 1):
        shown, wanted = seen(k, 10), pair[theme == "dark"]
        assert abs((hue(shown) - hue(wanted) + 180) % 360 - 180) < 16, (name, shown, wanted)
        if name in "KSP" or theme == "light":
            assert abs(luminance(shown) - luminance(wanted)) < 0.12, (name, shown, wanted)
        low, high = sorted((luminance(shown), luminance(seen(k, 29))))
        assert theme == "light" or (high + 0.05) / (low + 0.05) >= 2.5, (name, shown, seen(k, 29))
