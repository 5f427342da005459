"""The algorithms under one calling convention, random inputs, and the settings of hypothesis."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import partial

import numpy as np
from hypothesis import HealthCheck, settings

import flashlib as fl
from flashlib import algorithms

# What needs several ranks is compared with one in tests/algorithms/test_ring.py.
SEVERAL_RANKS = {"layouts", "ring", "ring_rivals"}


def public_functions():
    """Yield every public function that a file of `flashlib.algorithms` defines, for one GPU."""
    for file in pkgutil.iter_modules(algorithms.__path__):
        if file.name in SEVERAL_RANKS:
            continue
        module = importlib.import_module(f"flashlib.algorithms.{file.name}")
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_":
                yield value


def _takes(function, *names):
    return set(names) <= inspect.signature(function).parameters.keys()


def _unblocked(algorithm):
    return lambda Q, K, V, *, Br, Bc, **kwargs: algorithm(Q, K, V, **kwargs)


# Found and not listed: whoever writes an algorithm into a file of its own has it tested here.
FUNCTIONS = {f.__name__: f for f in public_functions()}
FORWARD = {name: f for name, f in FUNCTIONS.items() if _takes(f, "Q", "K", "V", "causal", "machine")
           and not _takes(f, "dO") and not _takes(f, "drop")}
BLOCKED = [name for name, f in FORWARD.items() if _takes(f, "Br", "Bc")]

# All take (Q, K, V, *, Br, Bc, causal, window, scale, machine); those without blocks ignore them.
TILED = {name.removesuffix("_attention"): FORWARD[name] for name in BLOCKED}
TILED["flash_v4_tau8"] = partial(fl.flash_v4, tau=8.0)
STREAMED = {name.removesuffix("_attention"): _unblocked(f) for name, f in FORWARD.items()
            if name not in BLOCKED}
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
