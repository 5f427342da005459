"""The house rules of the package: which way imports point, how long a file is, who counts."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import flashlib as fl

PACKAGE = Path(fl.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
MODULES = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
           for p in FILES}
every_file = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))

# A part may import from its own layer and from those below. A package is one part; the modules of
# `machine`, the packages of `course` and the files of a chapter's folder are parts of their own.
LAYERS = [
    {"errors", "arguments", "lazy", "numerics", "hardware", "exp2", "quant", "machine.trace",
     "machine.traffic"},
    {"masks", "machine", "machine.machine", "machine.values", "machine.thread_block", "kernels"},
    {"algorithms", "models"},
    {"lens"},
    {"course", "course.chapter", "course.notebook"},
    {"course.plots"},
    {"course.chapter.figures"},
    {"course.widgets", "course.exercises", "course.bench"},
    {"course.chapter.lab", "course.chapter.exercises", "course.chapter.solutions"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FIGURES = {"course.plots", "models", "machine", "machine.trace", "machine.traffic", "hardware", "masks",
           "numerics", "course.notebook", "errors", "lazy"}
NARROW = {                         # tighter than its layer
    "algorithms": {"machine", "masks", "arguments", "errors", "algorithms", "machine.thread_block",
                   "exp2", "quant"},
    "kernels": {"kernels", "arguments", "errors", "lazy"},         # never the algorithms
    "course.plots": FIGURES, "course.chapter.figures": FIGURES | {"course.chapter.figures"},
    "machine": {"machine.machine", "machine.values", "errors"},
    "machine.machine": {"machine.values", "machine.trace", "machine.traffic", "errors", "arguments"},
    "machine.thread_block": {"machine.traffic", "arguments"},
    "machine.values": {"errors", "quant"},
    "exp2": {"arguments"}, "quant": {"arguments", "numerics"},
    "masks": {"arguments"},
    "arguments": set(), "machine.trace": set(), "machine.traffic": set(), "errors": set(),
    "lazy": set(),
}
MACHINE = {part for part in RANK if part.startswith("machine")}
LIGHT = {"__init__", "algorithms", "models", "masks", "arguments", "errors", "numerics", "hardware",
         "exp2", "quant", "lazy", *MACHINE}
SELF_COUNTING = {"errors", "arguments", "exp2", "quant", "masks", "algorithms", "models", "lazy",
                 *MACHINE}


def part_of(path):
    return part(".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"))


def part(module):
    """Return the part that a module belongs to, as `LAYERS` names it; `module` is inside flashlib."""
    first, *rest = module.split(".")
    if first == "course" and rest and re.fullmatch(r"ch\d\d", rest[0]):
        return ".".join(["course.chapter", *(name.rpartition("_")[2] for name in rest[1:2])])
    return ".".join([first, *rest[:1]]) if first in ("machine", "course") else first


def imports(path, top_level_only=False):
    """Yield the modules that a file imports, relative ones resolved."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = path.relative_to(PACKAGE.parent).parts[:-node.level]
                base = ".".join([*parent, *([base] if base else [])])
            inner = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES or base == "flashlib" else base for name in inner)


@every_file
def test_imports_point_one_way(path):
    mine = part_of(path)
    if mine in ("__init__", "__main__"):                    # the doors
        return
    assert mine in RANK, f"flashlib/{mine} is in no layer of this test: place it"
    for name in imports(path):
        if not name.startswith("flashlib."):
            continue
        target = name.removeprefix("flashlib.")
        target = part(fl._HOMES.get(target) or fl._MODULES.get(target) or target)
        allowed = NARROW.get(mine, {n for n in RANK if RANK[n] <= RANK[mine]})
        assert target == mine or target in allowed, f"{path.name} ({mine}) imports {name}"


CHAPTERS = [path for path in FILES if part_of(path).startswith("course.chapter")]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_chapter_imports_no_other_chapter(path):
    own = f"flashlib.course.{path.parent.name}."
    others = [name for name in imports(path) if re.match(r"flashlib\.course\.ch\d\d\b", name)]
    assert all(name.startswith(own) for name in others), others


def test_no_part_imports_in_a_circle():
    """Imports inside functions count: a circle that is put off is a circle."""
    graph = {name: {n for n in imports(path) if n in MODULES and n != name}
             for name, path in MODULES.items() if part_of(path) != "kernels"}
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"in or behind a circle: {sorted(graph)}"


@every_file
def test_the_lower_layers_load_numpy_and_the_standard_library_only(path):
    if part_of(path) in LIGHT:
        foreign = {name.split(".")[0] for name in imports(path, top_level_only=True)} & {
            "matplotlib", "torch", "triton", "ipywidgets", "IPython", "pandas", "scipy", "tqdm"}
        assert not foreign


@every_file
def test_no_file_is_long_and_none_is_a_drawer(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 450
    assert path.stem not in ("utils", "util", "common", "helpers", "misc")
    assert path.read_text(encoding="utf-8").strip(), "an empty placeholder"


def public_functions():
    """Yield what is defined in the layers of this test's owner and has no underscore."""
    for path in FILES:
        if part_of(path) not in SELF_COUNTING:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                yield pytest.param(node, id=f"{path.stem}.{node.name}")


@pytest.mark.parametrize("node", public_functions())
def test_a_docstring_begins_with_a_full_sentence(node):
    text = ast.get_docstring(node)
    assert text, "no docstring"
    first = text.split("\n\n")[0]
    assert first[0].isupper() or not first[0].isalpha()
    assert re.search(r"[.:)]$", first) and len(first.split()) >= 4, first
    assert "\n" not in first.strip(), "the first sentence takes one line"


FRONT = [name for name in fl.__all__ if name not in fl._MODULES]


@pytest.mark.parametrize("name", FRONT)
def test_the_front_door_documents_what_it_offers(name):
    thing = getattr(fl, name)
    text = inspect.getdoc(thing)
    assert text and text != inspect.getdoc(object)
    if not inspect.isfunction(thing):
        return
    parameters = inspect.signature(thing).parameters
    if {"Q", "x", "A"} & set(parameters):             # it takes arrays
        assert "Args:" in text and "Returns:" in text
        for parameter in parameters:
            assert re.search(rf"\b{parameter}\b", text), f"{parameter} is not documented"
        assert re.search(r"Taught in\s+notebooks?\s+\d\d", text)


@pytest.mark.parametrize("name", [n for n in FRONT if "causal" in str(
    inspect.signature(getattr(fl, n)) if inspect.isfunction(getattr(fl, n)) else "")])
def test_whoever_takes_causal_says_how_it_aligns(name):
    text = inspect.getdoc(getattr(fl, name))
    assert "bottom right" in text


ALGORITHMS = [p for p in FILES if part_of(p) == "algorithms"]


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda p: p.stem)
def test_algorithms_leave_the_counting_to_the_machine(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    counters = re.compile(r"traffic|flops|exps|hbm_bytes|read_bytes|write_bytes|_peak|_moved|trace")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not counters.search(node.attr), f"line {node.lineno}: .{node.attr}"
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            assert not private, f"line {node.lineno}: .{node.attr} goes behind the machine"
        if isinstance(node, ast.AugAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            for target in targets:
                assert not counters.search(ast.unparse(target)), f"line {node.lineno}"


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda p: p.stem)
def test_algorithms_fit_on_a_page_or_two(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 200


@every_file
def test_errors_are_raised_and_not_asserted(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
