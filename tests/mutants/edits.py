"""Change a source by what it says and not by how it is laid out: the one place where bugs are planted.

A source is first written anew from its syntax tree, a statement a line. An edit (old, new) names the
tokens that go and the text that comes. Spaces, line breaks, indentation, quotes, comments, trailing
commas and redundant parentheses count for nothing in `old`, which need not be a whole statement or
expression: "l_i * alpha + tl.sum(" will do. A line break at its end is the end of a statement. Further
lines of `new` are indented against its first line, which comes where `old` began.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from typing import NamedTuple

TOKEN = re.compile(r"""
    (?P<blank>[ \t\f]+|\\\n|\#[^\n]*)
  | (?P<end>\n|;)
  | (?P<string>(?:[rbuf]|br|rb|fr|rf)?(?:'{3}(?:\\.|[^\\])*?'{3}|"{3}(?:\\.|[^\\])*?"{3}
                                       |'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
  | (?P<number>(?:\d|\.\d)(?:e[+-]?\d|[\w.])*)
  | (?P<name>\w+)
  | (?P<sign>\*\*=|//=|<<=|>>=|\.\.\.|->|:=|\*\*|//|<<|>>|[-+*/%&|^@=!<>]=|.)
""", re.VERBOSE | re.DOTALL | re.IGNORECASE)
END = "\n"


class Mutant(NamedTuple):
    """One planted bug: what `old` becomes in `module`; `check` must fail, and say `words`."""

    name: str
    module: str
    old: str
    new: str
    check: str
    words: str = "error"


class Token(NamedTuple):
    """What a piece of source says, and where it stands."""

    says: str
    start: int
    stop: int


def tokens(text):
    """Return the tokens of a source, or of a fragment that does not close what it opens."""
    found, depth = [], 0
    for match in TOKEN.finditer(text):
        kind, says = match.lastgroup, match[0]
        if kind == "blank" or (kind == "end" and (depth or not found or found[-1].says == END)):
            continue
        if kind == "end":
            says = END
        elif kind in ("string", "number"):
            try:
                says = repr(ast.literal_eval(says))
            except (SyntaxError, ValueError):                   # an f-string: its quotes alone
                says = re.sub("[\"']", '"', says)
        elif says in ("(", "[", "{"):
            depth += 1
        elif says in (")", "]", "}"):
            depth = max(0, depth - 1)
            if found and found[-1].says == ",":
                found.pop()
        found.append(Token(says, *match.span()))
    return found


def meaning(statement):
    """Return the syntax tree of a line, which may be the first of a block, as text."""
    whole = statement.removeprefix("el") if statement.startswith("elif") else statement
    return ast.dump(ast.parse(f"{whole} pass" if whole.endswith(":") else whole))


@functools.cache
def bare(statement):
    """Return a line without the parentheses that mean nothing; in these Python's versions differ."""
    try:
        means = meaning(statement)
    except SyntaxError:                                         # else:, except:, a decorator
        return statement
    opened = []
    for token in tokens(statement):
        if token.says == "(":
            opened.append(token.start)
        elif token.says == ")" and opened:
            start, stop = opened.pop(), token.start
            without = f"{statement[:start]} {statement[start + 1:stop]} {statement[stop + 1:]}"
            try:
                if without.strip() and meaning(without.strip()) == means:
                    statement = without
            except SyntaxError:
                pass
    return statement.strip()


@functools.lru_cache(maxsize=4096)
def canonical(source):
    """Return a source as its syntax tree has it: a statement a line, no comment, no layout."""
    text, lines, start = ast.unparse(ast.parse(source)) + "\n", [], 0
    for token in tokens(text):
        if token.says == END:
            line = text[start:token.start]
            indent = re.match(r"\s*", line)[0]                  # with the empty lines before it
            lines.append(line if line.strip().count("\n") else indent + bare(line.strip()))
            start = token.start
    return "".join(lines).lstrip("\n") + "\n"


def spellings(fragment):
    """Yield the tokens of a fragment, then those of its canonical form where it has one."""
    yield [token.says for token in tokens(fragment)]
    head = textwrap.dedent(fragment).strip()
    try:
        whole = canonical(f"{head} pass" if head.endswith(":") else head).strip()
    except SyntaxError:
        return
    whole = whole.removesuffix("pass").rstrip() if head.endswith(":") else whole
    yield [token.says for token in tokens(whole + END * fragment.endswith("\n"))]


def places(text, fragment):
    """Return the spans of a canonical text that say what the fragment says."""
    said = tokens(text)
    for wanted in spellings(fragment):
        found = []
        for first in range(len(said)):
            at = first
            for n, word in enumerate(wanted):
                if at < len(said) and said[at].says == word:
                    at += 1
                elif word != END or n == len(wanted) - 1:       # within, a line break may be layout
                    break
            else:
                if at > first and (not found or said[first].start >= found[-1][1]):
                    found.append((said[first].start, said[at - 1].stop))
        if found:
            return found
    return []


def indented(new, column):
    """Return the text that comes, its further lines moved as its first line is."""
    first, *others = new.split("\n")
    move = column - (len(first) - len(first.lstrip()))
    depths = [len(line) - len(line.lstrip()) + move for line in others]
    return "\n".join([first.lstrip(), *((" " * depth + line.lstrip()) if line.strip() else ""
                                        for depth, line in zip(depths, others, strict=True))])


@functools.lru_cache(maxsize=4096)
def edited(source, edits=(), *, name="the source", everywhere=False):
    """Return the canonical source with every (old, new) applied, each in exactly one place.

    With `everywhere` an edit is applied in all places, of which there must be one. LookupError: it does
    not fit, changes nothing, or leaves what does not parse.
    """
    text = canonical(source)
    for old, new in edits:
        spans = places(text, old)
        if not spans or (len(spans) > 1 and not everywhere):
            raise LookupError(f"{name}: expected {'at least' if everywhere else 'exactly'} one {old!r},"
                              f" found {len(spans)}")
        changed = text
        for start, stop in reversed(spans):
            line = text[text.rfind("\n", 0, start) + 1:]
            column = len(line) - len(line.lstrip(" "))
            changed = changed[:start] + indented(new, column) + changed[stop:]
        try:
            changed = canonical(changed)
        except SyntaxError as error:
            raise LookupError(f"{name}: with {new!r} in the place of {old!r} it does not parse:"
                              f" {error}") from None
        if changed == text:
            raise LookupError(f"{name}: {new!r} in the place of {old!r} changes nothing")
        text = changed
    return text
