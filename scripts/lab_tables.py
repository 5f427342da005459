"""Write what labs of the notebooks answer to a few of their choices, for the site's pages, as JSON.

    python scripts/lab_tables.py               # writes site/labs.json
    python scripts/lab_tables.py --check       # says which table is stale, and ends with 1

Each table is {"options": a list for each control, "rows": one for each combination, the last control
fastest}. A row holds the lengths of bars, the number of a sentence, and what the sentence names;
site/labs.py has the words. The numbers are those of the lab's own models.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flashlib import exp2, hardware, quant  # noqa: E402
from flashlib.course.ch01 import lab as layer_lab  # noqa: E402
from flashlib.course.ch05 import lab as walk_lab  # noqa: E402
from flashlib.course.ch09 import figures as pointer_figures  # noqa: E402
from flashlib.course.ch09 import lab as pointer_lab  # noqa: E402
from flashlib.course.ch12b import order as orders  # noqa: E402
from flashlib.course.ch13 import lab as fp8_lab  # noqa: E402
from flashlib.course.ch14 import lab as exp_lab  # noqa: E402
from flashlib.course.ch17 import lab as model_lab  # noqa: E402
from flashlib.course.ch17 import race  # noqa: E402
from flashlib.course.plots.theme import human_bytes  # noqa: E402
from flashlib.models import (  # noqa: E402
    exponentials,
    occupancy,
    predict,
    roofline,
    stale_maximum,
    traffic,
    transformer,
)
from flashlib.models.matmul import matmul_tiles  # noqa: E402
from flashlib.models.sm import programs  # noqa: E402
from flashlib.models.sm.simulator import DoesNotFit, simulate  # noqa: E402

FILE = ROOT / "site" / "labs.json"
RATES, SIZES = (0.0, 0.001, 0.01), (10.0, 100.0, 1000.0)  # of outliers


def table(function, *options):
    """Return the table of a function of one option each."""
    return {
        "options": [list(some) for some in options],
        "rows": [
            [short(value) for value in function(*choice)] for choice in itertools.product(*options)
        ],
    }


def short(value):
    """Return a number with four digits, as they are enough for a bar; words and None as they are."""
    if value is None or isinstance(value, str | int):
        return value
    found = float(f"{value:.4g}")
    return int(found) if found == int(found) else found


def percent(share) -> str:
    return f"{100 * share:.0f}"


def roof():
    """Chapter 01: FLOP a byte of attention's kernels in GPT-2 medium, and what holds them back."""

    def row(gpu, d, N, dtype):
        sheet = hardware.get(gpu)
        used = dtype if dtype in sheet.matmul_flops_per_s else "float16"
        model = transformer.with_head_dimension(transformer.GPT2_MEDIUM, d)
        operators = transformer.layer(model, N, max(1, layer_lab.TOKENS // N), used)
        three = [op for op in operators if op.part == "attention"]
        fused = transformer.fuse(operators, transformer.ATTENTION)
        times = [roofline.time_s(op, sheet, used) for op in three]
        mine, apart = roofline.time_s(fused, sheet, used), sum(t.time_s for t in times)
        rest = sum(roofline.time_s(op, sheet, used).time_s for op in operators) - apart
        reached = fused.flops / mine.time_s / float(sheet.matmul_flops_per_s[used])
        said = {"matmul": 0, "memory": 1}.get(mine.bound, 2)
        return (roofline.ridge(sheet, used), *(op.intensity for op in three), said, percent(reached),
                percent(apart / (apart + rest)), percent(mine.time_s / (mine.time_s + rest)))

    return table(row, [gpu.name for gpu in hardware.ALL], layer_lab.DIMS, (1024, 16384, 65536),
                 ("float16", "float8"))


def matmul():
    """Chapter 02: square tiles of three products and of one token, on an H200."""
    shapes = {
        "one": (1, 4096, 4096),
        "1,024³": (1024,) * 3,
        "4,096³": (4096,) * 3,
        "16,384³": (16384,) * 3,
    }
    gpu = hardware.get("H200")
    ridge, room = roofline.ridge(gpu, "float16"), gpu.sram_bytes or 0

    def row(shape, edge):
        M, N, K = shapes[shape]
        once = traffic.tiled_matmul(M=M, N=N, K=K, Bm=M, Bn=N, Bk=K)
        cost = traffic.tiled_matmul(M=M, N=N, K=K, Bm=edge, Bn=edge, Bk=32)
        naive = traffic.naive_matmul(M=M, N=N, K=K)
        held = sum(size for *_, size in matmul_tiles(min(edge, M), min(edge, N), min(32, K)))
        intensity = cost.matmul_flops / cost.hbm_bytes
        said = 2 if held > room else 0 if intensity >= ridge else 1
        return (once.hbm_bytes, cost.hbm_bytes, said, f"{held / 1024:.3g}", f"{room / 1024:.0f}",
                f"{intensity:.3g}", f"{ridge:.0f}", human_bytes(naive.hbm_bytes))

    return table(row, shapes, (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 384, 512))


def walk():
    """Chapter 05: two queries of the sentence on their walk over 56 keys, in blocks."""
    queries = {"needs": (0, 46), "of": (1, 20)}

    def row(name, size, keys):
        words, s, V = walk_lab.row_of(*queries[name])
        start = (keys - 1) // size * size
        stop = min(start + size, len(words))
        _, m, l, o = walk_lab.state_of(s, V, stop)
        _, _, all_l, all_o = walk_lab.state_of(s, V, len(words))
        maxima = [s[:end].max() for end in (*range(size, stop, size), stop)]
        rescales = int((np.diff(maxima) > 0).sum())
        factor = np.exp(maxima[-2] - maxima[-1]) if len(maxima) > 1 else 1.0
        block = words[start] if stop == start + 1 else f"{words[start]} … {words[stop - 1]}"
        said = 0 if len(maxima) == 1 else 1 if factor < 1 else 2
        return (l, np.abs(o / l - all_o / all_l).max(), said, block, f"{factor:.3f}", rescales, stop,
                f"{m:.2f}")

    return table(row, queries, (1, 8, 28, 56), range(1, 57))


def fill():
    """Chapter 08: how long the SMs of an A100 work, at some lengths."""
    gpu, lengths = hardware.get("A100"), (512, 1024, 4096, 16384, 65536)

    def row(kernel, mask, pairs, block):
        def waves(N):
            height = None if kernel == "v1" else block
            return occupancy.waves(occupancy.programs(batch=1, heads=pairs, N=N, block=height), gpu)

        if kernel == "v1" or mask == "none":
            busy = [100 * waves(N).efficiency for N in lengths]
            if kernel == "v1":
                return *busy, 0, f"{waves(512).programs:,}", f"{waves(512).waves:,}"
            return *busy, 1, f"{waves(1024).programs:,}", f"{waves(4096).programs:,}"
        busy, left = [], ""
        for N in lengths:
            each = occupancy.causal_lengths(N, block)
            time = occupancy.causal_time(each, pairs, waves(N).slots)
            busy.append(100 * pairs * sum(each) / (waves(N).slots * time))
            if N == 4096:
                left = percent(time / (waves(N).waves * len(each)))
        return *busy, 2, left

    return table(row, ("v1", "v2"), ("none", "causal"), [2**n for n in range(11)], (64, 128))


def pointers():
    """Chapter 09: the sectors that the first program's lanes ask for."""

    def row(layout, block, mask):
        m, n = map(int, block.split(" × "))
        _, _, at, inside, on = pointer_figures.touched(
            pointer_lab.SHAPE, pointer_lab.LAYOUTS[layout], (m, n), 0, mask == "on"
        )
        hit, wild = (
            len({int(place) // pointer_figures.SECTOR for place in at[on]}),
            int((on & ~inside).sum()),
        )
        return (hit, -(-int(on.sum()) // pointer_figures.SECTOR), 1 if wild else 0, int(on.sum()),
                int((~on).sum()), wild)

    return table(row, list(pointer_lab.LAYOUTS), [f"{m} × {n}" for m, n in pointer_lab.BLOCKS],
                 ("on", "off"))


def budgets():
    """Chapter 11: what a tile asks of an SM, and its predicted time; d = 128, N = 4,096."""

    def row(gpu, Br, Bc, warps):
        sheet = hardware.get(gpu)
        p = predict.predict(sheet, predict.Config(Br, Bc, warps, 2), batch=4, heads=16, N=4096, d=128)
        room = sheet.sram_bytes or 1
        used = 100 * p.shared_bytes / room, 100 * p.registers / predict.MOST_REGISTERS
        if not p.per_sm:
            return *used, 0
        return *used, 1 if p.spilled_words else 2, f"{1e3 * p.time_s:.2f}", p.per_sm, p.spilled_words

    return table(row, ("A100", "RTX 4090", "H100", "H200"), (32, 64, 128, 256), (32, 64, 128, 256),
                 (4, 8))


def schedule():
    """Chapter 12: cycles of a tile by plan, on an H200 in bf16."""

    def row(program, d, rows, keys, stages):
        options = {
            "gpu": "H200",
            "d": d,
            "rows": rows,
            "keys": keys,
            "stages": stages,
            "dtype": "bfloat16",
            "tiles": 24,
        }
        made = programs.build(program, arbitration="shared", **options)
        work = {unit: cycles / made.tiles for unit, cycles in programs.totals(**options).items()}
        units = work["tensor"], work["exp"], work["copy"]
        try:
            cycles = simulate(made).cycles_per_tile
        except DoesNotFit:
            return None, *units, 0
        return cycles, *units, 1, percent(work["tensor"] / cycles)

    return table(row, list(programs.PROGRAMS), (64, 128), (128, 192), (64, 80, 96, 128), (1, 2, 3))


def hazards():
    """Chapter 12: the teaching kernel in the interpreter, with a line left out; wants Triton."""
    from flashlib.course.ch12 import edited_kernels
    from flashlib.course.ch12.lab import ran

    found = (
        "no task",
        "may still write it: wait",
        "overwrites",
        "is used before",
        "fence_async",
        "store_wait",
    )

    def row(left_out, slots, order, keys):
        events, came = ran(left_out, slots, order, keys)
        whole, right = ran("nothing", slots, order, keys)
        steps = len(events), len(whole) if isinstance(right, str) else None
        if isinstance(came, str):
            return *steps, 0, came.split()[-1]
        said = str(came)
        if "too many" in said:
            return *steps, 7
        return *steps, 1 + next(n for n, words in enumerate(found) if words in said)

    return table(row, list(edited_kernels.LEFT_OUT), (1, 2, 3, 4, 6), ("late", "early"), (16, 32, 64))


def sums():
    """Chapter 12b: an order of sums, two heads of eight key tiles."""

    def row(order, sms, hand):
        s = orders.simulate(order, tiles=8, heads=2, sms=sms, hand=hand)
        if s.stuck:
            return None, None, 0, len(s.stuck)
        return s.length, s.count / sms, 1, percent(s.idle)

    return table(row, ("apart", "together", "unordered", "one_ring", "first_key_first"),
                 (1, 2, 4, 7, 8, 16), (0.0, 0.5, 1.0, 2.0, 3.0))


def numbers():
    """Chapter 13: what a format keeps of a number."""
    scales = dict(fp8_lab.SCALES)

    def row(value, scale, fmt):
        kept = quant.fields(value / scales[scale], fmt).value * scales[scale]
        return (value, kept, 0 if abs(kept - value) <= value / 4 else 1, f"{value:g}", f"{kept:.4g}",
                f"{100 * abs(kept / value - 1):.2g}")

    return table(row,
                 (0.001, 0.004, 0.02, 0.1, 0.3, 0.7, 1.06, 3.3, 7.7, 17.0, 45.0, 300.0, 460.0, 1000.0),
                 list(scales), list(quant.FLOATS))


def outliers(rates=RATES, sizes=SIZES):
    """Chapter 13: the errors of attention in e4m3, by outliers; slow, a few seconds a row."""

    def row(rate, size):
        errors, weight = fp8_lab.errors_of("e4m3", rate, size if rate else SIZES[0])
        low, high = errors[2]["gains"][[0, -1]]
        rlow, rhigh = errors[4]["gains"][[0, -1]]
        return (*(each["rmse"] for each in errors), 0, f"{low:.1f}", f"{high:.1f}", f"{rlow:.1f}",
                f"{rhigh:.1f}", f"{weight:.2g}")

    return table(row, rates, sizes)


def units():
    """Chapter 14: the units of an SM for 128 × 128 logits, and the simulated cycles at τ = 8."""
    used = stale_maximum.references(exp_lab.maxima_of_rows(), 8.0)
    rescales = float(used.renewed[:, 1:].any(axis=0).mean())

    def row(gpu, d, share):
        u = exponentials.units(exp_lab.GPUS[gpu], d=d, share=share, degree=3)
        cycles = exp_lab.cycles_of(gpu, d, share, 3, rescales)
        return u.matmul, u.exp, u.vector, u.shared, cycles, 0, f"{cycles:,.0f}"

    assert exp2.HIGHEST_DEGREE >= 3
    return table(row, list(exp_lab.GPUS), (64, 128), exp_lab.SHARES[:10])


def layer():
    """Chapter 17: a causal layer on an H200, and the same with attention at twice the rate."""
    dense_rate = model_lab.rate_of_matrices(hardware.get("H200"))

    def row(model, N, rate):
        C = model_lab.MODELS[model][1]
        rate = dense_rate if rate == "dense" else 1e12 * rate
        dense, attention = model_lab.layer_seconds(N, C, dense_rate, rate)
        part = race.share(N, C, dense_rate / rate)
        return (dense, attention, attention / 2, 0, percent(part), f"{race.speedup(part, 2):.2f}",
                f"{1 / (1 - part):.2f}")

    return table(row, list(model_lab.MODELS), model_lab.LENGTHS, (100, 200, 400, "dense"))


TABLES = {made.__name__: made for made in (
    roof, matmul, walk, fill, pointers, budgets, schedule, hazards, sums, numbers, outliers, units,
    layer)}


def as_json(made) -> str:
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def stale() -> list[str]:
    """Return the tables that are no longer what the labs answer; of the slow one a single row."""
    kept = json.loads(FILE.read_text("utf-8"))
    found = [
        name
        for name, made in TABLES.items()
        if (name != "outliers" and (name != "hazards" or importlib.util.find_spec("triton")))
        and as_json(kept.get(name)) != as_json(made())
    ]
    if kept["outliers"]["rows"][len(SIZES)] != outliers(RATES[1:2], SIZES[:1])["rows"][0]:
        found.append("outliers")
    return found


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and say what is stale")
    if parser.parse_args().check:
        found = stale()
        sys.exit(f"stale in {FILE.name}: {', '.join(found)}; run `make explorer`" if found else 0)
    lines = ",\n".join(f'"{name}":{as_json(made())}' for name, made in TABLES.items())
    FILE.write_text(f"{{{lines}}}\n", "utf-8")


if __name__ == "__main__":
    main()
