"""The Triton passes around the fused backward, in Triton's interpreter, beside their twins on the CPU.

Run as a module it prints JSON: case → "" or what differed.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import itertools
import json

import torch

from flashlib.kernels import sums
from flashlib.kernels.backends import gluon
from flashlib.kernels.plans import Launch
from flashlib.kernels.problem import Problem
from flashlib.masks import window_of
from tests.quick_interpreter import quicken

MASKS = {"none": (False, None), "causal": (True, None), "window": (False, (40, 10)),
         "narrow window": (False, (0, 0))}
LENGTHS = ((130, 300), (200, 70), (600, 300))


def before(p, o, do, lse, dlse, scale):
    """Return what differs between the pass before and its twin."""
    made, twin = sums.buffers(p, gluon.head_dim_of(p)), sums.buffers(p, gluon.head_dim_of(p))
    for x in made[:3]:
        x.fill_(7)
    Launch(sums.before(p), p)(o, do, lse, dlse, *made[:3], 1 / scale)
    sums.before_on_cpu(o, do, lse, dlse, twin, scale)
    names = ("lse", "delta", "locks")
    return [name for name, x, y in zip(names, made, twin, strict=False)
            if not torch.allclose(x.float(), y.float(), rtol=1e-5, atol=1e-5)]


def after(p, visited, scale):
    """Return what differs between the pass after and its twin, on sums that the kernel would write."""
    head_dim = gluon.head_dim_of(p)
    x = torch.randn(sums.buffers(p, head_dim)[3].shape)
    parts = x.view(sums.count(p), sums.tiles(p), -1)
    parts[~visited] = sums.UNWRITTEN
    got, twin = (torch.full((p.B, p.H, p.N_Q, p.D), 9.0, dtype=torch.float32) for _ in range(2))
    Launch(sums.after(p, head_dim), p)(x, got, scale)
    sums.after_on_cpu(x, twin, p, head_dim, scale)
    return [] if torch.allclose(got, twin, rtol=1e-6, atol=1e-6) else ["dQ"]


def visited_of(p):
    """Return which tiles of which sum some key tile adds to: from the pairs that the mask leaves."""
    M, tiles_q, tiles_k = 64, -(-p.N_Q // 64), -(-p.N_K // 128)
    if sums.count(p) == 2:
        first = torch.ones(tiles_q, dtype=torch.bool)
        second = torch.arange(tiles_q) < min(2 * (tiles_k - 1), (tiles_k - 1) * tiles_q // tiles_k)
        return torch.stack([first, second]).repeat(1, p.B * p.H).view(2, -1)
    left, right = (p.N_Q + p.N_K, 0) if p.causal else p.sides
    i, j = torch.arange(tiles_q * M)[:, None], torch.arange(tiles_k * 128)      # tiles are whole
    off = j - i - (p.N_K - p.N_Q)
    seen = ((off >= -left) & (off <= right)).view(tiles_q, M, -1).any(1)
    return seen.any(1).repeat(p.B * p.H).view(1, -1)


def cases():
    product = itertools.product((32, 64, 96), MASKS.items(), LENGTHS)
    for D, (name, (causal, window)), (N_Q, N_K) in product:
        generator = torch.Generator().manual_seed(D + N_Q)
        o, do = (torch.randn(1, 2, N_Q, D, generator=generator).half() for _ in range(2))
        k = torch.randn(1, 2, N_K, D, generator=generator).half()
        lse, dlse = (torch.randn(1, 2, N_Q, generator=generator) for _ in range(2))
        lse[0, 0, 0] = -torch.inf
        p = Problem.of(o, k, k, o, do, window=window_of(causal, window))
        wrong = before(p, o, do, lse, None if D == 64 else dlse, 0.3)
        yield f"{D} {name} {N_Q} {N_K}", ", ".join(wrong + after(p, visited_of(p), 0.3))


if __name__ == "__main__":
    quicken()
    print(json.dumps(dict(cases())))
