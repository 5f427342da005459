"""Tune kernels in Triton's interpreter, by a clock that is made up; print JSON: name → "" or why not.

A process of its own, because TRITON_INTERPRET must be set before Triton is imported. Usage: python -m
tests.kernels.tuned_cases
"""

from __future__ import annotations

import json
import os
import warnings

os.environ["TRITON_INTERPRET"] = "1"

import torch

from flashlib.kernels import flash_attention, plans
from flashlib.kernels.backends import triton as backend
from flashlib.kernels.configs import TritonConfig, configs_for
from flashlib.kernels.problem import CAUSAL, Problem
from flashlib.kernels.tuning import search, store
from tests.kernels.problems import Shape, dense, off, problem, solve
from tests.quick_interpreter import quicken

BEST, DKDV, DQ = (TritonConfig(*c) for c in ((16, 32, 4, 1), (16, 16, 4, 1), (32, 16, 4, 1)))


def clock(call):
    """Return a time that a few configurations make short."""
    config = call.args[-1]
    parts = (config.dkdv == DKDV, config.dq == DQ) if len(config) == 5 else (config == BEST,)
    return 2.0 - 0.5 * sum(parts)


def everything():
    """Yield (name, what is wrong or "")."""
    backend.SMALL_SIZES, backend.WARPS, backend.SMALL_STAGES = (16, 32), (4,), (1,)
    given = problem(Shape(1, 2, 1, 40, 24, 16, True))
    q, k, v = given[:3]
    table = configs_for(None, 4, 16, True)

    def kept(*tensors, direction="forward"):
        return store.result_for(backend.BACKEND, Problem.of(*tensors, window=CAUSAL), direction)

    def tiles_of_plan():
        launch = plans.launches_for(backend.BACKEND, Problem.of(q, k, v, window=CAUSAL), "forward")
        return tuple(launch["forward"].plan.constants[name] for name in ("BLOCK_M", "BLOCK_N"))

    trials = search.tune_kernels(q, k, v, CAUSAL, 0.25, "triton", True, clock)
    told = [(t.kernel, t.config, t.milliseconds) for t in trials if t.note == "kept"]
    rows = table._replace(dkdv=DKDV, dq=DQ)
    expected = [("triton_forward", BEST, 1.5), ("triton_backward", rows, 1.0)]
    wrong = [t for t in trials if t.note not in ("", "table", "kept")]
    tables = [t.config for t in trials if t.note == "table"]
    yield "the trials", "" if told == expected and not wrong and tables == [table.forward, table] else (
        str(trials))
    found = [kept(q, k, v), kept(q, k, v, q, q, direction="backward")]
    yield "what was kept", "" if found == [BEST, rows] else str(found)
    yield "the plan", "" if tiles_of_plan() == BEST[:2] else str(tiles_of_plan())
    got = solve(given, flash_attention, impl="triton")
    errors = [off(x, y) for x, y in zip(got, dense(given), strict=True)]
    yield "forward", "" if max(errors[:2]) < 1e-5 else str(errors)
    yield "gradients", "" if max(errors[2:]) < 1e-5 else str(errors)
    narrow = [x[..., :8].half() for x in (q, k, v)]
    search.tune_kernels(*narrow, CAUSAL, 0.25, "triton", False, clock)
    wide = [x.float() for x in narrow]
    found = [kept(*x) for x in (narrow, wide)]
    yield "narrow", "" if found == [None, BEST] else str(found)
    store.forget_tuned()
    yield "forgotten", "" if tiles_of_plan() == table.forward[:2] else str(tiles_of_plan())


if __name__ == "__main__":
    torch.set_num_threads(1)
    quicken()
    warnings.simplefilter("ignore")
    print(json.dumps(dict(everything())))
