"""The process that compiles: requests come in as JSON lines, results go out as JSON lines.

It runs without `TRITON_INTERPRET` and needs neither torch nor a GPU. The parent is
`flashlib.lens.compiler`; everything that depends on the version of Triton is in this file.
"""

import base64
import contextlib
import ctypes
import importlib
import importlib.machinery
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path


def specialize(fn, arguments: dict):
    """Return (signature, constants, attributes) as Triton's launcher derives them from a call.

    Arguments are examples: "*bf16" is a pointer, aligned to 16 bytes; "tensordesc<…>" a descriptor; an
    int is 32 bits wide, known to divide by 16 if it does, and a constant if it is 1. Where a kernel
    says `do_not_specialize`, a value stays just a value; the members of a tuple are looked at all the
    same, as Triton's launcher does.
    """
    names = [p.name for p in fn.params]
    unknown = sorted(set(arguments) - set(names))
    missing = [n for n in names if n not in arguments]
    if unknown or missing:
        raise TypeError(f"arguments: {fn.__name__} expects {', '.join(names)}; "
                        f"missing {missing or 'none'}, unknown {unknown or 'none'}")
    constants, attributes, known = {}, {}, [["tt.divisibility", 16]]

    def kind_of(value, path, fixed=False, special=True, align=True):
        """Return an argument's type as Triton writes it; note under `path` what is known beyond that.

        `fixed`: it is a constexpr. `special`: its value may say more than its type. `align`: so may its
        divisibility by 16.
        """
        if isinstance(value, list | tuple) and not fixed:
            return tuple(kind_of(x, (*path, n)) for n, x in enumerate(value))
        if fixed or value is None or (special and type(value) is int and value == 1):
            constants[path] = tuple(value) if isinstance(value, list) else value     # from JSON
            return "constexpr"
        if isinstance(value, str):
            if value.startswith("*") and align:
                attributes[path] = known
            return value
        if isinstance(value, bool):
            return "i1"
        if isinstance(value, int):
            if value % 16 == 0 and align:
                attributes[path] = known
            return "i32" if -2**31 <= value < 2**31 else "i64"
        return "fp32"

    signature = {}
    for i, p in enumerate(fn.params):
        special = not p.do_not_specialize
        signature[p.name] = kind_of(arguments[p.name], (i,), p.is_constexpr, special,
                                    special and not p.do_not_specialize_on_alignment)
    return signature, constants, attributes


def source_for(fn, arguments: dict):
    """Return what Triton compiles: for Gluon, descriptors name the layout of their tile as well."""
    signature, constants, attributes = specialize(fn, arguments)
    if not (hasattr(fn, "is_gluon") and fn.is_gluon()):
        from triton.compiler import ASTSource

        return ASTSource(fn, signature, constants, attributes)
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from flashlib.kernels.gluon.parts import layout_of

    elements = {"fp16": gl.float16, "bf16": gl.bfloat16, "fp32": gl.float32, "fp8e4nv": gl.float8e4nv,
                "fp8e5": gl.float8e5}
    for name, kind in signature.items():
        if tile := re.fullmatch(r"tensordesc<(\w+)\[([\d, ]+)\]>", str(kind)):
            block = [int(size) for size in tile[2].split(",")]
            layout = layout_of(block, elements[tile[1]])
            signature[name] = f"tensordesc<{tile[1]}{block},{layout!r}>"
    return GluonASTSource(fn, signature, constants, attributes)


def run_ptxas(ptx: str, arch: int) -> str:
    """Return what `ptxas -v` says about a kernel, called as Triton calls it."""
    from triton.backends.nvidia import compiler as nvidia

    tool, flags = nvidia.get_ptxas(arch).path, []
    if "regAllocOptLevel" in Path(nvidia.__file__).read_text(encoding="utf-8"):
        flags = ["--regAllocOptLevel=2"]                    # Triton 3.7 works around a ptxas bug
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        target = nvidia.sm_arch_from_capability(arch)
        done = subprocess.run([tool, "-lineinfo", "-v", *flags, f"--gpu-name={target}", str(source),
                               "-o", os.devnull], capture_output=True, text=True)
    return done.stdout + done.stderr


