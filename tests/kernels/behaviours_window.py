"""What every backend of `flash_attention` that takes windows must do with them, a function each.

As in `behaviours`: the same list runs on every such backend, and a failure is an assertion.
"""

from __future__ import annotations

import math
import random

import torch

from tests.kernels.behaviours import close, require
from tests.kernels.problems import dense, solve


def windows(N):
    """Return windows that are narrow, wider than a tile, one-sided, and wider than everything."""
    return ((0, 0), (1, 0), (0, 2), (17, 0), (N // 2, 5), (5, N // 2), (None, 3), (N // 3, None),
            (None, None), (4 * N, 0), (4 * N, 4 * N))


def check_window_values(at):
    """O, lse and all gradients equal float64, for more rows than keys, fewer and as many."""
    for Nq, Nk in ((at.N, at.N), (at.N, 2 * at.N + 1), (at.N + 7, at.N // 2), (1, at.N), (at.N, 1)):
        for window in windows(at.N):
            given = at.problem(1, 2, 1, Nq, Nk, 16)._replace(window=window)
            close(solve(given, at), dense(given), at.dtype, f"{Nq}×{Nk} {window}")


def check_window_at_random(at, times=12):
    """O, lse and all gradients equal float64 where nobody chose lengths, window, mask or heads."""
    draw = random.Random(1729)
    for _ in range(times):
        Nq, Nk = (draw.randint(1, 2 * at.N) for _ in range(2))
        window = tuple(draw.choice((None, draw.randint(0, at.N))) for _ in range(2))
        H, D, causal = draw.choice((1, 2)), draw.choice((16, 20, 64)), draw.random() < 0.25
        given = at.problem(1, 2, H, Nq, Nk, D, causal)._replace(window=window)
        close(solve(given, at), dense(given), at.dtype, f"{Nq}×{Nk} D={D} {window} causal={causal}")


def check_window_and_causal(at):
    """Causal sets right to 0; (None, 0) is causal, (None, None) full, bit for bit."""
    for Nq, Nk in ((at.N, at.N), (at.N, at.N + 9), (at.N + 9, at.N)):
        given = at.problem(1, 1, 1, Nq, Nk, 16)
        for causal, window, same_causal, same_window in (
                (False, (None, 0), True, None), (True, (None, None), True, None),
                (True, (9, 7), False, (9, 0)), (True, (9, 0), False, (9, 0)),
                (False, (None, None), False, None)):
            got = solve(given._replace(causal=causal, window=window), at)
            expected = solve(given._replace(causal=same_causal, window=same_window), at)
            for x, y in zip(got, expected, strict=True):
                require(torch.equal(x, y), f"causal={causal} with {window} at {Nq}×{Nk}")


def check_window_rows_that_see_nothing(at):
    """Where N_q > N_k + right the first rows see nothing, whatever flows into them."""
    for Nq, Nk, right in ((at.N, at.N - 27, 5), (at.N, 1, 0), (at.N + 1, 9, 3)):
        blind = Nq - Nk - right
        given = at.problem(1, 2, 1, Nq, Nk, 16)._replace(window=(11, right))
        o, lse, dq, dk, dv = solve(given, at)
        require(not o[:, :, :blind].any() and not dq[:, :, :blind].any(), "O or dQ of a blind row")
        require(bool((lse[:, :, :blind] == -math.inf).all()), "lse of a blind row")
        require(bool(torch.isfinite(lse[:, :, blind:]).all()), "lse of a seeing row")
        close((o, lse, dq, dk, dv), dense(given), at.dtype, f"{Nq}×{Nk} right {right}")
        flooded = given._replace(do=given.do.clone(), dlse=given.dlse.clone())
        flooded.do[:, :, :blind], flooded.dlse[:, :, :blind] = math.nan, math.inf
        for x, y in zip(solve(flooded, at)[2:], (dq, dk, dv), strict=True):
            require(torch.equal(x, y), "the gradient that flows into a blind row changes something")


def check_window_options(at):
    """Scale, grouped heads, strides, a list and NumPy's whole numbers, with a window."""
    import numpy as np

    for scale in (0.0, -0.5, 2.0):
        given = at.problem(2, 4, 2, at.N, at.N + 3, 16, scale=scale)._replace(window=(13, 4))
        close(solve(given, at), dense(given), at.dtype, f"scale {scale}")
    laid = given._replace(q=given.q.transpose(1, 2).contiguous().transpose(1, 2),
                          v=given.v.transpose(2, 3).contiguous().transpose(2, 3))
    close(solve(laid, at), dense(given), at.dtype, "strides")
    o = at(*given[:3], window=(13, 4))
    for same in ([13, 4], (np.int64(13), np.int32(4))):
        require(torch.equal(at(*given[:3], window=same), o), f"{same!r}")


def check_window_prefix(at):
    """Keys beyond what any row of a tile sees, before and behind, change no bit of it."""
    given = at.problem(1, 1, 1, 4 * at.N, 4 * at.N, 16)._replace(window=(3, 2))
    clean = solve(given, at)
    k, v = given.k.clone(), given.v.clone()
    k[:, :, :at.N // 2], v[:, :, :at.N // 2] = math.nan, math.nan
    k[:, :, -at.N // 2:], v[:, :, -at.N // 2:] = math.inf, math.nan
    got = solve(given._replace(k=k, v=v), at)
    middle = slice(2 * at.N - at.N // 4, 2 * at.N + at.N // 4)     # more than a tile from the poison
    for x, y in zip(got, clean, strict=True):
        require(torch.equal(x[:, :, middle], y[:, :, middle]), "a key outside every tile's window")
