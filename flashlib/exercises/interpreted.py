"""Run a reader's kernel in Triton's interpreter: here if that is on, else in a process of its own.

Triton reads `TRITON_INTERPRET` when it is imported, and a kernel that goes astray must not take the
reader's session with it: addresses outside the tensors are caught by `flashlib.kernels.watch`.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap

from flashlib.exercises.core import Wrong
from flashlib.kernels.presence import missing

TIMEOUT_S = 120


def refuse_stub(kernel) -> None:
    """Raise NotImplementedError if the function's body does nothing but that."""
    if not callable(kernel):
        raise Wrong(f"expected a function, got {type(kernel).__name__}")
    kernel = getattr(kernel, "fn", kernel)
    try:
        kernel(*[None] * len(inspect.signature(kernel).parameters))
    except NotImplementedError:
        raise
    except Exception:                                # a real body needs the interpreter
        return


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

    from flashlib.kernels.watch import poisoned, watch

    made = {name: poisoned(array) for name, array in tensors}
    jitted = triton.jit(getattr(kernel, "fn", kernel))
    with watch(**made) as seen:
        try:
            with torch.no_grad():
                jitted[grid](*made.values(), *arguments, **constants)
        except Exception as error:
            cause = error.__cause__ or error
            raise Wrong(f"the kernel raised {type(cause).__name__}: {cause}") from None
    return {name: tensor.numpy() for name, tensor in made.items()}, seen


def elsewhere(module: str, check: str, kernel) -> str:
    """Run a check in a new process with the interpreter on; return its praise or raise `Wrong`."""
    if missing():
        raise Wrong(f"this check needs Triton's interpreter: {missing()}")
    kernel = getattr(kernel, "fn", kernel)
    try:
        source = textwrap.dedent(inspect.getsource(kernel))
    except OSError:
        raise Wrong("the kernel's source is not to be found: define it in a cell") from None
    job = json.dumps({"module": module, "check": check, "name": kernel.__name__, "source": source})
    done = subprocess.run([sys.executable, "-m", "flashlib.exercises.interpreted"], input=job,
                          capture_output=True, text=True, timeout=TIMEOUT_S,
                          env={**os.environ, "TRITON_INTERPRET": "1",
                               "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
    if done.returncode:
        raise Wrong(f"the interpreter ended badly: {done.stderr.strip().splitlines()[-1:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if not answer["passed"]:
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
    print(json.dumps({"passed": passed, "message": message}))


if __name__ == "__main__":
    _main()
