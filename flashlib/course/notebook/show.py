"""What a notebook prints: a table, a function's source, a kernel, what the compiler made of it."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np

import flashlib


def table(rows: list[dict]) -> None:
    """Print dictionaries as one aligned table: numbers right, floats with four digits, None a dash."""

    def text(value):
        if value is None:
            return "–"
        if isinstance(value, bool | str):
            return str(value)
        return f"{value:,}" if isinstance(value, int | np.integer) else f"{value:,.4g}"

    head = list(rows[0])
    cells = [head] + [[text(row[name]) for name in head] for row in rows]
    widths = [max(len(line[c]) for line in cells) for c in range(len(head))]
    for n, line in enumerate(cells):
        left = [isinstance(rows[0][name], str) for name in head]
        print("  ".join(cell.ljust(width) if is_left else cell.rjust(width)
                        for cell, width, is_left in zip(line, widths, left, strict=True)).rstrip())
        if n == 0:
            print("  ".join("─" * width for width in widths))


def source(thing: Callable) -> None:
    """Print the source of a function or class without its docstrings, as the package runs it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    lines = textwrap.dedent(inspect.getsource(thing)).splitlines()
    skipped = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and _has_docstring(node):
            skipped.update(range(body[0].lineno, body[0].end_lineno + 1))
    print("\n".join(line for n, line in enumerate(lines, 1) if n not in skipped))


def _has_docstring(node) -> bool:
    return (isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
            and ast.get_docstring(node) is not None)


def kernel(module: str, name: str, part: str = "all", where: dict | None = None) -> None:
    """Print a kernel of `flashlib.kernels` without its docstring, as `kernel_text` returns it."""
    print(kernel_text(module, name, part, where))


def kernel_text(module: str, name: str, part: str = "all", where: dict | None = None) -> str:
    """Return the text of a kernel without its docstring; this needs neither torch nor Triton.

    A `module` of the course begins with "course/". `part` is "all", "signature" (up to the colon) or
    "body". Where `where` gives the value of an expression, as {"SINK": None}, each `if` that this
    decides is left out or becomes its branch, as the compiler does with what it knows.
    """
    home = Path(flashlib.__file__).parent / ("" if module.startswith("course/") else "kernels")
    text = (home / f"{module}.py").read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body
             if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
    if not found:
        raise ValueError(f"name: expected a function of {module}.py, got {name!r}")
    node, lines = found[0], text.splitlines()
    first = node.body[0]
    documented = ast.get_docstring(node) is not None
    head = lines[node.lineno - 1 - len(node.decorator_list):first.lineno - 1]
    body = lines[(first.end_lineno if documented else first.lineno - 1):node.end_lineno]
    if where:
        body = _decided(body, where)
    return "\n".join({"all": head + body, "signature": head,
                      "body": textwrap.dedent("\n".join(body)).splitlines()}[part])


def _decided(body: list[str], where: dict) -> list[str]:
    """Return lines of code without each `if` that `where` decides, and the names that it gives."""
    lines = textwrap.dedent("\n".join(body)).splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.If) and (value := _value(node.test, where)) is not _UNKNOWN:
            if node.orelse:
                raise ValueError("where: expected an if without an else, got"
                                 f" {lines[node.lineno - 1]!r} with one")
            deeper = node.body[0].col_offset - node.col_offset
            kept = [line[deeper:] for line in lines[node.body[0].lineno - 1:node.end_lineno] if value]
            return _decided(lines[:node.lineno - 1] + kept + lines[node.end_lineno:], where)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in where:
            return _decided(lines[:node.lineno - 1] + lines[node.end_lineno:], where)
    return lines


_UNKNOWN = object()


def _value(test: ast.expr, where: dict):
    """Return the value of an expression of which `where` knows parts, or `_UNKNOWN`."""
    if ast.unparse(test) in where:
        return where[ast.unparse(test)]
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
        value = _value(test.left, where)
        return value if value is _UNKNOWN else value is not None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = _value(test.operand, where)
        return value if value is _UNKNOWN else not value
    if isinstance(test, ast.BoolOp):
        known = [_value(part, where) for part in test.values]
        settles = isinstance(test.op, ast.Or)
        if settles in known:
            return settles
        return _UNKNOWN if _UNKNOWN in known else not settles
    return _UNKNOWN


def ir_lines(text: str, only: str = "") -> list[str]:
    """Return the operations of a TTIR, TTGIR, PTX or SASS text without where they come from.

    `only`: a regular expression; lines that do not match are left out.
    """
    lines = [re.sub(r"\s*loc\(.*$", "", line.rstrip()) for line in text.splitlines()
             if not line.lstrip().startswith(("#loc", ".loc", "//", ".file", "}"))]
    lines = [re.sub(r"\s*/\*[0-9a-f]+\*/\s*", "  ", line) for line in lines]
    return [line for line in lines if line.strip() and re.search(only, line)]
