"""Which notebooks hold a lab, that is, a widget: read from their code, and from what they show."""

import ast
import re
from pathlib import Path

import nbformat

from flashlib import widgets
from scripts import render_notebooks as render

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_FUNCTIONS = [node for path in sorted((ROOT / "flashlib" / "course").glob("ch*/lab.py"))
              for node in ast.parse(path.read_text(encoding="utf-8")).body
              if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
_RETURN_A_LAB = {node.name for node in _FUNCTIONS if "return base.Lab(" in ast.unparse(node)}
NO_WIDGETS = {"LIVE", "sweep", *(node.name for node in _FUNCTIONS)} - _RETURN_A_LAB
WIDGETS = (set(widgets.__all__) | _RETURN_A_LAB) - NO_WIDGETS


def makes_a_widget(notebook):
    """Whether a code cell calls a function of flashlib.widgets, or of a chapter's lab, that is one."""
    packages, modules, functions = set(), set(), set()
    for tree in _trees(notebook):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                packages |= {a.asname or a.name for a in node.names if a.name == "flashlib"}
                modules |= {a.asname for a in node.names if _is_ours(a.name) and a.asname}
            elif isinstance(node, ast.ImportFrom) and node.module == "flashlib":
                modules |= {a.asname or a.name for a in node.names if a.name == "widgets"}
            elif isinstance(node, ast.ImportFrom) and re.fullmatch(_CHAPTER, node.module or ""):
                modules |= {a.asname or a.name for a in node.names if a.name == "lab"}
            elif isinstance(node, ast.ImportFrom) and _is_ours(node.module):
                functions |= {a.asname or a.name for a in node.names if a.name in WIDGETS}
    for tree in _trees(notebook):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            *owner, name = ast.unparse(node.func).split(".")
            if not owner and name in functions:
                return True
            if owner[1:] == ["widgets"] and owner[0] in packages and name not in NO_WIDGETS:
                return True
            if len(owner) == 1 and owner[0] in modules and name not in NO_WIDGETS:
                return True
    return False


def shows_a_widget(notebook):
    """Whether a kept output stands for a control, as rendering leaves it."""
    outputs = (o for cell in notebook.cells for o in cell.get("outputs", []))
    data = [output.get("data", {}) for output in outputs]
    return any(render.WIDGET_VIEW in d or d.get("text/plain") == render.WIDGET_TEXT for d in data)


def with_labs_alone(notebook):
    """Return a copy in which code is left only where a control is made, or what its making asks for.

    Cells stay where they are, so that the page is as long. What a cell binds is read from its code.
    """
    copy, wanted = notebook.copy(), set()
    copy.cells = [cell.copy() for cell in notebook.cells]
    code = [cell for cell in copy.cells if cell.cell_type == "code"]
    for cell, tree in reversed(list(zip(code, _trees(copy), strict=True))):
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                bound |= {a.asname or a.name.partition(".")[0] for a in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
        if shows_a_widget(nbformat.from_dict({"cells": [cell]})) or bound & wanted:
            wanted = (wanted - bound) | {node.id for node in names if isinstance(node.ctx, ast.Load)}
        else:
            cell.source = ""
    return copy


def imports(notebook):
    """Return the top-level names of the packages that the cells import."""
    nodes = [node for tree in _trees(notebook) for node in ast.walk(tree)]
    plain = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    return {n.partition(".")[0] for n in plain | {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}}


_CHAPTER = r"flashlib\.course\.ch\d\d[a-z]?"


def _is_ours(module):
    return re.fullmatch(rf"flashlib\.course\.widgets(\.\w+)?|{_CHAPTER}\.lab", module or "") is not None


def _trees(notebook):
    """Parse the code cells, without the lines that only IPython understands."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = [x for x in cell.source.splitlines() if not x.lstrip().startswith(("%", "!"))]
            yield ast.parse("\n".join(lines))


LABS = [path for path in NOTEBOOKS if makes_a_widget(n := render.read(path)) or shows_a_widget(n)]
