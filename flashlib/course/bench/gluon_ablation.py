"""Time the Hopper kernel with one technique switched off at a time, and then the same kernel in FP8.

    python -m flashlib.course.bench.gluon_ablation --out assets/measurements --name h200

Needs a Hopper GPU. Every variant is held against float64 before it is timed; times are medians of
rounds in which the variants alternate. Notebooks 12, 13 and 14 show the results.
"""

import statistics

from flashlib.course.bench import binaries, harness
from flashlib.course.bench.harness import case_of, flops, only_on_hopper, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.masks import Window

SHAPES = [(4, 16, 4096, 128), (4, 32, 4096, 64), (4, 8, 4096, 256)]         # (B, H, N, d)
FP8_SHAPES = [(4, 16, 4096, 128), (1, 16, 16384, 128), (4, 32, 4096, 64), (4, 8, 4096, 256)]
ROUNDS = 7
TOLERANCE = 5e-3                                            # relative, of bfloat16 against float64
FP8_TOLERANCE = 0.15                                        # recorded errors: up to 0.09, without
UNROTATED_TOLERANCE = 0.3                                   # rotation 0.2; a broken mask gave 0.32
SAMPLED_ROWS = 256                                          # of a head, for the error in FP8


def variants(d, causal, N):
    """Return name → configuration; the first has all of v3's techniques and none of v4's ideas.

    Tiles are the table's, except at d = 128: there they are 128 × 128, as FlashAttention-3 has them
    under a mask, and "table" is the table's configuration.
    """
    from flashlib.kernels.configs import SHORT_128, gluon_config_for

    table = gluon_config_for(d, causal, N)
    full = SHORT_128 if d == 128 else table
    full = full._replace(PING_PONG=True, OVERLAP=True, UNDER_SOFTMAX=True, EMULATED=0, TAU=0.0)
    plain = full._replace(CONSUMERS=2, SPECIALIZED=False)
    found = {
        "full": full,
        "no_pingpong": full._replace(PING_PONG=False),
        "no_overlap": full._replace(OVERLAP=False),
        "softmax_waits": full._replace(UNDER_SOFTMAX=False),
        "no_pingpong_softmax_waits": full._replace(PING_PONG=False, UNDER_SOFTMAX=False),
        "no_persistence": full._replace(PERSISTENT=False),
        "no_specialization": plain._replace(STAGES=2),
        "synchronous": plain._replace(STAGES=1, OVERLAP=False),
        "emulate_25": full._replace(EMULATED=1),
        "emulate_50": full._replace(EMULATED=2),
        "tau_8": full._replace(TAU=8.0),
        "softmax_waits_tau_8": full._replace(UNDER_SOFTMAX=False, TAU=8.0),
    }
    return found if table in found.values() else found | {"table": table}


def inputs(shape, outliers=False):
    """Return bfloat16 Q, K, V; with outliers, one element in a thousand comes from N(0, 101)."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw():
        return torch.randn(shape, device="cuda", generator=generator)

    def tensor():
        x = draw()
        if outliers:
            x = x + 10.0 * draw() * (torch.rand(shape, device="cuda", generator=generator) < 1e-3)
        return x.to(torch.bfloat16)

    return [tensor() for _ in range(3)]


def exact_rows(q, k, v, causal, rows):
    """Return some rows of the first head's attention in float64."""
    return harness.exact_rows(q, k, v, rows, Window(right=0 if causal else None))


def rmse_and_relative(o, exact, rows):
    """Return the root mean square error of some rows of the first head, absolute and relative."""
    error = (o[0, 0, rows].double() - exact).square().mean().sqrt().item()
    return error, error / exact.square().mean().sqrt().item()


def race(calls, count, rounds, milliseconds):
    """Return name → TFLOP/s of every round; the calls alternate."""
    return {name: [count / seconds / 1e12 for seconds in times]
            for name, times in harness.race(calls, "cuda", rounds, milliseconds).items()}


def row_of(name, shape, causal, rates):
    """Return the columns of a variant: its shape, and the median and extremes of its TFLOP/s."""
    return {**case_of(shape, impl=name, mode="forward", causal=int(causal)),
            "tflops_per_s": statistics.median(rates), "tflops_per_s_low": min(rates),
            "tflops_per_s_high": max(rates), "rounds": len(rates)}


def forward(q, k, v, causal, config=None):
    """Run our Gluon kernel in a given configuration, or in the table's."""
    from flashlib.kernels.backends.gluon import BACKEND
    from flashlib.kernels.problem import CAUSAL, FULL, Problem

    p = Problem.of(q, k, v, window=CAUSAL if causal else FULL)
    return BACKEND.forward(q, k, v, p, q.shape[3] ** -0.5, config)


