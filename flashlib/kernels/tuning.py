"""Look for a faster configuration than the table's, on request, and keep it in `tuned`.

The table was made for long sequences that tiles divide; for one shape that a program runs all day, a
search of a minute or two (most of it compiles) can pay. A candidate is held against the table's entry
before it is timed, for a compiler may make a wrong kernel of a right one.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from typing import NamedTuple

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from flashlib.kernels import dispatch, launch, ops, tuned
from flashlib.kernels.attention import _check
from flashlib.kernels.configs import configs_for, padded, tiles

ROUNDS, FINALISTS, MARGIN = 5, 4, 0.01
ROWS, KEYS, WARPS, STAGES = (16, 32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 4)
MOST_REGISTERS = 256                                        # of a thread, for accumulators
# In float32, and before Ampere, operands wait in registers.
SMALL_SIZES, SMALL_STAGES, SMALL_MOST = (16, 32, 64), (1, 2), 64
GLUON_TILES = {  # head dimension → BLOCK_N, CONSUMERS, STAGES, Q_SLOTS
    32: ((128, 3, 3, 2), (128, 3, 4, 2), (128, 2, 4, 2)),
    64: ((128, 3, 3, 2), (128, 3, 4, 2), (128, 2, 4, 2), (64, 3, 6, 2)),
    128: ((128, 2, 2, 2), (64, 2, 4, 2), (64, 3, 4, 1)),
    256: ((64, 2, 2, 1),),
}
TAUS = (0.0, 8.0)


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


def tune(q, k, v, *, causal=False, impl="auto"):
    """Time other configurations of the kernels that attention on these tensors runs; keep the fastest.

    What `flash_attention(q, k, v, causal=causal, impl=impl)` would run is tuned: the forward, and if a
    gradient is wanted the backward. Later calls of the very same case (sizes, dtype, mask, GPU, Triton,
    and whether the copy engine can read q, k, v and, backward, the gradient) use what was found;
    `save_tuned` and `load_tuned` carry it to another process, `forget_tuned` drops it. Most of the time
    goes into compiling: a minute or two the first time. Taught in notebook 11.

        for trial in tune(q, k, v, causal=True):
            print(*trial)
        o = flash_attention(q, k, v, causal=True)           # in the configuration noted "kept"

    Args:
        q, k, v, causal, impl: as in `flash_attention`, on a GPU; impl "auto", "triton" or "gluon".
    Returns:
        A list of `Trial(kernel, config, milliseconds, note)`: for each kernel the finalists, fastest
        first, then the others by a first timing, then those that were not timed. Unless one was faster
        than the table's by 1 %, none is "kept", and the table's entry stays.
    Raises:
        ValueError, TypeError, NotImplementedError: as `flash_attention`, and for what has no kernel to
            tune: impl="reference", float64, tensors on the CPU, an empty input.
    """
    scale = _check(q, k, v, causal, None, False, impl)
    _check_tunable(q, k, impl)
    backward = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    q, k, v = (x.detach() for x in (q, k, v))
    gluon = _takes_gluon(q, k, v, impl)
    return tune_kernels(q, k, v, causal, scale, gluon, backward, _milliseconds)


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
    if launch.interpreted():
        raise NotImplementedError("q: tune expected Triton's interpreter to be off, and"
                                  " TRITON_INTERPRET is set: a time there says nothing of a GPU's")
    ops.launcher(impl, q.device, q.dtype)


def _takes_gluon(q, k, v, impl) -> bool:
    """Tell whether the forward is the Gluon kernel; an impl="gluon" that it refuses is an error."""
    if impl == "gluon":
        reason = ops._hopper().refusal(q, k, v)
        if reason:
            raise NotImplementedError(f"{reason}; use impl='auto'")
        return True
    return bool(impl == "auto" and ops._has_hopper(q.device) and ops._hopper().is_faster(q)
                and ops._hopper().refusal(q, k, v) is None)


def _milliseconds(call) -> float:
    """Return the median time of a call, L2 flushed before each run."""
    from triton.testing import do_bench

    return do_bench(call, warmup=10, rep=20, return_mode="median")


def tune_kernels(q, k, v, causal, scale, gluon, backward, clock):
    """Search and keep for the forward and, if asked, the backward; return the trials of both."""
    if launch._is_narrow(q):                                # as `launch` does, so that the case matches
        q, k, v = q.float(), k.float(), v.float()
    with torch.no_grad(), dispatch.apart(), dispatch.on(q.device):
        trials = _tune_forward(q, k, v, causal, scale, gluon, clock)
        return trials + (_tune_backward(q, k, v, causal, scale, clock) if backward else [])


def _tune_forward(q, k, v, causal, scale, gluon, clock):
    if gluon:
        kernel, tma, candidates = "gluon_forward", True, gluon_candidates(q, k, causal)
        forward = ops._hopper().forward
    else:
        kernel, tma = "triton_forward", launch._uses_tma(q, k, v)
        forward, candidates = launch.forward, forward_candidates(q, k, causal)

    def run(config):
        return forward(q, k, v, causal=causal, scale=scale, config=config)

    found = search(candidates, run, alike, clock)
    return _keep(kernel, q, k, causal, tma, candidates[0], found)


def _tune_backward(q, k, v, causal, scale, clock):
    """One kernel after the other, the rest as the table has it or as was found before."""
    o, lse = launch.forward(q, k, v, causal=causal, scale=scale)
    generator = torch.Generator(device=q.device).manual_seed(0)
    do = torch.randn(o.shape, generator=generator, dtype=o.dtype, device=o.device)

    def run(configs):
        return launch.backward(q, k, v, o, lse, do, None, causal=causal, scale=scale, configs=configs)

    table = _table(q, causal)
    found = Search(table, {}, {}, {})
    for part, candidates in backward_candidates(q, k, causal).items():
        best = found.best
        rows = [best, *(best._replace(**{part: candidate}) for candidate in candidates)]
        more = search(rows, run, alike, clock)
        found = Search(more.best, found.finals | more.finals, found.firsts | more.firsts,
                       found.refused | more.refused)
    return _keep("triton_backward", q, k, causal, launch._tma_of_backward(q, k, v, do), table, found)


def _keep(kernel, q, k, causal, tma, table, found):
    """Keep the best unless it is the table's, and return the trials."""
    tuned.keep(kernel, q, k, causal, tma, None if found.best == table else found.best)
    timed = [*sorted(found.finals.items(), key=lambda item: item[1]),
             *sorted(((config, ms) for config, ms in found.firsts.items()
                      if config not in found.finals), key=lambda item: item[1])]
    notes = {found.best: "kept", table: "table"}            # the table's entry is never "kept"
    return [*(Trial(kernel, config, ms, notes.get(config, "")) for config, ms in timed),
            *(Trial(kernel, config, None, why) for config, why in found.refused.items())]


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
    rivals = sorted((config for config in firsts if config != table), key=firsts.get)[:FINALISTS]
    times = {config: [] for config in (table, *rivals)}
    for turn in range(ROUNDS):
        for config in [*times][::-1 if turn % 2 else 1]:
            times[config].append(clock(calls[config]))
    finals = {config: statistics.median(taken) for config, taken in times.items()}
    best = min(finals, key=finals.get)
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


