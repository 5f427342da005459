"""Reference solutions of chapter 03."""

import numpy as np

import flashlib as fl


def threshold(dtype):
    """The x at which eˣ reaches the largest finite number of a format, given by its name."""
    return np.log(fl.numerics.facts(dtype).largest)


def softmax_rows(x):
    """Softmax of every row of x, (rows, n), for rows with at least one finite logit."""
    m = x.max(axis=1, keepdims=True)                     # (rows, 1): every row has its own
    e = np.exp(x - m)                                    # exponents ≤ 0: no overflow
    return e / e.sum(axis=1, keepdims=True)              # the sum is ≥ 1: no division by zero


def logsumexp_rows(x):
    """Natural logarithm of Σ eˣ of every row of x, (rows, n); −∞ if all of it is −∞."""
    m = np.maximum(x.max(axis=1), np.finfo(x.dtype).min)         # finite, even for an empty row
    l = np.exp(x - m[:, None]).sum(axis=1)                       # −∞ − finite = −∞, and e^−∞ = 0
    with np.errstate(divide="ignore"):
        return m + np.log(l)                                     # ln 0 = −∞ is what we want here


def three_pass_bytes(N, d, Br, element_bytes=2, stats_bytes=4):
    """Bytes between HBM and SRAM of three-pass attention over N queries and N keys.

    Proof of the claim. Statistics aside, these are 4Nd·(1 + Tr) elements, against 4N² + 4Nd:

        4N² + 4Nd > 4Nd·(1 + Tr)   ⟺   4N² > 4Nd·Tr   ⟺   N > d·Tr

    If Br divides N, then Tr = N/Br, and N > d·N/Br says Br > d.
    """
    Tr = -(-N // Br)                                     # query blocks, the ragged one included
    Q, O = 3 * N * d, N * d                              # queries in each pass, one output
    K, V = 3 * Tr * N * d, Tr * N * d                    # all keys, anew in each pass of each block
    statistics = 2 * N + 3 * N                           # m, l written; m read twice, l once
    return element_bytes * (Q + K + V + O) + stats_bytes * statistics
