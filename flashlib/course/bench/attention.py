"""Time our attention against every peer that this machine has, forward and backward, by shape.

    python -m flashlib.course.bench.attention --out assets/measurements --name h200

Correctness comes first: each implementation is held against float64 on one head, output and
gradients, before it is timed. Times are medians of rounds in which the implementations alternate;
two ceilings (a large matmul, a large copy) are measured in the same run. Notebook 10 shows the result.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

import itertools
import statistics
import time

from flashlib.course.bench import binaries, harness, peers
from flashlib.course.bench.harness import TOLERANCE, case_of, flops, input_dtype, inputs, torch
from flashlib.course.bench.provenance import collect, options_for, write

# (B, H, N, d)
SHAPES = [(4, 48, 4096, 32), (16, 32, 1024, 64), (4, 32, 4096, 64), (1, 32, 16384, 64),
          (16, 16, 1024, 128), (4, 16, 4096, 128), (1, 16, 16384, 128), (4, 8, 4096, 256)]
UNTABLED = [(4, 16, 4096, 80), (4, 16, 4096, 96), (4, 8, 4096, 160), (4, 8, 4096, 192),
            (4, 16, 3001, 128), (4, 32, 3001, 64), (64, 16, 256, 128), (32, 16, 512, 64)]
DRY = [(1, 2, 64, 32), (1, 2, 96, 64)]
MODES = ("forward", "backward")
QUICK = (4, 48, 4096, 32)
OVERHEAD = ("ours", "ours_triton", "sdpa_flash", "sdpa_cudnn")


def least_bytes(shape, mode, element_bytes=2):
    """Return the fewest bytes to and from memory: every tensor once, and one row of lse."""
    B, H, N, d = shape
    return B * H * N * (element_bytes * d * (8 if mode == "backward" else 4) + 4)


def relative_error(fn, tensors, reference, causal, mode):
    """Return the error of O, or the worst of the gradients', relative in the Euclidean norm."""
    if mode == "forward":
        with torch.no_grad():
            found, right = [fn(*tensors[:3], causal)], reference[:1]
    else:
        found, right = harness.results(fn, tensors, causal)[1:], reference[1:]
    return harness.relative([x[:1, :1] for x in found], right)


def caller(fn, tensors, causal, mode):
    """Return a function of no arguments that runs one pass; the backward's forward is done before."""
    *qkv, dO = tensors
    if mode == "forward":
        return torch.no_grad()(lambda: fn(*qkv, causal))
    qkv = [x.detach().requires_grad_() for x in qkv]
    O = fn(*qkv, causal)
    return lambda: torch.autograd.grad(O, qkv, dO, retain_graph=True)


def microseconds(call, device, calls=300, repeats=20):
    """Return what one of many calls in a row costs the CPU: the best of the repeats."""
    best = float("inf")
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / calls


def overhead_us(found, device, calls=300, repeats=20):
    """Return name → microseconds of the CPU for a forward call without a gradient.

    The tensors are so small that the GPU is done before the next call comes.
    """
    dtype = getattr(torch, input_dtype(device))
    q, k, v = (torch.randn(1, 4, 128, 64, device=device, dtype=dtype) for _ in range(3))
    with torch.no_grad():
        return {name: microseconds(lambda fn=fn: fn(q, k, v, False), device, calls, repeats)
                for name, fn in found.items()}


def tiles_of(p, mode) -> dict[str, list]:
    """Return kernel → the tile of each of its launches for a problem; None for a side it has not."""
    from flashlib.kernels.backends import choose

    backend, tiles = choose(p, "auto", mode), {}
    config = backend.config(p, mode)
    for plan in backend.plan(p, mode, config).values():     # in the order of launches
        rows = plan.constants.get("BLOCK_M") or getattr(config, "BLOCK_M", None)
        tiles.setdefault(plan.kernel.fn.__name__, []).append(
            {"BLOCK_M": rows, "BLOCK_N": plan.constants.get("BLOCK_N")})
    return tiles


