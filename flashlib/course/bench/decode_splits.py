"""Time one query on long caches against the number of parts that the keys are cut into.

    python -m flashlib.course.bench.decode_splits --out assets/measurements --name h200

Three questions of notebook 15. How long do splits and merge take together, for 1 to 1,024 parts, at one
to 64 sequences of 2,048 to 131,072 keys? How many elements of a sequence's result have other bits if it
is decoded with others: by a rule that chooses the number of parts from the batch, by ours, and by the
libraries? What do pages of 16 to 256 keys cost? Times are over caches that take turns in a CUDA graph,
as `decode` takes them, beside a kernel that only sums K and V; each result is held against float64.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes, in Triton's
interpreter.
"""

import os
import statistics
from typing import NamedTuple

from flashlib.course.bench import decode, harness, peers
from flashlib.course.bench.decode import Shape
from flashlib.course.bench.harness import TOLERANCE, input_dtype, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

HEADS = {"H": 32, "H_k": 8, "N_q": 1, "d": 128}
# Three shapes of which the libraries' own choices are known, then the grid.
KEY_SHAPES = [Shape(B=B, N_k=N_k, **HEADS) for B, N_k in ((1, 65536), (8, 8192), (64, 2048))]
GRID = [Shape(B=B, N_k=N_k, **HEADS) for B in (1, 4, 16, 64) for N_k in (2048, 8192, 32768, 131072)]
KEY_PARTS = (1, 2, 3, 4, 6, 8, 12, 15, 16, 17, 20, 24, 32, 33, 34, 48, 64, 96, 128, 256, 512, 1024)
PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PAGES = (16, 32, 64, 128, 256)
COMPANY, COMPARED = (1, 2, 4, 8, 16, 32, 64), 8             # sequences of a batch; those compared
BITS_KEYS = 8192
DRY_SHAPES = [Shape(1, 4, 2, 1, 256, 32), Shape(2, 4, 2, 1, 96, 32)]
GRAPH_BYTES = 8 * 2**30                                     # that a graph reads, or one call more
ONE_CACHE_BYTES = 2**30                                     # many times L2: what is read leaves it
IMPLS = {"parts": "flash_decode, the keys cut into so many parts",
         "ours": "flashlib.kernels.flash_decode",
         "sum": "a kernel that only adds up K and V",
         "one_wave": "flash_decode, as many parts as give each SM one program of the batch",
         **{f"ours_page_{page}": f"flash_decode on pages of {page} keys" for page in PAGES}}
DRY_SMS = 8
SHOWN = ("impl", "B", "N_k", "parts", "programs", "seconds", "share_of_sum", "other_bits_elements")


class Cut(NamedTuple):
    """What the backend takes for a configuration, of any number of keys that BLOCK_N divides."""

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int
    KEYS: int
    UNITS: int = 1


def problem_of(q, both):
    """Return the problem of q and one cache."""
    from flashlib.kernels.problem import Problem

    return Problem.of(q, both[0], both[1])


