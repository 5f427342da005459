"""Problems of the backward pass: shapes, masks and orders, and how close two gradients must be."""

import numpy as np
import pytest

import flashlib as fl
from tests.cases import normal, qkv

SHAPES = [                         # Nq, Nk, d, Br, Bc
    (1, 1, 1, 1, 1),
    (2, 2, 1, 1, 2),
    (13, 13, 4, 1, 1),
    (63, 63, 16, 8, 5),
    (97, 97, 40, 32, 17),
    (5, 5, 3, 64, 64),
    (33, 33, 59, 8, 16),
    (40, 70, 8, 16, 16),
    (70, 40, 8, 16, 16),
    (3, 50, 5, 2, 7),
    (50, 3, 5, 7, 2),
    (9, 1, 4, 2, 2),
    (1, 9, 4, 2, 3),
    (0, 7, 4, 2, 2),
    (7, 0, 4, 2, 2),
    (0, 0, 4, 2, 2),
]
NAMES = ("dQ", "dK", "dV")

either_order = pytest.mark.parametrize("order", ["kv", "q"])
either_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def problem(seed, Nq, Nk, d, *, causal=False, window=None, scale=None, dtype=np.float64):
    """Return Q, K, V, O, lse, dO and dlse."""
    Q, K, V = qkv(seed, Nq, Nk, d, dtype)
    dO, dlse = normal(seed + 1, (Nq, d), (Nq,), dtype=dtype)
    O, lse = fl.flash_v2(Q, K, V, Br=5, Bc=4, causal=causal, window=window, scale=scale)
    return Q, K, V, O, lse, dO, dlse


def assert_gradients(got, expected, dtype=np.float64, what="", factor=64):
    for name, a, b in zip(NAMES, got, expected, strict=True):
        assert a.shape == b.shape and a.dtype == dtype
        size = np.abs(b).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=0, atol=factor * np.finfo(dtype).eps * size,
                                   err_msg=f"{name} {what}")
