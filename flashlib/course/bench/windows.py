"""Time causal windows of attention, forward and backward, beside the tiles that each leaves to visit.

    python -m flashlib.course.bench.windows --out assets/measurements --name h200

Query i sees the keys from i − left to i. Each window is held against float64 first: some rows of one
head, forward, and what a gradient in these rows gives dQ, dK and dV. Beside each time stand the tiles
of the kernel that ran, and how many of them are visited. Notebook 10 shows the result.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

import itertools

from flashlib.course.bench import harness
from flashlib.course.bench.harness import case_of, device_for, input_dtype, inputs, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show
from flashlib.masks import Window, mask_of, visits

SHAPE, LEFTS = (1, 16, 16384, 128), [128 * 2**n - 1 for n in range(7)]     # one tile, two, four, …
DRY, DRY_LEFTS = (1, 2, 512, 32), [127, 255]
IMPLS = ("auto", "triton")
MODES = ("forward", "backward")
TILE = (128, 128)                                           # counted where no kernel of ours runs
SHOWN = ("impl", "mode", "window_left", "seconds", "tflops_per_s", "key_tiles", "BLOCK_M", "BLOCK_N")
SAMPLED_ROWS = 256
TOLERANCE = 8e-3                                            # one key of 8,192 too many makes 1e-2


def attention(impl, window):
    """Return our attention under a window, as a function of (q, k, v, causal)."""
    from flashlib.kernels import flash_attention

    sides = {} if window.left is None else {"window": (window.left, None)}
    return lambda q, k, v, causal: flash_attention(q, k, v, causal=causal, impl=impl, **sides)


def tile_of(impl, mode, p):
    """Return rows and keys of a tile of the kernel for a problem; of a backward, that of dK and dV."""
    from flashlib.kernels import configs
    from flashlib.kernels.backends import choose

    if p.device.type != "cuda":
        return TILE
    config = choose(p, impl, mode).config(p, mode)
    if isinstance(config, configs.GluonBackwardConfig):
        return configs.WARPGROUP_ROWS, configs.FUSED_KEYS
    if mode == "backward":
        config = config.dkdv or config.dk
    return config.BLOCK_M, config.BLOCK_N


def check(fn, tensors, window):
    """Return mode → relative error of a head's O, in some rows, and of the worst of its gradients.

    dO is zero in all other rows, so that these rows are enough to know dQ, dK and dV whole.
    """
    N = tensors[0].shape[2]
    rows = torch.linspace(0, N - 1, min(N, SAMPLED_ROWS), device=tensors[0].device).long()
    dO = torch.zeros_like(tensors[3]).index_copy_(2, rows, tensors[3][:, :, rows])
    head = [x[:1, :1].double().requires_grad_() for x in tensors[:3]]
    right = harness.exact_rows(*head, rows, window)
    gradients = torch.autograd.grad(right, head, dO[0, 0, rows].double())
    O, *found = (x[:1, :1] for x in harness.results(fn, [*tensors[:3], dO], True))
    return {"forward": harness.relative([O[0, 0, rows]], [right.detach()]),
            "backward": harness.relative(found, gradients)}


def warm(case):
    """Compile what an implementation needs for a window, in a process of its own."""
    impl, left, shape, device = case
    harness.results(attention(impl, Window(left, 0)), inputs(shape, device), True)


def measure(shape, lefts, impls, device, rounds):
    """Return a row for every mode, implementation and window; all of a mode alternate."""
    from flashlib.course.bench.attention import caller
    from flashlib.kernels.problem import Problem

    tensors, rows = inputs(shape, device), []
    windows = [Window(left, 0) for left in (*lefts, None)]
    fns = {(impl, w): attention(impl, w) for impl, w in itertools.product(impls, windows)}
    errors = {case: check(fn, tensors, case[1]) for case, fn in fns.items()}
    for (impl, window), found in errors.items():
        if not max(found.values()) < TOLERANCE:
            raise RuntimeError(f"{impl} is wrong at {shape}, {window}: relative errors {found}")
    B, H, N, d = shape
    for mode in MODES:
        times = harness.race({case: caller(fn, tensors, True, mode) for case, fn in fns.items()},
                             device, rounds)
        for (impl, w), runs in times.items():
            mask = mask_of(True, N, N, (w.left, None))
            pairs = int((mask.stop - mask.first).sum())
            count = 4 * B * H * d * pairs * (2.5 if mode == "backward" else 1)
            tile = tile_of(impl, mode, Problem.of(*tensors[:3], window=w))
            rows.append({**case_of(shape, impl=impl, mode=mode, causal=1), "window_left": w.left,
                         "BLOCK_M": tile[0], "BLOCK_N": tile[1],
                         "key_tiles": B * H * int(visits(w, N, N, *tile).sum()),
                         **harness.spread(runs, count), "relative_error": errors[impl, w][mode]})
    return rows


def main(argv=None):
    """Check, measure, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, dry_run="toy sizes, on the CPU", rounds=5)
    device = device_for(options.dry_run)
    case = (DRY, DRY_LEFTS, IMPLS[:1]) if options.dry_run else (SHAPE, LEFTS, IMPLS)
    if device == "cuda":                                    # windows of one tile and more compile alike
        harness.warm_all(warm, [(impl, left, SHAPE, device) for impl in IMPLS
                                for left in (LEFTS[0], LEFTS[-1], None)])
    rows = measure(*case, device, options.rounds)
    show.table([{key: row[key] for key in SHOWN} for row in rows])
    write(options, "windows", rows, collect(
        options.command, dtype=input_dtype(device), inputs="standard normal",
        timing=harness.ALTERNATING, flops="4 B H d for every pair of query and key that is seen,"
        " 2.5 times that backward", key_tiles="of the forward kernel, or that of dK and dV",
        sampled_rows=SAMPLED_ROWS,
        **{f"impl_{impl}": f"flashlib.flash_attention(impl={impl!r})" for impl in case[2]}))


if __name__ == "__main__":
    main()
