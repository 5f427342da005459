"""Reference solutions of chapter 01."""

import math
from itertools import pairwise

from flashlib.models import transformer


def longest_sequence(room_bytes, heads, element_bytes):
    """01.1: the largest N for which the S of all heads takes at most `room_bytes`."""
    return math.isqrt(room_bytes // (heads * element_bytes))


def classify(flops, hbm_bytes, flops_per_s, bytes_per_s):
    """01.2: "memory" or "compute": what takes longer."""
    return "memory" if hbm_bytes / bytes_per_s > flops / flops_per_s else "compute"


def tokens_to_compute(D, F, element_bytes, ridge):
    """01.3: the least T at which (T, D) @ (D, F) reaches the ridge, None if there is none."""
    c = ridge * element_bytes
    bracket = 2 * D * F - c * (D + F)                # what one more token adds
    return math.ceil(c * D * F / bracket) if bracket > 0 else None


def best_pair(operators, seconds):
    """01.4: the names of the two neighbors whose fusion saves most time."""
    def saved(pair):
        fused = transformer.fuse(operators, [op.name for op in pair])
        return sum(map(seconds, pair)) - seconds(fused)

    a, b = max(pairwise(operators), key=saved)
    return a.name, b.name
