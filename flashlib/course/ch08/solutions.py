"""Reference solutions of chapter 08."""

import numpy as np


def count_waves(batch, heads, N, Br, sms):
    """08.1: one program per row tile of every head, and two ceilings."""
    return -(-batch * heads * -(-N // Br) // sms)


def update(O, m, l, S, V):
    """08.2: v2's update. O stays unfinished, in units of m; nothing is divided."""
    m_new = np.maximum(m, S.max(axis=1))
    alpha, P = np.exp(m - m_new), np.exp(S - m_new[:, None])
    return alpha[:, None] * O + P @ V, m_new, alpha * l + P.sum(axis=1)


def count_classes(N, Br, Bc):
    """08.3: per row tile, keys up to its first row are full, up to its last row visited."""
    full = partial = 0
    for start in range(0, N, Br):
        last = min(start + Br, N) - 1                    # the last row sees keys 0 … last
        visited = -(-(last + 1) // Bc)
        whole = N // Bc + (N % Bc > 0) if start + 1 >= N else (start + 1) // Bc
        full, partial = full + whole, partial + visited - whole
    return full, partial, -(-N // Br) * -(-N // Bc) - full - partial


def split_k_exchange(Br, d, warps, stats_bytes, accumulator_bytes):
    """08.4: m is read by every warp, l and O by the owner of a row; one barrier for each stage."""
    m = (warps + warps * warps) * Br * stats_bytes
    l = 2 * warps * Br * stats_bytes
    return 2, m + l + 2 * warps * Br * d * accumulator_bytes
