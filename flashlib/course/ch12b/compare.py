"""The recorded launches of the fused backward beside what the simulator says of the same order."""

from functools import cache

from flashlib.course.ch12b import order as orders

# Of the recorded shapes, 32 key tiles each: heads, heads side by side, heads that rise under a mask.
HEADS = {128: (64, 3, 10), 64: (128, 5, 20), 32: (192, 9, 40)}
# What was recorded → its order, and whether heads rise; "no_locks" is what others are compared with.
FULL = {"one_start": ("together", False), "shipped": ("apart", False)}
CAUSAL = {"last_first": ("apart", False), "shipped": ("apart", True)}
WORDS = {"one_start": "all start at 0", "shipped": "as shipped", "last_first": "no head rises"}
IMPLS = {"shipped": "fixed order", "unordered": "locks not waited for", "no_locks": "no locks",
         "triton": "seven products"}


def by_order(recorded, column):
    """Return a column of whole backwards, rounded, as a table: a row for each shape and mask."""
    return [{"d": d, "mask": ("none", "causal")[causal],
             **{words: round(recorded.where(d=d, causal=causal, impl=impl).rows[0][column])
                for impl, words in IMPLS.items()}} for d in HEADS for causal in (0, 1)]


def parts(launches, d, causal, impl="shipped"):
    """Return name → seconds of the launches of a backward."""
    return {row["kernel"]: row["seconds"] for row in launches.where(d=d, causal=causal, impl=impl).rows}


@cache
def _length(order, d, causal, rises, hand=0.0):
    heads, beside, rising = HEADS[d]
    return orders.simulate(order, tiles=32, heads=heads, causal=bool(causal), hand=hand, beside=beside,
                           rising=rising if rises else 0, keep=False).length


def step_seconds(launches, d, causal):
    """Return how long a step takes by the kernel without locks, whose schedule the simulator knows."""
    return parts(launches, d, causal, "no_locks")["fused"] / _length("unordered", d, causal, causal)


def lines(launches, hands_s):
    """Return a dict for each case and order: its name, and its speeds, simulated and recorded.

    Speeds are those of the fused kernel over the same kernel's without locks. `hands_s` is how long a
    hand-over may take, in seconds: there is a simulated speed for each.
    """
    found = []
    for causal, cases in ((0, FULL), (1, CAUSAL)):
        for impl, (order, rises) in cases.items():
            for d in HEADS:
                step_s = step_seconds(launches, d, causal)
                free = _length("unordered", d, causal, causal)
                seconds = [parts(launches, d, causal, which)["fused"] for which in ("no_locks", impl)]
                found.append({"name": f"{'causal, ' * causal}{WORDS[impl]}, d = {d}",
                              "predicted": [free / _length(order, d, causal, rises, hand_s / step_s)
                                            for hand_s in hands_s],
                              "measured": seconds[0] / seconds[1]})
    return found
