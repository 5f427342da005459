"""Time attention over several GPUs: links alone and beside it, then ring, rivals and torch's own.

    torchrun --nproc-per-node 4 -m flashlib.course.bench.ring --out assets/measurements --name h200_x4

Three steps. What of ours equals one GPU, to its rounding, or nothing is timed. Which rate a link has in
one direction, both in use, alone and beside a forward pass that leaves some SMs to NCCL. How long the
slowest rank takes for a sequence, beside one GPU of the same run with all of it. Notebook 16 shows it.

NVLink multicast stays off: the variables in `launch.QUIET` are set here, and a run that finds others
stops.
With `--dry-run`, under gloo, the same steps go through toy sizes on the CPU.
"""

import contextlib
import datetime
import functools
import itertools
import os
import sys
import time

from flashlib.course.bench import harness
from flashlib.course.bench.attention import caller, notes_of
from flashlib.course.bench.harness import device_for, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

H, HK, D = 32, 8, 128
SHORTEST, LONGEST, MODES = 2**14, 2**18, ("forward", "backward")
ALONE = 2**19                      # from here on one way at a time is in memory, and it is run once
MESSAGES = tuple(2**n for n in range(20, 30, 3))            # bytes: 1 MiB to 512 MiB
RESERVES = (0, 2, 8)                                        # SMs
LIMIT = datetime.timedelta(seconds=120)
IMPLS = {
    "one": "flashlib.flash_attention on the whole sequence, on every GPU at once",
    "ring": "flashlib.parallel.ring_attention, zigzag",
    "ring_stripe": "flashlib.parallel.ring_attention, stripe",
    "ring_contiguous": "flashlib.parallel.ring_attention, contiguous",
    "gather": "flashlib.parallel.gather_attention, zigzag",
    "ulysses": "flashlib.parallel.ulysses_attention",
    **{f"torch_{rotation}_{kernel}": f"torch context_parallel, {rotation}, {kernel}, keys of all heads"
       for rotation in ("allgather", "alltoall") for kernel in ("FLASH", "CUDNN")},
}
SERVED = ("one", "ring", "gather", "ulysses")               # what is run at the longest lengths
LAYOUTS = {"ring_stripe": "stripe", "ring_contiguous": "contiguous", "ulysses": "contiguous"}
SHOWN = ("impl", "mode", "P", "N_q", "seconds", "tflops_per_s", "efficiency", "extra_bytes")


def quiet() -> None:
    """Switch multicast off, or stop where it was switched on."""
    from flashlib.parallel.launch import QUIET

    for name, value in QUIET.items():
        if os.environ.setdefault(name, value) != value:
            sys.exit(f"{name}: expected {value}, got {os.environ[name]}: this run uses no multicast")


def join(device) -> None:
    """Join the group of torchrun, unless this process is in one already."""
    if not torch.distributed.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo", timeout=LIMIT)


def worst_of_all(amount, device) -> float:
    """Return the largest of all ranks' seconds, or bytes."""
    worst = torch.tensor([amount], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MAX)
    return worst.item()


def clock(call, device, repeats, warm=True) -> float:
    """Return the seconds of a call on the slowest rank, after a barrier; the mean of some repeats."""
    if warm:
        call()
    torch.distributed.barrier()
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return worst_of_all((time.perf_counter() - start) / repeats, device)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return worst_of_all(1e-3 * start.elapsed_time(stop) / repeats, device)


def whole(N, device):
    """Return q, k, v and dO of a sequence, the same on every rank."""
    generator = torch.Generator(device=device).manual_seed(0)
    make = {"device": device, "dtype": getattr(torch, harness.input_dtype(device))}
    return [torch.randn((1, heads, N, D if device == "cuda" else 16), generator=generator, **make)
            for heads in (H, HK, HK, H)]


