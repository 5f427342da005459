"""Planted bugs in the backward pass: each is caught by the check that was named for it."""

from functools import partial

import numpy as np

from flashlib import Machine, flash_v2
from flashlib.models import traffic
from tests import oracle
from tests.cases import normal, qkv
from tests.mutants.build import BACKWARD, build
from tests.mutants.catalogue import Mutant
from tests.mutants.checks import close
from tests.mutants.runner import examine

ORDERS = ("kv", "q")
TILINGS = ({"Br": 5, "Bc": 3}, {"Br": 2, "Bc": 4})


def backward(module=None, edits=()):
    """Return `flash_backward`, made anew from its source, with the edits in `module`."""
    return build(module, edits, names=BACKWARD).flash_backward


def _problem(seed, Nq, Nk, *, causal=False, scale=None):
    Q, K, V = qkv(seed, Nq, Nk, 4)
    dO, dlse = normal(seed + 50, (Nq, 4), (Nq,))
    O, lse = flash_v2(Q, K, V, Br=4, Bc=4, causal=causal, scale=scale)
    return Q, K, V, O, lse, dO, dlse


def _gradients_close(flash_backward, names, *, seed=0, Nq=12, Nk=10, causal=False, scale=None,
                     with_lse=False, orders=ORDERS):
    Q, K, V, O, lse, dO, dlse = _problem(seed, Nq, Nk, causal=causal, scale=scale)
    dlse = dlse if with_lse else None
    expected = dict(zip(("dQ", "dK", "dV"), oracle.gradients(Q, K, V, dO, dlse=dlse, causal=causal,
                                                             scale=scale), strict=True))
    for order in orders:
        for blocks in TILINGS:
            got = flash_backward(Q, K, V, O, lse, dO, dlse=dlse, order=order, causal=causal,
                                 scale=scale, **blocks)
            for name, array in zip(("dQ", "dK", "dV"), got, strict=True):
                if name in names:
                    close(array, expected[name], f"{name}, order {order}, {blocks}")


def _gradient_check(names, doc, **options):
    def check(flash_backward):
        for scale in (None, 0.3):
            _gradients_close(flash_backward, names, scale=scale, **options)
    check.__doc__ = doc
    return check


check_dV = _gradient_check(("dV",), "dV without a mask.")
check_dK = _gradient_check(("dK",), "dK without a mask.")
check_dQ_kv = _gradient_check(("dQ",), "dQ by accumulation.", orders=("kv",))
check_dQ_q = _gradient_check(("dQ",), "dQ by the second pass.", orders=("q",))
check_dlse = partial(_gradients_close, names=("dQ", "dK", "dV"), with_lse=True, seed=1)


def check_mask(flash_backward):
    """All gradients under the causal mask, for as many, fewer and more queries than keys."""
    for Nq, Nk in ((11, 11), (7, 11), (11, 7)):
        _gradients_close(flash_backward, ("dQ", "dK", "dV"), seed=2, Nq=Nq, Nk=Nk, causal=True,
                         with_lse=True)


def check_square(flash_backward):
    """The value of dK where tiles are square, so that a missing transpose still has a shape."""
    Q, K, V, O, lse, dO, _ = _problem(7, 12, 12)
    expected = oracle.gradients(Q, K, V, dO)[1]
    for order in ORDERS:
        got = flash_backward(Q, K, V, O, lse, dO, Br=4, Bc=4, order=order)[1]
        close(got, expected, f"dK, order {order}")


def check_leak(flash_backward):
    """NaN in a key, then in a value, that a row may not see: its dQ stays clean."""
    clean = _problem(3, 11, 11)
    expected = oracle.gradients(*clean[:3], clean[5], causal=True)[0]
    for which in (1, 2):
        arrays = [a.copy() for a in clean[:3]]
        arrays[which][6:] = np.nan
        O, lse = flash_v2(*arrays, Br=4, Bc=4, causal=True)
        for order in ORDERS:
            dQ, _, _ = flash_backward(*arrays, O, lse, clean[5], Br=5, Bc=3, order=order,
                                      causal=True)
            close(dQ[:6], expected[:6], f"dQ, order {order}")


