"""Bugs planted in the kernels' sources, and the checks that must catch them, in the interpreter.

Run as a module, with "true" or "planted", it prints JSON: check or mutant → what was said of it, or "".
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import functools
import importlib.util
from pathlib import Path

import torch

import flashlib
from flashlib.course.notebook.interpreter_trace import watch
from flashlib.masks import mask_of, tiles
from tests.kernels.behaviours import require
from tests.kernels.fold_cases import check_pieces, check_untouched
from tests.kernels.planted import report
from tests.kernels.problems import NAMES, Problem, Shape, dense, off, problem, solve
from tests.mutants.edits import Mutant, edited
from tests.quick_interpreter import quicken

KERNELS = Path(flashlib.__file__).parent / "kernels" / "triton"
MODULES = ("tiles", "scores", "forward", "backward")        # fresh copies are made in this order


MUTANTS = [Mutant(*fields) for fields in (
    # forward
    ("acc is not rescaled", "forward", "acc = acc * alpha[:, None]", "acc = acc * 1.0", "value"),
    ("l is not rescaled", "forward", "l_i * alpha + tl.sum", "l_i + tl.sum", "value"),
    ("m is not carried", "forward", "m_i = m_new\n", "m_i = m_i\n", "value"),
    ("no division at the end", "forward", "acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]",
     "acc = acc / 1.0", "value"),
    ("lse in base 2", "forward", "tl.constexpr(exp2.LN2)", "tl.constexpr(1.0)", "lse"),
    ("lse without its maximum", "forward", "(m_i + tl.log2(", "(0.0 + tl.log2(", "lse"),
    ("the maximum of the first tile for all", "forward",
     "m_new = tl.maximum(m_i, tl.max(qk, 1) * factor)",
     "m_new = tl.where(m_i > LOWEST, m_i, tl.max(qk, 1) * factor)", "overflow"),
    ("an empty row divides by zero", "forward", "tl.where(l_i == 0.0, 1.0, l_i)[:, None]",
     "l_i[:, None]", "blind"),
    ("an empty row weighs its keys alike", "forward", "p = tl.where(seen, p, 0.0)",
     "p = tl.where(seen, p, p)", "blind"),
    ("a diagonal tile passes for whole", "tiles", "tl.maximum(tile * o.BLOCK_M + 1 + N_K",
     "tl.maximum(tile * o.BLOCK_M + o.BLOCK_M + N_K", "mask"),
    ("the last visible key is skipped", "tiles", "tl.maximum((tile + 1) * o.BLOCK_M + N_K",
     "tl.maximum((tile + 1) * o.BLOCK_M - 1 + N_K", "mask"),
    ("all heads read the first keys", "forward", "h // GROUP", "h * 0", "group"),
    ("O rounds past the largest half", "forward", "tl.abs(acc) < 65600.0", "tl.abs(acc) < 0.0",
     "largest"),
    # what forward and backward share
    ("the mask hides the diagonal", "tiles", "col <= row + (N_K", "col < row + (N_K", "mask"),
    ("the mask shows one key more", "tiles", "col <= row + (N_K", "col <= row + 1 + (N_K", "mask"),
    ("the mask aligns top left", "tiles", "col <= row + (N_K - N_Q)", "col <= row", "mask"),
    ("the ragged tail is not masked", "tiles", "& (col < N_K)", "& (col > -1)", "value"),
    ("rows behind the end are loaded", "tiles", "mask=(n < N)[:, None] & (d < D)[None, :], other",
     "mask=(n > -1)[:, None] & (d < D)[None, :], other", "poison"),
    ("columns behind the end are loaded", "tiles", "mask=(n < N)[:, None] & (d < D)[None, :], other",
     "mask=(n < N)[:, None] & (d > -1)[None, :], other", "poison"),
    ("the strides of a tile are swapped", "tiles",
     "[:, None] * stride[2] + d.to(tl.int64)[None, :] * stride[3]\nif",
     "[:, None] * stride[3] + d.to(tl.int64)[None, :] * stride[2]\nif", "square"),
    # backward
    ("delta has the wrong sign in dK", "backward", "(dp_t - delta[None, :])",
     "(dp_t + delta[None, :])", "dK"),
    ("delta has the wrong sign in dQ", "backward", "(dp - delta[:, None])",
     "(dp + delta[:, None])", "dQ"),
    ("delta sums dO twice", "backward", "o.to(tl.float32) * do", "do.to(tl.float32) * do", "dQ"),
    ("dlse is ignored", "backward", "if DLSE is not None:", "if False:", "dlse"),
    ("dlse has the wrong sign", "backward", "delta -= tl.load(DLSE", "delta += tl.load(DLSE",
     "dlse"),
    ("scale twice in dK", "backward", "dk * scale,", "dk * scale * scale,", "dK"),
    ("no scale in dQ", "backward", "dq * scale,", "dq,", "dQ"),
    ("lse read as base 2", "backward", "tl.constexpr(exp2.LOG2E)", "tl.constexpr(1.0)",
     "dV"),
    ("dV is scaled", "backward", "store_rows(dv,", "store_rows(dv * scale,", "dV"),
    ("the first query tile is skipped", "tiles", "tl.maximum(tile * o.BLOCK_N - shift, 0)",
     "tl.maximum(tile * o.BLOCK_N + o.BLOCK_M - shift, 0)", "mask_backward"),
    ("the diagonal counts as whole in dK", "tiles", "(tile + 1) * o.BLOCK_N - 1 - shift",
     "tile * o.BLOCK_N - shift", "mask_backward"),
    ("the last queries are dropped", "backward", "rows, cut, end,", "rows, cut, cut,", "dV"),
    ("only the first head of a group counts", "backward", "h = hk * GROUP + member",
     "h = hk * GROUP", "group_backward"),
    ("all heads read the first keys in dQ", "backward", "h // GROUP", "h * 0", "group_backward"),
    # into a state
    ("the state is weighed as the new keys are", "forward", "held * weight[:, None]",
     "held * keep[:, None]", "state"),
    ("the state's sum is left out", "forward", "tl.fma(l_i, keep, weight)", "l_i * keep", "state"),
    ("the new sum is not rescaled", "forward", "tl.fma(l_i, keep, weight)", "l_i + weight", "state"),
    ("the new O is not rescaled", "forward", "acc * keep[:, None] + held", "acc + held", "state"),
    ("the state's lse is read as base 2", "forward", "weight = tl.exp2(before * LOG2E - m_new)",
     "weight = tl.exp2(before - m_new)", "state"),
    ("an empty state counts, NaN or not", "forward", "tl.where((weight > 0.0)[:, None], held, 0.0)",
     "held", "state"),
    ("a row that sees nothing has its lse rounded", "forward", "tl.where(seen, lse, before)", "lse",
     "untouched"),
    ("gradients are written over", "tiles", "tile += tl.load(pointers, mask=inside, other=0.0)",
     "tile += 0.0", "sums"),
    ("only dQ adds", "backward", "BLOCK_N, HEAD_DIM,\nFLAGS[5])", "BLOCK_N, HEAD_DIM)", "sums"),
    # windows
    ("the window shows one key more on the left", "tiles", "col >= on - left", "col >= on - left - 1",
     "window"),
    ("the window hides its first key", "tiles", "col >= on - left", "col > on - left", "window"),
    ("the window shows one key more on the right", "tiles", "col <= on + right",
     "col <= on + right + 1", "window"),
    ("the window hides its last key", "tiles", "col <= on + right", "col < on + right", "window"),
    ("the window has no left side", "tiles", "& (col >= on - left)", "& (col >= 0)", "window"),
    ("the window aligns top left", "tiles", "on = row + (N_K - N_Q)", "on = row", "window"),
    ("the first key tile of a window is skipped", "tiles",
     "tl.maximum(first - left, 0) // o.BLOCK_N * o.BLOCK_N",
     "(tl.maximum(first - left, 0) // o.BLOCK_N + 1) * o.BLOCK_N", "window"),
    ("a key tile before the window is visited", "tiles",
     "tl.maximum(first - left, 0) // o.BLOCK_N * o.BLOCK_N",
     "tl.maximum(first - left - o.BLOCK_N, 0) // o.BLOCK_N * o.BLOCK_N", "window_visits"),
    ("a tile that the left side cuts passes for whole", "tiles",
     "tl.cdiv(tl.maximum(last - left, 0), o.BLOCK_N)",
     "tl.cdiv(tl.maximum(first - left, 0), o.BLOCK_N)", "window"),
    ("the window's last key is not visited", "tiles", "tl.maximum(last + 1 + right, 0)",
     "tl.maximum(last + right, 0)", "window"),
    ("key tiles behind the window are visited", "tiles",
     "tl.minimum(N_K, tl.maximum(last + 1 + right, 0))", "N_K", "window_visits"),
    ("a tile that the right side cuts passes for whole", "tiles",
     "tl.maximum(first + 1 + right, 0)", "tl.maximum(last + 1 + right, 0)", "window"),
    ("key tiles cut from both sides are visited twice", "tiles", "cut = tl.maximum(cut, whole)",
     "cut = cut", "window"),
    ("the left tiles are left out of O", "forward", "begin, whole, row", "whole, whole, row", "window"),
    ("the left tiles are left out of dQ", "backward", "begin, whole, row", "whole, whole, row",
     "window_dQ"),
    ("the last queries of a window are left out", "tiles",
     "tl.minimum(N_Q, tl.maximum(last + 1 + left, 0))", "tl.minimum(N_Q, tl.maximum(last + left, 0))",
     "window_dKV"),
    ("queries behind the window are visited", "tiles",
     "tl.minimum(N_Q, tl.maximum(last + 1 + left, 0))", "N_Q", "window_visits"),
    ("queries before the window are visited", "tiles",
     "tl.maximum(first - right, 0) // o.BLOCK_M * o.BLOCK_M", "0 * first", "window_visits"),
    ("the first query tile of a window is skipped", "tiles",
     "tl.maximum(first - right, 0) // o.BLOCK_M * o.BLOCK_M",
     "tl.cdiv(tl.maximum(first - right, 0), o.BLOCK_M) * o.BLOCK_M", "window_dKV"),
    ("queries that see the first key pass for whole", "tiles",
     "tl.cdiv(tl.maximum(last - right, 0), o.BLOCK_M)",
     "tl.cdiv(tl.maximum(first - right, 0), o.BLOCK_M)", "window_dKV"),
    ("queries that see the last key pass for whole", "tiles", "tl.maximum(first + 1 + left, 0)",
     "tl.maximum(last + 1 + left, 0)", "window_dKV"),
    # scores
    ("the softcap comes before the scale", "scores", "tanh(qk * (scale_log2 / softcap_log2[0]))",
     "scale_log2 * LOG2E * tanh(qk / softcap_log2[0])", "softcap"),
    ("the softcap is in powers of 2 inside alone", "scores", "x = t * softcap_log2[0]",
     "x = t * softcap_log2[0] / LOG2E", "softcap"),
    ("tanh loses small logits", "scores", "tl.abs(x) < 0.25", "tl.abs(x) < 0.0", "softcap"),
    ("the series of tanh is taken too far", "scores", "tl.abs(x) < 0.25", "tl.abs(x) < 0.9", "softcap"),
    ("tanh of half", "scores", "x * (2 * LOG2E)", "x * LOG2E", "softcap"),
    ("the derivative of tanh is forgotten in dK", "backward", "ds_t = ds_t * (1.0 - t * t)",
     "ds_t = ds_t * 1.0", "softcap_backward"),
    ("the derivative of tanh is forgotten in dQ", "backward", "ds = ds * (1.0 - t * t)",
     "ds = ds * 1.0", "softcap_backward"),
    ("the derivative is 1 − t", "backward", "ds * (1.0 - t * t)", "ds * (1.0 - t)", "softcap_backward"),
    ("the slope is in powers of 2 already", "scores", "x - slope[0] * LOG2E *", "x - slope[0] *",
     "alibi"),
    ("the slope is added", "scores", "x - slope[0] * LOG2E *", "x + slope[0] * LOG2E *", "alibi"),
    ("the slope is scaled, too", "scores", "x - slope[0] * LOG2E *",
     "x - slope[0] * scale_log2 *",
     "alibi"),
    ("the distance is off by one", "scores", "row + (N_K - N_Q) - col", "row + 1 + (N_K - N_Q) - col",
     "alibi"),
    ("the distance aligns top left", "scores", "row + (N_K - N_Q) - col", "row - col", "alibi"),
    ("later keys come nearer", "scores", "tl.abs(row + (N_K - N_Q) - col)", "(row + (N_K - N_Q) - col)",
     "alibi"),
    ("every head has the first slope", "scores", "tl.load(X + h)", "tl.load(X + h * 0)", "alibi"),
    ("every batch entry has the first slopes", "scores", "tl.load(X + b * H + h)", "tl.load(X + h)",
     "alibi"),
    ("slopes lie batch by batch", "scores", "tl.load(X + b * H + h)", "tl.load(X + h * H + b)",
     "alibi"),
    ("the slope of another head in the backward", "backward", "ALIBI, b, h, H,",
     "ALIBI, b, h // GROUP, H,", "alibi_backward"),
    ("ALiBi forgets the scale", "scores", "x = qk * scale_log2", "x = qk * 1.0", "alibi"),
    ("the sink is in powers of 2 already", "scores", "sink * LOG2E", "sink", "sink"),
    ("O is not rescaled by the sink", "forward", "acc = acc * keep[:, None]", "acc = acc * 1.0",
     "sink"),
    ("l is not rescaled by the sink", "scores", "tl.fma(l_i, keep,", "tl.fma(l_i, 1.0 + 0.0 * keep,",
     "sink"),
    ("the sink is left out of l", "scores", "tl.exp2(sink_log2 - m_new)", "0.0 * m_new", "sink"),
    ("a sink cannot be the maximum", "scores", "tl.maximum(m_i, sink_log2)", "m_i + 0.0 * sink_log2",
     "sink"),
    ("the sink is scaled", "forward", "of_head(SINK, b, h, H, DIMS[1]))",
     "of_head(SINK, b, h, H, DIMS[1]) * scale_log2)", "sink"),
    ("every head has the sink of its group", "forward", "of_head(SINK, b, h,",
     "of_head(SINK, b, h // GROUP,", "sink"),
)]


def patched(module, *edits):
    """Return a module's canonical source with every (old, new) applied wherever it fits."""
    source = (KERNELS / f"{module}.py").read_text(encoding="utf-8")
    return edited(source, edits, name=module, everywhere=True)


