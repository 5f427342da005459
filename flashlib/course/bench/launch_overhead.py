"""Time sums and matmuls of ever smaller matrices: below some size only the launch costs time.

    python -m flashlib.course.bench.launch_overhead --out assets/measurements --name h200

C = A + B and C = A·B of square matrices, called back to back from Python, and again as a CUDA graph of
as many nodes, which the GPU launches by itself. L2 is not flushed between calls. Notebook 01 shows the
result.
"""

import statistics
import time

from flashlib.course.bench import harness
from flashlib.course.bench.harness import torch
from flashlib.course.bench.provenance import collect, options_for, write
from flashlib.course.notebook import show

SIZES = [2**n for n in range(5, 14)]                        # rows and columns
CALLS, LEAST_CALLS = 200, 20
LONG = 4096                                                 # rows from which fewer calls suffice
IMPLS = {"sum_eager": "torch.add(A, B, out=C), back to back",
         "sum_graph": "the same, nodes of a CUDA graph",
         "matmul_eager": "torch.matmul(A, B, out=C), back to back",
         "matmul_graph": "the same, nodes of a CUDA graph"}


def many(impl, n, calls):
    """Return a function of no arguments that does an operation `calls` times."""
    A, B, C = (torch.randn(n, n, device="cuda").to(torch.bfloat16) for _ in range(3))
    operation = torch.add if impl.startswith("sum") else torch.matmul

    def eager():
        for _ in range(calls):
            operation(A, B, out=C)
    eager()
    torch.cuda.synchronize()
    if impl.endswith("eager"):
        return eager
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()

    def replay():
        graph.replay()
        return A, B, C                                      # the graph's memory lives as long as this
    return replay


def times_of(run, calls):
    """Return a call's seconds by the host's clock until the GPU is done, and until the host is free."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    free = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls, (free - start) / calls


def row_of(impl, n, found):
    """Return the columns of an operation on n × n matrices; `found` has (seconds, CPU's) by round."""
    seconds, least = statistics.median(x[0] for x in found), 3 * 2 * n * n
    count = n * n if impl.startswith("sum") else 2 * n**3
    return {"impl": impl, "rows": n, "cols": n, **harness.spread([x[0] for x in found], count),
            "least_bytes": least, "least_bytes_per_s": least / seconds,
            "cpu_seconds": statistics.median(x[1] for x in found)}


def main(argv=None):
    """Measure, print a table and write the CSV file."""
    options = options_for(__spec__, __doc__, argv, rounds=15)
    harness.device_for()
    rows = []
    for n in SIZES:
        calls = CALLS if n < LONG else LEAST_CALLS
        found = harness.alternate({impl: many(impl, n, calls) for impl in IMPLS}, options.rounds,
                                  lambda run, calls=calls: times_of(run, calls))
        rows += [row_of(impl, n, times) for impl, times in found.items()]
    show.table(rows)
    write(options, "launch_overhead", rows, collect(
        options.command, IMPLS, dtype="bfloat16", inputs="standard normal",
        timing=f"median of rounds by the host's clock, {CALLS} calls back to back, {LEAST_CALLS} from"
               f" {LONG} rows on, the implementations alternating",
        flops="n n of a sum, 2 n n n of a matmul", cpu_seconds="of a call, the host is free after it",
        **harness.ceilings("cuda")))


if __name__ == "__main__":
    main()
