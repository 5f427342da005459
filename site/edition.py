"""What makes pages an edition: the words of their frame, shared files, the way to the other one."""

import html
import re

from tongue import CHINESE, ENGLISH

SHARED = ("_static/", "_images/")


def frame(say):
    """Return the words of Sphinx's theme and what stands for them."""
    return {
        "Skip to content": say("Skip to content"), "Back to top": say("Back to top"),
        "Next": say("Next"), "Previous": say("Previous"), "Home": say("Home"), "Menu": say("Menu"),
        "Contents": say("Contents"), "On this page": say("On this page"), "Expand": say("Expand"),
        "Light mode": say("Light mode"), "Dark mode": say("Dark mode"), "Made with": say("Made with"),
        "Auto light/dark, in light mode": say("Auto light/dark, in light mode"),
        "Auto light/dark, in dark mode": say("Auto light/dark, in dark mode"),
        "Toggle site navigation sidebar": say("Toggle site navigation sidebar"),
        "Toggle table of contents sidebar": say("Toggle table of contents sidebar"),
        "Toggle Light / Dark / Auto color theme": say("Toggle Light / Dark / Auto color theme"),
        "formula": say("formula"),
    }


def other(language):
    return ENGLISH if language is CHINESE else CHINESE


def index_of(language):
    """Return where the search's index lies; search.js reads it from the page."""
    return f"{language.folder}_search-index.js" if language.folder else "_static/search-index.js"


def alternates(name, language, address=""):
    """Return what tells a browser, or a search engine, where this page is in each language."""
    up = f"{address}/" if address else "../" if language.folder else ""
    places = {each.html: html.escape(up + each.folder + name) for each in (ENGLISH, CHINESE)}
    return "".join(f'<link rel="alternate" hreflang="{code}" href="{place}">'
                   for code, place in places.items())


def finish(name, text, language, *, address="", words=False):
    """Return a page of Sphinx's as a page of its edition."""
    text = text.replace("</title>", "</title>\n" + alternates(name, language, address), 1)
    if language is ENGLISH:
        return text
    said = frame(language.say)
    either = "|".join(map(re.escape, said))
    text = re.sub(rf'((?:aria-label|title)=")({either})(")|(>\s*)({either})(\s*<)',
                  lambda found: "".join(said.get(part, part) for part in found.groups("")), text)
    text = re.sub(rf'((?:href|src|data-still)=")({"|".join(SHARED)})', r"\1../\2", text)
    head = f'lang="{language.html}" data-content_root="../" data-index="{index_of(language)}"'
    old = r'(?<=<html)([^>]*?) lang="[^"]*" data-content_root="[^"]*"'
    text = re.sub(old, rf"\1 {head}", text, count=1)
    if words:                                               # before course.js, which asks for them
        script = '<script defer src="_words.js"></script>\n    '
        text = re.sub(r"(?=<script[^>]*course\.js)", script, text, count=1)
    return text
