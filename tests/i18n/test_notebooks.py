"""The notebooks of another language: joined lines, anchors, and English where nothing is translated."""

import json

import pytest

from tests.i18n.conftest import ALT, ALT_ZH, CHINESE, ENGLISH


@pytest.fixture
def zh(part):
    return part("language").CHINESE


@pytest.mark.parametrize(("text", "joined"), [
    ("一句话，\n又一句。", "一句话，又一句。"),
    ("前半\n后半", "前半后半"),
    ("前半\n（后半）", "前半（后半）"),
    ("下面是表。\n| 甲 | 乙 |", "下面是表。\n| 甲 | 乙 |"),
    ("用 GPU\n计算", "用 GPU\n计算"),                        # a space belongs there
    ("用公式，\n$x$ 就行", "用公式，$x$ 就行"),
    ("- 第一点，\n  还是第一点\n- 第二点", "- 第一点，还是第一点\n- 第二点"),
    ("1. 第一。\n2. 第二。", "1. 第一。\n2. 第二。"),
    ("> 引文，\n> 还有。", "> 引文，还有。"),
    ("正文。\n> 引文", "正文。\n> 引文"),
    ("# 标题\n正文", "# 标题\n正文"),
    ("一段。\n\n另一段。", "一段。\n\n另一段。"),
    ("硬换行。  \n下一行", "硬换行。  \n下一行"),
    ("| 甲 |\n| 乙 |", "| 甲 |\n| 乙 |"),
    ("```\n注释，\n代码\n```", "```\n注释，\n代码\n```"),
    ("$$\n\\text{因为}\n\\text{所以}\n$$", "$$\n\\text{因为}\n\\text{所以}\n$$"),
    ("展开。\n<details>", "展开。\n<details>"),
    ("**问题。**\n正文", "**问题。**\n正文"),
    ("单词 “it” 看向 “sends”，完", "单词“it”看向“sends”，完"),
])
def test_lines_are_joined_where_a_break_would_be_a_space(part, text, joined):
    assert part("notebooks").joined(text) == joined


def test_a_notebook_has_the_words_and_keeps_the_rest(course, part, zh):
    book = part("notebooks").translated("01", zh)
    english = json.loads((course.root / "notebooks/01_a_title.ipynb").read_text("utf-8"))
    texts = ["".join(cell["source"]) for cell in book["cells"]]
    assert texts[0] == CHINESE[0] and texts[3] == "x = 1"
    output = book["cells"][3]["outputs"][0]
    assert output["metadata"]["image/png"] == {"alt": ALT_ZH, "width": 10}
    output["metadata"]["image/png"]["alt"] = ALT
    assert book["cells"][3] == english["cells"][3]


def test_links_lead_to_the_translated_headings(course, part, zh):
    texts = ["".join(cell["source"]) for cell in part("notebooks").translated("01", zh)["cells"]]
    assert "[下文](#%E7%AC%AC%E4%BA%8C%E4%B8%AA)" in texts[1]        # 第二个
    text = "[a](01_a_title.ipynb#A-first-heading) [b](../notebooks/README.md)"
    text = part("notebooks").relinked(text, "02_other.ipynb", zh)
    assert "(01_a_title.ipynb#%E7%AC%AC%E4%B8%80%E4%B8%AA%E6%A0%87%E9%A2%98)" in text
    assert "(../notebooks_zh/README.md)" in text


def test_a_comment_in_code_is_no_heading(part):
    assert part("notebooks").headings("# One\n```\n# two\n```\n### Three  ") == ["One", "Three"]


def test_an_anchor_is_what_jupyterlab_makes(part):
    anchor = part("notebooks").anchor
    assert anchor("One row: decoding") == "One-row:-decoding"
    assert anchor("Why `x` is *not* 1?") == "Why-x-is-not-1%3F"


def test_what_is_missing_stays_english_under_a_remark(course, part, zh):
    course.translate([(ENGLISH[1], CHINESE[1])])
    texts = ["".join(cell["source"]) for cell in part("notebooks").translated("01", zh)["cells"]]
    head, _, rest = ENGLISH[0].partition("\n\n")
    assert texts[0] == f"{head}\n\n{zh.stale}\n\n{rest}"
    assert texts[2] == f"{zh.stale}\n\n{ENGLISH[2]}"
    assert "(#A-second-one)" in texts[1], "the heading is English still"


def test_a_changed_cell_is_shown_in_english_until_it_is_renewed(course, part, zh):
    course.chapter((ENGLISH[0].replace("12", "13"), *ENGLISH[1:]))
    text = "".join(part("notebooks").translated("01", zh)["cells"][0]["source"])
    assert zh.stale in text and "Why 13 tiles?" in text


def test_a_copy_one_folder_deeper_has_links_that_hold(course, part, zh, tmp_path, monkeypatch):
    notebooks = part("notebooks")
    monkeypatch.setattr(notebooks, "index", lambda language: "index\n")
    course.chapter((ENGLISH[0] + " [data](../assets/x.csv)", *ENGLISH[1:]))
    out = notebooks.write(zh, tmp_path / "deeper", up="../")
    (path,) = out.glob("*.ipynb")
    assert "](../../assets/x.csv)" in path.read_text("utf-8")
    (out / "99_gone.ipynb").touch()
    notebooks.write(zh, out)
    assert [path.name for path in out.glob("*.ipynb")] == ["01_a_title.ipynb"]
    assert "](../assets/x.csv)" in path.read_text("utf-8")
