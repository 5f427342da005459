"""The algorithms under one calling convention, random inputs, and the settings of hypothesis."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import HealthCheck, settings

import flashlib as fl


def _unblocked(algorithm):
    return lambda Q, K, V, *, Br, Bc, **kwargs: algorithm(Q, K, V, **kwargs)


# Every one takes (Q, K, V, *, Br, Bc, causal, scale, machine); those without blocks ignore them.
TILED = {
    "standard": fl.standard_attention,
    "flash_v1": fl.flash_v1,
    "flash_v2": fl.flash_v2,
    "flash_v3": fl.flash_v3,
    "flash_v4": fl.flash_v4,
    "flash_v4_tau8": partial(fl.flash_v4, tau=8.0),
}
STREAMED = {
    "multi_pass": _unblocked(fl.multi_pass_attention),
    "one_pass": _unblocked(fl.one_pass_attention),
}
IDEAL = {"ideal": _unblocked(fl.standard_attention)}
ATTENTION = TILED | IDEAL | STREAMED
SOFTMAX = {"naive": fl.naive_softmax, "safe": fl.safe_softmax, "online": fl.online_softmax}

# The same examples in every run: a red test is red for everyone.
PROPERTY = settings(max_examples=25, deadline=None, derandomize=True, database=None,
                    suppress_health_check=list(HealthCheck))


def normal(seed, *shapes, dtype=np.float64):
    """Return one array of independent N(0, 1) numbers per shape."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def qkv(seed, Nq, Nk, d, dtype=np.float64):
    """Return random Q (Nq, d), K and V (Nk, d)."""
    return normal(seed, (Nq, d), (Nk, d), (Nk, d), dtype=dtype)


def shape_id(Nq, Nk, d, Br, Bc):
    """Return a readable test id such as N63-d16-Br8-Bc5."""
    length = f"N{Nq}" if Nq == Nk else f"Nq{Nq}-Nk{Nk}"
    return f"{length}-d{d}-Br{Br}-Bc{Bc}"
