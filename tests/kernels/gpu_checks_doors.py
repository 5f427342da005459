"""torch's own functions with our kernels behind them: SDPA and `varlen_attn`, through torch's own door.

Checks as in `gpu_checks`; on the CPU they call the operators that SDPA would choose on a GPU.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools

import torch
from torch.nn import functional

from flashlib.integrations import torch as door
from tests.kernels.behaviours import TOLERANCE, require
from tests.kernels.problems import Problem, Shape, dense, off, problem

# B, H, H_k, N_q, N_k, D, causal
SHAPES = (Shape(2, 4, 4, 150, 150, 64, True, None), Shape(1, 6, 2, 333, 333, 128, True, None),
          Shape(2, 2, 2, 97, 260, 40, False, None), Shape(1, 2, 1, 64, 64, 256, False, None))
LENGTHS_Q, LENGTHS_K = (70, 0, 1, 200, 33), (70, 5, 130, 200, 90)
WINDOWS = ((-1, -1), (-1, 0), (40, 0))


@contextlib.contextmanager
def opened(device, calls=None):
    """Open the door, count in `calls` who comes through, and close it."""
    true = {name: getattr(door, name) for name in ("flash_attention", "flash_attention_varlen",
                                                   "flash_decode")}
    for name, function in true.items():
        def counted(*given, name=name, function=function, **options):
            if calls is not None:
                calls.append(name)
            return function(*given, **options)
        setattr(door, name, counted)
    handle = None
    try:
        if device == "cpu":
            handle = door.install("CPU")
        else:
            torch.nn.attention.activate_flash_attention_impl(door.register())
        yield
    finally:
        if handle is not None:
            handle.remove()
        else:
            torch.nn.attention.restore_flash_attention_impl()
        for name, function in true.items():
            setattr(door, name, function)


def sdpa(q, k, v, causal):
    """Return torch's attention by its flash backend."""
    if not q.is_cuda:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                       enable_gqa=q.shape[1] != k.shape[1])


def dtypes(where):
    """Return what torch's flash backend takes; on the CPU, what our fallback can be held to."""
    return (torch.float32,) if where.device == "cpu" else (torch.float16, torch.bfloat16)


def check_doors_sdpa(where, shapes=SHAPES):
    """SDPA through the door: O and gradients by float64, laid out as its inputs; then torch's again."""
    worst = 0.0
    for shape, dtype, transposed in itertools.product(shapes, dtypes(where), (False, True)):
        given = problem(shape, dtype, device=where.device, with_lse=False)
        if transposed:                                      # as models hand them over
            given = given._replace(**{name: getattr(given, name).transpose(1,
                                                                           2).contiguous().transpose(1,
                                                                                                     2)
                                      for name in ("q", "k", "v")})
        q, k, v = (x.detach().requires_grad_() for x in given[:3])
        calls = []
        before = sdpa(q, k, v, given.causal).detach() if where.device != "cpu" else None
        with opened(where.device, calls):
            o = sdpa(q, k, v, given.causal)
            grads = torch.autograd.grad(o, (q, k, v), given.do)
        require(calls == ["flash_attention"], f"{shape}: {calls} came through the door")
        expected = dense(given)
        for name, x, y, like in zip(("O", "dQ", "dK", "dV"), (o, *grads), (expected[0], *expected[2:]),
                                    (q, q, k, v), strict=True):
            require(off(x, y) <= TOLERANCE[dtype], f"{name} {shape} {dtype}: error {off(x, y):.2e}")
            require(shape.D % 8 or x.stride() == like.stride(), f"{name} {shape}: strides {x.stride()}")
            worst = max(worst, off(x, y) / TOLERANCE[dtype])
        if before is not None:
            require(torch.equal(sdpa(q, k, v, given.causal), before),
                    f"{shape}: torch's own is not back")
            require(len(calls) == 1, f"{shape}: the door was not closed")
    return f"worst {worst:.2f} of what is allowed"


def cumulative(lengths, device):
    """Return cumulative lengths as torch takes them."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def varlen(q, k, v, cu_q, cu_k, lengths_q, lengths_k, window, **more):
    """Return torch's `varlen_attn`, told of masks as this torch wants it, or None if it cannot be."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    if "window_size" in known:
        more["window_size"] = window
    elif window in ((-1, -1), (-1, 0)):
        more["is_causal"] = window == (-1, 0)
    else:
        return None
    if q.shape[1] != k.shape[-2]:
        more["enable_gqa"] = True
    if not more.keys() <= known.keys():
        return None
    return varlen_attn(q, k, v, cu_q, cu_k, max(lengths_q), max(lengths_k), **more)


