"""Time a matmul step by step, and count the bytes that each step moves beside the closed form's.

    python -m flashlib.course.bench.matmul_steps --out assets/measurements --name h200

Square matrices in float16: a thread an element of C, with a warp along a row of C and along a column;
tiles of C through shared memory; cuBLAS, as torch calls it. Each is held against float64 first. The
CUDA kernels are in `matmul_steps.cu`, and `nvcc` compiles them. Where Nsight Compute (`ncu`) may read
hardware counters, bytes and the sectors of the loads stand beside. Notebook 02 shows the result.
"""

import ctypes
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from flashlib.course.bench import harness, profiler
from flashlib.course.bench.harness import device_for, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show
from flashlib.models import traffic

SOURCE = Path(__file__).with_suffix(".cu")
SIZE = 4096
STEPS = {"along_row": "a thread an element of C, a warp along a row of C",
         "along_column": "the same, a warp along a column of C",
         "tiles_16": "tiles of 16 × 16 through shared memory, a thread an element",
         "tiles_32": "tiles of 32 × 32 through shared memory, a thread an element",
         "cublas": "torch.matmul: cuBLAS, on the tensor cores"}
KERNELS = dict(zip(STEPS, ("naive", "naive", "tiled", "tiled", ""), strict=True))
LOADS = {"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load_requests",
         "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "load_sectors"}
COUNTERS = ("dram_read_bytes", "dram_write_bytes", "l2_to_sm_bytes", "sm_to_l2_bytes", *LOADS.values())
TOLERANCE = 1e-3                                            # relative: C is rounded to 11 bits
COMPILE_S = 120


@functools.cache
def compiled(arch):
    """Return the library of the compiled kernels for a GPU such as "90".

    Raises:
        RuntimeError: no nvcc, or it refused.
    """
    tool = shutil.which("nvcc")
    if tool is None:
        raise RuntimeError("CUDA's compiler (nvcc) is not on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "matmul_steps.so"
        done = subprocess.run([tool, "-O3", f"-arch=sm_{arch}", "-shared", "-Xcompiler", "-fPIC", "-o",
                               path, SOURCE], capture_output=True, text=True, timeout=COMPILE_S)
        if done.returncode:
            raise RuntimeError(f"nvcc ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return ctypes.CDLL(str(path))                       # stays loaded without its file


def caller(step, A, B, C):
    """Return a function of no arguments that fills C with A·B in one of `STEPS`."""
    if step == "cublas":
        return lambda: torch.matmul(A, B, out=C)
    library = compiled("".join(map(str, torch.cuda.get_device_capability())))
    number, pointers = list(STEPS).index(step), [ctypes.c_void_p(x.data_ptr()) for x in (A, B, C)]

    def call():
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if code := library.matmul(number, *pointers, A.shape[0], stream):
            raise RuntimeError(f"{step} did not start: CUDA's error {code}")
    return call


def matrices(n):
    """Return A and B, standard normal, and room for C, poisoned, in float16."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    A, B = (torch.randn(n, n, generator=generator, device="cuda").half() for _ in range(2))
    return A, B, torch.full_like(A, float("nan"))


def check(n):
    """Return each step's relative error against float64; raise if one is too large."""
    A, B, C = matrices(n)
    right, errors = A.double() @ B.double(), {}
    for step in STEPS:
        C.fill_(float("nan"))
        caller(step, A, B, C)()
        errors[step] = harness.relative([C], [right])
        if not errors[step] < TOLERANCE:
            raise RuntimeError(f"{step} is wrong here: relative error {errors[step]}")
    return errors


def predicted(step, n):
    """Return the bytes of A and B that the paper machine loads for a step, None for a library."""
    if step == "cublas":
        return None
    edge = {"tiles_16": 16, "tiles_32": 32}.get(step)
    form = traffic.naive_matmul(M=n, N=n, K=n) if edge is None else traffic.tiled_matmul(
        M=n, N=n, K=n, Bm=edge, Bn=edge, Bk=edge)
    return form.hbm_read_bytes


def probe():
    """Run every step once under the profiler."""
    A, B, C = matrices(SIZE)
    for step in STEPS:
        call = caller(step, A, B, C)
        if step == "cublas":
            call()                                          # sets up its workspace
        profiler.profile(call)


def main(argv=None):
    """Check, time, count, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, probe=probe, rounds=5)
    device_for()
    try:
        errors = check(SIZE)
    except RuntimeError as reason:
        sys.exit(f"This measurement stops: {reason}.")
    counters = profiler.by_case(__spec__.name, KERNELS, COUNTERS, LOADS, timeout=240)
    A, B, C = matrices(SIZE)
    times = harness.race({step: caller(step, A, B, C) for step in STEPS}, "cuda", options.rounds)
    rows = [{"impl": step, "rows": SIZE, "cols": SIZE, **harness.spread(times[step], 2 * SIZE**3),
             "relative_error": errors[step], "predicted_bytes": predicted(step, SIZE), **counters[step]}
            for step in STEPS]
    show.table(rows)
    write(options, "matmul_steps", rows, collect(
        options.command, STEPS, dtype="float16", inputs="standard normal", timing=harness.ALTERNATING,
        flops="2 n n n", predicted_bytes="of A and B, loaded by the paper machine", **profiler.NOTES,
        **{column: metric for metric, column in LOADS.items()},
        **harness.copy_ceiling(harness.clock_for("cuda", 300), "cuda")))


if __name__ == "__main__":
    main()