def load(where: dict, folder: str):
    """Return the kernel: an attribute of a module, or source text that came along."""
    if "source" in where:
        path = Path(folder, f"{where['attribute']}.py")
        path.write_text(where["source"], encoding="utf-8")
        module = types.ModuleType(f"_lens_{where['attribute']}")
        importlib.machinery.SourceFileLoader(module.__name__, str(path)).exec_module(module)
    else:
        module = importlib.import_module(where["module"])
    return getattr(module, where["attribute"])


def build(job: dict, folder: str) -> dict:
    """Compile one request and return the text of every stage, the cubin and ptxas' own words."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.runtime.cache import get_cache_manager

    fn = load(job["kernel"], folder)
    source = source_for(fn, job["arguments"])
    knobs.nvidia.dump_ptxas_log = True
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        kernel = triton.compile(source, target=GPUTarget("cuda", job["arch"], 32),
                                options=job["options"])
    # ptxas reports only when it runs, so its report is kept in Triton's cache beside the binary.
    cache, name = get_cache_manager(kernel.hash), f"{kernel.metadata.name[:100]}.ptxas.txt"
    log = said.getvalue()
    if "ptxas info" not in log:
        kept = cache.get_file(name)
        log = Path(kept).read_text(encoding="utf-8") if kept else run_ptxas(kernel.asm["ptx"],
                                                                           job["arch"])
    cache.put(log, name, binary=False)
    return {**describe(kernel), "log": log, "sources": sources_of(kernel.asm["ptx"], job["kernel"])}


def describe(kernel) -> dict:
    """Return what a report needs of a compiled kernel, alive or from the cache."""
    import triton

    meta = kernel.metadata
    return {
        "name": meta.name, "arch": meta.target.arch, "num_warps": meta.num_warps,
        "num_stages": meta.num_stages, "shared_bytes": meta.shared,
        "tensor_memory_columns": getattr(meta, "tmem_size", 0) or 0, "hash": meta.hash,
        "triton": triton.__version__,
        **{stage: kernel.asm[stage] for stage in ("ttgir", "ptx")},
        "ttir": kernel.asm["ttir" if "ttir" in kernel.asm else "source"],     # Gluon has no TTIR
        "cubin": base64.b64encode(kernel.asm["cubin"]).decode(),
    }


def sources_of(ptx: str, where: dict | None = None) -> dict[str, str]:
    """Return the Python files that debug info names, but not Triton's own.

    A kernel that came as text lay in a file that is gone when its binary comes from Triton's cache.
    """
    where = where or {}
    import triton

    own, found = str(Path(triton.__file__).parent), {}
    for folder, name in re.findall(r'\.file\s+\d+\s+"([^"]*)"(?:\s+"([^"]*)")?', ptx):
        path = Path(folder, name) if name else Path(folder)
        if "source" in where and path.name == f"{where['attribute']}.py":
            found[str(path)] = where["source"]
        elif not str(path).startswith(own) and path.is_file():
            found[str(path)] = path.read_text(encoding="utf-8")
    return found


def explain(error: BaseException) -> dict:
    """Return an error as a short line and the whole story."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    words = re.compile(r"error\b|fatal|expected|must|not support", re.IGNORECASE)
    telling = [line for line in lines if words.search(line)]
    short = telling[0] if telling else lines[-1] if lines else type(cause).__name__
    full = "".join(traceback.format_exception(error))
    return {"error": type(cause).__name__, "short": short[:300], "full": full}


def main() -> None:
    """Answer requests until the input ends; whatever else is printed goes to stderr.

    When the parent ends while a kernel is being compiled, the kernel of Linux ends this process.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)     # PR_SET_PDEATHSIG
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            try:
                answer = build(json.loads(line), folder)
            except Exception as error:
                answer = explain(error)
            out.write(json.dumps(answer) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
