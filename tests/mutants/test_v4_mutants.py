"""Planted bugs in v4 and in its exponential: each is caught by the check that was named for it."""

import numpy as np

from flashlib import Machine
from flashlib.models import traffic
from tests import oracle
from tests.cases import qkv
from tests.mutants.build import patcher, rebuilt
from tests.mutants.catalogue import Mutant
from tests.mutants.checks import close
from tests.mutants.runner import examine

PATHS = {"exp2": "exp2", "flash_v4": "algorithms/flash_v4"}
patched = patcher(PATHS)
RISING = np.array([0.0, 1.0, 7.0, 30.0, 29.0, 33.0, -5.0, 60.0])       # logits of one row, natural log


def build(module=None, edits=()):
    """Return `flash_v4`, made anew from its source and that of exp2, with the edits in `module`."""
    made = rebuilt(PATHS, patched, module, edits)
    made["flash_v4"].software_exp2 = made["exp2"].software_exp2
    return made["flash_v4"].flash_v4


def _against_the_oracle(flash_v4, which=("O", "lse"), *, rtol=1e-11, causal=False, window=None,
                        **keywords):
    Q, K, V = qkv(0, 12, 20, 4)
    for scale in (None, 2.0):
        expected = oracle.attention(Q, K, V, causal=causal, window=window, scale=scale)
        got = flash_v4(Q, K, V, Br=5, Bc=3, causal=causal, window=window, scale=scale, **keywords)
        for name, a, b in zip(("O", "lse"), got, expected, strict=True):
            if name in which:
                close(a, b, name, rtol)


def check_value(flash_v4):
    """O with every new maximum taken."""
    _against_the_oracle(flash_v4, ("O",))


def check_lse(flash_v4):
    """The log-sum-exp, natural log."""
    _against_the_oracle(flash_v4, ("lse",))


def check_stale(flash_v4):
    """O and lse with a threshold that skips some rescales and takes others."""
    for tau in (0.5, 2.0):
        _against_the_oracle(flash_v4, tau=tau)


def check_mask(flash_v4):
    """O and lse under the causal mask, with a threshold and the polynomial."""
    _against_the_oracle(flash_v4, causal=True, tau=2.0, exp2_degree=7, emulated_share=1.0, rtol=1e-9)


def check_window(flash_v4):
    """O and lse under a window, with a threshold: some rows see their first key in a later tile."""
    _against_the_oracle(flash_v4, window=(4, 1), tau=2.0)


def check_overflow(flash_v4):
    """Logits that rise by ten thousand: a stale maximum must not stay behind for ever."""
    K = np.linspace(-1e4, 1e4, 12)[:, None].copy()
    Q, V = np.ones((3, 1)), np.arange(12.0)[:, None]
    for part, a, b in zip(("O", "lse"), flash_v4(Q, K, V, Br=2, Bc=1, scale=1.0, tau=8.0),
                          oracle.attention(Q, K, V, scale=1.0), strict=True):
        close(a, b, part)


def check_threshold(flash_v4):
    """Which rows take a new maximum, for rises on either side of τ = 8 in units of log 2."""
    machine = Machine()
    flash_v4(np.ones((1, 1)), RISING[:, None].copy(), np.zeros((8, 1)), Br=1, Bc=1, scale=1.0, tau=8.0,
             machine=machine)
    ayes = [n for _, n in machine.trace.votes("rescale")]
    assert ayes == [1, 0, 1, 1, 0, 0, 0, 1], ayes
    K, machine = np.array([[0.0, 0.0], [9.0, 4.0], [9.0, 8.0]]), Machine()        # one row per column
    flash_v4(np.eye(2), K, K, Br=2, Bc=1, scale=1.0, tau=8.0, machine=machine)
    ayes = [n for _, n in machine.trace.votes("rescale")]
    assert ayes == [2, 1, 1], ayes


def check_polynomial(flash_v4):
    """The error with the polynomial is that of its degree."""
    _against_the_oracle(flash_v4, exp2_degree=7, emulated_share=1.0, rtol=1e-9)
    _against_the_oracle(flash_v4, exp2_degree=3, emulated_share=1.0, rtol=5e-3)


def check_underflow(flash_v4):
    """A key whose weight is below the smallest number weighs nothing in the polynomial either."""
    Q, K, V = np.ones((2, 1)), np.array([[0.0], [-800.0]]), np.array([[1.0], [1e9]])
    O, _ = flash_v4(Q, K, V, Br=2, Bc=2, scale=1.0, exp2_degree=3, emulated_share=1.0)
    assert (O == 1.0).all(), O


def check_counts(flash_v4):
    """Exponentials and vector FLOPs against the closed form, given the votes."""
    Q, K, V = qkv(1, 12, 20, 4)
    for share in (0.0, 0.3, 1.0):
        machine = Machine()
        flash_v4(2 * Q, K, V, Br=5, Bc=6, tau=1.0, exp2_degree=3, emulated_share=share, machine=machine)
        rows = sum(b - a for (a, b), n in machine.trace.votes("rescale") if n)
        form = traffic.flash_v4(Nq=12, Nk=20, d=4, Br=5, Bc=6, exp2_degree=3, emulated_share=share,
                                rescaled_rows=rows)
        assert (machine.traffic.exps, machine.traffic.vector_flops) == (form.exps, form.vector_flops)


