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

from flashlib.kernels import dispatch, flash_attention, launch, tuned, tuning
from flashlib.kernels.configs import Config, configs_for
from tests.kernels.problems import Shape, dense, off, problem, solve

BEST, DKDV, DQ = Config(16, 32, 4, 1), Config(16, 16, 4, 1), Config(32, 16, 4, 1)


def clock(call):
    """Return a time that a few configurations make short."""
    config, = call.args
    parts = (config.dkdv == DKDV, config.dq == DQ) if len(config) == 5 else (config == BEST,)
    return 2.0 - 0.5 * sum(parts)


def tiles(q, k, v):
    """Return the rows of a query and of a key tile that a causal forward has."""
    constants = dispatch.plan_for(launch._plan_forward, (q, k, v), True, None).constants
    return constants["BLOCK_M"], constants["BLOCK_N"]


def everything():
    """Yield (name, what is wrong or "")."""
    tuning.SMALL_SIZES, tuning.WARPS, tuning.SMALL_STAGES = (16, 32), (4,), (1,)
    given = problem(Shape(1, 2, 1, 40, 24, 16, True))
    q, k, v = given[:3]
    table = configs_for(None, 4, 16, True)
    trials = tuning.tune_kernels(q, k, v, True, 0.25, False, True, clock)
    told = [(t.kernel, t.config, t.milliseconds) for t in trials if t.note == "kept"]
    rows = table._replace(dkdv=DKDV, dq=DQ)
    expected = [("triton_forward", BEST, 1.5), ("triton_backward", rows, 1.0)]
    wrong = [t for t in trials if t.note not in ("", "table", "kept")]
    tables = [t.config for t in trials if t.note == "table"]
    yield "the trials", "" if told == expected and not wrong and tables == [table.forward, table] else (
        str(trials))
    kept = [tuned.kept("triton_forward", q, k, True, False),
            tuned.kept("triton_backward", q, k, True, (False, False))]
    yield "what was kept", "" if kept == [BEST, rows] else str(kept)
    yield "the plan", "" if tiles(q, k, v) == BEST[:2] else str(tiles(q, k, v))
    got = solve(given, flash_attention, impl="triton")
    errors = [off(x, y) for x, y in zip(got, dense(given), strict=True)]
    yield "forward", "" if max(errors[:2]) < 1e-5 else str(errors)
    yield "gradients", "" if max(errors[2:]) < 1e-5 else str(errors)
    narrow = [x[..., :8].half() for x in (q, k, v)]
    tuning.tune_kernels(*narrow, True, 0.25, False, False, clock)
    wide = [x.float() for x in narrow]
    kept = [tuned.kept("triton_forward", *x[:2], True, False) for x in (narrow, wide)]
    yield "narrow", "" if kept == [None, BEST] else str(kept)
    tuned.forget_tuned()
    yield "forgotten", "" if tiles(q, k, v) == table.forward[:2] else str(tiles(q, k, v))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps(dict(everything())))
