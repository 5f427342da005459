"""The catalogue: what it finds missing, left over or suspicious."""

import pytest

from tests.i18n.conftest import CHINESE, ENGLISH

WORDS = [("tile", "分块")]


def test_a_whole_translation_is_whole(course):
    assert course.catalogue.report("01") == ([], [], {})


def test_a_changed_cell_is_missing_and_its_translation_left_over(course):
    course.chapter((ENGLISH[0].replace("12", "13"), *ENGLISH[1:]))
    (missing,), (over,), odd = course.catalogue.report("01")
    assert missing != over and {missing.split()[0], over.split()[0]} == {"markdown"} and odd == {}


def test_a_changed_slide_too(course):
    (course.root / "slides/01.md").write_text("## One\n\n---\n\n## Three\n", "utf-8")
    missing, over, _ = course.catalogue.report("01")
    assert [name.split()[0] for name in missing + over] == ["slide", "slide"]


def test_a_section_that_stands_twice_is_an_error(course):
    path = course.root / "zh/chapters/01.md"
    path.write_text(path.read_text("utf-8") * 2, "utf-8")
    with pytest.raises(ValueError, match=r"01\.md: markdown [0-9a-f]{8} is translated twice"):
        course.catalogue.report("01")


def test_what_is_suspicious_is_named_by_its_message(course):
    course.translate(zip(ENGLISH, (CHINESE[0].replace("12", "十二"), *CHINESE[1:]), strict=True))
    _, _, odd = course.catalogue.report("01")
    assert list(odd.values()) == [["numbers: lost ['12'], new []"]]
    assert list(odd) == [f"markdown {course.catalogue.key('markdown', ENGLISH[0])}"]


@pytest.mark.parametrize(("english", "good", "bad", "said"), [
    ("It has 4,096 bytes.", "它有 4,096 字节。", "它有 4,069 字节。", "numbers"),
    ("So $x^2 \\text{ is it}$.", "就是 $x^2 \\text{ 没错}$。", "就是 $x^3$。", "formulas"),
    ("$$\na = b.\n$$", "$$\na = b\n$$", "$$\na = c\n$$", "formulas"),
    ("Run `make lab` now.", "现在运行 `make lab`。", "现在运行 `make site`。", "code"),
    ("```python\nx = 1\n```\nTo be run.", "```python\nx = 1\n```\n运行它。",
     "```python\nx = 2\n```\n运行它。", "code"),
    ("[A place](#There) of it.", "它的[地方](#There)。", "它的[地方](#Here)。", "links"),
    ("<details><summary>Open</summary>\n\nHere\n\n</details>",
     "<details><summary>展开</summary>\n\n这里\n\n</details>", "展开\n\n这里", "folds"),
    ("It moves {{b9f45313: ([\\d.]+) x}} times.", "搬运 {{b9f45313: ([\\d.]+) x}} 倍。",
     "搬运 {{b9f45313: ([\\d.]+)}} 倍。", "fields"),
    ("## A heading\n\nText.", "## 标题\n\n正文。", "标题\n\n正文。", "headings"),
    ("| a | b |\n|---|---|\n| one | two |", "| 甲 | 乙 |\n|---|---|\n| 一 | 二 |",
     "| 甲 | 乙 |\n|---|---|", "rows of tables"),
    ("- one\n- two", "- 一\n- 二", "- 一和二", "points of lists"),
    ("<!-- _class: lead -->\nText here.", "<!-- _class: lead -->\n正文。", "正文。", "classes"),
    ("A tile is small.", "一个分块很小。", "一个瓦片很小。", "term: 'tile' is '分块'"),
    ("Two tiles, of course.", "当然是两个分块。", "当然是两块。", "term"),
    ("Yes, it is.", "是的，没错。", "是的,没错。", "punctuation of half width"),
    ("On a GPU it runs.", "在 GPU 上运行。", "在GPU上运行。", "no space between Chinese and Latin"),
    ("Bold **one** of them.", "**粗体。** 其余。", "**粗体。**其余。", "does not mark bold"),
    ("This was not done.", "这还没有做。", "This was not done!", "no Chinese in it"),
])
def test_complaints(part, english, good, bad, said):
    complaints = part("catalogue").complaints
    assert complaints(english, good, WORDS) == []
    found = complaints(english, bad, WORDS)
    assert len(found) >= 1 and any(said in one for one in found), found


def test_a_word_that_only_contains_a_term_asks_for_nothing(part):
    complaints = part("catalogue").complaints
    assert complaints("A textile is soft.", "织物很软。", WORDS) == []
    assert complaints("`tile` is code.", "`tile` 是代码。", WORDS) == []


def test_the_terms_are_read_from_their_table(course, part):
    assert course.catalogue.terms() == [("tile", "分块")]


def test_show_and_check_print_every_message(course, capsys):
    course.catalogue.main(["show", "01"])
    shown = capsys.readouterr().out
    assert all(text in shown for text in (*ENGLISH, "## One", "a picture of 3 tiles"))
    course.translate([])
    course.catalogue.main(["check", "01"])
    out = capsys.readouterr().out
    assert out.startswith("01: 3 missing, 0 left over, 0 suspicious\n  missing markdown ")
