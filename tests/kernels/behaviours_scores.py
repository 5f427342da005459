"""What every backend of `flash_attention` that takes softcap, ALiBi or sinks must do, a function each.

As in `behaviours`: the same list runs on every such backend, and a failure is an assertion.
"""

from __future__ import annotations

import math
import random

import torch

from tests.kernels.behaviours import TOLERANCE, close, require
from tests.kernels.problems import dense, off, solve

MASKS = ((False, None), (True, None), (False, (9, 5)), (True, (30, 0)))
# softcap, dimensions of the slopes, whether there is a sink
OPTIONS = ((2.0, 0, False), (None, 1, False), (None, 0, True), (5.0, 2, True))


def scored(at, given, softcap=None, slopes=0, sink=False, seed=5):
    """Return a problem with scores: slopes of unlike size, sinks around the lse of its rows."""
    dtype = given.q.dtype
    (B, H), rng = given.q.shape[:2], torch.Generator().manual_seed(seed)
    alibi = (torch.rand((B, H)[2 - slopes:], generator=rng) * 0.4).to(at.device) if slopes else None
    sinks = 3 + 2 * torch.randn(H, generator=rng) if sink else None
    if sinks is not None:
        sinks = sinks.to(torch.float64 if dtype == torch.float64 else torch.float32).to(at.device)
    return given._replace(softcap=softcap, alibi=alibi, sink=sinks)


def check_scores_values(at):
    """O, lse and all gradients equal float64, alone and together, under every kind of mask."""
    lengths = (at.N, at.N), (at.N, at.N + 31), (at.N + 9, at.N), (3, at.N)
    for (Nq, Nk), (causal, window) in zip(lengths, MASKS, strict=True):
        for options in OPTIONS:
            given = scored(at, at.problem(2, 4, 2, Nq, Nk, 16, causal, window), *options)
            close(solve(given, at), dense(given), at.dtype, f"{Nq}×{Nk} {causal} {window} {options}")


def check_scores_at_random(at, times=10):
    """O, lse and all gradients equal float64 where nobody chose the case."""
    draw = random.Random(2718)
    for _ in range(times):
        Nq, Nk = (draw.randint(1, 2 * at.N) for _ in range(2))
        window = draw.choice((None, (draw.randint(0, at.N), None), (None, draw.randint(0, at.N))))
        H, D = draw.choice((1, 2, 4)), draw.choice((8, 16, 40, 64))
        options = (draw.choice((None, 0.5, 30.0)), draw.choice((0, 1, 2)), draw.random() < 0.5)
        given = scored(at, at.problem(draw.choice((1, 3)), 4, H, Nq, Nk, D, draw.random() < 0.4, window,
                                      scale=draw.choice((None, -0.3, 1.0))), *options)
        close(solve(given, at), dense(given), at.dtype, f"{Nq}×{Nk} D={D} {window} {options}")


def check_scores_that_do_nothing(at):
    """A softcap beyond all logits, slopes of 0 and a sink of −∞ give what a call without them does."""
    for causal in (False, True):
        given = at.problem(2, 2, 1, at.N + 5, at.N, 16, causal)
        expected = solve(given, at)
        zeros = torch.zeros(2, device=at.device)
        wide = torch.float64 if at.dtype == torch.float64 else torch.float32
        for name, value in (("softcap", 1e9), ("alibi", zeros),
                            ("sink", zeros.to(wide) - math.inf)):
            *got, = solve(given._replace(**{name: value}), at)
            require(name != "sink" or not got.pop().any(), "a sink of −∞ has a gradient")
            close(got, [x.double() for x in expected], at.dtype, f"{name} {value}")
            require(torch.equal(got[1] == -math.inf, expected[1] == -math.inf), f"{name}: −∞ in lse")


def check_scores_softcap(at):
    """No logit leaves the cap, at logits of 1e4 as well; it is taken after scale, and of its sign."""
    q, k, v, *_ = at.problem(1, 2, 2, at.N, at.N, 16)
    q, k = 40 * q.sign(), 40 * k.sign()
    _, lse = at(q, k, v, softcap=3.0, scale=1.0, return_lse=True)
    bound = 3.0 + math.log(at.N) + 1e-5
    require(bool((lse <= bound).all() and (lse >= -bound + 2 * math.log(at.N)).all()), "beyond the cap")
    for scale, softcap in ((2.0, 0.5), (-1.5, 4.0), (0.0, 1.0), (1e-3, 1e-4), (1.0, 1000.0)):
        given = at.problem(1, 2, 1, at.N, at.N, 16, scale=scale)._replace(softcap=softcap)
        close(solve(given, at), dense(given), at.dtype, f"scale {scale}, softcap {softcap}")


