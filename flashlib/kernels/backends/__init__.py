"""Backends, and the one place that chooses among them.

A new backend is one file here, which defines `BACKEND`, its name in `configs.BACKENDS` and in
`attention.Impl` (a test compares the two), and its place in `order`. Backends import nothing of each
other; whoever wants one asks `choose`.
"""

import importlib
from typing import Any, Protocol, runtime_checkable

import torch

from flashlib.kernels.problem import Problem
from flashlib.kernels.scores import NONE, Scores

DIRECTIONS = ("forward", "backward")
DECODED_ROWS, DECODED_KEYS = 64, 512                        # at most, and at least: see `order`


@runtime_checkable
class Backend(Protocol):
    """What can compute attention; `direction` is "forward" or "backward"."""

    name: str

    def refusal(self, p: Problem, direction: str) -> str | None:
        """Return why it cannot, with a remedy, or None."""
        ...

    def forward(self, q, k, v, p: Problem, scale: float, config=None, *,
                scores: Scores = NONE) -> tuple:
        """Return O, like q but contiguous, and lse (B, H, N_Q) float32; `scale` is not negative.

        Where it does not refuse a problem with `into`, it takes that as a keyword: O and lse, float32,
        lse contiguous and aligned, into which it folds the keys.
        """
        ...

    def backward(self, q, k, v, o, lse, do, dlse, p: Problem, scale: float, config=None, *,
                 scores: Scores = NONE) -> tuple:
        """Return dq, dk, dv, contiguous, in the dtype of their tensors; dlse may be None.

        With a sink its gradient comes fourth, (B, H). Where it does not refuse a problem with `into`,
        it takes that as a keyword, dq, dk and dv in float32 to add to, and delta, (B, H, N_Q), for o.
        """
        ...


@runtime_checkable
class Planner(Backend, Protocol):
    """A backend that runs kernels of ours, so that there is something to tune and to compile."""

    def config(self, p: Problem, direction: str) -> Any:
        """Return the configuration: what tuning found for this problem, or the table's."""
        ...

    def table(self, p: Problem, direction: str) -> Any:
        """Return the table's configuration."""
        ...

    def candidates(self, p: Problem, direction: str) -> dict[str, list]:
        """Return what tuning tries: the part of a configuration ("" for all of it) → configurations."""
        ...

    def copies(self, p: Problem, direction: str) -> bool | tuple[bool, bool]:
        """Tell whether the copy engine (TMA) reads the tensors that the kernel walks along.

        A forward and a single kernel have one answer; a backward has two, for the kernel of dK and dV
        and for that of dQ.
        """
        ...

    def plan(self, p: Problem, direction: str, config, *more) -> dict[str, Any]:
        """Return by name the plans that a call launches, and that the lens compiles."""
        ...


def order(p: Problem, impl: str, direction: str) -> tuple[str, ...]:
    """Return the names of the backends to ask, the best first; only here "auto" has a meaning."""
    if impl == "auto":
        if p.device.type != "cuda":
            return ("reference",)
        if p.sequences is not None:
            return ("triton",)
        # Few rows fill no GPU unless the keys are shared out; the batch has no say in it.
        rows = p.N_Q * p.H // p.H_K
        if direction == "forward" and rows <= DECODED_ROWS and p.N_K >= DECODED_KEYS and not p.into:
            return "decode", "triton"
        few = 256 if p.D <= 64 else 64                      # keys, half of a tile of the fused kernel
        slower = p.D <= 16 or (direction == "backward" and few >= p.N_K)    # on an H200
        return ("triton",) if slower else ("gluon", "triton")
    if direction == "backward" and impl in ("gluon", "decode"):     # they need only O and lse
        return ("gluon", "triton") if impl == "gluon" else ("triton",)
    return (impl,)


def named(name: str) -> Backend:
    """Return the backend of that name; ImportError says what it misses."""
    return importlib.import_module(f"{__name__}.{name}").BACKEND


def choose(p: Problem, impl: str, direction: str) -> Backend:
    """Return the `Backend` for a problem; NotImplementedError lists why each cannot, and the remedy."""
    key = impl, direction
    backend = p.made.get(key)
    if backend is None:
        backend = p.made[key] = _choose(p, impl, direction)
    return backend


def _choose(p: Problem, impl: str, direction: str) -> Backend:
    if p.dtype == torch.bfloat16 and p.device.capability and p.device.capability < (8, 0):
        raise NotImplementedError("q: bfloat16 needs compute capability 8.0 or newer, got"
                                  f" {'.'.join(map(str, p.device.capability))}: use float16")
    reasons = []
    for name in order(p, impl, direction):
        try:
            backend = named(name)
        except ImportError as error:
            reasons.append(f"impl: expected a backend of this machine, got {name!r}, which does not"
                           f" import: {error}. Use impl='reference'"
                           + (", or a Linux machine with Triton" if error.name == "triton" else ""))
            continue
        reason = backend.refusal(p, direction)
        if reason is None:
            return backend
        reasons.append(reason)
    raise NotImplementedError("; ".join(reasons))
