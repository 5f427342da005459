"""The parts that make the site's sources: links, hues, folds, predictions, captions."""

import json
import re
import struct
from pathlib import Path

import pytest

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TABLE = """softmax  predicted bytes  counted bytes  ratio
───────  ───────────────  ─────────────  ─────
naive             18,816         18,816      1
safe              25,088         25,088      1
and a line after it
"""


def test_islands_give_back_the_text(part):
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            text = "".join(cell["source"])
            assert "".join(piece for _, piece in part("markup").islands(text)) == text


def test_islands_tell_prose_from_code_and_formulas(part):
    found = list(part("markup").islands("a `Q$` b $Q$ c\n$$\nK\n$$\n```python\nV = $1\n```\nd"))
    assert [kind for kind, _ in found] == [
        "prose", "code", "prose", "math", "prose", "display", "prose", "code", "prose"]


@pytest.mark.parametrize(("formula", "painted"), [
    ("$QK^\\top$", "QK"), ("$\\text{K and V} + O(N^2)$", ""), ("$\\operatorname{softmax}(S)$", "S"),
    ("$dO$", "O"),
    ("$P_{ij}V_j$", "PV"), ("$\\begin{pmatrix} S \\end{pmatrix}$", "S"), ("$O (x)$", "O")])
def test_paint(part, formula, painted):
    new = part("markup").paint(formula)
    assert "".join(re.findall(r"htmlClass\{t(\w)\}", new)) == painted
    assert re.sub(r"\{\\htmlClass\{t\w\}\{(\w)\}\}", r"\1", new) == formula


def test_paint_leaves_what_means_something_else(part):
    assert part("markup").paint("$MKQ$", plain="K") == "$MK{\\htmlClass{tQ}{Q}}$"


@pytest.mark.parametrize(("anchor", "slug"), [
    ("The-surprise,-in-four-pictures", "the-surprise-in-four-pictures"),
    ("Attention%27s-matmuls", "attentions-matmuls"),
    ("Turn-Q-and-K:-why-QK%E1%B5%80", "turn-q-and-k-why-qkᵀ"), ("IO-aware", "io-aware")])
def test_slug(part, anchor, slug):
    assert part("markup").slug(anchor) == slug


def test_predictions_are_read_from_tables(part):
    assert part("predictions").fields(TABLE) == [("naive", 18816.0), ("safe", 25088.0)]
    two = TABLE.replace("  ratio", "  counted exps").replace("──  ─────\n", "──  ────────────\n")
    assert [label for label, _ in part("predictions").fields(two)] == [
        "naive, bytes", "naive, exps", "safe, bytes", "safe, exps"]
    assert part("predictions").fields("level  recorded\n─────  ────────\na             3\n") == []


def test_glossary(part):
    terms = part("terms").TERMS
    rows, _ = part("prep").chapters()
    prose = "\n".join(path.read_text("utf-8") for path in NOTEBOOKS)
    assert len({term.key for term in terms}) == len(terms) >= 40
    for term in terms:
        assert term.chapter in {row.number for row in rows}
        assert re.search(rf"(?<![\w-])(?:{term.pattern})(?![\w-])", prose), term.name
        assert term.text.endswith(".") and len(term.text) < 240


def captions():
    """Yield (chapter, cell, paragraph): italic paragraphs, and the first that follows a picture."""
    for path in NOTEBOOKS:
        before = False
        for n, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                for p, paragraph in enumerate(text.split("\n\n")):
                    if paragraph.startswith("*") or (before and p == 0):
                        yield path.stem.partition("_")[0], n, paragraph
            before = any("image/png" in o.get("data", {}) for o in cell.get("outputs", []))


def test_captions_name_no_lightness():
    """In the dark the site turns the lightness of figures round: what was pale is dark then."""
    found = list(captions())
    words = re.compile(r"\b(dark|pale|black|white|bright)(er|est)?\b", re.I)
    named = [(chapter, n, words.search(text)) for chapter, n, text in found]
    assert [(chapter, n, word[0]) for chapter, n, word in named if word] == []
    assert len(found) > 80


