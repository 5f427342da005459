"""The modules of i18n/, and a course of one chapter with its translation."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "i18n"))

ENGLISH = ("# 01 · A title\n\n**The question.** Why 12 tiles?",
           "## A first heading\n\nSee [below](#A-second-one).",
           "Prose with $x + 1$ and `code`.\n\n## A second one\n\nNothing.")
CHINESE = ("# 01 · 标题\n\n**问题。** 为什么是 12 个分块？",
           "## 第一个标题\n\n见[下文](#A-second-one)。",
           "正文里有 $x + 1$ 和 `code`。\n\n## 第二个\n\n什么也没有。")
ALT, ALT_ZH = "a picture of 3 tiles", "3 个分块的图"


@pytest.fixture
def part():
    """Return a module of i18n/ by its name."""
    return importlib.import_module


class Course:
    """A course of one chapter and one deck in a folder; its catalogue can be written anew."""

    def __init__(self, root, catalogue):
        self.root, self.catalogue = root, catalogue
        for folder in ("notebooks", "slides", "zh/chapters", "zh/slides"):
            (root / folder).mkdir(parents=True)
        terms = "| English | 中文 |\n|---|---|\n| tile | 分块 |\n"
        (root / "zh/terms.md").write_text(terms, "utf-8")
        self.slides("## One\n\n---\n\n## Two", ("## 一", "## 二"))
        self.chapter(ENGLISH)
        self.translate(zip(ENGLISH, CHINESE, strict=True))

    def chapter(self, texts):
        cells = [{"cell_type": "markdown", "source": text.splitlines(True)} for text in texts]
        cells.append({"cell_type": "code", "source": ["x = 1"], "outputs": [
            {"output_type": "display_data", "data": {"image/png": "eA=="},
             "metadata": {"image/png": {"alt": ALT, "width": 10}}}]})
        (self.root / "notebooks/01_a_title.ipynb").write_text(json.dumps({"cells": cells}), "utf-8")

    def translate(self, pairs):
        rows = [("markdown", english, text) for english, text in pairs] + [("alt", ALT, ALT_ZH)]
        self.write("zh/chapters/01.md", rows)

    def slides(self, deck, translated):
        (self.root / "slides/01.md").write_text(deck + "\n", "utf-8")
        pairs = zip(self.catalogue.slides(deck), translated, strict=True)
        self.write("zh/slides/01.md", [("slide", english, text) for english, text in pairs])

    def write(self, name, rows):
        text = "".join(f"<!-- {kind} {self.catalogue.key(kind, english)} -->\n{text}\n\n"
                       for kind, english, text in rows)
        (self.root / name).write_text(text, "utf-8")


@pytest.fixture
def course(tmp_path, monkeypatch, part):
    catalogue, notebooks = part("catalogue"), part("notebooks")
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    monkeypatch.setattr(catalogue, "HERE", tmp_path)
    for module, name in ((notebooks, "anchors"), (notebooks, "texts")):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)    # nothing is remembered
    return Course(tmp_path, catalogue)
