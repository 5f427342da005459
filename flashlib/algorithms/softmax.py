"""Softmax three ways: as in the textbook, safe in three passes, and online in two.

Each streams its row: an element is loaded anew in every pass, as if the row did not fit into SRAM.
All rows of x advance together, so that SRAM holds one element and the statistics of every row.
"""

import numpy as np

from flashlib.arguments import check_array
from flashlib.machine import Machine


def naive_softmax(x, *, machine=None):
    """Softmax as the textbook writes it, eˣ over its sum: two passes that overflow on large logits.

    Taught in notebook 03. Reads 2 and writes 1 element per element of x; 2 exponentials.

    Args:
        x: logits, (..., n), float64 or float32; softmax runs over the last axis.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        y, shape and dtype of x. A row of −∞ gives zeros. A row whose eˣ overflows gives NaN where
        ∞/∞ is met and 0 elsewhere: that failure is what the notebook is about.
    """
    machine, x_hbm, y_hbm, rows, n, tiny = _stream(x, machine)
    with machine.kernel("naive_softmax") as sram:
        l = sram.tile("l", rows, kind="stats", fill=0.0)
        for j in range(n):                                     # pass 1: the sum
            with sram.scope():
                xj = sram.load(x_hbm[:, j:j + 1])[:, 0]
                l[...] = l + np.exp(xj)
        l[...] = np.maximum(l, tiny)                           # an empty row divides 0 by tiny
        for j in range(n):                                     # pass 2: divide
            with sram.scope():
                xj = sram.load(x_hbm[:, j:j + 1])[:, 0]
                yj = np.exp(xj) / l
                sram.store(yj[:, None], y_hbm[:, j:j + 1])
    return y_hbm.to_host().reshape(x.shape)


def safe_softmax(x, *, machine=None):
    """Softmax shifted by its maximum, in three passes: maximum, sum, division.

    Taught in notebook 03. Reads 3 and writes 1 element per element of x; 2 exponentials.

    Args:
        x: logits, (..., n), float64 or float32; softmax runs over the last axis.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        y, shape and dtype of x. A row of −∞ gives zeros.
    """
    machine, x_hbm, y_hbm, rows, n, tiny = _stream(x, machine)
    lowest = np.finfo(x.dtype).min
    with machine.kernel("safe_softmax") as sram:
        m = sram.tile("m", rows, kind="stats", fill=lowest)    # −∞ but for its arithmetic
        l = sram.tile("l", rows, kind="stats", fill=0.0)
        for j in range(n):                                     # pass 1: the maximum
            with sram.scope():
                xj = sram.load(x_hbm[:, j:j + 1])[:, 0]
                m[...] = np.maximum(m, xj)
        for j in range(n):                                     # pass 2: the sum
            with sram.scope():
                xj = sram.load(x_hbm[:, j:j + 1])[:, 0]
                l[...] = l + np.exp(xj - m)
        l[...] = np.maximum(l, tiny)                           # an empty row divides 0 by tiny
        for j in range(n):                                     # pass 3: divide
            with sram.scope():
                xj = sram.load(x_hbm[:, j:j + 1])[:, 0]
                yj = np.exp(xj - m) / l
                sram.store(yj[:, None], y_hbm[:, j:j + 1])
    return y_hbm.to_host().reshape(x.shape)


def online_softmax(x, *, machine=None):
    """Softmax with maximum and sum found in the same pass: two passes, and safe.

    Milakov & Gimelshein 2018 (arXiv:1805.02867), Algorithm 3. Taught in notebook 04. Reads 2 and
    writes 1 element per element of x; 3 exponentials.

    Args:
        x: logits, (..., n), float64 or float32; softmax runs over the last axis.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        y, shape and dtype of x. A row of −∞ gives zeros.
    """
    machine, x_hbm, y_hbm, rows, n, tiny = _stream(x, machine)
    lowest = np.finfo(x.dtype).min
    with machine.kernel("online_softmax") as sram:
        m = sram.tile("m", rows, kind="stats", fill=lowest)    # −∞ but for its arithmetic
        l = sram.tile("l", rows, kind="stats", fill=0.0)
        for j in range(n):                                     # pass 1: maximum and sum together
            with sram.scope():
                xj = sram.load(x_hbm[:, j:j + 1])[:, 0]
                m_new = np.maximum(m, xj)
                l[...] = l * np.exp(m - m_new) + np.exp(xj - m_new)
                m[...] = m_new
        l[...] = np.maximum(l, tiny)                           # an empty row divides 0 by tiny
        for j in range(n):                                     # pass 2: divide
            with sram.scope():
                xj = sram.load(x_hbm[:, j:j + 1])[:, 0]
                yj = np.exp(xj - m) / l
                sram.store(yj[:, None], y_hbm[:, j:j + 1])
    return y_hbm.to_host().reshape(x.shape)


def _stream(x, machine):
    check_array("x", x)
    machine = Machine.or_unbounded(machine)
    n = x.shape[-1]
    x_hbm = machine.hbm(x=x.reshape(-1, n) if n else x.reshape(0, 0))
    y_hbm = machine.hbm_empty("y", x_hbm.shape)
    return machine, x_hbm, y_hbm, x_hbm.shape[0], n, np.finfo(x.dtype).tiny