def _luminance(color):
    channels = (int(color[n:n + 2], 16) / 255 for n in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_hues_are_readable():
    """axe-core does not look into formulas: hold the hues' contrast here, on the page and in boxes."""
    css = (ROOT / "site/static/course.css").read_text("utf-8")
    light, dark, again = re.findall(r"\{(--tQ:[^}]*)\}", css)
    assert dark == again
    for values, grounds in ((light, ("#ffffff", "#f8f9fb")), (dark, ("#131416", "#1a1c1e"))):
        colors = dict(re.findall(r"--(\w+):(#\w{6})", values))
        for name in ("tQ", "tK", "tV", "tS", "tP", "tO", "done"):
            for ground in (*grounds, colors["box"]):
                low, high = sorted((_luminance(colors[name]), _luminance(ground)))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


def test_every_exercise_has_its_hints_and_its_solution(part):
    for path in NOTEBOOKS:
        asked = re.findall(r"### Exercise ([\da-z.]+) ·", path.read_text("utf-8"))
        known = part("answers").of_chapter(path.stem.partition("_")[0])
        assert asked and set(asked) <= set(known)
        for name in asked:
            hints, solution = known[name]
            assert hints and "def " in solution
        built = (ROOT / "_site" / f"{path.stem}.html").read_text("utf-8")
        assert built.count('<div class="answers container">') == len(asked)


@pytest.mark.parametrize(("text", "shown"), [
    ("e^{x − m_new} and e^(s − m)·v", "e<sup>x − m<sub>new</sub></sup> and e<sup>s − m</sup>·v"),
    ("2 · H_k, e^x", "2 · H<sub>k</sub>, e<sup>x</sup>"),
    ("element_bytes, x_hbm[rows], per_sm", "element_bytes, x_hbm[rows], per_sm")])
def test_formulas_in_plain_text_are_set(part, text, shown):
    assert part("markup").powers(text) == shown


@pytest.mark.parametrize(("style", "slim"), [
    ("a  b { color : red ; }\n\n/* why */\nc > d{}", "a b{color : red;}c > d{}"),
    ('q{content:"/* ; */  {"; quotes:\'a  b\'}', 'q{content:"/* ; */  {";quotes:\'a  b\'}'),
    ("/*! a license */\np :hover{}", "/*! a license */ p :hover{}"),
    ("@media (min-width: 1em) and print {\n p {margin: 0 1px}\n}",
     "@media (min-width: 1em) and print{p{margin: 0 1px}}")])
def test_a_style_sheet_loses_what_means_nothing(part, style, slim):
    assert part("slim").sheet(style) == slim


@pytest.mark.parametrize(("style", "left"), [
    ("a.here b,.gone{x:y}.gone:hover{x:y}", "a.here b,.gone{x:y}"),
    ("/*! v8.0 of normalize.css */html{x:y}", "/*! v8.0 of normalize.css */html{x:y}"),
    ("@media print{.gone{x:y}}p:not(.gone){x:y}", "p:not(.gone){x:y}"),
    ("@font-face{src:url(a.woff2)}", "@font-face{src:url(a.woff2)}")])
def test_a_style_sheet_loses_rules_for_what_no_page_has(part, style, left):
    assert part("slim").living(style, {"here"}) == left


def test_code_has_one_tag_for_neighbours_of_one_color(part):
    colors = {"": "#111", " .k": "#222", " .s1": "#333", " .s2": "#333", " .n": "#111"}
    light = "".join(f".highlight{name}{{color: {color}}}" for name, color in colors.items())
    style = light + light.replace(".highlight", "body[data-theme=dark] .highlight")
    page = "<pre>" + "".join(f'<span class="{name}">{text}</span>' for name, text in (
        ("s1", "a"), ("s2", "b"), ("n", "c"))) + "</pre>"
    pages, sheet = part("slim").code({"a.html": page}, style)
    assert pages["a.html"] == "<pre><b>ab</b>c</pre>"
    assert ".highlight b{color: #333}" in sheet


def test_a_formula_keeps_its_signs_and_loses_spans(part):
    style = part("slim").Sheet(".katex .mathnormal{font-style:italic}.katex .vlist>span{height:0}")
    old = ('<span class="katex"><span class="katex-mathml"><math><semantics><mrow><mi>m</mi></mrow>'
           '</semantics></math></span><span class="katex-html" aria-hidden="true"><span class="mord">'
           '<span class="mord mathnormal">m</span></span><span class="vlist"><span>x</span></span>'
           "</span></span>")
    new = part("slim").formula(old, style)
    assert new == ('<span class="katex"><i k="katex-mathml"><math><mi>m</mi></math></i>'
                   '<i k="katex-html" aria-hidden=true><i k="mathnormal">m</i>'
                   "<i><i>x</i></i></i></span>")


def test_code_that_was_printed_is_told_from_a_table(part):
    assert part("prep").is_code("@triton.jit\ndef kernel(x):\n    return x\n")
    assert not part("prep").is_code(TABLE) and not part("prep").is_code("x\n")


def test_links_to_a_repository_and_an_address_appear_when_they_are_named(part, tmp_path):
    rows, _ = part("prep").chapters()
    here, there = (part("prep").Chapter(rows[6], repository) for repository in ("", "someone/course"))
    assert "github" not in part("front").facts(here)
    assert "github.com/someone/course/blob/main/notebooks/06_" in part("front").facts(there)
    chinese = part("prep").Chapter(rows[6], "someone/course", part("tongue").CHINESE)
    assert "/someone/course/blob/colab/06_" in part("front").facts(there)
    assert "/gh/someone/course/main?labpath=notebooks%2F06_" in part("front").facts(there)
    away = part("front").facts(chinese)
    assert "/someone/course/blob/colab/zh/06_" in away and "/main" not in away
    say, front = part("tongue").ENGLISH.say, part("front")
    assert 'href="index.html#course"' in front.lab_note(say)
    assert 'href="https://github.com/someone/course"' in front.lab_note(say, "someone/course")
    assert front.taken("", say)[1] == "make lab" and "a folder" in front.taken("", say)[0]
    words, commands = front.taken("someone/course", say)
    assert "(https://github.com/someone/course)" in words
    assert commands.split("\n")[0] == "git clone https://github.com/someone/course"
    file = "../assets/data/README.md"
    assert here.target(file) == "files/assets/data/README.md"
    assert there.target(file).endswith("/someone/course/blob/main/assets/data/README.md")
    part("post").publish(tmp_path, ["index.html", "a.html"], "https://example.org/course")
    assert (tmp_path / "social.png").read_bytes()[16:24] == struct.pack(">II", 1200, 630)
    places = (tmp_path / "sitemap.xml").read_text("utf-8")
    assert "<loc>https://example.org/course/a.html</loc>" in places
    lost = (tmp_path / "404.html").read_text("utf-8")
    for folder in ("", "zh/"):
        assert f'href="https://example.org/course/{folder}index.html"' in lost
    assert "{{" not in lost
    assert not (ROOT / "_site" / "404.html").exists(), "nobody named an address"
