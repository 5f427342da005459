"""Reference solutions of chapter 17."""

import numpy as np


def gain(N, C, faster):
    """17.1: attention's time over the matrices' is N / (12·C); Amdahl's law does the rest."""
    over = N / (12 * C)
    return (1 + over) / (1 + over / faster)


def kept(B, H, N, C, element_bytes):
    """17.2: P is B·H·N²; ours keeps Q, K, V and O, and one lse of 4 bytes a row and head."""
    shared = 3 * B * N * C * element_bytes
    return (shared + B * H * N * N * element_bytes,
            shared + B * N * C * element_bytes + 4 * B * H * N)


def tokens_per_s(weights, L, H_k, d, N, element_bytes, bytes_per_s):
    """17.3: a token reads every weight once, and K and V of all layers."""
    return bytes_per_s / (element_bytes * (weights + 2 * L * H_k * d * N))


def first_leak(model, tokens):
    """17.4: change one token; whatever changes before it has looked ahead."""
    right = np.asarray(model(tokens))
    for at in range(len(tokens) - 1, 0, -1):
        other = np.array(tokens)
        other[at] += 1
        changed = np.any(np.asarray(model(other))[:at] != right[:at], axis=-1)
        if changed.any():
            return int(np.argmax(changed)), at
    return None
