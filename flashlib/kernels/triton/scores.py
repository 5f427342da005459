"""Softcap, ALiBi and sinks on tiles: twins of `flashlib.scores`, in powers of 2 as the kernels count.

`logits` is (scale_log2, softcap_log2, slope): the factor on a product, and the softcap, times log2(e),
and the slope as it is. The last two are tuples of one, or of none, and then nothing is compiled: Triton
3.6 takes no None into a tuple.
"""

import triton
import triton.language as tl

from flashlib import exp2

LOG2E = tl.constexpr(exp2.LOG2E)


@triton.jit
def of_head(X, b, h, H, DIMS: tl.constexpr):
    """Return the number of a head from (H,) or, with two DIMS, (B, H)."""
    return tl.load(X + b * H + h) if DIMS == 2 else tl.load(X + h)


@triton.jit
def logits_of(scale_log2, softcap_log2, ALIBI, b, h, H, DIMS: tl.constexpr):
    """Return `logits` of a head; softcap_log2 and ALIBI may be None."""
    softcap = ()
    slope = ()
    if softcap_log2 is not None:
        softcap = (softcap_log2,)
    if ALIBI is not None:
        slope = (of_head(ALIBI, b, h, H, DIMS),)
    return scale_log2, softcap, slope


@triton.jit
def tanh(x):
    """Return tanh(x), to 3 ulp: by its series around 0, where a difference of exponentials cancels."""
    square = x * x
    series = 1.0 + square * (-1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * (
        62.0 / 2835))))
    return tl.where(tl.abs(x) < 0.25, x * series, 1.0 - 2.0 / (1.0 + tl.exp2(x * (2 * LOG2E))))


@triton.jit
def scored(qk, row, col, logits, N_Q, N_K):
    """Return (x, factor, t): the base-2 logits of the products qk are x · factor.

    t is the tanh of a softcap, whose derivative is 1 − t²; it means nothing without one.
    """
    scale_log2, softcap_log2, slope = logits
    t = qk
    x = qk
    factor = scale_log2
    if len(softcap_log2) > 0:
        t = tanh(qk * (scale_log2 / softcap_log2[0]))
        x = t * softcap_log2[0]
        factor = 1.0
    if len(slope) > 0:
        if len(softcap_log2) == 0:
            x = qk * scale_log2
        x = x - (slope[0] * LOG2E) * tl.abs(row + (N_K - N_Q) - col).to(tl.float32)
        factor = 1.0
    return x, factor, t


@triton.jit
def with_sink(m_i, l_i, sink):
    """Return m and l with the sink as one more key, and what the sum of values scales by."""
    sink_log2 = sink * LOG2E
    m_new = tl.maximum(m_i, sink_log2)
    keep = tl.exp2(m_i - m_new)
    return m_new, tl.fma(l_i, keep, tl.exp2(sink_log2 - m_new)), keep
