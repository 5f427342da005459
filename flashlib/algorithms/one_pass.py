"""One-pass attention: the output is rescaled as it grows, so the keys are read once."""

import numpy as np

from flashlib.arguments import check_attention
from flashlib.machine import Machine
from flashlib.masks import mask_of


def one_pass_attention(Q, K, V, *, causal=False, window=None, scale=None, machine=None):
    """Attention key by key in one pass: (m, l, o) grow together, and o is rescaled with l.

    Z. Ye, "From Online Softmax to FlashAttention" (2023), Algorithm FlashAttention, before tiling.
    Taught in notebook 05. One query row after another and one key after another: a Python step per
    (query, key) pair, so keep Nq·Nk below about a million. Causal aligns bottom right.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        causal: hide later keys.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        machine: the `Machine` that counts; None for one without limits.
    Returns:
        O (Nq, d) and lse (Nq,), natural log.
    Raises:
        SRAMOverflow: a query, a key, a value and the accumulator do not fit.

    For every query row it reads K once and V once.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    machine = Machine.or_unbounded(machine)
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny

    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    O = machine.hbm_empty("O", (Nq, d))
    lse = machine.hbm_empty("lse", (Nq,), kind="stats")
    with machine.kernel("one_pass_attention") as sram:
        for i in range(Nq):
            row, (first, stop) = slice(i, i + 1), mask.keys_of(i)
            with sram.scope():
                qi = sram.load(Q[row])
                m = sram.tile("m", row, kind="stats", fill=lowest)
                l = sram.tile("l", row, kind="stats", fill=0.0)
                oi = sram.tile("O", row, d, kind="accumulator", fill=0.0)
                for j in range(first, stop):
                    with sram.scope():
                        kj, vj = sram.load(K[j:j + 1]), sram.load(V[j:j + 1])
                        s = ((qi @ kj.T) * scale)[:, 0]
                        m_new = np.maximum(m, s)
                        alpha, p = np.exp(m - m_new), np.exp(s - m_new)
                        l[...] = l * alpha + p
                        oi[...] = oi * alpha[:, None] + p[:, None] @ vj
                        m[...] = m_new
                sram.store(oi / np.maximum(l, tiny)[:, None], O[row])
                sram.store(m + np.log(l), lse[row])
    return O.to_host(), lse.to_host()
