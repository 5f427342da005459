"""Hold our attention, torch's FlashAttention and plain attention of the same dtype against float64.

    python -m flashlib.course.bench.accuracy --out assets/measurements --name h200

Output and gradients over a grid of shapes, ragged ones included. Notebook 10 shows the result.
"""

from __future__ import annotations

import itertools

from flashlib.course.bench import peers
from flashlib.course.bench.gpu import device_for
from flashlib.course.bench.provenance import collect, options_for, write_csv

GRID = [(2, 4, N, d) for N in (97, 512, 1025, 2048) for d in (64, 128)]
DRY = [(1, 2, 97, 32)]
DTYPES = ("float16", "bfloat16")


def plain(q, k, v, causal):
    """Attention as three operations in the dtype of the inputs, S and P included."""
    import torch

    S = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(S.shape[-2:], device=S.device, dtype=torch.bool).triu(1)
        S = S.masked_fill(hidden, float("-inf"))
    return torch.softmax(S, -1) @ v


def results(fn, tensors, causal):
    """Return O, dQ, dK, dV."""
    import torch

    qkv = [x.detach().requires_grad_() for x in tensors[:3]]
    O = fn(*qkv, causal)
    return [O.detach(), *torch.autograd.grad(O, qkv, tensors[3])]


def measure(shapes, device):
    """Yield one row for every dtype, shape, mask, implementation and tensor."""
    import torch

    found, _ = peers.present(device)
    impls = {"ours": found["ours"], "sdpa_flash": found["sdpa_flash"], "plain": plain}
    for name, shape, causal in itertools.product(DTYPES, shapes, (False, True)):
        generator = torch.Generator(device=device).manual_seed(shape[2] + shape[3])
        make = {"generator": generator, "device": device, "dtype": getattr(torch, name)}
        tensors = [torch.randn(shape, **make) for _ in range(4)]
        reference = results(plain, [x.double() for x in tensors], causal)
        case = dict(zip(("B", "H", "N", "d"), shape, strict=True))
        for impl, fn in impls.items():
            pairs = zip(("O", "dQ", "dK", "dV"), results(fn, tensors, causal), reference, strict=True)
            for tensor, got, right in pairs:
                error = got.double() - right
                yield {"dtype": name, "impl": impl, "tensor": tensor, "causal": int(causal), **case,
                       "max_error": error.abs().max().item(),
                       "rmse": error.square().mean().sqrt().item(),
                       "mean_signed_error": error.mean().item(),
                       "largest": right.abs().max().item()}


def main(argv=None):
    """Measure, print the mean RMSE of each implementation and write the CSV file."""
    parser = options_for(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="one small shape, on the CPU")
    options = parser.parse_args(argv)
    device = device_for(options.dry_run)
    rows = list(measure(DRY if options.dry_run else GRID, device))
    for name, tensor in itertools.product(DTYPES, ("O", "dQ", "dK", "dV")):
        means = {}
        for row in rows:
            if (row["dtype"], row["tensor"]) == (name, tensor):
                means.setdefault(row["impl"], []).append(row["rmse"])
        print(f"{name:9} {tensor:3} mean RMSE",
              "  ".join(f"{impl} {sum(x) / len(x):.3g}" for impl, x in means.items()), flush=True)
    if options.out:
        command = ("python -m flashlib.course.bench.accuracy --out assets/measurements"
                   f" --name {options.name}")
        origin = collect(command + (" --dry-run" if options.dry_run else ""),
                         inputs="standard normal, rounded to the dtype; the reference is float64 on"
                                " the same rounded inputs",
                         plain="matmul, softmax, matmul in the dtype")
        write_csv(options.out / f"accuracy_{options.name}.csv", rows, origin)


if __name__ == "__main__":
    main()
