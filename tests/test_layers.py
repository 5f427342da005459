"""The house rules of the package: which way imports point, how long a file is, who counts.

Every test reads all files that its rule is for, and lists those that break it.
"""

import ast
import collections
import functools
import inspect
import re
import tomllib
from pathlib import Path

import flashlib as fl

PACKAGE = Path(fl.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
MODULES = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
           for p in FILES}

# A part may import from its own layer and from those below. A package is one part; the modules of
# `machine`, the packages of `course` and the files of a chapter's folder are parts of their own.
LAYERS = [
    {"errors", "arguments", "lazy", "numerics", "hardware", "generations", "exp2", "quant",
     "machine.trace", "machine.traffic"},
    {"interpreter"},
    {"masks", "scores", "machine", "machine.machine", "machine.values", "machine.thread_block",
     "machine.ranks", "kernels"},
    {"algorithms", "models"},
    {"lens", "integrations", "parallel"},
    {"course", "course.chapter", "course.notebook", "course.chapter.order", "course.chapter.step",
     "course.chapter.compare", "course.chapter.plan", "course.chapter.bits", "course.chapter.race",
     "course.chapter.text", "course.chapter.gpt"},
    {"course.plots"},
    {"course.chapter.figures", "course.chapter.kernels", "course.chapter.ranks"},
    {"course.widgets", "course.exercises", "course.bench"},
    {"course.chapter.lab", "course.chapter.exercises", "course.chapter.solutions",
     "course.chapter.smol", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FIGURES = {"course.plots", "models", "machine", "machine.trace", "machine.traffic", "hardware", "masks",
           "numerics", "course.notebook", "errors", "lazy"}
NARROW = {                         # tighter than its layer
    "algorithms": {"machine", "masks", "arguments", "errors", "algorithms", "machine.thread_block",
                   "machine.ranks",
                   "exp2", "quant", "scores"},
    "kernels": {"arguments", "errors", "lazy", "masks", "exp2", "quant", "hardware", "interpreter",
                "scores"},
    "integrations": {"kernels", "masks", "lazy"},
    "course.plots": FIGURES,
    "course.chapter.figures": FIGURES | {"course.chapter.figures", "course.chapter.order",
                                         "course.chapter.race"},
    "machine": {"machine.machine", "machine.values", "errors"},
    "machine.machine": {"machine.values", "machine.trace", "machine.traffic", "errors", "arguments"},
    "machine.thread_block": {"machine.traffic", "arguments", "generations"},
    "machine.values": {"errors", "quant"}, "machine.ranks": {"errors"},
    "parallel": {"algorithms", "kernels", "machine.ranks", "masks", "arguments", "errors", "lazy"},
    "exp2": {"arguments"}, "quant": {"arguments", "numerics"},
    "interpreter": set(), "masks": {"arguments"}, "scores": {"arguments"},
    "hardware": {"generations"}, "generations": set(),
    "arguments": set(), "machine.trace": {"machine.traffic"}, "machine.traffic": set(), "errors": set(),
    "lazy": set(),
}
MACHINE = {part for part in RANK if part.startswith("machine")}
LIGHT = {"__init__", "algorithms", "models", "masks", "arguments", "errors", "numerics", "hardware",
         "generations", "exp2", "quant", "lazy", "scores", *MACHINE}
SELF_COUNTING = {"errors", "arguments", "exp2", "quant", "masks", "algorithms", "models", "lazy",
                 "scores", *MACHINE}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def short(path, node=None):
    return f"{path.relative_to(PACKAGE)}{f':{node.lineno}' if node else ''}"


def part_of(module):
    """Return the part that a module of the package belongs to, as `LAYERS` names it."""
    first, *rest = module.split(".")[1:] or ["__init__"]
    if first == "course" and rest and re.fullmatch(r"ch\d\d[a-z]?", rest[0]):
        return ".".join(["course.chapter", *(name.rpartition("_")[2] for name in rest[1:2])])
    return ".".join([first, *rest[:1]]) if first in ("machine", "course") else first


def in_parts(*parts):
    """Yield the files of some parts."""
    return [path for module, path in MODULES.items() if part_of(module) in parts]


@functools.cache
def nodes_of(path):
    return list(ast.walk(tree_of(path)))


def imported(path, nodes=None):
    """Yield (node, module, name or None) for all that a file imports, relative names resolved."""
    for node in nodes or nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = path.relative_to(PACKAGE.parent).parts[:-node.level]
                base = ".".join([*parent, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in MODULES:
                    yield node, inner, None
                elif base == "flashlib":                        # a name of the front door: flash_v2
                    home = fl._HOMES.get(alias.name) or fl._MODULES[alias.name]
                    yield node, f"flashlib.{home}", alias.name
                else:
                    yield node, base, alias.name


def no_offender(offenders):
    """Fail with the list of them, if there are any."""
    found = list(dict.fromkeys(offenders))
    assert not found, f"{len(found)} offend:\n" + "\n".join(found)


def wrong_way():
    for module, path in MODULES.items():
        part = part_of(module)
        if module == "flashlib":
            continue
        if part not in RANK:
            yield f"{short(path)}: {part} is in no layer of this test: place it"
            continue
        allowed = {part} | NARROW.get(part, {name for name in RANK if RANK[name] <= RANK[part]})
        for node, target, _ in imported(path):
            to = part_of(target)
            chapter = to.startswith("course.chapter") and part.startswith("course.chapter")
            if target.startswith("flashlib.") and (to not in allowed or (
                    chapter and target.split(".")[:3] != module.split(".")[:3])):
                yield f"{short(path, node)} ({part}) imports {target} ({to})"


def test_imports_point_one_way():
    no_offender(wrong_way())


def test_no_imports_go_in_a_circle():
    """Also where an import stands in a function."""
    graph = {module: {to for _, to, _ in imported(path) if to in MODULES and to != module}
             for module, path in MODULES.items()}
    while leaves := {module for module, to in graph.items() if not to & graph.keys()}:
        graph = {module: to for module, to in graph.items() if module not in leaves}
    while roots := {module for module in graph if not any(module in to for to in graph.values())}:
        graph = {module: to for module, to in graph.items() if module not in roots}
    no_offender(f"{module} imports {', '.join(sorted(to & graph.keys()))}"
                for module, to in graph.items())


def test_backends_import_nothing_of_each_other():
    home = "flashlib.kernels.backends."
    backends = {module: path for module, path in MODULES.items() if module.startswith(home)}
    assert len(backends) >= 3, "kernels/backends has one file for each backend"
    no_offender(f"{short(path, node)} imports {to}" for module, path in backends.items()
         for node, to, _ in imported(path) if to.startswith(home) and to != module)


def test_nothing_outside_the_course_imports_it():
    no_offender(f"{short(path, node)} imports {to}" for module, path in MODULES.items()
         if not part_of(module).startswith("course") and module not in ("flashlib", "flashlib.__main__")
         for node, to, _ in imported(path) if part_of(to).startswith("course"))


TUPLES = {"_replace", "_asdict", "_fields", "_make"}            # public, for all their underscore


def reaches_in():
    for module, path in MODULES.items():
        names = set()
        for node, to, name in imported(path):
            if not to.startswith("flashlib") or to == module:
                continue
            names |= {alias.asname or alias.name for alias in node.names}
            if name and name.startswith("_") and not name.startswith("__"):
                yield f"{short(path, node)} imports {to}.{name}"
        for node in nodes_of(path):
            if (isinstance(node, ast.Attribute) and node.attr not in TUPLES
                    and re.match("_[^_]", node.attr) and ast.unparse(node.value) in names):
                yield f"{short(path, node)} takes {ast.unparse(node)}"


def test_no_module_takes_what_another_keeps_to_itself():
    no_offender(reaches_in())


def test_the_lower_layers_load_numpy_and_the_standard_library_only():
    heavy = {"matplotlib", "torch", "triton", "ipywidgets", "IPython", "pandas", "scipy", "tqdm"}
    no_offender(f"{short(path, node)} imports {name}" for path in in_parts(*LIGHT)
         for node, name, _ in imported(path, tree_of(path).body) if name.split(".")[0] in heavy)


def test_no_file_is_a_drawer():
    no_offender(short(path) for path in FILES if not lines_of(path)
         or path.stem in ("utils", "util", "common", "helpers", "misc"))


def test_no_file_is_long():
    """Nor one of the tests."""
    no_offender(f"{path.relative_to(PACKAGE.parent)}: {len(lines_of(path))} lines"
                for path in FILES + TESTS if len(lines_of(path)) > 400)


def test_the_package_is_small():
    """The course is counted apart, and so is the interpreter."""
    sizes = collections.Counter()
    for module, path in MODULES.items():
        part = part_of(module).split(".")[0]
        sizes[part if part in ("course", "interpreter") else "core"] += len(lines_of(path))
    most = {"core": 19_290, "course": 23_590, "interpreter": 1_133}
    no_offender(f"{part}: {sizes[part]} lines, expected at most {most[part]}"
                for part in most if sizes[part] > most[part])


def test_the_interpreter_is_pages_of_code():
    """At most 900 lines that are not blank: the docstrings, which say what the hardware does, count."""
    written = sum(bool(line.strip()) for path in in_parts("interpreter") for line in lines_of(path))
    assert 0 < written <= 900, written


def test_no_function_takes_many_parameters():
    """A kernel's launch needs more than a call: 25, and 14 for every other function."""
    def too_many():
        for path in FILES:
            for node in nodes_of(path):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    a = node.args
                    count = len([*a.posonlyargs, *a.args, *a.kwonlyargs])
                    kernel = any("jit" in ast.unparse(mark) for mark in node.decorator_list)
                    if count > (25 if kernel else 14):
                        yield f"{short(path, node)} {node.name}: {count}"
    no_offender(too_many())


def test_the_type_checker_reads_all_that_is_neither_course_nor_device_code():
    """And what is left out is there: it takes no notice of a path that has moved."""
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    checked = settings["tool"]["basedpyright"]
    assert checked["include"] == ["flashlib"]
    left_out = ["course", "kernels/gluon", "kernels/triton"]
    assert checked["exclude"] == [f"flashlib/{name}" for name in left_out]
    no_offender(name for name in left_out if not (PACKAGE / name).is_dir())


def test_device_code_stands_in_folders_of_its_own():
    """Outside of the course: so the type checker leaves out no other function."""
    def stray():
        for module, path in MODULES.items():
            if part_of(module).startswith("course"):
                continue
            device = bool({"triton", "gluon"} & set(path.parent.relative_to(PACKAGE).parts))
            for node in nodes_of(path):
                jitted = isinstance(node, ast.FunctionDef | ast.ClassDef) and any(
                    re.search(r"\bjit|aggregate|^fields", ast.unparse(x)) for x in node.decorator_list)
                if jitted and not device:
                    yield f"{short(path, node)} {node.name} is device code"
    no_offender(stray())


def test_a_docstring_begins_with_a_full_sentence():
    """Of what is defined in the layers of this test's owner and has no underscore."""
    def bad():
        for path in in_parts(*SELF_COUNTING):
            for node in tree_of(path).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    first = (ast.get_docstring(node) or "").split("\n\n")[0]
                    if not (first and (first[0].isupper() or not first[0].isalpha())
                            and re.search(r"[.:)]$", first) and len(first.split()) >= 4
                            and "\n" not in first.strip()):
                        yield f"{short(path, node)} {node.name}: {first!r}"
    no_offender(bad())


FRONT = {name: getattr(fl, name) for name in fl.__all__ if name not in fl._MODULES}


def test_the_front_door_documents_what_it_offers():
    def bad():
        for name, thing in FRONT.items():
            text = inspect.getdoc(thing) or ""
            if not text or text == inspect.getdoc(object):
                yield f"{name}: no docstring"
            if not inspect.isfunction(thing):
                continue
            parameters = inspect.signature(thing).parameters
            if {"Q", "x", "A"} & set(parameters):               # it takes arrays
                yield from (f"{name}: no {word}" for word in ("Args:", "Returns:") if word not in text)
                yield from (f"{name}: {parameter} is not documented" for parameter in parameters
                            if not re.search(rf"\b{parameter}\b", text))
                if not re.search(r"Taught in\s+notebooks?\s+\d\d", text):
                    yield f"{name}: does not say which notebook teaches it"
    no_offender(bad())


def test_whoever_takes_causal_says_how_it_aligns():
    takers = [name for name, thing in FRONT.items()
              if inspect.isfunction(thing) and "causal" in inspect.signature(thing).parameters]
    assert len(takers) > 5
    no_offender(name for name in takers if "bottom right" not in inspect.getdoc(FRONT[name]))


def test_algorithms_leave_the_counting_to_the_machine():
    counters = re.compile(r"traffic|flops|exps|hbm_bytes|read_bytes|write_bytes|_peak|_moved|trace")

    def bad():
        for path in in_parts("algorithms"):
            for node in nodes_of(path):
                if isinstance(node, ast.Attribute):
                    private = node.attr.startswith("_") and not node.attr.startswith("__")
                    if private or counters.search(node.attr):
                        yield f"{short(path, node)} .{node.attr} goes behind the machine"
                if isinstance(node, ast.AugAssign | ast.Assign):
                    targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
                    yield from (f"{short(path, node)} counts {what}"
                                for what in map(ast.unparse, targets) if counters.search(what))
    no_offender(bad())


def test_algorithms_fit_on_a_page_or_two():
    no_offender(short(path) for path in in_parts("algorithms") if len(lines_of(path)) > 200)


def test_errors_are_raised_and_not_asserted():
    no_offender(short(path, node) for path in FILES for node in nodes_of(path)
         if isinstance(node, ast.Assert))
