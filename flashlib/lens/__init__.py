"""The compiler lens: what becomes of a kernel on a GPU that is not there.

`lens.compile(...)` runs Triton's compiler, and ptxas behind it, for any generation of GPU on any Linux
machine, in a process of its own, so that a notebook under Triton's interpreter can use it. The report
holds the text of every stage (TTIR, TTGIR, PTX, SASS), registers, spills, shared memory, the matrix
instructions, loads by width, and from these how many programs share an SM.

    import flashlib.lens as lens
    report = lens.compile("flash_fwd_kernel", arch="H100", dtype="bfloat16", head_dim=128)
    print(report)
    report.side_by_side("tl.dot(q")

Taught in notebook 09. Importing this module imports neither torch nor Triton.
"""

from flashlib.lazy import attach

_HOMES = {
    "compile": "compiler", "compile_many": "compiler", "request": "compiler", "inspect": "compiler",
    "CompileError": "compiler", "why_not": "compiler", "defaults": "signatures",
    "kernels": "signatures", "Case": "signatures", "Compiled": "report", "Occupancy": "report",
    "ARCHS": "targets",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)
