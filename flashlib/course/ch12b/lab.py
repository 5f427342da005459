"""The lab of chapter 12b: an order of sums on some SMs; and a kernel whose locks are broken."""

import textwrap

from flashlib.course.ch12b import figures
from flashlib.course.ch12b import order as orders
from flashlib.course.widgets import base

TILES, HEADS, SMS = (2, 4, 6, 8, 12, 16), (1, 2, 3, 4, 6), (1, 2, 4, 7, 8, 12, 16, 24)
HANDS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)


def draw(order="together", tiles=8, heads=2, sms=8, hand=1.0, causal=False, beside=1, rising=0):
    """Draw a schedule with its idle share; who waits for ever says so, in red."""
    s = orders.simulate(order, tiles=tiles, heads=heads, sms=sms, hand=hand, causal=causal,
                        beside=beside, rising=min(rising, heads) if causal else 0)
    what = f"{figures.NAMES[order]}: "
    if s.stuck:
        head, tile, m = s.stuck[0]
        what += (f"hangs. {len(s.stuck)} wait for ever, keys {tile} of head {head} at query tile {m}")
    else:
        what += f"{s.length:g} steps, {100 * s.idle:.0f} % of the SMs' time idle"
    if rising and not causal:
        what += "; without a mask no head rises"
    return figures.timelines({what: s}, tiles, max(s.length + 2, 8) if s.stuck else None)


def order_lab(order="together", tiles=8, heads=2, sms=8, hand=1.0, causal=False, beside=1, rising=0):
    """Return the widget: tiles, heads, SMs and an order of the sums, with the schedule drawn anew.

    The arguments are what it shows at first; see `draw`.
    """
    return base.Lab("order_lab", {
        "order": base.choice([(words, name) for name, words in figures.NAMES.items()], order, "order",
                             kind="dropdown", tooltip="where programs start, and who adds first"),
        "tiles": base.choice(base.including(tiles, TILES), tiles, "key tiles of a head"),
        "heads": base.choice(base.including(heads, HEADS), heads, "heads"),
        "beside": base.choice(base.including(beside, HEADS), beside, "heads side by side"),
        "rising": base.choice(base.including(rising, (0, 1, 2, 3)), rising, "heads that rise",
                              tooltip="under a mask: the last heads, whose first keys start first"),
        "sms": base.choice(base.including(sms, SMS), sms, "SMs"),
        "hand": base.choice(base.including(hand, HANDS), hand, "hand-over, steps",
                            tooltip="from an add until the next program may add to the same sum"),
        "causal": base.choice([("none", False), ("causal", True)], causal, "mask", kind="toggle"),
    }, draw, note="Steps of equal length; copies, clocks and the L2 are left out.")


def break_each():
    """Print for every broken kernel what the interpreter says of it."""
    from flashlib.course.ch12b.edited_kernels import BROKEN, here
    from flashlib.interpreter import Hazard

    for name in BROKEN:
        try:
            found, exact, _ = here(name)
        except Hazard as hazard:
            print(name)
            print(textwrap.fill(f"at `{hazard.source}`: {hazard}", 104, initial_indent="    ",
                                subsequent_indent="    "))
        else:
            worst = max(float((x - y).abs().max()) for x, y in zip(found, exact, strict=True))
            print(f"{name}: ends, and differs from float64 by at most {worst:.0e}")
