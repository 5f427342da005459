"""The house rules of the package: which way imports point, how long a file is, who counts."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import flashlib as fl

PACKAGE = Path(fl.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
MODULES = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in FILES}
every_file = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))

# A module may import from its own layer and from those below; a package counts by its name.
LAYERS = [
    {"errors", "checks", "trace", "traffic", "numerics", "hardware", "data", "chapters",
     "exp2", "quant", "extras"},
    {"values", "masks", "machine", "warps", "kernels"},
    {"algorithms", "models", "lens"},
    {"plots"},
    {"widgets", "exercises", "bench", "checkup"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
NARROW = {                         # tighter than its layer
    "algorithms": {"machine", "masks", "checks", "errors", "algorithms", "warps", "exp2",
                   "quant"},
    "kernels": {"kernels", "checks", "errors", "extras", "masks"},  # never the algorithms
    "plots": {"plots", "models", "machine", "hardware", "masks", "trace", "traffic", "numerics",
              "data", "chapters", "errors", "extras"},
    "machine": {"values", "trace", "traffic", "errors", "checks"}, "values": {"errors", "quant"},
    "exp2": {"checks"}, "quant": {"checks", "numerics"},
    "masks": {"checks"},
    "checks": set(), "trace": set(), "traffic": set(), "errors": set(), "extras": set(),
}
LIGHT = {"__init__", "algorithms", "models", "machine", "masks", "checks", "trace", "traffic",
         "errors", "numerics", "hardware", "values", "exp2", "quant"}
SELF_COUNTING = {"errors", "checks", "trace", "traffic", "machine", "values", "exp2", "quant", "masks",
                 "algorithms", "models"}


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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
    part = part_of(path)
    if part == "__init__":
        return
    assert part in RANK, f"flashlib/{part} is in no layer of this test: place it"
    for name in imports(path):
        if not name.startswith("flashlib."):
            continue
        target = name.split(".")[1]
        if target not in RANK:                        # a name of the front door: flash_v2, Machine
            target = fl._HOMES[target].split(".")[0]
        allowed = NARROW.get(part, {n for n in RANK if RANK[n] <= RANK[part]})
        assert target == part or target in allowed, f"{path.name} ({part}) imports {name}"


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
