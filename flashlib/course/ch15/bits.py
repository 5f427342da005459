"""Decode one sequence, cut as a program is told to, in float32 or bfloat16: which cut, which bits."""

import functools

import numpy as np

from flashlib.algorithms.state import SoftmaxState
from flashlib.numerics import round_to


def states(q, K, V, keys):
    """Return the state (m, ℓ, o) of each run of so many keys, in float32, the same on any processor."""
    S, V = q.astype(np.float64) @ K.T * q.shape[1] ** -0.5, V.astype(np.float64)
    runs = (SoftmaxState.of(S[:, at:at + keys], V[at:at + keys]) for at in range(0, len(K), keys))
    return [SoftmaxState(*(np.float32(x) for x in (run.m, run.l, run.o))) for run in runs]


def merged(found):
    """Return the merge of states from the first to the last."""
    return functools.reduce(SoftmaxState.merge, found)


def in_parts(q, K, V, parts):
    """Return O with the keys in so many equal parts, merged in their order."""
    return merged(states(q, K, V, -(-len(K) // parts))).finish()[0]


def in_bfloat16(q, K, V, parts, *, weights):
    """Return O in bfloat16, from inputs in bfloat16, in so many parts of tiles of 64 keys.

    With `weights` each P is rounded, too, before it multiplies V, as a tensor core wants it. P is
    relative to the maximum of the keys of the part so far, so that it depends on the cut.
    """
    q, K, V = (round_to(x, "bfloat16").astype(np.float32) for x in (q, K, V))
    S = np.float32(q.astype(np.float64) @ K.T * q.shape[1] ** -0.5)
    keys, found = -(-len(K) // parts), []
    for begin in range(0, len(K), keys):
        m, l, o = np.float32(-1e30), np.float32(0), np.float32(0)
        for at in range(begin, min(begin + keys, len(K)), 64):
            tile = slice(at, min(at + 64, begin + keys))
            new = np.maximum(m, S[:, tile].max(1, keepdims=True))
            alpha, P = np.exp(m - new), np.exp(S[:, tile] - new)
            l = l * alpha + np.float32(P.sum(1, dtype=np.float64, keepdims=True))
            P = round_to(P, "bfloat16").astype(np.float32) if weights else P
            m, o = new, o * alpha + np.float32(P.astype(np.float64) @ V[tile])
        found.append(SoftmaxState(m[:, 0], l[:, 0], o))
    return round_to(merged(found).finish()[0], "bfloat16").astype(np.float32)


def in_units(q, K, V, each, unit=256, run=8):
    """Return O where a program takes `each` of the units of a run, and the merge does the rest.

    Units of a run are merged in their order, then the runs: by the program as far as it has them.
    """
    units = states(q, K, V, unit)
    programs = [merged(units[i:i + each]) for i in range(0, len(units), each)]
    runs = [merged(programs[i:i + run // each]) for i in range(0, len(programs), run // each)]
    return merged(runs).finish()[0]


def changed(a, b) -> int:
    """Return how many elements have other bits."""
    return int(np.count_nonzero(a.view(np.uint32) != b.view(np.uint32)))
