"""What the tests of the Gluon kernels' code share: names, sizes, one compilation."""

import flashlib.lens as lens
from flashlib.lens.assembly import matrix_in_ptx
from tests.lens.toolchain import WORKERS

HOPPER, PIPELINED = "flash_fwd_hopper_kernel", "flash_fwd_pipelined_kernel"
FP8 = "flash_fwd_fp8_kernel"
RAGGED = 4000                                               # keys, divided by no BLOCK_N of a table
WHOLE = 4096
HEAD_DIMS = {"bfloat16": (32, 64, 128, 256), "float16": (32, 64, 128, 256),
             "float8_e4m3": (64, 128, 256)}


def compile_one(kernel=HOPPER, **choices):
    """Compile at d = 128, by default for so few keys that two warpgroups have tiles of 128 × 128."""
    return lens.compile(kernel, arch="H200", head_dim=128, **{"Nk": 1024} | choices)


def compile_each(kernel, calls):
    """Compile a kernel for each of these choices: one compiling process starts for all of them."""
    cases = [lens.request(kernel, arch="H200", **choices) for choices in calls]
    return lens.compile_many(cases, workers=WORKERS)


def shapes(report):
    """Return the shapes of the matrix instructions in PTX."""
    return {word for name in matrix_in_ptx(report.ptx) for word in name.split()
            if word.startswith("m64")}
