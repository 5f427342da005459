"""Count the bytes of grouped heads, and time the taller query tile where a sequence is short.

    python -m flashlib.course.bench.grouped --out assets/measurements --name h200

Needs a Hopper GPU. `grouped` has our forward with ever fewer heads of K and V, and where Nsight Compute
(`ncu`) may read hardware counters, which bytes shrink with them. `few_rows` has, for 1,024 queries, the
tile of 128 rows that the table takes there beside that of 192. Every case is held against float64
first. Notebooks 10, 11 and 12 show the results.
"""

from flashlib.course.bench import gluon_ablation, harness, profiler
from flashlib.course.bench.harness import case_of, only_on_hopper
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

SHAPE, HEADS = (1, 32, 4096, 128), (32, 8, 1)               # (B, H, N, d); heads of K and V
SHORT, LONG = (16, 16, 1024, 128), 4096                     # where the table's tile has 192 rows
COUNTERS = ("dram_read_bytes", "dram_write_bytes", "l2_to_sm_bytes", "sm_to_l2_bytes")
CASES = [(heads, causal) for causal in (False, True) for heads in HEADS]


def tensors(heads):
    """Return Q, and K and V of so many heads."""
    q, k, v, _ = harness.inputs(SHAPE, "cuda")
    return q, k[:, :heads].contiguous(), v[:, :heads].contiguous()


def checked(q, k, v, causal, config=None):
    """Return a function of no arguments that runs our forward, and its error against float64."""
    def call():
        return gluon_ablation.forward(q, k, v, causal, config)[0]
    return call, harness.checked(call(), q, k, v, causal)


def probe():
    """Run every case twice, the second time under the profiler."""
    for heads, causal in CASES:
        call, _ = checked(*tensors(heads), causal)
        profiler.profile(call)


def grouped(counters, rounds):
    """Yield a row for every number of heads and mask; those of a mask alternate."""
    B, H, N, d = SHAPE
    for causal in (False, True):
        found = {heads: checked(*tensors(heads), causal) for heads in HEADS}
        for heads, row in harness.raced(found, SHAPE, causal, rounds).items():
            least = 4 * B * N * d * (H + heads) + 4 * B * H * N     # Q, O, K, V in 16 bits, lse in 32
            yield {**case_of(SHAPE, impl="ours", mode="forward", causal=int(causal)), "H_k": heads,
                   **row, "least_bytes": least, "least_bytes_per_s": least / row["seconds"],
                   "relative_error": found[heads][1], **counters[heads, causal]}


def few_rows(rounds):
    """Yield a row for both tiles and masks, at `SHORT`; the tiles alternate."""
    from flashlib.kernels.configs import SHORT_128, gluon_config_for

    for causal in (False, True):
        tiles = {"tile_128": SHORT_128, "tile_192": gluon_config_for(SHORT[3], causal, LONG)}
        q, k, v, _ = harness.inputs(SHORT, "cuda")
        found = {name: checked(q, k, v, causal, config) for name, config in tiles.items()}
        for name, row in harness.raced(found, SHORT, causal, rounds).items():
            yield {**case_of(SHORT, impl=name, mode="forward", causal=int(causal)),
                   "BLOCK_M": tiles[name].BLOCK_M, "BLOCK_N": tiles[name].BLOCK_N,
                   **row, "relative_error": found[name][1]}


def main(argv=None):
    """Count, check, time, print and write the CSV files."""
    options = options_for(__spec__, __doc__, argv, probe=probe, rounds=9)
    only_on_hopper()
    counters = profiler.by_case(__spec__.name, dict.fromkeys(CASES, "flash_fwd"), COUNTERS)
    head = collect(options.command, dtype="bfloat16", inputs="standard normal",
                   timing=harness.ALTERNATING, flops="4 B H N N d forward, half if causal")
    rows = list(grouped(counters, options.rounds))
    write(options, "grouped", rows, head | {"impl_ours": "what flash_attention takes"} | profiler.NOTES)
    short = list(few_rows(options.rounds))
    write(options, "few_rows", short, head | {
        "impl_tile_128": "the table's configuration at this length",
        "impl_tile_192": f"the table's configuration for {LONG} keys"})
    show.table(rows)
    show.table(short)


if __name__ == "__main__":
    main()
