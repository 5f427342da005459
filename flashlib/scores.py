"""Softcap, ALiBi and sinks in NumPy: what is done to a tile of logits, and the derivative of it.

The order is fixed: scale, softcap, ALiBi, mask, sink. Each page of `flashlib.algorithms` that takes
them calls these, so that nothing is decided twice. In torch: `flashlib.kernels.scores`.
"""

from flashlib.arguments import check_number

LEAST_SOFTCAP, MOST_SOFTCAP = 1e-15, 1e15                   # scale / softcap stays a float32


def check_softcap(softcap) -> float:
    """Return a softcap as a float, or refuse what bounds no logit."""
    number = check_number("softcap", softcap)
    if not LEAST_SOFTCAP <= number <= MOST_SOFTCAP:
        raise ValueError(f"softcap: expected a number above 0, from {LEAST_SOFTCAP:.0e} to"
                         f" {MOST_SOFTCAP:.0e}, or None for none, got {softcap}")
    return number
