"""Check one submitted notebook's answers, in a process of its own; `grade.py` starts it.

It reads a job from stdin and writes one line of JSON per event. The checks are imported before
anything of the submission runs; each gets the submitted object itself, so that what a notebook
prints, or calls `check_...`, counts for nothing. While the submission runs, `grade_guard` refuses what
only a fake needs; after a pass code and data must be what they were, and the check must still reject a
stub. That stops fakes, not attackers: Python code can undo any of this in the process that it runs in,
so have a look at what passes.
"""

import ast
import importlib
import json
import linecache
import os
import signal
import sys
from pathlib import Path

MEMORY_BYTES = 8 * 2**30
FILE_BYTES = 2**28
MESSAGE = 2000                                        # characters of an error that reach the table


def main():
    job = json.loads(sys.stdin.read())
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)

    def tell(**event):
        channel.write(json.dumps({**event, "token": job["token"]}) + "\n")
        channel.flush()

    _limit()
    sys.path[:] = [path for path in sys.path if path not in ("", job["root"])]
    sys.path[:0] = [job["sandbox"], job["scripts"]]
    import grade_guard
    import submission

    for chapter in importlib.import_module("flashlib.course.notebook.chapters").CHAPTERS:
        sys.modules[f"flashlib.course.ch{chapter.number}.solutions"] = None
    core = importlib.import_module("flashlib.course.exercises.core")
    importlib.import_module(f"flashlib.course.ch{job['chapter']}.exercises")
    if "flashlib.course.exercises.interpreted" in sys.modules:
        _start_the_interpreter()
    core._NOT_THE_READERS += (job["scripts"] + os.sep,)      # no line of the guard's is quoted
    checks = {e.check.__name__: name for name, e in core.REGISTRY.items()}
    try:
        original = submission.Notebook(Path(job["original"]))
        handed_in = submission.Notebook(Path(job["submission"]))
    except submission.NoAnswer as reason:
        tell(error=str(reason))
        return
    tasks = submission.tasks(original, checks)
    check_of = {name: core.REGISTRY[name].check for name in job["exercises"]}
    examine, still_strict, fingerprint = _examine, _still_strict, grade_guard.fingerprint
    before = fingerprint()
    guard = grade_guard.Guard(hidden=job["hidden"], withheld=job["withheld"],
                              shown=[job["sandbox"], job["scripts"]], home=os.getcwd())
    guard.start()
    for name, check in check_of.items():
        tell(start=name)
        try:
            plan = submission.answer(tasks[name], handed_in, original)
            passed, message = examine(check, *plan, handed_in, core.Verdict)
            clean, remark = still_strict(check, before, fingerprint(), guard, passed)
            if passed and not clean:
                passed, message = False, remark
        except submission.NoAnswer as reason:
            passed, message, clean = False, str(reason), True
        except BaseException as error:                # SystemExit and KeyboardInterrupt, too
            passed, message = False, f"your code raised {type(error).__name__}: {error}"
            clean, _ = still_strict(check, before, fingerprint(), guard, False)
        tell(exercise=name, passed=passed, message=str(message)[:MESSAGE])
        if not clean:                                 # the others are asked in a new process
            return


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


def _still_strict(check, before, now, guard, passed):
    """Return whether a pass would count, and if not, why; the check is tried again after a pass."""
    if guard.refusal:
        return False, f"the answer {guard.refusal}, so that its pass does not count"
    for place, value in before.items():
        if now.get(place) != value:
            return False, f"the answer replaced or changed {place}, so that its pass does not count"

    def stub(*arguments, **options):
        raise NotImplementedError

    if passed and check(stub):
        return False, "after this answer the check accepts anything, so that its pass does not count"
    return True, ""


def _start_the_interpreter():
    """Import Triton, as an interpreter, so that the checks of kernels need no process of their own."""
    from flashlib.course.notebook.without_triton import why_not

    if not why_not():
        import triton  # noqa: F401


def _limit():
    """Bound memory and files, where the system can, and end with the process that watches this one."""
    try:
        import resource

        for what, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES),
                           (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(what, (most, most))
    except (ImportError, ValueError, OSError):        # not every system has such limits
        pass
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)       # PR_SET_PDEATHSIG


if __name__ == "__main__":
    main()
