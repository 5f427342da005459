"""Train and run chapter 17's GPT with one attention or another: time, memory, losses, tokens.

    python -m flashlib.course.bench.model --out assets/measurements --name h200

Three files: `model_steps`, a training step by length at a constant number of tokens, with and without
`torch.compile` around everything but attention; `model_losses`, training runs from several seeds; and
`model_writing`, one sequence that grows by a token at a time, with and without a CUDA graph.
`left_out` computes no attention, so that a step's time less its time is attention's.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

import functools
import statistics
import time
from typing import NamedTuple

from flashlib.course.bench import harness, peers
from flashlib.course.bench.harness import torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show


class Sizes(NamedTuple):
    """Of the model and of the runs."""

    L: int                                                  # layers
    C: int                                                  # columns
    H: int                                                  # heads
    T: int                                                  # tokens of a step
    lengths: tuple[int, ...]                                # each T / N sequences
    eager: tuple[int, ...]                                  # those that are timed without compiling
    loss_shape: tuple[int, int]                             # sequences and length of the loss curves
    steps: int
    seeds: int
    contexts: tuple[int, ...]                               # keys in the cache while it writes
    written: int                                            # tokens


H200 = Sizes(12, 768, 12, 65536, (1024, 2048, 4096, 8192, 16384, 32768, 65536), (1024, 4096, 65536),
             (8, 1024), 200, 3, (1024, 16384, 65536), 64)
DRY = Sizes(2, 32, 2, 128, (32, 64), (64,), (2, 32), 3, 2, (16,), 3)
IMPLS = {"standard": "three operations in bfloat16, S and P in memory",
         "left_out": "no attention: O is V", "eager": "a call from Python for every kernel",
         "graph": "a CUDA graph of a token"}
EVERY = 10                                                  # steps from one kept loss to the next


def standard(q, k, v, causal):
    """Return attention as three operations, the softmax in the dtype of its input, too."""
    with torch.autocast(q.device.type, enabled=False):
        return harness.plain(q, k, v, causal)


def attentions(device):
    """Return name → function of (q, k, v, causal), and why others are absent."""
    found, absent = peers.present(device)
    names = [name for name in ("ours", "sdpa_flash", "sdpa_cudnn") if name in found]
    return {**{name: found[name] for name in names}, "standard": standard,
            "left_out": lambda q, k, v, causal: v}, {n: why for n, why in absent.items()
                                                     if n == "sdpa_cudnn"}


def folded(attention, N):
    """Return a function of q, k and v (1, H, T, D) that attends within each N of the T tokens.

    The rest of the model then meets one shape whatever N is, and is compiled once.
    """
    def fold(x):
        return x.transpose(1, 2).unflatten(1, (-1, N)).squeeze(0).transpose(1, 2)

    def call(q, k, v):
        o = attention(fold(q), fold(k), fold(v), True)      # (T / N, H, N, D)
        return o.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)
    return call


def model_for(sizes, device, kinds, compiled, seed=0):
    """Return a model and its optimizer; `compiled` compiles all of a layer but its attention."""
    from flashlib.course.ch17.gpt import GPT, compile_layers

    torch.manual_seed(seed)
    model = GPT(kinds, sizes.L, sizes.C, sizes.H, None).to(device)
    if compiled:
        compile_layers(model)
    tuned = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=device == "cuda")
    return model, tuned


def trained(model, optimizer, x, at):
    """Train for a step on sequences x (B, N + 1), laid one behind the other, and return the loss."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        guess = model(x[:, :-1].reshape(1, -1), at)
    loss = torch.nn.functional.cross_entropy(guess[0].float(), x[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def clocked(call, device):
    """Return the seconds of a call, the device's work included."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def step_times(sizes, device, kinds, compiled, rounds, say):
    """Return rows of a step's time and memory by length and attention, in one model for all."""
    found, rows = attentions(device)[0], []
    model, tuned = model_for(sizes, device, kinds, compiled)
    for N in sizes.lengths if compiled else sizes.eager:
        at, memory, status = torch.arange(N, device=device).repeat(sizes.T // N), {}, {}
        tokens = torch.randint(kinds, (sizes.T // N, N + 1), device=device)

        def run(name, at=at, tokens=tokens, N=N):
            model.attention = folded(found[name], N)
            trained(model, tuned, tokens, at)

        for name in found:
            held = torch.cuda.memory_allocated() if device == "cuda" else 0
            try:
                run(name)                                   # it compiles
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                run(name)
                if device == "cuda":
                    memory[name] = torch.cuda.max_memory_allocated() - held
                status[name] = "ok"
            except torch.OutOfMemoryError:
                status[name] = "out of memory"
                tuned.zero_grad(set_to_none=True)
            if device == "cuda":                            # the next one's memory is its own
                torch.cuda.empty_cache()
        fitting = [name for name in found if status[name] == "ok"]
        times = harness.alternate({name: functools.partial(run, name) for name in fitting}, rounds,
                                  lambda call: clocked(call, device))
        for name in found:
            runs = times.get(name)
            seconds = statistics.median(runs) if runs else None
            rows.append({**harness.case_of((sizes.T // N, sizes.H, N, sizes.C // sizes.H), impl=name),
                         "compiled": int(compiled), "seconds": seconds,
                         "seconds_low": min(runs) if runs else None,
                         "seconds_high": max(runs) if runs else None, "rounds": rounds,
                         "tokens_per_s": sizes.T / seconds if seconds else None,
                         "extra_bytes": memory.get(name), "status": status[name]})
        say(N, "compiled" if compiled else "eager",
            *(f"{name} {statistics.median(runs):.3f} s" for name, runs in times.items()))
    return rows


def losses(sizes, device, text, say):
    """Return rows of the mean loss over each stretch of `EVERY` steps, by attention and seed."""
    from flashlib.course.ch17.text import batches, numbered

    kinds, numbers = numbered(text)
    (B, N), rows = sizes.loss_shape, []
    found = {name: call for name, call in attentions(device)[0].items() if name != "left_out"}
    for seed in range(sizes.seeds):
        for name in found:
            if name == "sdpa_cudnn" and seed:
                continue
            model, tuned = model_for(sizes, device, len(kinds), device == "cuda", seed)
            drawn, kept = batches(numbers, N, B, seed), []
            model.attention = folded(found[name], N)
            at = torch.arange(N, device=device).repeat(B)
            start = time.perf_counter()
            for _ in range(sizes.steps):
                x = torch.from_numpy(next(drawn))
                kept.append(trained(model, tuned, x.to(device), at))
            kept = torch.stack(kept).tolist()
            for step in range(0, sizes.steps, EVERY):
                stretch = kept[step:step + EVERY]
                rows.append({"impl": name, "seed": seed, "step": step,
                             "loss": sum(stretch) / len(stretch)})
            say(f"seed {seed} {name}: {kept[0]:.4f} to {rows[-1]['loss']:.4f} in"
                f" {time.perf_counter() - start:.0f} s")
    return rows


def writer(model, context, room):
    """Return a function that writes a token behind a context of random keys, all on the device."""
    weight = model.embed.weight
    caches = model.caches(1, room)
    for cache in caches:
        H, D = model.sizes
        cache.append(*torch.randn(2, 1, H, context, D, dtype=weight.dtype, device=weight.device))
    token = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
    at = torch.full((1,), context, device=weight.device)

    def call():
        token.copy_(model(token, at, caches)[:, -1:].argmax(-1))
        at.add_(1)
    return call


def captured(call):
    """Return a function that replays a call's CUDA graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        torch.cuda.synchronize()
        graph.capture_begin()
        call()
        graph.capture_end()
    torch.cuda.synchronize()
    return graph.replay


def writing(sizes, device, kinds, say):
    """Return rows of the time of a token, by how many keys the cache holds."""
    model = model_for(sizes, device, kinds, False)[0].to(torch.bfloat16 if device == "cuda" else None)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    weight_bytes = sum(x.numel() * x.element_size() for x in model.parameters())
    size, rows = model.embed.weight.element_size(), []
    for context in sizes.contexts:
        with torch.no_grad():
            for name in ("eager", "graph") if device == "cuda" else ("eager",):
                call = writer(model, context, context + 8 * sizes.written)
                for _ in range(2):
                    call()
                step = captured(call) if name == "graph" else call

                def several(step=step):
                    for _ in range(sizes.written):
                        step()
                several()
                times = [clocked(several, device) / sizes.written for _ in range(5)]
                seconds = statistics.median(times)
                rows.append({"impl": name, **harness.case_of((1, sizes.H, context, sizes.C // sizes.H)),
                             "N_q": 1, "seconds": seconds, "seconds_low": min(times),
                             "seconds_high": max(times), "rounds": len(times),
                             "tokens_per_s": 1 / seconds, "weight_bytes": weight_bytes,
                             "kv_bytes": 2 * sizes.L * sizes.C * context * size})
                say(f"{name}, {context} keys: {1 / seconds:.0f} tokens/s")
    return rows


def main(argv=None):
    """Measure, print tables and write the three CSV files."""
    from flashlib.course.ch17.text import manual, numbered

    options = options_for(__spec__, __doc__, argv, dry_run="toy sizes, on the CPU", rounds=3)
    device = harness.device_for(options.dry_run)
    sizes, text = DRY if options.dry_run else H200, manual()
    kinds, start = len(numbered(text)[0]), time.perf_counter()

    def say(*words):
        print(f"{time.perf_counter() - start:4.0f} s", *words, flush=True)

    absent = attentions(device)[1]
    head = collect(options.command, dtype="float32 weights, bfloat16 by autocast",
                   **{f"absent_{name}": why for name, why in absent.items()},
                   model=f"a GPT of {sizes.L} layers, {sizes.C} columns, {sizes.H} heads,"
                   f" {kinds} characters")
    copy = harness.copy_ceiling(harness.clock_for(device), device)

    def keep(name, rows, **more):
        impls = {row["impl"] for row in rows}
        write(options, name, rows, {
            **head, **more, **{f"impl_{impl}": IMPLS.get(impl) or peers.NAMES[impl]
                               for impl in sorted(impls)}})
        show.table(rows[:40])

    keep("model_writing", writing(sizes, device, kinds, say), **copy, inputs="keys are standard normal",
         timing=f"median of runs of {sizes.written} tokens, by the host's clock")
    steps = []
    for compiled in (True, False):
        steps += step_times(sizes, device, kinds, compiled and device == "cuda", options.rounds, say)
        keep("model_steps", steps, inputs="random characters, a constant number of them a step",
             timing="median of rounds of one step by the host's clock, implementations alternating")
    keep("model_losses", losses(sizes, device, text, say),
         inputs="Python's manual, batches by seed; sequences x characters: "
         f"{sizes.loss_shape[0]} x {sizes.loss_shape[1]}",
         timing=f"none; a loss is the mean of {EVERY} steps")


if __name__ == "__main__":
    main()
