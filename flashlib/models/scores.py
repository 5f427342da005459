"""The closed form of `flash_scores`: what softcap, ALiBi and a sink cost beside `flash_v2`."""

from flashlib.arguments import check_flag
from flashlib.machine.traffic import Traffic
from flashlib.models import traffic


def flash_scores(*, Nq, Nk, d, Br, Bc, softcap=False, alibi=False, sink=False, causal=False,
                 window=None, element_bytes=2, stats_bytes=4, accumulator_bytes=4) -> Traffic:
    """Return what `flash_scores` costs: `flash_v2`, and one statistic a row tile for slope and sink.

    `softcap`, `alibi` and `sink` tell which there are. A visited pair costs a softcap two vector FLOPs
    and an exponential, ALiBi two vector FLOPs; a sink costs 5 + d vector FLOPs and two exponentials a
    row.
    """
    for name, flag in (("softcap", softcap), ("alibi", alibi), ("sink", sink)):
        check_flag(name, flag)
    sizes = {"Nq": Nq, "Nk": Nk, "d": d, "Br": Br, "Bc": Bc, "causal": causal, "window": window}
    base = traffic.flash_v2(**sizes, element_bytes=element_bytes, stats_bytes=stats_bytes,
                            accumulator_bytes=accumulator_bytes)
    pairs, row_tiles = base.matmul_flops // (4 * d), -(-Nq // Br)
    once = {name: (row_tiles * stats_bytes, 0) for name, there in (("alibi", alibi), ("sink", sink))
            if there}
    more = Traffic.of(once, 0, pairs * 2 * (softcap + alibi) + sink * Nq * (5 + d),
                      pairs * softcap + sink * 2 * Nq,
                      base.sram_peak_bytes + len(once) * stats_bytes if Nq else 0)
    return base + more