def our_binaries(call, shape, causal, mode):
    """Run a call of ours once and return the binaries that it launched, with their tile sizes."""
    from flashlib.kernels.problem import CAUSAL, FULL, Problem, device_of

    binaries.forget()
    call()
    B, H, N, D = shape
    p = Problem.example(B=B, H=H, N_Q=N, N_K=N, D=D, dtype=getattr(torch, input_dtype("cuda")),
                        device=device_of(torch.device("cuda", torch.cuda.current_device())),
                        window=CAUSAL if causal else FULL)
    tiles = tiles_of(p, mode)
    return [{"kernel": (name := binary.pop("kernel")), **tiles[name].pop(0), **binary}
            for binary in binaries.loaded()]


def taking_part(device, only=()):
    """Return what `peers.present` does; with `only`, of these and "ours" alone."""
    found, absent = peers.present(device)
    if only:
        found = {name: fn for name, fn in found.items() if name == "ours" or name in only}
        absent = {name: absent.get(name, "not asked for") for name in peers.NAMES if name not in found}
    return found, absent


def measure(shapes, device, rounds, say=print, only=(), modes=MODES):
    """Return the rows of timings, the rows of our binaries, and the reasons for absent peers.

    `only`: the implementations that take part beside "ours"; empty, all that this machine has.
    """
    found, absent = taking_part(device, only)
    rows, kernels = [], []
    for shape, causal in itertools.product(shapes, (False, True)):
        tensors = inputs(shape, device)
        errors = _errors(found, tensors, shape, causal, modes, absent)
        for mode in modes:
            calls = {name: caller(found[name], tensors, causal, mode) for name in errors[mode]}
            case, built = case_of(shape, mode=mode, causal=int(causal)), []
            if device == "cuda":
                built = our_binaries(calls["ours"], shape, causal, mode)
                kernels += [{**case, **b} for b in built]
            times = harness.race(calls, device, rounds)
            rows += _rows(times, built, errors[mode], shape, case)
            say(line(rows[-len(times):]))
            del calls
        del tensors
    return rows, kernels, absent


def _errors(found, tensors, shape, causal, modes, absent):
    """Return mode → implementation → error; who fails or is wrong is named in `absent` instead."""
    reference, errors = harness.exact(*tensors, causal), {mode: {} for mode in MODES}
    for name, fn in found.items():
        for mode in _modes(name, modes):
            try:
                error = relative_error(fn, tensors, reference, causal, mode)
            except Exception as problem:
                if name.startswith("ours"):
                    raise
                absent[f"{name} {mode} at {shape}"] = f"{type(problem).__name__} {problem}"[:120]
                continue
            if error < TOLERANCE:
                errors[mode][name] = error
            elif name.startswith("ours"):
                raise RuntimeError(f"{name} is wrong at {shape}, causal={causal}, {mode}:"
                                   f" relative error {error}")
            else:
                absent[f"{name} {mode} at {shape}"] = f"wrong, relative error {error}"
    return errors


def _modes(name, modes=MODES):
    left_out = {"forward": peers.BACKWARD_ONLY, "backward": peers.FORWARD_ONLY}
    return [mode for mode in modes if name not in left_out[mode]]


def _rows(times, built, errors, shape, case):
    count, least = flops(shape, case["causal"], case["mode"]), least_bytes(shape, case["mode"])
    rows = []
    for name, runs in times.items():
        timed = harness.spread(runs, count)
        rows.append({
            "impl": name, **case, **timed, "least_bytes": least,
            "least_bytes_per_s": least / timed["seconds"], "relative_error": errors[name],
            "ours_over_this": timed["seconds"] / statistics.median(times["ours"]),
            **binaries.worst(built if name == "ours" else [])})
    return rows


def line(rows):
    """Return one line for a shape and mode: TFLOP/s by implementation."""
    first = rows[0]
    shape = ",".join(str(first[key]) for key in ("B", "H", "N_q", "d"))
    rates = "  ".join(f"{row['impl']} {row['tflops_per_s']:.0f} ({row['ours_over_this']:.2f})"
                      for row in rows)
    return f"{shape:>16} {'causal' if first['causal'] else 'full':6} {first['mode']:8} {rates}"


