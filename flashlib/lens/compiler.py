"""Compile a kernel for a GPU that need not be there, in a process of its own."""

import contextlib
import hashlib
import importlib.util
import inspect as _inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, cast

from flashlib.lens import cache
from flashlib.lens.report import Compiled
from flashlib.lens.signatures import Call, Case, known
from flashlib.lens.targets import arch_of

# What marks a function, or a class of its arguments, that Triton's front end reads.
_DEVICE_CODE = re.compile(rb"^[ \t]*@(\w+\.)*(jit|aggregate|fields|constexpr_function)\b", re.MULTILINE)
TIMEOUT_S = 600                                             # for one kernel, unless timeout_s says else
# Compiled in this process, by what the compiler was told.
_SEEN: dict[str, Compiled] = {}


class CompileError(RuntimeError):
    """The compiler refused a kernel; `full_text` is all that it said, `case` what was asked."""

    def __init__(self, case: str, short: str, full_text: str):
        super().__init__(f"{case} does not compile: {short}")
        self.case, self.full_text = case, full_text


def why_not() -> str | None:
    """Return None where the lens works, else the reason and the remedy."""
    if importlib.util.find_spec("triton") is None:
        return (f"the compiler lens needs Triton, which is not installed here ({sys.platform}). On"
                " Linux `pip install triton` suffices, without a GPU; elsewhere read the outputs that"
                " the notebook keeps, or open it on a Linux machine")
    return None


def request(kernel, *, arch="sm_90", arguments: dict | None = None, **choices) -> Case:
    """Describe a compilation without running it; arguments as in `compile`."""
    arch = arch_of(arch)
    name = kernel if isinstance(kernel, str) else getattr(kernel, "__name__", None)
    if arguments is None:
        if not isinstance(name, str):
            raise TypeError(f"kernel: expected a name or a kernel, got {type(kernel).__name__}")
        return known(name, arch, choices)
    if wrong := [choice for choice in choices if choice not in ("num_warps", "num_stages")]:
        raise ValueError(f"{wrong[0]}: with arguments= only num_warps and num_stages can be chosen, got"
                         f" {', '.join(wrong)}")
    for key, value in arguments.items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise TypeError(f"arguments[{key!r}]: expected a number, None, a string such as '*fp32', or"
                            f" the value of a constexpr, got {type(value).__name__}")
    label = ", ".join(f"{k}={v}" for k, v in arguments.items() if k.isupper())
    return Case(str(name), arch, _where(kernel), Call(dict(arguments), label=label, **choices), {})


def compile(kernel, *, arch="sm_90", timeout_s: float | None = None, **choices) -> Compiled:
    """Compile a kernel for a generation of GPU and report what came of it.

    Args:
        kernel: a name from `kernels()`, or a kernel: one of ours, or with `arguments` any other, also
            one that a notebook defines.
        arch: one of `ARCHS` ("sm_75", "sm_80", …, "sm_120"), or a GPU: "A100", "H100", "B200".
        timeout_s: seconds after which the compiler is stopped; None for `TIMEOUT_S`.
        choices: what the kernel's builder takes (`flashlib.lens.signatures`). For attention: dtype
            ("bfloat16"), head_dim (128), causal (False), BLOCK_M, BLOCK_N, num_warps, num_stages or
            config (the table's), Nq, Nk (4096), heads, kv_heads. For a kernel of your own: arguments,
            an example of each ("*fp32" for a pointer, numbers as they are), num_warps, num_stages.
    Returns:
        Compiled: stages as text, registers, spills, shared memory, matrix instructions, occupancy.
    Raises:
        NotImplementedError: no Triton here.  ValueError: an unknown kernel, arch or choice.
        CompileError: the compiler's own reason, `full_text` has all of it; or it took too long.

    A kernel takes about two seconds the first time, and less from Triton's cache on disk. Too much
    shared memory still compiles: see `Compiled.fits`.
    """
    return compile_many([request(kernel, arch=arch, **choices)], workers=1, timeout_s=timeout_s)[0]


