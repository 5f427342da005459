"""Reference solutions of chapter 14."""

import math

import numpy as np


def room_for(tau, largest):
    """14.1: 2^(shift + tau) may be `largest` at most."""
    return math.floor(math.log2(largest) - tau)


def polynomial_exp(x, c):
    """14.2: clamp, part into n·ln 2 and a rest, Horner, scale. Below −87 the weight is 0."""
    clamped = np.maximum(x, -88.0)
    n = np.floor(clamped / np.log(2))
    r = clamped - n * np.log(2)
    p = np.full_like(r, c[-1])
    for smaller in c[-2::-1]:
        p = p * r + smaller
    return np.where(x < -87, 0.0, np.ldexp(p, n.astype(int)))


def lazy_step(m, l, O, S, V, tau):
    """14.3: a row renews its maximum if it grew by more than tau; P, l and O follow the same m."""
    top = np.maximum(m, S.max(axis=1))
    m_new = np.where(top - m > tau, top, m)
    alpha, P = np.exp2(m - m_new), np.exp2(S - m_new[:, None])
    return m_new, alpha * l + P.sum(axis=1), alpha[:, None] * O + P @ V


def best_share(E, A, B):
    """14.4: (1 − y)·E = A + y·B, and nothing is moved to lanes that are the later ones already."""
    return max(0.0, (E - A) / (E + B))