def install(folder, mutant=None):
    """Make fresh kernels from their sources, one of them patched, and have the backend run them."""
    from flashlib.kernels import delta, plans
    from flashlib.kernels.backends import triton as backend

    made = {}
    for name in MODULES:
        text = (patched(name, (mutant.old, mutant.new)) if mutant and mutant.module == name
                else patched(name))
        path = Path(folder) / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        # A new name each time: the interpreter reads the source again through its file.
        path = path.rename(path.with_name(f"{name}_{len(list(Path(folder).iterdir()))}.py"))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = made[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for home in ("tiles", "scores"):
            for shared, function in vars(made.get(home, made["tiles"])).items():
                if hasattr(function, "fn") and hasattr(module, shared):
                    setattr(module, shared, function)
    for name in ("flash_fwd_kernel", "flash_bwd_delta_kernel", "flash_bwd_dkdv_kernel",
                 "flash_bwd_dq_kernel"):
        home = "forward" if "fwd" in name else "backward"
        user = delta if "delta" in name else backend
        setattr(user, name, getattr(made[home], name))
    plans.forget()


def roomy(x):
    """Return x inside much NaN, so that a kernel that reads beside it reads NaN."""
    room = x.new_full((x.numel() + 40_000,), float("nan"))
    room[20_000:20_000 + x.numel()] = x.flatten()
    return room[20_000:20_000 + x.numel()].view(x.shape)


def differs(names, *shape, dtype=torch.float32, edit=lambda given: given, **options):
    """Raise AssertionError if one of the named tensors is not what float64 says."""
    given = edit(problem(Shape(*shape), dtype, **options))
    expected = dense(given)
    inside = Problem(*(roomy(x) for x in given[:4]), *given[4:])
    attention = functools.partial(flashlib.flash_attention, impl="triton")
    got = ((*attention(*inside[:3], causal=given.causal, window=given.window, scale=given.scale,
                       softcap=given.softcap, alibi=given.alibi, sink=given.sink, return_lse=True),)
           if set(names) <= {"O", "lse"} else solve(inside, attention))
    for name, x, y in zip(NAMES, got, expected, strict=False):
        error = off(x, y)
        require(name not in names or error <= (1e-2 if dtype == torch.float16 else 1e-5),
                f"{name}: error {error:.1e}")


FORWARD, BACKWARD = NAMES[:2], NAMES[2:]
PLAIN = {"with_lse": False, "scale": 0.5}


def check_blind():
    """Rows that see nothing, alone in a tile and beside rows that see something."""
    differs(FORWARD, 1, 1, 1, 70, 20, 16, True)


def check_mask():
    """O and lse under the causal mask; in the second shape a tile ends one key into the next."""
    for Nq, Nk in ((70, 70), (64, 65), (33, 70)):
        differs(FORWARD, 1, 1, 1, Nq, Nk, 16, True)


def check_overflow():
    """A logit that is much larger than those of the first tile."""
    def grow(given):
        given.k[:, :, 40:] *= 60
        return given
    differs(("O",), 1, 1, 1, 8, 64, 16, edit=grow)


def check_largest():
    """V = 65,504 in float16, where P rounds up."""
    def edit(given):
        given.q.zero_(), given.k.zero_()
        given.q[..., 0], given.k[:, :, 1:, 0] = 1.0, -1.0
        return given._replace(v=torch.full_like(given.v, 65504.0))
    differs(("O",), 1, 1, 1, 8, 64, 16, dtype=torch.float16, edit=edit, scale=0.6926473)


def check_mask_backward():
    """All gradients under the causal mask."""
    for Nq, Nk in ((70, 70), (64, 65), (33, 70), (70, 33)):
        differs(BACKWARD, 1, 1, 1, Nq, Nk, 16, True)


# N_q, N_k, window: of one key; across tiles; one-sided; beyond the ends; with rows that see nothing
WINDOWS = [
    (70, 70, (0, 0)), (70, 70, (1, 0)), (70, 70, (16, 15)), (64, 96, (31, 0)), (70, 70, (40, None)),
    (70, 70, (None, 40)), (33, 70, (17, 3)), (96, 40, (5, 20)), (70, 33, (3, 0)), (64, 64, (32, 32))]


def check_window(names=FORWARD):
    """O and lse inside of windows."""
    for Nq, Nk, window in WINDOWS:
        differs(names, 1, 2, 1, Nq, Nk, 16, False, window)


def check_softcap(names=FORWARD):
    """Logits within the cap and beyond it, and so small that a tanh by exponentials loses them."""
    for scale, softcap in ((1.0, 2.0), (0.3, 20.0), (0.5, 1e4)):
        differs(names, 1, 2, 1, 40, 70, 16, edit=lambda given, c=softcap: given._replace(softcap=c),
                scale=scale, with_lse=False)


def check_alibi(names=FORWARD):
    """Slopes of heads, and of heads and batch entries; more keys than rows, and fewer."""
    slopes = torch.tensor([[0.5, 0.03, 0.2, 0.1], [0.01, 0.3, 0.07, 0.6]])
    for alibi, Nq, Nk, causal in ((slopes, 20, 45, False), (slopes[0], 45, 40, True)):
        differs(names, 2, 4, 2, Nq, Nk, 16, causal, with_lse=False,
                edit=lambda given, slopes=alibi: given._replace(alibi=slopes))


def check_sink():
    """Sinks above and below the logits of their heads."""
    sinks = torch.tensor([3.0, -1.0, 8.0, 200.0])
    differs(FORWARD, 1, 4, 2, 40, 70, 16, edit=lambda given: given._replace(sink=sinks), scale=0.5)


def rows_loaded(seen, name, D):
    """Return how many rows of a tensor with D columns were loaded; what lies beside it is no part."""
    return sum(int((touch.mask & ~touch.outside).sum()) for touch in seen.of(name, "load")) // D


def check_window_visits():
    """A query tile loads the key tiles of its window, and a key tile the query tiles; no others."""
    Nq, Nk, D, block = 128, 128, 16, 32                     # of the table's tiles
    for window in ((0, 0), (31, 0), (32, 33), (None, 5), (64, None)):
        given = problem(Shape(1, 1, 1, Nq, Nk, D, False, window))
        mask = mask_of(False, Nq, Nk, window)
        rows = [mask.key_tiles(rows, block) for rows in tiles(Nq, block)]
        keys = [mask.row_tiles(keys, block) for keys in tiles(Nk, block)]
        with watch(q=given.q, k=given.k, do=given.do) as seen:
            q, k, v = (x.requires_grad_() for x in given[:3])
            o, _ = flashlib.flash_attention(q, k, v, window=window, return_lse=True, impl="triton")
            forward = rows_loaded(seen, "k", D)
            o.backward(given.do)
        by_row, by_key = (block * sum(map(len, found)) for found in (rows, keys))
        require(forward == by_row, f"forward: {forward} rows of K, expected {by_row}")
        # dQ loads what the forward does, and dK and dV each key once
        require(rows_loaded(seen, "k", D) == 2 * by_row + Nk, "dQ visits other key tiles")
        # the forward and dQ load each query once
        found = rows_loaded(seen, "q", D) - 2 * Nq
        require(found == by_key, f"dK and dV: {found} rows of Q, expected {by_key}")


def check_state(names=FORWARD):
    """Keys that come in several pieces, O and lse as of one call; the sums of gradients, too."""
    shapes = [Shape(1, 2, 1, 40, 97, 16), Shape(1, 1, 1, 40, 33, 16, True)]
    check_pieces("triton", torch.float32, "cpu", shapes, names, scale=0.5)


CHECKS = {
    "state": check_state,
    "sums": lambda: check_state(BACKWARD),
    "untouched": lambda: check_untouched("triton", torch.float32),
    "value": lambda: differs(("O",), 2, 2, 2, 40, 70, 16, scale=1.0),
    "lse": lambda: differs(("lse",), 1, 2, 2, 40, 70, 16),
    "blind": check_blind,
    "mask": check_mask,
    "overflow": check_overflow,
    "largest": check_largest,
    "group": lambda: differs(("O",), 2, 4, 2, 8, 40, 16),
    "square": lambda: differs(("O",), 1, 2, 2, 16, 16, 16),
    "poison": lambda: differs(("O",), 1, 1, 1, 33, 33, 13),
    "dQ": lambda: differs(("dQ",), 1, 1, 1, 40, 70, 16, **PLAIN),
    "dK": lambda: differs(("dK",), 1, 1, 1, 40, 70, 16, **PLAIN),
    "dV": lambda: differs(("dV",), 1, 1, 1, 40, 70, 16, **PLAIN),
    "dlse": lambda: differs(BACKWARD, 1, 1, 1, 8, 40, 16),
    "mask_backward": check_mask_backward,
    "group_backward": lambda: differs(BACKWARD, 2, 4, 2, 8, 40, 16),
    "window": check_window,
    "window_dQ": lambda: check_window(("dQ",)),
    "window_dKV": lambda: check_window(("dK", "dV")),
    "window_visits": check_window_visits,
    "softcap": check_softcap,
    "softcap_backward": lambda: check_softcap(BACKWARD),
    "alibi": check_alibi,
    "alibi_backward": lambda: check_alibi(BACKWARD),
    "sink": check_sink,
}


if __name__ == "__main__":
    quicken()
    report(CHECKS, MUTANTS, install)
