"""Look for a faster configuration than the table's, on request, and keep it in `store`.

The table was made for long sequences that tiles divide; for one shape that a program runs all day, a
search of a minute or two (most of it compiles) can pay. A candidate is held against the table's entry
before it is timed, for a compiler may make a wrong kernel of a right one. What is tried is the
backend's to say, which `choose` names.
"""

import functools
import statistics
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from flashlib.kernels import plans
from flashlib.kernels.attention import Impl, Sides, check_arguments
from flashlib.kernels.backends import Planner, choose
from flashlib.kernels.problem import Problem
from flashlib.kernels.tuning import store
from flashlib.masks import window_of

ROUNDS, FINALISTS, MARGIN = 5, 4, 0.01


class Trial(NamedTuple):
    """A configuration that was tried; `milliseconds` is None for one that was not timed.

    `note`: "table", "kept" (what calls of this shape take from now on), "", or why it was not timed.
    """

    kernel: str
    config: NamedTuple
    milliseconds: float | None
    note: str


class Search(NamedTuple):
    """The best; the milliseconds of the finalists and of all at first; why others were not timed."""

    best: NamedTuple
    finals: dict
    firsts: dict
    refused: dict


def tune(q, k, v, *, causal: bool = False, window: Sides = None, impl: Impl = "auto") -> list[Trial]:
    """Time other configurations of the kernels that attention on these tensors runs; keep the fastest.

    What `flash_attention` with these arguments would run is tuned: the forward, and if a gradient is
    wanted the backward. Later calls of the very same case (sizes, dtype, window, GPU, Triton, and
    whether the copy engine can read q, k, v and, backward, the gradient) use what was found;
    `save_tuned` and `load_tuned` carry it to another process, `forget_tuned` drops it. Most of the time
    goes into compiling: a minute or two the first time. Taught in notebook 11.

        for trial in tune(q, k, v, causal=True):
            print(*trial)
        o = flash_attention(q, k, v, causal=True)           # in the configuration noted "kept"

    Args:
        q, k, v, causal, window, impl: as in `flash_attention`, on a GPU; impl "auto", "triton" or
            "gluon".
    Returns:
        A list of `Trial(kernel, config, milliseconds, note)`: for each kernel the finalists, fastest
        first, then the others by a first timing, then those that were not timed. Unless one was faster
        than the table's by 1 %, none is "kept", and the table's entry stays.
    Raises:
        ValueError, TypeError, NotImplementedError: as `flash_attention`, and for what has no kernel to
            tune: impl="reference", float64, tensors on the CPU, an empty input.
    """
    q, k, v, scale = check_arguments(q, k, v, causal, None, False, impl)
    _check_tunable(q, k, impl)
    backward = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return tune_kernels(q.detach(), k.detach(), v.detach(), window_of(causal, window), scale, impl,
                        backward, _milliseconds)


def _check_tunable(q, k, impl):
    if impl == "reference":
        raise ValueError("impl: tune expected 'auto', 'triton' or 'gluon', got 'reference', which has"
                         " nothing to tune")
    if q.dtype == torch.float64:
        raise NotImplementedError("q: tune expected float16, bfloat16 or float32, got torch.float64")
    if q.numel() == 0 or k.numel() == 0:
        raise ValueError(f"q, k: tune expected at least one row each, got shapes {tuple(q.shape)} and"
                         f" {tuple(k.shape)}")
    if q.device.type != "cuda":
        raise NotImplementedError(f"q: tune expected tensors on a GPU, got {q.device.type}: a time"
                                  " there says nothing of a GPU's")
    if knobs.runtime.interpret:
        raise NotImplementedError("q: tune expected Triton's interpreter to be off, and"
                                  " TRITON_INTERPRET is set: a time there says nothing of a GPU's")


def _milliseconds(call) -> float:
    """Return the median time of a call, L2 flushed before each run."""
    from triton.testing import do_bench

    median: Any = do_bench(call, warmup=10, rep=20, return_mode="median")
    return median


def tune_kernels(q, k, v, window, scale, impl, backward, clock):
    """Search and keep for the forward and, if asked, the backward; return the trials of both."""
    p = Problem.new(q, k, v, window=window)                 # so what is tried goes with it
    if p.narrow:                                            # as backends do, so that the case matches
        q, k, v = q.float(), k.float(), v.float()
        p = Problem.new(q, k, v, window=window)
    with torch.no_grad(), plans.on(q.device):
        trials = _tune(p, impl, "forward", lambda backend, config: backend.forward(
            q, k, v, p, scale, config), clock)
        if not backward:
            return trials
        o, lse = choose(p, impl, "forward").forward(q, k, v, p, scale)
        generator = torch.Generator(device=q.device).manual_seed(0)
        do = torch.randn(o.shape, generator=generator, dtype=o.dtype, device=o.device)
        p = Problem.new(q, k, v, o, do, window=window)
        return trials + _tune(p, impl, "backward", lambda backend, config: backend.backward(
            q, k, v, o, lse, do, None, p, scale, config), clock)


