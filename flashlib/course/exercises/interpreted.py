"""Run a reader's kernel in Triton's interpreter: here if that is on, else in a process of its own.

Triton reads `TRITON_INTERPRET` when it is imported, and a kernel that goes astray must not take the
reader's session with it: addresses outside the tensors are caught by `interpreter_trace`.
"""

import ast
import functools
import inspect
import json
import os
import secrets
import subprocess
import sys
import tempfile
import textwrap

import numpy as np

from flashlib.course.exercises.core import Wrong
from flashlib.course.notebook.without_triton import why_not

TIMEOUT_S = 120


def refuse_stub(kernel) -> None:
    """Raise NotImplementedError if the function's body does nothing but that; it is not called."""
    if not callable(kernel):
        raise Wrong(f"expected a function, got {type(kernel).__name__}")
    try:
        [function] = ast.parse(_source(kernel)).body
        body = function.body[ast.get_docstring(function) is not None:]
    except (SyntaxError, ValueError, AttributeError, TypeError):
        return                                       # no `def`: whoever runs it will say so
    if all(isinstance(line, ast.Pass)
           or (isinstance(line, ast.Raise) and "NotImplementedError" in ast.dump(line))
           or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)) for line in body):
        raise NotImplementedError


def _source(kernel) -> str:
    """Return the text of a function; raise `Wrong` where Python does not know it."""
    try:
        return textwrap.dedent(inspect.getsource(getattr(kernel, "fn", kernel)))
    except OSError:
        raise Wrong("the kernel's source is not to be found: define it in a cell") from None


def is_on() -> bool:
    """Tell whether Triton was imported in this process as an interpreter."""
    if "triton" not in sys.modules:
        return False
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(tl.sum, InterpretedFunction)


def launch(kernel, grid, tensors, *arguments, **constants):
    """Run a function of a reader as a kernel on NumPy arrays, and return its outputs and its witness.

    `tensors` are (name, array), in the order of the kernel's first arguments; each lies amid NaN.
    """
    import torch
    import triton

    from flashlib.course.notebook.interpreter_trace import poisoned, watch

    made = {name: poisoned(array) for name, array in tensors}
    jitted = triton.jit(getattr(kernel, "fn", kernel))
    with watch(**made) as seen, np.errstate(all="ignore"):  # a GPU does not warn of ∞ either
        try:
            with torch.no_grad():
                jitted[grid](*made.values(), *arguments, **constants)
        except Exception as error:
            cause = error.__cause__ or error
            if isinstance(cause, NotImplementedError) and not str(cause):
                raise NotImplementedError from None  # a stub with something before its last line
            advice = (": a pointer is read with tl.load(X + …), a block folded with tl.max or tl.sum"
                      if "not iterable" in str(cause) else "")
            raise Wrong(f"the kernel raised {type(cause).__name__}: {cause}{advice}") from None
    return {name: tensor.numpy() for name, tensor in made.items()}, seen


def in_interpreter(examine):
    """Decorate the check of a kernel: it runs in the interpreter, here if that is on, or elsewhere."""

    @functools.wraps(examine)
    def check(kernel):
        refuse_stub(kernel)
        return examine(kernel) if is_on() else elsewhere(examine.__module__, examine.__name__, kernel)

    return check


def elsewhere(module: str, check: str, kernel) -> str:
    """Run a check in a new process with the interpreter on; return its praise or raise `Wrong`.

    The verdict comes through a file of its own and with a number that only this call knows: what the
    kernel prints is shown to the reader, and decides nothing.
    """
    if why_not():
        raise Wrong(f"this check needs Triton's interpreter: {why_not()}")
    kernel = getattr(kernel, "fn", kernel)
    nonce = secrets.token_hex(16)
    job = json.dumps({"module": module, "check": check, "name": kernel.__name__,
                      "source": _source(kernel), "nonce": nonce})
    with tempfile.TemporaryFile("w+", encoding="utf-8") as channel:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "flashlib.course.exercises.interpreted", str(channel.fileno())],
                input=job, capture_output=True, text=True, timeout=TIMEOUT_S,
                pass_fds=(channel.fileno(),),
                env={**os.environ, "TRITON_INTERPRET": "1",
                     "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
        except subprocess.TimeoutExpired:
            raise Wrong(f"no result after {TIMEOUT_S} s: does every loop end?") from None
        channel.seek(0)
        verdict = channel.read()
    print(done.stdout, end="")
    if done.returncode:
        raise Wrong(f"the interpreter ended badly: {done.stderr.strip().splitlines()[-1:]}")
    return _praise(verdict, nonce)


def _praise(verdict: str, nonce: str) -> str:
    """Return the message of a verdict that passed; raise `Wrong` for any other, or for none.

    One that is neither right nor wrong is a stub's: NotImplementedError.
    """
    try:
        answer = json.loads(verdict)
        genuine = secrets.compare_digest(answer["nonce"], nonce)
    except (ValueError, TypeError, KeyError):
        genuine = False
    if not genuine:
        raise Wrong("the interpreter ended without a verdict: does the kernel leave Python?")
    if answer["passed"] is None:
        raise NotImplementedError
    if answer["passed"] is not True:
        raise Wrong(answer["message"])
    return answer["message"]


def _main() -> None:
    import importlib
    import linecache

    import triton
    import triton.language as tl

    job = json.loads(sys.stdin.read())
    source = "".join(line for line in job["source"].splitlines(keepends=True)
                     if not line.startswith("@"))
    linecache.cache["<answer>"] = (len(source), None, source.splitlines(keepends=True), "<answer>")
    space = {"triton": triton, "tl": tl, "__name__": "answer"}
    exec(compile(source, "<answer>", "exec"), space)
    examine = getattr(importlib.import_module(job["module"]), job["check"]).__wrapped__
    try:
        message, passed = examine(space[job["name"]]), True
    except Wrong as wrong:
        message, passed = str(wrong), False
    except NotImplementedError:
        message, passed = "", None
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as channel:
        json.dump({"passed": passed, "message": message, "nonce": job["nonce"]}, channel)


if __name__ == "__main__":
    _main()
