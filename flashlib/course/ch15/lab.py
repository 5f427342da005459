"""The lab of chapter 15: who is busy for how long, as a call's shape, its parts and the GPU move."""

import functools

from flashlib import hardware
from flashlib.course.ch15 import figures, plan
from flashlib.course.notebook.data import measurements
from flashlib.course.plots.theme import human_bytes
from flashlib.course.widgets import base

LIBRARY = "as flashlib does"
BATCH, LENGTHS = (1, 2, 4, 8, 16, 32, 64), tuple(2**n for n in range(10, 18))
HEADS, GROUPS, PAGES = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8), (16, 32, 64, 128, 256)
PARTS = (LIBRARY, *(2**n for n in range(10)))
GPUS = ("A100", "H100", "H200", "B200", "RTX 4090", "T4")


@functools.cache
def _recorded() -> plan.Rates:
    return plan.rates_of(measurements("decode_h200"), plan.sm_rate(measurements("decode_splits_h200")))


def rates_on(gpu) -> plan.Rates:
    """Return the recorded H200's rates, the memory's by the datasheets, an SM's by its clock."""
    here, there = hardware.get("H200"), hardware.get(gpu)
    found = _recorded()
    return found._replace(
        bytes_per_s=found.bytes_per_s * float(there.hbm_bytes_per_s) / float(here.hbm_bytes_per_s),
        sm_bytes_per_s=found.sm_bytes_per_s * float(there.clock_hz) / float(here.clock_hz))


def draw(B=1, N_k=65536, H_k=8, group=4, parts=LIBRARY, page=64, gpu="H200"):
    """Draw programs on the SMs of a GPU, and say what they take, and what pages leave empty."""
    sheet = hardware.get(gpu)
    case, sms, rates = plan.Case(B, N_k, H_k, group), int(sheet.sms), rates_on(sheet)
    many = case.cut(plan.ours(case, sms) if parts == LIBRARY else parts)
    w, seconds = case.waves(many, sms), rates.seconds(case, many, sms)
    best = rates.best(case, sms)
    merge = (many > 1) * (rates.merge_s + case.part_bytes(many) / rates.bytes_per_s)
    spans = {"start": rates.start_s, "read": seconds - merge - rates.start_s, "merge": merge,
             "floor": case.kv_bytes / rates.bytes_per_s}
    late = seconds > 1.25 * rates.seconds(case, best, sms)
    lines = [f"{1e6 * seconds:.1f} µs for {human_bytes(case.kv_bytes)} of K and V; best: {best}"
             f" part{'s' * (best > 1)}, {1e6 * rates.seconds(case, best, sms):.1f} µs",
             f"{human_bytes(case.part_bytes(many))} of parts, {group} FLOP a byte; pages of {page}"
             f" leave at most {human_bytes(4 * (page - 1) * case.heads * case.d)} empty"]
    title = (f"{many} part{'s' * (many > 1)}: {w.programs:,} programs on {sms} SMs:"
             f" {sms - w.idle_sms} have {w.waves:,}, {w.idle_sms} have {w.waves - 1:,}")
    return figures.timeline(title, w, spans, lines, late=late)


def decode_lab(B=1, N_k=65536, H_k=8, group=4, parts=LIBRARY, page=64, gpu="H200"):
    """Return the widget: a call's shape, its parts and a GPU, with the SMs drawn over time.

    The arguments are what it shows at first; see `draw`.
    """
    control, on_gpu = base.over_gpus(draw, gpu, "whose SMs and rates", GPUS)
    return base.Lab("decode_lab", {
        "B": base.choice(base.including(B, BATCH), B, "sequences"),
        "N_k": base.choice([(f"{n:,}", n) for n in base.including(N_k, LENGTHS)], N_k, "keys"),
        "H_k": base.choice(base.including(H_k, HEADS), H_k, "key heads"),
        "group": base.choice(base.including(group, GROUPS), group, "query heads a key head"),
        "parts": base.choice(PARTS, parts, "parts"),
        "page": base.choice(base.including(page, PAGES), page, "keys of a page"),
        "gpu": control,
    }, on_gpu, note="Start, memory and merge as recorded on one H200, scaled by the datasheets.")
