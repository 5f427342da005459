"""Time the fused backward with and without its order of sums, count changed bits, time its launches.

    python -m flashlib.course.bench.backward_order --out assets/measurements --name h200

Needs a Hopper GPU. Every variant is held against float64 before it is timed, and launched `LAUNCHES`
times on the same inputs: how many launches give other bits than the first is written beside its time.
The second file has the times of the single launches of a backward. Notebook 12b shows the results.

On a machine without a GPU, `--dry-run` runs the Gluon kernels in the interpreter, at a toy size.
"""

import contextlib
import functools
import statistics

from flashlib.course.bench import harness
from flashlib.course.bench.harness import case_of, only_on_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.ch12b.edited_kernels import VARIANTS, backward
from flashlib.course.notebook import show

SHAPES = [(4, 16, 4096, 128), (4, 32, 4096, 64), (4, 48, 4096, 32)]         # (B, H, N, d)
DRY = [(1, 1, 256, 32)]
LAUNCHES, REPEATS, ROUNDS = 20, 30, 7
IMPLS = {
    "shipped": "the fused kernel of impl='gluon'",
    "one_start": "fixed order, but without a mask all programs of a head start at query tile 0",
    "unordered": "locks are counted up and not waited for; all add to zeros",
    "no_locks": "no locks, and no waiting for an add to land; all add to zeros",
    "longest_first": "no_locks, and under a mask the programs with most query tiles start first",
    "last_first": "fixed order, and under a mask every head begins with its last key tile",
    "triton": "impl='triton', two kernels, seven products",
}


def variants(shape, causal, device):
    """Return name → (gradients, parts), and the error of gradients.

    Under a mask programs have starts of their own anyway; without one all are equally long.
    """
    from flashlib.kernels.backends import named
    from flashlib.kernels.problem import CAUSAL, FULL, Problem

    (q, k, v, do), window = harness.inputs(shape, device, "bfloat16"), CAUSAL if causal else FULL
    scale = shape[3] ** -0.5
    o, lse = named("gluon").forward(q, k, v, Problem.of(q, k, v, window=window), scale)
    found = {name: backward(name, q, k, v, o, lse, do, causal)
             for name in VARIANTS
             if name not in (("one_start",) if causal else ("longest_first", "last_first"))}
    if device == "cuda":
        p, gradients = Problem.of(q, k, v, o, do, window=window), [None] * 3

        def whole():
            gradients[:] = named("triton").backward(q, k, v, o, lse, do, None, p, scale)
        found["triton"] = gradients, {"triton": whole}
    exact = harness.exact(q, k, v, do, causal)[1:]
    return found, lambda gradients: harness.relative([x[:1, :1] for x in gradients], exact)


def every(parts):
    """Run the parts of a backward."""
    for part in parts.values():
        part()


def launched(gradients, parts):
    """Return how many launches give other bits than the first, and the largest share of dQ."""
    every(parts)
    first, other, share = [x.clone() for x in gradients], 0, 0.0
    for _ in range(LAUNCHES):
        every(parts)
        other += not all(map(torch.equal, gradients, first))
        share = max(share, (gradients[0] != first[0]).double().mean().item())
    return {"launches": LAUNCHES, "other_bits_launches": other, "other_bits_dq_share": share}


def apart(parts, device):
    """Return name → seconds of each part, medians: by events, after the L2 has been flushed."""
    if device != "cuda":
        return {name: harness.clock_for(device)(part)[0] for name, part in parts.items()}
    flush, times = torch.empty(2**28, dtype=torch.int8, device=device), {name: [] for name in parts}
    for _ in range(REPEATS):
        flush.zero_()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)]
        marks[0].record()
        for mark, part in zip(marks[1:], parts.values(), strict=True):
            part()
            mark.record()
        torch.cuda.synchronize()
        for name, start, stop in zip(parts, marks[:-1], marks[1:], strict=True):
            times[name].append(1e-3 * start.elapsed_time(stop))
    return {name: statistics.median(found) for name, found in times.items()}


def measure(shape, causal, device, rounds):
    """Check and time the variants at one shape; return a row for each, and one for each launch."""
    found, error_of = variants(shape, causal, device)
    about, errors = {}, {}
    for name, made in found.items():
        about[name] = launched(*made)
        errors[name] = error_of(made[0])
        if not errors[name] < harness.TOLERANCE:
            raise RuntimeError(f"{name} is wrong at {shape}, causal={causal}: error {errors[name]}")
    calls = {name: functools.partial(every, parts) for name, (_, parts) in found.items()}
    times = harness.race(calls, device, rounds)
    count = harness.flops(shape, causal, "backward")

    def case(name):
        return case_of(shape, impl=name, mode="backward", causal=int(causal))
    rows = [{**case(name), **harness.spread(runs, count), "relative_error": errors[name], **about[name]}
            for name, runs in times.items()]
    return rows, [{**case(name), "kernel": part, "seconds": seconds, "repeats": REPEATS}
                  for name in found for part, seconds in apart(found[name][1], device).items()]


def _warm(case):
    for _, parts in variants(*case, "cuda")[0].values():
        every(parts)
    torch.cuda.synchronize()


def main(argv=None):
    """Check, measure, print a table and write the CSV files."""
    options = options_for(__spec__, __doc__, argv, dry_run="a toy size, in the interpreter",
                          rounds=ROUNDS)
    device, shapes, switch = "cpu", DRY, contextlib.nullcontext()
    if options.dry_run:
        from triton import knobs

        switch = knobs.runtime.scope()
    else:
        only_on_hopper()
        device, shapes = "cuda", SHAPES
    cases = [(shape, causal) for shape in shapes for causal in (False, True)]
    if device == "cuda":
        harness.warm_all(_warm, cases)
    rows, launches = [], []
    with switch:
        if device == "cpu":
            knobs.runtime.interpret = True
        for case in cases:
            more = measure(*case, device, options.rounds)
            rows, launches = rows + more[0], launches + more[1]
            show.table([{key: row[key] for key in ("impl", "causal", "d", "seconds", "tflops_per_s",
                                                   "relative_error", "other_bits_launches")}
                        for row in more[0]])
    head = collect(options.command, IMPLS, dtype="bfloat16", inputs="standard normal")
    write(options, "backward_order", rows, head | {
        "timing": harness.ALTERNATING, "flops": "10 B H N N d, half if causal"})
    write(options, "backward_order_kernels", launches, head | {
        "timing": "medians, by device events between the launches, L2 flushed before each backward"})


if __name__ == "__main__":
    main()
