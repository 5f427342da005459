"""What folding into a state promises, for any backend and device: cases, and what they are held to.

Needs torch only, so that a GPU machine without pytest can use it.
"""

from __future__ import annotations

import itertools
import math

import torch

from flashlib.kernels import flash_attention, fold, ops
from flashlib.kernels.attention import check_factor
from flashlib.masks import Window
from tests.kernels.behaviours import require
from tests.kernels.budget import cancellation_floor, score
from tests.kernels.problems import NAMES, Shape, dense, problem

MORE = 1.02                                                 # times the RMSE of one call, at most
# Ragged pieces, grouped heads, rows of several tiles, rows that see nothing.
SHAPES = [Shape(1, 2, 2, 70, 150, 32), Shape(2, 4, 2, 40, 97, 64), Shape(1, 2, 1, 100, 100, 32, True),
          Shape(1, 1, 1, 90, 60, 64, True), Shape(1, 2, 1, 33, 130, 40),
          Shape(1, 1, 1, 40, 70, 128, True)]
PREFILL = Shape(1, 4, 2, 150, 150, 64, True)


def slices(N: int, P: int):
    """Return P pieces of N keys, of unlike lengths, in an order that is not theirs."""
    ends = [N * i * (i + 2) // (P * (P + 2)) for i in range(P + 1)]
    found = [slice(a, b) for a, b in itertools.pairwise(ends)]
    return found[1::2] + found[::2]


def window_of_piece(given, keys: slice) -> Window:
    """Return what a row sees of some keys: under a causal mask it lies so many beyond their last."""
    return Window(None, given.k.shape[2] - keys.stop if given.causal else None)


def folded(given, P: int, impl: str):
    """Return O, float32, and lse, in P pieces; the state is rows of a larger one, its O NaN."""
    q = given.q
    B, H, Nq, D = q.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    o = torch.full((B, H, Nq + 11, D), math.nan, dtype=wide, device=q.device)
    lse = torch.full((B, H, Nq + 11), -math.inf, dtype=wide, device=q.device)
    state = o[:, :, 3:Nq + 3], lse[:, :, 3:Nq + 3]
    for keys in slices(given.k.shape[2], P):
        right = window_of_piece(given, keys).right
        got = fold(q, given.k[:, :, keys], given.v[:, :, keys], state, scale=given.scale, impl=impl,
                   window=None if right in (None, 0) else (None, right), causal=right == 0)
        require(all(x is y for x, y in zip(got, state, strict=True)), "another state came back")
    beside = [torch.cat((x[:, :, :3], x[:, :, Nq + 3:]), 2) for x in (o, lse)]
    require(bool(beside[0].isnan().all()) and bool((beside[1] == -math.inf).all()),
            "rows beside the state were written")
    return state


def summed(given, o, lse, P: int, impl: str):
    """Return dQ, dK and dV, float32, in P pieces, with delta computed once."""
    wide = torch.float64 if given.q.dtype == torch.float64 else torch.float32
    sums = [torch.ones(x.shape, dtype=wide, device=x.device) for x in given[:3]]
    summed_into(sums, given, o, lse, P, impl)
    return [x - 1 for x in sums]


def summed_into(sums, given, o, lse, P: int, impl: str) -> None:
    """Add dQ, dK and dV of P pieces to sums."""
    delta = ops.delta_of(o, given.do, given.dlse)
    for keys in slices(given.k.shape[2], P):
        into = sums[0], sums[1][:, :, keys], sums[2][:, :, keys]
        ops.backward(given.q, given.k[:, :, keys], given.v[:, :, keys], None, lse, given.do, None,
                     window_of_piece(given, keys), check_factor(given.scale, given.q.shape[3]), impl,
                     into=into, delta=delta)


def rmse(x, y) -> float:
    """Return the root mean square of the finite differences."""
    there = torch.isfinite(y)
    return (x.double() - y)[there].square().mean().sqrt().item()


def hold(name: str, got, expected, plain, one, given) -> float:
    """Hold a tensor by the accuracy rule, and 16 bits by the RMSE of one call; return the ratio."""
    if name == "lse":
        require(torch.equal(torch.isinf(got), torch.isinf(expected)), "−∞ in lse")
        there = torch.isfinite(expected)
        torch.testing.assert_close(got[there].double(), expected[there], rtol=1e-5, atol=1e-5)
        return 0.0
    found = score(got.to(given.q.dtype), expected, plain, floor=cancellation_floor(given))
    require(found.ratio <= 1, f"{name}: {found.error:.2e} > {found.allowed:.2e}")
    least = rmse(one, expected)
    if given.q.dtype.itemsize > 2 or not least:
        return 0.0
    ratio = rmse(got.to(given.q.dtype), expected) / least
    require(ratio <= MORE, f"{name}: RMSE {ratio:.3f} times that of one call")
    return ratio


def check_pieces(impl, dtype, device="cpu", shapes=SHAPES, names=NAMES, seed=0, scale=None):
    """P = 2 … 8 pieces of the keys in any order: all tensors as of one call; say how near."""
    worst = 0.0
    for i, shape in enumerate(shapes):
        P = (2, 3, 8, 5, 4, 7, 6)[(i + seed) % 7]
        given = problem(shape, dtype, seed=seed + i, device=device, scale=scale, with_lse=i % 2 == 0)
        expected, plain = dense(given), dense(given, dtype)
        one = [x.detach() for x in flash_attention(*given[:3], causal=given.causal, scale=scale,
                                                   return_lse=True, impl=impl)]
        got = [*folded(given, P, impl)]
        if "dQ" in names:
            options = (Window(None, 0 if given.causal else None), check_factor(scale, shape.D), impl)
            one += ops.backward(*given[:3], *one, given.do, given.dlse, *options)
            got += summed(given, one[0], one[1], P, impl)
        for name, *found in zip(NAMES, got, expected, plain, one, strict=False):
            require(name not in names or not found[0].isnan().any(), f"{name}: error nan, {shape}")
            if name in names:
                worst = max(worst, hold(name, *found, given))
    return f"worst RMSE {worst:.2f} times that of one call"


def check_prefill(impl, dtype, device="cpu", shape=PREFILL, step=64):
    """Chunks of queries, each with its own keys and then the earlier ones, are one causal call."""
    given = problem(shape, dtype, device=device)
    expected, plain = dense(given), dense(given, dtype)
    for a in range(0, shape.Nq, step):
        rows, (q, k, v) = slice(a, a + step), given[:3]
        state = fold(q[:, :, rows], k[:, :, rows], v[:, :, rows], causal=True, impl=impl)
        if a:
            state = fold(q[:, :, rows], k[:, :, :a], v[:, :, :a], state, impl=impl)
        found = score(state[0].to(dtype), expected[0][:, :, rows], plain[0][:, :, rows])
        require(found.ratio <= 1, f"O: error {found.error:.1e}")
        torch.testing.assert_close(state[1].double(), expected[1][:, :, rows], rtol=1e-5, atol=1e-5)


def check_untouched(impl, dtype, device="cpu"):
    """Rows that see none of the keys keep their state to the bit; twice, the same bits."""
    q, k, v = problem(Shape(1, 2, 1, 150, 20, 64), dtype, device=device)[:3]
    found = []
    for _ in range(2):
        state = fold(q, k, v, impl=impl)
        state[1].mul_(1.001)                                # its own comes back from base 2
        before = [x.clone() for x in state]
        fold(q, k, v, state, causal=True, impl=impl)
        for x, y in zip(state, before, strict=True):
            require(torch.equal(x[:, :, :130], y[:, :, :130]), "a row that sees nothing has changed")
            require(not bool((x[:, :, 130:] == y[:, :, 130:]).all()), "a row that sees keys has not")
        found.append(state)
    require(all(map(torch.equal, *found)), "other bits from run to run")


def check_sink(impl, dtype, device="cpu"):
    """A state that begins with lse = sink and O = 0 is attention with that sink."""
    given = problem(Shape(1, 2, 2, 40, 80, 32), dtype, device=device)._replace(
        sink=torch.tensor([2.0, -1.0], device=device))
    expected, plain = dense(given), dense(given, dtype)
    o = torch.zeros(given.q.shape, device=device)
    lse = given.sink[None, :, None].expand(1, 2, 40).clone()
    fold(*given[:3], (o, lse), impl=impl)
    require(score(o.to(dtype), expected[0], plain[0]).ratio <= 1, "O: error")
    torch.testing.assert_close(lse.double(), expected[1], rtol=1e-5, atol=1e-5)


def check_far_apart(impl, dtype, device="cpu"):
    """Two parts whose lse lie 150 apart: the smaller counts for nothing, and nothing overflows."""
    given = problem(Shape(1, 1, 1, 20, 64, 32), dtype, device=device)
    q, k, v = given[:3]
    q[..., 0], k[..., 0] = 10.0, 0.0
    k[:, :, 32:, 0] = 85.0                                  # scores grow by 850 / √32 = 150
    for first, second in ((slice(0, 32), slice(32, 64)), (slice(32, 64), slice(0, 32))):
        o, lse = fold(q, k[:, :, first], v[:, :, first], impl=impl)
        o, lse = fold(q, k[:, :, second], v[:, :, second], (o, lse), impl=impl)
        right = dense(given._replace(q=q, k=k[:, :, 32:], v=v[:, :, 32:], dlse=None))[0]
        require((o - right).abs().max().item() <= (2e-2 if dtype.itemsize == 2 else 1e-4), "O: error")
        require(bool(torch.isfinite(lse).all()), "lse: error nan")


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items())
          if name.startswith("check_") and name != "check_factor"}
