"""The lab of chapter 16: who works and who waits, as GPUs, tokens, the link and the layout change."""

from flashlib.course.ch16 import figures, plan
from flashlib.course.plots.theme import human_bytes
from flashlib.course.widgets import base
from flashlib.models import ring
from flashlib.models.ring import Sharing
from flashlib.models.ring_timeline import timeline

GPUS, TOKENS = (2, 4, 8, 16), tuple(2**n for n in range(14, 23))
GROUPS, LAYOUTS = (1, 4, 8, 16), ("contiguous", "zigzag", "stripe")
HIDDEN = {"while GPUs work": True, "before they work": False}
H = 32


def draw(P=4, N=65536, link="NVLink", layout="zigzag", group=4, sends="while GPUs work"):
    """Draw the timeline of one layer forward, causal, and say its time, its bytes and its memory."""
    s = Sharing(P, N, H, H // group, layout=layout)
    rates = plan.rates(link, hidden=HIDDEN[sends])
    schedule = timeline(s, rates)
    seconds = schedule.cycles / 1e6
    share = ring.one_gpu_seconds(s, rates) / (P * seconds)
    message = s.kv_bytes / rates.link_bytes_per_s
    work = max(ring.step_seconds(s, rates, rank, (rank - 1) % P) for rank in range(P))
    from_n = ring.hides_from(rates.flops_per_s, rates.link_bytes_per_s, H, s.Hk,
                             zigzag=layout != "contiguous")
    lines = [f"{_time(seconds)} on {P} GPUs, {share:.0%} of what they could do; one GPU takes"
             f" {_time(ring.one_gpu_seconds(s, rates))}",
             f"a step: {_time(work)} of work, {_time(message)} on the link; hidden from {from_n:,.0f}"
             f" tokens a GPU, here {s.n:,}",
             f"each GPU sends {human_bytes(ring.traffic(s))}; beyond its own shards it needs"
             f" {human_bytes(ring.memory(s))}, to gather all keys"
             f" {human_bytes(ring.memory(s, 'gather'))}"]
    return figures.timelines({f"{layout}, {link}": plan.bars(schedule)}, lines, wrong=share < 0.8)


def _time(seconds) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def ring_lab(P=4, N=65536, link="NVLink", layout="zigzag", group=4, sends="while GPUs work"):
    """Return the widget: GPUs, tokens, link, layout and key heads, with the timeline.

    The arguments are what it shows at first; see `draw`.
    """
    return base.Lab("ring_lab", {
        "P": base.choice(base.including(P, GPUS), P, "GPUs"),
        "N": base.choice([(f"{n // 1024:,}k", n) for n in base.including(N, TOKENS)], N, "tokens"),
        "link": base.choice(list(plan.LINKS), link, "link"),
        "layout": base.choice(LAYOUTS, layout, "layout"),
        "group": base.choice(base.including(group, GROUPS), group, "query heads a key head"),
        "sends": base.choice(list(HIDDEN), sends, "messages travel"),
    }, draw, note="Simulated, with one H200's recorded rates.")
