"""The languages of the course: their names, and the phrases by which what is written in them is read.

The site, the slides and the notebooks ask here for everything that depends on the language: `say` gives
a line of the site's own, and the patterns find the parts of a chapter in its Markdown.
"""

import re
from dataclasses import dataclass
from functools import cached_property

import catalogue


@dataclass(frozen=True)
class Language:
    """One language; `code` names its folder in i18n/ and on the site."""

    code: str
    html: str                                               # as HTML names it
    sphinx: str                                             # as Sphinx names it
    name: str                                               # as its readers do
    question: str                                           # what opens a chapter's question
    takeaway: str                                           # the heading, or the word in bold
    exercise: str                                           # "Exercise 06.1 ·"; the number is its group
    minutes: str                                            # how long an exercise takes
    commit: str                                             # in the summary of what to predict first
    ways: str                                               # in the line that ends a chapter
    stale: str = ""                                         # what stands above what is not translated

    @cached_property
    def texts(self):
        return catalogue.read(catalogue.HERE / self.code / "pages.md")

    @property
    def folder(self):
        """Return where its pages lie on the site: "" or a folder with its slash."""
        return "" if self.code == "en" else f"{self.code}/"

    @cached_property
    def questioned(self):
        """Return what finds a chapter's title (and a remark under it), then its question."""
        return re.compile(rf"^(# [^\n]*(?:\n+> [^\n]*)?)\n+((?:{self.question}).*?)(?=\n\n|\Z)", re.S)

    @cached_property
    def taken(self):
        """Return what finds the takeaway: its heading, or nothing, then its paragraph."""
        word = f"(?:{self.takeaway})"
        return re.compile(rf"(^## {word}\n+|^(?=\*\*{word}))(.+?)(?=\n\n|\Z)", re.S | re.M)

    def say(self, english, **words):
        """Return a line of the site's own in this language, its fields {{name}} filled in."""
        text = self.texts.get(("text", catalogue.key("text", english)), english)
        return re.sub(r"\{\{(\w+)\}\}", lambda found: str(words[found[1]]), text)


ENGLISH = Language(
    "en", html="en", sphinx="en", name="English",
    question=r"\*\*The question\.\*\* ", takeaway="Takeaway", exercise=r"Exercise ([\da-z.]+) ·",
    minutes=r"about (\d+) min\)", commit="ommit", ways="all chapters")
CHINESE = Language(
    "zh", html="zh-Hans", sphinx="zh_CN", name="中文",
    # A cell that is not translated yet has the English phrases.
    question=r"\*\*(?:问题。|The question\.)\*\*\s", takeaway="要点|Takeaway",
    exercise=r"(?:练习|Exercise) ([\da-z.]+) ·", minutes=r"(?:约|about) (\d+) (?:分钟）|min\))",
    commit="先写下|ommit", ways="全部章节|all chapters",
    stale="> （本段译文待更新，先看英文原文。）")
LANGUAGES = {language.code: language for language in (ENGLISH, CHINESE)}