def check_scores_alibi(at):
    """The distance is 0 where a row lies on a key, bottom right; (H,) is (B, H) of equal rows."""
    slopes = torch.tensor([2.0 ** -n for n in (1, 4, 2, 8)], device=at.device)
    for Nq, Nk in ((at.N, at.N), (5, at.N), (at.N, at.N - 20)):
        given = at.problem(2, 4, 2, Nq, Nk, 16, scale=0.0)._replace(alibi=slopes)
        close(solve(given, at), dense(given), at.dtype, f"{Nq}×{Nk}")
        many = given._replace(alibi=slopes.expand(2, 4))
        for x, y in zip(solve(given, at), solve(many, at), strict=True):
            require(torch.equal(x, y), "(H,) and (B, H) differ")
    q = torch.zeros(1, 1, 3, 16, dtype=at.dtype, device=at.device)
    k = torch.zeros(1, 1, 5, 16, dtype=at.dtype, device=at.device)
    slope = torch.tensor([0.7], device=at.device)
    _, lse = at(q, k, k, alibi=slope, causal=True, return_lse=True)
    for i in range(3):                                      # under causal: slope · (j − i)
        right = math.log(sum(math.exp(-0.7 * n) for n in range(i + 3)))
        require(abs(lse[0, 0, i].item() - right) < 1e-5, f"row {i}: {lse[0, 0, i].item()}, {right}")


def check_scores_sink(at):
    """It adds log(1 + e^(sink − lse)) to lse, scales O, and no scale touches it; blind rows have it."""
    wide = torch.float64 if at.dtype == torch.float64 else torch.float32
    sink = torch.tensor([-2.0, 9.0], dtype=wide, device=at.device)
    for Nq, Nk, scale in ((at.N, at.N, None), (at.N + 21, at.N, 3.0), (7, 1, 0.1)):
        given = at.problem(2, 2, 1, Nq, Nk, 16, True, scale=scale)
        o, lse = solve(given, at)[:2]
        with_sink = solve(given._replace(sink=sink), at)
        new = torch.logaddexp(lse.double(), sink.double()[None, :, None])
        require(off(with_sink[1], new) <= 1e-6, "lse")
        kept = torch.exp(lse.double() - new)[..., None]
        require(off(with_sink[0], o.double() * kept) <= TOLERANCE[at.dtype], "O")
        blind = max(Nq - Nk, 0)
        require(not with_sink[0][:, :, :blind].any(), "O of a blind row")
        require(off(with_sink[1][:, :, :blind], sink.double()[None, :, None].expand(2, 2, blind))
                <= 1e-6, "lse of a blind row is the sink")
    for far in (60.0, -60.0):                               # its sum swallows the keys', or nothing
        given = at.problem(1, 2, 2, at.N, at.N, 16)._replace(sink=sink + far)
        close(solve(given, at), dense(given), at.dtype, f"sink {far}")


def check_scores_sink_gradient(at):
    """It flows through O alone, through lse alone, and to a 16-bit parameter, by its own dtype."""
    given = scored(at, at.problem(2, 4, 2, at.N, at.N, 16, True), sink=True)
    for name, way in (("O", given._replace(dlse=None)), ("lse", given._replace(do=given.do * 0))):
        got, expected = solve(way, at)[-1], dense(way)[-1]
        require(got.shape == given.sink.shape and got.dtype == given.sink.dtype, "shape or dtype")
        require(off(got, expected) <= TOLERANCE[at.dtype], f"through {name}: {off(got, expected):.1e}")
    half = given.sink.to(torch.bfloat16).requires_grad_()
    o = at(*given[:3], causal=True, sink=half)
    (of_half,) = torch.autograd.grad(o, half, given.do)
    require(of_half.dtype == torch.bfloat16, "dtype of the gradient")
    expected = dense(given._replace(sink=half.detach(), dlse=None))[-1]
    require(off(of_half, expected) <= max(1e-2, TOLERANCE[at.dtype]), "to a 16-bit sink")
    require(bool(of_half.any()), "no gradient")


def check_scores_without_keys(at):
    """With no key O is 0 and lse the sink; its gradient is the sum of what flows into lse."""
    given = scored(at, at.problem(2, 4, 2, 3, 0, 16), 2.0, 1, True)
    o, lse, *_, of_sink = solve(given, at)
    require(not o.any(), "O")
    require(torch.equal(lse, given.sink[None, :, None].expand(lse.shape)), "lse")
    require(off(of_sink, given.dlse.double().sum((0, 2))) <= 1e-6, "gradient")
    for shape in ((2, 4, 2, 0, 5, 16), (0, 4, 2, 3, 5, 16)):
        given = scored(at, at.problem(*shape), 2.0, 2, True)
        require(not solve(given, at)[-1].any(), f"gradient of nothing {shape}")


def check_scores_repeat(at):
    """Bit-identical from run to run; slopes and sinks may lie anywhere."""
    given = scored(at, at.problem(2, 4, 2, at.N, at.N, 16, True), 3.0, 2, True)
    first = solve(given, at)
    apart = given._replace(
        alibi=torch.stack([given.alibi, given.alibi], -1)[..., 1],
        sink=torch.cat([given.sink[:1], given.sink])[1:])
    for what in (given, apart):
        for x, y in zip(first, solve(what, at), strict=True):
            require(torch.equal(x, y), "differs")
