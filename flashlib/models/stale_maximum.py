"""What a maximum that is out of date costs and saves: rescales skipped, and mass lost in eight bits.

Logits here are in units of log 2, as `flash_v4`'s threshold: 2 to the difference is the weight.
Taught in notebook 14.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flashlib.arguments import check_array, check_block, check_share
from flashlib.quant import E4M3_MAX


class Rescales(NamedTuple):
    """Steps at which there was something to rescale, and those at which it was done.

    A step is one key tile after the first, of one row (`row_…`) or of one row tile (`tile_…`), which
    rescales as soon as one of its rows does.
    """

    row_steps: int
    row_rescales: int
    tile_steps: int
    tile_rescales: int

    @property
    def rows_skipped(self) -> float:
        """The share of (row, key tile) steps that kept the old maximum."""
        return 1 - self.row_rescales / self.row_steps if self.row_steps else 1.0

    @property
    def tiles_skipped(self) -> float:
        """The share of (row tile, key tile) steps at which no row took a new maximum."""
        return 1 - self.tile_rescales / self.tile_steps if self.tile_steps else 1.0


def rescales(votes: Sequence[tuple[tuple[int, int], int]]) -> Rescales:
    """Sum up `trace.votes("rescale")` of `flash_v4`; the first step of a row tile does not count.

    At its first key tile a row takes its first maximum, and its O and l are still zero.
    """
    seen: set[tuple[int, int]] = set()
    row_steps = row_rescales = tile_steps = tile_rescales = 0
    for rows, grown in votes:
        if rows in seen:
            row_steps += rows[1] - rows[0]
            row_rescales += grown
            tile_steps += 1
            tile_rescales += grown > 0
        seen.add(rows)
    return Rescales(row_steps, row_rescales, tile_steps, tile_rescales)


class References(NamedTuple):
    """What a row subtracts at every key tile, and whether it was renewed there; (rows, tiles) each."""

    m: np.ndarray
    renewed: np.ndarray


def references(maxima, tau) -> References:
    """Return the maximum that every row uses at every key tile, which lags by at most `tau`.

    Args:
        maxima: (rows, tiles), the largest logit of each tile, in units of log 2.
        tau: see `flash_v4`.
    """
    maxima, tau = check_array("maxima", maxima, ndim=2), check_share("tau", tau, 64.0)
    m = np.full(len(maxima), np.finfo(maxima.dtype).min)
    used, renewed = np.empty_like(maxima), np.empty(maxima.shape, bool)
    for j, top in enumerate(maxima.T):
        renewed[:, j] = top - m > tau
        used[:, j] = m = np.where(renewed[:, j], top, m)
    return References(used, renewed)


class Mass(NamedTuple):
    """Of every row: O where V = 1, which should be 1, and how many weights did not fit the format."""

    kept: np.ndarray
    saturated: np.ndarray


def mass(logits, *, Bc, tau=0.0, offset=0.0, round_to: Callable = lambda P: P,
         largest=E4M3_MAX) -> Mass:
    """Run a row's online softmax with weights P rounded for P·V, and sum both P and its rounding.

    P = 2^(S − m + offset): the offset moves the weights into the range of an eight-bit format. l adds
    P as it was computed, O adds what the format made of it, and at V = 1 their quotient is the mass
    that is left.

    Args:
        logits: (rows, N), in units of log 2.  Bc: keys of a tile.
        tau: see `flash_v4`.  offset: added to every exponent.
        round_to: the rounding of P; `quant.round_to` for e4m3.
        largest: of the format; a weight above it counts as saturated.
    """
    S = check_array("logits", logits, ndim=2)
    tau, Bc = check_share("tau", tau, 64.0), check_block("Bc", Bc)
    m = np.full(len(S), np.finfo(S.dtype).min)
    l, O, saturated = np.zeros(len(S)), np.zeros(len(S)), np.zeros(len(S), int)
    for start in range(0, S.shape[1], Bc):
        tile = S[:, start:start + Bc]
        top = np.maximum(m, tile.max(axis=1))
        m_new = np.where(top - m > tau, top, m)
        alpha, m = np.exp2(m - m_new), m_new
        P = np.exp2(tile - m[:, None] + offset)
        l = alpha * l + P.sum(axis=1)
        O = alpha * O + round_to(P).sum(axis=1)
        saturated += np.sum(largest < P, axis=1)
    return Mass(O / l, saturated)
