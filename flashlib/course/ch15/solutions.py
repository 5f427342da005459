"""Reference solutions of chapter 15."""

import numpy as np


def keys_of_part(B, H_k, N_k, sms):
    """15.1: as many parts as fit beside each other; then their keys, rounded up to whole tiles."""
    parts = max(1, sms // (B * H_k))
    return 64 * -(-N_k // (64 * parts))


def merge(a, b):
    """15.2: weigh both by exp(m − the larger m); who saw nothing weighs nothing."""
    m = max(a[0], b[0])
    if m == -np.inf:
        return a
    alpha, beta = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, alpha * a[1] + beta * b[1], alpha * a[2] + beta * b[2]


def dangling(table, lengths, page, free):
    """15.3: the entries that are followed are the first ⌈length / page⌉ of a row."""
    return {(b, j) for b, length in enumerate(lengths) for j in range(-(-length // page))
            if table[b][j] in free}


def fold(states, merge):
    """15.4: a tree of neighbors: a program's 2, 4 or 8 states are a whole branch of it."""
    while len(states) > 1:
        pairs = [merge(*states[i:i + 2]) for i in range(0, len(states) - 1, 2)]
        states = pairs + states[len(states) - len(states) % 2:]
    return states[0]
