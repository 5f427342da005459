"""What only a GPU can show of packed sequences: 16 bits, the copy engine, CUDA graphs, far offsets.

Checks as in `gpu_checks`; the values run as tasks of `run_gpu`, one for each kernel that is compiled.
"""

from __future__ import annotations

import itertools
import math

import torch

from flashlib.kernels import flash_attention_varlen
from tests.kernels.behaviours import require
from tests.kernels.packed_cases import Case, alone, answer, cumulative, inputs, judge

MASKS = {"full": (False, None), "causal": (True, None), "left": (True, (100, 0)),
         "window": (False, (70, 30))}
EDGES = (0, 1, 63, 64, 65, 127, 128, 129, 300, 0)           # of tiles
# Lengths of q, and of k: None are the same. More queries than keys, more keys, neither.
LENGTHS = ((EDGES, None), (EDGES, EDGES[::-1]), ((200, 33, 0, 257), (90, 500, 50, 256)),
           ((1500, *[7] * 60), None))
FEW = (((3, 0, 20), None), ((9, 5), (4, 30)))               # where a CPU has to


def varlen_tasks():
    """Return name → (dtype, D, mask) of what compiles kernels of its own."""
    both = itertools.product((torch.bfloat16, torch.float16), (64, 128), MASKS)
    more = [(torch.bfloat16, 256, "causal"), (torch.bfloat16, 40, "causal"),
            (torch.float16, 32, "full"), (torch.bfloat16, 8, "causal"), (torch.float32, 64, "causal")]
    return {f"varlen {str(dtype).split('.')[1]}-D{D}-{mask}": (dtype, D, mask)
            for dtype, D, mask in (*both, *more)}


def run_varlen(where, dtype, D, mask, lengths=None, times=10):
    """Every tensor by the rule, whatever stands behind or in a neighbour; the same bits every time."""
    options = {"impl": "auto" if where.impl == "gluon" else where.impl}
    causal, window = MASKS[mask]
    worst = 0.0, ""
    lengths = lengths or (FEW if where.device == "cpu" else LENGTHS)
    for q_lengths, k_lengths in lengths:
        case = Case(q_lengths, k_lengths, 4, 2, D, causal, window, behind=37)
        given = inputs(case, dtype, where.device)
        got = answer(case, given, **options)
        for name, score in judge(case, given, got).items():
            worst = max(worst, (score.ratio, f"{name} {case}"))
            require(score.ratio <= 1, f"{name} {case}: {score.error:.2e} > {score.allowed:.2e}")
        if where.device == "cpu":                           # a GPU would compile for each length
            require(all(map(torch.equal, got, alone(case, given, options["impl"]))),
                    f"not the bits of one call a sequence: {case}")
        for _ in range(times):
            require(all(map(torch.equal, got, answer(case, given, **options))),
                    f"differs from run to run: {case}")
        _one_laid_apart(case, given, got, options, dtype)
        _one_poisoned(case, given, got, options)
    return f"worst {worst[0]:.2f} of what is allowed: {worst[1]}"


def _one_laid_apart(case, given, got, options, dtype):
    """Slices of one tensor of all three, and rows that the copy engine does not read."""
    q, k, v = given[:3]
    if case.k_lengths is None:
        fused = torch.cat([q, k, v], 1)
        parts = fused.split((case.H, case.Hk, case.Hk), 1)
        require(all(map(torch.equal, got, answer(case, given._replace(**dict(zip(
            "qkv", parts, strict=True))), **options))), f"slices of one tensor: {case}")
    apart = [torch.nn.functional.pad(x, (1, 0))[..., 1:] for x in (q, k, v)]
    require(not apart[0].is_contiguous(), "laid apart")
    again = answer(case, given._replace(**dict(zip("qkv", apart, strict=True))), **options)
    for name, score in judge(case, given, again).items():
        require(score.ratio <= 1, f"{name} {case}, laid apart: {score.error:.2e}")


