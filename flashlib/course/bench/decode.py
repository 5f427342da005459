"""Time a few queries on long caches: ours, every peer, and a kernel that only sums K and V.

    python -m flashlib.course.bench.decode --out assets/measurements --name h200
    python -m flashlib.course.bench.decode --sweep --out assets/measurements --name h200

Twice: by `triton.testing.do_bench`, which leaves L2 full of lines to write back, and over caches that
take turns in a CUDA graph, so that L2 is cold and clean, as a model finds it. Each implementation is
held against float64 first. No row hides a key, because not all of the peers align a causal mask at the
last key; ours is timed with such a mask as well. `--sweep` times our configurations instead: keys of a
unit, units of a part, keys of a tile, warps, stages.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

import contextlib
import functools
import itertools
import statistics
from typing import NamedTuple

from flashlib.course.bench import harness, peers
from flashlib.course.bench.harness import TOLERANCE, input_dtype, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show


class Shape(NamedTuple):
    """Sequences, heads of queries and of keys, queries and keys of a sequence, columns."""

    B: int
    H: int
    H_k: int
    N_q: int
    N_k: int
    d: int

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of K and V."""
        return 4 * self.B * self.H_k * self.N_k * self.d


SHAPES = [Shape(*sizes) for sizes in (
    (8, 32, 8, 1, 8192, 128), (1, 32, 8, 1, 65536, 128), (64, 32, 8, 1, 2048, 128),
    (8, 32, 8, 4, 8192, 128), (1, 32, 8, 16, 32768, 128), (1, 64, 8, 1, 131072, 128),
    (16, 64, 8, 2, 4096, 128), (1, 32, 8, 1, 2048, 128), (4, 32, 32, 1, 4096, 128),
    (32, 16, 16, 1, 2048, 64), (2, 32, 4, 1, 32768, 64), (16, 32, 8, 8, 8192, 64))]
DRY = [Shape(2, 4, 2, 1, 96, 32), Shape(1, 2, 2, 3, 130, 64)]
HARNESSES = ("do_bench", "rotating")
ROTATED_BYTES, MOST_CACHES = 200 * 2**20, 64                # over three times the L2 of an H200
GRAPH_CALLS, REPLAYS = 32, 7
PAGES = (16, 64)                                            # keys of a page
SUMS = [(block, steps, warps) for block in (2048, 4096) for steps in (1, 2, 4) for warps in (4, 8)]
SWEEP = {"CUT": ((128, 1), (256, 1), (512, 1), (1024, 1), (2048, 1), (256, 8), (512, 4), (512, 8),
                 (1024, 2), (1024, 4)), "BLOCK_N": (32, 64, 128), "num_warps": (2, 4, 8),
         "num_stages": (2, 3, 4, 5)}                        # CUT: keys of a unit, units of a part
KINDS = {"CUT": ((512, 1), (512, 4))}                       # those that are compiled beforehand
DRY_SWEEP = {"CUT": ((32, 1), (32, 2)), "BLOCK_N": (32,), "num_warps": (4,), "num_stages": (2,)}
IMPLS = {"ours": "flashlib.kernels.flash_decode", "ours_auto": "flashlib.flash_attention",
         "ours_causal": "flash_decode(causal=True)", "sum": "a kernel that only adds up K and V",
         **{f"ours_page_{page}": f"flash_decode on pages of {page} keys" for page in PAGES}}
SHOWN = ("impl", "harness", "B", "H", "H_k", "N_q", "N_k", "d", "seconds", "kv_bytes_per_s",
         "share_of_sum", "ours_over_this")


def caches_of(shape, device, count, seed=0, dtype=None):
    """Return q and a list of (k, v), the two of each in one piece of memory, standard normal."""
    B, H, H_k, N_q, N_k, d = shape
    generator = torch.Generator(device=device).manual_seed(seed)
    make = {"device": device, "dtype": getattr(torch, dtype or input_dtype(device))}
    q = torch.randn(B, H, N_q, d, generator=generator, **make)
    both = [torch.randn(2, B, H_k, N_k, d, generator=generator, **make) for _ in range(count)]
    return q, both


