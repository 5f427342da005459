"""Run every GPU check of `flash_attention` without pytest.

Usage: python tests/kernels/run_gpu.py [--only TEXT] [--verbose]

Compiling takes most of the time, so the checks are shared among processes that use one GPU together;
those that measure memory or time, or fill the memory, run alone afterwards. Prints a summary; the exit
code is 1 on a failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tests.kernels.behaviours import Backend  # noqa: E402
from tests.kernels.gpu_checks import ALONE, Where, run_configuration  # noqa: E402
from tests.kernels.gpu_checks_decode import decode_tasks, run_decode  # noqa: E402
from tests.kernels.gpu_checks_into import into_tasks, run_into  # noqa: E402
from tests.kernels.gpu_checks_scores import HEAD_DIMS, run_scores  # noqa: E402
from tests.kernels.gpu_checks_varlen import run_varlen, varlen_tasks  # noqa: E402
from tests.kernels.grid import Column, columns, merged, run_column  # noqa: E402
from tests.kernels.promises import PROMISES  # noqa: E402

HALVES = (torch.float16, torch.bfloat16)
WATCHDOG_S = 300


class Outcome(NamedTuple):
    """What one task found; `failures` is empty where all is well."""

    task: str
    cases: int
    failures: list
    worst: tuple = (0.0, "")
    grids: dict | None = None
    said: str = ""
    seconds: float = 0.0


def tasks(impl="auto"):
    """Return name → (kind, arguments) for an implementation, the most expensive to compile first."""
    made = {f"accuracy {c}": ("column", tuple(c)) for c in columns(torch.float32, *HALVES)}
    for dtype in HALVES:
        for D in (16, 32, 64, 128, 256):
            for causal in (False, True):
                for N in (2432, 1000):                      # whole key tiles, and ragged ones
                    made[f"configuration {Column(dtype, D, causal)} N={N}"] = (
                        "configuration", (dtype, D, causal, N))
    for dtype in (torch.float32, *HALVES):
        for D in HEAD_DIMS[dtype]:
            for causal in (False, True):
                made[f"scores {Column(dtype, D, causal)}"] = ("scores", (dtype, D, causal))
    for dtype in (torch.float32, *HALVES):
        for promise in PROMISES:
            made[f"promise {promise} {str(dtype).split('.')[1]}"] = ("promise", (promise, dtype))

    made |= {name: ("into", given) for name, given in into_tasks().items()}
    made |= {name: ("varlen", given) for name, given in varlen_tasks().items()}
    made |= {name: ("decode", given) for name, given in decode_tasks().items()}

    # Gluon refuses softcap and ALiBi; sinks and states are among what "auto" gives it. `impl` names
    # nobody who decodes.
    others = {"triton": ("decode",), "gluon": ("decode", "scores", "into")}.get(impl, ())
    made = {name: task for name, task in made.items() if task[0] not in others}

    def cost(name):
        kind, arguments = made[name]
        if kind == "promise":
            return 50 if arguments[1] == torch.float32 else 20
        if kind == "decode":                                # three dtypes
            return 30 * arguments[1][-1]
        return arguments[1] * (20 if arguments[0] == torch.float32 else 1)
    return {name: made[name] for name in sorted(made, key=cost, reverse=True)}


def run_task(job):
    """Run one task and return its `Outcome`; whatever it raises is a failure."""
    name, (kind, arguments), where = job
    began = time.perf_counter()

    def done(cases, failures, **more):
        return Outcome(name, cases, failures, seconds=time.perf_counter() - began, **more)

    try:
        if kind == "column":
            cases, failures, worst, grids = run_column(Column(*arguments), impl=where.impl,
                                                       device=where.device)
            return done(cases, failures, worst=worst, grids=grids)
        if kind == "scores":
            cases, failures, worst = run_scores(where, *arguments)
            return done(cases, failures, worst=worst, said=f"worst {worst[0]:.2f}: {worst[1]}")
        if kind == "configuration":
            return done(1, [], said=run_configuration(where, *arguments))
        if kind == "varlen":
            return done(1, [], said=run_varlen(where, *arguments))
        if kind == "decode":
            return done(1, [], said=run_decode(where, *arguments))
        if kind == "into":
            return done(1, [], said=run_into(where, *arguments))
        if kind == "promise":
            promise, dtype = arguments
            PROMISES[promise](Backend(where.impl, dtype, where.device, N=300))
            return done(1, [])
        return done(1, [], said=ALONE[arguments[0]](where) or "")
    except AssertionError as error:
        return done(1, [str(error)])
    except Exception:
        return done(1, [traceback.format_exc(limit=-3)])


def statistics(outcomes):
    """Return an `Outcome` for each half dtype: RMSE and bias over its whole grid."""
    for dtype in ("float16", "bfloat16"):
        total = merged([o.grids for o in outcomes if o.grids and o.task.startswith(
            f"accuracy {dtype}-")])
        if not total:
            continue
        failures = [f"{name}: {grid.verdict()}" for name, grid in total.items() if grid.verdict()]
        said = ", ".join(f"{name} RMSE {grid.rmse_ratio:.2f}× bias {grid.bias:.1f}σ"
                         for name, grid in total.items())
        yield Outcome(f"grid {dtype}", 1, failures, said=said)


def most_processes():
    """Return how many share a GPU: there are cores and memory for them, 10 GB each."""
    room = torch.cuda.get_device_properties(0).total_memory // 10**10
    return max(1, min(14, (os.cpu_count() or 2) - 2, room))


def run_all(where, *, processes, only="", each=lambda outcome: None, watchdog_s=WATCHDOG_S):
    """Run all tasks whose name contains `only`; call `each` with every outcome; return them.

    A kernel that waits for ever would keep its process: when no task has ended for `watchdog_s`
    seconds, the processes are killed, and the tasks that had no outcome fail by name.
    """
    jobs = [(name, task, where) for name, task in tasks(where.impl).items() if only in name]
    outcomes = []
    if jobs:
        context = multiprocessing.get_context("spawn")
        with context.Pool(min(processes, len(jobs)), initializer=torch.set_num_threads,
                          initargs=(1,)) as pool:
            results = pool.imap_unordered(run_task, jobs, chunksize=1)
            for _ in jobs:
                try:
                    outcome = results.next(watchdog_s)
                except multiprocessing.TimeoutError:
                    pool.terminate()
                    ended = {o.task for o in outcomes}
                    said = f"no task ended for {watchdog_s} s: killed by the watchdog"
                    stuck = [Outcome(name, 1, [said]) for name, *_ in jobs if name not in ended]
                    outcomes += stuck
                    for outcome in stuck:
                        each(outcome)
                    return outcomes
                outcomes.append(outcome)
                each(outcome)
    if any(outcome.grids for outcome in outcomes):
        for outcome in statistics(outcomes):
            outcomes.append(outcome)
            each(outcome)
    if where.device != "cpu":
        for name in ALONE:
            if only in f"alone {name}" and not (where.impl == "gluon" and "scores" in name):
                outcomes.append(run_task((f"alone {name}", ("alone", (name,)), where)))
                torch.cuda.empty_cache()
                each(outcomes[-1])
    return outcomes


def main():
    """Parse the command line, run, and print the summary; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run tasks whose name contains this")
    parser.add_argument("--impl", default="auto", help="auto, or triton, or gluon")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=0, help="by default as many as fit")
    parser.add_argument("--verbose", action="store_true", help="print every task, not failures only")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing was run")
        return 1
    began = time.perf_counter()

    def each(outcome):
        if outcome.failures or outcome.said or chosen.verbose:
            print(f"{'FAIL' if outcome.failures else 'ok':4} {outcome.task} ({outcome.seconds:.1f} s)"
                  f" {outcome.said}", flush=True)
        for failure in outcome.failures[:8]:
            print("     " + failure.replace("\n", "\n     "), flush=True)
        if len(outcome.failures) > 8:
            print(f"     and {len(outcome.failures) - 8} more", flush=True)

    processes = chosen.processes or most_processes()
    outcomes = run_all(Where(chosen.impl, chosen.device), processes=processes,
                       only=chosen.only, each=each)
    failed = [o for o in outcomes if o.failures]
    for dtype in ("float16", "bfloat16", "float32"):
        worst = max((o.worst for o in outcomes if o.task.startswith(f"accuracy {dtype}-")),
                    default=(0.0, "not run"))
        print(f"worst ratio to what is allowed, {dtype}: {worst[0]:.3f} {worst[1]}")
    slow = sorted(outcomes, key=lambda o: -o.seconds)[:5]
    print("slowest: " + ", ".join(f"{o.task} {o.seconds:.0f} s" for o in slow))
    print(f"{sum(o.cases for o in outcomes)} cases in {len(outcomes)} tasks, {len(failed)} tasks failed"
          f" with {sum(len(o.failures) for o in failed)} failures,"
          f" {time.perf_counter() - began:.0f} s")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