def _one_poisoned(case, given, got, options):
    """NaN in one sequence reaches no other, forward or backward."""
    ends_q = given.cu_q.tolist()
    ends_k = ends_q if given.cu_k is None else given.cu_k.tolist()
    at = max(range(len(ends_q) - 1), key=lambda i: ends_k[i + 1] - ends_k[i])
    bad = given._replace(**{name: getattr(given, name).clone() for name in ("q", "k", "v", "do")})
    rows, keys = slice(*ends_q[at:at + 2]), slice(*ends_k[at:at + 2])
    bad.q[rows], bad.do[rows], bad.k[keys], bad.v[keys] = (math.nan,) * 4
    again = answer(case, bad, **options)
    for n, (x, y) in enumerate(zip(got, again, strict=True)):
        x, y = (x.T, y.T) if n == 1 else (x, y)
        inside = keys if n > 2 else rows
        require(torch.equal(x[:inside.start], y[:inside.start])
                and torch.equal(x[inside.stop:], y[inside.stop:]), f"NaN next door: {case}")


def check_varlen_graph(where):
    """A graph of a forward and a backward is right at other lengths, and of fewer rows in all."""
    if where.device == "cpu":
        return "left out: needs a GPU"
    case = Case((500, 300, 0, 200), None, 8, 2, 64, causal=True, behind=24)
    given = inputs(case, torch.bfloat16, where.device)
    given = given._replace(**{name: getattr(given, name).nan_to_num_(0.5)
                              for name in ("q", "k", "v", "do", "dlse")})
    q, k, v = (x.requires_grad_() for x in given[:3])
    cu = given.cu_q.clone()

    def call(cu):
        o, lse = flash_attention_varlen(q, k, v, cu, causal=True, return_lse=True)
        return o, lse, *torch.autograd.grad((o, lse), (q, k, v), (given.do, given.dlse))

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(cu)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        held = call(cu)
    for lengths in ((1, 1, 1, 1), (0, 0, 0, 1024), (256,) * 4, (0, 0, 0, 0), (65, 700, 3, 129)):
        other = cumulative(lengths, where.device)
        cu.copy_(other)
        graph.replay()
        torch.cuda.synchronize()
        require(all(map(torch.equal, held, call(other))), f"{lengths} in a graph")
    return ""


def check_varlen_wrong_starts(where):
    """Starts that are none touch nothing outside of the tensors; the reference refuses them."""
    if where.device == "cpu":
        return "left out: needs a GPU"
    room = torch.zeros(3, 4096, 4, 64, dtype=torch.bfloat16, device=where.device)
    q, k, v = (x[1024:1324].requires_grad_() for x in room.unbind())
    for starts in ([0, 200, 100, 300], [7, 3000, -5, 2**31 - 1], [-9, -8, -7, -6], [300, 200, 100, 0]):
        cu = torch.tensor(starts, dtype=torch.int32, device=where.device)
        o = flash_attention_varlen(q, k, v, cu, causal=True)
        torch.autograd.grad(o.sum(), (q, k, v))
        torch.cuda.synchronize()
        try:
            flash_attention_varlen(q, k, v, cu, impl="reference")
        except ValueError as error:
            require("cu_q: expected numbers from 0" in str(error), str(error))
        else:
            require(False, f"{starts} are not refused")
    return ""


def check_varlen_far(where):
    """Sequences that lie beyond 2³¹ elements."""
    if where.device == "cpu" or torch.cuda.mem_get_info()[0] < 40 * 2**30:
        return "left out: needs 40 GiB of GPU memory"
    T, H, D = 2**18 + 2048, 64, 128                         # 2³¹ + 2²⁴ elements
    q, k, v = (torch.randn(T, H, D, dtype=torch.bfloat16, device=where.device) for _ in range(3))
    cu = torch.arange(0, T + 1, 2048, dtype=torch.int32, device=where.device)
    o, lse = flash_attention_varlen(q, k, v, cu, causal=True, return_lse=True)
    last = (x[-2048:] for x in (q, k, v))
    near = flash_attention_varlen(*last, cu[:2], causal=True, return_lse=True)
    require(torch.equal(o[-2048:], near[0]) and torch.equal(lse[:, -2048:], near[1]), "far away")
    return ""