def cut_into(p, parts):
    """Return the table's tile with the keys of a problem cut into about so many parts."""
    from flashlib.kernels.backends import decode as backend

    table = backend.BACKEND.table(p, "forward")
    keys = table.BLOCK_N * -(-p.N_K // (parts * table.BLOCK_N))
    cut = Cut(*table[:4], keys)
    return cut._replace(num_stages=backend.stages_of(p, cut, 1))


def chosen(p):
    """Return the table's configuration, how many parts it makes and of how many programs."""
    from flashlib.kernels.backends import decode as backend

    table = backend.BACKEND.table(p, "forward")
    units = backend.units_of(p, table)
    parts = backend.parts(p, table, units)
    return (table._replace(num_stages=backend.stages_of(p, table, units)), parts,
            backend.row_tiles(p, table) * parts * p.B * p.H_K)


def cuts_of(p, wanted):
    """Return (parts, programs, configuration) for each different cut of about so many parts."""
    from flashlib.kernels.backends import decode as backend

    found = {}
    for parts in wanted:
        cut = cut_into(p, parts)
        many = backend.parts(p, cut, 1)
        if parts <= p.N_K // cut.BLOCK_N:
            found[many] = many, backend.row_tiles(p, cut) * many * p.B * p.H_K, cut
    return list(found.values())


def error_of(o, q, k, v) -> float:
    """Return the worse relative error of the first sequence's first group and the last one's last."""
    group = q.shape[1] // k.shape[1]
    pairs = []
    for b, h in ((0, 0), (-1, -1)):
        rows = slice(0, group) if h == 0 else slice(-group, None)
        Q, K, V = q[b, rows].double(), k[b, h].double(), v[b, h].double()
        S = torch.einsum("hnd,kd->hnk", Q, K) * q.shape[-1] ** -0.5
        pairs.append((o[b, rows], torch.einsum("hnk,kd->hnd", torch.softmax(S, -1), V)))
    return harness.relative(*zip(*pairs, strict=True))


def row_of(impl, shape, **more):
    """Return a row; what does not belong to its question stays empty."""
    columns = ("seconds", "seconds_low", "seconds_high", "rounds", "kv_bytes", "kv_bytes_per_s",
               "share_of_sum", "relative_error", "caches", "parts", "programs", "num_stages",
               "elements", "other_bits_elements")
    return {"impl": impl, **shape._asdict(), **dict.fromkeys(columns), **more}


def caches(shape, device):
    """Return q, so many caches that L2 is cold at each of them, and the calls of a graph."""
    count = 1 if shape.kv_bytes >= ONE_CACHE_BYTES else decode.cache_count(shape, device)
    # Triton's interpreter is wrong in bfloat16.
    q, both = decode.caches_of(shape, device, count, dtype="float16" if device == "cpu" else None)
    return q, both, max(1, min(decode.GRAPH_CALLS, GRAPH_BYTES // shape.kv_bytes))


def raced(calls, both, device, rounds, graph_calls):
    """Return name → the seconds of each round; the calls take turns, each in a graph of its own."""
    if device != "cuda":
        return harness.race({name: lambda call=call: call(*both[0]) for name, call in calls.items()},
                            device, rounds)
    graphs = {name: decode.in_turn(call, both, graph_calls) for name, call in calls.items()}
    for replay, _ in graphs.values():
        replay()
    return harness.alternate(graphs, rounds,
                             lambda graph: statistics.median(decode.replayed(*graph, 3)))


def timed(shape, calls, more, both, device, rounds, graph_calls):
    """Return a row for every call beside that of the kernel that only sums, all in turn."""
    ceiling, _ = decode.fastest_sum(both, device, graph_calls)
    times = raced({"sum": ceiling, **calls}, both, device, rounds, graph_calls)
    medians = {name: statistics.median(runs) for name, runs in times.items()}
    rows = []
    for name, runs in times.items():
        seconds = medians[name]
        impl, columns = more.get(name, ("sum", {}))
        rows.append(row_of(impl, shape, seconds=seconds, seconds_low=min(runs), seconds_high=max(runs),
                           rounds=len(runs), kv_bytes=shape.kv_bytes,
                           kv_bytes_per_s=shape.kv_bytes / seconds,
                           share_of_sum=medians["sum"] / seconds, caches=len(both), **columns))
    return rows


def checked(call, q, k, v, what) -> float:
    """Return the relative error of a call, which must be small."""
    error = error_of(call(k, v), q, k, v)
    if not error < TOLERANCE:
        raise RuntimeError(f"{what} is wrong: relative error {error}")
    return error


def try_one(case):
    """Compile what one cut of a shape needs, or one page, in a process of its own."""
    shape, parts, page = case
    q, both = decode.caches_of(shape, "cuda", 1)
    if page:
        decode.paged(q, both, page)(*both[0])
    else:
        for _, _, cut in cuts_of(problem_of(q, both[0]), [parts]):
            decode.with_config(q, cut, 1)(*both[0])


def against_parts(shape, device, rounds, wanted, pages=()):
    """Return the rows of one shape: a time for each number of parts, ours, and ours on pages."""
    from flashlib.kernels import flash_decode

    q, both, graph_calls = caches(shape, device)
    p = problem_of(q, both[0])
    table, parts, programs = chosen(p)
    calls = {"ours": lambda k, v: flash_decode(q, k, v, impl="decode")}
    more = {"ours": ("ours", {"parts": parts, "programs": programs, "num_stages": table.num_stages})}
    for many, launched, cut in cuts_of(p, wanted):
        calls[f"{many} parts"] = decode.with_config(q, cut, 1)
        more[f"{many} parts"] = "parts", {"parts": many, "programs": launched,
                                          "num_stages": cut.num_stages}
    for page in pages:
        calls[f"page {page}"] = decode.paged(q, both, page)
        more[f"page {page}"] = f"ours_page_{page}", {"parts": parts, "programs": programs}
    for name, call in calls.items():
        more[name][1]["relative_error"] = checked(call, q, *both[0], f"{name} at {tuple(shape)}")
    return timed(shape, calls, more, both, device, rounds, graph_calls)


def one_wave(p, sms) -> int:
    """Return the parts by a rule that knows the batch: one program for each SM."""
    return max(1, sms // (p.B * p.H_K))


def other_bits(shape, company, device, sms, absent):
    """Return rows that say how many elements of sequences change where a batch is around them.

    Up to COMPARED sequences of each batch are held against themselves alone; alone twice, with B = 1.
    """
    from flashlib.kernels.backends import decode as backend

    found, missing = peers.decoding(device)
    absent |= missing
    found = {name: call for name, call in found.items() if name != "ours_auto"}
    q, both = decode.caches_of(shape, device, 1, dtype="float16" if device == "cpu" else None)
    k, v = both[0]

    def waves(q, k, v, causal):
        p = problem_of(q, (k, v))
        return decode.with_config(q, cut_into(p, one_wave(p, sms)), 1)(k, v)

    found = {"one_wave": waves, "ours": lambda q, k, v, causal: backend.BACKEND.forward(
        q, k, v, problem_of(q, (k, v)), q.shape[-1] ** -0.5)[0], **found}
    rows = []
    for name, call in found.items():
        try:
            alone = [call(q[b:b + 1], k[b:b + 1], v[b:b + 1], False)
                     for b in range(min(COMPARED, shape.B))]
            for B in company:
                o = call(q[:B], k[:B], v[:B], False)
                error = error_of(o, q[:B], k[:B], v[:B])
                if not error < TOLERANCE:
                    raise RuntimeError(f"relative error {error}")
                p = problem_of(q[:B], (k[:B], v[:B]))
                parts = {"ours": chosen(p)[1], "one_wave": backend.parts(
                    p, cut_into(p, one_wave(p, sms)), 1)}.get(name)
                same = min(B, COMPARED)
                changed = sum(int((o[b] != alone[b][0]).sum()) for b in range(same))
                rows.append(row_of(name, shape._replace(B=B), parts=parts, relative_error=error,
                                   elements=same * o[0].numel(), other_bits_elements=changed))
        except Exception as problem:
            if name in ("ours", "one_wave"):
                raise
            absent[name] = f"{type(problem).__name__} {problem}"[:120]
    return rows


def measure(options, device, say, keep):
    """Measure everything, and hand rows and absent ones to `keep` after each step."""
    absent, rows, dry = {}, [], options.dry_run
    sms = DRY_SMS if device == "cpu" else torch.cuda.get_device_properties(0).multi_processor_count
    shapes = [(shape, (1, 2, 4), (16, 32)) for shape in DRY_SHAPES] if dry else [
        *((shape, KEY_PARTS, PAGES) for shape in KEY_SHAPES),
        *((shape, PARTS, ()) for shape in GRID if shape not in KEY_SHAPES)]
    company = (1, 2, 3) if dry else COMPANY
    if device == "cuda":
        harness.warm_all(try_one, [(shape, parts, page) for shape in KEY_SHAPES for parts, page in (
            *((parts, None) for parts in KEY_PARTS), *((None, page) for page in PAGES))])
    of_bits = (DRY_SHAPES[0] if dry else KEY_SHAPES[0]._replace(N_k=BITS_KEYS))._replace(B=company[-1])
    with torch.no_grad():
        rows += other_bits(of_bits, company, device, sms, absent)
        say(*(f"{row['impl']} B={row['B']}: {row['other_bits_elements']} of {row['elements']}"
              for row in rows), sep="\n")
        for shape, parts, pages in shapes:
            found = against_parts(shape, device, options.rounds, parts, pages)
            say(f"B={shape.B} N_k={shape.N_k}",
                *(f"{row['impl']} {row['parts'] or ''} {1e6 * row['seconds']:.1f}" for row in found))
            rows += found
            keep(rows, absent)
            if device == "cuda":
                torch.cuda.empty_cache()
    return rows


def main(argv=None):
    """Check, measure, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, rounds=3,
                          dry_run="toy sizes, on the CPU, in Triton's interpreter")
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"                # before Triton is imported
    device = harness.device_for(options.dry_run)
    head = collect(options.command, dtype="float16" if device == "cpu" else input_dtype(device),
                   inputs="standard normal",
                   timing="median of rounds of medians of 3 replays, implementations alternating, in"
                          " an order drawn anew every other round, backwards in between",
                   rotating="a CUDA graph of calls on caches that take turns; 1 GiB or more alone")

    def keep(rows, absent):
        impls = dict.fromkeys(row["impl"] for row in rows)
        write(options, "decode_splits", rows, {
            **head, **{f"impl_{name}": IMPLS.get(name) or peers.NAMES[name] for name in impls},
            **{f"absent_{name}": " ".join(why.split()) for name, why in absent.items()}})

    rows = measure(options, device, lambda *words, **how: print(*words, flush=True, **how), keep)
    show.table([{key: row[key] for key in SHOWN} for row in rows])


if __name__ == "__main__":
    main()
