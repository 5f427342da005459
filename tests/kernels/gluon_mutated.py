"""The Gluon kernels with the bugs of `gluon_bugs` planted, and what the interpreter says of each.

Run as a module, with "true" or "planted", it prints JSON: check or mutant → what was said of it, "" if
nothing was.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import importlib
import importlib.util
from pathlib import Path

import torch

import flashlib
from flashlib.interpreter import Hazard
from tests.kernels.behaviours import require
from tests.kernels.fold_cases import check_pieces, check_untouched, summed_into
from tests.kernels.gluon_bugs import MUTANTS
from tests.kernels.planted import report
from tests.kernels.problems import NAMES, Shape, dense, off, problem, solve
from tests.mutants.edits import edited

KERNELS = Path(flashlib.__file__).parent / "kernels" / "gluon"
# Fresh copies are made in this order; each finds the functions of those before it.
MODULES = ("parts", "softmax", "columns", "forward", "forward_fp8", "forward_unspecialized",
           "backward_parts", "backward_dkdv", "backward_dq", "fused_parts", "backward_fused")
FRESH = {}                                                  # those without a bug


def patched(module, *edits):
    """Return a module's canonical source with every (old, new) applied wherever it fits."""
    source = (KERNELS / f"{module}.py").read_text(encoding="utf-8")
    return edited(source, edits, name=module, everywhere=True)


def install(folder, mutant=None):
    """Make fresh kernels from their sources, one of them patched, and have the backend launch them."""
    from flashlib.kernels import plans
    from flashlib.kernels.backends import gluon as backend

    first = MODULES.index(mutant.module) if mutant else 0   # what comes before knows nothing of it
    made = {name: FRESH[name] for name in MODULES[:first]}
    for name in MODULES[first:]:
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
    FRESH.update({} if mutant else made)
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
                                         scale=given.scale, sink=given.sink, return_lse=True,
                                         impl="gluon"),)
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


def check_sink():
    """Sinks above and below the logits of their heads, one of −∞; some rows see no key."""
    sinks = torch.tensor([3.0, -1.0, -float("inf"), 6.0])
    for Nq, Nk, D in ((200, 100, 32), (70, 300, 64)):
        differs(FORWARD, 1, 4, 2, Nq, Nk, D, True, edit=lambda given: given._replace(sink=sinks),
                tolerance=4e-3)


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


def check_backward_ragged(D=192):
    """All logits far below those of keys that do not exist, which would be 0."""
    def edit(given):
        given.q.fill_(1.0), given.k.fill_(-1.0)
        return given
    differs(BACKWARD, 1, 1, 1, 64, 70, D, edit=edit, scale=1.0)


def check_unseen_nan():
    """A value that is NaN, and that the mask hides from all rows but the last, as is their O."""
    from flashlib.kernels.backends import gluon
    from flashlib.kernels.problem import CAUSAL, Problem

    q, k, v, do, *_ = problem(Shape(1, 1, 1, 128, 128, 64, True), torch.float16)
    v[:, :, 127] = float("nan")
    p = Problem.of(q, k, v, q, do, window=CAUSAL)
    dq, _, _ = gluon.BACKEND.backward(q, k, v, torch.zeros_like(q), torch.zeros(1, 1, 128), do, None, p,
                                      0.1)
    require(not dq[:, :, :127].isnan().any(), "dQ: error nan")


def check_waves(*cases):
    """A causal mask; heads side by side, heads in waves, and key tiles of a wave as a case says."""
    from flashlib.kernels import plans, scheduling

    was = scheduling.beside
    try:
        for case in cases:
            scheduling.beside = lambda p, head_dim, case=case: case
            plans.forget()
            differs(BACKWARD, 1, 2, 2, 250, 600, 64, True, scale=0.1)
    finally:
        scheduling.beside = was
        plans.forget()


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


def check_state(dtype=torch.float16):
    """Keys that come in several pieces, O and lse as of one call: in four parts of O, each its own."""
    shapes = [Shape(1, 2, 1, 100, 333, 64), Shape(1, 1, 1, 100, 70, 32, True),
              Shape(1, 1, 1, 70, 130, 256)]
    check_pieces("gluon", dtype, "cpu", shapes, FORWARD, scale=0.5)


def check_sums(dtype=torch.float16):
    """Gradients of keys that come in pieces, added to sums that are rows of larger ones."""
    for shape in (Shape(2, 4, 2, 70, 150, 40), Shape(1, 1, 1, 100, 170, 128, True)):
        given = problem(shape, dtype, scale=0.1)
        o, lse = dense(given)[:2]
        wider = [torch.full((*x.shape[:2], x.shape[2] + 150, x.shape[3] + 40), -0.0) for x in given[:3]]
        sums = [x[:, :, 5:5 + y.shape[2], :y.shape[3]] for x, y in zip(wider, given[:3], strict=True)]
        for x in sums:
            x.fill_(1.0)
        summed_into(sums, given, o.float(), lse.float(), 3, "gluon")
        compare(BACKWARD, [None, None, *(x - 1 for x in sums)], dense(given), 1e-2)
        for x, inside in zip(wider, sums, strict=True):
            inside.fill_(-0.0)                              # to which even 0 is not added in vain
            require(bool(torch.signbit(x).all()), "dQ: error beside the sums")


CHECKS = {
    "state": check_state,
    "fused_sums": check_sums,
    "untouched": lambda: check_untouched("gluon", torch.float16),
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
    "sink": check_sink,
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
    "fused_32": lambda: differs(BACKWARD, 1, 1, 1, 200, 300, 32, scale=0.1),
    "fused_64": lambda: differs(BACKWARD, 1, 2, 2, 300, 300, 64, scale=0.1),
    "fused_128": lambda: differs(BACKWARD, 1, 1, 1, 300, 300, 128, scale=0.1),
    "fused_group": lambda: differs(BACKWARD, 2, 4, 2, 70, 70, 32, scale=0.1),
    "fused_causal": lambda: differs(BACKWARD, 1, 1, 1, 250, 300, 64, True, scale=0.1),
    "fused_heads": lambda: check_waves((1, 1, 1)),          # the second begins with its first key tile
    "fused_waves": lambda: check_waves((1, 2, 3), (2, 2, 2)),
    "fused_window": lambda: differs(BACKWARD, 1, 1, 1, 300, 300, 64, False, (70, 90), scale=0.1),
    "fused_ragged": lambda: check_backward_ragged(64),
    "fused_nan": check_unseen_nan,
    "pieces": lambda: differs(FORWARD, 1, 1, 1, 200, 700, 96, scale=1.0),
    "pieces_wide": lambda: differs(FORWARD, 1, 1, 1, 200, 200, 168, True, scale=0.1),
    "pieces_window": lambda: differs(FORWARD, 1, 1, 1, 330, 330, 168, False, (100, 20), scale=5.0),
    "fused_pieces": lambda: differs(BACKWARD, 1, 1, 1, 130, 200, 80, True, scale=0.1),
}


if __name__ == "__main__":
    report(CHECKS, MUTANTS, install, (AssertionError, Hazard))
