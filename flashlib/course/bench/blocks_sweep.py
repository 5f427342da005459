"""Time our forward kernel over tile sizes, warps and stages, with what the compiler made of each.

    python -m flashlib.course.bench.blocks_sweep --out assets/measurements --name h200

Every configuration is held against float64 on one head before it is timed; one that does not fit or
is wrong keeps its row, with the reason. Notebook 11 shows the result.
"""

from collections import Counter

from flashlib.course.bench import binaries, harness
from flashlib.course.bench.harness import TOLERANCE, case_of, device_for, exact, flops, inputs, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.kernels.configs import TritonConfig, candidates

SHAPES = [(4, 32, 4096, 64), (4, 16, 4096, 128)]
ROWS, KEYS, WARPS, STAGES = (32, 64, 128, 256), (32, 64, 128, 256), (4, 8), (2, 3, 4)
# Beyond this many accumulators a thread the compiler needs minutes to spill them all.
MOST_ACCUMULATORS = 400

RESOURCES = ("registers", "spilled_words", "shared_bytes", "matrix_instructions")


def configurations(d):
    """Return (BLOCK_M, BLOCK_N, num_warps, num_stages) to try: tiles that threads can nearly hold."""
    return candidates(d, ROWS, KEYS, WARPS, STAGES, MOST_ACCUMULATORS)


def caller(tensors, config):
    """Return a function of no arguments that runs our forward kernel in one configuration."""
    from flashlib.kernels.backends.triton import BACKEND
    from flashlib.kernels.problem import Problem

    q, k, v, _ = tensors
    p, chosen, scale = Problem.of(q, k, v), TritonConfig(*config), q.shape[-1] ** -0.5
    return lambda: BACKEND.forward(q, k, v, p, scale, chosen)[0]


def warm(case):
    """Compile one configuration in a process of its own."""
    (_, _, _, d), config = case
    caller(inputs((1, 1, 4096, d), "cuda"), config)()
    torch.cuda.synchronize()


def measure(shape, configs, clock):
    """Yield one row for every configuration."""
    tensors = inputs(shape, "cuda")
    reference = exact(*tensors[:3], None, False)
    for config in configs:
        row = case_of(shape, mode="forward", causal=0)
        row |= dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), config, strict=True))
        row |= dict.fromkeys(("seconds", "tflops_per_s", "relative_error", *RESOURCES))
        try:
            call = caller(tensors, config)
            binaries.forget()
            O = call()
            binary = binaries.loaded()[0]
            row |= {key: binary[key] for key in RESOURCES}
            row["relative_error"] = error = harness.relative([O[:1, :1]], reference)
            if error < TOLERANCE:
                row["seconds"] = clock(call)[0]
                row["tflops_per_s"] = flops(shape, False, "forward") / row["seconds"] / 1e12
            yield row | {"status": "ok" if error < TOLERANCE else "wrong"}
        except Exception as error:
            reason = str(error).split("\n")[0]
            if "shared memory" in reason:
                row["shared_bytes"] = getattr(error, "required", None)
                reason = "shared memory"
            yield row | {"status": reason[:80]}


def live(configs, shape=SHAPES[0]):
    """Measure a few configurations if this machine has a GPU and Triton; return rows and a sentence."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return [], f"Not measured here ({error.name} is not installed); all times above are recorded."
    if not torch.cuda.is_available():
        return [], "Not measured here (torch sees no GPU); all times above are recorded."
    rows = list(measure(shape, configs, harness.clock_for("cuda", 20)))
    return rows, f"Measured here, on {torch.cuda.get_device_name()}."


def main(argv=None):
    """Compile on all cores, check, measure, print the best and write the CSV file."""
    options = options_for(__spec__, __doc__, argv)
    device_for()
    cases = [(shape, config) for shape in SHAPES for config in configurations(shape[3])]
    # Those that compile slowly go first: they have many accumulators a thread.
    cases.sort(key=lambda c: -c[1][0] * (c[0][3] + c[1][1]) / c[1][2])
    harness.warm_all(warm, cases)
    roofs, clock, rows = harness.ceilings("cuda"), harness.clock_for("cuda", 20), []
    for shape in SHAPES:
        rows += measure(shape, configurations(shape[3]), clock)
        timed = sorted((row for row in rows if row["d"] == shape[3] and row["seconds"]),
                       key=lambda row: row["seconds"])
        for row in [*timed[:6], *timed[-2:]]:
            print(*list(row.values())[7:-1], flush=True)
    write(options, "blocks", rows, collect(
        options.command, dtype="bfloat16", inputs="standard normal",
        timing="triton.testing.do_bench, median", **roofs))
    print(Counter(row["status"] for row in rows))


if __name__ == "__main__":
    main()