def parts_of(tensors, lengths_q, lengths_k, window):
    """Yield for each sequence its problem and its rows; `tensors` are q, k, v and dO, (T, H, D)."""
    left, right = (None if side < 0 else side for side in window)
    ends_q, ends_k = ([0, *itertools.accumulate(lengths)] for lengths in (lengths_q, lengths_k))
    for rows, keys in zip(itertools.pairwise(ends_q), itertools.pairwise(ends_k), strict=True):
        spans = (slice(*rows), slice(*keys), slice(*keys), slice(*rows))
        q, k, v, do = (x.detach()[at].transpose(0, 1)[None] for x,
                       at in zip(tensors, spans, strict=True))
        yield Problem(q, k, v, do, None, False, None, (left, right)), spans


def check_doors_varlen(where, lengths=(LENGTHS_Q, LENGTHS_K)):
    """`varlen_attn` through the door: each sequence, forward and backward, by float64."""
    worst, skipped = 0.0, 0
    cu_q, cu_k = (cumulative(x, where.device) for x in lengths)
    for dtype, window, (H, Hk) in itertools.product(dtypes(where), WINDOWS, ((2, 2), (4, 2))):
        rng = torch.Generator(device=where.device).manual_seed(0)
        q, k, v, do = (torch.randn(sum(n), heads, 64, generator=rng, device=where.device).to(dtype)
                       for n, heads in ((lengths[0], H), (lengths[1], Hk), (lengths[1], Hk),
                                        (lengths[0], H)))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        calls = []
        with opened(where.device, calls):
            o = varlen(*inputs, cu_q, cu_k, *lengths, window)
            if o is None:
                skipped += 1
                continue
            grads = torch.autograd.grad(o, inputs, do)
        require(calls == ["flash_attention_varlen"], f"{window}: {calls} came through the door")
        for given, (rows, keys, *_) in parts_of((q, k, v, do), *lengths, window):
            expected = dense(given)
            for name, x, y, at in zip(("O", "dQ", "dK", "dV"), (o, *grads),
                                      (expected[0], *expected[2:]),
                                      (rows, rows, keys, keys), strict=True):
                error = off(x.detach()[at].transpose(0, 1)[None], y)
                require(error <= TOLERANCE[dtype], f"{name} {window} {rows} {dtype}: error {error:.2e}")
                worst = max(worst, error / TOLERANCE[dtype])
    rest = f"; {skipped} that this torch cannot ask" if skipped else ""
    return f"worst {worst:.2f} of what is allowed{rest}"


def check_doors_cached(where):
    """Lengths and pages through the door: a few queries for each of several caches, by float64."""
    lengths_q, used, page, H, Hk, D = (3, 1, 4), (37, 100, 4), 16, 4, 2, 64
    worst = 0.0
    for dtype, window in itertools.product(dtypes(where), WINDOWS):
        rng = torch.Generator(device=where.device).manual_seed(0)
        q = torch.randn(sum(lengths_q), H, D, generator=rng, device=where.device).to(dtype)
        pages = [torch.randn(21, page, Hk, D, generator=rng, device=where.device).to(dtype)
                 for _ in "kv"]
        table = torch.randperm(21, generator=rng, device=where.device).view(3, 7).int()
        seqused = torch.tensor(used, dtype=torch.int32, device=where.device)
        k, v = (x[table.long()].flatten(1, 2) for x in pages)               # (3, 112, H_k, D)
        cu_q, calls = cumulative(lengths_q, where.device), []
        with opened(where.device, calls):
            paged = varlen(q, *pages, cu_q, None, lengths_q, (112,), window, seqused_k=seqused,
                           block_table=table)
            if paged is None:
                return "this torch cannot ask for a cache"
            slots = varlen(q, *(x.flatten(0, 1) for x in (k, v)), cu_q,
                           cumulative((112,) * 3, where.device),
                           lengths_q, (112,), window, seqused_k=seqused)
        require(calls == ["flash_decode"] * 2, f"{window}: {calls} came through the door")
        require(torch.equal(paged, slots), f"{window}: pages change bits")
        flat = [torch.cat([x[b, :n] for b, n in enumerate(used)]) for x in (k, v)]
        for given, (rows, *_) in parts_of((q, *flat, q), lengths_q, used, window):
            error = off(paged[rows].transpose(0, 1)[None], dense(given)[0])
            require(error <= TOLERANCE[dtype], f"{window} {rows} {dtype}: error {error:.2e}")
            worst = max(worst, error / TOLERANCE[dtype])
    return f"worst {worst:.2f} of what is allowed"
