"""Planted bugs in FP8 attention and in its rounding: each dies by the check that was named for it."""

from types import SimpleNamespace

import numpy as np
import pytest

from flashlib import Machine
from flashlib.models import traffic
from tests import oracle
from tests.cases import qkv
from tests.mutants.build import patcher, rebuilt
from tests.mutants.catalogue import Mutant
from tests.mutants.checks import close
from tests.mutants.runner import examine

pytest.importorskip("ml_dtypes")

PATHS = {"quant": "quant", "flash_v3": "algorithms/flash_v3"}
patched = patcher(PATHS)
RUN = {"Br": 8, "Bc": 5, "dtype": "e4m3"}


def build(module=None, edits=()):
    """Return `quant` and `flash_v3`, made anew from their sources, with the edits in `module`."""
    made = rebuilt(PATHS, patched, module, edits)
    for shared in ("quantise", "random_signs", "rotate"):
        setattr(made["flash_v3"], shared, getattr(made["quant"], shared))
    return SimpleNamespace(quant=made["quant"], flash_v3=made["flash_v3"].flash_v3)


def near(got, expected, what, within):
    gap = float(np.sqrt(np.mean((got - expected) ** 2) / np.mean(np.square(expected))))
    assert gap < within, f"{what}: relative error {gap:.3g}, expected less than {within}"


def check_output(built):
    """O near float64, from tensors of different sizes: e4m3 errs by a few per cent."""
    Q, K, V = qkv(0, 24, 30, 16)
    for options in ({}, {"block_scales": False}, {"rotation": False}):
        got, _ = built.flash_v3(6 * Q, K / 5, 40 * V, **RUN, **options)
        near(got, oracle.attention(6 * Q, K / 5, 40 * V)[0], f"O, {options}", 0.1)


def check_lse(built):
    """The log-sum-exp near float64."""
    Q, K, V = qkv(1, 24, 30, 16)
    assert np.abs(built.flash_v3(Q, K, V, **RUN)[1] - oracle.attention(Q, K, V)[1]).max() < 0.1


def check_mask(built):
    """O and lse under the causal mask."""
    Q, K, V = qkv(2, 20, 20, 16)
    got, expected = built.flash_v3(Q, K, V, causal=True, **RUN), oracle.attention(Q, K, V, causal=True)
    near(got[0], expected[0], "O", 0.1)
    assert np.abs(got[1] - expected[1]).max() < 0.2


def check_small_weights(built):
    """A thousand keys of a thousandth of the weight each: without the factor 256 they are lost."""
    Q, K, V = np.ones((1, 1)), np.full((1025, 1), -7.5), np.ones((1025, 1))
    K[0], V[0] = 0.0, 0.0
    got, _ = built.flash_v3(Q, K, V, Br=1, Bc=1025, dtype="e4m3", rotation=False, scale=1.0)
    near(got, oracle.attention(Q, K, V, scale=1.0)[0], "O", 0.05)


def check_p_is_rounded(built):
    """P lies on the grid: V = 1 does not come out as exactly 1, as it would with an exact P."""
    Q, K, V = qkv(3, 8, 64, 16)
    got, _ = built.flash_v3(Q, K, np.ones_like(V), **RUN)
    assert 1e-5 < np.abs(got - 1).max() < 0.05


def check_outliers(built):
    """A value of three thousand in one block of V costs the small values of other blocks nothing."""
    Q, K, V = qkv(4, 8, 20, 16)
    V[:5], V[5:] = 0.0, V[5:] / 4096
    V[0, 0] = 3000.0
    got, _ = built.flash_v3(0 * Q, K, V, Br=8, Bc=5, dtype="e4m3")
    near(got[:, 1:], np.tile(V.mean(axis=0), (8, 1))[:, 1:], "O of the other columns", 0.1)


def check_rotation(built):
    """A rotation spreads an outlier over the row, by the matrix that it says it is."""
    x = np.zeros((2, 16))
    x[0, 3] = 8.0
    signs = built.quant.random_signs(16)
    y = built.quant.rotate(x, signs)
    close(np.abs(y[0]), 2.0, "entries of the rotated row")
    close(y, x @ built.quant.rotation_matrix(signs), "fast transform and matrix")
    close(built.quant.unrotate(y, signs), x, "there and back")


def check_saturation(built):
    """Too large becomes the largest, and nothing becomes NaN."""
    x = np.array([460.0, 470.0, -1e6, np.inf])
    close(built.quant.round_to(x), [448, 448, -448, 448], "round_to")
    limited = built.quant.quantise(np.array([[1.0, 100.0]]), limit=2.0).dequantise()
    close(limited, [[1.0, 2.0]], "what a limit leaves", rtol=0.05)


def check_ties(built):
    """Ties go to the even neighbor, and a float64 is rounded once."""
    close(built.quant.round_to(np.array([1.0625, 1.1875, 1.0625 + 2.0**-40])), [1, 1.25, 1.125],
          "round_to")


def check_bytes(built):
    """Bytes, tensor by tensor."""
    Q, K, V = qkv(5, 20, 20, 4)
    for causal in (False, True):
        machine = Machine(element_bytes=1)
        built.flash_v3(Q, K, V, causal=causal, machine=machine, **RUN)
        form = traffic.flash_v3(Nq=20, Nk=20, d=4, Br=8, Bc=5, causal=causal, element_bytes=1,
                                fp8=True)
        assert machine.traffic.by_tensor == form.by_tensor


CHECKS = {name: check for name, check in list(vars().items()) if name.startswith("check_")}


def _bug(name, module, old, new, caught_by, survives=()):
    return Mutant(name, module, ((old, new),), caught_by, tuple(survives))


