"""The site's own parts of Sphinx: a fold, the glossary's terms in prose, and what stands around a page."""

import html
import json
import os
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


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


def around(app, pagename, templatename, context, doctree):
    """Say the question of the next chapter, and name the page to whoever shares it."""
    data = json.loads((Path(app.srcdir) / "pages.json").read_text("utf-8"))
    for key in ("prev", "next"):
        page = context.get(key)
        name = page and page["link"].split("#")[0].removesuffix(".html")
        if name in data:
            question = html.escape(data[name]["question"])
            title = html.escape(data[name]["title"])
            context[key] = page | {"title": f'{title} <span class="asks">{question}</span>'}
    about = data.get(pagename, {}).get("description")
    if about:
        context["metatags"] = (context.get("metatags") or "") + (
            f'<meta name="description" content="{html.escape(about)}">')
    address = os.environ.get("SITE_URL")
    if address and about:
        title = html.escape(data[pagename].get("title") or app.config.project)
        for name, value in (("title", title), ("description", html.escape(about)), ("type", "article"),
                            ("url", f"{address.rstrip('/')}/{pagename}.html"),
                            ("site_name", html.escape(app.config.project))):
            context["metatags"] += f'<meta property="og:{name}" content="{value}">'


def setup(app):
    app.add_node(fold, html=_tag("details", ' class="fold"'))
    app.add_node(fold_summary, html=_tag("summary"))
    app.add_directive("fold", Fold)
    app.connect("html-page-context", around)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
