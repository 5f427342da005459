"""Closed forms of training, reached as `models.traffic.flash_backward` and so on."""

from __future__ import annotations

import numpy as np

from flashlib.traffic import Traffic


def flash_backward(grid, Nq, Nk, d, Bc, order, dlse, e, s, a) -> Traffic:
    """Return what `flash_backward` costs on a grid of visited tiles.

    Per tile of b rows and c keys: scale, subtract lse, dP − delta, ∘ P, · scale 5bc, two masks where
    a mask cuts through, lse b; dV and dK 2cd in the K/V pass, dQ bd where it is accumulated; bc exps.
    """
    touched, area, keys = grid.touched, grid.area, int(np.sum(grid.keys))
    b, c, seen = grid.b, grid.c, grid.visited > 0
    largest = int(max(grid.b, default=0))
    kv = order == "kv"

    by_tensor = {
        "O": (e * Nq * d, 0),
        "dO": (e * (Nq + touched + (0 if kv else Nq)) * d, 0),
        "delta": (s * (touched + (0 if kv else Nq)), s * Nq),
        "lse": (s * (touched + (0 if kv else Nq)), 0),
        "dlse": (s * Nq * dlse, 0),
        "Q": (e * (touched + (0 if kv else Nq)) * d, 0),
        "K": (e * (Nk + (0 if kv else keys)) * d, 0),
        "V": (e * (Nk + (0 if kv else keys)) * d, 0),
        "dQ": ((e * touched * d, e * (Nq + touched) * d) if kv else (0, e * Nq * d)),
        "dK": (0, e * Nk * d),
        "dV": (0, e * Nk * d),
    }

    per_pass = 5 * area + 2 * grid.masked + touched
    vector = 2 * Nq * d + Nq * dlse + per_pass + 2 * keys * d
    matmul, exps = 8 * area * d, area
    if kv:
        vector, matmul = vector + touched * d, matmul + 2 * area * d
    else:
        vector, matmul, exps = vector + per_pass + touched * d, matmul + 6 * area * d, exps + area

    pre = largest * (2 * d * e + s + s * dlse)
    pair_kv = 2 * c * d * (e + a) + b * (2 * d * e + 2 * s + 2 * c * e + (d * a if kv else 0))
    main = max(2 * min(Bc, Nk) * d * (e + a), int(max(pair_kv[seen], default=0)))
    rows_q = b * (2 * d * e + 2 * s + d * a) + 2 * c * e * (d + b)
    last = largest * d * a if kv else int(max(rows_q, default=0))
    return Traffic.of(by_tensor, matmul, vector, exps, max(pre, main, last))


def _standard(by_tensor, matmul, vector, exps, peak, e) -> Traffic:
    bytes_of = {"keep": 1}
    return Traffic.of({name: tuple(int(n) * bytes_of.get(name, e) for n in counts)
                       for name, counts in by_tensor.items()}, matmul, vector, exps, peak)


def standard_training_forward(Nq, Nk, d, dropout, masked, e, s, a) -> Traffic:
    """Return what `standard_training_forward` costs; `masked` says whether any pair is hidden."""
    drops, area = int(dropout), Nq * Nk
    by_tensor = {"Q": (Nq * d, 0), "K": (Nk * d, 0), "V": (Nk * d, 0), "O": (0, Nq * d),
                 "S": (2 * area, 2 * area), "P": (area, area), "keep": (drops * area, 0),
                 "Z": (drops * area, drops * area)}
    vector = (5 + 2 * drops) * area + masked * area + 2 * Nq * (Nk > 0)
    peak = max(e * (Nq * d + Nk * d + area), e * area + 2 * s * Nq * (Nk > 0),
               drops * (e + 1) * area, e * (area + Nk * d) + a * Nq * d)
    return _standard(by_tensor, 4 * area * d, vector, area, peak, e)


def standard_backward(*, Nq, Nk, d, dropout=False, element_bytes=2, stats_bytes=4,
                      accumulator_bytes=4) -> Traffic:
    """Return what `standard_backward` costs: 7·Nq·Nk + 4·Nq·d + 4·Nk·d elements.

    Dropout adds two passes and a mask of one byte per weight.
    """
    e, s, a, area = element_bytes, stats_bytes, accumulator_bytes, Nq * Nk
    drops = int(dropout)
    by_tensor = {"Q": (Nq * d, 0), "K": (Nk * d, 0), "V": (Nk * d, 0), "dO": (2 * Nq * d, 0),
                 "dQ": (0, Nq * d), "dK": (0, Nk * d), "dV": (0, Nk * d),
                 "P": ((2 - drops) * area, 0), "Z": (drops * area, 0), "keep": (drops * area, 0),
                 "dZ": (drops * area, drops * area), "dP": (area, area), "dS": (2 * area, area)}
    vector = (5 + 2 * drops) * area
    peak = max(e * (area + Nq * d) + a * Nk * d, e * (area + Nq * d + Nk * d),
               drops * (e + 1) * area, 2 * e * area + s * Nq,
               e * (area + Nk * d) + a * Nq * d)
    return _standard(by_tensor, 8 * area * d, vector, 0, peak, e)