def compile_many(cases: Iterable[Case], *, workers: int = 2, errors: str = "raise",
                 timeout_s: float | None = None) -> list:
    """Compile several requests, `workers` at a time, and return the reports in their order.

    With errors="return" a kernel that does not compile, or not within `timeout_s` seconds, gives its
    CompileError in the list. An interrupt (Ctrl-C) ends the compilers.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= threading.TIMEOUT_MAX:
        raise ValueError(f"timeout_s: expected a number of seconds above 0, got {timeout_s!r}")
    cases = list(cases)
    if errors not in ("raise", "return"):
        raise ValueError(f"errors: expected 'raise' or 'return', got {errors!r}")
    if (reason := why_not()) is not None:
        raise NotImplementedError(reason)
    todo = list({case.key: case for case in cases if case.key not in _SEEN}.values())
    failed: dict[str, CompileError] = {}
    running: list[_Compiler] = []
    threads = [threading.Thread(target=_serve, args=(todo, failed, running, timeout_s), daemon=True)
               for _ in range(min(max(1, workers), len(todo)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:                                                # after an interrupt nobody waits for these
        todo.clear()
        for compiler in list(running):
            compiler.end()
    results = [failed[c.key] if c.key in failed else _SEEN[c.key] for c in cases]
    if errors == "raise":
        for result in results:
            if isinstance(result, CompileError):
                raise result
    return results


def inspect(kernel, *, label: str = "") -> Compiled:
    """Return the report of a kernel that Triton compiled in this process, such as one just timed.

    `kernel` is what `fn[grid](...)` or `fn.warmup(...)` returns. ptxas runs again on its PTX, with the
    same flags, to say registers and spills; SASS is that of the very binary.
    """
    from flashlib.lens import worker

    result = worker.describe(kernel)
    result |= {"log": worker.run_ptxas(result["ptx"], result["arch"]),
               "sources": worker.sources_of(result["ptx"])}
    return Compiled.from_worker(result, label or result["name"])


class _Compiler:
    """A compiling process: the same Python, the same flashlib, without Triton's interpreter."""

    def __init__(self):
        env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        folder = _cache_folder(Path(__file__).resolve().parents[1] / "kernels", env)
        env["TRITON_CACHE_DIR"] = str(cache.usable(folder))
        here = str(Path(__file__).resolve().parents[2])
        env["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [env.get("PYTHONPATH")])])
        # What it says beside its answers.
        self.said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flashlib.lens.worker"], env=env, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, process_group=0)
        self.too_late = False

    def answer(self, case: Case, timeout_s: float) -> dict | None:
        """Return what it makes of a case, or None if it has ended, of itself or for taking too long."""
        requests, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        limit = threading.Timer(timeout_s, self.end, [True])
        limit.start()
        try:
            requests.write(json.dumps(case.job) + "\n")
            requests.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        limit.cancel()
        return json.loads(line) if line else None

    def finish(self, timeout_s: float) -> dict:
        """Wait for its end and return why it has ended, as the answer to the case that it had."""
        self.process.communicate()
        self.said.seek(0)
        words = self.said.read()
        last = (words.strip().splitlines() or ["no message"])[-1]
        short = f"the compiler crashed (exit status {self.process.returncode}): {last[:200]}"
        if self.too_late:
            short = f"no result after {timeout_s:g} s; `timeout_s=` sets another limit"
        self.said.close()
        return {"short": short, "full": f"{short}\n{words}"}

    def end(self, too_late: bool = False) -> None:
        """Kill the process and the assembler that it may have started."""
        self.too_late = too_late
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _serve(todo: list[Case], failed: dict, running: list[_Compiler], timeout_s: float) -> None:
    """Keep one compiling process busy until nothing is left; `running` holds it as long as it lives."""
    compiler = None
    while True:
        try:
            case = todo.pop(0)
        except IndexError:                                  # other threads took the last one
            break
        if compiler is None:
            running.append(compiler := _Compiler())
        answer = compiler.answer(case, timeout_s)
        if answer is None:
            answer = compiler.finish(timeout_s)
            running.remove(compiler)
            compiler = None
        if "full" in answer:
            failed[case.key] = CompileError(str(case), answer["short"], answer["full"])
        else:
            _SEEN[case.key] = Compiled.from_worker(answer, str(case))
    if compiler is not None:
        compiler.finish(timeout_s)
        running.remove(compiler)


def _cache_folder(kernels: Path, env: dict) -> Path:
    """Return the part of Triton's cache that belongs to the kernels as they stand where they stand.

    Triton's key holds the text of a function and not its place, in the file and on the disk: after an
    edit further up, a kernel from the cache would name lines that have moved. Only files with device
    code have such lines, so an edit of another file costs no compilation.
    """
    files = {path: path.read_bytes() for path in sorted(kernels.rglob("*.py"))}
    text = b"".join(str(path).encode() + b"\0" + source + b"\0"
                    for path, source in files.items() if _DEVICE_CODE.search(source))
    return cache.root(env) / f"flashlib-{hashlib.sha256(text).hexdigest()[:16]}"


def _where(kernel) -> dict:
    """Return how the compiling process finds a kernel: by import, or as source text from a notebook."""
    if isinstance(kernel, str):
        module, _, attribute = kernel.rpartition(":")
        if not module:
            raise ValueError(f"kernel: expected 'module:name' or a kernel, got {kernel!r}")
        return {"module": module, "attribute": attribute}
    fn = getattr(kernel, "fn", None)
    if not callable(fn):
        raise TypeError("kernel: expected a function under @triton.jit, or 'module:name', got"
                        f" {type(kernel).__name__}")
    spec = None if fn.__module__ == "__main__" else importlib.util.find_spec(fn.__module__)
    if spec is not None and "." not in fn.__qualname__:
        return {"module": fn.__module__, "attribute": fn.__name__}
    return {"attribute": fn.__name__, "source": "import triton\nimport triton.language as tl\n"
            + "".join(_sources(fn, {}).values())}


def _sources(fn, found: dict[str, str]) -> dict[str, str]:
    """Return a kernel's source, after that of the kernels and constants that it names."""
    found = dict(found)
    for name in fn.__code__.co_names:
        value = fn.__globals__.get(name)
        inner = getattr(value, "fn", None)
        if name in found or value is None or value is fn:
            continue
        if callable(inner) and getattr(inner, "__module__", None) == fn.__module__ and inner is not fn:
            found = _sources(inner, found)
        elif type(value).__name__ == "constexpr":
            found[name] = f"\n\n{name} = tl.constexpr({value.value!r})\n"
    text = textwrap.dedent(_inspect.getsource(fn))
    found[fn.__name__] = f"\n\n{text}"
    return found