CHECKS = {name: check for name, check in list(vars().items()) if name.startswith("check_")}


def _bug(name, edit, caught_by, survives=(), module="flash_v4"):
    return Mutant(name, module, edit if isinstance(edit[0], tuple) else (edit,), caught_by,
                  tuple(survives))


P_LINE = "Pij[...] = (Sij - m[:, None]) * LOG2E "
MUTANTS = [
    _bug("weights are powers of two of natural logits", (P_LINE, P_LINE.replace(" * LOG2E", "")),
         "check_value"),
    _bug("alpha is a power of two of a natural difference", ("np.exp2((m - m_new) * LOG2E)",
         "np.exp2((m - m_new))"), "check_value", ["check_threshold"]),
    _bug("lse ends in log₂ l", ("m + np.log(l)", "m + np.log2(l)"), "check_lse",
         ["check_value", "check_threshold", "check_counts"]),
    _bug("tau is compared in natural log", ("grown = (top - m) * LOG2E > tau",
         "grown = (top - m) * 1.0 > tau"), "check_threshold",
         ["check_value", "check_lse", "check_stale", "check_overflow", "check_counts"]),
    _bug("tau is a factor, not its logarithm", ("grown = (top - m) * LOG2E > tau",
         "grown = (top - m) * LOG2E > 2.0 ** tau"), "check_threshold",
         ["check_stale", "check_counts"]),
    _bug("P takes the fresh maximum, l and O keep the stale one", (P_LINE,
         P_LINE.replace("m[:, None]", "top[:, None]")), "check_stale",
         ["check_value", "check_lse", "check_threshold"]),
    _bug("l takes the fresh maximum, O keeps the stale one", (
        "                            l[...] = alpha * l\n",
        "                            pass\n"), "check_value", ["check_threshold"]),
    _bug("only O is rescaled, though both were meant to be", (
        ("                            l[...] = alpha * l\n",
         "                            old = alpha * l\n"),), "check_lse", ["check_threshold"]),
    _bug("only l is rescaled", ("Oi[...] = alpha[:, None] * Oi", "Oi[...] = 1.0 * Oi"), "check_value",
         ["check_lse", "check_threshold", "check_counts"]),
    _bug("the new maximum is not kept", ("                            m[...] = m_new\n",
         "                            m[...] = m\n"), "check_overflow"),
    _bug("rows that did not grow enough take the new maximum too, but only in the state", (
         "m_new = np.where(grown, top, m)", "m_new = np.where(grown, top, top)"), "check_threshold",
         ["check_value", "check_lse", "check_stale"]),
    _bug("the maximum is never updated after the first tile", (
         "grown = (top - m) * LOG2E > tau", "grown = (m <= lowest) * (top - m) > tau"),
         "check_overflow", ["check_value", "check_lse"]),
    _bug("the diagonal tile is left unmasked", ("Sij[...] = np.where(visible, Sij, -np.inf)",
         "Sij[...] = np.where(visible, Sij, Sij)"), "check_mask",
         ["check_value", "check_stale", "check_threshold", "check_counts"]),
    _bug("the polynomial's range is reduced towards zero", ("n = np.floor(x)", "n = np.trunc(x)"),
         "check_polynomial", ["check_value", "check_stale", "check_counts"], "exp2"),
    _bug("Horner starts from the wrong end", ("p: Any = c[-1]\nfor smaller in c[-2::-1]:",
         "p: Any = c[0]\nfor smaller in c[1:]:"), "check_polynomial",
         ["check_value", "check_stale", "check_counts"], "exp2"),
    _bug("the exponent is one place off", ("n.astype(integer) << mantissa_bits",
         "n.astype(integer) << (mantissa_bits - 1)"), "check_polynomial",
         ["check_value", "check_stale", "check_counts"], "exp2"),
    _bug("exponents wrap around instead of ending at zero", ("x = np.maximum(x, lowest)",
         "x = np.maximum(x, -1e300)"), "check_underflow",
         ["check_value", "check_stale", "check_polynomial", "check_counts"], "exp2"),
    _bug("every key is emulated and computed on the unit as well", (
         "Pij[:, :unit] = np.exp2(Pij[:, :unit])", "Pij[:, :unit] = np.exp2(Pij)[:, :unit]"),
         "check_counts", ["check_value", "check_stale", "check_polynomial"]),
    _bug("the share counts keys of the unit, not emulated ones", (
         "unit = Pij.shape[1] - round(emulated_share * Pij.shape[1])",
         "unit = round(emulated_share * Pij.shape[1]) if exp2_degree else Pij.shape[1]"),
         "check_counts", ["check_value", "check_stale"]),
    _bug("v4 forgets its window", ("mask_of(causal, Nq, Nk, window)", "mask_of(causal, Nq, Nk)"),
         "check_window", ["check_value", "check_mask", "check_counts"]),
]

TestMutants = examine(MUTANTS, CHECKS, build, at_least=19, patched=patched)