def check_blind(flash_backward):
    """Rows that see nothing: zero gradients, and no NaN anywhere."""
    Q, K, V, O, lse, dO, _ = _problem(4, 11, 4, causal=True)
    for order in ORDERS:
        dQ, dK, dV = flash_backward(Q, K, V, O, lse, dO, Br=3, Bc=3, order=order, causal=True)
        close(dQ[:7], 0, f"dQ of blind rows, order {order}")
        assert np.isfinite(dK).all() and np.isfinite(dV).all()


def _costs(flash_backward, what):
    for causal, Nq, Nk in ((False, 12, 10), (True, 11, 11), (True, 7, 12), (True, 12, 7)):
        Q, K, V, O, lse, dO, dlse = _problem(5, Nq, Nk, causal=causal)
        for order in ORDERS:
            for blocks in TILINGS:
                sizes = {"stats_bytes": 8, "accumulator_bytes": 3}
                machine = Machine(**sizes)
                flash_backward(Q, K, V, O, lse, dO, dlse=dlse, order=order, causal=causal,
                               machine=machine, **blocks)
                form = traffic.flash_backward(Nq=Nq, Nk=Nk, d=4, dlse=True, order=order,
                                              causal=causal, **sizes, **blocks)
                got, expected = what(machine.traffic), what(form)
                assert got == expected, f"order {order}: expected {expected}, got {got}"


def check_bytes(flash_backward):
    """HBM bytes, tensor by tensor, against the closed form."""
    _costs(flash_backward, lambda cost: cost.by_tensor)


def check_arithmetic(flash_backward):
    """FLOPs and exponentials against the closed form."""
    _costs(flash_backward, lambda cost: (cost.matmul_flops, cost.vector_flops, cost.exps))


def check_sram(flash_backward):
    """Peak SRAM against the closed form."""
    _costs(flash_backward, lambda cost: cost.sram_peak_bytes)


def check_atomics(flash_backward):
    """One atomic update per visited tile in order "kv", none in order "q"."""
    Q, K, V, O, lse, dO, _ = _problem(6, 12, 10)
    for order, expected in (("kv", 3 * 4), ("q", 0)):
        machine = Machine()
        flash_backward(Q, K, V, O, lse, dO, Br=5, Bc=3, order=order, machine=machine)
        assert machine.trace.atomic_updates() == expected


CHECKS = {name: check for name, check in list(vars().items()) if name.startswith("check_")}
RESULTS = ("check_dV", "check_dK", "check_square", "check_dQ_kv", "check_dQ_q", "check_dlse",
           "check_mask", "check_leak", "check_blind")
COSTS = ("check_bytes", "check_arithmetic", "check_sram", "check_atomics")


def _bug(name, edits, caught_by, survives=(), module="flash_backward"):
    edits = (edits,) if isinstance(edits[0], str) else edits
    return Mutant(name, module, tuple(edits), caught_by, tuple(survives))


DELTA = "delta_i[...] = (dOi * Oi).sum(axis=1)"
DS = "dSij[...] = Pij * (dSij - delta_i[:, None]) * scale "
WEIGHTS = "np.exp((Qi @ Kj.T) * scale - np.maximum(lse_i, lowest)[:, None])"
DV = "dVj[...] = dVj + Pij.T.dot(dOi, where=flipped(visible))"
DK = "dKj[...] = dKj + dSij.T.dot(Qi, where=flipped(visible))"
DQ_KV = "dQi[...] = dQi + dSij.dot(Kj, where=visible)\nsram.store(dQi, dQ[rows], atomic"
DQ_Q = "        dQi[...] = dQi + dSij.dot(Kj, where=visible)\nsram.store(dQi, dQ[rows])"
MASK_P = "Pij[...] = np.where(visible, Pij, 0.0)"
MASK_DS = "dSij[...] = np.where(visible, dSij, 0.0)"
ZERO = "sram.store(zero, dQ[rows])"
BLOCKS = 'Br, Bc = check_block("Br", Br), check_block("Bc", Bc)'

