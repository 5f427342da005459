"""Check one submitted notebook's answers, in a process of its own; `grade.py` starts it.

It reads a job from stdin and writes one line of JSON per event. The checks are imported before
anything of the submission runs; each gets the submitted object itself, so that what a notebook
prints, or calls `check_...`, counts for nothing. After a pass the machinery must be what it was,
and must still reject a stub. That stops fakes, not attackers: Python code can undo any of this in
the process that it runs in, so have a look at what passes.
"""

import ast
import importlib
import json
import linecache
import os
import sys
import types
from pathlib import Path

MEMORY_BYTES = 8 * 2**30


def main():
    job = json.loads(sys.stdin.read())
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)

    def tell(**event):
        channel.write(json.dumps({**event, "token": job["token"]}) + "\n")
        channel.flush()

    _limit_memory()
    sys.path[:] = [path for path in sys.path if path not in ("", job["root"])]
    sys.path[:0] = [job["sandbox"], job["scripts"]]
    import submission

    for chapter in importlib.import_module("flashlib.course.notebook.chapters").CHAPTERS:
        sys.modules[f"flashlib.course.ch{chapter.number}.solutions"] = None
    core = importlib.import_module("flashlib.course.exercises.core")
    importlib.import_module(f"flashlib.course.ch{job['chapter']}.exercises")
    checks = {e.check.__name__: name for name, e in core.REGISTRY.items()}
    try:
        original = submission.Notebook(Path(job["original"]))
        handed_in = submission.Notebook(Path(job["submission"]))
    except submission.NoAnswer as reason:
        tell(error=str(reason))
        return
    tasks = submission.tasks(original, checks)
    for name in job["exercises"]:
        tell(start=name)
        check = core.REGISTRY[name].check
        try:
            plan = submission.answer(tasks[name], handed_in, original)
            before = _machinery()
            passed, message = _examine(check, *plan, handed_in, core.Verdict)
            if passed:
                passed, message = _still_strict(check, before, message)
        except submission.NoAnswer as reason:
            passed, message = False, str(reason)
        except BaseException as error:                # SystemExit and KeyboardInterrupt, too
            passed, message = False, f"your code raised {type(error).__name__}: {error}"
        tell(exercise=name, passed=passed, message=message)


def _examine(check, statements, chosen, expression, notebook, verdict_type):
    """Run the statements and return the registered check's verdict on the expression's value."""
    space = {"__name__": "submission"}
    for statement in statements:
        file = f"<cell {statement.cell}>"
        if statement in notebook.statements:
            source = notebook.sources[statement.cell]
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        module = ast.Module([statement.node], type_ignores=[])
        try:
            exec(compile(module, file, "exec"), space)
        except Exception:
            if statement is chosen:                   # of the others a NameError tells
                raise
    answer = eval(compile(ast.Expression(expression), "<answer>", "eval"), space)
    verdict = check(answer)
    return type(verdict) is verdict_type and verdict.passed is True, verdict.message


def _machinery():
    """What a pass rests on: the functions and classes of flashlib and NumPy, by where they stand."""
    parts = {}
    for name, module in list(sys.modules.items()):
        if module is None or not (name == "numpy" or name.split(".")[0] == "flashlib"):
            continue
        for key, value in list(vars(module).items()):
            if callable(value) or isinstance(value, types.ModuleType):
                parts[f"{name}.{key}"] = value
            if isinstance(value, type) and name != "numpy":
                parts.update({f"{name}.{key}.{k}": v for k, v in vars(value).items() if callable(v)
                              or isinstance(v, property)})
    return parts


def _still_strict(check, before, message):
    now = _machinery()
    for place, value in before.items():
        if now.get(place) is not value:
            return False, f"the answer replaced {place}, so that its pass does not count"

    def stub(*arguments, **options):
        raise NotImplementedError

    if check(stub):
        return False, "after this answer the check accepts anything, so that its pass does not count"
    return True, message


def _limit_memory():
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (ImportError, ValueError, OSError):        # not every system has such a limit
        pass


if __name__ == "__main__":
    main()
