"""Bugs planted in the Gluon kernels' sources, and what the interpreter must say of each.

Run as a module it prints JSON: mutant → what its named check said; "" means that nothing was noticed.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import importlib
import importlib.util
import json
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import torch

import flashlib
from flashlib.interpreter import Hazard
from tests.kernels.behaviours import require
from tests.kernels.problems import NAMES, Shape, dense, off, problem, solve
from tests.mutants.edits import edited

KERNELS = Path(flashlib.__file__).parent / "kernels" / "gluon"
# Fresh copies are made in this order; each finds the functions of those before it.
MODULES = ("parts", "softmax", "forward", "forward_fp8", "forward_unspecialized", "backward_parts",
           "backward_dkdv", "backward_dq")


class Mutant(NamedTuple):
    """One planted bug: in `module` every `old` becomes `new`; `check` must fail, and say `words`."""

    name: str
    module: str
    old: str
    new: str
    check: str
    words: str = "error"


ARITHMETIC = [Mutant(*fields) for fields in (
    ("l is not rescaled", "softmax", "m_new, l_i * alpha + gl.sum(p, 1)", "m_new, l_i + gl.sum(p, 1)",
     "steps"),
    ("l of a stale maximum is not rescaled", "softmax", "l_i * alpha + gl.sum(gl.sum(p, 3), 1)",
     "l_i + gl.sum(gl.sum(p, 3), 1)", "growing"),
    ("O is not rescaled", "softmax",
     "return acc * gl.expand_dims(gl.convert_layout(alpha, by_row), 1)", "return acc", "steps"),
    ("O of a stale maximum is not rescaled", "forward", "rescale_seldom(acc, alpha)", "acc", "growing"),
    ("m forgets what it was", "softmax", "gl.maximum(m_i, gl.max(qk, 1) * factor)",
     "gl.max(qk, 1) * factor", "steps"),
    ("the factor is left out of the maximum", "softmax", "gl.max(qk, 1) * factor)", "gl.max(qk, 1))",
     "steps"),
    ("lse in base 2", "parts", "gl.constexpr(exp2.LN2)", "gl.constexpr(1.0)", "lse"),
    ("lse without its maximum", "parts", "(m_i - OFFSET + log_l)", "(log_l - OFFSET)", "lse"),
    ("O is not divided by l", "parts", "gl.exp2(-log_l)", "gl.exp2(0 * log_l)", "full"),
    ("an empty row divides by zero", "parts", "gl.where(l_i == 0.0, 1.0, l_i)", "l_i + 0.0", "blind"),
    ("an empty row's lse is finite", "parts", 'gl.where(l_i == 0.0, float("-inf"),',
     "gl.where(l_i == 0.0, 0.0,", "blind"),
    ("rows that see nothing weigh their keys alike", "softmax",
     'gl.where(m_i == float("-inf"), 0.0, m_i)', "m_i", "blind"),
    ("lse of rows behind the end is written", "parts", "lse, mask=row < work.N_Q",
     "lse, mask=row > -1", "full", "elements, got offset"),
    ("the last visible key tile is skipped", "parts",
     "gl.maximum(start + TILE_M + N_K - N_Q, 0)", "gl.maximum(start + TILE_M - 1 + N_K - N_Q, 0)",
     "causal"),
    ("a diagonal tile passes for whole", "parts", "gl.maximum(start + 1 + N_K - N_Q, 0)",
     "gl.maximum(start + BLOCK_N + N_K - N_Q, 0)", "causal"),
    ("FP8: the ragged tail is not masked", "parts", "N_K // BLOCK_N", "gl.cdiv(N_K, BLOCK_N)", "fp8"),
    ("the mask aligns top left", "softmax", "gl.expand_dims(row + (N_K - N_Q), 1)",
     "gl.expand_dims(row, 1)", "causal"),
    ("the window begins one key tile late", "parts", "gl.maximum(first - left, 0) // BLOCK_N",
     "gl.maximum(first - left, 0) // BLOCK_N + 1", "windows", "no task can go on"),
    ("the window's left side passes for whole", "parts", "gl.cdiv(gl.maximum(last - left, 0), BLOCK_N)",
     "gl.cdiv(gl.maximum(first - left, 0), BLOCK_N)", "windows_wide"),
    ("the window's last key is not visited", "parts", "gl.maximum(last + 1 + right, 0)",
     "gl.maximum(last + right - 64, 0)", "windows"),
    ("the window's right side passes for whole", "parts", "gl.maximum(first + 1 + right, 0)",
     "gl.maximum(last + 1 + right, 0)", "windows"),
    ("all heads read the first keys", "parts", "h = h // work.GROUP", "h = h * 0", "group"),
    ("a group is read as one head", "parts", "h = h // work.GROUP", "h = h * 1", "group"),
    ("O's halves are swapped", "parts", "o_tile.reshape([ROWS, WIDTH]).store(left)",
     "o_tile.reshape([ROWS, WIDTH]).store(right)", "wide"),
    ("O's second half overwrites the first", "parts", "[b, h, first, WIDTH]", "[b, h, first, 0]",
     "wide"),
    ("O rounds past the largest half", "parts", "gl.abs(acc) < 65600.0", "gl.abs(acc) < 0.0",
     "largest"),
    ("the second warpgroup asks for the first's rows", "parts", "start + c * ROWS, 0], shared.q_full",
     "start, 0], shared.q_full", "full"),
    ("the rows of a warpgroup are masked as the first's", "forward",
     "start + c * ROWS, key, work, MASKED", "start, key, work, MASKED", "causal"),
    ("V of the key tile before", "parts", "last_b, last_h, last_key = b, h, key",
     "last_b, last_h, last_key = b, h, key + 1", "full"),
    ("FP8: lse is off by eight", "parts", "(m_i - OFFSET + log_l)", "(m_i + log_l)", "fp8"),
    ("FP8: all rows take the first ones' scale", "forward_fp8", "first // SCALED_ROWS, blocks",
     "first * 0, blocks", "fp8_scales"),
    ("FP8: K's scale of the first rows", "forward_fp8", "K_SCALE + key // SCALED_ROWS",
     "K_SCALE + key * 0", "fp8_scales"),
    ("FP8: V's scale is left out", "forward_fp8",
     "acc * gl.expand_dims(gl.load(V_SCALE + key_head * o.HEAD_DIM + column), 0)", "acc", "fp8"),
    ("FP8: P's keys are not permuted", "forward_fp8", "permute([0, 1, 3, 2, 4])",
     "permute([0, 1, 2, 3, 4])", "fp8"),
    ("pipelined: O is not rescaled", "forward_unspecialized", "acc = rescale(acc, alpha)", "acc = acc",
     "pipelined"),
    ("backward: delta has the wrong sign in dK", "backward_dkdv", "dp - gl.expand_dims(delta, 0)",
     "dp + gl.expand_dims(delta, 0)", "backward"),
    ("backward: delta has the wrong sign in dQ", "backward_dq", "(dp - gl.expand_dims(delta, 1))",
     "(dp + gl.expand_dims(delta, 1))", "backward"),
    ("backward: dK is not scaled", "backward_dkdv", "(DELTA, dk_desc, scale,", "(DELTA, dk_desc, 1.0,",
     "backward"),
    ("backward: dV is scaled", "backward_dkdv", "(LSE, dv_desc, 1.0,", "(LSE, dv_desc, scale,",
     "backward"),
    ("backward: dQ is not scaled", "backward_dq", "(dq * scale)", "(dq * 1.0)", "backward"),
    ("backward: lse read as base 2", "backward_parts", "gl.constexpr(exp2.LOG2E)", "gl.constexpr(1.0)",
     "backward"),
    ("backward: only the first head of a group counts", "backward_dkdv",
     "h = hk * sizes.GROUP + member", "h = hk * sizes.GROUP", "backward_group"),
    ("backward: a group's heads share statistics", "backward_dkdv", "hk * sizes.GROUP + member).to",
     "hk * sizes.GROUP).to", "backward_group"),
    ("backward: all heads read the first keys in dQ", "backward_dq", "h = h // sizes.GROUP",
     "h = h * 0", "backward_group"),
    ("backward: P is not masked", "backward_dkdv",
     "p = keep(p, gl.expand_dims(row, 0), key, sizes, o)", "p = p * 1.0", "backward_causal"),
    ("backward: the mask aligns top left", "backward_parts", "on = row + (sizes.N_K - sizes.N_Q)",
     "on = row + 0", "backward_causal"),
    ("backward: the first query tile is skipped", "backward_dkdv",
     "begin = gl.maximum(start - shift, 0) // o.BLOCK_M",
     "begin = gl.maximum(start - shift, 0) // o.BLOCK_M + 1", "backward_causal"),
    ("backward: the last queries of a window are left out", "backward_dkdv",
     "gl.maximum(last - shift + 1 + left, 0)", "gl.maximum(last - shift + 1 + left - o.BLOCK_M, 0)",
     "backward_window"),
    ("backward: the ragged tail is not masked in dQ", "backward_dq",
     "o.IS_CAUSAL or o.RAGGED or sizes.window is not None", "o.IS_CAUSAL", "backward_ragged"),
)]
SYNCHRONISATION = [Mutant(*fields) for fields in (
    ("K is not waited for", "forward",
     "mbarrier.wait(shared.k_full.index(slot), phase)\nif o.PING_PONG:", "if o.PING_PONG:", "full",
     "k slot"),
    ("V is not waited for", "forward",
     "mbarrier.wait(shared.v_full.index(slot), phase)\nacc = warpgroup_mma(p, v, acc, is_async=True)",
     "acc = warpgroup_mma(p, v, acc, is_async=True)", "full", "v slot"),
    ("Q is not waited for", "forward", "mbarrier.wait(shared.q_full.index(c), 0)", "pass", "full",
     "q slot"),
    ("the phase of K is wrong", "forward",
     "mbarrier.wait(shared.k_full.index(slot), phase)\nif o.PING_PONG:",
     "mbarrier.wait(shared.k_full.index(slot), phase ^ 1)\nif o.PING_PONG:", "full", "k"),
    ("the producer waits for the wrong phase of Q", "parts", "nth // o.Q_SLOTS & 1 ^ 1)",
     "nth // o.Q_SLOTS & 1)", "full", "no task can go on"),
    ("the producer does not wait for a free K", "parts",
     "mbarrier.wait(shared.k_empty.index(slot), phase)\n"
     "mbarrier.expect(shared.k_full.index(slot), nbytes)",
     "mbarrier.expect(shared.k_full.index(slot), nbytes)", "long", "overwrites k slot"),
    ("the producer does not wait for a free Q", "parts",
     "mbarrier.wait(shared.q_empty.index(place), nth // o.Q_SLOTS & 1 ^ 1)", "pass", "tiles",
     "overwrites q slot"),
    ("K's slot is never given back", "forward",
     "mbarrier.arrive(shared.k_empty.index(slot))\nif o.OVERLAP and", "if o.OVERLAP and", "long",
     "k_empty"),
    ("V's slot is given back before its product", "forward",
     "acc = warpgroup_mma_wait(0, deps=[acc])\n"
     "mbarrier.arrive(shared.v_empty.index(slot))\np = as_operand",
     "mbarrier.arrive(shared.v_empty.index(slot))\n"
     "acc = warpgroup_mma_wait(0, deps=[acc])\np = as_operand",
     "under", "v slot"),
    ("K's bytes are expected short", "parts", "mbarrier.expect(shared.k_full.index(slot), nbytes)",
     "mbarrier.expect(shared.k_full.index(slot), nbytes // 2)", "full", "k"),
    ("Q's bytes are expected twice", "parts", "q_full.index(place), q_desc.block_type.nbytes)",
     "q_full.index(place), 2 * q_desc.block_type.nbytes)", "full", "q_full"),
    ("K and V arrive at each other's barriers", "parts",
     "load_tile(k_desc, [b, h, key, 0], shared.k_full.index(slot)",
     "load_tile(k_desc, [b, h, key, 0], shared.v_full.index(slot)", "full", "_full"),
    ("no fence before O leaves", "parts",
     "o_tile.reshape([ROWS, o.HEAD_DIM]).store(acc)\nfence_async_shared()",
     "o_tile.reshape([ROWS, o.HEAD_DIM]).store(acc)", "full", "fence_async_shared() is missing"),
    ("no fence after the barriers were set up", "parts",
     "mbarrier.init(shared.v_empty.index(s), count=o.CONSUMERS)\nfence_async_shared()",
     "mbarrier.init(shared.v_empty.index(s), count=o.CONSUMERS)\npass", "full",
     "without fence_async_shared()"),
    ("O is used before its product is there", "forward",
     "acc = warpgroup_mma_wait(0, deps=[acc])\n"
     "mbarrier.arrive(shared.v_empty.index(slot))\np = as_operand",
     "mbarrier.arrive(shared.v_empty.index(slot))\np = as_operand", "under",
     "pass it through warpgroup_mma_wait"),
    ("one product too many may be under way", "forward", "qk = warpgroup_mma_wait(1, deps=[qk])",
     "qk = warpgroup_mma_wait(2, deps=[qk])", "full", "pass it through warpgroup_mma_wait"),
    ("the turn is not handed on", "forward",
     "if o.PING_PONG and (o.UNDER_SOFTMAX or not o.OVERLAP):", "if o.PING_PONG and c == 0:", "under",
     "barrier 1"),
    ("nobody begins the turns", "forward", "if o.PING_PONG and c == o.CONSUMERS - 1:",
     "if o.PING_PONG and c == o.CONSUMERS:", "full", "no task can go on"),
    ("the last store is not waited for", "forward", "shared.o.index(c + gl.minimum(b, 0)),\n"
     "(b, h, first + c * ROWS), work, 0.0, o)\ntma.store_wait(0)",
     "shared.o.index(c + gl.minimum(b, 0)),\n(b, h, first + c * ROWS), work, 0.0, o)", "full",
     "ends before its store"),
    ("O overwrites what is still leaving", "parts", "acc = acc.to(o_desc.dtype)\ntma.store_wait(0)",
     "acc = acc.to(o_desc.dtype)", "tiles", "overwrites o slot"),
    ("the first half of O is overwritten while it leaves", "parts",
     "store_tile(o_desc, [b, h, first, 0], o_tile)\ntma.store_wait(0)",
     "store_tile(o_desc, [b, h, first, 0], o_tile)", "wide", "overwrites o slot"),
    ("empty barriers expect one consumer", "parts",
     "mbarrier.init(shared.k_empty.index(s), count=o.CONSUMERS)",
     "mbarrier.init(shared.k_empty.index(s), count=1)", "long", "waits for k_"),
    ("the ring does not step on", "parts", "return gl.where(wrapped, 0, slot + 1), gl.where(wrapped,",
     "return gl.where(wrapped, 0, slot + 0), gl.where(wrapped,", "long", ""),
    ("the parity does not flip", "parts", "gl.where(wrapped, phase ^ 1, phase)",
     "gl.where(wrapped, phase, phase)", "long", ""),
    ("backward: P is read before it is there", "backward_dkdv",
     "mbarrier.wait(handed.full.index(0), turn)", "pass", "backward", "reads p slot 0"),
    ("backward: P is overwritten while it is read", "backward_dkdv",
     "mbarrier.wait(handed.empty.index(0), turn ^ 1)", "pass", "backward", "overwrites p slot 0"),
    ("backward: Q is given back before dK has read it", "backward_dkdv",
     "dk = warpgroup_mma_wait(0, deps=[dk])\nmbarrier.arrive(shared.empty_1.index(slot))",
     "mbarrier.arrive(shared.empty_1.index(slot))\ndk = warpgroup_mma_wait(0, deps=[dk])", "backward",
     "overwrites ring_1 slot"),
    ("backward: no fence before the gradients leave", "backward_dkdv",
     "fence_async_shared()\nstore_tile", "store_tile", "backward", "fence_async_shared() is missing"),
    ("backward: V is given back before dP is there", "backward_dq",
     "dp = warpgroup_mma_wait(0, deps=[dp])\nmbarrier.arrive(shared.empty_2.index(v_slot))",
     "mbarrier.arrive(shared.empty_2.index(v_slot))\ndp = warpgroup_mma_wait(0, deps=[dp])", "backward",
     "overwrites ring_2 slot"),
)]
MUTANTS = ARITHMETIC + SYNCHRONISATION


def patched(module, *edits):
    """Return a module's canonical source with every (old, new) applied wherever it fits."""
    source = (KERNELS / f"{module}.py").read_text(encoding="utf-8")
    return edited(source, edits, name=module, everywhere=True)


