"""Time what `tune` finds against the fixed table, also for shapes that the table was not made for.

    python -m flashlib.course.bench.tuned --out assets/measurements --name h200

`search_seconds` is of forward and backward together, after all cores have compiled. Cases that do not
fit into LIMIT_S are left out.
"""

import time

from flashlib.course.bench.harness import device_for, input_dtype, torch, warm_all
from flashlib.course.bench.provenance import collect, options_for, write

CASES = [                                                   # (B, H, H_k, N_q, N_k, D, causal)
    (1, 16, 16, 2000, 2000, 64, False),
    (8, 16, 4, 512, 512, 128, True),
    (1, 32, 8, 1, 16384, 128, False),                       # decoding
    (2, 12, 12, 197, 197, 64, False),                       # a vision transformer
    (1, 8, 8, 333, 1000, 80, True),
    (4, 16, 16, 4096, 4096, 128, False),
    (4, 16, 16, 4096, 4096, 128, True),
    (4, 32, 32, 4096, 4096, 64, False),
]
LIMIT_S = 170


def inputs(case):
    """Return q, k, v, standard normal."""
    B, H, H_k, N_q, N_k, D, _ = case
    generator, dtype = torch.Generator("cuda").manual_seed(0), getattr(torch, input_dtype("cuda"))
    return [torch.randn(B, heads, N, D, generator=generator, device="cuda", dtype=dtype)
            for heads, N in ((H, N_q), (H_k, N_k), (H_k, N_k))]


def jobs(case):
    """Return (case, (backend, direction), configuration) for all that `tune` is going to run."""
    from flashlib.kernels.backends import choose

    p, found = problem(case), {}
    backward = ("backward",) if case[3] > 1 else ()         # one query at a time is decoding
    for impl, direction in ((i, d) for d in ("forward", *backward) for i in ("triton", "auto")):
        backend = choose(p, impl, direction)
        table, more = backend.table(p, direction), backend.candidates(p, direction)
        if any(more.values()):                              # else there is nothing to search
            found[backend.name, direction] = dict.fromkeys([table, *(
                table._replace(**{part: c}) if part else c
                for part, candidates in more.items() for c in candidates)])
    return [(case, kernel, c) for kernel, configs in found.items() for c in configs]


def problem(case):
    """Return the problem that `inputs` make."""
    from flashlib.kernels.problem import CAUSAL, FULL, Problem

    q, k, v = inputs(case)
    return Problem.of(q, k, v, q, q, window=CAUSAL if case[-1] else FULL)


def warm(job):
    """Compile one configuration in a process of its own."""
    from flashlib.kernels.backends import named

    case, (name, direction), config = job
    (q, k, v), p, backend = inputs(case), problem(case), named(name)
    if direction == "backward":
        backend.backward(q, k, v, q, q[..., 0].float(), q, None, p, 1.0, config)
    else:
        backend.forward(q, k, v, p, 1.0, config)
    torch.cuda.synchronize()


def spell(config):
    """Return a configuration in words."""
    named = config._asdict().items()
    if hasattr(config, "dq"):
        return "; ".join(f"{name} {spell(c)}" for name, c in named if c and name != "forward")
    return " ".join(f"{name}={value}" for name, value in named)


def rows_of(case, impl, trials, seconds):
    """Return a row for each kernel of a search."""
    rows = []
    for kernel in dict.fromkeys(trial.kernel for trial in trials):
        mine = [trial for trial in trials if trial.kernel == kernel]
        noted = {trial.note: trial for trial in mine if trial.note in ("table", "kept")}
        table, best = noted["table"], noted.get("kept", noted["table"])
        refused = sum(trial.milliseconds is None for trial in mine)
        shape = dict(zip(("B", "H", "H_k", "N_q", "N_k", "d"), case[:-1], strict=True))
        rows.append({
            "impl": impl, "mode": kernel.rpartition("_")[2], "causal": int(case[-1]), **shape,
            "kernel": kernel, "table": spell(table.config),
            "table_seconds": 1e-3 * table.milliseconds, "best": spell(best.config),
            "best_seconds": 1e-3 * best.milliseconds,
            "speedup": table.milliseconds / best.milliseconds,
            "timed": len(mine) - refused, "refused": refused, "search_seconds": seconds})
    return rows


def main(argv=None):
    """Compile on all cores, search case by case, print and write the CSV file."""
    options = options_for(__spec__, __doc__, argv)
    device_for()
    from flashlib.kernels.backends import choose
    from flashlib.kernels.tuning.search import tune

    start, rows, todo = time.perf_counter(), [], [job for case in CASES for job in jobs(case)]
    warm_all(warm, todo)
    for case in CASES:
        if time.perf_counter() - start > LIMIT_S:
            print(f"left out after {LIMIT_S} s: {case}")
            continue
        q, k, v = inputs(case)
        both = choose(problem(case), "auto", "forward").name != "triton"
        for impl in ("auto", "triton") if both else ("triton",):
            q.requires_grad_(impl == "triton" and case[3] > 1)
            began = time.perf_counter()
            trials = tune(q, k, v, causal=case[-1], impl=impl)
            rows += (more := rows_of(case, impl, trials, time.perf_counter() - began))
            for row in more:
                print(*(f"{x:.4g}" if isinstance(x, float) else x for x in row.values()), flush=True)
    write(options, "tuned", rows, collect(
        options.command, dtype=input_dtype("cuda"), inputs="standard normal",
        timing="do_bench, medians of rounds"))


if __name__ == "__main__":
    main()
