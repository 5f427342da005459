"""Compile a kernel for a GPU that need not be there, in a process of its own."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect as _inspect
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterable
from pathlib import Path

from flashlib.lens import cache
from flashlib.lens.report import Compiled
from flashlib.lens.signatures import Call, Case, known
from flashlib.lens.targets import arch_of

# What marks a function, or a class of its arguments, that Triton's front end reads.
_DEVICE_CODE = re.compile(rb"^[ \t]*@(\w+\.)*(jit|aggregate|constexpr_function)\b", re.MULTILINE)
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


def request(kernel, *, arch="sm_90", arguments: dict | None = None, num_warps: int | None = None,
            num_stages: int | None = None, **choices) -> Case:
    """Describe a compilation without running it; arguments as in `compile`."""
    arch = arch_of(arch)
    launch = {k: v for k, v in (("num_warps", num_warps), ("num_stages", num_stages)) if v is not None}
    name = kernel if isinstance(kernel, str) else getattr(kernel, "__name__", None)
    if arguments is None:
        if not isinstance(name, str):
            raise TypeError(f"kernel: expected a name or a kernel, got {type(kernel).__name__}")
        return known(name, arch, {**choices, **launch})
    if choices:
        raise ValueError(f"{next(iter(choices))}: with arguments= only num_warps and num_stages can be"
                         f" chosen, got {', '.join(choices)}")
    for key, value in arguments.items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise TypeError(f"arguments[{key!r}]: expected a number, None, a string such as '*fp32', or"
                            f" the value of a constexpr, got {type(value).__name__}")
    label = ", ".join(f"{k}={v}" for k, v in arguments.items() if k.isupper())
    return Case(name, arch, _where(kernel), Call(dict(arguments), **launch, label=label), dict(choices))


def compile(kernel, *, arch="sm_90", timeout_s: float | None = None, **choices) -> Compiled:
    """Compile a kernel for a generation of GPU and report what came of it.

    Args:
        kernel: a name from `kernels()`, or a kernel: one of ours, or with `arguments` any other, also
            one that a notebook defines.
        arch: one of `ARCHS` ("sm_75", "sm_80", …, "sm_120"), or a GPU: "A100", "H100", "B200".
        timeout_s: seconds after which the compiler is stopped; None for `TIMEOUT_S`.
        choices: what the kernel's builder takes (`flashlib.lens.signatures`). For attention: dtype
            ("bfloat16"), head_dim (128), causal (False), BLOCK_M, BLOCK_N, num_warps, num_stages or
            config (the table's), Nq, Nk (4096), heads, kv_heads, USE_TMA. For a kernel of your own:
            arguments, an example of each ("*fp32" for a pointer, numbers as they are), num_warps,
            num_stages.
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
    failed = {}
    if todo:
        waiting: queue.SimpleQueue = queue.SimpleQueue()
        for case in todo:
            waiting.put(case)
        running: dict[subprocess.Popen, None] = {}
        threads = [threading.Thread(target=_serve, args=(waiting, failed, running, timeout_s),
                                    daemon=True) for _ in range(max(1, min(workers, len(todo))))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:                                            # after an interrupt nobody waits for these
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            for worker in list(running):
                _end(worker)
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


def _serve(waiting: queue.SimpleQueue, failed: dict, running: dict, timeout_s: float) -> None:
    """Keep one compiling process busy until nothing waits; `running` holds it as long as it lives."""
    worker, too_late = None, []
    while True:
        try:
            case = waiting.get_nowait()
        except queue.Empty:
            break
        if worker is None:
            running[worker := _start()] = None
        limit = threading.Timer(timeout_s, _end, [worker, too_late])
        limit.start()
        try:
            worker.stdin.write(json.dumps(case.job) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        limit.cancel()
        if line:
            answer = json.loads(line)
        else:                                               # the compiler took the process down
            worker.wait()
            worker.said.seek(0)
            words = worker.said.read()
            last = (words.strip().splitlines() or ["no message"])[-1]
            short = f"the compiler crashed (exit status {worker.returncode}): {last[:200]}"
            if worker in too_late:
                short = f"no result after {timeout_s:g} s; `timeout_s=` sets another limit"
            answer = {"short": short, "full": f"{short}\n{words}"}
            worker.said.close()
            del running[worker]
            worker = None
        if "full" in answer:
            failed[case.key] = CompileError(str(case), answer["short"], answer["full"])
        else:
            _SEEN[case.key] = Compiled.from_worker(answer, str(case))
    if worker is not None:
        worker.communicate()
        worker.said.close()
        del running[worker]


def _start() -> subprocess.Popen:
    """Start a compiling process: the same Python, the same flashlib, no interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    folder = _cache_folder(Path(__file__).resolve().parents[1] / "kernels", env)
    env["TRITON_CACHE_DIR"] = str(cache.usable(folder))
    here = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [env.get("PYTHONPATH")])])
    said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
    worker = subprocess.Popen([sys.executable, "-m", "flashlib.lens.worker"], env=env, text=True,
                              encoding="utf-8", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=said, process_group=0)
    worker.said = said
    return worker


def _end(worker: subprocess.Popen, ended: list | None = None) -> None:
    """Kill a compiling process and the assembler that it may have started; note it in a list."""
    if ended is not None:
        ended.append(worker)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)


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