@contextlib.contextmanager
def torch_parallel(rotation, kernel):
    """Let SDPA be torch's context parallelism, with one kernel and one way to move keys."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    set_rotate_method(rotation)
    P = torch.distributed.get_world_size()
    mesh = init_device_mesh("cuda", (P,))
    rows = torch.zeros(2 * P, device="cuda")                # it wants something to cut
    backend = {"FLASH": SDPBackend.FLASH_ATTENTION, "CUDNN": SDPBackend.CUDNN_ATTENTION}[kernel]
    with sdpa_kernel(backend), context_parallel(mesh, buffers=[rows], buffer_seq_dims=[0]):
        yield


def ways(device):
    """Return (name, function of q, k, v and causal, what it runs in) of all but one GPU alone."""
    from flashlib.parallel import gather_attention, ring_attention, ulysses_attention

    def ours(operation, **options):
        return lambda q, k, v, causal: operation(q, k, v, causal=causal, **options)

    def sdpa(q, k, v, causal):                              # torch's takes no grouped heads
        k, v = (x.repeat_interleave(H // HK, 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    found = [("ring", ours(ring_attention), contextlib.nullcontext),
             ("ring_stripe", ours(ring_attention, layout="stripe"), contextlib.nullcontext),
             ("ring_contiguous", ours(ring_attention, layout="contiguous"), contextlib.nullcontext),
             ("gather", ours(gather_attention), contextlib.nullcontext),
             ("ulysses", ours(ulysses_attention), contextlib.nullcontext)]
    if device == "cuda":
        both = itertools.product(("allgather", "alltoall"), ("FLASH", "CUDNN"))
        found += [(f"torch_{rotation}_{kernel}", sdpa,
                   functools.partial(torch_parallel, rotation, kernel)) for rotation, kernel in both]
    return found


def check(device, absent) -> None:
    """Hold every way against one GPU; a peer that is wrong or fails is named, ours is an error."""
    from flashlib.kernels import flash_attention
    from flashlib.parallel import shard

    tensors = whole(4096 if device == "cuda" else 64, device)

    def one(q, k, v, causal):
        return flash_attention(q, k, v, causal=causal)

    right = harness.results(one, tensors, True)
    for name, fn, context in ways(device):
        layout = LAYOUTS.get(name, "zigzag")
        try:
            with context():
                got = harness.results(fn, [shard(x, layout=layout) for x in tensors], True)
            error = harness.relative(got, [shard(x, layout=layout).double() for x in right])
            problem = None if error < harness.TOLERANCE else f"wrong, relative error {error:.3g}"
        except Exception as failure:
            problem = f"{type(failure).__name__} {failure}".splitlines()[0][:120]
        said = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(said, problem)  # all ranks go on with the same ways
        if problem := next(filter(None, said), None):
            if not name.startswith("torch"):
                raise RuntimeError(f"{name} does not equal one device: {problem}")
            absent[name] = problem


def links(device, dry, repeats):
    """Return rows of a message to the next rank: alone, and beside attention, by SMs left to it."""
    from flashlib.kernels import ops
    from flashlib.masks import Window
    from flashlib.parallel.groups import Ranks

    rank, P = torch.distributed.get_rank(), torch.distributed.get_world_size()
    groups = {"NCCL's own": torch.distributed.group.WORLD, "few": Ranks.of(None).beside().group}
    q, k, v, _ = whole(2**14 if not dry else 64, device)
    rows = []

    def shift(sent, room, group):
        batch = [torch.distributed.P2POp(torch.distributed.isend, sent, (rank + 1) % P, group),
                 torch.distributed.P2POp(torch.distributed.irecv, room, (rank - 1) % P, group)]
        return torch.distributed.batch_isend_irecv(batch)

    def attend(reserve):
        ops.forward(q, k, v, Window(), D ** -0.5, "auto", reserve=reserve)

    def both(sent, room, group, reserve):
        works = shift(sent, room, group)
        attend(reserve)
        for work in works:
            work.wait()

    def alone(sent, room, group):
        for work in shift(sent, room, group):
            work.wait()

    cases = itertools.product(groups, MESSAGES, RESERVES)
    for name, size, reserve in [("few", 2**12, 0)] if dry else cases:
        sent = torch.zeros(size, dtype=torch.int8, device=device)
        room, group = torch.empty_like(sent), groups[name]
        link = clock(functools.partial(alone, sent, room, group), device, repeats)
        forward = clock(functools.partial(attend, reserve), device, repeats)
        together = clock(functools.partial(both, sent, room, group, reserve), device, repeats)
        rows.append({"P": P, "sms_of_nccl": name, "message_bytes": size, "reserved_sms": reserve,
                     "link_seconds": link, "link_bytes_per_s": size / link, "forward_seconds": forward,
                     "both_seconds": together})
    return rows


def scale(device, dry, rounds, absent, longest=LONGEST):
    """Return rows of every length, mode and way; those of a mode alternate, up to `ALONE`."""
    from flashlib.kernels import flash_attention

    P, rows = torch.distributed.get_world_size(), []
    lengths = [64] if dry else [2**n for n in range(SHORTEST.bit_length() - 1, longest.bit_length())]

    def one(q, k, v, causal):
        return flash_attention(q, k, v, causal=causal)

    found = [("one", one, contextlib.nullcontext), *ways(device)]
    found = {name: about for name, *about in found if name not in absent}
    for N, mode in itertools.product(lengths, MODES):
        peaks = {}
        if N < ALONE:
            repeats = 1 if dry or N == LONGEST else 3
            made = {name: (name, *prepared(name, *about, N, mode, device))
                    for name, about in found.items()}
            measure = functools.partial(_measured, peaks, device, repeats)
            times = harness.alternate(made, rounds, measure)
            made.clear()
        else:
            times = {name: [_measured(peaks, device, 0, (name, *prepared(name, *found[name], N, mode,
                                                                         device)))]
                     for name in found if name in SERVED}
        flops = harness.flops((1, H, N, D if device == "cuda" else 16), True, mode)
        alone = harness.spread(times["one"], flops)["seconds"]
        for name, runs in times.items():
            of = harness.spread(runs, flops)
            rows.append({"impl": name, "mode": mode, "causal": 1, "B": 1, "H": H, "H_k": HK, "N_q": N,
                         "N_k": N, "d": D if device == "cuda" else 16, "P": P, **of,
                         "efficiency": alone / of["seconds"] / (1 if name == "one" else P),
                         "extra_bytes": peaks[name]})
            if not torch.distributed.get_rank():
                print(*(f"{rows[-1][key]:.4g}" if isinstance(rows[-1][key], float) else rows[-1][key]
                        for key in SHOWN), flush=True)
    return rows


def prepared(name, fn, context, N, mode, device):
    """Return (context, call) of a way, with what this rank holds for it."""
    from flashlib.parallel import shard

    tensors = whole(N, device)
    if name != "one":
        tensors = [shard(x, layout=LAYOUTS.get(name, "zigzag")) for x in tensors]
    with context():
        return context, caller(fn, tensors, True, mode)


def _measured(peaks, device, repeats, prepared_call) -> float:
    """Return the seconds of a call in its context; note the memory that it needed besides.

    Without repeats it is one call, the first.
    """
    name, context, call = prepared_call
    before = 0
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    with context():
        seconds = clock(call, device, repeats or 1, warm=repeats > 0)
    needed = torch.cuda.max_memory_allocated() - before if device == "cuda" else 0
    peaks[name] = int(worst_of_all(needed, device))
    return seconds


def main(argv=None):
    """Check, measure, print tables and write the CSV files, on rank 0."""
    options = options_for(__spec__, __doc__, argv, dry_run="toy sizes, on the CPU", rounds=3,
                          longest={"type": int, "default": LONGEST, "help": "tokens, a power of 2"})
    device, absent = device_for(options.dry_run), {}
    quiet()
    join(device)
    check(device, absent)
    carried = links(device, options.dry_run, 1 if options.dry_run else 10)
    rows = scale(device, options.dry_run, options.rounds, absent, options.longest)
    if torch.distributed.get_rank():
        return
    show.table(carried)
    show.table([{key: row[key] for key in SHOWN} for row in rows])
    P = torch.distributed.get_world_size()
    head = {"dtype": harness.input_dtype(device), "inputs": "standard normal",
            "timing": "slowest rank, mean of repeats after a barrier; ways alternate between rounds",
            "memory": "of the rank that needs most, beside its inputs"}
    command = options.command.replace("python -m", f"torchrun --nproc-per-node {P} -m")
    write(options, "ring_links", carried, collect(command, **head))
    write(options, "ring", rows, collect(
        command, {name: IMPLS[name] for name in {row["impl"]: 0 for row in rows}}, **head,
        flops="4 H N² d, half of it causal, 2.5 times that backward, of the whole sequence",
        **notes_of(absent)))


if __name__ == "__main__":
    main()
