"""Reference solutions of chapter 17."""

import math

import numpy as np


def length(C, faster, wanted):
    """17.1: (1 + x) / (1 + x / faster) = wanted, solved for x = N / (12·C)."""
    return 12 * C * (wanted - 1) / (1 - wanted / faster) if wanted < faster else math.inf


def longest(L, H, C, element_bytes, room):
    """17.2: standard's bytes grow with N², ours with N."""
    each, P, one = room // L, H * element_bytes, C * element_bytes
    standard = (math.isqrt((3 * one) ** 2 + 4 * P * each) - 3 * one) // (2 * P)
    return standard, each // (4 * one + 4 * H)


def at_once(weights, L, H_k, d, N, element_bytes, bytes_per_s, wanted):
    """17.3: B tokens read the weights once and B caches, which leave less of the rate."""
    left = bytes_per_s - wanted * 2 * L * H_k * d * N * element_bytes
    return math.ceil(wanted * weights * element_bytes / left) if left > 0 else math.inf


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
