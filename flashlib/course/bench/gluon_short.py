"""Check notebook 12's teaching kernels on a Hopper GPU, and time their attention beside the library's.

    python -m flashlib.course.bench.gluon_short --out assets/measurements --name h200

A kernel that waits for what never comes would hold the GPU for ever: so both parts run in processes of
their own, which are ended after `LIMIT_S`. Notebook 12 shows the result.
"""

import sys

from flashlib.course.bench import gluon_ablation, harness
from flashlib.course.bench.harness import case_of, only_on_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

SHAPES, LIMIT_S = [(4, 16, 4096, 128), (4, 32, 4096, 64)], 120          # (B, H, N, d)
IMPLS = {"impl_teaching": "flashlib.course.ch12.kernels.attention", "impl_ours": "flash_attention"}


def check_tiny():
    """Hold the three small kernels against torch."""
    from flashlib.course.ch12 import kernels as ch12

    x, k = (torch.randn(n, 128, device="cuda").bfloat16() for n in (64 * 32, 128))
    y, z, S = x.clone().zero_(), x.clone().zero_(), torch.zeros(64, 128, device="cuda")
    ch12.copy_kernel[(32,)](ch12.described(x, 64), ch12.described(y, 64))
    ch12.ring_kernel[(1,)](ch12.described(x, 64), ch12.described(z, 64), 32, maxnreg=ch12.REGISTERS)
    ch12.matmul_kernel[(1,)](ch12.described(x, 64), ch12.described(k, 128), S)
    for found, expected in ((y, x), (z, x), (S, x[:64].float() @ k.float().T)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def measure(options):
    """Check, time, print and write the CSV file; the two implementations alternate."""
    from flashlib import flash_attention
    from flashlib.course.ch12.kernels import attention

    rows = []
    for shape in SHAPES:
        q, k, v, _ = harness.inputs(shape, "cuda", "bfloat16")
        found = {}
        for impl, run in (("teaching", attention), ("ours", flash_attention)):
            last = (x[-1:] for x in (run(q, k, v), q, k, v))
            error = harness.checked(*last, False, gluon_ablation.TOLERANCE)
            found[impl] = (lambda run=run, qkv=(q, k, v): run(*qkv)), error
        for impl, times in harness.raced(found, shape, False, options.rounds, 60).items():
            rows.append({**case_of(shape, impl=impl, mode="forward", causal=0), **times,
                         "relative_error": found[impl][1]})
    show.table(rows)
    write(options, "gluon_short", rows, collect(
        options.command, dtype="bfloat16", inputs="standard normal", timing=harness.ALTERNATING,
        flops="4 B H N N d forward", **IMPLS))


def main(argv=None):
    """Run both parts, each in a process of its own."""
    options = options_for(__spec__, __doc__, argv, rounds=9)
    only_on_hopper()
    if not (harness.finishes(LIMIT_S, check_tiny) and harness.finishes(LIMIT_S, measure, options)):
        sys.exit(f"A kernel of notebook 12 failed here, or took longer than {LIMIT_S} s.")


if __name__ == "__main__":
    main()
