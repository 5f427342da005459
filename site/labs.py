"""The labs of notebooks as tables: their words here, their numbers from labs.json.

scripts/lab_tables.py wrote the numbers; the explorer `lab` shows a table.
"""

import json
from pathlib import Path

NUMBERS = json.loads((Path(__file__).resolve().parent / "labs.json").read_text("utf-8"))


def choice(label, kind, options, names=str):
    """Return a control: how its options are written is a function of each, or a table."""
    return [
        label,
        kind,
        [names[option] if isinstance(names, dict) else names(option) for option in options],
    ]


def lab(name, title, controls, bars, lines, at, **more):
    """Return a lab's words, with a unit of its bars or the most that they reach, and how it opens."""
    words = {"name": name, "title": title, "controls": controls, "bars": bars, "lines": lines}
    return {"unit": ""} | words | more, at


def count(n):
    return f"{n:,}"


def roof(say, gpus, dims, lengths, formats):
    return lab(
        name=say("Roofline lab"),
        title=say("FLOP a byte in a layer of GPT-2 medium, 65,536 tokens"),
        controls=[choice("GPU", "select", gpus), choice(say("d, width of a head"), "pick", dims),
                  choice(say("N, tokens"), "pick", lengths, count),
                  choice(say("format"), "pick", formats)],
        bars=[say("ridge of the GPU"), "QKᵀ", "softmax", "PV"],
        lines=[say("Fused attention reaches <b>the flat roof</b>. Attention takes {1} % of the"
                   " layer’s time in three kernels, {2} % fused."),
               say("Fused attention waits for memory, at <b>{0} %</b> of the flat roof. Attention"
                   " takes {1} % of the layer’s time in three kernels, {2} % fused."),
               say("Fused attention reaches <b>{0} %</b> of the flat roof, held down by a lower"
                   " ceiling, dashed in the picture. Attention takes {1} % of the layer’s time in"
                   " three kernels, {2} % fused.")],
        at=[6, 2, 0, 0])


def matmul(say, shapes, edges):
    return lab(
        name=say("Tile lab"),
        title=say("HBM bytes"),
        unit="B",
        controls=[choice(say("product"), "pick", shapes,
                         {s: s for s in shapes} | {"one": say("one token × 4,096²")}),
                  choice(say("edge of a tile of C"), "range", edges)],
        bars=[say("each matrix once"), say("these tiles")],
        lines=[say("The tiles need {0} of {1} KiB. <b>{2} FLOP a byte</b>, above the ridge of an H200"
                   " at {3}: bound by matmul. The textbook loop asks for {4}."),
               say("The tiles need {0} of {1} KiB. <b>{2} FLOP a byte</b>, below the ridge of an H200"
                   " at {3}: bound by memory. The textbook loop asks for {4}."),
               say('The tiles need {0} KiB: with {1} they <b class="fx-bad">do not fit</b>.')],
        at=[0, 5])


def walk(say, queries, sizes, keys):
    return lab(
        name=say("Walk over the keys"),
        title=say("The state, and how far o/ℓ is from the output"),
        controls=[choice(say("query"), "pick", queries,
                         {"needs": say("“needs”, head 0"), "of": say("the first “of”, head 1")}),
                  choice(say("keys in a block"), "pick", sizes),
                  choice(say("keys read"), "range", keys)],
        bars=[say("sum ℓ"), say("largest distance")],
        lines=[say("“{0}”: nothing to rescale yet. {3} of 56 keys are read, m = {4}."),
               say("“{0}”: a new maximum, <b>all that was there × {1}</b>. Rescales so far: {2}. {3}"
                   " of 56 keys are read, m = {4}."),
               say("“{0}”: no new maximum. Rescales so far: {2}. {3} of 56 keys are read, m = {4}.")],
        at=[0, 0, 31])


def fill(say, kernels, masks, pairs, blocks):
    return lab(
        name=say("Occupancy lab"),
        title=say("How long the SMs of an A100 work, by length N"),
        unit="%",
        most=100,
        controls=[choice(say("kernel"), "pick", kernels,
                         {"v1": say("v1 forward"), "v2": say("v2 forward")}),
                  choice(say("mask"), "pick", masks, {"none": say("none"), "causal": say("causal")}),
                  choice(say("heads of all sequences, B · H"), "range", pairs, count),
                  choice(say("rows per program"), "pick", blocks)],
        bars=["512", "1,024", "4,096", "16,384", "65,536"],
        lines=[say("A program a head: <b>{0} programs</b> on 108 SMs, waves: {1}, whatever the length"
                   " or the mask."),
               say("A program for each tile of rows: <b>{0}</b> of them at 1,024 tokens, <b>{1}</b>"
                   " at 4,096."),
               say("At 4,096 tokens a mask leaves <b>{0} %</b> of the time, the longest rows first.")],
        at=[0, 0, 4, 1])