MUTANTS = [
    _bug("delta has the wrong sign", (DS, DS.replace("dSij - delta_i", "dSij + delta_i")),
         "check_dK", ["check_dV", *COSTS]),
    _bug("delta is forgotten", (DS, "dSij[...] = Pij * dSij * scale "), "check_dQ_kv", ["check_dV"]),
    _bug("delta is the row sum of dO alone", (DELTA, "delta_i[...] = dOi.sum(axis=1)"), "check_dK",
         ["check_dV", "check_bytes"]),
    _bug("delta takes O twice", (DELTA, DELTA.replace("dOi * Oi", "Oi * Oi")), "check_dQ_q",
         ["check_dV", *COSTS]),
    _bug("delta is one number for the whole tile", (DELTA, DELTA.replace("sum(axis=1)",
         "sum(axis=1).sum(axis=0)")), "check_dK", ["check_dV", "check_bytes"]),
    _bug("the scale is forgotten on dS", (DS, DS.replace(" * scale ", " * 1.0 ")), "check_dK",
         ["check_dV", *COSTS]),
    _bug("the scale is applied twice", (DS, DS.replace(" * scale ", " * (scale * scale) ")),
         "check_dQ_kv", ["check_dV", *COSTS]),
    _bug("the logits are not scaled again", (WEIGHTS, WEIGHTS.replace("* scale", "* 1.0")),
         "check_dV", COSTS),
    _bug("P is e^S, as if lse were 0", (WEIGHTS, WEIGHTS.replace("np.maximum(lse_i, lowest)",
         "np.maximum(0.0 * lse_i, lowest)")), "check_dV"),
    _bug("P takes lse of the first row of its tile", (WEIGHTS, WEIGHTS.replace(
         "np.maximum(lse_i, lowest)[:, None]", "np.maximum(lse_i[0:1], lowest)[:, None]")),
         "check_dV", ["check_bytes"]),
    _bug("P has the sign of lse wrong", (WEIGHTS, WEIGHTS.replace("scale - np", "scale + np")),
         "check_dV", ["check_bytes"]),
    _bug("rows that see nothing are not set to zero", (ZERO,
         "mask.skips(rows, slice(0, 1)) or " + ZERO), "check_blind",
         ["check_dV", "check_dK", "check_dQ_kv", "check_leak"]),
    _bug("the diagonal tile is unmasked in P", (MASK_P, "Pij[...] = np.where(visible, Pij, Pij)"),
         "check_mask", ["check_dV", "check_dQ_kv", *COSTS]),
    _bug("dS is not masked: the NaN of a forbidden value stays", (MASK_DS,
         "dSij[...] = np.where(visible, dSij, dSij)"), "check_leak",
         ["check_dK", "check_mask", *COSTS]),
    _bug("the mask hides the diagonal", ("return j <= i + self.offset",
         "return j < i + self.offset"), "check_mask", ["check_dV", "check_dK"], "masks"),
    _bug("the mask shows one key too many", ("return j <= i + self.offset",
         "return j <= i + self.offset + 1"), "check_mask", ["check_dV", "check_dK"], "masks"),
    _bug("tiles that hold the diagonal are skipped", ("keys.start >= self.seen(rows.stop - 1)",
         "keys.start >= self.seen(rows.start)"), "check_mask", ["check_dV", "check_dK"], "masks"),
    _bug("tiles are not skipped", (
        ("if mask.skips(rows, keys):\n    continue\nwith sram.scope():\n    Qi",
         "if mask.skips(rows, keys):\n    pass\nwith sram.scope():\n    Qi"),), "check_bytes", RESULTS),
    _bug("dV is made from dS", (DV, DV.replace("Pij.T", "dSij.T")), "check_dV",
         ["check_dK", "check_dQ_kv", *COSTS]),
    _bug("dV is made from dP", (
        (DS, 'kept = sram.tile("dP", rows, keys)\nkept[...] = dSij\n' + DS),
        ("return Pij, dSij, visible", "return kept, dSij, visible")), "check_dV",
        ["check_dK", "check_dQ_kv", "check_bytes"]),
    _bug("dV is overwritten by every tile", (DV, DV.replace("dVj + Pij", "0.0 * dVj + Pij")),
         "check_dV", ["check_dK", "check_dQ_kv", "check_bytes"]),
    _bug("dK is overwritten by every tile", (DK, DK.replace("dKj + dSij", "0.0 * dKj + dSij")),
         "check_dK", ["check_dV", "check_dQ_kv", "check_bytes"]),
    _bug("dK takes dO where Q belongs", (DK, DK.replace("dot(Qi", "dot(dOi")), "check_dK",
         ["check_dV", "check_dQ_kv", *COSTS]),
    _bug("dK is made from P", (DK, DK.replace("dSij.T", "Pij.T")), "check_dK",
         ["check_dV", "check_dQ_kv", *COSTS]),
    _bug("the transpose of dS is missing, on square tiles", (DK, DK.replace(
         "dSij.T.dot(Qi, where=flipped(visible))",
         "(dSij if dSij.shape == dSij.T.shape else dSij.T).dot(Qi)")), "check_square",
         ["check_dV", "check_dQ_kv"]),
    _bug("dK starts from what the last tile of keys left", (
        ("for keys in tiles(Nk, Bc):\n    with sram.scope():\n        Kj, Vj",
         "left = 0.0\nfor keys in tiles(Nk, Bc):\n    with sram.scope():\n        Kj, Vj"),
        ('dKj = sram.tile("dK", keys, d, kind="accumulator", fill=0.0)',
         'dKj = sram.tile("dK", keys, d, kind="accumulator", fill=left)'),
        ("sram.store(dKj, dK[keys])",
         "left = float(sram.peek(dKj)[0, 0]); sram.store(dKj, dK[keys])")),
        "check_dK", ["check_dV", "check_dQ_kv", "check_dQ_q", *COSTS]),
    _bug("dQ is overwritten instead of accumulated", (DQ_KV, DQ_KV.replace("dQi + dSij",
         "0.0 * dQi + dSij")), "check_dQ_kv", ["check_dV", "check_dK", "check_dQ_q", "check_bytes"]),
    _bug("dQ is not set to zero first", (ZERO, "pass"), "check_dQ_kv",
         ["check_dV", "check_dK", "check_dQ_q"]),
    _bug("dQ of the second pass is overwritten", (DQ_Q, DQ_Q.replace("dQi + dSij",
         "0.0 * dQi + dSij")), "check_dQ_q", ["check_dV", "check_dK", "check_dQ_kv", "check_bytes"]),
    _bug("dQ takes V where K belongs", (DQ_KV, DQ_KV.replace("dot(Kj", "dot(Vj")), "check_dQ_kv",
         ["check_dV", "check_dK", "check_dQ_q", *COSTS]),
    _bug("dlse is ignored", ("delta_i[...] = delta_i - sram.load(dlse[rows])",
         "delta_i[...] = delta_i - 0.0 * sram.load(dlse[rows])"), "check_dlse",
         ["check_dV", "check_dK", "check_dQ_kv", "check_dQ_q", "check_bytes"]),
    _bug("dlse has the wrong sign", ("delta_i - sram.load(dlse[rows])",
         "delta_i + sram.load(dlse[rows])"), "check_dlse",
         ["check_dV", "check_dK", "check_dQ_kv", "check_dQ_q", *COSTS]),
    _bug("delta moves at the size of an element", (
         'delta = machine.hbm_empty("delta", (Nq,), kind="stats")',
         'delta = machine.hbm_empty("delta", (Nq,))'), "check_bytes", RESULTS),
    _bug("K is read where no load paid for it", (
        ("Q, K, V, O, dO = machine.hbm", "free_K = K\nQ, K, V, O, dO = machine.hbm"),
        ("Kj, Vj = sram.load(K[keys]), sram.load(V[keys])\ndKj",
         'Vj = sram.load(V[keys])\nKj = sram.tile("K", keys, d)\nKj._array[...] = free_K[keys]\ndKj')),
        "check_bytes", RESULTS),
    _bug("Q is loaded once more for dK", (DK, DK.replace("dot(Qi", "dot(sram.load(Q[rows])")),
         "check_bytes", RESULTS),
    _bug("Br and Bc are swapped", (BLOCKS,
         'Br, Bc = check_block("Bc", Bc), check_block("Br", Br)'), "check_bytes", RESULTS),
    _bug("the accumulators of dK are at half precision", (
         'dKj = sram.tile("dK", keys, d, kind="accumulator", fill=0.0)',
         'dKj = sram.tile("dK", keys, d, fill=0.0)'), "check_sram",
         [*RESULTS, "check_bytes", "check_arithmetic"]),
    _bug("the update of dQ is not marked as atomic", ("sram.store(dQi, dQ[rows], atomic=True)",
         "sram.store(dQi, dQ[rows])"), "check_atomics", [*RESULTS, "check_bytes"]),
    _bug("the weights are computed twice per tile", (
         "Pij[...] = " + WEIGHTS, "Pij[...] = " + WEIGHTS + "\nPij[...] = "
         + WEIGHTS), "check_arithmetic", [*RESULTS, "check_bytes", "check_sram"]),
]

TestMutants = examine(MUTANTS, CHECKS, backward, at_least=39)