def paged(q, both, page):
    """Return a function of K and V that decodes from pages, which hold the same in a random order."""
    from flashlib.kernels import flash_decode

    held, (B, H_k, N_k, d) = {}, both[0].shape[1:]
    order = torch.randperm(B * N_k // page, device=q.device)
    table = torch.argsort(order).view(B, -1).to(torch.int32)
    for x in both:
        cut = x.view(2, B, H_k, N_k // page, page, d).transpose(2, 3).flatten(1, 2)
        held[x.data_ptr()] = cut[:, order]                  # page order[i] of the cut comes to place i
    lengths = torch.full((B,), N_k, dtype=torch.int32, device=q.device)

    def call(k, v):
        pages = held[k.data_ptr()]
        return flash_decode(q, pages[0], pages[1], table=table, lengths=lengths)
    return call


def cache_count(shape, device) -> int:
    """Return how many caches take turns."""
    if device != "cuda":
        return 2
    return min(MOST_CACHES, max(2, -(-ROTATED_BYTES // shape.kv_bytes)))


def exact(q, k, v, causal):
    """Return O in float64, of the first and of the last sequence."""
    ends = [x[::max(1, len(x) - 1)].double() for x in (q, k, v)]
    q, (k, v) = ends[0], (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in ends[1:])
    S = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(S.shape[-2:], device=S.device, dtype=torch.bool)
        S = S.masked_fill(hidden.triu(1 + S.shape[-1] - S.shape[-2]), float("-inf"))
    return torch.softmax(S, -1) @ v


def calls_for(shape, found, q, both, absent):
    """Return name → (function of K and V, relative error); who fails or is wrong is named in `absent`.

    `ours_causal` is ours with a causal mask, where there are several queries; `ours_page_16` and
    `ours_page_64` are ours on pages.
    """
    right, masked = exact(q, *both[0], False), exact(q, *both[0], True)
    asked = {name: lambda k, v, fn=fn: fn(q, k, v, False) for name, fn in found.items()}
    if shape.N_q > 1:
        asked["ours_causal"] = lambda k, v: found["ours"](q, k, v, True)
    for page in PAGES:
        if shape.N_k % page == 0:
            asked[f"ours_page_{page}"] = paged(q, both, page)
    calls = {}
    for name, call in asked.items():
        try:
            with torch.no_grad():
                o = call(*both[0])
            error = harness.relative([o[::max(1, len(o) - 1)]],
                                     [masked if name == "ours_causal" else right])
        except Exception as problem:
            if name.startswith("ours"):
                raise
            absent[f"{name} at {tuple(shape)}"] = f"{type(problem).__name__} {problem}"[:120]
            continue
        if error < TOLERANCE:
            calls[name] = call, error
        elif name.startswith("ours"):
            raise RuntimeError(f"{name} is wrong at {tuple(shape)}: relative error {error}")
        else:
            absent[f"{name} at {tuple(shape)}"] = f"wrong, relative error {error}"
    return calls


def summing(both, block, steps, warps):
    """Return a function of K and V that only adds them up."""
    from flashlib.course.bench import decode_kernels

    words = {x.data_ptr(): x.view(torch.int32).view(-1) for x in both}
    size = both[0].numel() // 2
    programs = -(-size // (block * steps))
    sums = torch.empty(programs, dtype=torch.int32, device=both[0].device)
    return lambda k, v: decode_kernels.sum_kernel[(programs,)](
        words[k.data_ptr()], sums, size, block, steps, num_warps=warps)


def in_turn(call, both, calls=GRAPH_CALLS):
    """Return a function that runs a CUDA graph of calls on caches in turn, and their number."""
    count = len(both) * -(-calls // len(both))
    order = [both[i % len(both)] for i in range(count)]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.stream(stream):
        for x in both:
            call(x[0], x[1])
        torch.cuda.synchronize()
        graph.capture_begin()                               # torch.cuda.graph would empty its cache
        for x in order:
            call(x[0], x[1])
        graph.capture_end()
    return graph.replay, count


def seconds_in_turn(call, both, replays=REPLAYS, calls=GRAPH_CALLS):
    """Return the seconds of a call in a CUDA graph of them, for each replay."""
    replay, count = in_turn(call, both, calls)
    replay()
    return replayed(replay, count, replays)


def replayed(replay, count, replays):
    """Return the seconds of one of `count` calls, for each replay of their graph."""
    times = []
    for _ in range(replays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(1e-3 * start.elapsed_time(stop) / count)
    return times


def timed(calls, both, device, rounds, which):
    """Return name → seconds of every round in one of the harnesses; the calls alternate."""
    if which == "do_bench" or device != "cuda":
        k, v = both[0]
        with torch.no_grad():
            return harness.race({name: lambda call=call: call(k, v) for name, call in calls.items()},
                                device, rounds)
    return harness.alternate(calls, rounds, lambda call: statistics.median(seconds_in_turn(call, both)))


def fastest_sum(both, device, calls=GRAPH_CALLS):
    """Return the fastest of the summing kernels, and what it is, after a look at its sum."""
    if device != "cuda":
        return (lambda k, v: (k.sum(), v.sum())), "torch, on the CPU"
    best = (float("inf"), None, "")
    for block, steps, warps in SUMS:
        call = summing(both, block, steps, warps)
        found = min(seconds_in_turn(call, both, 3, calls))
        best = min(best, (found, call, f"{block} words, {steps} steps, {warps} warps"),
                   key=lambda entry: entry[0])
    return best[1:]


def measure(shapes, device, rounds, say=print, keep=lambda rows, absent: None):
    """Return a row for every shape, harness and implementation, and the reasons for absent ones.

    `keep` is called with both after each shape.
    """
    found, absent = peers.decoding(device)
    rows = []
    for shape in shapes:
        q, both = caches_of(shape, device, cache_count(shape, device))
        calls = calls_for(shape, found, q, both, absent)
        ceiling, what = fastest_sum(both, device)
        racing = {"sum": ceiling, **{name: call for name, (call, _) in calls.items()}}
        for which in HARNESSES:
            times = timed(racing, both, device, rounds, which)
            medians = {name: statistics.median(runs) for name, runs in times.items()}
            rows += [{"impl": name, **shape._asdict(), "harness": which, "seconds": medians[name],
                      "seconds_low": min(runs), "seconds_high": max(runs), "rounds": len(runs),
                      "kv_bytes": shape.kv_bytes, "kv_bytes_per_s": shape.kv_bytes / medians[name],
                      "share_of_sum": medians["sum"] / medians[name],
                      "ours_over_this": medians[name] / medians["ours"],
                      "relative_error": calls[name][1] if name in calls else None,
                      "caches": len(both) if which == "rotating" else 1,
                      "note": what if name == "sum" else ""} for name, runs in times.items()]
            say(" ".join(f"{name} {1e6 * us:.1f}" for name, us in medians.items()), tuple(shape), which)
        keep(rows, absent)
        del q, both, calls, racing
    return rows, absent


def configurations(shape, device, space):
    """Return every configuration of a space for a shape, as the backend takes it."""
    from flashlib.kernels.configs import DecodeConfig

    rows = shape.N_q * shape.H // shape.H_k
    block_m = next((m for m in (16, 32, 64) if m >= rows), 64)
    return [DecodeConfig(block_m, block_n, warps, stages, keys, units)
            for (keys, units), block_n, warps, stages in itertools.product(*space.values())
            if block_n <= keys and keys * units <= 2 * shape.N_k]


def with_config(q, config, units=None):
    """Return a function of K and V that decodes in a configuration, so many units a part."""
    from flashlib.kernels.backends.decode import BACKEND
    from flashlib.kernels.problem import Problem

    scale = q.shape[-1] ** -0.5
    return lambda k, v: BACKEND.forward(q, k, v, Problem.of(q, k, v), scale, config, units=units)[0]


@contextlib.contextmanager
def without_dependents():
    """Launch the merge as any other kernel: it begins when the splits have ended."""
    from flashlib.kernels import plans
    from flashlib.kernels.backends import decode

    least, decode.PDL_CAPABILITY = decode.PDL_CAPABILITY, (99, 0)
    plans.forget()
    try:
        yield
    finally:
        decode.PDL_CAPABILITY = least
        plans.forget()


def try_one(case):
    """Compile what a configuration needs, in a process of its own."""
    shape, config, device = case
    q, both = caches_of(shape._replace(B=1), device, 1)
    with_config(q, config, config.UNITS)(*both[0])


def sweep(shapes, device, space, say=print):
    """Return a row for every shape and configuration; the table's has a row without PDL as well."""
    from flashlib.kernels.backends.decode import BACKEND
    from flashlib.kernels.problem import Problem

    # Triton's interpreter is wrong in bfloat16.
    dtype = "float16" if device == "cpu" else None
    if device == "cuda":                                    # one shape of each kind, and of each split
        kinds = {(s.N_q * s.H // s.H_k, s.d): s for s in shapes}
        harness.warm_all(try_one, [(s._replace(N_k=16384), c, device) for s in kinds.values()
                                   for c in configurations(s, device, space | KINDS)])
    rows = []
    for shape in shapes:
        q, both = caches_of(shape, device, cache_count(shape, device), dtype=dtype)
        k, v = both[0]
        table = BACKEND.table(Problem.of(q, *both[0]), "forward")
        right, best = exact(q, *both[0], False), []
        swept = [(c, c.UNITS, True) for c in configurations(shape, device, space)]
        for config, units, pdl in [*swept, (table, None, True), (table, None, False)]:
            with contextlib.nullcontext() if pdl else without_dependents():
                call = with_config(q, config, units)
                try:
                    o = call(k, v)
                    times = (seconds_in_turn(call, both, 3) if device == "cuda" else
                             [harness.clock_for(device)(functools.partial(call, k, v))[0]])
                except Exception as problem:                # more shared memory than there is
                    if config == table:
                        raise
                    say(f"{tuple(config)}: {type(problem).__name__}")
                    continue
            error = harness.relative([o[::max(1, len(o) - 1)]], [right])
            if not error < TOLERANCE:
                raise RuntimeError(f"{config} is wrong at {tuple(shape)}: relative error {error}")
            best.append((min(times), config, pdl))
            rows.append({**shape._asdict(), **config._asdict(), "PDL": int(pdl),
                         "table": int(config == table), "seconds": min(times),
                         "kv_bytes_per_s": shape.kv_bytes / min(times)})
        for seconds, config, pdl in [*sorted(best, key=lambda entry: entry[0])[:5], *best[-2:]]:
            say(f"{tuple(shape)} {1e6 * seconds:.1f} us {shape.kv_bytes / seconds / 1e12:.2f} TB/s"
                f" {dict(config._asdict())} {'PDL' if pdl else 'no PDL'}")
        del q, both, k, v
    return rows


def main(argv=None):
    """Check, measure, print a table and write the CSV file."""
    options = options_for(
        __spec__, __doc__, argv, dry_run="toy sizes, on the CPU", rounds=5,
        sweep={"action": "store_true", "help": "time our configurations instead"},
        shapes={"nargs": "+", "type": int, "default": [], "help": "which shapes, counted from 0"})
    device = harness.device_for(options.dry_run)
    shapes = DRY if options.dry_run else SHAPES
    shapes = [shapes[i] for i in options.shapes] or shapes

    def say(*words):
        print(*words, flush=True)

    if options.sweep:
        rows = sweep(shapes, device, DRY_SWEEP if options.dry_run else SWEEP, say)
        write(options, "decode_sweep", rows, collect(
            options.command, dtype=input_dtype(device), inputs="standard normal",
            timing="best of three replays of a CUDA graph of calls on caches that take turns"))
        return
    head = collect(
        options.command, dtype=input_dtype(device), inputs="standard normal",
        timing=harness.ALTERNATING,
        rotating=f"median of {REPLAYS} replays of a CUDA graph of calls on caches that take turns",
        mask="none; ours_causal, a causal one")

    def keep(rows, absent):
        impls = dict.fromkeys(row["impl"] for row in rows)
        write(options, "decode", rows, {
            **head, **{f"impl_{name}": IMPLS.get(name) or peers.NAMES[name] for name in impls},
            **{f"absent_{name}": " ".join(why.split()) for name, why in absent.items()}})

    rows, _ = measure(shapes, device, options.rounds, say, keep)
    show.table([{key: row[key] for key in SHOWN} for row in rows])


if __name__ == "__main__":
    main()
