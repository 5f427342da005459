"""The site's own parts of Sphinx: a fold, the glossary's words in prose, what stands around a page."""

import html
import json
import os
import re
from pathlib import Path

from docutils import nodes
from edition import other
from markup import slug
from sphinx.util.docutils import SphinxDirective
from terms import TERMS
from tongue import ENGLISH, LANGUAGES

language = LANGUAGES[os.environ.get("SITE_LANGUAGE", "en")]


class fold(nodes.Element):
    """An answer that opens on demand."""


class fold_summary(nodes.TextElement):
    """The line of a fold that is always seen."""


class Fold(SphinxDirective):
    """`:::{fold} Summary`, with anything inside."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        words, messages = self.parse_inline(self.arguments[0])
        node = fold("", fold_summary("", "", *words), *self.parse_content_to_nodes())
        return [node, *messages]


def _tag(name, attributes=""):
    return (lambda self, node: self.body.append(f"<{name}{attributes}>"),
            lambda self, node: self.body.append(f"</{name}>\n"))


_UNUSED_SCRIPTS = ("doctools.js", "sphinx_highlight.js", "translations.js")
_NOT_IN = (nodes.reference, nodes.literal, nodes.title, nodes.math, nodes.strong, nodes.raw,
           nodes.literal_block, fold_summary)


def spelled(terms, language):
    """Return what finds any of the terms, {group: term}, in a language's prose; the longest first."""
    names = {key: language.say(term.name) for key, term in terms.items()}
    longest = sorted(terms, key=lambda key: -len(names[key]))
    # A name of Chinese characters has one spelling, and no space around it.
    latin = {key: language is ENGLISH or names[key].isascii() for key in terms}
    either = "|".join(f"(?P<{key}>{terms[key].pattern if latin[key] else re.escape(names[key])})"
                      for key in longest)
    letter = r"[\w-]" if language is ENGLISH else "[A-Za-z0-9_-]"
    return re.compile(rf"(?<!{letter})(?:{either})(?!{letter})")


def mark_terms(app, doctree, docname):
    """Give each word of the glossary its tip, where it first occurs in a chapter's prose."""
    if not docname[:2].isdigit():
        return
    left = {f"t{n}": term for n, term in enumerate(TERMS)}
    words = spelled(left, language)
    for paragraph in list(doctree.findall(nodes.paragraph)):
        for text in list(paragraph.findall(nodes.Text)):
            if _inside(text, paragraph):
                continue
            parts, at = [], 0
            for found in words.finditer(str(text)):
                term = left.pop(found.lastgroup, None)
                if term is None:
                    continue
                parts += [nodes.Text(str(text)[at:found.start()]), nodes.raw("", (
                    f'<a class="term" href="glossary.html#{term.key}"'
                    f' data-tip="{html.escape(language.say(term.text))}">'
                    f"{html.escape(found[0])}</a>"), format="html")]
                at = found.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(str(text)[at:])])


def _inside(node, top):
    while node is not top:
        node = node.parent
        if isinstance(node, _NOT_IN):
            return True
    return False


def around(app, pagename, templatename, context, doctree):
    """Say the question of the next chapter, and name the page to whoever shares it."""
    data = json.loads((Path(app.srcdir) / "pages.json").read_text("utf-8"))
    there = other(language)
    up = "../" if language.folder else ""
    context["other"] = {"href": f"{up}{there.folder}{pagename}.html", "language": there}
    context["search"] = language.say("Search")
    context["hasdoc"] = lambda name, given=context["hasdoc"]: name != "search" and given(name)
    for key in ("prev", "next"):
        page = context.get(key)
        name = page and page["link"].split("#")[0].removesuffix(".html")
        if name in data:
            question = html.escape(data[name]["question"])
            title = html.escape(data[name]["title"])
            context[key] = page | {"title": f'{title} <span class="asks">{question}</span>'}
    named = [(str(getattr(script, "filename", script)), script) for script in context["script_files"]]
    context["script_files"] = [script for name, script in named if not name.endswith(_UNUSED_SCRIPTS)]
    if not pagename[:2].isdigit():
        context["css_files"] = [*context["css_files"], "_static/front.css"]
    about = data.get(pagename, {}).get("description")
    if about:
        context["metatags"] = (context.get("metatags") or "") + (
            f'<meta name="description" content="{html.escape(about)}">')
    address = os.environ.get("SITE_URL")
    if address and about:
        title = html.escape(data[pagename].get("title") or app.config.project)
        for name, value in (("title", title), ("description", html.escape(about)), ("type", "article"),
                            ("url", f"{address.rstrip('/')}/{language.folder}{pagename}.html"),
                            ("site_name", html.escape(app.config.project)),
                            ("image", f"{address.rstrip('/')}/social.png")):
            context["metatags"] += f'<meta property="og:{name}" content="{value}">'
        context["metatags"] += '<meta name="twitter:card" content="summary_large_image">'


def setup(app):
    if language is not ENGLISH:                             # else an anchor has Latin letters only
        nodes.make_id = slug
    # The site has a search of its own.
    app.connect("builder-inited", lambda app: setattr(app.builder, "search", False))
    app.add_node(fold, html=_tag("details", ' class="fold"'))
    app.add_node(fold_summary, html=_tag("summary"))
    app.add_directive("fold", Fold)
    app.connect("doctree-resolved", mark_terms)
    app.connect("html-page-context", around)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
