"""The fused backward with one thing different, and what runs it: for the chapter and its benchmark."""

import linecache
import types
import zlib
from dataclasses import replace
from pathlib import Path

_TAKE = """            if turn > 0:
                gl.inline_asm_elementwise(TAKE, "=r,l,r", [lock, turn], dtype=gl.int32,
                                          is_pure=False, pack=1)
"""
_GIVE = """gl.inline_asm_elementwise(GIVE, "=r,l", [lock], dtype=gl.int32, is_pure=False, pack=1)"""
_FIRST = """                if turn > 0:
                    reduce_tile(sum_desc, [row, 0], tiles.dq.index(w * PARTS + part))
                else:
                    store_tile(sum_desc, [row, 0], tiles.dq.index(w * PARTS + part))
"""
_ADD = """                reduce_tile(sum_desc, [row, 0], tiles.dq.index(w * PARTS + part))
"""
_UNASKED, _ALWAYS = (_TAKE, ""), (_FIRST, _ADD)
# What differs from `backward_fused.py`: pieces of its source, and what stands there instead.
VARIANTS = {
    "shipped": (),
    "one_start": (("start = tile * end // tiles", "start = begin"),
                  ("first = gl.where(around, tiles - 1, ((m + 1) * tiles - 1) // end)",
                   "first = tiles - 1")),
    "unordered": (_UNASKED, _ALWAYS),
    "no_locks": (_UNASKED, _ALWAYS, (_GIVE, "pass")),
    "longest_first": (_UNASKED, _ALWAYS, (_GIVE, "pass"), (
        "place_of(number, key_heads, key_tiles, TOGETHER, True)",
        "place_of(number, key_heads, key_tiles, TOGETHER, False)")),
}
ZEROED = ("unordered", "no_locks", "longest_first")         # nobody stores first, so they add to zeros


def edited(*pieces):
    """Return `backward_fused` anew as a module, with pieces (old, new) of its source replaced.

    Raises:
        ValueError: a piece does not stand there exactly once.
    """
    from flashlib.kernels.gluon import backward_fused

    source = Path(backward_fused.__file__).read_text(encoding="utf-8")
    for old, new in pieces:
        if source.count(old) != 1:
            raise ValueError(f"pieces: expected one that stands once in the kernel, got {old!r}, which"
                             f" stands there {source.count(old)} times")
        source = source.replace(old, new)
    name = f"edited/{zlib.crc32(source.encode()):x}/backward_fused.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)     # for Gluon to read
    module = types.ModuleType("flashlib.course.ch12b.edited")
    exec(compile(source, name, "exec"), vars(module))
    return module


def backward(variant, q, k, v, o, lse, do, causal):
    """Return (dq, dk, dv), and name → function: the launches that write them, one after another.

    Args:
        variant: a name of `VARIANTS`, or pieces for `edited`.
        q, k, v, o, do: (B, H, N, d), d up to 128, on a Hopper GPU, or on the CPU for the interpreter.
        lse: (B, H, N) float32.
    """
    import torch

    from flashlib.exp2 import LOG2E
    from flashlib.kernels import plans, sums
    from flashlib.kernels.backends import gluon
    from flashlib.kernels.problem import CAUSAL, FULL, Problem

    p = gluon.on_hopper(Problem.of(q, k, v, o, do, window=CAUSAL if causal else FULL))
    pieces = VARIANTS[variant] if isinstance(variant, str) else variant
    zeroed = variant in ZEROED if isinstance(variant, str) else _ALWAYS in pieces
    made = gluon.BACKEND.plan(p, "backward", gluon.BACKEND.config(p, "backward"))
    if pieces:
        kernel = gluon._kernel(p, edited(*pieces).flash_bwd_fused_hopper_kernel)
        made["fused"] = replace(made["fused"], kernel=kernel, binaries={})
    run = {name: plans.Launch(plan, p) for name, plan in made.items()}
    scale, head_dim = q.shape[3] ** -0.5, gluon.head_dim_of(p)
    factor = gluon.factor(scale)
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    *statistics, total = sums.buffers(p, head_dim)
    total.zero_()                                           # of "one_start" nobody writes the second
    leading = (q, k, v, do, *statistics[:2], *gradients[1:], total, statistics[2], scale, factor)
    parts = {"before": lambda: run["before"](o, do, lse, None, *statistics, LOG2E / factor),
             "zeros": total.zero_, "fused": lambda: run["fused"](*leading),
             "after": lambda: run["after"](total, gradients[0], scale)}
    if q.device.type == "cpu":
        parts["before"] = lambda: sums.before_on_cpu(o, do, lse, None, (*statistics, total), scale)
        parts["after"] = lambda: sums.after_on_cpu(total, gradients[0], p, head_dim, scale)
    if not zeroed:
        del parts["zeros"]
    return gradients, parts
