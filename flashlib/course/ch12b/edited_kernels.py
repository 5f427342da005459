"""The fused backward with one thing different, and what runs it: for the chapter and its benchmark."""

import functools
import inspect
import linecache
import types
import zlib
from dataclasses import replace

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
    "one_start": (("start = first_of(tile, tiles, end)", "start = begin"),
                  ("first = gl.where(around, tiles - 1, started)", "first = tiles - 1")),
    "unordered": (_UNASKED, _ALWAYS),
    "no_locks": (_UNASKED, _ALWAYS, (_GIVE, "pass")),
    "longest_first": (_UNASKED, _ALWAYS, (_GIVE, "pass"), (
        "place_of(number, others, tiles, TOGETHER, True)",
        "place_of(number, others, tiles, TOGETHER, False)")),
    "last_first": (("others = heads - IN_WAVES", "others = heads"),),
}
ZEROED = ("unordered", "no_locks", "longest_first")         # nobody stores first, so they add to zeros
# What must not be; only the last does no harm where one program runs after the other.
_ONE_SUM = (("at = (around.to(gl.int32) * heads + head) * all_queries + m",
             "at = head * all_queries + m"),
            ("first = gl.where(around, tiles - 1, started)", "first = started"),
            ("turn = first - tile", "turn = (first - tile + tiles) % tiles"))
_FIRST_FIRST = (*VARIANTS["one_start"], ("turn = first - tile", "turn = tile"))
BROKEN = {
    "nothing": (),
    "a lock is never counted up": ((_GIVE, "pass"),),
    "one sum, not two": _ONE_SUM,
    "the first key tile adds first": _FIRST_FIRST,
    "no wait for an empty buffer": (("mbarrier.wait(bars.dq_empty.index(place), phase ^ 1)", "pass"),),
    "no fence before dQ leaves": (("(flat(dq))\n    fence_async_shared()", "(flat(dq))"),),
    "no wait for a lock": ((_TAKE, ""),),
}


def edited(*pieces):
    """Return `backward_fused` and `hand_on` anew in a module, with pieces (old, new) replaced.

    Raises:
        ValueError: a piece does not stand there exactly once.
    """
    from flashlib.kernels.gluon import backward_fused, fused_parts

    source = "\n\n".join(map(inspect.getsource, (backward_fused, fused_parts.hand_on.fn)))
    for old, new in pieces:
        if source.count(old) != 1:
            raise ValueError(f"pieces: expected one that stands once in the kernel, got {old!r}, which"
                             f" stands there {source.count(old)} times")
        source = source.replace(old, new)
    name = f"edited/{zlib.crc32(source.encode()):x}/backward_fused.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)     # for Gluon to read
    module = types.ModuleType("flashlib.course.ch12b.edited")
    module.flat = fused_parts.flat                                  # of `hand_on`, which moves in here
    exec(compile(source, name, "exec"), vars(module))
    return module


def backward(variant, q, k, v, o, lse, do, causal):
    """Return (dq, dk, dv), and name → function: the launches that write them, one after another.

    Args:
        variant: a name of `VARIANTS` or of `BROKEN`.
        q, k, v, o, do: (B, H, N, d), d up to 128, on a Hopper GPU, or on the CPU for the interpreter.
        lse: (B, H, N) float32.
    """
    import torch

    from flashlib.exp2 import LOG2E
    from flashlib.interpreter import Interpreted
    from flashlib.kernels import plans, sums
    from flashlib.kernels.backends import gluon
    from flashlib.kernels.gluon.meanings import meaning_of
    from flashlib.kernels.problem import CAUSAL, FULL, Problem

    p = gluon.on_hopper(Problem.of(q, k, v, o, do, window=CAUSAL if causal else FULL))
    pieces = (VARIANTS | BROKEN)[variant]
    made = gluon.BACKEND.plan(p, "backward", gluon.BACKEND.config(p, "backward"))
    if pieces:
        kernel = edited(*pieces).flash_bwd_fused_hopper_kernel
        if gluon.interpreted(p):
            kernel = Interpreted(kernel, meaning_of)
        made["fused"] = replace(made["fused"], kernel=kernel, binaries={})
    run = {name: plans.Launch(plan, p) for name, plan in made.items()}
    scale, head_dim = q.shape[3] ** -0.5, gluon.head_dim_of(p)
    factor = gluon.factor(scale)
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    *statistics, total = sums.buffers(p, head_dim)
    total.zero_()                                           # of "one_start" nobody writes the second
    leading = (q, k, v, do, *statistics[:2], *gradients[1:], total, statistics[2], scale, factor)
    parts = {"before": lambda: run["before"](o, do, lse, None, *statistics, LOG2E / factor),
             "zeros": total.zero_, "fused": functools.partial(run["fused"], *leading),
             "after": lambda: run["after"](total, gradients[0], scale)}
    if q.device.type == "cpu":
        parts["before"] = lambda: sums.before_on_cpu(o, do, lse, None, (*statistics, total), scale)
        parts["after"] = lambda: sums.after_on_cpu(total, gradients[0], p, head_dim, scale)
    if variant not in ZEROED:
        del parts["zeros"]
    return gradients, parts


def here(variant="shipped", shape=(1, 1, 256, 64), causal=False, order="late"):
    """Return dQ, dK and dV of the interpreter, those of float64, and the `Run` of the fused kernel.

    Args:
        variant: as in `backward`.  shape: (B, H, N, d), N a multiple of 128.
        order: "late", "early" or a seed, see `flashlib.interpreter.run`.
    Raises:
        flashlib.interpreter.Hazard: the kernel is wrong, or waits for ever.
    """
    import torch
    from triton import knobs

    rng = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(shape, generator=rng).half() for _ in range(4))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    s = exact[0] @ exact[1].mT * shape[3]**-0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    o = torch.softmax(s, -1) @ exact[2]
    o.backward(do.double())
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        lse = torch.logsumexp(s, -1).float().detach()
        found, parts = backward(variant, q, k, v, o.half().detach(), lse, do, causal)
        kernel = parts["fused"].func.plan.kernel
        kernel.order = order
        for part in parts.values():
            part()
    return found, [x.grad for x in exact], kernel.last