def warm(case):
    """Compile what one case needs, in a process of its own, so that all cores work."""
    name, shape, causal, device, modes = case
    tensors = inputs(shape, device)
    for mode in _modes(name, modes):
        caller(peers.present(device)[0][name], tensors, causal, mode)()


def measure_here(shape=QUICK) -> None:
    """Time (B, H, N, d) against the peers that are installed and print it; without a GPU, say so."""
    if not harness.has_gpu():
        print("No GPU here: all times in this chapter are the recorded ones.")
    elif said := harness.elsewhere(__spec__.name, "--quick", *shape):
        print(f"Measured here, on {torch.cuda.get_device_name()}, in {input_dtype('cuda')};"
              " TFLOP/s (speed of ours relative to it):")
        print(said)


def quick(shape, device) -> None:
    """Time one shape, one round, and print in one line who was not timed, and why."""
    absent = measure([shape], device, 1)[2]
    if absent:
        print("Absent:", "; ".join(f"{name.split(' at ')[0]} ({' '.join(reason.split())})"
                                   for name, reason in absent.items()))


def notes_of(absent) -> dict:
    """Return the keys of a head for who took no part, and for who failed somewhere."""
    failed = [f"{name}: {reason}" for name, reason in absent.items() if " at " in name]
    notes = {f"absent_{name}": reason for name, reason in absent.items() if " at " not in name}
    return {key: " ".join(text.split()) for key, text in
            (notes | ({"failed": "; ".join(failed)} if failed else {})).items()}


def main(argv=None):
    """Check, measure, print a table and write the CSV files."""
    options = options_for(
        __spec__, __doc__, argv, dry_run="toy sizes, on the CPU", rounds=3,
        untabled={"action": "store_true", "help": "time shapes that no table of tiles was made for"},
        only={"nargs": "+", "default": [], "choices": list(peers.NAMES),
              "help": "time ours against these alone"},
        mode={"nargs": "+", "default": MODES, "choices": MODES, "help": "time these passes"},
        dims={"nargs": "+", "type": int, "default": [], "help": "time these head dimensions alone"},
        quick={"nargs": 4, "type": int, "metavar": tuple("BHNd"), "help": "time one shape, print only"})
    device = harness.device_for(options.dry_run)
    if options.quick:
        quick(tuple(options.quick), device)
        return
    shapes = DRY if options.dry_run else UNTABLED if options.untabled else SHAPES
    found, _ = taking_part(device, options.only)
    shapes = [shape for shape in shapes if shape[3] in (options.dims or [shape[3]])]
    if device == "cuda":
        compiled = [name for name in ("triton_tutorial", "flex", "fa4", "fa4_deterministic", "ours",
                                      "ours_triton") if name in found]
        harness.warm_all(warm, [(name, shape, causal, device, options.mode) for name in compiled
                                for shape in shapes for causal in (False, True)])
    roofs = harness.ceilings(device, 300 if device == "cuda" else 10)
    rows, kernels, absent = measure(shapes, device, options.rounds,
                                    say=lambda text: print(text, flush=True), only=options.only,
                                    modes=options.mode)
    timed = list(dict.fromkeys(row["impl"] for row in rows))  # the others do not run on this GPU
    calls, repeats = (300, 20) if device == "cuda" else (2, 1)
    cost = overhead_us({name: fn for name, fn in found.items()
                        if name in OVERHEAD and name in timed}, device, calls, repeats)
    head = collect(
        options.command, dtype=input_dtype(device), inputs="standard normal",
        timing=harness.ALTERNATING,
        flops="4 B H N N d forward, half if causal, 2.5 times that backward",
        **{f"overhead_us_{name}": f"{us:.1f}" for name, us in cost.items()},
        overhead="CPU time of a forward call, eager, no gradient, (B, H, N, d) = (1, 4, 128, 64)",
        **{f"impl_{name}": peers.NAMES[name] for name in timed}, **notes_of(absent), **roofs)
    print("\n".join(f"{key}: {value}" for key, value in head.items()))
    write(options, "attention", rows, head)
    if kernels:
        write(options, "attention_kernels", kernels, head)


if __name__ == "__main__":
    main()