ROTATE = "Q, K = rotate(Q, signs), rotate(K, signs)"
FACTOR = "factor = row_scale * sram.load(sK[j:j + 1]) if fp8 else row_scale"
ROUND_P = "Pij[...] = Pij.rounded(dtype)"
MUTANTS = [
    _bug("only Q is rotated", "flash_v3", ROTATE, "Q = rotate(Q, signs)", "check_output",
         ["check_bytes", "check_rotation"]),
    _bug("V is rotated as well", "flash_v3", ROTATE,
         ROTATE.replace("Q, K =", "V = rotate(V, signs); Q, K ="), "check_output",
         ["check_lse", "check_bytes"]),
    _bug("Q and K are rotated by different signs", "flash_v3", ROTATE,
         "Q, K = rotate(Q, signs), rotate(K, -signs * random_signs(d, seed + 1))", "check_output",
         ["check_bytes"]),
    _bug("the scale of Q is applied twice", "flash_v3", "sram.load(sQ[i:i + 1]) * scale",
         "sram.load(sQ[i:i + 1]) * sram.peek(sram.load(sQ[i:i + 1])).item() * scale", "check_output"),
    _bug("the scale of K is forgotten", "flash_v3", FACTOR,
         "factor = row_scale * (0 * sram.load(sK[j:j + 1]) + 1) if fp8 else row_scale",
         "check_output", ["check_bytes"]),
    _bug("every block takes the first block's scale", "flash_v3", FACTOR,
         "factor = row_scale * sram.load(sK[0:1]) if fp8 else row_scale", "check_output",
         ["check_bytes", "check_saturation"]),
    _bug("the scale of V is forgotten", "flash_v3",
         "PV * sram.load(sV[j:j + 1])", "PV * (0 * sram.load(sV[j:j + 1]) + 1)", "check_output",
         ["check_lse", "check_bytes"]),
    _bug("V takes one scale for all, the others blocks", "flash_v3",
         "q = quantise(x, block=rows if block_scales else None, fmt=dtype)",
         "q = quantise(x, block=rows if block_scales and x is not V else None, fmt=dtype)\n"
         "q = q._replace(scales=np.resize(q.scales, len(tiles(len(x), rows))))",
         "check_outliers", ["check_output", "check_bytes"]),
    _bug("P is not divided by l", "flash_v3", "Oi[...] = Oi / np.maximum(l, tiny)[:, None]",
         "Oi[...] = Oi / 256", "check_output", ["check_lse", "check_bytes"]),
    _bug("P is taken without the factor 256", "flash_v3", "top = m_new - shift if fp8 else m_new",
         "top = m_new - 0.0 if fp8 else m_new", "check_lse", ["check_output", "check_bytes"]),
    Mutant("neither P nor lse know the factor 256", "flash_v3", (
        ("shift = SHIFT if fp8 else 0.0", "shift = 0.0"),), "check_small_weights",
        ("check_output", "check_lse", "check_mask", "check_bytes")),
    _bug("lse keeps the factor 256", "flash_v3", "sram.store(lse_i - shift if fp8 else lse_i",
         "sram.store(lse_i", "check_lse", ["check_output", "check_bytes"]),
    _bug("P is not rounded", "flash_v3", ROUND_P, "Pij[...] = Pij * 1.0", "check_p_is_rounded",
         ["check_output", "check_lse", "check_bytes"]),
    _bug("P is rounded before it is shifted into range", "flash_v3", ROUND_P,
         "Pij[...] = (Pij / 256).rounded(dtype) * 256", "check_small_weights",
         ["check_output", "check_lse"]),
    _bug("the diagonal tile is unmasked", "flash_v3", "Sij[...] = np.where(visible, Sij, -np.inf)",
         "Sij[...] = np.where(visible, Sij, Sij)", "check_mask", ["check_output", "check_bytes"]),
    _bug("O is stored in eight bits", "flash_v3", 'kind="half" if fp8 else "element"',
         'kind="element"', "check_bytes", ["check_output", "check_lse", "check_mask"]),
    _bug("the scales move at the size of an element", "flash_v3",
         'machine.hbm(kind="stats", scale_Q', "machine.hbm(scale_Q", "check_bytes",
         ["check_output", "check_lse"]),
    _bug("saturation is dropped", "quant", "x = np.clip(x, -largest, largest)", "x = x + 0",
         "check_saturation", ["check_ties", "check_lse"]),
    _bug("a float64 is rounded twice", "quant",
         "return round_to_odd(flat, flat.astype(np.float32)).reshape(x.shape)",
         "return flat.astype(np.float32).reshape(x.shape)", "check_ties",
         ["check_output", "check_saturation"]),
    _bug("the scale maps to 1 and not to the largest value", "quant",
         "np.maximum(amax / largest, np.finfo(x.dtype).tiny)", "amax", "check_saturation",
         ["check_ties", "check_rotation"]),
    _bug("the transform is not normalised", "quant", "return y * x.dtype.type(1 / np.sqrt(d))",
         "return y", "check_rotation", ["check_ties", "check_saturation"]),
    _bug("the signs go behind the mixing", "quant",
         'return hadamard(check_array("x", x) * _signs(signs, x.shape[-1]).astype(x.dtype))',
         "return hadamard(x) * _signs(signs, x.shape[-1])", "check_rotation",
         ["check_output", "check_lse"]),
    _bug("the transform stops a round early", "quant", "while h < d:", "while h < d // 2:",
         "check_rotation", ["check_ties"]),
]

TestMutants = examine(MUTANTS, CHECKS, build, at_least=23, patched=patched)
