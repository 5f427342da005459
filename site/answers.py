"""The hints and the solution of each exercise, read from the package's source and not imported."""

import ast
import html
from functools import cache
from pathlib import Path

from markup import powers

ROOT = Path(__file__).resolve().parent.parent


@cache
def of_chapter(number):
    """Return {exercise: (hints, solution's source or "")} of a chapter, by names such as "06.1"."""
    folder = ROOT / f"flashlib/course/ch{number}"
    solutions = _functions(folder / "solutions.py")
    found = {}
    for node in ast.walk(ast.parse((folder / "exercises.py").read_text("utf-8"))):
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "exercise":
                given = {word.arg: word.value for word in call.keywords}
                name = ast.literal_eval(call.args[0])
                solution = ast.literal_eval(given["solution"]) if "solution" in given else ""
                hints = ast.literal_eval(given["hints"]) if "hints" in given else ()
                found[name] = (hints, solutions.get(solution, ""))
    return found


def _functions(path):
    if not path.exists():                                   # a student's build has none
        return {}
    text = path.read_text("utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1:node.end_lineno])
    return found


def folds(name, say):
    """Return the Markdown of an exercise's folded hints and solution."""
    hints, solution = of_chapter(name.partition(".")[0])[name]
    out = []
    for n, hint in enumerate(hints, 1):
        parts = html.escape(say(hint), quote=False).split("`")
        parts[::2] = map(powers, parts[::2])
        parts[1::2] = (f"<code>{code}</code>" for code in parts[1::2])
        text = "".join(parts)
        head = say("Hint {{n}}", n=n) if len(hints) > 1 else say("A hint")
        out.append(f'```{{raw}} html\n<details class="fold"><summary>{head}</summary>'
                   f"<p>{text}</p></details>\n```")
    if solution:
        out.append(f':::::::::{{fold}} {say("A solution")}\n\n```python\n{solution}\n```\n\n:::::::::')
    return "::::::::::{container} answers\n" + "\n\n".join(out) + "\n::::::::::"
