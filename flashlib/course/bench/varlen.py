"""Time packed sequences, forward and backward, of equal and of unlike lengths, beside other ways.

    python -m flashlib.course.bench.varlen --out assets/measurements --name h200

Each batch is packed into one tensor (T, H, d), causal. Beside one call of ours for all sequences stand
the peers' packed functions, and at equal lengths our op on the same memory as a batch, and once a
sequence. O and the gradients of a head are held against float64 first, over all sequences. Notebook 15
shows the result.

On a machine without a GPU, `--dry-run` goes through the same steps at toy sizes.
"""

import functools
import importlib.util
import inspect
import itertools
import random

from flashlib.course.bench import harness, peers
from flashlib.course.bench.attention import caller, notes_of
from flashlib.course.bench.harness import device_for, input_dtype, torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

HEADS, DIMS, MODES = 16, (64, 128), ("forward", "backward")
TOKENS, LEAST, MOST = 32768, 64, 8192                       # of a drawn batch; of its sequences
IMPLS = {
    "ours": "flashlib.flash_attention_varlen",
    "ours_alone": "flashlib.flash_attention, once a sequence",
    "ours_batch": "flashlib.flash_attention on the same memory as (B, H, N, d)",
    "ours_triton": "flashlib.flash_attention(impl='triton') on the same memory as (B, H, N, d)",
    "varlen_attn": "torch.nn.attention.varlen.varlen_attn",
    "fa3": "FlashAttention-3, flash_attn_varlen_func",
}
TORCH = "torch.nn.attention.varlen"
SHOWN = ("note", "impl", "mode", "d", "B", "N_q", "seconds", "tflops_per_s", "relative_error")


def drawn(tokens=TOKENS, least=LEAST, most=MOST, seed=0) -> list[int]:
    """Return lengths that add up to so many tokens, their logarithms drawn evenly."""
    lengths, draw = [], random.Random(seed)
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, round(least * (most / least) ** draw.random())))
    return lengths


def batches(dry) -> dict[str, list[int]]:
    """Return the lengths of each batch by its name."""
    if dry:
        return {"equal": [64] * 4, "drawn": drawn(256, 8, 128), "one long": [150, *[9] * 6]}
    return {"equal": [2048] * 16, "drawn": drawn(), "one long": [16384, *[136] * 60]}


class Batch:
    """The lengths of a batch on a device, and ways to compute it: functions of (q, k, v, causal)."""

    def __init__(self, lengths, device):
        self.lengths, self.longest = lengths, max(lengths)
        ends = [0, *itertools.accumulate(lengths)]
        self.slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.cu = torch.tensor(ends, dtype=torch.int32, device=device)

    def ours(self, q, k, v, causal):
        from flashlib.kernels import flash_attention_varlen

        return flash_attention_varlen(q, k, v, self.cu, causal=causal)

    def ours_alone(self, q, k, v, causal):
        from flashlib.kernels import flash_attention

        found = [flash_attention(*(x[rows].transpose(0, 1)[None] for x in (q, k, v)), causal=causal)
                 for rows in self.slices]
        return torch.cat([o[0].transpose(0, 1) for o in found])

    def ours_batch(self, q, k, v, causal, impl="auto"):
        from flashlib.kernels import flash_attention

        batch = (x.unflatten(0, (len(self.lengths), -1)).transpose(1, 2) for x in (q, k, v))
        return flash_attention(*batch, causal=causal, impl=impl).transpose(1, 2).flatten(0, 1)

    def varlen_attn(self, q, k, v, causal):
        fn = importlib.import_module(TORCH).varlen_attn
        new = "window_size" in inspect.signature(fn).parameters
        mask = {"window_size": (-1, 0 if causal else -1)} if new else {"is_causal": causal}
        return fn(q, k, v, self.cu, self.cu, self.longest, self.longest, **mask)

    def fa3(self, q, k, v, causal):
        fn = importlib.import_module(peers.LIBRARIES["fa3"]).flash_attn_varlen_func
        out = fn(q, k, v, self.cu, self.cu, max_seqlen_q=self.longest, max_seqlen_k=self.longest,
                 causal=causal)
        return out[0] if isinstance(out, tuple) else out

    def ways(self, device):
        """Return the ways of this machine by name, and a reason for each absent one."""
        ways, absent = {"ours": self.ours}, {}
        if len(set(self.lengths)) == 1:
            ways |= {"ours_alone": self.ours_alone, "ours_batch": self.ours_batch}
            if device == "cuda":
                ways["ours_triton"] = functools.partial(self.ours_batch, impl="triton")
        for name, module in (("varlen_attn", TORCH), ("fa3", peers.LIBRARIES["fa3"])):
            if device != "cuda":
                absent[name] = "needs a GPU"
            elif importlib.util.find_spec(module) is None:
                absent[name] = f"{module} is not installed"
            else:
                ways[name] = getattr(self, name)
        return ways, absent

    def exact(self, tensors):
        """Return O, dQ, dK, dV of the first head in float64, sequence by sequence."""
        found = [harness.exact(*(x[rows, :1].transpose(0, 1)[None] for x in tensors), True)
                 for rows in self.slices]
        return [torch.cat([x[0, 0] for x in parts]) for parts in zip(*found, strict=True)]

    def flops(self, d, mode):
        """Return the customary count: 4·H·n²·d of each sequence, half of it, times 2.5 backward."""
        return sum(harness.flops((1, HEADS, n, d), True, mode) for n in self.lengths)


