"""The words of JavaScript in Chinese: every message has a translation that keeps its fields."""

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = ROOT / "i18n" / "zh" / "words.json"
EXPLORER = ROOT / "site" / "explorer" / "src"
GLOSS = EXPLORER / "data" / "gloss.json"
PAGE = [ROOT / "site" / "static" / name for name in ("course.js", "search.js")]
CALL = re.compile(r'(?<![\w.])say\(\s*(?:"((?:[^"\\\n]|\\.)*)"|([^,\n]*))')
# What is called without a literal: a method of that name, and the sentences of gloss.json.
OTHERS = {("ui.ts", "text: string"), ("replay.ts", 'GLOSS[bare(line)] ?? "");')}

# Its fields are quotations: they bring their own punctuation.
QUOTED = {"{queries} <b>meet</b> {keys}"}


def calls(path):
    """Return the messages that a source asks for, and what else it gives to say()."""
    found = CALL.findall(path.read_text(encoding="utf-8"))
    messages = [json.loads(f'"{text}"') for text, _ in found if text]
    return messages, {(path.name, other) for text, other in found if not text}


def sources():
    found = [*PAGE, *sorted(EXPLORER.rglob("*.ts"))]
    assert len(found) > 15
    return found


@pytest.fixture(scope="module")
def translated():
    return json.loads(WORDS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def asked():
    """Return every message that JavaScript asks for; each of the large sources must give some."""
    found = {path: calls(path)[0] for path in sources()}
    for path in [*PAGE, *(EXPLORER / kind / "mount.ts" for kind in ("blocks", "walk", "softmax"))]:
        assert len(found[path]) >= 5, f"no messages were found in {path.name}"
    gloss = json.loads(GLOSS.read_text(encoding="utf-8")).values()
    return {text for texts in found.values() for text in texts} | set(gloss)


def test_every_message_is_a_literal():
    assert {other for path in sources() for other in calls(path)[1]} == OTHERS


def test_every_message_has_a_translation_and_no_translation_is_left_over(translated, asked):
    assert asked - set(translated) == set(), "without a translation"
    assert set(translated) - asked == set(), "asked for by no source"


def test_no_message_is_translated_twice():
    pairs = json.loads(WORDS.read_text(encoding="utf-8"), object_pairs_hook=list)
    assert [key for key, times in Counter(key for key, _ in pairs).items() if times > 1] == []


def islands(text):
    """Return what a translation keeps: fields and tags, in any order, each as often."""
    return Counter(re.findall(r"\{\w*\}|</?[a-z][^>]*>", text))


def test_a_translation_keeps_fields_and_tags(translated):
    assert any(islands(english) for english in translated)
    changed = [english for english, text in translated.items() if islands(english) != islands(text)]
    assert changed == []


def test_a_field_of_the_page_gets_its_value():
    """The explorers' are held by TypeScript's types; a page's script has none."""
    call = re.compile(r'\bsay\("([^"]*\{\w+\}[^"]*)"(?:, \{ ([^}]*) \})?\)')
    found = [pair for path in PAGE for pair in call.findall(path.read_text(encoding="utf-8"))]
    assert len(found) >= 3
    for text, given in found:
        names = {part.partition(":")[0].strip() for part in given.split(",")}
        assert names == set(re.findall(r"\{(\w+)\}", text)), text


def test_translations_are_chinese_in_the_courses_words(translated):
    spec = importlib.util.spec_from_file_location("catalogue", ROOT / "i18n" / "catalogue.py")
    catalogue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(catalogue)
    terms, found = catalogue.terms(), []
    assert len(terms) > 20
    for english, text in translated.items():
        field = "）" if english in QUOTED else "X"
        here, there = (re.sub(r"\{\w+\}", field, re.sub(r"<[^>]*>", "", each))
                       for each in (english, text))
        found += [f"{english!r}: {said}" for said in catalogue.complaints(here, there, terms)]
    assert found == []
