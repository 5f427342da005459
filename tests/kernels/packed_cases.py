"""Packed sequences, their answer in float64, and one call a sequence. Torch only."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch

from flashlib.kernels import flash_attention, flash_attention_varlen
from tests.kernels.budget import Score, score
from tests.kernels.problems import NAMES, Problem, dense, solve


class Case(NamedTuple):
    """Lengths of the sequences, heads, the mask, and how many rows stand behind the last sequence."""

    q_lengths: tuple
    k_lengths: tuple | None
    H: int
    Hk: int
    D: int
    causal: bool = False
    window: tuple | None = None
    behind: int = 0

    def __str__(self):
        mask = "-causal" if self.causal else ""
        mask += "" if self.window is None else f"-window{self.window[0]}:{self.window[1]}"
        lengths = f"{len(self.q_lengths)} of {sum(self.q_lengths)}"
        return f"{lengths}-H{self.H}:{self.Hk}-D{self.D}{mask}-behind{self.behind}"


class Given(NamedTuple):
    """What is handed over, and the gradients that flow in; cu_k None is cu_q."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    dlse: torch.Tensor
    cu_q: torch.Tensor
    cu_k: torch.Tensor | None


def cumulative(lengths, device="cpu"):
    """Return where sequences of these lengths begin, and where the last ends."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def inputs(case, dtype=torch.float32, device="cpu", seed=0):
    """Return independent N(0, 1) numbers; what stands behind the last sequence is NaN."""
    rng = torch.Generator(device=device).manual_seed(seed)
    T_q, T_k = (sum(case.q_lengths), sum(case.k_lengths or case.q_lengths))

    def normal(rows, *more, dtype=dtype):
        x = torch.randn(rows + case.behind, *more, generator=rng, device=device).to(dtype)
        x[rows:] = math.nan
        return x

    wide = torch.promote_types(dtype, torch.float32)
    return Given(normal(T_q, case.H, case.D), normal(T_k, case.Hk, case.D),
                 normal(T_k, case.Hk, case.D), normal(T_q, case.H, case.D),
                 normal(T_q, case.H, dtype=wide).T, cumulative(case.q_lengths, device),
                 None if case.k_lengths is None else cumulative(case.k_lengths, device))


def answer(case, given, attention=flash_attention_varlen, **options):
    """Return O, lse, dQ, dK, dV of a packed call, gradients through lse included."""
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    o, lse = attention(q, k, v, given.cu_q, given.cu_k, causal=case.causal, window=case.window,
                       return_lse=True, **options)
    return (o.detach(), lse.detach(),
            *torch.autograd.grad((o, lse), (q, k, v), (given.do, given.dlse)))


def one_by_one(case, given, solver):
    """Return O, lse, dQ, dK, dV put together from what `solver` makes of each sequence's `Problem`."""
    q, k, v = given[:3]
    first = torch.promote_types(q.dtype, torch.float32)
    found = None
    ends = zip(given.cu_q.tolist(), (given.cu_q if given.cu_k is None else given.cu_k).tolist(),
               strict=True)
    for (a, c), (b, d) in itertools.pairwise(ends):
        if a == b or c == d:
            continue
        rows, keys = slice(a, b), slice(c, d)
        one = [x[at].transpose(0, 1)[None] for x, at in ((q, rows), (k, keys), (v, keys),
                                                         (given.do, rows))]
        O, LSE, *gradients = solver(Problem(*one, given.dlse[None, :, rows], case.causal, None,
                                            case.window))
        if found is None:
            found = [torch.zeros_like(q, dtype=O.dtype),
                     torch.full_like(given.dlse, -math.inf, dtype=torch.promote_types(O.dtype, first)),
                     *(torch.zeros_like(x, dtype=O.dtype) for x in (q, k, v))]
        for into, x, at in zip((found[0], *found[2:]), (O, *gradients), (rows, rows, keys, keys),
                               strict=True):
            into[at] = x[0].transpose(0, 1)
        found[1][:, rows] = LSE[0]
    return found


def alone(case, given, impl):
    """Return what one call of `flash_attention` a sequence gives."""
    return one_by_one(case, given, lambda one: solve(one, flash_attention, impl=impl))


def judge(case, given, got):
    """Return name → Score of O, lse, dQ, dK, dV by the accuracy rule."""
    right = one_by_one(case, given, dense)
    plain = [None] * 5
    if given.q.dtype.itemsize == 2:
        plain = one_by_one(case, given, lambda one: dense(one, given.q.dtype))
    scores = {}
    for name, x, y, z in zip(NAMES, got, right, plain, strict=True):
        if name != "lse":
            scores[name] = score(x, y, z)
            continue
        finite = torch.isfinite(y)
        same = torch.equal(x[~finite].double(), y[~finite])
        error = (x.double() - y)[finite].abs().max().item()
        scores[name] = Score(error if same else math.inf,
                             1e-5 * max(1.0, y[finite].abs().max().item()))
    return scores