def pointers(say, layouts, blocks, masks):
    return lab(
        name=say("Pointer lab"),
        title=say("Sectors of 32 bytes for the first program’s 16 lanes"),
        most=16,
        controls=[choice(say("X in memory"), "pick", layouts,
                         {"row by row": say("row by row"), "transposed": say("transposed"),
                          "slice of a wider one": say("slice of a wider one")}),
                  choice(say("block"), "pick", blocks),
                  choice(say("mask"), "pick", masks, {"on": say("on"), "off": say("off")})],
        bars=[say("sectors that cross"), say("packed")],
        lines=[say("{0} elements come, {1} lanes are masked, and nobody reads outside the matrix."),
               say('{0} elements come, and <b class="fx-bad">{2} lanes read outside the matrix</b>.')],
        at=[1, 0, 0])


def budgets(say, gpus, rows, columns, warps):
    return lab(
        name=say("Tile lab"),
        title=say("Of one SM’s budget, with two stages"),
        unit="%",
        controls=[choice("GPU", "pick", gpus),
                  choice(say("<i>B<sub>r</sub></i>, rows of Q"), "range", rows),
                  choice(say("<i>B<sub>c</sub></i>, rows of K, V"), "range", columns),
                  choice(say("warps"), "pick", warps)],
        bars=[say("shared memory"), say("registers of a thread")],
        lines=[say('This tile <b class="fx-bad">does not fit</b>.'),
               say('<b>{0} ms</b> predicted. Programs on an SM: {1}. <b class="fx-bad">{2} registers'
                   " of a thread spill</b>."),
               say("<b>{0} ms</b> predicted. Programs on an SM: {1}. Nothing spills.")],
        at=[1, 2, 1, 0])


def schedule(say, plans, dims, rows, keys, stages):
    return lab(
        name=say("Schedule lab"),
        title=say("Cycles of one SM a tile, simulated for an H200"),
        controls=[choice(say("plan"), "select", plans), choice("d", "pick", dims),
                  choice(say("query rows"), "pick", rows), choice(say("keys of a tile"), "pick", keys),
                  choice(say("stages"), "pick", stages)],
        bars=[say("a tile takes"), say("tensor cores work"), say("exponentials work"),
              say("copies work")],
        lines=[say('This tile <b class="fx-bad">does not fit</b>: its registers or its stages are too'
                   " many."),
               say("The tensor cores work <b>{0} %</b> of the time.")],
        at=[3, 0, 0, 3, 1])


def hazards(say, lines, slots, orders, keys):
    names = {"nothing": say("nothing"), "the wait for a tile": say("the wait for a tile"),
             "the wait for a free slot": say("the wait for a free slot"),
             "giving slots back": say("giving slots back"),
             "half of the expected bytes": say("half of the expected bytes"),
             "the wait for P·V": say("the wait for P·V"),
             "the fence before O leaves": say("the fence before O leaves"),
             "the wait for O": say("the wait for O")}
    return lab(
        name=say("Hazard lab"),
        title=say("Steps in the interpreter, 128 queries and keys"),
        controls=[choice(say("left out"), "select", lines, names),
                  choice(say("slots of the ring"), "pick", slots),
                  choice(say("copies land"), "pick", orders,
                         {"late": say("as late as may be"), "early": say("as early")}),
                  choice(say("keys of a tile"), "pick", keys)],
        bars=[say("it goes on for"), say("with every line")],
        lines=[say("No hazard in this run: O differs from float64 by at most <b>{0}</b>."),
               say('<b class="fx-bad">It never ends</b>: every task waits for another.'),
               say('<b class="fx-bad">A hazard</b>: a product reads a slot that a copy may still'
                   " write."),
               say('<b class="fx-bad">A hazard</b>: a copy overwrites a slot that is still in use.'),
               say('<b class="fx-bad">A hazard</b>: the result of a product is used before it is'
                   " there."),
               say('<b class="fx-bad">A hazard</b>: a copy reads what was written without a fence.'),
               say('<b class="fx-bad">A hazard</b>: the kernel ends without a wait for its store.'),
               say('<b class="fx-bad">It never ends</b>: more bytes land than the barrier expects.')],
        at=[2, 1, 0, 1])