def _tune(p, impl, direction, call, clock):
    """One part of the configuration after the other, the rest as the table has it or as was found."""
    backend = choose(p, impl, direction)
    if not isinstance(backend, Planner):
        raise NotImplementedError(f"impl: tune expected a backend with kernels, got {backend.name!r}")
    table = backend.table(p, direction)
    found = Search(table, {}, {}, {})
    for part, candidates in backend.candidates(p, direction).items():
        best = found.best
        rows = [best, *(best._replace(**{part: c}) if part else c for c in candidates)]
        more = search(rows, functools.partial(call, backend), alike, clock)
        found = Search(more.best, found.finals | more.finals, found.firsts | more.firsts,
                       found.refused | more.refused)
    return _keep(store.case_of(backend, p, direction), table, found)


def _keep(case, table, found):
    """Keep the best unless it is the table's, and return the trials."""
    store.keep(case, None if found.best == table else found.best)
    timed = [*sorted(found.finals.items(), key=lambda item: item[1]),
             *sorted(((config, ms) for config, ms in found.firsts.items()
                      if config not in found.finals), key=lambda item: item[1])]
    notes = {found.best: "kept", table: "table"}            # the table's entry is never "kept"
    return [*(Trial(case.kernel, config, ms, notes.get(config, "")) for config, ms in timed),
            *(Trial(case.kernel, config, None, why) for config, why in found.refused.items())]


def search(candidates, run, same, clock) -> Search:
    """Return which candidate is fastest, the first, which is the table's, unless another is by MARGIN.

    Args:
        candidates: configurations, each of them hashable.
        run: a function from configuration to result.
        same: tells whether a result equals the first candidate's; one that does not is out.
        clock: a function from a function of no arguments to the time that it takes.
    """
    table, *others = dict.fromkeys(candidates)
    calls = {config: functools.partial(run, config) for config in (table, *others)}
    refused, expected = {}, run(table)
    for config in others:
        why = _why_not(calls[config], expected, same)
        if why:
            refused[config] = why
    del expected
    firsts = {config: clock(call) for config, call in calls.items() if config not in refused}
    rivals = sorted((c for c in firsts if c != table), key=firsts.__getitem__)[:FINALISTS]
    times = {config: [] for config in (table, *rivals)}
    for turn in range(ROUNDS):
        for config in [*times][::-1 if turn % 2 else 1]:
            times[config].append(clock(calls[config]))
    finals = {config: statistics.median(taken) for config, taken in times.items()}
    best = min(finals, key=finals.__getitem__)
    if finals[best] > (1 - MARGIN) * finals[table]:
        best = table
    return Search(best, finals, firsts, refused)


def _why_not(call, expected, same) -> str:
    """Return why a candidate is out, or ""; what is no fault of its configuration is raised."""
    try:
        result = call()
    except OutOfResources as error:
        return error.name
    except (CompilationError, PTXASError) as error:
        return _first_line(error.error_message or error)
    except RuntimeError as error:                           # of Triton's compiler, which has no class
        if "PassManager::run failed" not in str(error):
            raise
        return _first_line(error)
    return "" if same(result, expected) else "wrong"


def _first_line(error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:100]


def alike(got, expected) -> bool:
    """Tell whether O and lse, or dQ, dK and dV, are equal up to the rounding of other tiles.

    lse within 1e-3; the others, in the root mean square relative to what is expected, within 8 eps of
    their dtype, float32 within 1e-5. What is infinite or NaN must be so at the same places.
    """
    for x, y in zip(got, expected, strict=True):
        finite = torch.isfinite(y)
        if not torch.equal(torch.isfinite(x), finite) or (
                not torch.equal(x[~finite].nan_to_num(nan=7.0), y[~finite].nan_to_num(nan=7.0))):
            return False
        off = torch.where(finite, x.float() - y.float(), 0.0)
        if y.ndim == 3:
            right = off.abs().max() <= 1e-3
        else:
            most = 1e-5 if y.dtype == torch.float32 else 8 * torch.finfo(y.dtype).eps
            norm = functools.partial(torch.linalg.vector_norm, dtype=torch.float64)
            right = norm(off) <= most * norm(torch.where(finite, y, 0.0))
        if not bool(right):
            return False
    return True