def install(folder, mutant=None):
    """Make fresh kernels from their sources, one of them patched, and have the backend launch them."""
    from flashlib.kernels import plans
    from flashlib.kernels.backends import gluon as backend

    made = {}
    for name in MODULES:
        edits = [(mutant.old, mutant.new)] if mutant and mutant.module == name else []
        path = Path(folder) / f"{name}_{len(list(Path(folder).iterdir()))}.py"
        path.write_text(patched(name, *edits), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for before, fresh in made.items():
            true = importlib.import_module(f"flashlib.kernels.gluon.{before}")
            for shared, value in vars(true).items():        # what it imports from those before
                if hasattr(value, "fn") and getattr(module, shared, None) is value:
                    setattr(module, shared, getattr(fresh, shared))
        made[name] = module
    for module in made.values():
        for name, value in vars(module).items():
            if name.startswith("flash_") and hasattr(backend, name):
                setattr(backend, name, value)
    plans.forget()


def differs(names, *shape, dtype=torch.float16, edit=lambda given: given, tolerance=1e-2, **options):
    """Raise AssertionError if one of the named tensors is not what float64 says, or a Hazard."""
    given = edit(problem(Shape(*shape), dtype, **options))
    if set(names) <= {"O", "lse"}:
        got = (*flashlib.flash_attention(*given[:3], causal=given.causal, window=given.window,
                                         scale=given.scale, return_lse=True, impl="gluon"),)
    else:
        def attention(*x, **y):
            return flashlib.flash_attention(*x, **y, impl="gluon")
        got = solve(given, attention)
    compare(names, got, dense(given), tolerance)


def compare(names, got, expected, tolerance):
    """Raise AssertionError if one of the named tensors is off by more."""
    for name, x, y in zip(NAMES, got, expected, strict=False):
        error = off(x, y) if name in names else 0.0
        require(error <= tolerance, f"{name}: error {error:.1e}")


FORWARD, BACKWARD = NAMES[:2], NAMES[2:]
WINDOWS = [(330, 330, (0, 0)), (330, 330, (100, 20)), (250, 300, (129, 0)), (200, 400, (None, 70)),
           (300, 100, (30, 40))]


def check_windows():
    """O and lse inside of windows; rows of a window need the maximum of every tile."""
    for Nq, Nk, window in WINDOWS:
        differs(FORWARD, 1, 1, 1, Nq, Nk, 64, False, window, scale=1.0)


def check_causal():
    """O and lse under the causal mask, where a tile ends at, before and behind a diagonal."""
    for Nq, Nk, scale in ((200, 200, 0.5), (330, 267, 0.0), (100, 330, 0.5)):
        differs(FORWARD, 1, 1, 1, Nq, Nk, 32, True, tolerance=4e-3, scale=scale)


def check_growing():
    """Logits that outgrow a stale maximum by more than tau, again and again."""
    def grow(given):
        given.k.mul_(torch.linspace(0.2, 6, given.k.shape[2])[:, None])
        return given
    differs(FORWARD, 1, 1, 1, 200, 700, 64, edit=grow, scale=1.0)


def check_largest():
    """V = 65,504 in float16, where P rounds up."""
    def edit(given):
        given.q.zero_(), given.k.zero_()
        given.q[..., 0], given.k[:, :, 1:, 0] = 1.0, -1.0
        return given._replace(v=torch.full_like(given.v, 65504.0))
    differs(("O",), 1, 1, 1, 8, 64, 32, edit=edit, scale=0.6926473)


def check_backward_ragged():
    """All logits far below those of keys that do not exist, which would be 0."""
    def edit(given):
        given.q.fill_(1.0), given.k.fill_(-1.0)
        return given
    differs(BACKWARD, 1, 1, 1, 64, 70, 192, edit=edit, scale=1.0)


def fp8(Nq, Nk, D, grow=False):
    """The kernel in 8 bits, with scales that differ much from block to block if asked."""
    given = problem(Shape(1, 2, 1, Nq, Nk, D), torch.float16, scale=0.05 if grow else None)
    if grow:
        for x in given[:2]:
            x.mul_(torch.linspace(0.1, 2, x.shape[2])[:, None])
    o, lse = flashlib.kernels.flash_attention_fp8(*given[:3], scale=given.scale, return_lse=True)
    right, right_lse = dense(given)[:2]
    error = float((o - right).norm() / right.norm())
    require(error <= 0.08, f"O: error {error:.1e}")
    error = float((lse - right_lse).abs().max())
    require(error <= 0.08, f"lse: error {error:.1e}")


def pipelined():
    """The kernel without warp specialisation, in its own configuration."""
    from flashlib.kernels.backends import gluon
    from flashlib.kernels.configs import GluonConfig
    from flashlib.kernels.problem import Problem

    given = problem(Shape(1, 2, 1, 200, 300, 64), torch.float16, scale=1.0)
    p = Problem.of(*given[:3])
    config = GluonConfig(64, 2, 3, SPECIALIZED=False)
    got = gluon.BACKEND.forward(*given[:3], p, 1.0, config)
    compare(FORWARD, got, dense(given), 1e-2)


CHECKS = {
    "full": lambda: differs(FORWARD, 1, 2, 2, 200, 333, 64),
    "lse": lambda: differs(("lse",), 1, 1, 1, 70, 70, 64),
    "long": lambda: differs(FORWARD, 1, 1, 1, 130, 1200, 64),
    "tiles": lambda: differs(FORWARD, 2, 5, 5, 200, 130, 64),
    "under": lambda: differs(FORWARD, 1, 1, 1, 200, 512, 64),
    "wide": lambda: differs(FORWARD, 1, 2, 2, 130, 130, 256),
    "blind": lambda: differs(FORWARD, 1, 1, 1, 300, 100, 64, True),
    "group": lambda: differs(("O",), 2, 4, 2, 70, 70, 32),
    "windows": check_windows,
    "windows_wide": lambda: differs(FORWARD, 1, 1, 1, 330, 330, 256, False, (100, 20)),
    "steps": lambda: differs(FORWARD, 1, 1, 1, 200, 700, 256, False, (500, 500), scale=5.0),
    "causal": check_causal,
    "growing": check_growing,
    "largest": check_largest,
    "fp8": lambda: fp8(130, 200, 64),
    "fp8_scales": lambda: fp8(300, 300, 64, grow=True),
    "pipelined": pipelined,
    "backward": lambda: differs(BACKWARD, 1, 1, 1, 200, 200, 256, scale=0.1),
    "backward_group": lambda: differs(BACKWARD, 2, 4, 2, 70, 70, 136, scale=0.1),
    "backward_causal": lambda: differs(BACKWARD, 1, 1, 1, 130, 200, 192, True, scale=0.1),
    "backward_window": lambda: differs(BACKWARD, 1, 1, 1, 300, 300, 192, False, (70, 3), scale=0.1),
    "backward_ragged": check_backward_ragged,
}


def outcome(check):
    """Return "" or what the check said; a crash is told apart, and does not count."""
    try:
        CHECKS[check]()
    except (AssertionError, Hazard) as error:
        return str(error) or "assertion"
    except Exception as error:
        return f"crash: {type(error).__name__}: {error}"
    return ""


def everything():
    """Yield (name, outcome): each check on the true kernels, then each mutant's."""
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        for check in CHECKS:
            yield f"true {check}", outcome(check)
        for mutant in MUTANTS:
            try:
                install(folder, mutant)
            except LookupError as error:
                yield mutant.name, f"crash: {error}"
            else:
                yield mutant.name, outcome(mutant.check)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")                         # NumPy's, on a mutant's way
    print(json.dumps(dict(everything())))
