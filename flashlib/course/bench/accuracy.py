"""Hold our attention, torch's FlashAttention and plain attention of the same dtype against float64.

    python -m flashlib.course.bench.accuracy --out assets/measurements --name h200

Output and gradients over a grid of shapes, ragged ones included. Notebook 10 shows the result.
"""

import itertools

from flashlib.course.bench import peers
from flashlib.course.bench.harness import case_of, device_for, inputs, plain, results
from flashlib.course.bench.provenance import collect, options_for, write

GRID = [(2, 4, N, d) for N in (97, 512, 1025, 2048) for d in (64, 128)]
DRY = [(1, 2, 97, 32)]
DTYPES = ("float16", "bfloat16")
TENSORS = ("O", "dQ", "dK", "dV")


def measure(shapes, device):
    """Yield one row for every dtype, shape, mask, implementation and tensor."""
    found, _ = peers.present(device)
    impls = {"ours": found["ours"], "sdpa_flash": found["sdpa_flash"], "plain": plain}
    for name, shape, causal in itertools.product(DTYPES, shapes, (False, True)):
        tensors = inputs(shape, device, name, seed=shape[2] + shape[3])
        reference = results(plain, [x.double() for x in tensors], causal)
        for impl, fn in impls.items():
            found = results(fn, tensors, causal)
            for tensor, got, right in zip(TENSORS, found, reference, strict=True):
                error = got.double() - right
                yield {**case_of(shape, impl=impl, causal=int(causal)), "dtype": name,
                       "tensor": tensor,
                       "max_error": error.abs().max().item(),
                       "rmse": error.square().mean().sqrt().item(),
                       "mean_signed_error": error.mean().item(),
                       "largest": right.abs().max().item()}


def main(argv=None):
    """Measure, print the mean RMSE of each implementation and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, dry_run="one small shape, on the CPU")
    device = device_for(options.dry_run)
    rows = list(measure(DRY if options.dry_run else GRID, device))
    for name, tensor in itertools.product(DTYPES, TENSORS):
        means = {}
        for row in rows:
            if (row["dtype"], row["tensor"]) == (name, tensor):
                means.setdefault(row["impl"], []).append(row["rmse"])
        print(f"{name:9} {tensor:3} mean RMSE",
              "  ".join(f"{impl} {sum(x) / len(x):.3g}" for impl, x in means.items()), flush=True)
    write(options, "accuracy", rows, collect(
        options.command, inputs="standard normal, rounded to the dtype; the reference is float64 on the"
        " same rounded inputs", impl_plain="matmul, softmax, matmul in the dtype"))


if __name__ == "__main__":
    main()