def _table(q, causal):
    return configs_for(launch.capability_of(q.device), q.element_size(), q.shape[3], causal)


def _is_small(q) -> bool:
    capability = launch.capability_of(q.device)
    return q.element_size() == 4 or (capability is not None and capability < (8, 0))


def _fitting(sizes, N):
    """Return the tile heights that N rows fill by more than half, or the smallest."""
    return [size for size in sizes if size < 2 * N] or sizes[:1]


def forward_candidates(q, k, causal):
    """Return what to try of the Triton forward, the table's entry first."""
    N_Q, N_K, head_dim = q.shape[2], k.shape[2], padded(q.shape[3])
    if _is_small(q):
        found = tiles(head_dim, _fitting(SMALL_SIZES, N_Q), _fitting(SMALL_SIZES, N_K), WARPS,
                      SMALL_STAGES, SMALL_MOST)
    else:
        found = tiles(head_dim, _fitting(ROWS, N_Q)[-2:], _fitting(KEYS, N_K), WARPS, STAGES,
                      MOST_REGISTERS)
    return [*dict.fromkeys((_table(q, causal).forward, *found))]


def backward_candidates(q, k, causal):
    """Return, by the name of the kernel in `Configs`, what to try of it beside the table's entry."""
    N_Q, N_K, head_dim = q.shape[2], k.shape[2], padded(q.shape[3])
    small, table = _is_small(q), _table(q, causal)
    stages, most = (SMALL_STAGES, SMALL_MOST) if small else (STAGES[:2], MOST_REGISTERS)
    rows, keys = (SMALL_SIZES, SMALL_SIZES) if small else ((32, 64), (64, 128))
    found = {}
    for part in ("dkdv",) if table.dkdv else ("dk", "dv"):  # where keys stay and queries go by
        width = 2 * head_dim if table.dkdv else head_dim
        found[part] = [c._replace(BLOCK_M=c.BLOCK_N, BLOCK_N=c.BLOCK_M) for c in tiles(
            width, _fitting(keys, N_K), _fitting(rows, N_Q), WARPS, stages, most)]
    rows, keys = (SMALL_SIZES, SMALL_SIZES) if small else ((64, 128), (32, 64))
    found["dq"] = tiles(head_dim, _fitting(rows, N_Q), _fitting(keys, N_K), WARPS, stages, most)
    return found


def gluon_candidates(q, k, causal):
    """Return what to try of the Gluon forward, the table's entry first."""
    table = ops._hopper().config_for(q.shape[3], causal, k.shape[2], q.shape[2])
    switched = [table._replace(PING_PONG=turns, UNDER_SOFTMAX=under, TAU=tau)
                for turns, under, tau in itertools.product((True, False), (True, False), TAUS)]
    tiled = [table._replace(BLOCK_N=keys, CONSUMERS=consumers, STAGES=stages, Q_SLOTS=slots)
             for keys, consumers, stages, slots in GLUON_TILES[max(32, padded(q.shape[3]))]]
    return [*dict.fromkeys((table, *switched, *tiled))]