def tensors_of(lengths, d, device):
    """Return q, k, v and dO, (T, H, d)."""
    return harness.inputs((sum(lengths), HEADS, d), device)


def errors_of(ways, tensors, right, label, absent) -> dict:
    """Return (way, mode) → error; a peer that fails or is wrong is named in `absent` instead."""
    errors = {}
    for name, fn in ways.items():
        try:
            got = [x[:, 0] for x in harness.results(fn, tensors, True)]
        except Exception as problem:
            if name.startswith("ours"):
                raise
            absent[f"{name} at {label}"] = f"{type(problem).__name__} {problem}"[:120]
            continue
        found = {"forward": harness.relative(got[:1], right[:1]),
                 "backward": harness.relative(got[1:], right[1:])}
        if max(found.values()) < harness.TOLERANCE:
            errors |= {(name, mode): error for mode, error in found.items()}
        elif name.startswith("ours"):
            raise RuntimeError(f"{name} is wrong at {label}: relative errors {found}")
        else:
            absent[f"{name} at {label}"] = f"wrong, relative errors {found}"
    return errors


def warm(case):
    """Compile what one case needs, in a process of its own."""
    name, lengths, d, device = case
    harness.results(Batch(lengths, device).ways(device)[0][name], tensors_of(lengths, d, device), True)


def measure(dry, device, rounds):
    """Return a row for every batch, head dimension, mode and way; those of a mode alternate."""
    rows, absent = [], {}
    dims = DIMS[:1] if dry else DIMS
    if device == "cuda":
        harness.warm_all(warm, [(name, lengths, d, device) for d in dims
                                for lengths in batches(dry).values()
                                for name in Batch(lengths, device).ways(device)[0]
                                if name.startswith("ours")])
    for (note, lengths), d in itertools.product(batches(dry).items(), dims):
        batch, tensors = Batch(lengths, device), tensors_of(lengths, d, device)
        ways, missing = batch.ways(device)
        absent |= missing
        errors = errors_of(ways, tensors, batch.exact(tensors), f"{note} d={d}", absent)
        for mode in MODES:
            fns = {name: ways[name] for name, of in errors if of == mode}
            times = harness.race({name: caller(fn, tensors, True, mode) for name, fn in fns.items()},
                                 device, rounds, 20)
            rows += [{"impl": name, "mode": mode, "causal": 1, "B": len(lengths), "H": HEADS,
                      "H_k": HEADS, "N_q": batch.longest, "N_k": batch.longest, "d": d,
                      **harness.spread(runs, batch.flops(d, mode)),
                      "relative_error": errors[name, mode], "note": note}
                     for name, runs in times.items()]
    return rows, absent


def main(argv=None):
    """Check, measure, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, dry_run="toy sizes, on the CPU", rounds=3)
    device = device_for(options.dry_run)
    rows, absent = measure(options.dry_run, device, options.rounds)
    show.table([{key: row[key] for key in SHOWN} for row in rows])
    told = "; ".join(f"{name}: {len(n)} sequences of {min(n)} to {max(n)}, {sum(n)} rows"
                     for name, n in batches(options.dry_run).items())
    write(options, "varlen", rows, collect(
        options.command, {name: IMPLS[name] for name in {row["impl"]: 0 for row in rows}},
        dtype=input_dtype(device), inputs="standard normal", timing=harness.ALTERNATING,
        flops="4 H n² d of each sequence, half of it, 2.5 times that backward", note=told,
        N_q="of the longest sequence", N_k="of the longest sequence", **notes_of(absent)))


if __name__ == "__main__":
    main()
