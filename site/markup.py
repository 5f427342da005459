"""What the notebooks' Markdown needs before MyST reads it: links, folds, and the tensors' hues."""

import html
import re
from urllib.parse import unquote

# Fences, displayed formulas, code, formulas: what no rewriting of prose may enter.
_ISLANDS = re.compile(
    r"(^```.*?^```[^\n]*|\$\$.*?\$\$|(`+)(?!`).+?(?<!`)\2(?!`)|(?<![\\$])\$[^$\n]+?\$(?!\d)"
    r"|(?<![\\$])\$[^$]{1,200}?\$(?!\d))", re.S | re.M)
_FOLD = re.compile(r"<details>\s*<summary>(.*?)</summary>\n(.*?)\n?</details>", re.S)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
# Commands, and what is text in a formula, keep their letters.
_LETTERS = re.compile(
    r"\\(?:text|textbf|textit|operatorname|mathrm|mathtt|texttt|begin|end|tag)\*?\{[^{}]*\}"
    r"|\\[A-Za-z]+\*?|\\.|[QKVSPO]")


def islands(text):
    """Split Markdown into pairs (kind, text): "prose", "code", "math" or "display"."""
    at = 0
    for found in _ISLANDS.finditer(text):
        if found.start() > at:
            yield "prose", text[at:found.start()]
        kind = "display" if found[0].startswith("$$") else "math" if found[0][0] == "$" else "code"
        yield kind, found[0]
        at = found.end()
    if at < len(text):
        yield "prose", text[at:]


def paint(formula, *, plain=""):
    """Give the letters of the six tensors their classes, except those of `plain`."""
    def letter(found):
        word = found[0]
        if len(word) > 1 or word in plain or word not in "QKVSPO":
            return word
        if word == "O" and formula.startswith("(N", found.end()):           # a bound, no tensor
            return word
        return rf"{{\htmlClass{{t{word}}}{{{word}}}}}"
    return _LETTERS.sub(letter, formula)


def powers(text):
    """Return HTML in which e^(x − m_new) has its exponent raised and its index lowered."""
    text = re.sub(r"\b([A-Za-zℓ])_([a-z]+)\b(?![\[(])", r"\1<sub>\2</sub>", text)
    return re.sub(r"\b([e2])\^(?:\{([^}]*)\}|\(([^)]*)\)|(\w+))",
                  lambda found: f"{found[1]}<sup>{found[2] or found[3] or found[4]}</sup>", text)


def slug(anchor):
    """Return MyST's anchor for one that JupyterLab made of a heading."""
    return re.sub(r"[^\w\- ]", "", unquote(anchor).lower()).replace(" ", "-")


def relink(text, target):
    """Rewrite each link of the prose by the function `target`."""
    def one(found):
        if not re.match(r"#|https?:|\.\./|\w+\.ipynb", found[2]):
            return found[0]                                 # code may look like a link
        to = target(html.unescape(found[2]))
        if to.startswith(("files/", "../files/")):          # beside the pages, and unknown to Sphinx
            return f'<a href="{to}">{found[1].replace("`", "")}</a>'
        return f"[{found[1]}]({to})"

    return _LINK.sub(one, text)


def unfold(text, fold):
    """Replace each <details> by what `fold(summary, body)` returns."""
    return _FOLD.sub(lambda found: fold(found[1].strip(), found[2].strip("\n")), text)