def sums(say, orders, sms, hands):
    return lab(
        name=say("Order lab"),
        title=say("Steps for two heads of eight key tiles"),
        controls=[choice(say("order"), "select", orders,
                         {"apart": say("each program starts at a query tile of its own"),
                          "together": say("all start at query tile 0"), "unordered": say("no order"),
                          "one_ring": say("starts of its own, but one sum"),
                          "first_key_first": say("the first key tile adds first")}),
                  choice("SMs", "range", sms),
                  choice(say("steps of a hand-over"), "pick", hands, "{:g}".format)],
        bars=[say("it takes"), say("without waiting")],
        lines=[say('<b class="fx-bad">It hangs</b>: {0} programs wait for ever.'),
               say("The SMs are idle <b>{0} %</b> of the time.")],
        at=[1, 4, 2])


def numbers(say, values, scales, formats):
    return lab(
        name=say("One number in FP8"),
        title=say("The number, and what is kept of it"),
        controls=[choice(say("number"), "range", values, "{:g}".format),
                  choice(say("scale"), "pick", scales, {s: s.partition(",")[0] for s in scales}),
                  choice(say("format"), "pick", formats)],
        bars=[say("number"), say("kept")],
        lines=[say("{0} becomes <b>{1}</b>: {2} % off."),
               say('{0} becomes <b>{1}</b>: <b class="fx-bad">{2} % off</b>.')],
        at=[4, 2, 0])


def outliers(say, rates, sizes):
    return lab(
        name=say("Outliers"),
        title=say("Error of attention in e4m3, 4,096 keys, d = 64"),
        controls=[choice(say("outlier rate"), "pick", rates, lambda rate: f"{100 * rate:g} %"),
                  choice(say("outlier size"), "pick", sizes, "{:g}".format)],
        bars=["float16", say("one scale"), say("block scales"), say("one scale, rotated"),
              say("block scales, rotated")],
        lines=[say("In four draws block scales alone err {0} to {1} times less than one scale, with"
                   " rotation {2} to {3} times. Largest weight of a row, median: <b>{4}</b>.")],
        at=[1, 0])


def units(say, gpus, dims, shares):
    return lab(
        name=say("Exponential lab"),
        title=say("Cycles of an SM for 128 × 128 logits"),
        most=1600,
        controls=[choice("GPU", "pick", gpus), choice("d", "pick", dims),
                  choice(say("emulated share"), "range", shares, lambda share: f"{100 * share:.0f} %")],
        bars=[say("matmul"), say("exponentials"), say("lanes"), say("shared memory"), say("simulated")],
        lines=[say("With these units, each at its peak, the schedule takes <b>{0} cycles</b>.")],
        at=[1, 1, 0])


def layer(say, models, lengths, rates):
    return lab(
        name=say("Model lab"),
        title=say("Time of a causal layer, 65,536 tokens on an H200"),
        unit="s",
        controls=[choice(say("layers × columns"), "select", models),
                  choice(say("length"), "range", lengths, count),
                  choice(say("attention before"), "pick", rates,
                         {rate: f"{rate} TFLOP/s" for rate in rates} | {
                             "dense": say("as the matrices")})],
        bars=[say("matrices"), say("attention before"), say("twice as fast")],
        lines=[say("Attention is {0} % of the layer. Twice its rate makes the layer <b>{1} ×</b> as"
                   " fast, and no rate more than {2} ×.")],
        at=[0, 2, 1])


MADE = {made.__name__: made for made in (
    roof, matmul, walk, fill, pointers, budgets, schedule, hazards, sums, numbers, outliers, units,
    layer)}


def state(name, say):
    """Return what the explorer `lab` is given: each different row once, and which is whose."""
    options, rows = NUMBERS[name]["options"], NUMBERS[name]["rows"]
    words, at = MADE[name](say, *options)
    different = list(dict.fromkeys(json.dumps(row, ensure_ascii=False) for row in rows))
    if len(different) < 0.7 * len(rows):
        place = {row: n for n, row in enumerate(different)}
        words["of"] = [place[json.dumps(row, ensure_ascii=False)] for row in rows]
        rows = [json.loads(row) for row in different]
    return words | {"at": at, "rows": rows}