def ablation(shape, causal, rounds=ROUNDS, milliseconds=30):
    """Check and time the variants at one shape, in bfloat16, and return one row each."""
    q, k, v = inputs(shape)
    rows = torch.arange(0, shape[2], max(1, shape[2] // SAMPLED_ROWS), device="cuda")
    exact = exact_rows(q, k, v, causal, rows)
    calls, built = {}, {}
    for name, config in variants(shape[3], causal, shape[2]).items():

        def call(config=config):
            return forward(q, k, v, causal, config)

        binaries.forget()
        _, relative = rmse_and_relative(call()[0], exact, rows)
        if not relative < TOLERANCE:
            raise RuntimeError(f"{name} is wrong at {shape}, causal={causal}: error {relative}")
        calls[name], built[name] = call, binaries.worst(binaries.loaded())
    rates = race(calls, flops(shape, causal, "forward"), rounds, milliseconds)
    return [{**row_of(name, shape, causal, rates[name]), "registers": built[name]["registers"],
             "spilled_words": built[name]["spilled_words"]} for name in calls]


def fp8(shape, causal, rounds=ROUNDS, milliseconds=60):
    """Check and time the FP8 forward against our bfloat16 one; errors with outliers in the data.

    The time is that of the kernel alone. "fp8_prepared" adds rotation and quantisation, as torch
    operations; it is timed apart, because they leave the tensor cores idle, and a kernel that runs
    after them may find a higher clock.
    """
    from flashlib.kernels import fp8 as prepare_fp8
    from flashlib.kernels.backends.gluon import FP8

    q, k, v = inputs(shape, outliers=True)
    rows = torch.arange(0, shape[2], max(1, shape[2] // SAMPLED_ROWS), device="cuda")
    exact, scale = exact_rows(q, k, v, causal, rows), shape[3] ** -0.5
    choices = {"fp8_block": {}, "fp8_tensor": {"per_block": False},
               "fp8_no_rotation": {"rotation": False}}
    calls = {"own_bf16": lambda: forward(q, k, v, causal)}
    for name, options in choices.items():
        prepared = prepare_fp8.prepare(q, k, v, **options)
        calls[name] = lambda prepared=prepared: FP8.forward(*prepared, causal=causal, scale=scale)
    apart = {"fp8_prepared": lambda: FP8.forward(
        *prepare_fp8.prepare(q, k, v), causal=causal, scale=scale)}
    errors = {name: rmse_and_relative(call()[0], exact, rows)
              for name, call in (calls | apart).items()}
    for name, (_, relative) in errors.items():
        bound = {"own_bf16": TOLERANCE, "fp8_no_rotation": UNROTATED_TOLERANCE}.get(name, FP8_TOLERANCE)
        if not relative < bound:
            raise RuntimeError(f"{name} is wrong at {shape}, causal={causal}: error {relative}")
    count = flops(shape, causal, "forward")
    rates = race(calls, count, rounds, milliseconds) | race(apart, count, rounds, milliseconds)
    ours = statistics.median(rates["own_bf16"])
    return [{**row_of(name, shape, causal, rates[name]), "rmse": errors[name][0],
             "ratio_to_bf16": statistics.median(rates[name]) / ours} for name in rates]


def measure_here(shape=SHAPES[0], causal=False) -> None:
    """On a Hopper GPU, time the variants at one shape and print them; elsewhere say why not."""
    if not harness.has_gpu() or torch.cuda.get_device_capability()[0] != 9:
        print("No Hopper GPU here: all times in this chapter are the recorded ones.")
        return
    from flashlib.kernels.backends import named

    try:
        named("gluon")
    except ImportError as error:                            # no Triton, or an old one
        print(f"Not measured here, the kernel cannot be imported ({error}):"
              " all times in this chapter are the recorded ones.")
        return
    count = len(variants(shape[3], causal, shape[2]))
    print(f"Compiling {count} variants takes about a minute.", flush=True)
    try:
        rows = ablation(shape, causal, rounds=3)
    except RuntimeError as error:
        print("The measurement failed:", error)
        return
    print(f"Measured here, on {torch.cuda.get_device_name()}, (B, H, N, d) = {shape}:")
    for row in rows:
        print(f"{row['impl']:>18} {row['tflops_per_s']:5.0f} TFLOP/s")


def _warm(case):
    kind, shape, causal = case
    (ablation if kind == "ablation" else fp8)(shape, causal, rounds=1, milliseconds=1)


def main(argv=None):
    """Check, measure, print a table and write the CSV files."""
    options = options_for(__spec__, __doc__, argv, rounds=ROUNDS)
    only_on_hopper()
    kinds = {"ablation": (ablation, SHAPES), "fp8": (fp8, FP8_SHAPES)}
    cases = [(kind, shape, causal) for kind, (_, shapes) in kinds.items() for shape in shapes
             for causal in (False, True)]
    harness.warm_all(_warm, cases)
    rows = {kind: [] for kind in kinds}
    for kind, shape, causal in cases:
        found = kinds[kind][0](shape, causal, options.rounds)
        rows[kind] += found
        print(shape, "causal" if causal else "full",
              *(f"{r['impl']} {r['tflops_per_s']:.0f}" for r in found), flush=True)
    head = collect(options.command, dtype="bfloat16", timing=harness.ALTERNATING,
                   flops="4 B H N N d forward, half if causal")
    write(options, "gluon_ablation", rows["ablation"], head | {"inputs": "standard normal"})
    write(options, "fp8", rows["fp8"], head | {
        "inputs": "N(0,1) + N(0,100) in one element of a thousand", "sampled_rows": SAMPLED_ROWS,
        "rmse": "of the sampled rows of the first head, against float64"})


if __name__ == "__main__":
    main()
