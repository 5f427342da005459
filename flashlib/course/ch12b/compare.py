"""The recorded launches of the fused backward beside what the simulator says of the same order."""

from functools import cache

from flashlib.course.ch12b import order as orders

HEADS = {128: 64, 64: 128, 32: 192}                         # of the recorded shapes, 32 key tiles each
# What was recorded → the order that it has; "no_locks" is what the others are compared with.
FULL = {"one_start": "together", "shipped": "apart"}
CAUSAL = {"shipped": "apart", "longest_first": "unordered"}
WORDS = {"one_start": "all start at 0", "shipped": "as shipped", "longest_first": "longest first"}


def parts(launches, d, causal, impl="shipped"):
    """Return name → seconds of the launches of a backward."""
    return {row["kernel"]: row["seconds"] for row in launches.where(d=d, causal=causal, impl=impl).rows}


@cache
def _length(order, d, causal, hand=0.0, longest_first=False):
    return orders.simulate(order, tiles=32, heads=HEADS[d], causal=bool(causal), hand=hand,
                           longest_first=longest_first, keep=False).length


def step_seconds(launches, d, causal):
    """Return how long a step takes by the kernel without locks, whose schedule the simulator knows."""
    return parts(launches, d, causal, "no_locks")["fused"] / _length("unordered", d, causal)


def lines(launches, hand_s):
    """Return a dict for each case and order: its name, and its speed simulated and recorded.

    Speeds are those of the fused kernel over the same kernel's without locks. `hand_s` is how long a
    hand-over takes, in seconds.
    """
    found = []
    for causal, cases in ((0, FULL), (1, CAUSAL)):
        for impl, order in cases.items():
            for d in HEADS:
                hand = 0.0 if order == "unordered" else hand_s / step_seconds(launches, d, causal)
                took = _length(order, d, causal, hand, impl == "longest_first")
                seconds = [parts(launches, d, causal, which)["fused"] for which in ("no_locks", impl)]
                found.append({"name": f"{'causal, ' * causal}{WORDS[impl]}, d = {d}",
                              "predicted": _length("unordered", d, causal) / took,
                              "measured": seconds[0] / seconds[1]})
    return found
