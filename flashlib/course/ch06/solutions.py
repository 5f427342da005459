"""Reference solutions of chapter 06."""

import math

import numpy as np

from flashlib.models.blocks import working_set_bytes


def skips(rows, keys, Nq, Nk):
    """Tell whether a causal mask, aligned bottom right, hides the whole tile."""
    return keys.start > rows.stop - 1 + Nk - Nq


def v1_read_bytes(N, d, Br, Bc, element_bytes, stats_bytes):
    """Return the bytes that v1 reads, unmasked: K, V once; Q, O, m, l once per key tile."""
    Tc = math.ceil(N / Bc)
    elements = 2 * N * d + 2 * Tc * N * d
    statistics = 2 * Tc * N
    return elements * element_bytes + statistics * stats_bytes


def merge_tile(O, m, l, S, V):
    """Return (O, m, l) after one more tile with logits S (rows, keys) and values V (keys, d)."""
    m_tile = S.max(axis=1)
    P = np.exp(S - m_tile[:, None])
    m_new = np.maximum(m, m_tile)
    kept = np.exp(m - m_new) * l                       # old mass, in units of e^m_new
    fresh = np.exp(m_tile - m_new)
    l_new = kept + fresh * P.sum(axis=1)
    O_new = (kept[:, None] * O + fresh[:, None] * (P @ V)) / l_new[:, None]
    return O_new, m_new, l_new


def choose_blocks(sram_bytes, d):
    """Return the multiples of 16 (Br, Bc) that fit flash_v2 and move the fewest bytes."""
    Bc = 16                                            # v2's traffic does not depend on it
    Br = 16
    while working_set_bytes("flash_v2", Br=Br + 16, Bc=Bc, d=d) <= sram_bytes:
        Br += 16
    return Br, Bc
