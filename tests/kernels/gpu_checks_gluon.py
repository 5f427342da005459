"""What only a Hopper GPU can show of the Gluon kernels: 8 bits, and that the interpreter agrees.

Checks as in `gpu_checks`.
"""

from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import torch

from flashlib.kernels import flash_attention, flash_attention_fp8
from tests.kernels.behaviours import require
from tests.kernels.budget import cancellation_floor, score
from tests.kernels.problems import Problem, Shape, dense, problem, solve

FP8_LENGTHS = ((256, 256), (1024, 1024), (513, 257), (1000, 1000), (300, 100), (64, 2048),
               (1088, 1088))


@contextlib.contextmanager
def few_candidates():
    """Let `tune` try a handful of tiles, in place of all."""
    from flashlib.kernels import configs
    from flashlib.kernels.backends import triton

    with (mock.patch.multiple(triton, WARPS=(4,), STAGES=(2,)),
          mock.patch.object(configs, "GLUON_TILES", dict.fromkeys(configs.GLUON_TILES, ()))):
        yield


def check_fp8(where, attention=None, lengths=FP8_LENGTHS, heads=40):
    """FP8 on a Hopper GPU: a few per cent from float64, with masks, ragged ends and groups."""
    if attention is None:
        if where.device == "cpu" or torch.cuda.get_device_capability()[0] != 9:
            return "left out: needs a Hopper GPU"
        attention = flash_attention_fp8
    worst = 0.0
    for D, causal, (N_Q, N_K) in itertools.product((64, 128, 256), (False, True), lengths):
        case = Shape(2, heads if N_Q > 1024 else 4, 2, N_Q, N_K, D, causal)
        given = problem(case, torch.bfloat16, device=where.device)
        o, lse = attention(given.q, given.k, given.v, causal=causal, return_lse=True)
        O, LSE = dense(given)[:2]
        require(torch.equal(torch.isfinite(lse), torch.isfinite(LSE)), f"lse, {case}")
        error = ((o.double() - O).norm() / O.norm()).item()
        worst = max(worst, error)
        require(error < 0.1, f"O is off by {error:.3g}, {case}")
    return f"worst relative error {worst:.3f}"


def check_interpreted(where):
    """The Gluon kernels on the GPU and in the interpreter agree by the accuracy rule, case by case."""
    from triton import knobs

    rng, worst, cases = torch.Generator().manual_seed(0), 0.0, 0
    masks = ((False, None), (True, None), (False, (40, 10)), (False, (None, 30)))
    for seed, (D, (causal, window)) in enumerate(itertools.product((32, 64, 128, 256), masks)):
        dtype = (torch.float16, torch.bfloat16)[seed // 4 % 2 ^ seed % 2]
        for most in (70, 150, 300, 300, 600, 600, 600):
            Nq, Nk = torch.randint(1, most, (2,), generator=rng).tolist()
            given = problem(Shape(1, 2, 1 + seed % 2, Nq, Nk, D, causal, window), dtype, seed=seed)
            on_gpu = Problem(*(x.to(where.device) if torch.is_tensor(x) else x for x in given))
            backward = not (window or (causal and Nq > Nk))
            got = _of_gluon(on_gpu, backward)
            try:
                knobs.runtime.interpret = True
                expected = _of_gluon(given, backward)
            finally:
                knobs.runtime.interpret = False
            cases += 1
            for name, x, y, z in zip(("O", "lse", "dQ", "dK", "dV"), got, expected,
                                     dense(given, dtype), strict=False):
                if name == "lse":
                    torch.testing.assert_close(x.cpu(), y, rtol=1e-5, atol=1e-5)
                else:
                    result = score(x.cpu(), y.double(), z, floor=cancellation_floor(given))
                    require(result.ratio <= 1, f"{name} of {given.q.shape} on {Nk} keys, {causal},"
                            f" {window}: {result.error:.1e} > {result.allowed:.1e}")
                    worst = max(worst, result.ratio)
    require(cases >= 100, f"{cases} cases")
    return f"{cases} cases agree, at worst {worst:.2f} of what is allowed"


def _of_gluon(given, backward):
    """Return O and lse of the Gluon kernels, and with `backward` the gradients."""
    if backward:
        return solve(given, lambda *x, **y: flash_attention(*x, **y, impl="gluon"))
    options = {} if given.window is None else {"window": given.window}
    with torch.no_grad():
        return flash_attention(*given[:3], causal=given.causal, return_lse=True, impl="gluon",
                               **options)
